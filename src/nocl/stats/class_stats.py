"""Class statistics from a stream: count, mean, variance and covariance, exact in one pass and mergeable.

Batches are added with the pairwise update of Chan, Golub and LeVeque, in float64, so that the order of samples,
the batch size and the number of machines do not matter beyond rounding (about 1e-13 relative). Legend: K classes,
d feature values, B samples.
"""

from typing import Literal

import torch
from torch import Tensor, nn

_WIDE = 512  # from this feature length on, computing half of a symmetric product is faster
_FEW = 64  # up to so many samples are added to a shared scatter in place
Spread = Literal["none", "diagonal", "full", "shared"]


class ClassStats(nn.Module):
    """Running statistics of each class.

    ``spread`` says what is kept beside count and mean: nothing, the variance of each value (``diagonal``), each
    class's covariance (``full``) or the one covariance within all classes (``shared``). Scatter is the sum of squared
    deviations from the class mean; divide by a count to get a variance.
    """

    count: Tensor  # int64 [K]
    mean: Tensor  # float64 [K, d]
    scatter: Tensor  # float64 [K, 0] | [K, d] | [K, d, d] | [d, d]

    def __init__(self, dim: int, spread: Spread = "none") -> None:
        super().__init__()
        shapes = {"none": (0, 0), "diagonal": (0, dim), "full": (0, dim, dim), "shared": (dim, dim)}
        if spread not in shapes:
            raise ValueError(f"spread must be one of {', '.join(shapes)}, not {spread!r}")
        self.dim, self.spread = dim, spread
        self.register_buffer("count", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(0, dim, dtype=torch.float64))
        self.register_buffer("scatter", torch.zeros(shapes[spread], dtype=torch.float64))

    def __len__(self) -> int:
        return len(self.count)

    def grow(self, n: int) -> None:
        """Add ``n`` classes with count 0."""
        self.count = torch.cat([self.count, self.count.new_zeros(n)])
        self.mean = torch.cat([self.mean, self.mean.new_zeros(n, self.dim)])
        if self.spread != "shared":
            self.scatter = torch.cat([self.scatter, self.scatter.new_zeros(n, *self.scatter.shape[1:])])

    @torch.no_grad()
    def update(self, z: Tensor, columns: Tensor, *, spread: bool = True) -> None:
        """Add features [B, d] of the classes in ``columns`` [B]; the scatter is updated only if ``spread``."""
        check_features(z, self.dim)
        z = z.to(self.mean)
        classes, inverse, counts = torch.unique(columns.to(z.device), return_inverse=True, return_counts=True)
        sums = z.new_zeros(len(classes), self.dim).index_add_(0, inverse, z)
        means = sums / counts[:, None]
        deviations = z - means[inverse]
        if spread and self.spread == "shared" and len(z) <= _FEW:
            self._fold(classes, counts, means, None, deviations)
        else:
            within = self._scatter_within(deviations, inverse, len(classes)) if spread else None
            self._fold(classes, counts, means, within)

    @torch.no_grad()
    def merge(self, other: "ClassStats", columns: Tensor | None = None, *, spread: bool = True) -> None:
        """Add other statistics; their class i is our class ``columns[i]`` (default: i). See ``update``."""
        if (other.dim, other.spread) != (self.dim, self.spread):
            raise ValueError(
                f"cannot merge statistics of d={other.dim}, {other.spread} into d={self.dim}, {self.spread}"
            )
        columns = torch.arange(len(other)) if columns is None else columns
        met = other.count > 0
        scatter = other.scatter if self.spread == "shared" else other.scatter[met]
        self._fold(columns[met.cpu()].to(met.device), other.count[met], other.mean[met], scatter if spread else None)

    @torch.no_grad()
    def subtract(self, other: "ClassStats", columns: Tensor | None = None, *, spread: bool = True) -> None:
        """Undo ``merge(other, columns)``, up to rounding. A class without samples left becomes exactly zero."""
        columns = torch.arange(len(other)) if columns is None else columns
        met = (other.count > 0).cpu()
        classes = columns[met].to(self.count.device)
        left = self.count[classes] - other.count[met]
        if bool((left < 0).any()):
            raise ValueError("cannot take away more samples of a class than it has")
        scatter = other.scatter if self.spread == "shared" else other.scatter[met]
        self._fold(classes, -other.count[met], other.mean[met], -scatter if spread else None)
        empty = classes[left == 0]
        self.mean[empty] = 0
        if self.spread != "shared":
            self.scatter[empty] = 0

    def remove(self, column: int) -> None:
        """Remove one class. Its part of a shared scatter cannot be separated and stays."""
        keep = torch.arange(len(self), device=self.count.device) != column
        self.count, self.mean = self.count[keep], self.mean[keep]
        if self.spread != "shared":
            self.scatter = self.scatter[keep]

    def variance(self, *, unbiased: bool = False) -> Tensor:
        """[K, d]; 0 for classes met fewer than twice."""
        diagonal = self.scatter if self.spread == "diagonal" else self.scatter.diagonal(dim1=-2, dim2=-1)
        return diagonal / (self.count - int(unbiased)).clamp_min(1)[:, None]

    def std(self) -> Tensor:
        """Population standard deviation [K, d]."""
        return self.variance().sqrt()

    def covariance(self, *, unbiased: bool = False, columns: Tensor | None = None) -> Tensor:
        """Each class's covariance [K, d, d], or those of ``columns``."""
        if self.spread != "full":
            raise ValueError(f"class covariances need spread='full', not {self.spread!r}")
        scatter, count = (self.scatter, self.count) if columns is None else (self.scatter[columns], self.count[columns])
        return scatter / (count - int(unbiased)).clamp_min(1)[:, None, None]

    def shared_covariance(self, *, unbiased: bool = False) -> Tensor:
        """The covariance within classes, pooled over all samples [d, d]: divided by their number, or by that less one
        for each class."""
        if self.spread not in ("full", "shared"):
            raise ValueError(f"a shared covariance needs spread='full' or 'shared', not {self.spread!r}")
        total = self.scatter.sum(0) if self.spread == "full" else self.scatter
        lost = int(unbiased) * (self.count > 0).sum()
        return total / (self.count.sum() - lost).clamp_min(1)

    def _scatter_within(self, deviations: Tensor, inverse: Tensor, n: int) -> Tensor:
        if self.spread == "none":
            return deviations.new_zeros(n, 0)
        if self.spread == "shared":
            return gram(deviations)
        if self.spread == "diagonal":
            return deviations.new_zeros(n, self.dim).index_add_(0, inverse, deviations.square())
        parts = deviations[inverse.argsort(stable=True)].split(torch.bincount(inverse, minlength=n).tolist())
        return torch.stack([part.T @ part for part in parts])

    def _fold(
        self, classes: Tensor, counts: Tensor, means: Tensor, scatter: Tensor | None, rows: Tensor | None = None
    ) -> None:
        """``rows`` are deviations from the class means, added to a shared scatter in one pass over it."""
        before, counts = self.count[classes].double(), counts.double()  # int / int would be float32
        after = before + counts
        shift = means - self.mean[classes]
        # negative counts remove samples; subtract clears a class that becomes empty
        whole = after + (after == 0)
        weight = (before * counts / whole)[:, None]  # the difference of two groups' means adds to their joint scatter
        if rows is not None:
            rows = torch.cat([rows, weight.sqrt() * shift])
            self.scatter.addmm_(rows.T, rows)
        elif scatter is None:
            pass  # spread=False: the scatter is not updated
        elif self.spread == "diagonal":
            self.scatter[classes] += scatter + weight * shift.square()
        elif self.spread == "full":
            self.scatter[classes] += scatter + weight[:, :, None] * shift[:, :, None] * shift[:, None, :]
        elif self.spread == "shared":
            self.scatter += scatter + (weight * shift).T @ shift
        self.mean[classes] += (counts / whole)[:, None] * shift
        self.count[classes] = after.long()


def gram(x: Tensor) -> Tensor:
    """``x.T @ x``. It is symmetric, so for wide matrices only about half of the products are computed.

    >>> gram(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[10., 14.],
            [14., 20.]])
    """
    if x.shape[1] < _WIDE:
        return x.T @ x
    half = x.shape[1] // 2
    left, right = x[:, :half], x[:, half:]
    across = left.T @ right
    return torch.cat([torch.cat([gram(left), across], 1), torch.cat([across.T, gram(right)], 1)])


def shrink_covariances(scatter: Tensor, count: Tensor, shared: Tensor, prior: float) -> Tensor:
    """Covariances [C, d, d] of classes with this scatter and count, shrunk to the shared one [d, d] (Friedman 1989).

    The shared one has the weight of ``prior`` images: a class of one image gets the shared one, a class of many its
    own.

    >>> shrink_covariances(torch.tensor([[[8.0]]]), torch.tensor([3]), torch.tensor([[1.0]]), prior=2.0)
    tensor([[[2.5000]]])
    """
    freedom = (count - 1).clamp_min(0).to(scatter)
    return (scatter + prior * shared) / (freedom + prior)[:, None, None]


def check_features(z: Tensor, dim: int) -> None:
    """Refuse features that are not finite [B, dim]."""
    if z.ndim != 2 or z.shape[1] != dim:
        raise ValueError(f"features must be [B, {dim}], not {list(z.shape)}")
    if not bool(torch.isfinite(z).all()):
        raise ValueError("features hold NaN or infinity; check the images and the network")


def tukey(z: Tensor, power: float, floor: float = 1e-6) -> Tensor:
    """Tukey's power transform of features that are never negative: z ** power; the logarithm if power is 0.

    The floor keeps the gradient finite where a unit is 0; with floor 0 such a unit stays exactly 0.

    >>> tukey(torch.tensor([4.0, 9.0]), 0.5)
    tensor([2.0000, 3.0000])
    """
    if power == 1:
        return z
    z = z.clamp_min(0) + floor
    return z.log() if power == 0 else z.pow(power)
