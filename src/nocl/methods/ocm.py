"""OCM: online continual learning through mutual information maximisation (Guo et al., ICML 2022).

Every image gives 16 rotated variants (``augment.turned_variants``). Each variant of a class has a label of its own and
two views: the variant, and a weakly augmented one. Features f and embedding e = g(f) have length 1; F_o is a slice of f
at a random offset o; S = e e' + e F_o'. L(S) is the mean -log p of pairs with the same label under the row softmax of
S / tau (``same_label_nce``). A step uses a new batch and min(64, 7 K) stored images and minimises by Adam the sum of

    L_new  = 2 L(S of the new images, without self-pairs) + NT-Xent        features of new images
    L_mem  = L(S of the stored images)                                     features of stored images
    L_prev = L(e of the stored images, e of the same by the previous model)          change features little
    CE of weakly augmented stored images + MSE between their logits and the previous model's, on the classes it knows

Then the batch is offered to the reservoir. The previous model is a copy made when a session ends. Before there is one,
the loss is L_new + CE of the new batch. Inference: argmax of the linear head over the classes met.

The preset ``ft`` freezes the backbone: g and the linear head alone learn.

Differences from the reference code (gydpku/OCM, test_cifar100.py):

* The base session is that of the other methods (cross-entropy, or given weights), then ``base_epochs`` epochs of the
  first loss in batches of 10. The code trains a hundred epochs with OCM's own loss, which makes 32 images of each one.
* The distillation term covers the classes that the previous model knows, not ten times the session's number. Both
  models get the same augmented images; the code augments twice. The previous model is in eval mode and without
  gradient; in the code its batch statistics change.
* ``eps_mode="official"`` keeps the code's 1e-8 inside sum and logarithm, which limits the loss of a pair to 18.4 and
  makes its gradient small; ``"clean"`` is the exact log-softmax.
* The labels of variants are offset by K, the number of classes met; the code's offset of 1000 collides beyond it.
* ``embed_dim`` defaults to 128, or to half of the feature if that has no more than 128 values.
* ``n_variants`` may be 4 (rotations of the whole image only) or 1, to save time. Single precision throughout.
"""

from collections.abc import Iterable
from typing import ClassVar, Literal, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nocl import nets
from nocl.methods._adam import Adam
from nocl.methods._replay import CHECK_PARAMS, MemoryParameters, ReplayClassifier
from nocl.nets import Backbone
from nocl.nets.heads import GrowingLinear
from nocl.plumbing.parameters import Count, Natural, NonNegative, Positive
from nocl.plumbing.progress import track
from nocl.plumbing.seeding import generator, scoped
from nocl.plumbing.types import JSON, Batch
from nocl.pretrain import Trained
from nocl.pretrain.augment import Augment, turned_variants
from nocl.stats.memory import below, gradients

_WEAK = Augment("weak")
_BASE_BATCH = 10  # images of the base session at once: 32 times as many go through the network
_EPSILON = 1e-8  # of the reference code


class OCM(ReplayClassifier):
    """Mutual information maximisation with replay.

    Parameters
    ----------
    lr
        Learning rate of Adam, 0 or more; 0.001 in the paper.
    weight_decay
        Weight decay of Adam, 0 or more; 1e-4 in the paper.
    replay_batch
        Images replayed with each batch, 1 or more; 64 in the paper, at most 7 for each class met.
    n_variants
        Turned variants of each image: 1, 4 or 16 (the paper's).
    tau
        Temperature, above 0; 0.07 in the paper.
    embed_dim
        Length of the embedding, 1 or more and below the feature's; None: 128 (the paper's), or half of a feature
        that is not longer than that.
    eps_mode
        ``official``: with the code's 1e-8; ``clean``: the exact log-softmax.
    base_epochs
        Epochs of OCM's own loss in the base session, 0 or more.
    **common
        ``memory_size`` (images kept, 1 or more), ``freeze_backbone`` (train the heads alone): see
        :class:`~nocl.methods._replay.ReplayLearner`. ``backbone``, ``weights``, ``recipe``, ``image_size``, ``seed``:
        see :class:`~nocl.learner.Learner`.
    """

    uses_boundaries = True
    presets: ClassVar[dict[str, dict[str, JSON]]] = {"ft": {"freeze_backbone": True}}
    check_params: ClassVar[dict[str, JSON]] = {**CHECK_PARAMS, "lr": 0.001, "n_variants": 4, "replay_batch": 8}
    known_: Tensor  # int64 [], how many classes the previous model knows

    def __init__(
        self,
        *,
        lr: NonNegative = 0.001,
        weight_decay: NonNegative = 1e-4,
        replay_batch: Count = 64,
        n_variants: Literal[1, 4, 16] = 16,
        tau: Positive = 0.07,
        embed_dim: Count | None = None,
        eps_mode: Literal["official", "clean"] = "official",
        base_epochs: Natural = 1,
        **common: Unpack[MemoryParameters],
    ) -> None:
        super().__init__(lr=lr, **common)
        self.weight_decay, self.replay_batch, self.n_variants = weight_decay, replay_batch, n_variants
        self.tau, self.embed_dim, self.eps_mode, self.base_epochs = tau, embed_dim, eps_mode, base_epochs
        if embed_dim is not None and embed_dim >= self.feature_dim:
            raise ValueError(
                f"OCM: embed_dim must be below the feature's {self.feature_dim} values, not {embed_dim}; "
                "leave it out to have one that fits"
            )
        length = embed_dim or (128 if self.feature_dim > 128 else self.feature_dim // 2)
        with scoped(self.seed):
            self.embed, previous_embed = nn.Linear(self.feature_dim, length), nn.Linear(self.feature_dim, length)
        self.previous = Snapshot(
            nets.build(self.backbone, seed=self.seed), previous_embed, GrowingLinear(self.head.dim)
        )
        self.register_buffer("known_", torch.zeros((), dtype=torch.int64))
        self.adam = Adam(lr, weight_decay)
        self.adam.follow(self.learning_parameters())

    def grow(self, n: int) -> None:
        super().grow(n)
        self.previous.head.grow(n, generator(self.seed, "rows that are overwritten"))
        self.adam.follow(self.learning_parameters())

    def learning_parameters(self) -> dict[str, Tensor]:
        return {name: p for name, p in super().learning_parameters().items() if not name.startswith("previous.")}

    def set_training(self, training: bool) -> None:
        super().set_training(training)
        self.previous.eval()

    def network_state_names(self) -> set[str]:
        previous, moments = ("previous.network.", "previous.embed."), ("adam.first_network", "adam.second_network")
        kinds = ("network.", "embed.", *previous, *moments)
        return {name for name in self.state_dict() if name.startswith(kinds)}

    # --- learning ---------------------------------------------------------------------------------------------

    def after_base(self, trained: Trained, base: Iterable[Batch]) -> None:
        self.take_heads(trained)
        for epoch in range(self.base_epochs):
            for x, y in track(
                base, f"OCM base epoch {epoch + 1}/{self.base_epochs}", following=self.base_epochs - epoch - 1
            ):
                for part, labels in zip(x.split(_BASE_BATCH), y.split(_BASE_BATCH)):
                    self._step(self.first_loss(self.scale(part), self.columns(labels)))
        self.fill(base)

    def observe(self, x: Tensor, y: Tensor) -> None:
        new, columns = self.scale(x), self.columns(y)
        self.set_training(True)
        if self.known_ and len(self.memory):
            slots = self.memory.random(min(self.replay_batch, 7 * len(self.classes_)), self.draw)
            old = self.scale(self.memory.images[slots])
            self._step(self.loss(new, columns, old, self.memory.columns[slots]))
        else:
            self._step(self.first_loss(new, columns))
        self.memory.update(x, columns, self.draw)
        self.eval()

    @torch.no_grad()
    def end_session(self) -> None:
        """The model as it is now becomes the previous one."""
        self.previous.network.load_state_dict(self.network.state_dict())
        self.previous.embed.load_state_dict(self.embed.state_dict())
        self.previous.head.load_state_dict(self.head.state_dict())
        self.known_.fill_(len(self.classes_))

    def _step(self, loss: Tensor) -> None:
        parameters = self.learning_parameters()
        self.adam.step(parameters, gradients(loss, parameters))

    # --- the losses -------------------------------------------------------------------------------------------

    def first_loss(self, x: Tensor, columns: Tensor) -> Tensor:
        """L_new and cross-entropy, of images in [0, 1]: before there is a previous model."""
        self.set_training(True)
        z = self.encode(self.views(x))
        seen = F.cross_entropy(self.head(self.encode(self.network.normalise(_WEAK(x, self.draw)))), columns)
        return self.new_loss(z, columns) + seen

    def loss(self, x: Tensor, columns: Tensor, old: Tensor, recalled: Tensor) -> Tensor:
        """The loss of a new and a recalled batch, images in [0, 1]."""
        views = self.views(old)
        z_new, z_old = self.encode(torch.cat([self.views(x), views])).split([2 * self.n_variants * len(x), len(views)])
        labels = self.variant_labels(recalled)
        similarity = embedding_similarity(self.embed(z_old), z_old, self.offset())
        twice = torch.cat([labels, labels])
        memory = same_label_nce(similarity, twice, twice, self.tau, official=self.official)
        shown = self.network.normalise(_WEAK(old, self.draw))
        with torch.no_grad():
            first = views[: len(labels)]
            before = F.normalize(self.previous.embed(self.previous.network(first)), dim=1)
            target = self.previous.head(self.previous.network(shown))
        now = F.normalize(self.embed(z_old[: len(labels)]), dim=1)
        staying = same_label_nce(now @ before.T, labels, labels, self.tau, official=self.official)
        logits, known = self.head(self.encode(shown)), int(self.known_)
        answers = F.cross_entropy(logits, recalled) + F.mse_loss(logits[:, :known], target[:, :known])
        return self.new_loss(z_new, columns) + memory + staying + answers

    def new_loss(self, z: Tensor, columns: Tensor) -> Tensor:
        """L_new of the features of all views of new images."""
        labels = self.variant_labels(columns).repeat(2)
        similarity = embedding_similarity(self.embed(z), z, self.offset())
        same = same_label_nce(similarity, labels, labels, self.tau, self_apart=True, official=self.official)
        return 2 * same + other_view_nce(similarity, self.tau, official=self.official)

    def views(self, x: Tensor) -> Tensor:
        """All variants of images in [0, 1], then their weakly augmented views, prepared: [2 V B, 3, H, W]."""
        variants = turned_variants(x, self.n_variants)
        return self.network.normalise(torch.cat([variants, _WEAK(variants, self.draw)]))

    def variant_labels(self, columns: Tensor) -> Tensor:
        """Labels [V B] that tell every class and variant apart, in the order of ``turned_variants``."""
        return variant_labels(columns, self.n_variants, len(self.classes_))

    def offset(self) -> int:
        return below(self.feature_dim - self.embed.out_features, self.draw)

    @property
    def official(self) -> bool:
        return self.eps_mode == "official"


class Snapshot(nn.Module):
    """The parts of an earlier model."""

    def __init__(self, network: Backbone, embed: nn.Linear, head: GrowingLinear) -> None:
        super().__init__()
        self.network, self.embed, self.head = network, embed, head


def variant_labels(columns: Tensor, n_variants: int, offset: int) -> Tensor:
    """Variant i of a class is the class plus i offsets, variant after variant [V B].

    >>> variant_labels(torch.tensor([0, 2]), n_variants=4, offset=3)
    tensor([ 0,  2,  3,  5,  6,  8,  9, 11])
    """
    return torch.cat([columns + i * offset for i in range(n_variants)])


def same_label_nce(
    similarity: Tensor, rows: Tensor, columns: Tensor, tau: float, *, self_apart: bool = False, official: bool = False
) -> Tensor:
    """OCM's supervised InfoNCE: mean over rows of the average -log p over the columns of the row's label.

    p is the softmax of ``similarity`` [N, M] / ``tau`` along a row. With ``self_apart`` the diagonal is taken out of
    the softmax and of the sum, though not of the number that the sum is divided by. ``official`` adds the reference
    code's 1e-8 to sum and logarithm, which caps every pair at 18.4, and keeps the diagonal among the positives.

    >>> equal, labels = torch.zeros(4, 4), torch.tensor([0, 0, 0, 0])
    >>> same_label_nce(equal, labels, labels, tau=0.07)  # log 4
    tensor(1.3863)
    """
    minus_log_p = _minus_log_softmax(similarity, tau, self_apart, official)
    positive = rows[:, None] == columns[None, :]
    return ((minus_log_p * positive).sum(1) / positive.sum(1).clamp_min(1)).mean()


def other_view_nce(similarity: Tensor, tau: float, *, official: bool = False) -> Tensor:
    """NT-Xent: mean -log p of each row's other view, where row i and row i + N / 2 are views of one image."""
    minus_log_p = _minus_log_softmax(similarity, tau, True, official)
    partner = torch.arange(len(similarity), device=similarity.device).roll(len(similarity) // 2)
    return minus_log_p.gather(1, partner[:, None]).mean()


def _minus_log_softmax(similarity: Tensor, tau: float, self_apart: bool, official: bool) -> Tensor:
    """-log p [N, M]; without the diagonal, whose own entry is then 0 (or the code's cap)."""
    diagonal = torch.eye(*similarity.shape, dtype=torch.bool, device=similarity.device) & self_apart
    if official:
        weight = ((similarity - similarity.amax(1, keepdim=True).detach()) / tau).exp()
        weight = weight.masked_fill(diagonal, 0)
        return -(weight / (weight.sum(1, keepdim=True) + _EPSILON) + _EPSILON).log()
    scaled = (similarity / tau).masked_fill(diagonal, float("-inf"))
    return -(scaled - scaled.logsumexp(1, keepdim=True)).masked_fill(diagonal, 0)


def embedding_similarity(embedding: Tensor, z: Tensor, offset: int) -> Tensor:
    """OCM's similarity [N, N]: e e' plus e with a slice of the features as long as e, all scaled to length 1."""
    e, f = F.normalize(embedding, dim=1), F.normalize(z, dim=1)
    return e @ e.T + e @ f[:, offset : offset + e.shape[1]].T
