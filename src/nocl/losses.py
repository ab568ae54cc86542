"""Losses as pure functions of tensors: supervised contrastive, cosine alignment, separation, class mixing;
the dual-view loss of DVC, the InfoNCE terms of OCM, ALICE's angular penalty, FACT's virtual classes and distillation.

Nothing here holds state, draws random numbers or knows a network. Legend: N rows, d values a row, K classes.
"""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Phi = Literal["exp", "doubleexp"]


def supcon(z: Tensor, y: Tensor, tau: float, *, unit: bool = True, anchors: int | None = None) -> Tensor:
    """Supervised contrastive loss (Khosla et al. 2020, L_out) of rows [N, d], all views stacked, labels [N].

    Rows are scaled to length 1 unless ``unit`` is off. Each row, or each of the first ``anchors`` rows, is drawn to
    the other rows of its label; a row that has none is left out of the mean, and a batch without any pair gives 0.

    >>> z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> supcon(z, torch.tensor([0, 0, 1]), tau=1.0)  # log(1 + exp(-1))
    tensor(0.3133)
    """
    z = F.normalize(z, dim=1) if unit else z
    same = torch.eye(len(z), dtype=torch.bool, device=z.device)[:anchors]
    similarity = (z[:anchors] @ z.T / tau).masked_fill(same, float("-inf"))  # [N, N]
    log_prob = (similarity - similarity.logsumexp(1, keepdim=True)).masked_fill(same, 0)
    positive = (y[:anchors, None] == y[None, :]) & ~same
    n_positive = positive.sum(1)
    has_positive = n_positive > 0
    per_row = -(log_prob * positive).sum(1) / n_positive.clamp_min(1)
    return (per_row * has_positive).sum() / has_positive.sum().clamp_min(1)


def alignment(z: Tensor, target: Tensor) -> Tensor:
    """Minus the mean cosine between rows and their targets, both [N, d]: -1 when all are parallel.

    >>> alignment(torch.tensor([[2.0, 0.0], [0.0, 3.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    tensor(-1.)
    """
    return -F.cosine_similarity(z, target, dim=1).mean()


def penalty(cosine: Tensor, phi: Phi = "exp", scale: float = 4.0) -> Tensor:
    """phi of the paper. ``exp``: e^(4x) - 1, least at cosine -1; ``doubleexp``: e^(4x) + e^(-4x) - 2, at 0.

    >>> penalty(torch.tensor([0.0, 0.25, 1.0]))
    tensor([ 0.0000,  1.7183, 53.5981])
    """
    if phi == "exp":
        return torch.expm1(scale * cosine)
    if phi == "doubleexp":
        return torch.expm1(scale * cosine) + torch.expm1(-scale * cosine)
    raise ValueError(f"phi must be exp or doubleexp, not {phi!r}")


def separation(fixed: Tensor, moving: Tensor, phi: Phi = "exp", scale: float = 4.0) -> Tensor:
    """The lower-level loss J: mean penalty of fixed-moving pairs plus that of unordered moving-moving pairs.

    Rows [K, d] are compared as tanh(h) / |tanh(h)|. A term without a pair is left out: one moving row has
    no partner, and without fixed rows there is nothing to stay away from.
    """
    u, v = F.normalize(fixed.tanh(), dim=1), F.normalize(moving.tanh(), dim=1)
    total = moving.new_zeros(())
    if len(u) and len(v):
        total = total + penalty(u @ v.T, phi, scale).mean()
    if len(v) > 1:
        i, j = torch.triu_indices(len(v), len(v), offset=1, device=v.device)
        total = total + penalty((v @ v.T)[i, j], phi, scale).mean()
    return total


def deviation(h: Tensor, start: Tensor) -> Tensor:
    """How far prototypes have turned from where they began: mean of 1 - cos(tanh h, tanh start)."""
    return (1 - F.cosine_similarity(h.tanh(), start.tanh(), dim=1)).mean()


def mean_absolute_cosine(h: Tensor) -> Tensor:
    """Mean |cos| over unordered pairs of rows [K, d], 0 for fewer than two: 0 means orthogonal."""
    if len(h) < 2:
        return h.new_zeros(())
    u = F.normalize(h, dim=1)
    i, j = torch.triu_indices(len(u), len(u), offset=1, device=u.device)
    return (u @ u.T)[i, j].abs().mean()


def pair_labels(a: Tensor, b: Tensor, n_classes: int) -> Tensor:
    """The label of each mixed class: n_classes + the rank of the unordered pair of different labels (a, b).

    >>> pair_labels(torch.tensor([0, 3, 1, 2]), torch.tensor([1, 0, 2, 3]), n_classes=4)
    tensor([4, 6, 7, 9])
    """
    low, high = torch.minimum(a, b), torch.maximum(a, b)
    return n_classes + low * (2 * n_classes - low - 1) // 2 + (high - low - 1)


class DualView(NamedTuple):
    """The three terms of DVC's loss."""

    cross_entropy: Tensor
    entropy: Tensor  # minus the mean entropy of the batch's average predictions, between -log K and 0
    distance: Tensor

    @property
    def total(self) -> Tensor:
        return self.cross_entropy + self.entropy + self.distance


def dual_view(raw: Tensor, heavy: Tensor, joint: Tensor, y: Tensor, weight: float) -> DualView:
    """DVC's loss of the logits [N, K] of two views and of both together.

    Cross-entropy of both views; the negative entropy of each kind's average prediction, which being minimised keeps
    predictions spread over classes; and ``weight`` times the mean absolute difference of each view from the joint
    prediction. The last two bound the mutual information of the views.

    >>> even = torch.zeros(4, 5)
    >>> dual_view(even, even, even, torch.tensor([0, 1, 2, 3]), weight=4.0)[1:]  # -log 5 and 0
    (tensor(-1.6094), tensor(0.))
    """
    cross_entropy = F.cross_entropy(torch.cat([raw, heavy]), torch.cat([y, y]))
    p_raw, p_heavy, p_joint = raw.softmax(1), heavy.softmax(1), joint.softmax(1)
    entropy = torch.stack([negative_entropy(p.mean(0)) for p in (p_raw, p_heavy, p_joint)]).mean()
    distance = torch.cat([p_joint - p_raw, p_joint - p_heavy]).abs().mean()
    return DualView(cross_entropy, entropy, weight * distance)


def negative_entropy(p: Tensor) -> Tensor:
    """Sum of p log p over a distribution [K]."""
    p = p.clamp_min(torch.finfo(p.dtype).eps)
    return (p * p.log()).sum()


_EPSILON = 1e-8  # of OCM's reference code


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


def cosface(cosine: Tensor, y: Tensor, scale: float = 30.0, margin: float = 0.4) -> Tensor:
    """ALICE's angular penalty: mean cross-entropy of ``scale`` (cosine - ``margin`` at the label), cosines [N, K].

    >>> cosface(torch.zeros(1, 3), torch.tensor([0]))  # log(1 + 2 e^12)
    tensor(12.6932)
    """
    return F.cross_entropy(scale * (cosine - margin * F.one_hot(y, cosine.shape[1])), y)


def virtual_labels(logits: Tensor, y: Tensor, assigned: Tensor, *, official: bool = False) -> Tensor:
    """FACT's pseudo label of each row [N]: the likeliest of the virtual classes assigned to its class.

    ``logits`` [N, B + V] have the virtual classes last, ``assigned`` is bool [B, V]. A class without a virtual one
    gives -1. ``official`` multiplies by the assignment as the public code does, so that the zeros of virtual classes
    not assigned win over negative logits.
    """
    n_base = len(assigned)
    allowed, virtual = assigned[y], logits[:, n_base:]
    if official:
        return (virtual * allowed).argmax(1) + n_base
    best = virtual.masked_fill(~allowed, float("-inf")).argmax(1) + n_base
    return best.masked_fill(~allowed.any(1), -1)


def cross_entropy_without(logits: Tensor, hidden: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy of rows [N, K] with the column ``hidden`` [N] out of the race; 0 if no target is 0 or more."""
    counts = target >= 0
    if not bool(counts.any()):
        return logits.new_zeros(())
    raced = logits.scatter(1, hidden[:, None], -1e9)
    return F.cross_entropy(raced[counts], target[counts])


def distance(z: Tensor, before: Tensor, kind: Literal["frobenius", "mean"] = "frobenius") -> Tensor:
    """How far features [N, d] are from those of an earlier model: the norm of the whole difference, or rows' mean norm.

    >>> distance(torch.ones(4, 4), torch.zeros(4, 4))
    tensor(4.)
    """
    norms: Tensor = torch.linalg.vector_norm(z - before, dim=None if kind == "frobenius" else 1)
    return norms.mean()


def weighted_learning(
    logits: Tensor, y: Tensor, z: Tensor, before: Tensor, weight: Tensor, reduction: Literal["sum", "mean"] = "sum"
) -> tuple[Tensor, Tensor]:
    """SSRE's two terms: mean of (1 - weight) cross-entropy, and sum (or mean) of weight |z - before|, all by row [N].

    >>> zeros, ones = torch.zeros(2, 2), torch.ones(2)
    >>> weighted_learning(zeros, torch.tensor([0, 1]), zeros, zeros + 1, ones)[0]  # nothing new, nothing to learn
    tensor(0.)
    """
    learning = ((1 - weight) * F.cross_entropy(logits, y, reduction="none")).mean()
    distances = weight * torch.linalg.vector_norm(z - before, dim=1)
    return learning, distances.sum() if reduction == "sum" else distances.mean()
