"""RanPAC: ridge regression on a random ReLU expansion of frozen features (McDonnell et al., NeurIPS 2023).

A fixed random layer P ~ N(0, 1) makes the feature longer, h = relu(z P). Two sums are kept, G = sum h h^T and
Q = sum h onehot(y)^T, and before a prediction

    W = (G + ridge I)^-1 Q,      argmax_c  (h W)_c

Every sample is treated alike, base or novel, so the order of classes cannot matter. ``expansion=0`` has
no layer: ridge regression on the features themselves.

Differences from the authors' code, and why. The ridge is chosen once, on base data, over the authors' grid 10^-8 ..
10^8 and by their criterion (squared error on a held-out fifth), and then kept; the code chooses it again in each
session, from features that it must store until the session ends. The base pass is a single one: every fifth image of
each class goes into a second pair of sums, whose held-out error needs no image (see
:func:`nocl.stats.ridge.choose_ridge`); afterwards the pairs are added. Without a base session the ridge stays at 1. The
paper's first phase, which adapts a transformer to the first task, is left out, because there is no transformer. M is
2000 where the paper has 10,000: G grows with its square. Sums and solves are float64. ``l2_input`` scales features to
length 1 first; ``scaled`` divides P by sqrt(d), which only rescales the
ridge."""

import math
from collections.abc import Iterable
from typing import ClassVar, Self, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from nocl.learner import FrozenCommon, FrozenLearner, Learner
from nocl.plumbing.parameters import Fraction, Natural, Positive
from nocl.plumbing.seeding import generator
from nocl.plumbing.types import JSON
from nocl.stats.linalg import Cached
from nocl.stats.ridge import Expansion, RidgeStats, balanced, choose_ridge

HELD_OUT = 5  # every fifth image of a class


class RanPAC(FrozenLearner):
    """Random projections and pre-accumulated second-order statistics.

    Parameters
    ----------
    expansion
        M, the width of the random layer, 0 or more (0: no layer); 10,000 in the paper.
    ridge
        Ridge, above 0; None chooses it on base data, as the paper does on every session.
    l2_input
        Scale features to length 1 first.
    scaled
        Divide the random layer by the square root of the feature's length.
    balance
        How far scores are corrected for unequal numbers of images, from 0 to 1 (0 in the paper); see
        :func:`~nocl.stats.ridge.balanced`. The default was chosen on base classes (benchmarks/tune_balance.py).
    **common
        ``stages``, ``backbone``, ``weights``, ``recipe``, ``image_size``, ``seed``: see
        :class:`~nocl.learner.FrozenLearner`.
    """

    depends_on_batching: ClassVar[bool] = False
    check_params: ClassVar[dict[str, JSON]] = {"expansion": 64}

    ridge_: Tensor  # float64 [], in use
    search_space = ("ridge=0.01:1000000:log", "scaled=false,true")

    def __init__(
        self,
        *,
        expansion: Natural = 2000,
        ridge: Positive | None = None,
        l2_input: bool = False,
        scaled: bool = False,
        balance: Fraction = 0.75,
        **common: Unpack[FrozenCommon],
    ) -> None:
        super().__init__(**common)
        self.expansion, self.ridge, self.l2_input, self.scaled = expansion, ridge, l2_input, scaled
        self.balance = balance
        self.layer = Expansion(self.feature_dim, expansion, init="normal", draw=generator(self.seed, "ranpac"))
        if scaled:
            self.layer.matrix /= math.sqrt(self.feature_dim)
        self.stats = RidgeStats(self.layer.width)
        self.register_buffer("ridge_", torch.tensor(1.0 if ridge is None else ridge, dtype=torch.float64))
        self._held_out: RidgeStats | None = None  # exists during the base pass only
        self._weights: Cached[Tensor] = Cached()

    def grow(self, n: int) -> None:
        self.stats.grow(n)
        if self._held_out is not None:
            self._held_out.grow(n)

    def learn(self, z: Tensor, y: Tensor) -> None:
        h, columns = self._expand(z.double()), self.columns(y)
        if self._held_out is None:
            self.stats.update(h, columns)
            return
        position = self.stats.count[columns] + self._held_out.count[columns] + _repeats(columns)
        aside = position % HELD_OUT == HELD_OUT - 1
        self.stats.update(h[~aside], columns[~aside])
        self._held_out.update(h[aside], columns[aside])

    # --- merging: see Learner -----------------------------------------------------------------------------------

    @property
    def mergeable(self) -> bool:
        """True: only two sums over samples are learned."""
        return True

    @property
    def forgets_exactly(self) -> bool:
        """False: the class's own sum is removed, its part of the Gram matrix is not."""
        return False

    def kept(self) -> str:
        return "of each class: count and sum of its expanded features, beside one Gram matrix of all classes"

    def shrink(self, column: int) -> None:
        self.stats.remove(column)

    def absorb(self, other: Learner, columns: Tensor) -> None:
        assert isinstance(other, RanPAC)
        self.stats.merge(other.stats, columns)

    def release(self, other: Learner, columns: Tensor) -> None:
        assert isinstance(other, RanPAC)
        self.stats.subtract(other.stats, columns)

    def clear(self) -> None:
        self.stats = RidgeStats(self.layer.width).to(self.device)

    def fit_base_features(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> Self:
        if self.ridge is not None:
            return super().fit_base_features(pairs)
        self._held_out = RidgeStats(self.layer.width).to(self.device)
        self._held_out.grow(len(self.classes_))
        super().fit_base_features(pairs)
        if int(self._held_out.count.sum()):
            ridge, errors = choose_ridge(self.stats, self._held_out)
            self.ridge_.fill_(ridge)
            self.log_["ridge_errors"] = list(errors)
        self.stats.merge(self._held_out)
        self._held_out = None
        return self

    def score(self, z: Tensor) -> Tensor:
        weight = self._weights.get(
            (self.stats.gram, self.stats.cross, self.ridge_), lambda: self.stats.weights(float(self.ridge_))
        )
        scores = balanced(self._expand(z) @ weight.to(z), self.stats.count, self.balance)
        return scores.masked_fill(self.stats.count == 0, float("-inf"))

    def _expand(self, z: Tensor) -> Tensor:
        h: Tensor = self.layer(F.normalize(z, dim=1) if self.l2_input else z)
        return h

    def network_state_names(self) -> set[str]:
        return super().network_state_names() | {"layer.matrix"}


def _repeats(columns: Tensor) -> Tensor:
    """How often each entry has occurred before in the batch.

    >>> _repeats(torch.tensor([3, 1, 3, 3]))
    tensor([0, 0, 1, 2])
    """
    same = columns[:, None] == columns[None, :]
    return same.tril(-1).sum(1)
