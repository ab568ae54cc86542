"""What the replay methods share: a memory of images, plain SGD, a linear head.

After base training, exactly one pass over the base images fills the memory. When the stream starts, the memory has
therefore counted each base image once. The paper's code counts every base epoch; new classes would then get fewer than
one slot in a hundred. During the stream, batch normalisation uses and updates batch statistics, as in the reference
codes. With ``freeze_backbone`` the network does not change after the base session, and only the heads learn.
"""

from collections.abc import Iterable, Mapping
from typing import Unpack

import torch
from torch import Tensor

from nocl.learner import Common, Learner
from nocl.nets.heads import GrowingLinear
from nocl.plumbing.parameters import Count, NonNegative
from nocl.plumbing.progress import track
from nocl.plumbing.types import JSON, Batch
from nocl.pretrain import CrossEntropy, Trained
from nocl.stats.memory import Reservoir

CHECK_PARAMS: dict[str, JSON] = {"memory_size": 60, "lr": 0.02}  # a small memory that overflows, a short stream


class MemoryParameters(Common, total=False):
    """The parameters of every replay method but the learning rate."""

    memory_size: int
    freeze_backbone: bool


class ReplayParameters(MemoryParameters, total=False):
    """The parameters of a replay method with the learning rate of :class:`ReplayLearner`."""

    lr: float


class ReplayLearner(Learner):
    """Base class of the methods that keep ``memory_size`` images. Not a method itself.

    Parameters
    ----------
    memory_size
        Images kept, 1 or more; 1,000 and 2,000 in the NO-CL paper.
    lr
        Learning rate, 0 or more; 0.1 in the papers of these methods.
    freeze_backbone
        Keep the network as it is after the base session and train the heads alone.
    **common
        ``backbone``, ``weights``, ``recipe``, ``image_size``, ``seed``: see :class:`~nocl.learner.Learner`.
    """

    stores_exemplars = True
    memory: Reservoir

    def __init__(
        self,
        *,
        memory_size: Count = 1000,
        lr: NonNegative = 0.1,
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
        """Offer every base image to the memory, once."""
        for x, y in track(base, "filling the memory"):
            self.memory.update(x, self.columns(y), self.draw)

    def take_heads(self, trained: Trained) -> None:
        """Copy the heads that the base session trained."""

    # --- one step ---------------------------------------------------------------------------------------------

    def encode(self, x: Tensor) -> Tensor:
        """Features [B, d] of prepared images; without gradient if the network is frozen."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.freeze_backbone):
            z: Tensor = self.network(x)
        return z

    def learning_parameters(self) -> dict[str, Tensor]:
        """The parameters that a step changes."""
        frozen = ("network.",) if self.freeze_backbone else ()
        return {name: value for name, value in self.named_parameters() if not name.startswith(frozen)}

    def set_training(self, training: bool) -> None:
        """Training or evaluation mode; a frozen network is always in evaluation mode."""
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
    """A replay method that predicts with a linear head, one row for each class."""

    def __init__(self, **common: Unpack[ReplayParameters]) -> None:
        super().__init__(**common)
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
    """The sum of two gradients, name by name."""
    return {name: value + b[name] for name, value in a.items()}


def check_replay(replay_batch: int, candidates: int) -> None:
    """Refuse a replay batch larger than the number of candidates: then nothing would be chosen."""
    if replay_batch > candidates:
        raise ValueError(f"replay_batch must be at most candidates, {candidates}, not {replay_batch}")
