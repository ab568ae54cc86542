"""FACT: forward compatible training (Zhou et al., CVPR 2022). The base session reserves room for later classes.

W has a row for each of B base and V virtual classes, U is a frozen copy of the initial virtual rows (orthogonal),
T = 16. Every virtual class is assigned to three random base classes. For a batch (x, y):

    l  = T cos(phi(x), [W_base; U])               L1 = CE(l over base classes, y)
    v  = likeliest virtual class assigned to y    L2 = CE(l without column y, v)
    h  = lam e(x) + (1 - lam) e(x')               e: the first half of the stages, x' of another class, lam ~ Beta(a, a)
    lm = T cos(late(h), W)                        L3 = CE(lm, v1),  L4 = CE(lm without column v1, b1)
         v1, b1 the likeliest virtual and base class of lm
    L  = L1 + beta (L2 + L3 + L4)

So every image has a virtual class as its second label, and mixtures of two classes belong to virtual classes. After the
base session nothing is trained: the row of a class is the running mean of its features, the virtual rows do not change.

    prediction: argmax_c  eta softmax_c((p Vn') (Vn Wn')) + (1 - eta) softmax_c(T p Wn'),   p, Vn, Wn rows of length 1

Differences from the public code (zhoudw-zdw/CVPR22-Fact). ``official`` follows the code where marked *:

* U is a copy. In the code it is a view of W, which on a CPU changes during training.
* * A base class to which no virtual one was assigned (13 % of them) gets a random one, and virtual classes not
  assigned to it are never its label; in the code their logits become 0, which is above negative ones.
* * At test the rows of the classes are scaled to length 1 each; the code scales each feature over the classes.
* Means are running means over all images; the code uses the last batch of its loader only, which there holds all
  images.
* The last epoch's network is used, not the best on test data. Only classes met are predicted.
* ``virtual`` is the number of novel classes. A run sets it from its partition; a learner built alone does not know
  it and uses 40, that of 60+4x10 on CIFAR-100. Scores use all virtual rows, as the code's top 40 of 40 do.
* Recipe: 100 epochs in batches of 100 on heavy views. The preset ``official`` has 600 epochs with AutoAugment; see
  ``augment`` for how that differs.
* A backbone without stages mixes images instead of activations.
"""

from collections.abc import Iterable
from typing import ClassVar, Self, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nocl.learner import Common
from nocl.methods.ncm import NCM
from nocl.nets import Backbone
from nocl.plumbing.parameters import Count, Fraction, Natural, NonNegative, Positive
from nocl.plumbing.seeding import generator, scoped, seed_from
from nocl.plumbing.types import JSON, Batch
from nocl.pretrain import Objective, Recipe, Trained
from nocl.pretrain.objectives import Extractor

_PER_VIRTUAL = 3  # base classes that each virtual class is assigned to


class ForwardCompatible(Objective):
    """L1 to L4. Options of the recipe: those named here, with FACT's values as defaults."""

    fixed: Tensor  # U [V, d]
    assigned: Tensor  # bool [B, V]

    def __init__(
        self, network: Backbone, dim: int, n_classes: int, seed: int, *, virtual: int = 40, beta: float = 0.001,
        alpha: float = 0.5, temperature: float = 16.0, virtual_from: int = 0, official: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(network, dim, n_classes, seed)
        self.n_classes, self.beta, self.alpha, self.temperature = n_classes, beta, alpha, temperature
        self.virtual_from, self.official = virtual_from, official
        self._network = (network,)  # in a tuple: its parameters are not this objective's
        self.rows = nn.Parameter(orthogonal_rows(n_classes, virtual, dim, seed))  # W
        self.register_buffer("fixed", self.rows.detach()[n_classes:].clone())
        draw = generator(seed, "assignment")
        self.register_buffer("assigned", assign(n_classes, virtual, draw, everyone=not official))

    @classmethod
    def build(cls, network: Backbone, dim: int, n_classes: int, seed: int, recipe: Recipe) -> Self:
        return cls(network, dim, n_classes, seed, **recipe.options)  # type: ignore[arg-type]

    def loss(self, network: Extractor, x: Tensor, y: Tensor, draw: torch.Generator) -> Tensor:
        (backbone,) = self._network
        images = self.normalise(x)
        lam, partner = self._draw(len(y), draw)
        differs = y != y[partner]
        with torch.set_grad_enabled(backbone.training):  # a network that was given is in eval mode and stays
            z = network(images)
            mixed = None
            if self.epoch >= self.virtual_from and bool(differs.any()):
                h = backbone.early(images)
                mixed = backbone.late((lam * h + (1 - lam) * h[partner])[differs])
        return self.combine(z, y, mixed)

    def combine(self, z: Tensor, y: Tensor, mixed: Tensor | None) -> Tensor:
        """The whole loss of features and of mixed ones, if there are any."""
        first, second = self.plain_terms(z, y)
        if self.epoch < self.virtual_from:
            return first
        third, fourth = (first.new_zeros(()),) * 2 if mixed is None else self.mixed_terms(mixed)
        return first + self.beta * (second + third + fourth)

    def plain_terms(self, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """L1 and L2."""
        logits = self._logits(z, torch.cat([self.rows[: self.n_classes], self.fixed]))
        second = virtual_labels(logits.detach(), y, self.assigned, official=self.official)
        return F.cross_entropy(logits[:, : self.n_classes], y), cross_entropy_without(logits, y, second)

    def mixed_terms(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """L3 and L4."""
        logits = self._logits(z, self.rows)
        virtual, base = mixed_labels(logits.detach(), self.n_classes)
        return F.cross_entropy(logits, virtual), cross_entropy_without(logits, virtual, base)

    def _logits(self, z: Tensor, rows: Tensor) -> Tensor:
        return self.temperature * F.normalize(z, dim=1) @ F.normalize(rows, dim=1).T

    def _draw(self, n: int, draw: torch.Generator) -> tuple[float, Tensor]:
        with scoped(int(torch.randint(2**31, (1,), generator=draw))):
            lam = float(torch.distributions.Beta(self.alpha, self.alpha).sample())
        return lam, torch.randperm(n, generator=draw).to(self.rows.device)


class FACT(NCM):
    """Virtual classes in the base session, then class means answered together with them.

    Parameters
    ----------
    virtual
        V, the number of virtual classes, 1 or more: as many as classes will come, 40 for 60+4x10.
    beta
        Weight of L2 to L4, 0 or more; 0.001 in the code for CIFAR-100.
    alpha
        Of the Beta distribution that mixes two images, above 0; 0.5 in the code.
    temperature
        T, the factor of the cosines, above 0; 16 in the code.
    eta
        Share of the answer by way of the virtual classes, from 0 to 1; 0.1 in the code.
    virtual_from
        The epoch (from 0) at which L2 to L4 begin, 0 or more; 150 of 1,000 for Mini-ImageNet.
    official
        Bring back the code's behaviour in the points marked * above.
    **common
        ``backbone``, ``weights``, ``recipe``, ``image_size``, ``seed``: see :class:`~nocl.learner.Learner`.
    """

    base_recipe = Recipe(
        objective="nocl.methods.fact:ForwardCompatible",
        lr=0.1,
        momentum=0.9,
        weight_decay=5e-4,
        schedule="cosine",
        augment="heavy",
    )
    presets: ClassVar[dict[str, dict[str, JSON]]] = {
        "official": {"official": True, "recipe": {"epochs": 600, "augment": "autoaugment", "normalize": True}}
    }
    novel_classes = "virtual"
    check_params: ClassVar[dict[str, JSON]] = {"virtual": 6}
    virtual_: Tensor  # float [V, d], W_virtual as the base session left it

    def __init__(
        self,
        *,
        virtual: Count = 40,
        beta: NonNegative = 0.001,
        alpha: Positive = 0.5,
        temperature: Positive = 16.0,
        eta: Fraction = 0.1,
        virtual_from: Natural = 0,
        official: bool = False,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(space="vanilla", metric="cosine", **common)
        self.virtual, self.beta, self.alpha, self.temperature = virtual, beta, alpha, temperature
        self.eta, self.virtual_from, self.official = eta, virtual_from, official
        names = ("virtual", "beta", "alpha", "temperature", "virtual_from", "official")
        self.full_recipe = self.full_recipe.with_changes({"options": {name: getattr(self, name) for name in names}})
        self.register_buffer("virtual_", orthogonal_rows(0, virtual, self.feature_dim, self.seed))

    def needs_heads(self) -> bool:
        return True  # the virtual rows

    def after_base(self, trained: Trained, base: Iterable[Batch]) -> None:
        if isinstance(trained.objective, ForwardCompatible):
            self.virtual_.copy_(trained.objective.rows.detach()[trained.objective.n_classes :])
        super().after_base(trained, base)

    def network_state_names(self) -> set[str]:
        return {*super().network_state_names(), "virtual_"}

    def score(self, z: Tensor) -> Tensor:
        unseen = self.stats.count == 0
        scores = mixture(
            z, self.stats.mean.to(z), self.virtual_.to(z), unseen, eta=self.eta, temperature=self.temperature,
            official=self.official,
        )  # fmt: skip
        return scores.masked_fill(unseen, float("-inf"))


def mixture(
    z: Tensor, rows: Tensor, virtual: Tensor, unseen: Tensor, *, eta: float, temperature: float, official: bool = False
) -> Tensor:
    """Probabilities [B, K] of features [B, d]: through the virtual rows [V, d], and by the class rows [K, d]."""
    p, through = F.normalize(z, dim=1), F.normalize(virtual, dim=1)
    unit = F.normalize(rows, dim=1)
    by_virtual = p @ through.T @ (through @ (F.normalize(rows, dim=0) if official else unit).T)
    by_class = temperature * p @ unit.T
    first, second = (logits.masked_fill(unseen, -1e9).softmax(1) for logits in (by_virtual, by_class))
    return eta * first + (1 - eta) * second


def mixed_labels(logits: Tensor, n_base: int) -> tuple[Tensor, Tensor]:
    """The likeliest virtual class, in [B, B + V), and the likeliest base class of each row."""
    return logits[:, n_base:].argmax(1) + n_base, logits[:, :n_base].argmax(1)


def orthogonal_rows(n_base: int, virtual: int, dim: int, seed: int) -> Tensor:
    """Rows [B + V, d], orthogonal and of length 1; if B + V > d, base and virtual rows separately."""
    with scoped(seed_from(seed, "rows")):
        if n_base + virtual <= dim:
            return nn.init.orthogonal_(torch.empty(n_base + virtual, dim))
        parts = [nn.init.orthogonal_(torch.empty(n, dim)) for n in (n_base, virtual) if n]
    return torch.cat(parts)


def assign(n_base: int, virtual: int, draw: torch.Generator, *, everyone: bool = True) -> Tensor:
    """Which virtual classes belong to which base classes, bool [B, V]: three base classes for each virtual one.

    With ``everyone``, a base class without a virtual class gets a random one.
    """
    assigned = torch.zeros(n_base, virtual, dtype=torch.bool)
    for column in range(virtual):
        assigned[torch.randperm(n_base, generator=draw)[:_PER_VIRTUAL], column] = True
    left_out = (~assigned.any(1)).nonzero().flatten() if everyone else torch.zeros(0, dtype=torch.int64)
    assigned[left_out, torch.randint(virtual, (len(left_out),), generator=draw)] = True
    return assigned


def virtual_labels(logits: Tensor, y: Tensor, assigned: Tensor, *, official: bool = False) -> Tensor:
    """FACT's pseudo label of each row [N]: the likeliest of the virtual classes assigned to its class.

    ``logits`` [N, B + V] have the virtual classes last, ``assigned`` is bool [B, V]. A class without a virtual one
    gives -1. ``official`` multiplies by the assignment as the public code does, so that the zeros of virtual classes
    that are not assigned are above negative logits.
    """
    n_base = len(assigned)
    allowed, virtual = assigned[y], logits[:, n_base:]
    if official:
        return (virtual * allowed).argmax(1) + n_base
    best = virtual.masked_fill(~allowed, float("-inf")).argmax(1) + n_base
    return best.masked_fill(~allowed.any(1), -1)


def cross_entropy_without(logits: Tensor, hidden: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy of rows [N, K] without the column ``hidden`` [N]; 0 if no target is 0 or more."""
    counts = target >= 0
    if not bool(counts.any()):
        return logits.new_zeros(())
    raced = logits.scatter(1, hidden[:, None], -1e9)
    return F.cross_entropy(raced[counts], target[counts])
