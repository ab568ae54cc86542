"""DSR with what we added to the paper: several stages, shrunk covariances, contrast in the upper level.

Everything else is DSR; see :mod:`nocl.methods.dsr`.

* ``stages`` takes the pooled outputs of several stages, as rda does. The network is that of the usual base session. The
  projection of the base session takes the last stage only, so theta2 is trained on the features afterwards.
* ``covariance="shrunk"`` draws v from rda's covariances: each class's own, shrunk to the shared one. ``full`` draws
  from each class's own covariance, ``diagonal`` from the paper's variances.
* ``upper="contrast"`` replaces A by the cross-entropy of cos(theta2(v), h) / tau over all classes, because alignment
  ignores the distance to the prototypes of other classes.
* ``outer_momentum`` and ``outer_clip`` are for training theta2: contrast diverges at learning rates at which
  alignment does not.

The defaults were chosen on base classes alone (docs/methods/dsr.md).
"""

from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Any, ClassVar, Literal, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from nocl.learner import Common
from nocl.methods.dsr import DSR, STD_FLOOR, Phi
from nocl.plumbing.parameters import Fraction, NonNegative, Positive
from nocl.plumbing.seeding import generator
from nocl.plumbing.types import JSON
from nocl.pretrain import Recipe
from nocl.stats import linalg
from nocl.stats.class_stats import ClassStats, shrink_covariances


class PaperParameters(Common, total=False):
    """The parameters of DSR that are handed on."""

    power: float
    dim: int
    iterations: int
    samples: int
    base_samples: int | None
    novel_samples: int | None
    refine: bool
    inner_steps: int
    inner_lr: float
    rho: float
    phi: Phi
    align: bool
    base_std_extra: float
    refine_every: int


class DSRCalibrated(DSR):
    """DSR on several stages, with samples from shrunk covariances and a contrastive upper level.

    Parameters
    ----------
    stages
        The stages of the network whose pooled outputs make the feature. None: the last one; ``"auto"``: the last three.
    covariance
        Of the Gaussian: ``diagonal`` (the paper's), ``full`` or ``shrunk``.
    prior
        ``shrunk``: weight of the shared covariance, above 0, in images for each feature value.
    ridge
        ``shrunk``: added to every variance, 0 or more, as a share of the mean variance.
    upper
        Loss of the upper level: ``align`` (the paper's) or ``contrast``.
    upper_tau
        Temperature of ``contrast``, above 0.
    outer_lr
        Learning rate of the upper level, 0 or more.
    outer_momentum
        Momentum of the upper level, from 0 to 1.
    outer_clip
        Largest norm of the upper level's gradient, 0 or more (0: no limit).
    **common
        ``power``, ``dim``, ``iterations``, ``samples``, ``base_samples``, ``novel_samples``, ``refine``,
        ``inner_steps``, ``inner_lr``, ``rho``, ``phi``, ``align``, ``base_std_extra``, ``refine_every``: see
        :class:`~nocl.methods.dsr.DSR`. ``backbone``, ``weights``, ``recipe``, ``image_size``, ``seed``: see
        :class:`~nocl.learner.Learner`.
    """

    depths: ClassVar[int] = 3
    presets: ClassVar[dict[str, dict[str, JSON]]] = {}
    retired: ClassVar[Mapping[str, JSON | EllipsisType]] = {
        name: value
        for name, value in DSR.retired.items()
        if name.startswith(("phi", "deviation", "clip", "proto", "std_floor", "inner_momentum"))
    }

    def __init__(
        self,
        *,
        stages: Sequence[int] | Literal["auto"] | None = "auto",
        covariance: Literal["diagonal", "full", "shrunk"] = "shrunk",
        prior: Positive = 3.0,
        ridge: NonNegative = 0.001,
        upper: Literal["align", "contrast"] = "contrast",
        upper_tau: Positive = 0.1,
        outer_lr: NonNegative = 0.03,
        outer_momentum: Fraction = 0.9,
        outer_clip: NonNegative = 0.5,
        **common: Unpack[PaperParameters],
    ) -> None:
        super().__init__(stages=stages, outer_lr=outer_lr, **common)  # type: ignore[call-arg]  # DSR hands it on
        self.covariance, self.prior, self.ridge = covariance, prior, ridge
        self.upper, self.upper_tau = upper, upper_tau
        self.outer_momentum, self.outer_clip = outer_momentum, outer_clip
        self.draw = generator(self.seed, DSR.__name__)  # the random numbers of DSR, with which our results were made
        self.vanilla = ClassStats(self.feature_dim, "diagonal" if covariance == "diagonal" else "full")
        self._factored: linalg.Cached[Tensor] = linalg.Cached()

    def needs_heads(self) -> bool:
        return self.stages is None  # the base session's projection takes the last stage; others need one of their own

    def fit_projection(self, z: Tensor, y: Tensor, recipe: Recipe, curve: str = "base_loss") -> None:
        if self.stages is not None:  # trained after the base session, without rotated and mixed images
            recipe, curve = recipe.with_changes({"objective": recipe.objective.partition("+")[0]}), "projection_loss"
        super().fit_projection(z, y, recipe, curve)

    def outer_optimizer(self) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(self.projection.parameters(), self.outer_lr, self.outer_momentum)
        if self.outer_clip:
            optimizer.register_step_pre_hook(self._clip)
        return optimizer

    def _clip(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        torch.nn.utils.clip_grad_norm_(self.projection.parameters(), self.outer_clip)

    def upper_loss(self, high: Tensor, h: Tensor, columns: Tensor) -> Tensor:
        if self.upper == "align":
            return super().upper_loss(high, h, columns)
        cosines = F.normalize(high, dim=1) @ F.normalize(h, dim=1).T  # [N, K]
        return F.cross_entropy(cosines / self.upper_tau, columns)

    def spread(self, noise: Tensor, columns: Tensor) -> Tensor:
        if self.covariance == "diagonal":
            return super().spread(noise, columns)
        state = (self.vanilla.scatter, self.vanilla.count, self.n_base_)
        factors = self._factored.get(state, self._factors)
        counts = columns.bincount(minlength=len(factors)).tolist()
        return torch.cat([block @ factor.T for block, factor in zip(noise.split(counts), factors)])

    def _factors(self) -> Tensor:
        """Cholesky factors [K, d, d] of the class covariances, with the floor and base_std_extra in their variances."""
        covariance = self.vanilla.covariance()
        extra = self.scale_of_classes().square() - self.vanilla.std().square()
        if self.covariance == "shrunk":  # as in rda
            shared = self.vanilla.shared_covariance(unbiased=True)
            prior = self.prior * self.feature_dim
            covariance = shrink_covariances(self.vanilla.scatter, self.vanilla.count, shared, prior)
            extra = extra + self.ridge * shared.trace() / self.feature_dim
        shifted = covariance + torch.diag_embed(extra + STD_FLOOR**2)
        return linalg.cholesky(shifted, "dsr's class covariances").float()
