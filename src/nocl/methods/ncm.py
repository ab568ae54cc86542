"""NCM: the nearest class mean on frozen features.

The simplest learner without exemplars and the reference that every other must beat. Of each class only the mean of
its features is kept:

    mu_c = mean of g(theta1(x)) over the images x of class c
    cosine:     argmax_c  z . mu_c / (|z| |mu_c|)
    euclidean:  argmin_c  |z - mu_c|^2

``space`` chooses g: ``tukey`` takes the square root (Tukey's ladder, power ``power``), ``vanilla`` leaves features as
they are, ``hyper`` puts the projection of ``dim`` values behind the square root that the base session trains along;
there this is DSR with no iterations. (The output of a contrastive head, a fourth space in some code, is left out: heads
live in the base session only.) ``normalise_first`` scales every feature to length 1 before averaging and the mean once
more after it, as iCaRL does. Means are running means in float64, so batch size and order do not matter. A zero feature
has cosine 0 with everything.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from nocl.learner import FrozenLearner
from nocl.nets.projection import Projection
from nocl.plumbing.seeding import seed_from
from nocl.plumbing.types import JSON, Batch
from nocl.pretrain import Strategy, Trained
from nocl.stats.class_stats import ClassStats, tukey


class NCM(FrozenLearner):
    """Nearest class mean."""

    depends_on_batching: ClassVar[bool] = False
    statistics: ClassVar[tuple[str, ...]] = ("stats",)

    def __init__(
        self,
        *,
        space: Literal["tukey", "vanilla", "hyper"] = "tukey",
        metric: Literal["cosine", "euclidean"] = "cosine",
        power: float = 0.5,
        dim: int = 2048,
        normalise_first: bool = False,
        stages: Sequence[int] | None = None,
        backbone: str = "reduced_resnet18",
        weights: str | None = None,
        recipe: Mapping[str, JSON] | None = None,
        image_size: int = 32,
        seed: int = 0,
    ) -> None:
        super().__init__(
            stages=stages, backbone=backbone, weights=weights, recipe=recipe, image_size=image_size, seed=seed
        )
        if space not in ("tukey", "vanilla", "hyper"):
            raise ValueError(f"space must be tukey, vanilla or hyper, not {space!r}")
        if metric not in ("cosine", "euclidean"):
            raise ValueError(f"metric must be cosine or euclidean, not {metric!r}")
        self.space, self.metric, self.power, self.normalise_first = space, metric, power, normalise_first
        self.dim = dim
        self.projection: Projection | None = None
        if space == "hyper":
            self.full_recipe = self.full_recipe.with_changes({"power": power, "projection": dim})
            self.projection = Projection(self.feature_dim, dim, seed=seed_from(seed, "projection")).eval()
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
