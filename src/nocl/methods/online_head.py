"""A linear head on frozen features, one step of SGD for each batch; with stored features to replay if asked for.

The plainest method that learns online by gradients, beside which closed forms can be judged on any stream. Without a
memory it is ``finetune`` with ``freeze_backbone``; with one it is experience replay (Chaudhry et al., 2019): each step
takes the batch and ``replay_batch`` features of a reservoir. What is stored are features, which a frozen network makes
of an image once and for all, not images. The head starts as the one that the base session trains on the features.

It is no entry of ``METHODS``: name it ``nocl.methods.online_head:OnlineHead``.
"""

from collections.abc import Iterable
from typing import ClassVar, Self, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from nocl.learner import FrozenCommon, FrozenLearner
from nocl.nets.heads import GrowingLinear
from nocl.plumbing.parameters import Count, Natural, Positive
from nocl.plumbing.types import JSON, Batch
from nocl.pretrain import CrossEntropy, Recipe, Trained
from nocl.stats.memory import Reservoir


class FeatureReservoir(Reservoir):
    """The reservoir with features in the place of images."""

    def __init__(self, size: int, dim: int) -> None:
        super().__init__(size, 1)
        self.images = torch.zeros(size, dim)


class OnlineHead(FrozenLearner):
    """A linear classifier trained by SGD on the features of a frozen network.

    Parameters
    ----------
    lr
        Learning rate, above 0.
    memory_size
        Features kept for replay, 0 or more (0: none).
    replay_batch
        Features of the memory beside each batch, 1 or more.
    **common
        ``stages``, ``backbone``, ``weights``, ``recipe``, ``image_size``, ``seed``: see
        :class:`~nocl.learner.FrozenLearner`.
    """

    base_recipe = Recipe(objective="ce", head_epochs=10)
    check_params: ClassVar[dict[str, JSON]] = {"memory_size": 60, "replay_batch": 10}

    def __init__(
        self,
        *,
        lr: Positive = 0.01,
        memory_size: Natural = 0,
        replay_batch: Count = 10,
        **common: Unpack[FrozenCommon],
    ) -> None:
        super().__init__(**common)
        self.lr, self.memory_size, self.replay_batch = lr, memory_size, replay_batch
        self.stores_exemplars = memory_size > 0  # type: ignore[misc]
        self.head = GrowingLinear(self.feature_dim)
        self.memory = FeatureReservoir(max(memory_size, 1), self.feature_dim)
        self._in_base = False

    def grow(self, n: int) -> None:
        self.head.grow(n, self.draw)

    def needs_heads(self) -> bool:
        return True

    def after_base(self, trained: Trained, base: Iterable[Batch]) -> None:
        if isinstance(trained.objective, CrossEntropy):
            self.head.load_state_dict(trained.objective.head.state_dict())
        super().after_base(trained, base)

    def fit_base_features(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> Self:
        """One pass that fills the memory; the head was trained before."""
        self._in_base = True
        try:
            return super().fit_base_features(pairs)
        finally:
            self._in_base = False

    @torch.enable_grad()
    def learn(self, z: Tensor, y: Tensor) -> None:
        columns = self.columns(y)
        if not self._in_base:
            replayed = self.memory.random(self.replay_batch if self.memory_size else 0, self.draw)
            inputs = torch.cat([z.detach(), self.memory.images[replayed]])
            targets = torch.cat([columns, self.memory.columns[replayed]])
            parameters = list(self.head.parameters())
            loss = F.cross_entropy(self.head(inputs), targets)
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
                parameter.data.sub_(self.lr * gradient)
        if self.memory_size:
            self.memory.update(z.detach(), columns, self.draw)

    def score(self, z: Tensor) -> Tensor:
        with torch.no_grad():
            scores: Tensor = self.head(z)
        return scores

    def kept(self) -> str:
        stored = f" and features of up to {self.memory_size} images, which say as much as the images themselves"
        return "a linear head" + stored * self.stores_exemplars
