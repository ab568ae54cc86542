"""Losses as pure functions of tensors: supervised contrastive, cosine alignment, separation, class mixing.

Nothing here holds state, draws random numbers or knows a network. Legend: N rows, d values a row, K classes.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Phi = Literal["exp", "doubleexp"]


def supcon(z: Tensor, y: Tensor, tau: float) -> Tensor:
    """Supervised contrastive loss (Khosla et al. 2020, L_out) of rows [N, d], all views stacked, labels [N].

    Rows are scaled to length 1. Each row is drawn to the other rows of its label; a row that has none is left
    out of the mean, and a batch without any pair gives 0.

    >>> z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> supcon(z, torch.tensor([0, 0, 1]), tau=1.0)  # log(1 + exp(-1))
    tensor(0.3133)
    """
    z = F.normalize(z, dim=1)
    same = torch.eye(len(z), dtype=torch.bool, device=z.device)
    similarity = (z @ z.T / tau).masked_fill(same, float("-inf"))  # [N, N]
    log_prob = (similarity - similarity.logsumexp(1, keepdim=True)).masked_fill(same, 0)
    positive = (y[:, None] == y[None, :]) & ~same
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
