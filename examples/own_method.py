"""A method of one's own in one file: nearest mean of unit features. Check it, run it, without touching the package.

PYTHONPATH=examples nocl check own_method:UnitMean
PYTHONPATH=examples nocl run own_method:UnitMean --dataset glyphs --epochs 8
"""

from typing import Annotated, Unpack

import torch.nn.functional as F
from torch import Tensor

from nocl import FrozenLearner
from nocl.learner import FrozenCommon
from nocl.plumbing.parameters import Range
from nocl.stats.class_stats import ClassStats


class UnitMean(FrozenLearner):
    """Nearest mean of features scaled to length one.

    Parameters
    ----------
    power
        Every feature value is raised to this power first, above 0 to 1.
    **common
        The parameters of every method: see :class:`nocl.FrozenLearner`.
    """

    def __init__(
        self, *, power: Annotated[float, Range(0, 1, above=True)] = 1.0, **common: Unpack[FrozenCommon]
    ) -> None:
        super().__init__(**common)
        self.power = power
        self.stats = ClassStats(self.feature_dim)

    def grow(self, n: int) -> None:
        self.stats.grow(n)

    def learn(self, z: Tensor, y: Tensor) -> None:
        self.stats.update(self.unit(z), self.columns(y))

    def score(self, z: Tensor) -> Tensor:
        return self.unit(z) @ self.stats.mean.to(z).T

    def unit(self, z: Tensor) -> Tensor:
        """Features [B, d] of length 1."""
        return F.normalize(z.clamp_min(0) ** self.power, dim=1)
