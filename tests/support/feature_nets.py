"""Networks whose feature is the first d pixels: a learner on given features needs one only for its length."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nocl.learner import FrozenLearner

CASES: dict[str, Any] = json.loads((Path(__file__).parents[1] / "fixtures" / "rivals.json").read_text())["cases"]


class FirstPixels(nn.Module):
    """[B, 3, H, W] to [B, d]."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.d = d

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, : self.d]


def __getattr__(name: str) -> Any:
    """``feature_nets:d6`` builds a network of six features."""
    if name[:1] == "d" and name[1:].isdigit():
        return lambda: FirstPixels(int(name[1:]))
    raise AttributeError(name)


def on_features(cls: type[FrozenLearner], d: int, **params: Any) -> Any:
    """A learner of that class on features of length d."""
    return cls(backbone=f"tests.support.feature_nets:d{d}", **params)


def feed(learner: FrozenLearner, z: Tensor, y: Tensor, size: int = 10) -> None:
    """Teach features in batches."""
    for start in range(0, len(y), size):
        learner.learn(z[start : start + size], y[start : start + size])


def doubles(value: Any) -> Tensor:
    """Numbers of a fixture."""
    return torch.tensor(value, dtype=torch.float64)


def blobs(n_classes: int, n: int, d: int, *, seed: int = 0, spread: float = 1.0) -> tuple[Tensor, Tensor]:
    """Non-negative features: n of each class around centres of their own, shuffled."""
    draw = torch.Generator().manual_seed(seed)
    centres = 4 * torch.rand(n_classes, d, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    y = torch.arange(n_classes).repeat_interleave(n)[torch.randperm(n_classes * n, generator=draw)]
    mix = torch.randn(d, d, generator=draw, dtype=torch.float64) / d**0.5
    noise = torch.randn(len(y), d, generator=draw, dtype=torch.float64) @ mix
    return (centres[y] + spread * noise).relu(), y
