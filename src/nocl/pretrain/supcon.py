"""The supervised contrastive loss, and the labels of mixed classes. Legend: N rows of d values."""

import torch
import torch.nn.functional as F
from torch import Tensor


def supcon(z: Tensor, y: Tensor, tau: float, *, unit: bool = True, anchors: int | None = None) -> Tensor:
    """Supervised contrastive loss (Khosla et al. 2020, L_out) of rows [N, d], all views stacked, labels [N].

    Rows are scaled to length 1 unless ``unit`` is False. The positives of each row, or of each of the first ``anchors``
    rows, are the other rows with its label. A row without positives is left out of the mean; 0 if no row has any.

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


def pair_labels(a: Tensor, b: Tensor, n_classes: int) -> Tensor:
    """The label of each mixed class: n_classes + the rank of the unordered pair of different labels (a, b).

    >>> pair_labels(torch.tensor([0, 3, 1, 2]), torch.tensor([1, 0, 2, 3]), n_classes=4)
    tensor([4, 6, 7, 9])
    """
    low, high = torch.minimum(a, b), torch.maximum(a, b)
    return n_classes + low * (2 * n_classes - low - 1) // 2 + (high - low - 1)
