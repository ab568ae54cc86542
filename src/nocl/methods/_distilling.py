"""What PASS and SSRE share: they train the network during the stream, regularised by its previous copy and class means.

When a session ends, the network is copied. In the next session a loss term keeps new features near those of the copy
(distillation). The mean feature of each class is stored, and old classes are trained from these means instead of from
images. Adam starts again in each session.

The reference codes compute the means of new classes in a second pass after the session. A stream allows one pass only,
so here features are averaged during the session: each batch, without augmentation and in evaluation mode, by the
network after its training step. The network changes meanwhile, so the mean differs a little from that of the final
network.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal, Self, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from nocl import nets
from nocl.learner import Common, Learner
from nocl.methods._adam import Adam
from nocl.nets import Backbone
from nocl.nets.heads import GrowingLinear
from nocl.plumbing.parameters import NonNegative, Positive
from nocl.plumbing.progress import track
from nocl.plumbing.types import JSON, Batch
from nocl.pretrain import Objective, Recipe, Trained
from nocl.pretrain.augment import Augment, rotated
from nocl.pretrain.objectives import linear
from nocl.stats.class_stats import ClassStats
from nocl.stats.memory import gradients

QUICK_RECIPE: dict[str, JSON] = {"epochs": 6, "lr": 0.003, "schedule": "onecycle", "compile": False}  # for checks


class SharpCrossEntropy(Objective):
    """CE(logits / tau, y) on a linear head."""

    rows = 1  # of the head for each class

    def __init__(self, network: Backbone, dim: int, n_classes: int, seed: int, tau: float = 0.1) -> None:
        super().__init__(network, dim, n_classes, seed)
        self.tau = tau
        self.head = linear(dim, self.rows * n_classes, seed)

    @classmethod
    def build(cls, network: Backbone, dim: int, n_classes: int, seed: int, recipe: Recipe) -> Self:
        return cls(network, dim, n_classes, seed, recipe.tau)

    def terms(self, z: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.head(z) / self.tau, targets)


class RotatedCrossEntropy(SharpCrossEntropy):
    """Cross-entropy over the joint labels 4y + k of images rotated by k quarter turns."""

    rows = 4

    def views(self, x: Tensor, y: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        return rotated(x), rotation_labels(y)


class DistillingParameters(Common, total=False):
    """The parameters of PASS and SSRE that have the same default in both."""

    lr: float
    tau: float
    weight_proto: float
    augment: str
    answer: Literal["linear", "mean"]


class DistillingLearner(Learner):
    """Base class of PASS and SSRE. Not a method itself. Subclasses give ``loss`` and ``learning_parameters``.

    Parameters
    ----------
    weight_decay
        Weight decay of Adam, 0 or more.
    weight_kd
        Weight of the loss term that keeps features near those of the previous network, 0 or more.
    lr
        Learning rate of Adam, above 0; 0.001 in both codes.
    tau
        Temperature of every cross-entropy, above 0; 0.1 in both codes.
    weight_proto
        Weight of the loss term of the old classes' means, 0 or more; 10 in both codes.
    augment
        Augmentation of new images, by name: see :class:`nocl.pretrain.augment.Augment`.
    answer
        ``linear``: predict with the head; ``mean``: predict the nearest class mean.
    **common
        ``backbone``, ``weights``, ``recipe``, ``image_size``, ``seed``: see :class:`~nocl.learner.Learner`.
    """

    uses_boundaries = True
    needs_base = "it distils from the network of the base session"
    rows = 1  # of the head for each class; predictions use the first of them
    known_: Tensor  # int64 [], how many classes the previous network knows

    def __init__(
        self,
        *,
        weight_decay: NonNegative,
        weight_kd: NonNegative,
        lr: Positive = 0.001,
        tau: Positive = 0.1,
        weight_proto: NonNegative = 10.0,
        augment: str = "bright_crop_flip",
        answer: Literal["linear", "mean"] = "linear",
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.lr, self.weight_decay, self.tau = lr, weight_decay, tau
        self.weight_kd, self.weight_proto, self.augment, self.answer = weight_kd, weight_proto, augment, answer
        self.full_recipe = replace(self.full_recipe, tau=tau)
        self.feature_dim = self.network.feature_dim(self.image_size)
        self.head = GrowingLinear(self.feature_dim)
        self.stats = ClassStats(self.feature_dim, "diagonal")
        self.previous = nets.build(self.backbone, seed=self.seed).requires_grad_(False).eval()
        self.register_buffer("known_", torch.zeros((), dtype=torch.int64))
        self.adam = Adam(lr, weight_decay, betas=(0.9, 0.999))
        self._augmented = Augment(augment)
        self._steps, self._sums = 0, dict[str, Tensor]()  # of this session, for the log

    def loss(self, x: Tensor, columns: Tensor) -> Tensor:
        """The loss of augmented images in [0, 1]."""
        raise NotImplementedError

    def learning_parameters(self) -> dict[str, Tensor]:
        """The parameters that a step changes."""
        raise NotImplementedError

    def encode(self, x: Tensor) -> Tensor:
        """Features [B, d] of prepared images by the current network."""
        z: Tensor = self.network(x)
        return z

    def set_training(self, training: bool) -> None:
        """Training or evaluation mode; the previous network is always in evaluation mode."""
        self.train(training)
        self.previous.eval()

    # --- classes and sessions ---------------------------------------------------------------------------------

    def grow(self, n: int) -> None:
        self.head.grow(self.rows * n, self.draw)
        self.stats.grow(n)
        self.adam.follow(self.learning_parameters())

    def needs_heads(self) -> bool:
        return True

    def after_base(self, trained: Trained, base: Iterable[Batch]) -> None:
        if isinstance(trained.objective, SharpCrossEntropy):
            self.head.load_state_dict(trained.objective.head.state_dict())
        for x, y in track(base, "base statistics"):
            self.stats.update(self.features(x), self.columns(y))

    def end_session(self) -> None:
        """Copy the network to the previous one; log the session's mean loss terms."""
        for name, value in self._sums.items():
            curve = self.log_.setdefault(name, [])
            assert isinstance(curve, list)
            curve.append(float(value) / self._steps)
        self._steps, self._sums = 0, {}
        self.previous.load_state_dict(self.network.state_dict())
        self.known_.fill_(len(self.classes_))
        self.adam.restart()

    def kept(self) -> str:
        return "a network trained on the images; of each class: count, mean and variances of its features"

    def network_state_names(self) -> set[str]:
        kinds = ("network.", "previous.", "adapters.", "adam.")
        own = ("adam.first_head", "adam.second_head")
        return {name for name in self.state_dict() if name.startswith(kinds) and not name.startswith(own)}

    # --- one step ---------------------------------------------------------------------------------------------

    def observe(self, x: Tensor, y: Tensor) -> None:
        images, columns = self.scale(x), self.columns(y)
        self.set_training(True)
        loss = self.loss(self._augmented(images, self.draw), columns)
        parameters = self.learning_parameters()
        self.adam.step(parameters, gradients(loss, parameters))
        self.stats.update(self.features(x), columns, spread=self.keeps_spread)

    keeps_spread = False

    def note(self, **values: Tensor) -> None:
        """Add up a step's loss terms. Their means over a session are logged when it ends."""
        self._steps += 1
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, torch.zeros_like(value)) + value.detach()

    def picks(self, n: int) -> Tensor:
        """``n`` random old classes [n]."""
        return torch.randint(int(self.known_), (n,), generator=self.draw).to(self.device)

    def reminder(self, pseudo: Tensor, picked: Tensor) -> Tensor:
        """Cross-entropy of pseudo-features [n, d] of the old classes ``picked`` [n]."""
        return F.cross_entropy(self.head(pseudo) / self.tau, self.rows * picked)

    # --- answers ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        """Features [B, d] of images without augmentation, in evaluation mode."""
        self.eval()
        return self.encode(self.prepare(x))

    @torch.no_grad()
    def decision_function(self, x: Tensor) -> Tensor:
        z = self.features(x)
        if self.answer == "linear":
            scores: Tensor = self.head(z)[:, :: self.rows]
            return scores
        return F.normalize(z, dim=1) @ F.normalize(self.stats.mean.to(z), dim=1).T


def rotation_labels(y: Tensor) -> Tensor:
    """Labels 4y + k, k = 0 .. 3, of each image in turn [4 B]: the order of :func:`nocl.pretrain.augment.rotated`.

    >>> rotation_labels(torch.tensor([0, 5]))
    tensor([ 0,  1,  2,  3, 20, 21, 22, 23])
    """
    return (4 * y[:, None] + torch.arange(4, device=y.device)).flatten()
