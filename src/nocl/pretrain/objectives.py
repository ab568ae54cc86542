"""What the base session minimises: cross-entropy or supervised contrast, with rotation labels and mixed classes.

An objective holds the projection and the heads. It has two steps, so that features can be computed once and used
several times: ``views`` makes the network's input images from a batch, ``terms`` computes the loss from their features.

    L = L_vp + L_hp,   L_vp = loss(head_vp(z), y),   L_hp = loss(head_hp(theta2(z)), y),   z = g(theta1(x))

``+ssl`` adds cross-entropy over the joint labels 4y + k of the image rotated by k quarter turns counter-clockwise.
``+da`` adds mixtures of two classes as additional classes (ALICE). Each can be added to either loss.

All views of a batch go through the network as one batch, so batch normalisation uses statistics of all of them. The
public codes of SCR and of NO-CL compute the two contrastive views one after the other, each with its own statistics.
Measured once, after two epochs of a tiny network, that makes little difference (benchmarks/refinement.py).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nocl.nets import Backbone
from nocl.nets.heads import GrowingLinear
from nocl.nets.projection import Projection
from nocl.plumbing.seeding import generator, scoped, seed_from
from nocl.pretrain.augment import Augment
from nocl.pretrain.supcon import pair_labels, supcon
from nocl.stats.class_stats import tukey

if TYPE_CHECKING:
    from nocl.pretrain.recipe import Recipe

Extractor = Callable[[Tensor], Tensor]  # normalised images to features
ABSENT = -1  # the label of a row that is left out of a loss


class Objective(nn.Module):
    """A training loss and the heads it needs. Subclasses define ``terms``, and ``views`` if they add images."""

    epoch: int = 0  # set by the training loop

    def __init__(self, network: Backbone, dim: int, n_classes: int, seed: int) -> None:
        super().__init__()
        self.normalise = network.normalise

    @classmethod
    def build(cls, network: Backbone, dim: int, n_classes: int, seed: int, recipe: "Recipe") -> Self:
        """An objective for a network whose features have ``dim`` values; override to read the recipe."""
        return cls(network, dim, n_classes, seed)

    def views(self, x: Tensor, y: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """The network's input images, in [0, 1], and the target of each for ``terms``."""
        return x, y

    def terms(self, z: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of features [N, d] of those images."""
        raise NotImplementedError

    def loss(self, network: Extractor, x: Tensor, y: Tensor, draw: torch.Generator) -> Tensor:
        """Mean loss of images in [0, 1], not yet normalised, with labels 0 .. n_classes - 1."""
        images, targets = self.views(x, y, draw)
        return self.terms(network(self.normalise(images)), targets)


class Strategy(Objective):
    """The paper's base objectives. Targets are [N, 2]: class or mixed class, and rotation label; -1: none."""

    heavy_view = False

    def __init__(self, network: Backbone, dim: int, n_classes: int, seed: int, recipe: "Recipe | None" = None) -> None:
        super().__init__(network, dim, n_classes, seed)
        from nocl.pretrain.recipe import Recipe  # here, because recipe.py imports this module

        self.recipe, self.n_classes = recipe or Recipe(), n_classes
        self.rotates, self.mixes = "+ssl" in self.recipe.objective, "+da" in self.recipe.objective
        high_dim = self.recipe.projection
        self.projection = Projection(dim, high_dim, seed=seed_from(seed, "projection")) if high_dim else None
        dims = {"vanilla": dim, "high": high_dim} if high_dim else {"vanilla": dim}
        if self.recipe.spaces != "both":
            dims = {self.recipe.spaces: dims[self.recipe.spaces]}
        n_labels = n_classes + (n_classes * (n_classes - 1) // 2 if self.mixes else 0)
        self.heads = nn.ModuleDict({name: self.make_head(d, n_labels, seed) for name, d in dims.items()})
        turned = dims if self.rotates else {}
        self.rotation_heads = nn.ModuleDict({name: linear(d, 4 * n_classes, seed) for name, d in turned.items()})

    @classmethod
    def build(cls, network: Backbone, dim: int, n_classes: int, seed: int, recipe: "Recipe") -> Self:
        return cls(network, dim, n_classes, seed, recipe)

    def make_head(self, dim: int, n_labels: int, seed: int) -> nn.Module:
        """The head of one space."""
        raise NotImplementedError

    def contrast(self, out: Tensor, labels: Tensor) -> Tensor:
        """The main loss of one space, of the head's outputs and their labels."""
        raise NotImplementedError

    def views(self, x: Tensor, y: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        images = [x, Augment("heavy")(x, draw)] if self.heavy_view else [x]
        targets = [_targets(y) for _ in images]
        if self.mixes:
            mixed, labels = mix_classes(images, y, self.n_classes, draw, times=self.recipe.mixes)
            images, targets = [*images, *mixed], [*targets, *[_targets(label) for label in labels]]
        if self.rotates:
            targets[0][:, 1] = 4 * y
            images += [x.rot90(k, (2, 3)) for k in (1, 2, 3)]
            targets += [_targets(rotation=4 * y + k) for k in (1, 2, 3)]
        return torch.cat(images), torch.cat(targets)

    def terms(self, z: Tensor, targets: Tensor) -> Tensor:
        z = tukey(z, self.recipe.power)
        total = z.new_zeros(())
        for space, head in self.heads.items():
            features = self.projection(z) if space == "high" and self.projection is not None else z
            label, rotation = targets.unbind(1)
            total = total + self.contrast(head(features[label != ABSENT]), label[label != ABSENT])
            if self.rotates:
                logits = self.rotation_heads[space](features[rotation != ABSENT])
                total = total + F.cross_entropy(logits, rotation[rotation != ABSENT])
        return total


class CrossEntropy(Strategy):
    """Softmax cross-entropy on linear heads."""

    @property
    def head(self) -> GrowingLinear:
        """The classifier on the features; with mixed classes, the real classes are its first rows."""
        head = self.heads["vanilla"]
        assert isinstance(head, GrowingLinear)
        return head

    def make_head(self, dim: int, n_labels: int, seed: int) -> nn.Module:
        return linear(dim, n_labels, seed)

    def contrast(self, out: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(out, labels)


class Contrastive(Strategy):
    """Supervised contrastive loss on two-layer heads; the views are the image and one heavy augmentation of it."""

    heavy_view = True

    def make_head(self, dim: int, n_labels: int, seed: int) -> nn.Module:
        hidden, out = self.recipe.head
        with scoped(seed_from(seed, "head", dim)):
            return nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, out))

    def contrast(self, out: Tensor, labels: Tensor) -> Tensor:
        return supcon(out, labels, self.recipe.tau)


OBJECTIVES: dict[str, type[Objective]] = {
    "ce": CrossEntropy,
    "ce+ssl": CrossEntropy,
    "ce+da": CrossEntropy,
    "ce+ssl+da": CrossEntropy,
    "sc": Contrastive,
    "sc+ssl": Contrastive,
    "sc+da": Contrastive,
    "sc+ssl+da": Contrastive,
}


def linear(dim: int, n_rows: int, seed: int) -> GrowingLinear:
    """A linear classifier, initialised from the seed."""
    head = GrowingLinear(dim)
    head.grow(n_rows, generator(seed, "head"))
    return head


def mix_classes(
    views: list[Tensor], y: Tensor, n_classes: int, draw: torch.Generator, *, times: int = 1
) -> tuple[list[Tensor], list[Tensor]]:
    """Mixtures of two classes, ``times`` for each image, with the same weights and partners in every view.

    The weight is drawn from Beta(20, 20) and set to 0.5 outside [0.4, 0.6]; pairs of one class are left out, so a batch
    with a single class gives none. Labels are those of :func:`nocl.pretrain.supcon.pair_labels`.
    """
    images, labels = [], []
    for _ in range(times):
        partner = torch.randperm(len(y), generator=draw).to(y.device)
        weight = _beta(20, len(y), draw).to(views[0])
        weight = torch.where((weight - 0.5).abs() > 0.1, torch.full_like(weight, 0.5), weight)
        differs = y != y[partner]
        weight = weight[differs, None, None, None]
        for view in views:
            images.append(weight * view[differs] + (1 - weight) * view[partner][differs])
            labels.append(pair_labels(y[differs], y[partner][differs], n_classes))
    return images, labels


def _beta(shape: int, n: int, draw: torch.Generator) -> Tensor:
    """Beta(a, a) for a whole a: the a-th smallest of 2a - 1 uniform numbers."""
    return torch.rand(n, 2 * shape - 1, generator=draw).sort(dim=1).values[:, shape - 1]


def _targets(label: Tensor | None = None, *, rotation: Tensor | None = None) -> Tensor:
    given = label if label is not None else rotation
    assert given is not None
    none = torch.full_like(given, ABSENT)
    return torch.stack([none if label is None else label, none if rotation is None else rotation], dim=1)
