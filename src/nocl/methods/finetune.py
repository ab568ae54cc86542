"""Fine-tuning: plain SGD on every batch, with a growing linear head. It shows how much a network forgets.

One step of cross-entropy over all classes met so far for each batch of the stream, on the whole network (or on the
head alone with ``freeze_backbone``). The head of the base classes comes from the base session. Nothing prevents
forgetting, on purpose: nearly all base classes are lost within one session. Batch normalisation keeps updating its
statistics, as in public online code; with ``freeze_backbone`` it keeps those of the base session.
"""

from collections.abc import Iterable
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from nocl.learner import Common, Learner
from nocl.nets.heads import GrowingLinear
from nocl.plumbing.parameters import Positive
from nocl.plumbing.types import Batch
from nocl.pretrain import CrossEntropy, Trained


class Finetune(Learner):
    """Plain SGD on a growing linear head.

    Parameters
    ----------
    lr
        Learning rate, above 0.
    freeze_backbone
        Train the head alone; batch statistics then stay those of the base session.
    **common
        ``backbone``, ``weights``, ``recipe``, ``image_size``, ``seed``: see :class:`~nocl.learner.Learner`.
    """

    search_space = ("lr=0.0001:0.1:log",)

    def __init__(
        self,
        *,
        lr: Positive = 0.01,
        freeze_backbone: bool = False,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.lr, self.freeze_backbone = lr, freeze_backbone
        self.head = GrowingLinear(self.network.feature_dim(self.image_size))

    def grow(self, n: int) -> None:
        self.head.grow(n, self.draw)

    def needs_heads(self) -> bool:
        return True

    def after_base(self, trained: Trained, base: Iterable[Batch]) -> None:
        if isinstance(trained.objective, CrossEntropy):
            self.head.load_state_dict(trained.objective.head.state_dict())

    def observe(self, x: Tensor, y: Tensor) -> None:
        images = self.prepare(x)
        columns = self.columns(y)
        self.network.train(not self.freeze_backbone)
        trained = self.head if self.freeze_backbone else self
        parameters = list(trained.parameters())
        loss = F.cross_entropy(self.head(self.network(images)), columns)
        if not bool(torch.isfinite(loss)):
            raise FloatingPointError(f"the loss is {loss.item()}: training diverged; try a smaller lr than {self.lr}")
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
            parameter.data.sub_(self.lr * gradient)

    @torch.no_grad()
    def decision_function(self, x: Tensor) -> Tensor:
        self.eval()
        scores: Tensor = self.head(self.network(self.prepare(x)))
        return scores
