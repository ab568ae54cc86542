"""Cheap scores of many Gaussian classes, to choose the few that are worth an exact one.

The squared Mahalanobis distance to class c, in coordinates u with the origin amid the classes, is

    (u - m)^T P (u - m) = u^T P u - 2 (P m)^T u + m^T P m

of which the last two terms are kept exactly. Of P only the diagonal and its share in a few matrices common to
all classes, the *quadrics* Q_k, are kept: u^T P u ~ sum_j P_jj u_j^2 + sum_k a_k u^T Q_k u. The quadrics are the
principal components of what the diagonals leave of the classes' P, each value weighted by its spread over all images:
as many matrices cannot leave less of it. All classes then cost one matrix product of [u^2, u, u^T Q_k u] with a table
of 2 d + k numbers a class.

Expanding around a common origin matters: with the same approximation of (u - m)^T P (u - m) the error is that of the
long vectors to wrong classes' means, and far larger. Legend: K classes, d values, k quadrics, C classes of a part.
"""

from collections.abc import Callable

import torch
from torch import Tensor

QUADRICS = 32
_SAMPLE = 256  # classes the quadrics are found from
_CLASSES_AT_ONCE = 64
_IMAGES_AT_ONCE = 512
_TINY = 1e-30


class Shortlist:
    """Approximate squared distances to all classes.

    ``means`` [K, d] and ``spread`` [d], the variance over all images, are in the coordinates u; ``precisions`` gives
    the inverse covariances [C, d, d] of some classes there. It is asked for every class once.
    """

    def __init__(self, means: Tensor, spread: Tensor, precisions: Callable[[Tensor], Tensor]) -> None:
        self.means, self.precisions, n = means.float(), precisions, len(means)
        self.dim = means.shape[1]
        everything = torch.arange(n, device=means.device)
        chosen = torch.zeros_like(everything, dtype=torch.bool)
        chosen[torch.linspace(0, n - 1, min(n, _SAMPLE), device=means.device).round().long()] = True
        sample = torch.cat([precisions(part).float() for part in everything[chosen].split(_CLASSES_AT_ONCE)])
        self.weight = spread.sqrt().float()
        self.quadrics = self._principal(sample)  # [k, d, d]
        self.table = self.means.new_zeros(2 * self.dim + len(self.quadrics), n)
        self.constant = self.means.new_zeros(n)
        self._fill(everything[chosen], sample)
        for part in everything[~chosen].split(_CLASSES_AT_ONCE):
            self._fill(part, precisions(part).float())
        plain = self.quadrics / self.weight[:, None] / self.weight  # for u without weights
        self.sides = plain.permute(2, 0, 1).flatten(1)  # [d, k d], so that u times it is every Q_k u

    def distances(self, u: Tensor) -> Tensor:
        """[B, K] of u [B, d]."""
        return torch.cat([self._some_distances(part) for part in u.split(_IMAGES_AT_ONCE)])

    def _some_distances(self, u: Tensor) -> Tensor:
        turned = (u @ self.sides).view(len(u), -1, self.dim)  # [B, k, d]
        terms = torch.cat([u.square(), u, (turned @ u[:, :, None])[:, :, 0]], 1)
        return terms @ self.table + self.constant

    def _principal(self, sample: Tensor) -> Tensor:
        left = self._left(sample)
        values, vectors = torch.linalg.eigh((left @ left.T).double())
        count = min(QUADRICS, len(sample))
        scale = values[-count:].clamp_min(_TINY).rsqrt()
        found: Tensor = (vectors[:, -count:] * scale).T.float() @ left
        return found.view(count, self.dim, self.dim)

    def _left(self, precisions: Tensor) -> Tensor:
        """What the diagonals leave, weighted, as rows [C, d d]."""
        off = precisions - torch.diag_embed(precisions.diagonal(dim1=1, dim2=2))
        return (off * self.weight[:, None] * self.weight).flatten(1)

    def _fill(self, columns: Tensor, precisions: Tensor) -> None:
        means = self.means[columns]
        pulled = (precisions @ means[:, :, None])[:, :, 0]
        share = self._left(precisions) @ self.quadrics.flatten(1).T
        diagonal = precisions.diagonal(dim1=1, dim2=2)
        self.table[:, columns] = torch.cat([diagonal, -2 * pulled, share], 1).T
        self.constant[columns] = (pulled * means).sum(1)
