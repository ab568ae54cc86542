"""Ridge regression to one-hot labels from a stream, in two equivalent forms, and the random layer.

With expanded features h [M] and a column for each class, both forms hold what is needed for

    W = (sum h h^T + ridge I)^-1  sum h onehot(y)^T            [M, K]

:class:`RidgeStats` keeps the two sums and solves when W is needed. :class:`RecursiveRidge` keeps the inverse and W and
solves a system of the batch's size only. Both use float64, so the order of samples and the batch size matter only up to
rounding, and a class that arrives late gives the same result as one whose column was there from the start."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from nocl.stats.class_stats import check_features
from nocl.stats.linalg import NotPositiveDefiniteError, cholesky, solve

Activation = Literal["relu", "sigmoid"]
GRID = tuple(10.0**power for power in range(-8, 9))
_SYMMETRISE_EVERY = 100


class Expansion(nn.Module):
    """A fixed random layer, h = activation(z P); with ``width`` 0 there is no layer and h = z.

    ``init`` draws P: ``normal`` from N(0, 1), ``uniform`` from +-1/sqrt(dim) as torch's linear layer does.
    """

    matrix: Tensor  # float32 [dim, width]

    def __init__(
        self,
        dim: int,
        width: int,
        *,
        init: Literal["normal", "uniform"],
        draw: torch.Generator,
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        if width < 0:
            raise ValueError(f"expansion must be 0 (none) or more, not {width}")
        if activation not in ("relu", "sigmoid"):
            raise ValueError(f"activation must be relu or sigmoid, not {activation!r}")
        self.width, self.activation = width or dim, activation
        if init == "normal":
            matrix = torch.randn(dim, width, generator=draw)
        else:
            matrix = (2 * torch.rand(dim, width, generator=draw) - 1) / math.sqrt(dim)
        self.register_buffer("matrix", matrix)

    def forward(self, z: Tensor) -> Tensor:
        if not self.matrix.shape[1]:
            return z
        h = z @ self.matrix.to(z)
        return h.relu() if self.activation == "relu" else h.sigmoid()


class RidgeStats(nn.Module):
    """Sums over a stream that determine the ridge solution; sums of parts of a stream can be added."""

    gram: Tensor  # float64 [M, M], sum of h h^T
    cross: Tensor  # float64 [M, K], sum of h onehot^T
    count: Tensor  # int64 [K]

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("gram", torch.zeros(dim, dim, dtype=torch.float64))
        self.register_buffer("cross", torch.zeros(dim, 0, dtype=torch.float64))
        self.register_buffer("count", torch.zeros(0, dtype=torch.int64))

    def grow(self, n: int) -> None:
        """Add ``n`` classes."""
        self.cross = torch.cat([self.cross, self.cross.new_zeros(self.dim, n)], dim=1)
        self.count = torch.cat([self.count, self.count.new_zeros(n)])

    @torch.no_grad()
    def update(self, h: Tensor, columns: Tensor) -> None:
        """Add features [B, M] of the classes in ``columns`` [B]."""
        check_features(h, self.dim)
        h = h.to(self.gram)
        self.gram.addmm_(h.T, h)
        self.cross.index_add_(1, columns, h.T)
        self.count.index_add_(0, columns, torch.ones_like(columns))

    def merge(self, other: "RidgeStats", columns: Tensor | None = None) -> None:
        """Add another's sums; its class i is our class ``columns[i]`` (default: i)."""
        self._add(other, columns, 1)

    def subtract(self, other: "RidgeStats", columns: Tensor | None = None) -> None:
        """Undo ``merge(other, columns)``, up to rounding."""
        self._add(other, columns, -1)

    def remove(self, column: int) -> None:
        """Remove a class's own sum; its part of the Gram matrix cannot be separated and stays."""
        keep = torch.arange(len(self.count), device=self.count.device) != column
        self.cross, self.count = self.cross[:, keep], self.count[keep]

    def _add(self, other: "RidgeStats", columns: Tensor | None, sign: int) -> None:
        columns = torch.arange(len(other.count)) if columns is None else columns
        columns = columns.to(self.count.device)
        if other.dim != self.dim or (len(columns) and int(columns.max()) >= len(self.count)):
            raise ValueError(f"cannot merge sums {list(other.cross.shape)} into {list(self.cross.shape)}")
        if sign < 0 and bool((self.count[columns] < other.count).any()):
            raise ValueError("cannot take away more samples of a class than it has")
        self.gram.add_(other.gram, alpha=sign)
        self.cross.index_add_(1, columns, other.cross, alpha=sign)
        self.count.index_add_(0, columns, other.count, alpha=sign)

    def weights(self, ridge: float) -> Tensor:
        """The ridge solution W [M, K]."""
        diagonal = torch.full((self.dim,), ridge, dtype=torch.float64, device=self.gram.device)
        return solve(self.gram + torch.diag(diagonal), self.cross, f"Gram matrix with ridge {ridge:g}")


def choose_ridge(fit: RidgeStats, held_out: RidgeStats, grid: tuple[float, ...] = GRID) -> tuple[float, list[float]]:
    """The ridge whose solution on ``fit`` has the least squared error on ``held_out``, and all the errors.

    The error needs no sample: with sums G, Q of n held-out samples and C classes it is
    (tr W^T G W - 2 tr W^T Q + n) / (n C). One eigendecomposition is enough for all ridges.
    """
    values, vectors = torch.linalg.eigh((fit.gram + fit.gram.T) / 2)
    values = values.clamp_min(0)
    turned = vectors.T @ fit.cross  # [M, K]
    gram, cross = vectors.T @ held_out.gram @ vectors, vectors.T @ held_out.cross
    n = int(held_out.count.sum())
    if n == 0:
        raise ValueError("no held-out samples to choose a ridge with: every class needs five or more")
    errors = []
    for ridge in grid:
        w = turned / (values + ridge)[:, None]
        squared = (w * (gram @ w)).sum() - 2 * (w * cross).sum() + n
        errors.append(float(squared) / (n * fit.cross.shape[1]))
    return grid[min(range(len(grid)), key=errors.__getitem__)], errors


def balanced(scores: Tensor, count: Tensor, balance: float) -> Tensor:
    """Ridge scores [B, K] corrected for unequal classes: each divided by (images of its class / their mean) ** balance.

    A ridge score estimates the probability of a class given the image, in which a class of few images is rare. With
    ``balance`` 1 what remains is how well the image fits the class; with 0 nothing changes. Nor does it with equal
    counts.

    >>> balanced(torch.tensor([[0.6, 0.3]]), torch.tensor([300, 100]), 1.0)
    tensor([[0.4000, 0.6000]])
    """
    met = count[count > 0].double()
    if not balance or not len(met):
        return scores
    return scores * (met.mean() / count.clamp_min(1)).pow(balance).to(scores)


class RecursiveRidge(nn.Module):
    """The ridge solution by recursive least squares; it solves systems of the batch's size only."""

    inverse: Tensor  # float64 [M, M], (sum h h^T + ridge I)^-1
    weight: Tensor  # float64 [M, K]
    count: Tensor  # int64 [K]
    steps: Tensor  # int64 [], updates so far

    def __init__(self, dim: int, ridge: float) -> None:
        super().__init__()
        if not ridge > 0:
            raise ValueError(f"the recursion needs a ridge above 0, not {ridge}; the inverse starts at I / ridge")
        self.dim, self.ridge = dim, ridge
        self.register_buffer("inverse", torch.eye(dim, dtype=torch.float64) / ridge)
        self.register_buffer("weight", torch.zeros(dim, 0, dtype=torch.float64))
        self.register_buffer("count", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def grow(self, n: int) -> None:
        """Add ``n`` classes with weight 0."""
        self.weight = torch.cat([self.weight, self.weight.new_zeros(self.dim, n)], dim=1)
        self.count = torch.cat([self.count, self.count.new_zeros(n)])

    @torch.no_grad()
    def update(self, h: Tensor, columns: Tensor) -> None:
        """Add features [B, M] of the classes in ``columns`` [B].

        With A = R h^T and K = (I + h R h^T)^-1: R <- R - A K A^T, and the W update uses the new R, whose
        product R h^T equals A K.
        """
        check_features(h, self.dim)
        h = h.to(self.inverse)
        targets = nn.functional.one_hot(columns, len(self.count)).to(h)
        projected = self.inverse @ h.T  # A [M, B]
        inner = torch.eye(len(h), dtype=h.dtype, device=h.device) + h @ projected
        gain = torch.cholesky_solve(projected.T, cholesky(inner, "recursive update")).T  # A K [M, B]
        self.inverse.addmm_(gain, projected.T, alpha=-1)
        self.weight.addmm_(gain, targets - h @ self.weight)
        self.count.index_add_(0, columns, torch.ones_like(columns))
        self.steps += 1
        if int(self.steps) % _SYMMETRISE_EVERY == 0:
            self.inverse.copy_((self.inverse + self.inverse.T) / 2)
            if not bool(torch.isfinite(self.inverse).all()):
                raise NotPositiveDefiniteError(
                    f"the recursion overflowed in {int(self.steps)} batches; use a ridge above {self.ridge}"
                )
