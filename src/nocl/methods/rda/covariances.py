"""Each class's covariance in few bytes: a packed triangle in float32, or a low rank beside a common matrix.

Scatter is the sum of squared deviations from the class mean, as in ``ClassStats``. Each image adds one outer product.
Deviations are float64; their products are rounded as the stored triangle is, by one part in ten million at each update;
that happens whether the learner is saved or not, so a saved one goes on with the same bits.

A triangle is kept by its diagonals, the k-th going round: position k d + i is the entry (i, i + k mod d), for k up to
d / 2. That is every pair of values once, as in a triangle by rows, but the outer product of v is now v times v shifted
by k, which needs no copying about. Files hold triangles by rows.
Legend: K classes, d feature values, B images and C classes of one batch, r the rank.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nocl.stats import linalg
from nocl.stats.class_stats import ClassStats

_MATRICES_AT_ONCE = 64  # dense float64 matrices held at once: 40 MB at d = 280
_FEW = 5  # up to so many images of a class are added one by one; more, as one matrix product
_PAIRS_AT_ONCE = 512  # pairs of an image and a class scored at once: 14 MB at d = 280, r = 24


class ClassShapes(nn.Module):
    """The scatter of each class. ``rank`` None keeps triangles; a number, that many directions after :meth:`compress`.

    Low rank means low rank beside a *reference* matrix R = B B^T that all classes share and that, once set, stays:
    in the coordinates B^-1 z, where the reference is I, a class's covariance is I + U^T diag(w - 1) U, with its r
    eigenvalues w that differ most from 1 and their directions U. Rank 0 is the reference itself. A class that
    gets new images after :meth:`compress` is opened again: its triangle starts from the low-rank form.
    """

    _place: Tensor  # int64 [d (d + 1) / 2], where the triangle's numbers are in a flattened matrix
    _order: Tensor  # int64 [d (d + 1) / 2], and where they are in a triangle by rows
    triangle: Tensor  # float32 [O, d (d + 1) / 2], triangles of the O open classes, by diagonals
    row: Tensor  # int64 [K], a class's row of ``triangle``, or -1
    directions: Tensor  # float32 [K, r, d]
    weights: Tensor  # float32 [K, r], w
    reference: Tensor  # float64 [d, d], the Cholesky factor B; zeros until the first compress

    def __init__(self, dim: int, rank: int | None = None) -> None:
        super().__init__()
        if rank is not None and not 0 <= rank <= dim:
            raise ValueError(f"rank must be 0 to {dim} (the feature has {dim} values), not {rank}")
        self.dim, self.rank = dim, rank
        low = 0 if rank is None else rank
        self.register_buffer("triangle", torch.zeros(0, dim * (dim + 1) // 2))
        self.register_buffer("row", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("directions", torch.zeros(0, low, dim))
        self.register_buffer("weights", torch.zeros(0, low))
        size = 0 if rank is None else dim
        self.register_buffer("reference", torch.zeros(size, size, dtype=torch.float64))
        place, order = _by_diagonals(dim)
        self.register_buffer("_place", place, persistent=False)
        self.register_buffer("_order", order, persistent=False)

    def __len__(self) -> int:
        return len(self.row)

    def grow(self, n: int) -> None:
        """Room for ``n`` more classes; they take no triangle until they get an image."""
        self.row = torch.cat([self.row, self.row.new_full((n,), -1)])
        self.directions = torch.cat([self.directions, self.directions.new_zeros(n, *self.directions.shape[1:])])
        self.weights = torch.cat([self.weights, self.weights.new_zeros(n, self.weights.shape[1])])

    @torch.no_grad()
    def update(self, z: Tensor, columns: Tensor, stats: ClassStats) -> None:
        """Fold in features float64 [B, d]; call before ``stats`` is updated with them."""
        classes, parts = increments(z, columns, stats)
        self._open(classes, stats.count)
        for row, part in zip(self.row[classes].tolist(), parts):  # one matrix at a time stays in the cache
            if len(part) > _FEW:
                self._add_product(self.triangle[row], part.float())
            else:
                self._add_one_by_one(self.triangle[row], part.float())

    @torch.no_grad()
    def merge(self, other: "ClassShapes", columns: Tensor, stats: ClassStats, other_stats: ClassStats) -> None:
        """Fold in another's scatter, its class i into our class ``columns[i]``; call before ``stats`` is merged."""
        met = other_stats.count > 0
        classes = columns.to(met.device)[met]
        before, counts = stats.count[classes], other_stats.count[met]
        shift = (before * counts / (before + counts)).sqrt()[:, None] * (other_stats.mean[met] - stats.mean[classes])
        self._open(classes, stats.count)
        for part in torch.arange(len(classes), device=met.device).split(_MATRICES_AT_ONCE):
            theirs = other.scatter(met.nonzero()[:, 0][part], other_stats.count)
            self._add(classes[part], theirs + shift[part, :, None] * shift[part, None, :])

    @torch.no_grad()
    def subtract(
        self, other: "ClassShapes", columns: Tensor, before: tuple[Tensor, Tensor], other_stats: ClassStats
    ) -> None:
        """Undo ``merge``, to rounding; ``before`` are our counts and means while they still held the other's."""
        count, mean = before
        for i in (other_stats.count > 0).nonzero()[:, 0]:
            column, taken = columns[i : i + 1].to(count.device), other_stats.count[i].double()
            left = count[column].double() - taken
            self._open(column, count)
            if float(left) == 0:
                self.triangle[self.row[column]] = 0
                continue
            shift = (other_stats.mean[i] - mean[column[0]]) * (taken * count[column].double() / left).sqrt()
            self._add(column, -other.scatter(i[None], other_stats.count) - shift[None, :, None] * shift[None, None, :])

    def remove(self, column: int) -> None:
        """Forget one class."""
        row = int(self.row[column])
        if row >= 0:
            self.triangle = torch.cat([self.triangle[:row], self.triangle[row + 1 :]])
        keep = torch.arange(len(self), device=self.row.device) != column
        self.row, self.directions, self.weights = self.row[keep], self.directions[keep], self.weights[keep]
        if row >= 0:
            self.row = self.row - (self.row > row).long()

    def scatter(self, columns: Tensor, count: Tensor) -> Tensor:
        """Dense scatter float64 [C, d, d] of these classes, which have ``count[columns]`` images each."""
        out = self.triangle.new_zeros(len(columns), self.dim * self.dim, dtype=torch.float64)
        rows = self.row[columns]
        opened = rows >= 0
        out[opened.nonzero(), self._place] = self.triangle[rows[opened]].double()
        out = out.view(-1, self.dim, self.dim)
        out = out + out.mT - torch.diag_embed(out.diagonal(dim1=1, dim2=2))
        if self.rank is not None and not bool(opened.all()):
            out[~opened] = self._expand(columns[~opened], count)
        return out

    @torch.no_grad()
    def compress(self, count: Tensor, shared: Tensor) -> None:
        """Bring open classes to low rank; the first time, ``shared`` (positive definite) becomes the reference."""
        if self.rank is None or not len(self.triangle):
            return
        if not bool(self.reference.any()):
            self.reference.copy_(linalg.cholesky(shared, "reference covariance"))
        for columns in (self.row >= 0).nonzero()[:, 0].split(_MATRICES_AT_ONCE):
            freedom = (count[columns] - 1).clamp_min(1)[:, None, None]
            half = torch.linalg.solve_triangular(self.reference, self.scatter(columns, count) / freedom, upper=False)
            whitened = torch.linalg.solve_triangular(self.reference, half.mT, upper=False)
            values, vectors = torch.linalg.eigh((whitened + whitened.mT) / 2)
            keep = ((1 + values.clamp_min(0)) / 2).log().abs().topk(self.rank, dim=1).indices  # after shrinking by half
            self.directions[columns] = vectors.mT.gather(1, keep[:, :, None].expand(-1, -1, self.dim)).float()
            self.weights[columns] = values.gather(1, keep).clamp_min(0).float()
        self.triangle, self.row = self.triangle[:0], torch.full_like(self.row, -1)

    def _expand(self, columns: Tensor, count: Tensor) -> Tensor:
        """The low-rank form of these classes as dense scatter."""
        weights, directions = self.weights[columns].double(), self.directions[columns].double()
        sides = (self.reference @ directions.mT) * (weights - 1)[:, None, :]
        dense = sides @ (directions @ self.reference.T) + self.reference @ self.reference.T
        return dense * (count[columns] - 1).clamp_min(0)[:, None, None]

    def _open(self, classes: Tensor, count: Tensor) -> None:
        closed = classes[self.row[classes] < 0]
        if not len(closed):
            return
        start = len(self.triangle)
        fresh = self.triangle.new_zeros(len(closed), self.triangle.shape[1])
        if self.rank is not None and bool(self.reference.any()):
            fresh = self._expand(closed, count).flatten(1)[:, self._place].float()
        self.triangle = torch.cat([self.triangle, fresh])
        self.row[closed] = torch.arange(start, start + len(closed), device=self.row.device)

    def _add(self, classes: Tensor, scatter: Tensor) -> None:
        self.triangle.index_add_(0, self.row[classes], scatter.float().flatten(1).index_select(1, self._place))

    def _add_product(self, triangle: Tensor, rows: Tensor) -> None:
        triangle += (rows.T @ rows).flatten().index_select(0, self._place.int())  # int32: half the time

    def _add_one_by_one(self, triangle: Tensor, rows: Tensor) -> None:
        half = self.dim // 2
        whole = len(triangle) // self.dim  # diagonals; with an even d half a one remains, whose pairs come twice
        body, rest = triangle[: whole * self.dim].view(whole, self.dim), triangle[whole * self.dim :]
        for twice in torch.cat([rows, rows], 1):
            body.addcmul_(twice[: self.dim], twice.unfold(0, self.dim, 1)[:whole])
            rest.addcmul_(twice[: len(rest)], twice[half : half + len(rest)])

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        by_rows = torch.empty_like(self.triangle)
        by_rows[:, self._order] = self.triangle
        destination[prefix + "triangle"] = by_rows

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        saved = state_dict.get(prefix + "triangle")
        if isinstance(saved, Tensor) and saved.ndim == 2 and saved.shape[1] == self.triangle.shape[1]:
            self.triangle = self.triangle.new_zeros(saved.shape)
            state_dict = {**state_dict, prefix + "triangle": saved[:, self._order.to(saved.device)]}
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def _by_diagonals(dim: int) -> tuple[Tensor, Tensor]:
    """For each number of a triangle kept by diagonals, its place in a flattened matrix and in a triangle by rows.

    >>> _by_diagonals(3)
    (tensor([0, 4, 8, 1, 5, 6]), tensor([0, 3, 5, 1, 4, 2]))
    """
    row = torch.arange(dim).expand(dim // 2 + 1, dim)
    column = (row + torch.arange(dim // 2 + 1)[:, None]) % dim
    least, most = torch.minimum(row, column), torch.maximum(row, column)
    order = least * dim - least * (least - 1) // 2 + most - least
    size = dim * (dim + 1) // 2
    return (row * dim + column).flatten()[:size], order.flatten()[:size]


def increments(z: Tensor, columns: Tensor, stats: ClassStats) -> tuple[Tensor, Sequence[Tensor]]:
    """Classes [C] of a batch float64 [B, d], and for each the rows [n, d] whose outer products its n images add.

    An image that comes after k others adds k / (k + 1) times the square of its deviation from their mean (Welford).
    """
    classes, inverse, counts = torch.unique(columns, return_inverse=True, return_counts=True)
    order = inverse.argsort(stable=True)
    z, inverse = z[order], inverse[order]
    first = counts.cumsum(0) - counts
    place = torch.arange(len(z), device=z.device) - first[inverse]  # among the images of its class in this batch
    sums = z.cumsum(0) - z
    sums = sums - sums[first[inverse]]
    known, mean = stats.count[classes][inverse], stats.mean[classes][inverse]
    before = (known + place).double()[:, None]
    mean = (known[:, None] * mean + sums) / before.clamp_min(1)
    rows = (before / (before + 1)).sqrt() * (z - mean)
    return classes, rows.split(counts.tolist())


def common_basis(shapes: ClassShapes, root: Tensor, ridge: Tensor) -> tuple[Tensor, Tensor]:
    """G, float64 [d, d], and s [d]: in coordinates G z the shared covariance is I and the reference's diag(s).

    ``root`` is an A with A^T A = (S + ridge)^-1.
    """
    factor = shapes.reference
    values, vectors = torch.linalg.eigh(root @ (factor @ factor.T + ridge) @ root.T)
    return vectors.mT @ root, values


class LowRankInverses:
    """Inverses of shrunk low-rank covariances, never made dense.

    A class's predictive covariance (1 - l) (R + B U^T diag(w - 1) U B^T) + l S + ridge + V is, in coordinates u = G z
    where S + ridge is I, R + ridge diag(s) and V diagonal, a diagonal t = (1 - l) s + l + V plus r directions; by
    Woodbury's identity its inverse is diag(1/t) - F^T diag(e) F. ``share`` is l [K], ``variance`` V [K, d], ``basis``
    and ``values`` are G and s of :func:`common_basis`.
    """

    def __init__(self, shapes: ClassShapes, share: Tensor, basis: Tensor, values: Tensor, variance: Tensor) -> None:
        self.scale = (1 - share)[:, None] * values + share[:, None] + variance  # t, float64 [K, d]
        self.rows = torch.zeros_like(shapes.directions)  # F
        self.energies = torch.zeros_like(shapes.weights)  # e
        turn = shapes.reference.T @ basis.T
        for part in torch.arange(len(shapes), device=share.device).split(_MATRICES_AT_ONCE):
            sides = shapes.directions[part].double() @ turn  # [C, r, d]
            weights = (1 - share[part])[:, None] * (shapes.weights[part].double() - 1)
            self._invert(part, sides, weights)
        self.inverse_scale = (1 / self.scale).float()

    def _invert(self, part: Tensor, sides: Tensor, weights: Tensor) -> None:
        scaled = sides / self.scale[part, None, :]
        system = weights[:, :, None] * (scaled @ sides.mT) + torch.diag_embed(torch.ones_like(weights))
        inner = torch.linalg.solve(system, torch.diag_embed(weights))
        energies, turned = torch.linalg.eigh((inner + inner.mT) / 2)
        self.rows[part] = (turned.mT @ scaled).float()
        self.energies[part] = energies.float()

    def dense(self, columns: Tensor) -> Tensor:
        """Inverse covariances in the coordinates u, float32 [C, d, d]."""
        rows = self.rows[columns]
        low: Tensor = (rows * self.energies[columns, :, None]).mT @ rows
        return torch.diag_embed(self.inverse_scale[columns]) - low

    def distances(self, u: Tensor, means: Tensor, columns: Tensor) -> Tensor:
        """Squared distances [B, m] of u [B, d] to the classes ``columns`` [B, m], whose means [K, d] are given."""
        images = max(1, _PAIRS_AT_ONCE // max(1, columns.shape[1]))
        return torch.cat([self._distances(a, means, c) for a, c in zip(u.split(images), columns.split(images))])

    def _distances(self, u: Tensor, means: Tensor, columns: Tensor) -> Tensor:
        away = u[:, None] - means[columns]  # [B, m, d]
        along = (self.rows[columns] @ away[:, :, :, None])[:, :, :, 0]  # [B, m, r]
        whole: Tensor = (away.square() * self.inverse_scale[columns]).sum(2)
        return whole - (along.square() * self.energies[columns]).sum(2)
