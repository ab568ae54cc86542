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


def prior_of_means(
    n: Tensor, averages: Tensor, within: Tensor, vague: float = 0.0
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Centre, e, w, axes and (1 - nu n_c) g_c as the docstring of means.py writes them, with whole matrices."""
    d, weight = averages.shape[1], torch.ones(len(n), dtype=torch.float64)
    for last in (False, False, True):
        k = weight.sum() ** 2 / weight.square().sum()
        centre = (weight[:, None] * averages).sum(0) / weight.sum()
        away = averages - centre
        whole = k / (k - 1) * (away.T * weight) @ away / weight.sum()
        noise = (weight / n).sum() / weight.sum()
        level = whole.trace() / d - noise * within.trace() / d
        if not last:
            weight = (level / (level + within.trace() / d / n)) ** 2
    f = k - 1
    square = f**2 / ((f + 2) * (f - 1)) * ((whole @ whole).trace() - whole.trace() ** 2 / f)  # of the true A, unbiased
    clean = whole.trace() - noise * within.trace()
    rest = whole - noise * within
    uneven = square - (whole @ whole).trace() + (rest @ rest).trace() - clean**2 / d
    off = (square.clamp_min(whole.trace() ** 2 / d) + whole.trace() ** 2) / f
    shrinkage = vague + (1 - vague) * off / (off + uneven.clamp_min(0))
    values, axes = torch.linalg.eigh(whole)
    w, differ = (axes.T @ within @ axes).diagonal().clone(), values > 1e-9 * values.max()
    w[~differ] = w[~differ].mean()
    left = values - noise * w
    e = (1 - shrinkage) * left.clamp_min(0) + shrinkage * left.mean()
    own = (1 - noise * n).clamp_min(0) * (1 - shrinkage) * k / (k - 1) * weight / weight.sum()
    return centre, e, w, axes, own
