"""Every array, list of numbers and text in this process that changed, found through Python's garbage collector.

What a learner hides in another module, a cache, a thread's own storage or a default argument is somewhere in memory as
well. So the whole process is looked at before and after the images were shown, and what is new or changed is compared
with them (:mod:`nocl.checks.hoarding`). Memory of C libraries and of other processes is out of reach.
"""

import array
import gc
import io
import mmap
import types
import zlib
from collections.abc import Iterator
from itertools import compress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_FEWEST = 16  # numbers; less is no part of an image
_SHORTEST = 256  # characters of a text
_BUFFERS = (bytes, bytearray, memoryview, array.array, mmap.mmap)
_SKIPPED = (types.FunctionType, types.FrameType, type, types.CodeType)  # what they hold is listed by itself
_LEAST: dict[type[Any], int] = {str: _SHORTEST, list: _FEWEST, tuple: _FEWEST, bytes: _FEWEST}
Prints = dict[int, int]


class _Derived(dict[type[Any], bool]):
    """Which types derive from the given ones. It is asked of millions of objects, so it remembers."""

    def __init__(self, *bases: type[Any]) -> None:
        self.bases = bases

    def __missing__(self, kind: type[Any]) -> bool:
        self[kind] = issubclass(kind, self.bases)
        return self[kind]


_skipped = _Derived(*_SKIPPED)
_holders = _Derived(*_BUFFERS, np.ndarray, str, list, tuple, io.BytesIO, Tensor)


def prints() -> Prints:
    """A checksum of everything that could hold numbers, by its identity."""
    return {id(holder): checksum(numbers) for holder, numbers in _all()}


def changed(before: Prints, own: set[int]) -> Iterator[tuple[object, NDArray[Any]]]:
    """What is new or different since then, with its numbers; ``own`` are addresses of memory that the check made."""
    for holder, numbers in _all():
        if before.get(id(holder)) == checksum(numbers):
            continue
        if isinstance(holder, Tensor) and holder.untyped_storage().data_ptr() in own:
            continue
        yield holder, numbers


def checksum(numbers: NDArray[Any]) -> int:
    """Tells whether numbers are the same as before."""
    return zlib.crc32(np.ascontiguousarray(numbers).tobytes())


def _all() -> list[tuple[object, NDArray[Any]]]:
    """Everything in memory that is made of numbers, each once."""
    gc.collect()
    owners = [owner for owner in gc.get_objects() if not _skipped[type(owner)]]
    found = _long_enough(owners)
    for _ in range(4):  # the collector does not list dictionaries and tuples of plain values by themselves
        parts = gc.get_referents(*owners)
        found |= _long_enough(parts)
        plain = compress(parts, map((dict, tuple).__contains__, map(type, parts)))
        owners = list({id(part): part for part in plain if not gc.is_tracked(part)}.values())
        if not owners:
            break
    pairs = ((holder, _readable(holder)) for holder in found.values())
    return [(holder, numbers) for holder, numbers in pairs if numbers is not None and numbers.size >= _FEWEST]


def _long_enough(objects: list[Any]) -> dict[int, Any]:
    """Those that may hold numbers, by identity, without the short ones."""
    holders = compress(objects, map(_holders.__getitem__, map(type, objects)))
    return {id(item): item for item in holders if type(item) not in _LEAST or len(item) >= _LEAST[type(item)]}


def _readable(value: Any) -> NDArray[Any] | None:
    """Its numbers, or None where it has none that can be read: a closed file, a stand-in for a tensor in an export."""
    try:
        return _numbers(value)
    except (RuntimeError, TypeError, ValueError, BufferError):
        return None


def _numbers(value: Any) -> NDArray[Any] | None:
    """Numbers, if the value is made of them."""
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.device.type != "cpu":
            return None
        plain = value.detach()
        return (plain.float() if plain.is_floating_point() else plain).numpy()
    if isinstance(value, np.ndarray):
        return value if value.dtype.kind in "biuf" else None
    if isinstance(value, str):
        is_binary = len(value) >= _SHORTEST and not value.isprintable()
        return np.frombuffer(value.encode("latin1", "replace"), np.uint8) if is_binary else None
    if isinstance(value, io.BytesIO):
        return np.frombuffer(value.getvalue(), np.uint8)
    if isinstance(value, _BUFFERS):
        return np.frombuffer(bytes(value), np.uint8)
    return _from_list(value) if len(value) >= _FEWEST else None


def _from_list(value: list[Any] | tuple[Any, ...]) -> NDArray[Any] | None:
    first = value[0]
    if type(first) in (int, float) or (type(first) in (list, tuple) and first and type(first[0]) in (int, float)):
        try:
            return np.array(value, dtype=np.float64)
        except (ValueError, TypeError, OverflowError):  # not all are numbers
            return None
    return None


def place(holder: object) -> str:
    """Who holds it, as far as that can be said; the collector takes a tenth of a second to tell."""
    owners = [owner for owner in gc.get_referrers(holder) if not (type(owner) is tuple and owner[0] is holder)]
    for owner in owners:
        if type(owner) is dict and isinstance(name := owner.get("__name__"), str):
            return f"the process, in the module {name}"
    kinds = {type(owner).__qualname__ for owner in owners} - {"frame", "list_iterator"}
    return f"the process, as {type(holder).__qualname__} in {' or '.join(sorted(kinds)[:3]) or 'something'}"
