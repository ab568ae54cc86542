"""NCM: the nearest class mean on frozen features.

The simplest learner without exemplars and the reference that every other must beat. Of each class only the mean of
its features is kept:

    mu_c = mean of g(theta1(x)) over the images x of class c
    cosine:     argmax_c  z . mu_c / (|z| |mu_c|)
    euclidean:  argmin_c  |z - mu_c|^2

``space`` chooses g: ``tukey`` takes the square root (Tukey's ladder, power ``power``), ``vanilla`` leaves features as
they are, ``hyper`` applies the square root and then the projection to ``dim`` values that the base session trains;
that is DSR without iterations. (The output of a contrastive head, a fourth space in some code, is not offered: heads
exist in the base session only.) ``normalise_first`` scales every feature to length 1 before averaging, and then the
mean too, as iCaRL does. Means are running means in float64, so batch size and order do not matter. A zero feature
has cosine 0 with everything.
"""

from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from nocl.learner import FrozenCommon, FrozenLearner
from nocl.nets.projection import Projection
from nocl.plumbing.parameters import Count, Range
from nocl.plumbing.seeding import seed_from
from nocl.plumbing.types import Batch
from nocl.pretrain import Strategy, Trained
from nocl.stats.class_stats import ClassStats, tukey


class NCM(FrozenLearner):
    """Nearest class mean.

    Parameters
    ----------
    space
        The features that are averaged: ``tukey`` (transformed), ``vanilla`` (unchanged) or ``hyper`` (after the
        projection that the base session trains).
    metric
        ``cosine`` or ``euclidean``.
    power
        Power of the Tukey transform, from 0 to 2 (0: the logarithm); 1 changes nothing. 0.5 in the NO-CL paper.
    dim
        Length of the projection, 1 or more; used by ``hyper`` only. 2,048 in the NO-CL paper.
    normalise_first
        Scale every feature to length 1 before averaging, as iCaRL does.
    **common
        ``stages``, ``backbone``, ``weights``, ``recipe``, ``image_size``, ``seed``: see
        :class:`~nocl.learner.FrozenLearner`.
    """

    depends_on_batching: ClassVar[bool] = False
    learns_from_one_image: ClassVar[bool] = True
    statistics: ClassVar[tuple[str, ...]] = ("stats",)
    search_space = ("power=0.2:1", "metric=cosine,euclidean")

    def __init__(
        self,
        *,
        space: Literal["tukey", "vanilla", "hyper"] = "tukey",
        metric: Literal["cosine", "euclidean"] = "cosine",
        power: Annotated[float, Range(0, 2)] = 0.5,
        dim: Count = 2048,
        normalise_first: bool = False,
        **common: Unpack[FrozenCommon],
    ) -> None:
        super().__init__(**common)
        self.space, self.metric, self.power, self.normalise_first = space, metric, power, normalise_first
        self.dim = dim
        self.projection: Projection | None = None
        if space == "hyper":
            self.full_recipe = self.full_recipe.with_changes({"power": power, "projection": dim})
            self.projection = Projection(self.feature_dim, dim, seed=seed_from(self.seed, "projection")).eval()
        self.stats = ClassStats(dim if space == "hyper" else self.feature_dim)

    def needs_heads(self) -> bool:
        return self.space == "hyper"

    def after_base(self, trained: Trained, base: Iterable[Batch]) -> None:
        if self.projection is not None:
            if not isinstance(trained.objective, Strategy) or trained.objective.projection is None:
                raise ValueError(
                    f"space='hyper' needs an objective with a projection, not {self.full_recipe.objective}"
                )
            self.projection.load_state_dict(trained.objective.projection.state_dict())
        super().after_base(trained, base)

    def grow(self, n: int) -> None:
        self.stats.grow(n)

    def learn(self, z: Tensor, y: Tensor) -> None:
        self.stats.update(self._transform(z), self.columns(y))

    def score(self, z: Tensor) -> Tensor:
        z = self._transform(z)
        mean = self.stats.mean.to(z)  # [K, d]
        if self.normalise_first:
            mean = F.normalize(mean, dim=1)
        if self.metric == "cosine":
            scores = F.normalize(z, dim=1) @ F.normalize(mean, dim=1).T  # [B, K]
        else:
            scores = 2 * z @ mean.T - mean.square().sum(1) - z.square().sum(1, keepdim=True)  # -|z - mu|^2
        return scores.masked_fill(self.stats.count == 0, float("-inf"))

    def _transform(self, z: Tensor) -> Tensor:
        z = z if self.space == "vanilla" else tukey(z, self.power)
        if self.projection is not None:
            with torch.no_grad():
                z = self.projection.eval()(z)
        return F.normalize(z, dim=1) if self.normalise_first else z

    def network_state_names(self) -> set[str]:
        return {name for name in self.state_dict() if name.startswith(("network.", "projection."))}
