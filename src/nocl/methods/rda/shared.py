"""The covariance within classes, and how much of it is known: it rests on N - K images beyond the first of each class.

    r = 1 / (1 + ((N - K) / d)^1.5)                       the share of S that is not known
    S = (1 - r) measured + r v (I + (k - 1) a a^T)        v its mean variance, a the direction of the classes' mean

What is not measured yet is taken to be round, but for one direction. Features that are never negative differ in
strength, all values of an image together, more than in anything else: along a, images of one class vary 14 times (of
a reduced ResNet-18) and 18 times (of EfficientNet) as much as along others. Round in it too, two pictures would mostly
be told apart by which is the fainter. k is ``_STRENGTH`` at first and then what is measured, which for one direction
a few images do; the first guess counts as one image, as that of v does.
"""

from functools import cached_property

import torch
from torch import Tensor

from nocl.stats.class_stats import ClassStats

_HALF_KNOWN = 1  # images a feature value with which half of the shared covariance is taken; benchmarks/few_classes.py
_WITHIN = 2 / 3  # of the variance of single images of different classes, what is within classes: the guess before any
_STRENGTH = 15.0  # k before anything is measured
_TINY = 1e-6  # variance where none has been seen yet


class Shared:
    """S of these statistics; ``strong``, if the features are never negative and differ in strength."""

    def __init__(self, stats: ClassStats, *, strong: bool) -> None:
        self.stats, self.strong = stats, strong

    @property
    def free(self) -> Tensor:
        """N - K."""
        return self.stats.count.sum() - (self.stats.count > 0).sum()

    @property
    def unknown(self) -> Tensor:
        """r, 0 to 1."""
        return 1 / (1 + (self.free / (_HALF_KNOWN * self.stats.dim)) ** 1.5)

    @property
    def matrix(self) -> Tensor:
        """S, float64 [d, d]."""
        return (1 - self.unknown) * self._measured + self.unknown * self.level * self._round

    @cached_property
    def level(self) -> Tensor:
        """v."""
        seen = self._measured.trace() / self.stats.dim
        return (self.free * seen + self._guessed_level) / (self.free + 1)

    def ridge(self, share: float) -> Tensor:
        """That share of the mean variance along every direction, float64 [d, d]."""
        return (share * self.level).clamp_min(_TINY) * self._eye

    def noise(self, root: Tensor, vague: float) -> Tensor:
        """The covariance of an image around its class where the one used is I: not quite I, float64 [d, d]."""
        measured = (self.free * self._measured + self._guessed_level * self._round) / (self.free + 1)
        found = root @ measured @ root.T
        return (1 - vague) * found + vague * found.trace() / len(root) * self._eye

    @cached_property
    def _eye(self) -> Tensor:
        return torch.eye(self.stats.dim, dtype=torch.float64, device=self.stats.mean.device)

    @cached_property
    def _measured(self) -> Tensor:
        return self.stats.shared_covariance(unbiased=True)

    @cached_property
    def _round(self) -> Tensor:
        """I + (k - 1) a a^T."""
        middle = self.stats.mean[self.stats.count > 0].sum(0)
        if not self.strong or float(middle.norm()) == 0:
            return self._eye
        along = middle / middle.norm()
        seen = (along @ self._measured @ along) / (self._measured.trace() / self.stats.dim).clamp_min(_TINY)
        k = (self.free * seen + _STRENGTH) / (self.free + 1)
        found: Tensor = self._eye + (k - 1) * torch.outer(along, along)
        return found

    @property
    def _guessed_level(self) -> Tensor:
        """The mean variance within classes as their means alone suggest it; counts as one image."""
        met = self.stats.mean[self.stats.count > 0]
        return met.var(0).mean() * _WITHIN if len(met) > 1 else met.new_zeros(())
