"""What the replay baselines share: a memory of images, one fill after the base session, plain SGD, a linear head.

The memory is filled by exactly one pass over the base images after base training, so its counter starts the stream at
the number of base images. Counting every base epoch, as the code of the paper does on its training path, would leave
new classes fewer than one slot in a hundred. Online, batch normalisation trains on the batches that come, as in
the reference codes; with ``freeze_backbone`` the network stays as the base session left it and only heads learn.
"""

from collections.abc import Iterable, Mapping
from typing import Unpack

import torch
from torch import Tensor

from nocl.learner import Common, Learner
from nocl.nets.heads import GrowingLinear
from nocl.plumbing.progress import track
from nocl.plumbing.types import JSON, Batch
from nocl.pretrain import CrossEntropy, Trained
from nocl.stats.memory import Reservoir

CHECK_PARAMS: dict[str, JSON] = {
    "memory_size": 60,
    "lr": 0.02,
}  # a small memory that overflows, a short stream


class ReplayLearner(Learner):
    """Base class of the methods that keep ``memory_size`` images. Not a method itself."""

    stores_exemplars = True
    memory: Reservoir

    def __init__(
        self,
        *,
        memory_size: int,
        lr: float,
        freeze_backbone: bool = False,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.memory_size, self.lr, self.freeze_backbone = memory_size, lr, freeze_backbone
        self.feature_dim = self.network.feature_dim(self.image_size)
        self.memory = Reservoir(memory_size, self.image_size)

    def needs_heads(self) -> bool:
        return True

    def kept(self) -> str:
        return f"up to {self.memory_size} of the images themselves, and a network trained on them"

    def after_base(self, trained: Trained, base: Iterable[Batch]) -> None:
        self.take_heads(trained)
        self.fill(base)

    def fill(self, base: Iterable[Batch]) -> None:
        """The one pass over the base images that the memory sees."""
        for x, y in track(base, "filling the memory"):
            self.memory.update(x, self.columns(y), self.draw)

    def take_heads(self, trained: Trained) -> None:
        """Go on with the heads that the base session trained."""

    # --- one step ---------------------------------------------------------------------------------------------

    def encode(self, x: Tensor) -> Tensor:
        """Features [B, d] of prepared images; a frozen network builds no graph."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.freeze_backbone):
            z: Tensor = self.network(x)
        return z

    def learning_parameters(self) -> dict[str, Tensor]:
        """What a step moves."""
        frozen = ("network.",) if self.freeze_backbone else ()
        return {name: value for name, value in self.named_parameters() if not name.startswith(frozen)}

    def set_training(self, training: bool) -> None:
        """Batch normalisation learns from what comes, unless the network is frozen."""
        self.train(training)
        if self.freeze_backbone:
            self.network.eval()

    @torch.no_grad()
    def descend(self, gradient: Mapping[str, Tensor]) -> None:
        """One step of plain SGD."""
        for name, parameter in self.learning_parameters().items():
            parameter.sub_(self.lr * gradient[name])

    def recall(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Prepared images and columns of some slots."""
        return self.prepare(self.memory.images[slots]), self.memory.columns[slots]


class ReplayClassifier(ReplayLearner):
    """A replay method that answers by a linear head with one row a class."""

    def __init__(
        self,
        *,
        memory_size: int,
        lr: float,
        freeze_backbone: bool = False,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(memory_size=memory_size, lr=lr, freeze_backbone=freeze_backbone, **common)
        self.head = GrowingLinear(self.feature_dim)

    def grow(self, n: int) -> None:
        self.head.grow(n, self.draw)

    def take_heads(self, trained: Trained) -> None:
        if isinstance(trained.objective, CrossEntropy):
            self.head.load_state_dict(trained.objective.head.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, K] of prepared images."""
        scores: Tensor = self.head(self.encode(x))
        return scores

    @torch.no_grad()
    def decision_function(self, x: Tensor) -> Tensor:
        self.eval()
        scores: Tensor = self.head(self.network(self.prepare(x)))
        return scores


def add(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Two gradients summed by name."""
    return {name: value + b[name] for name, value in a.items()}


def check_replay(replay_batch: int, candidates: int) -> None:
    """Refuse a replay batch that takes all candidates: choosing would be replay at random."""
    if replay_batch > candidates:
        raise ValueError(f"replay_batch must be at most candidates, {candidates}, not {replay_batch}")
