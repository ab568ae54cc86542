"""FeCAM: Mahalanobis distance with shrunk, normalised class covariances (Goswami et al., NeurIPS 2023).

With raw features x >= 0 and g(x) = x ^ power, the mean mu_c of x and the covariance S_c of g(x) (divided by n - 1) of
each class are kept. As in the authors' code, the covariance is shrunk twice,

    shrink(S) = S + alpha1 V1 I + alpha2 V2 (1 - I)    V1, V2: mean diagonal, mean non-zero off-diagonal

then scaled to a correlation matrix N_c. Features and means are transformed by g and scaled to length 1:

    argmin_c  (q - p_c)^T N_c^-1 (q - p_c)               q = g(x) / |g(x)|,  p_c = g(mu_c) / |g(mu_c)|

``covariance`` is ``full`` (one for each class), ``diagonal`` (variances only, divided by their length instead
of the correlation step) or ``shared``. ``shared`` has two forms. ``within=True``, the default here: the
covariance within classes, pooled over everything seen, treated as the full ones are. ``within=False``, the
authors': around the mean of all of a session's images, r old + (1 - r) shrink(new) with r the share of old
classes, the base one not shrunk, no correlation step; it needs to know where a session ends.

Differences from the authors' code, and why. Statistics come from the stream in one pass, in float64, where
the code holds a session's features. The base session is scored by the same rule as later ones, where the code
uses the network's own classifier until the first increment. A class with fewer than two images uses the
pooled covariance within classes. Distances are computed from Cholesky factors and never negative; the code uses a
pseudo-inverse and multiplies all test images with each other. ``mean_space="tukey"`` takes the mean of g(x) as
prototype in place of g of the mean."""

from typing import Annotated, ClassVar, Literal, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from nocl.learner import FrozenCommon, FrozenLearner
from nocl.plumbing.parameters import NonNegative, Range
from nocl.stats.class_stats import ClassStats, tukey
from nocl.stats.linalg import Cached, inverse_root

_MATRICES_AT_ONCE = 64
_ROWS_AT_ONCE = 2048
_VALUES_AT_ONCE = 1 << 19  # of a [rows, classes x d] product: 2 MB in float32, so that it stays in a cache


class FeCAM(FrozenLearner):
    """Feature covariance-aware metric.

    Parameters
    ----------
    covariance
        ``full``: one for each class (the paper's); ``diagonal``: variances only; ``shared``: one for all classes.
    power
        Power of the Tukey transform g, above 0 to 2; 0.5 in the paper.
    alpha1
        Shrinkage of the diagonal, 0 or more; 1 in the paper.
    alpha2
        Shrinkage of the rest, 0 or more; 1 in the paper.
    normalise
        Make covariances correlation matrices, as the paper does.
    within
        The form of ``shared``: True is the covariance within classes, False the authors' average over sessions.
    mean_space
        Prototype: g of the mean (``raw``, the authors') or the mean of g (``tukey``).
    **common
        ``stages``, ``backbone``, ``weights``, ``recipe``, ``image_size``, ``seed``: see
        :class:`~nocl.learner.FrozenLearner`.
    """

    depends_on_batching: ClassVar[bool] = False
    statistics: ClassVar[tuple[str, ...]] = ("stats", "raw")

    common_: Tensor  # float64 [d, d], the authors' shared covariance
    n_common_: Tensor  # int64 [], classes in it
    search_space = ("power=0.2:1", "alpha1=0.1:10:log", "alpha2=0.1:10:log")

    def __init__(
        self,
        *,
        covariance: Literal["full", "shared", "diagonal"] = "full",
        power: Annotated[float, Range(0, 2, above=True)] = 0.5,
        alpha1: NonNegative = 1.0,
        alpha2: NonNegative = 1.0,
        normalise: bool = True,
        within: bool = True,
        mean_space: Literal["raw", "tukey"] = "raw",
        **common: Unpack[FrozenCommon],
    ) -> None:
        super().__init__(**common)
        self.covariance, self.power, self.alpha1, self.alpha2 = covariance, power, alpha1, alpha2
        self.normalise, self.within, self.mean_space = normalise, within, mean_space
        self.by_session = covariance == "shared" and not within
        self.stats = ClassStats(self.feature_dim, "none" if self.by_session else covariance)  # of g(x)
        self.raw = ClassStats(self.feature_dim)  # means of x
        self.uses_boundaries = self.by_session  # type: ignore[misc]
        if self.by_session:
            self.statistics = ()  # type: ignore[misc]  # the average over sessions cannot be separated by class
        self.session = ClassStats(self.feature_dim, "full")  # of a whole session as if one class; official only
        self.session.grow(int(self.by_session))
        side = self.feature_dim if self.by_session else 0
        self.register_buffer("common_", torch.zeros(side, side, dtype=torch.float64))
        self.register_buffer("n_common_", torch.zeros((), dtype=torch.int64))
        self._metric: Cached[tuple[Tensor, Tensor]] = Cached()

    def grow(self, n: int) -> None:
        self.stats.grow(n)
        self.raw.grow(n)

    def learn(self, z: Tensor, y: Tensor) -> None:
        columns, g = self.columns(y), self._g(z.double())
        self.raw.update(z, columns)
        self.stats.update(g, columns)
        if self.by_session:
            self.session.update(g, torch.zeros_like(columns))

    def end_session(self) -> None:
        if not self.by_session or not int(self.session.count):
            return
        old, everything = int(self.n_common_), int((self.stats.count > 0).sum())
        self.common_.copy_(self._blend(old / everything))
        self.n_common_.fill_(everything)
        for buffer in self.session.buffers():
            buffer.zero_()

    def kept(self) -> str:
        if self.by_session:
            return "of each class: count and mean of its features, beside one covariance of all classes"
        return super().kept()

    def _blend(self, share_of_old: float) -> Tensor:
        new = self.session.covariance(unbiased=True)[0]
        if share_of_old == 0:
            return new
        return share_of_old * self.common_ + (1 - share_of_old) * shrink(new, self.alpha1, self.alpha2)

    def score(self, z: Tensor) -> Tensor:
        """Minus the distances."""
        state = (self.stats.count, self.stats.mean, self.stats.scatter, self.common_, self.session.count)
        roots, anchors = self._metric.get(state, lambda: self._measure(z.dtype), z.dtype)
        q = F.normalize(self._g(z), dim=1)
        distances = [_squared_lengths(part, roots, anchors) for part in torch.split(q, _ROWS_AT_ONCE)]
        return -torch.cat(distances).masked_fill(self.stats.count == 0, float("inf"))

    def _g(self, z: Tensor) -> Tensor:
        return tukey(z, self.power, floor=0.0)

    def _measure(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Roots of the inverse covariances ([K, d, d], [1, d, d] or [K, d]) and the prototypes times them [K, d]."""
        mean = self._g(self.raw.mean) if self.mean_space == "raw" else self.stats.mean
        roots, prototypes = self._roots(dtype), F.normalize(mean, dim=1).to(dtype)
        if roots.ndim == 2:
            return roots, roots * prototypes
        if len(roots) == 1:
            return roots, prototypes @ roots[0].T
        return roots, (roots @ prototypes[:, :, None])[:, :, 0]

    def _roots(self, dtype: torch.dtype) -> Tensor:
        if self.covariance == "diagonal":
            return self._diagonal_roots().to(dtype)
        if self.covariance == "shared":
            return inverse_root(self.metric(), "FeCAM covariance").to(dtype)
        parts = torch.arange(len(self.stats)).split(_MATRICES_AT_ONCE)  # a few at a time, because float64 needs memory
        return torch.cat([inverse_root(self.metric(part), "FeCAM covariance").to(dtype) for part in parts])

    def metric(self, columns: Tensor | None = None) -> Tensor:
        """The matrices N whose inverse measures distance: [K, d, d] or those of ``columns``; [1, d, d] if shared."""
        if self.by_session:
            known = bool(self.n_common_)
            return (self.common_ if known else _floor(self.session.covariance(unbiased=True)[0]))[None]
        if self.covariance == "shared":
            matrices = self.stats.shared_covariance()[None]
        else:
            columns = torch.arange(len(self.stats)) if columns is None else columns
            matrices = self.stats.covariance(unbiased=True, columns=columns)
            few = self.stats.count[columns] < 2
            if bool(few.any()):
                matrices[few] = self.stats.shared_covariance()
        for _ in range(2):
            matrices = shrink(matrices, self.alpha1, self.alpha2)
        return correlation(matrices) if self.normalise else matrices

    def _diagonal_roots(self) -> Tensor:
        pooled = self.stats.scatter.sum(0) / self.stats.count.sum().clamp_min(1)
        variance = self.stats.variance(unbiased=True)
        variance[self.stats.count < 2] = pooled
        for _ in range(2):
            variance = variance + self.alpha1 * variance.mean(1, keepdim=True)
        variance = variance + 1e-6 * (variance.mean(1, keepdim=True) == 0)
        return (F.normalize(variance, dim=1) if self.normalise else variance).rsqrt()


def shrink(matrix: Tensor, alpha1: float, alpha2: float) -> Tensor:
    """Covariances [..., d, d] with the mean diagonal and mean non-zero off-diagonal entry added.

    >>> shrink(torch.tensor([[2.0, 1.0], [1.0, 4.0]]), 1, 1)
    tensor([[5., 2.],
            [2., 7.]])
    """
    matrix = _floor(matrix)
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    off = matrix * (1 - eye)
    diagonal = matrix.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    n_off = (off != 0).sum((-2, -1), keepdim=True).clamp_min(1)
    return matrix + alpha1 * diagonal * eye + alpha2 * (off.sum((-2, -1), keepdim=True) / n_off) * (1 - eye)


def correlation(matrix: Tensor) -> Tensor:
    """Covariances [..., d, d] scaled to a diagonal of ones."""
    scale = matrix.diagonal(dim1=-2, dim2=-1).rsqrt()
    return matrix * scale[..., :, None] * scale[..., None, :]


def _floor(matrix: Tensor) -> Tensor:
    """Add 1e-6 to the diagonal of a matrix of zeros, so that it has an inverse."""
    empty = (matrix.diagonal(dim1=-2, dim2=-1).sum(-1) == 0)[..., None, None]
    return matrix + 1e-6 * empty * torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)


def _squared_lengths(q: Tensor, roots: Tensor, anchors: Tensor) -> Tensor:
    """|root_c q - anchor_c|^2 for all rows and classes [B, K]: anchors are the roots' prototypes."""
    if roots.ndim == 2:  # diagonal: a weighted Euclidean distance
        squares = q.square() @ roots.square().T - 2 * q @ (roots * anchors).T + anchors.square().sum(1)
        return squares.clamp_min(0)
    if len(roots) == 1:  # shared: distances after one whitening
        return torch.cdist(q @ roots[0].T, anchors).square()
    at_once = max(1, _VALUES_AT_ONCE // max(1, q.numel()))
    pieces = zip(roots.split(at_once), anchors.split(at_once))
    return torch.cat([((q @ some.flatten(0, 1).T).view(len(q), *a.shape) - a).square().sum(2) for some, a in pieces], 1)
