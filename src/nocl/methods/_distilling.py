"""What PASS and SSRE share: they go on training the network online, held back by its previous self and by class means.

A copy of the network is made when a session ends; until the next end it says where features were. Of each class the
mean feature is kept, and the head is reminded of old classes by means instead of images. Adam begins anew with each
session.

The codes compute the means of new classes by a second pass after the session. With one pass there is none, so the
features are averaged as they come: each batch, without augmentation and in evaluation mode, by the network as it is
after its step. The mean is therefore of features of a network on the move, and lags behind the last one.
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
    """The same over the joint labels 4y + k of images turned k quarters."""

    rows = 4

    def views(self, x: Tensor, y: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        return rotated(x), rotation_labels(y)


class DistillingLearner(Learner):
    """Base class of PASS and SSRE. Not a method itself. Subclasses give ``loss`` and ``learning_parameters``."""

    uses_boundaries = True
    needs_base = "it keeps old classes, and begins with those of the base session"
    rows = 1  # of the head for each class; the first of them answers
    known_: Tensor  # int64 [], how many classes the previous network knows

    def __init__(
        self,
        *,
        lr: float,
        weight_decay: float,
        tau: float,
        weight_kd: float,
        weight_proto: float,
        augment: str,
        answer: Literal["linear", "mean"],
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
        """What a step moves."""
        raise NotImplementedError

    def encode(self, x: Tensor) -> Tensor:
        """Features [B, d] of prepared images by the network as it is now."""
        z: Tensor = self.network(x)
        return z

    def set_training(self, training: bool) -> None:
        """Batch normalisation learns from what comes, except in the previous network."""
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
        """The network as it is now becomes the previous one; the session's mean terms go into the log."""
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
        """Remember a step's terms as they enter the loss. A session's means of them are logged when it ends."""
        self._steps += 1
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, torch.zeros_like(value)) + value.detach()

    def picks(self, n: int) -> Tensor:
        """``n`` old classes at random [n]."""
        return torch.randint(int(self.known_), (n,), generator=self.draw).to(self.device)

    def reminder(self, pseudo: Tensor, picked: Tensor) -> Tensor:
        """Cross-entropy of pseudo-features [n, d] of the old classes ``picked`` [n]."""
        return F.cross_entropy(self.head(pseudo) / self.tau, self.rows * picked)

    # --- answers ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        """Features [B, d] of images as they are, in evaluation mode."""
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
    """4y + k for k = 0 .. 3, image after image [4 B], as :func:`nocl.pretrain.augment.rotated` orders them.

    >>> rotation_labels(torch.tensor([0, 5]))
    tensor([ 0,  1,  2,  3, 20, 21, 22, 23])
    """
    return (4 * y[:, None] + torch.arange(4, device=y.device)).flatten()
