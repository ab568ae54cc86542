"""A learner as one file, with its class, parameters and origin in the header, and back again with every check.

What a file names is imported only if the caller trusts it. A learner is built only as large as the file's tensors
justify, and what was loaded must make sense: finite statistics, no negative variance, classes that are there.
"""

import re
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import Tensor

from nocl.learner import Learner
from nocl.methods import METHODS, name_of, remake
from nocl.methods._meaning import check_meaning
from nocl.nets import split_side
from nocl.plumbing.files import DamagedFileError, read_tensors, write_atomically
from nocl.plumbing.registry import importing_only
from nocl.plumbing.sealed import NoLargerThan, opened, sealed_bytes
from nocl.plumbing.types import JSON
from nocl.plumbing.version import __version__

KIND = "nocl learner"
FORMAT = 2  # 1 had no digest
Trust = bool | Collection[str]  # True, or the names (``module:name``) that may be imported
# texts with a colon that name no code of others
_HARMLESS = re.compile(r"(timm:[\w.\-]{1,100}|features:\d{1,9})(@\d{1,4})?|steps:[\d,]{1,200}", re.ASCII)
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
        with NoLargerThan(tensors), only_trusted(trust):
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
    """Refuse a file that names code which does not ship with nocl, before anything is built from it."""
    if trust is True:
        return
    named = {text for text in texts({**params, "weights": None}) if ":" in text and not _HARMLESS.fullmatch(text)}
    if method not in METHODS:
        named.add(method)
    unknown = sorted(name for name in named if not _trusted_names(trust) & {name, split_side(name)[0]})
    if unknown:
        raise DamagedFileError(
            f"{path} names {', '.join(map(repr, unknown))}, which does not ship with nocl; loading would run its code: "
            "load it with trust=True (--trust) only if you know who made it"
        )


def only_trusted(trust: Trust) -> AbstractContextManager[None]:
    """While active, nothing is imported that is not trusted, whatever a header says and wherever it says it."""
    return nullcontext() if trust is True else importing_only(_trusted_names(trust))


def _trusted_names(trust: Trust) -> set[str]:
    given = () if isinstance(trust, bool) else trust
    shipped = {cls.base_recipe.objective for cls in METHODS.values()}
    return {*shipped, *given, *(split_side(name)[0] for name in given)}


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


def texts(value: JSON) -> Iterator[str]:
    """Every text in a JSON value, names of entries too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for item in value.values():
            yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)
