"""What the tests of rda share: a small learner, features of Gaussian classes, and how to teach it."""

import torch
from torch import Tensor

from nocl.methods.rda.method import RDA
from nocl.plumbing.seeding import generator

D = 8 * (2 + 4 + 8)  # tiny_resnet18, stages 2, 3, 4


def rda(**params: object) -> RDA:
    return RDA(**{"backbone": "tiny_resnet18", "stages": [2, 3, 4], **params})  # type: ignore[arg-type]


def gaussians(counts: list[int], seed: int = 0, dim: int = D) -> tuple[Tensor, Tensor]:
    """Positive features of classes with shapes of their own, shuffled."""
    draw = generator(seed, "gaussians")
    z, y = [], []
    for c, n in enumerate(counts):
        own = generator(c, "shape")
        mixing = torch.randn(dim, dim, generator=own) / dim**0.5
        z.append((torch.randn(n, dim, generator=draw) @ mixing + 1.5 * torch.randn(dim, generator=own)).abs())
        y += [c] * n
    order = torch.randperm(len(y), generator=draw)
    return torch.cat(z)[order], torch.tensor(y)[order]


def taught(learner: RDA, z: Tensor, y: Tensor, size: int = 10) -> RDA:
    for part, labels in zip(z.split(size), y.split(size)):
        learner.learn(part, labels)
    return learner


def relative(scores: Tensor) -> Tensor:
    """Without what is the same for all classes."""
    return scores - scores.mean(1, keepdim=True)
