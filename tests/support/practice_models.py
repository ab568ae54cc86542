"""Small models and pictures for the tests of practice: solid colours with noise, on an untrained tiny network."""

import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nocl.app.classifier import Classifier

COLOURS = {"red": (200, 40, 40), "green": (40, 180, 60), "blue": (50, 60, 210), "grey": (128, 128, 128)}


def pictures(name: str, n: int, seed: int = 0, size: int = 32) -> Tensor:
    """uint8 [n, 3, size, size] of one colour."""
    draw = torch.Generator().manual_seed(seed * 1000 + sorted(COLOURS).index(name))
    noise = torch.randint(-30, 31, (n, 3, size, size), generator=draw)
    return (torch.tensor(COLOURS[name]).view(1, 3, 1, 1) + noise).clamp(0, 255).to(torch.uint8)


def untaught(**changes: object) -> Classifier:
    return Classifier(**({"method": "ncm", "backbone": "tiny_resnet18", "recipe": {"epochs": 0}} | changes))  # type: ignore[arg-type]


def fitted(names: tuple[str, ...] = ("red", "green"), n: int = 8, **changes: object) -> Classifier:
    """A model fitted on these colours."""
    x = torch.cat([pictures(name, n) for name in names])
    return untaught(**changes).fit(x, [name for name in names for _ in range(n)])


def png(name: str, seed: int = 0, size: int = 32) -> bytes:
    """One picture as the bytes of a file."""
    out = io.BytesIO()
    image_of(pictures(name, 1, seed, size)[0]).save(out, "PNG")
    return out.getvalue()


def image_of(x: Tensor) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(x.permute(1, 2, 0).numpy()))


def folder_of(root: Path, counts: dict[str, int], seed: int = 0) -> Path:
    """root/<name>/<i>.png"""
    for name, n in counts.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for i, x in enumerate(pictures(name, n, seed)):
            image_of(x).save(root / name / f"{i}.png")
    return root


def state(model: Classifier) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.learner_.state_dict().items()}


def same_bits(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
