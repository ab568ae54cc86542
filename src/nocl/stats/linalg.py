"""Linear algebra on symmetric positive definite matrices: Cholesky in float64, and a cache for solutions.

Inputs may be batches of matrices [..., d, d]. Errors and warnings name the matrix.
"""

import logging
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

log = logging.getLogger(__name__)
_FLOOR = 1e-10  # smallest eigenvalue of a matrix that is not definite, relative to the largest
T = TypeVar("T")


class NotPositiveDefiniteError(ValueError):
    """A matrix has no Cholesky factor."""


def cholesky(matrix: Tensor, what: str) -> Tensor:
    """Lower factor in float64 of a symmetric positive definite matrix.

    >>> cholesky(torch.tensor([[4.0, 2.0], [2.0, 5.0]]), "example")
    tensor([[2., 0.],
            [1., 2.]], dtype=torch.float64)
    """
    matrix = _symmetric(matrix, what)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if bool(failed.any()):
        raise NotPositiveDefiniteError(
            f"{what} is not positive definite ({int((failed > 0).sum())} of {failed.numel()}); "
            "use more ridge or shrinkage"
        )
    lower: Tensor = factor
    return lower


def solve(matrix: Tensor, right: Tensor, what: str) -> Tensor:
    """``matrix^-1 right`` in float64, by Cholesky."""
    return torch.cholesky_solve(right.double(), cholesky(matrix, what))


def inverse_root(matrix: Tensor, what: str) -> Tensor:
    """A float64 A [..., d, d] with A^T A = matrix^-1, so that |A v|^2 is the squared Mahalanobis length of v.

    The eigenvalues of a matrix that is not definite are raised to 1e-10 of the largest, with a warning, because a
    distance must be positive.
    """
    matrix = _symmetric(matrix, what)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    broken = failed > 0
    if bool(broken.any()):
        log.warning(
            "%s: %d of %d matrices are not positive definite; eigenvalues are raised to %g of the largest",
            what, int(broken.sum()), broken.numel(), _FLOOR,
        )  # fmt: skip
        eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        factor = torch.where(broken[..., None, None], eye, factor)
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device).expand_as(matrix)
    root: Tensor = torch.linalg.solve_triangular(factor, eye, upper=False)
    if bool(broken.any()):
        values, vectors = torch.linalg.eigh(matrix[broken])
        values = values.clamp_min(0)
        values = torch.maximum(values, (_FLOOR * values[..., -1:]).clamp_min(torch.finfo(values.dtype).tiny))
        root[broken] = vectors.mT / values.sqrt()[..., :, None]
    return root


def oas(covariance: Tensor, n: int) -> Tensor:
    """Oracle-approximating shrinkage of a covariance of ``n`` centred samples towards its mean variance.

    Chen, Wiesel, Eldar and Hero (2010), in the form with the mean of squared entries.

    >>> oas(torch.diag(torch.tensor([2.0, 1.0])), 100).diagonal()
    tensor([1.8614, 1.1386])
    """
    d = covariance.shape[-1]
    variance = covariance.diagonal().mean()
    squares = covariance.square().mean()
    share = float((squares + variance**2) / ((n + 1) * (squares - variance**2 / d)).clamp_min(1e-300))
    share = min(1.0, share)
    eye = torch.eye(d, dtype=covariance.dtype, device=covariance.device)
    return (1 - share) * covariance + share * variance * eye


class Cached(Generic[T]):
    """A value computed from some tensors, cached until one of them is changed, replaced or moved.

    Changes are detected automatically (torch counts in-place changes). The value is not part of the state: a copy or a
    loaded learner computes it again.
    """

    def __init__(self) -> None:
        self._key: tuple[tuple[Tensor, int], ...] = ()
        self._variant: object = None
        self._value: T | None = None

    def get(self, tensors: tuple[Tensor, ...], compute: Callable[[], T], variant: object = None) -> T:
        """The value for the current tensors; ``variant`` (for example a dtype) tells different values apart."""
        known = self._variant == variant and len(self._key) == len(tensors)
        known = known and all(
            tensor is kept and tensor._version == version for tensor, (kept, version) in zip(tensors, self._key)
        )
        if self._value is None or not known:
            with torch.no_grad():
                self._value = compute()
            self._key = tuple((tensor, tensor._version) for tensor in tensors)
            self._variant = variant
        return self._value

    def __deepcopy__(self, memo: dict[int, Any]) -> "Cached[T]":
        return Cached()

    def __reduce__(self) -> tuple[type["Cached[T]"], tuple[()]]:
        return Cached, ()


def _symmetric(matrix: Tensor, what: str) -> Tensor:
    matrix = matrix.double()
    if not bool(torch.isfinite(matrix).all()):
        raise NotPositiveDefiniteError(f"{what} holds NaN or infinity; check the features it was made of")
    return (matrix + matrix.mT) / 2
