"""SLDA: streaming linear discriminant analysis on frozen features (Hayes and Kanan, CVPR-W 2020).

A running mean mu_c of each class, one covariance Sigma shared by all, and the rule of linear discriminant
analysis with equal priors:

    Lambda = ((1 - shrinkage) Sigma + shrinkage I)^-1
    argmax_c  mu_c Lambda x - mu_c Lambda mu_c / 2    (+ (1 - balance) log n_c, with ``balance`` below 1)

The base session gives the means and, by oracle-approximating shrinkage, Sigma. After it, when t samples have been
seen, each sample adds its deviation d = x - mu_y to the scatter t Sigma and then updates its mean:

    exact (default):  t Sigma <- t Sigma + n_y / (n_y + 1) d d^T    Welford's within-class scatter
    official:         t Sigma <- t Sigma + t / (t + 1) d d^T        sample by sample, the authors' code

``covariance="fixed"`` does not change Sigma after the base session; comparing both shows whether novel data improve it.

Differences from the authors' code, and why. ``exact`` is the default because ``official`` counts the first sample of a
class as a deviation from zero and over-weights the others; it agrees with the pooled within-class covariance to
rounding, in any order and batch size. Everything is summed in float64 and solved by Cholesky where the code takes a
float32 pseudo-inverse. Classes never seen cannot be predicted; in the code their score is 0 and may be the highest.
Without a base session Sigma starts empty, as in the code. ``power`` other than 1 transforms
features by Tukey's ladder first."""

from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal, Self, Unpack

import torch
from torch import Tensor

from nocl.learner import FrozenCommon, FrozenLearner, Learner
from nocl.plumbing.parameters import Fraction, Range
from nocl.stats.class_stats import ClassStats, tukey
from nocl.stats.linalg import Cached, oas, solve


class SLDA(FrozenLearner):
    """Streaming linear discriminant analysis.

    Parameters
    ----------
    covariance
        ``plastic``: novel data changes the shared covariance; ``fixed``: it stays as the base session left it.
    update
        ``exact``: the pooled covariance within classes; ``official``: the authors' update, sample by sample.
    shrinkage
        Weight of the identity beside the covariance, above 0 to 1; 1e-4 in the paper.
    power
        Power of the Tukey transform, from 0 to 2 (0: the logarithm); 1, the paper's, changes nothing.
    balance
        How far unequal numbers of images are ignored, from 0 to 1. 1, the paper's: all classes are equally likely,
        whatever their numbers of images; 0: as likely as they were in the stream. Chosen on base classes
        (benchmarks/tune_balance.py).
    **common
        ``stages``, ``backbone``, ``weights``, ``recipe``, ``image_size``, ``seed``: see
        :class:`~nocl.learner.FrozenLearner`.
    """

    softmax_scale: ClassVar[float] = 1.0  # log densities
    depends_on_batching: ClassVar[bool] = False
    statistics: ClassVar[tuple[str, ...]] = ("stats",)

    samples_: Tensor  # int64 [], t: the samples in the scatter
    fixed_: Tensor  # bool [], the covariance changes no more
    search_space = ("power=0.2:1", "shrinkage=0.00001:0.1:log")

    def __init__(
        self,
        *,
        covariance: Literal["plastic", "fixed"] = "plastic",
        update: Literal["exact", "official"] = "exact",
        shrinkage: Annotated[float, Range(0, 1, above=True)] = 1e-4,
        power: Annotated[float, Range(0, 2)] = 1.0,
        balance: Fraction = 1.0,
        **common: Unpack[FrozenCommon],
    ) -> None:
        super().__init__(**common)
        self.covariance, self.update, self.shrinkage, self.power = covariance, update, shrinkage, power
        self.balance = balance
        self.stats = ClassStats(self.feature_dim, "shared")
        self.register_buffer("samples_", torch.zeros((), dtype=torch.int64))
        self.register_buffer("fixed_", torch.tensor(False))
        self._in_base = False
        self._discriminant: Cached[tuple[Tensor, Tensor]] = Cached()

    def grow(self, n: int) -> None:
        self.stats.grow(n)

    def learn(self, z: Tensor, y: Tensor) -> None:
        z, columns = tukey(z, self.power), self.columns(y)
        if self.fixed_:
            self.stats.update(z, columns, spread=False)
        elif self.update == "exact" or self._in_base:
            self.stats.update(z, columns)
            self.samples_ += len(z)
        else:
            for i in range(len(z)):
                self._learn_officially(z[i : i + 1], columns[i : i + 1])

    def _learn_officially(self, z: Tensor, column: Tensor) -> None:
        deviation = z.double() - self.stats.mean[column]
        self.stats.update(z, column, spread=False)
        t = int(self.samples_)
        self.stats.scatter += t / (t + 1) * deviation.T @ deviation
        self.samples_ += 1

    # --- merging: see Learner -----------------------------------------------------------------------------------

    @property
    def mergeable(self) -> bool:
        """False for the authors' update: it weighs each sample by its position in the one stream."""
        return self.update == "exact"

    def absorb(self, other: Learner, columns: Tensor) -> None:
        assert isinstance(other, SLDA)
        self.stats.merge(other.stats, columns, spread=not bool(self.fixed_))
        self.samples_ += other.samples_

    def release(self, other: Learner, columns: Tensor) -> None:
        assert isinstance(other, SLDA)
        self.stats.subtract(other.stats, columns, spread=not bool(self.fixed_))
        self.samples_ -= other.samples_

    def clear(self) -> None:
        super().clear()
        self.samples_.zero_()

    def fit_base_features(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> Self:
        self._in_base = True  # the base estimate is exact in both modes
        try:
            super().fit_base_features(pairs)
        finally:
            self._in_base = False
        n = int(self.samples_)
        self.stats.scatter.copy_(n * oas(self.sigma(), n))
        self.fixed_.fill_(self.covariance == "fixed")
        return self

    def sigma(self) -> Tensor:
        """The shared covariance [d, d]."""
        return self.stats.scatter / self.samples_.clamp_min(1)

    def score(self, z: Tensor) -> Tensor:
        z = tukey(z, self.power)
        weight, bias = self._discriminant.get((self.stats.mean, self.stats.scatter, self.stats.count), self._solve)
        scores = torch.addmm(bias.to(z), z, weight.to(z).T)
        if self.balance < 1:
            scores = scores + (1 - self.balance) * self.stats.count.clamp_min(1).log().to(z)
        return scores.masked_fill(self.stats.count == 0, float("-inf"))

    def _solve(self) -> tuple[Tensor, Tensor]:
        mean = self.stats.mean
        eye = torch.eye(self.feature_dim, dtype=torch.float64, device=mean.device)
        shrunk = (1 - self.shrinkage) * self.sigma() + self.shrinkage * eye
        weight = solve(shrunk, mean.T, "shared covariance").T  # [K, d]
        return weight, -0.5 * (weight * mean).sum(1)
