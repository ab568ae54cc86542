"""A learner as one file, with its class, parameters and origin in the header, and back again with every check.

What a file names is imported only if the caller trusts it. A learner is built only as large as the file's tensors
justify, and what was loaded must make sense: finite statistics, no negative variance, classes that are there.
"""

import re
from collections.abc import Collection, Iterator
from pathlib import Path

import torch
from torch import Tensor

from nocl.learner import Learner
from nocl.methods import METHODS, name_of, remake
from nocl.methods.rda.covariances import ClassShapes
from nocl.plumbing.files import DamagedFileError, read_tensors, write_atomically
from nocl.plumbing.sealed import NoLargerThan, opened, sealed_bytes
from nocl.plumbing.types import JSON
from nocl.plumbing.version import __version__
from nocl.stats.class_stats import ClassStats
from nocl.stats.memory import Memory

KIND = "nocl learner"
FORMAT = 2  # 1 had no digest
Trust = bool | Collection[str]  # True, or the names (``module:name``) that may be imported
_OWN_CODE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_UNFIT = (RuntimeError, KeyError, ValueError, TypeError, IndexError, OverflowError, MemoryError, AttributeError)


def save(learner: Learner, path: Path, extra: dict[str, JSON] | None = None) -> None:
    """Write everything learned, whole or not at all; ``extra`` is kept beside it."""
    header: dict[str, JSON] = {
        "kind": KIND,
        "format": FORMAT,
        "nocl": __version__,
        "method": name_of(learner),
        "params": learner.get_params(),
        "base": learner.base_,
        "log": learner.log_,
        "extra": extra or {},
    }
    content = sealed_bytes(learner.state_dict(), header)
    write_atomically(path, lambda file: file.write(content))


def load(path: Path, *, trust: Trust = False, device: str = "cpu") -> Learner:
    """The learner as it was when saved: it predicts and goes on learning as if never interrupted.

    ``trust`` allows a method or network of your own (``module:name``), whose code is then imported and run: True for
    any, or the names that you expect.
    """
    return load_with_extra(path, trust=trust, device=device)[0]


def load_with_extra(path: Path, *, trust: Trust = False, device: str = "cpu") -> tuple[Learner, dict[str, JSON]]:
    """The learner and what was kept beside it."""
    tensors, outer = read_tensors(path)
    if outer.get("kind") == KIND and outer.get("format") == 1:  # the first edition, without a digest
        header = outer
    elif "nocl" not in outer or not isinstance(outer["nocl"], dict):
        raise DamagedFileError(f"{path} is not a saved learner (kind {outer.get('kind')!r})")
    else:
        header = opened(path, KIND, outer, tensors)
        if header["format"] != FORMAT:
            raise DamagedFileError(f"{path} has format {header['format']}, this nocl reads {FORMAT}: update nocl")
    method, params = header.get("method"), header.get("params")
    base, curves, extra = header.get("base"), header.get("log"), header.get("extra")
    if not (isinstance(method, str) and isinstance(params, dict) and isinstance(extra, dict)):
        raise DamagedFileError(f"{path}: the header lacks a method or its parameters")
    check_trust(path, method, params, trust)
    try:
        with NoLargerThan(tensors):
            learner = remake(method, params)
            check_types(path, learner, tensors)
            learner.load_state_dict(tensors)
    except DamagedFileError:
        raise
    except _UNFIT as error:
        raise DamagedFileError(f"{path}: the tensors do not fit {method} with the saved parameters: {error}") from error
    check_meaning(path, learner)
    learner.base_ = base if isinstance(base, dict) else {}
    learner.log_ = curves if isinstance(curves, dict) else {}
    return learner.eval().to(device), extra


def check_trust(path: Path, method: str, params: dict[str, JSON], trust: Trust) -> None:
    """Refuse a file that names code which does not ship with nocl, before it is imported."""
    if trust is True:
        return
    named = {name for name in _texts(params) if _OWN_CODE.fullmatch(name) and not name.startswith("timm:")}
    if method not in METHODS:
        named.add(method)
    unknown = sorted(named - set(trust or ()))
    if unknown:
        raise DamagedFileError(
            f"{path} names {', '.join(map(repr, unknown))}, which does not ship with nocl; loading would run its code: "
            "load it with trust=True (--trust) only if you know who made it"
        )


def check_types(path: Path, learner: Learner, tensors: dict[str, Tensor]) -> None:
    """The classes are a list without repetition, and every tensor is of the type that the learner has."""
    classes = tensors.get("classes_")
    if classes is None or classes.dtype != torch.int64 or classes.ndim != 1:
        raise DamagedFileError(f"{path}: the list of classes is missing or of another type")
    if len(torch.unique(classes)) != len(classes):
        raise DamagedFileError(f"{path}: a class occurs twice")
    for name, tensor in learner.state_dict().items():
        if name in tensors and tensors[name].dtype != tensor.dtype:
            raise DamagedFileError(f"{path}: {name} is {tensors[name].dtype}, not {tensor.dtype}")


def check_meaning(path: Path, learner: Learner) -> None:
    """What was loaded can be what a learner had: no NaN, no negative variance, no class or row that is not there."""
    n_classes = len(learner.classes_)
    if not 0 <= int(learner.n_base_) <= n_classes:
        raise DamagedFileError(f"{path}: {int(learner.n_base_)} base classes among {n_classes} classes")
    network = learner.network
    if not bool(torch.isfinite(network.mean).all()) or not bool(
        (torch.isfinite(network.std) & (network.std > 0)).all()
    ):
        raise DamagedFileError(f"{path}: the network's mean or standard deviation of pixels is not possible")
    for name, module in learner.named_modules():
        if isinstance(module, ClassStats):
            _check_statistics(path, name, module)
        if isinstance(module, ClassShapes):
            _check_rows(path, f"{name}.row", module.row, -1, len(module.triangle))
        if isinstance(module, Memory):
            _check_rows(path, f"{name}.filled", module.filled, 0, len(module.columns) + 1)
            _check_rows(path, f"{name}.columns", module.columns[: int(module.filled)], 0, n_classes)
    own = learner.network_state_names()
    for name, tensor in learner.named_buffers():
        if name not in own and tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise DamagedFileError(f"{path}: {name} holds NaN or infinity")


def _check_rows(path: Path, name: str, rows: Tensor, lowest: int, end: int) -> None:
    if rows.numel() and not (lowest <= int(rows.min()) and int(rows.max()) < end):
        raise DamagedFileError(f"{path}: {name} points outside of what is stored")


def _check_statistics(path: Path, name: str, stats: ClassStats) -> None:
    if bool((stats.count < 0).any()):
        raise DamagedFileError(f"{path}: a class has a negative count")
    variances = stats.scatter
    if stats.spread in ("full", "shared"):
        variances = stats.scatter.diagonal(dim1=-2, dim2=-1)
    scale = float(variances.abs().max()) if variances.numel() else 0.0
    if variances.numel() and float(variances.min()) < -1e-9 * scale:  # below rounding
        raise DamagedFileError(f"{path}: {name} holds a negative variance")


def _texts(value: JSON) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)
