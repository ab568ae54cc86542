"""Whether what a file held can be what a learner had: the last check after loading, for every method.

A digest shows damage; who can write the file can write a fitting digest. So the loaded values themselves are looked at:
no NaN, no negative count or variance, no covariance that no data can have, no class or row that is not there. A value
that some stream could have led to is accepted.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from nocl.learner import Learner
from nocl.methods.rda.covariances import ClassShapes
from nocl.plumbing.files import DamagedFileError
from nocl.stats.class_stats import ClassStats
from nocl.stats.memory import Memory
from nocl.stats.ridge import RecursiveRidge, RidgeStats

_LARGEST = 2**53  # of any count
_ROUNDING = 1e-6  # relative, of matrices that are symmetric but for rounding
_FORGOTTEN = 1e-8  # what rounding may leave of the scatter of classes that are gone
_LABELS = ("classes_", "_extra_state")  # integers that are no counts
_OF_CLASSES = ("n_base_", "known_", "n_common_")  # numbers of classes
_NEVER_NEGATIVE = ("running_var", "radius_", "ridge_")  # buffers of float values


def check_meaning(path: Path, learner: Learner) -> None:
    """Raise DamagedFileError, with the first thing that cannot be."""
    for fault in _faults(learner):
        raise DamagedFileError(f"{path}: {fault}")


def _faults(learner: Learner) -> Iterator[str]:
    for name, tensor in learner.state_dict().items():
        yield from _faults_of_values(name, tensor, len(learner.classes_))
    if not bool((learner.network.std > 0).all()):
        yield "the network's standard deviation of pixels is not above 0"
    for name, module in learner.named_modules():
        for fault in _faults_of_module(module, len(learner.classes_)):
            yield f"{name}: {fault}"
    common = getattr(learner, "common_", None)
    if isinstance(common, Tensor) and not _can_be_covariance(common):
        yield "common_ is no covariance"


def _faults_of_values(name: str, tensor: Tensor, n_classes: int) -> Iterator[str]:
    """What no tensor of this name and type may hold."""
    own = name.rpartition(".")[2]
    if not tensor.numel() or own in _LABELS or tensor.dtype in (torch.bool, torch.uint8):
        return
    low, high = tensor.min(), tensor.max()
    if tensor.is_floating_point():
        if not bool(torch.isfinite(low) & torch.isfinite(high)):
            yield f"{name} holds NaN or infinity"
        elif float(low) < 0 and (own in _NEVER_NEGATIVE or own.startswith("second_")):  # Adam's second moments
            yield f"{name} holds a negative variance or size"
        return
    if int(low) < (-1 if own == "row" else 0) or int(high) > _LARGEST:
        yield f"{name} holds a number that cannot be, negative or beyond any count ({int(low)} to {int(high)})"
    if own in _OF_CLASSES and int(high) > n_classes:
        yield f"{name} counts {int(high)} classes of {n_classes}"


def _faults_of_module(module: nn.Module, n_classes: int) -> Iterator[str]:
    if isinstance(module, ClassStats):
        yield from _faults_of_statistics(module)
    elif isinstance(module, ClassShapes):
        yield from _faults_of_shapes(module)
    elif isinstance(module, Memory):
        if int(module.filled) > min(module.size, int(module.seen)):
            yield "filled points outside of what is stored"
        elif len(module) and int(module.columns[: len(module)].max()) >= n_classes:
            yield "columns point outside of what is stored"
    elif isinstance(module, RidgeStats) and not _can_be_covariance(module.gram):
        yield "the Gram matrix is not one of any features"
    elif isinstance(module, RecursiveRidge) and not (
        _can_be_covariance(module.inverse) and bool((module.inverse.diagonal() > 0).all())
    ):
        yield "the inverse is not one of any features"


def _faults_of_statistics(stats: ClassStats) -> Iterator[str]:
    unmet = stats.count == 0
    if bool(stats.mean[unmet].any()) or (stats.spread != "shared" and bool(stats.scatter[unmet].any())):
        yield "a class without images has statistics"
    if stats.spread == "diagonal" and not _no_negative(stats.scatter):
        yield "a negative variance"
    if stats.spread in ("full", "shared") and not _can_be_covariance(stats.scatter, least=_FORGOTTEN):
        yield "a negative variance, or a matrix that is no covariance"


def _faults_of_shapes(shapes: ClassShapes) -> Iterator[str]:
    rows, dim = shapes.row, shapes.dim
    if len(rows) and int(rows.max()) >= len(shapes.triangle):
        yield "row points outside of what is stored"
    opened = rows[rows >= 0]
    if len(torch.unique(opened)) != len(opened):
        yield "two classes have one row"
    for triangle in shapes.triangle.split(64):
        dense = triangle.new_zeros(len(triangle), dim * dim)
        dense[:, shapes._place] = triangle
        if not _can_be_covariance(dense.view(-1, dim, dim), symmetric=False):
            yield "a negative variance, or a matrix that is no covariance"
    if not _no_negative(shapes.weights):
        yield "a negative variance"
    if bool(shapes.reference.any()) and bool((shapes.reference.diagonal() <= 0).any()):
        yield "the reference is no Cholesky factor"


def _no_negative(variances: Tensor) -> bool:
    """Nothing below 0 but by rounding."""
    return not variances.numel() or float(variances.min()) >= -1e-9 * float(variances.abs().max())


def _can_be_covariance(matrix: Tensor, *, symmetric: bool = True, least: float = 0.0) -> bool:
    """Whether [..., d, d] is symmetric, with variances and with covariances that these variances allow.

    |c_ij| <= sqrt(c_ii c_jj) is cheap and finds a value that was put in; whether all eigenvalues are positive is not
    asked. With ``symmetric`` False of each pair of entries only one need be there. Up to ``least`` is rounding.
    """
    if not matrix.numel():
        return True
    small = max(least, _ROUNDING * float(matrix.abs().max()))
    for part in matrix.view(-1, *matrix.shape[-2:]).split(64):
        spread = part.diagonal(dim1=-2, dim2=-1)
        roots = spread.clamp_min(0).sqrt()
        most = roots[:, :, None] * roots[:, None, :]
        if float(spread.min()) < -small or not bool((part.abs() <= most * (1 + 1e-3) + small).all()):
            return False
        if symmetric and float((part - part.mT).abs().max()) > small:
            return False
    return True
