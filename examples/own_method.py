"""A method of one's own in one file: nearest mean of unit features. Check it, run it, without touching the package.

PYTHONPATH=examples nocl check own_method:UnitMean
PYTHONPATH=examples nocl run own_method:UnitMean --dataset glyphs --epochs 8
"""

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor

from nocl import FrozenLearner
from nocl.plumbing.types import JSON
from nocl.stats.class_stats import ClassStats


class UnitMean(FrozenLearner):
    """Nearest mean of features scaled to length one."""

    def __init__(
        self,
        *,
        backbone: str = "reduced_resnet18",
        weights: str | None = None,
        recipe: Mapping[str, JSON] | None = None,
        image_size: int = 32,
        seed: int = 0,
    ) -> None:
        super().__init__(backbone=backbone, weights=weights, recipe=recipe, image_size=image_size, seed=seed)
        self.stats = ClassStats(self.feature_dim)

    def grow(self, n: int) -> None:
        self.stats.grow(n)

    def learn(self, z: Tensor, y: Tensor) -> None:
        self.stats.update(F.normalize(z, dim=1), self.columns(y))

    def score(self, z: Tensor) -> Tensor:
        return F.normalize(z, dim=1) @ self.stats.mean.to(z).T
