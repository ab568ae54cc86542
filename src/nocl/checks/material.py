"""What the checks share: simple images, a small learner, and the error of a failed check."""

from collections.abc import Iterable

import torch

from nocl.learner import Learner
from nocl.plumbing.seeding import generator
from nocl.plumbing.types import JSON, Batch

SIDE = 32
BASE_LABELS, NOVEL_LABELS = (7, 3, 40, 0), (12, 5)
QUICK: dict[str, JSON] = {
    "backbone": "tiny_resnet18",
    "image_size": SIDE,
    "recipe": {"epochs": 6, "lr": 0.05, "schedule": "onecycle", "compile": False},
}


class CheckError(AssertionError):
    """A learner or stream breaks the contract."""


def easy_images(labels: Iterable[int], n: int, seed: int) -> Batch:
    """``n`` images of each label: a coarse pattern for each label, with noise, shuffled."""
    y = torch.tensor([label for label in labels for _ in range(n)])
    y = y[torch.randperm(len(y), generator=generator(seed, "order"))]
    patterns = {
        label: torch.randint(256, (3, 4, 4), generator=generator(label, "pattern")) for label in set(y.tolist())
    }
    coarse = torch.stack([patterns[label] for label in y.tolist()])
    fine = coarse.repeat_interleave(SIDE // 4, 2).repeat_interleave(SIDE // 4, 3)
    noise = torch.randint(77, (len(y), 3, SIDE, SIDE), generator=generator(seed, "noise"))
    return Batch((fine * 0.7 + noise).to(torch.uint8), y)


def split(batch: Batch, size: int) -> list[Batch]:
    """A batch as smaller ones."""
    return [Batch(x, y) for x, y in zip(batch.x.split(size), batch.y.split(size))]


def build(cls: type[Learner], params: dict[str, JSON]) -> Learner:
    """A learner small enough for checks."""
    return cls(**{**QUICK, **cls.check_params, **params})  # type: ignore[arg-type]


def expect(condition: bool, message: str) -> None:
    """Fail the check with a message unless the condition holds."""
    if not condition:
        raise CheckError(message)
