"""Search for images in everything a learner refers to: state, attributes, class, module, closures.

The search finds pixels that are stored as numbers: scaled or shifted, in few bits, at half the size, backwards, as
whole rows or parts of rows, in any array, list or bytes. It does not find pixels that were encrypted, compressed,
permuted one by one or trained into weights. :mod:`nocl.checks.everywhere` adds whatever else changed in this process.
"""

import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nocl.learner import Learner

_RUN = 16  # neighbouring pixels that must agree; shorter runs agree by chance
_ALIKE = 0.9998  # correlation; free of scale and offset, so normalised pixels are found too
# A longer run needs to agree less: pixels of 3 bits are found too. Steps, as in tables of indices, agree up to 0.977
# with rows of the checks' images.
_ROW, _ROW_ALIKE = 32, 0.985
_MOST = 4_000_000  # values of one array that are looked at
_AT_ONCE = 1 << 10  # runs compared at once; more do not fit into a processor's cache
Holder = TypeVar("Holder")


def reachable(learner: Learner) -> Iterator[tuple[str, NDArray[Any]]]:
    """Every array of numbers that the learner refers to, with its place."""
    yield from _walk("state", learner.state_dict(), set(), 0)
    seen: set[int] = set()
    for name, module in learner.named_modules():
        yield from _walk(name or "learner", vars(module), seen, 0)
    for cls in type(learner).__mro__:
        if _is_own(cls.__module__):
            yield from _walk(cls.__qualname__, vars(cls), seen, 0)
            yield from _walk(cls.__module__, vars(sys.modules[cls.__module__]), seen, 0)


def find_image(images: Tensor, arrays: Iterable[tuple[Holder, NDArray[Any]]]) -> Holder | None:
    """Who holds one of the images uint8 [B, 3, H, W], whole or in part; None if nobody does."""
    probes = [probe for image in images.numpy().astype(np.float32) for probe in _probes(image)]
    short, long = (_normal([probe for probe in probes if len(probe) == length]) for length in (_RUN, _ROW))
    looked_at: set[tuple[Any, ...]] = set()
    for holder, array in arrays:
        place = (array.__array_interface__["data"][0], array.shape, array.dtype)
        if place in looked_at:  # the state and the buffers are the same memory
            continue
        looked_at.add(place)
        for values in _orders(array):
            if _has(values, short, _ALIKE) or _has(values, long, _ROW_ALIKE):
                return holder
    return None


def image_shaped(learner: Learner, side: int) -> str | None:
    """The name and shape of a tensor that has the shape of images of that side; None if there is none."""
    for name, tensor in _held_tensors(learner):
        shape = tuple(tensor.shape)
        if shape[-3:] in ((3, side, side), (side, side, 3)) or shape[-1:] == (3 * side * side,):
            return f"{name} has the shape of images: {list(shape)}"
    return None


def _probes(image: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    """Runs of pixels in the orders in which memory may hold them: by row, by column, colours together, halved."""
    middle = image.shape[1] // 2
    start = image.shape[2] // 2 - _RUN // 2
    yield image[0, middle, start : start + _RUN]
    yield image[2, middle, start : start + _RUN]
    yield image[0, start : start + _RUN, middle]
    yield image[:, middle, start : start + _RUN].T.reshape(-1)[:_RUN]
    side = image.shape[1] // 2
    halves = image[:, : 2 * side, : 2 * side].reshape(3, side, 2, side, 2)
    yield halves.mean((2, 4))[0, side // 2, :_RUN]
    yield halves[0, side // 2, 0, :_RUN, 0]
    yield image[0, middle, :_ROW]
    yield image[2, middle, :_ROW]


def _normal(probes: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Probes as rows of mean 0 and length 1, each also backwards; a run of one colour is left out."""
    rows = [probe - probe.mean() for probe in probes if probe.std() > 1]
    rows = [row / np.linalg.norm(row) for row in rows]
    return np.array([*rows, *(row[::-1] for row in rows)], dtype=np.float32)


def _orders(array: NDArray[Any]) -> Iterator[NDArray[np.float32]]:
    """The values in the order of memory, every third of them (one colour), and of a table in the other order."""
    for plain in (array, array.T) if array.ndim == 2 else (array,):
        with np.errstate(over="ignore"):
            values = np.asarray(plain.reshape(-1)[:_MOST], dtype=np.float32)
        values = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
        yield values
        yield from (values[colour::3] for colour in range(3))


def _has(values: NDArray[np.float32], wanted: NDArray[np.float32], alike: float) -> bool:
    """True if some run of the values is a probe (a row of ``wanted``) times a factor plus an offset."""
    if not len(wanted) or len(values) < wanted.shape[1]:
        return False
    windows = np.lib.stride_tricks.sliding_window_view(values, wanted.shape[1])
    for start in range(0, len(windows), _AT_ONCE):
        part = windows[start : start + _AT_ONCE]
        part = part - part.mean(1, keepdims=True)
        if not part.any():  # all of one value, such as the empty rows of a table
            continue
        part /= np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-12)
        likeness = part @ wanted.T
        if likeness.max() > alike or likeness.min() < -alike:
            return True
    return False


def _is_own(module: str) -> bool:
    """True if a module belongs to the method and not to a library."""
    return module.split(".")[0] not in ("torch", "builtins", "typing", "abc", "nocl") or ".methods" in module


def _walk(where: str, value: object, seen: set[int], depth: int) -> Iterator[tuple[str, NDArray[Any]]]:
    if id(value) in seen or depth > 6:
        return
    array = _numbers(value)
    if array is not None:
        yield where, array
        return
    if isinstance(value, str | bytes | int | float | type(None)):
        return
    seen.add(id(value))
    for name, item in _parts(value):
        yield from _walk(f"{where}.{name}", item, seen, depth + 1)


def _numbers(value: object) -> NDArray[Any] | None:
    """The value as an array, if it is numbers."""
    if isinstance(value, Tensor):
        plain = value.detach().cpu()
        return (plain.float() if plain.is_floating_point() else plain).numpy()
    if isinstance(value, np.ndarray):
        return value if value.dtype.kind in "biuf" else None
    if isinstance(value, bytes | bytearray | memoryview):
        return np.frombuffer(value, np.uint8)
    if isinstance(value, list | tuple) and len(value) >= _RUN and all(isinstance(i, int | float) for i in value):
        return np.array(value, dtype=np.float64)
    return None


def _parts(value: object) -> Iterator[tuple[str, object]]:
    """The objects that an object refers to: items, attributes, a function's defaults and closure."""
    if isinstance(value, dict):
        yield from ((str(key)[:40], item) for key, item in list(value.items()))
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((str(i), item) for i, item in enumerate(value))
    elif isinstance(value, types.FunctionType):
        yield from (("default", item) for item in value.__defaults__ or ())
        for cell in value.__closure__ or ():
            try:
                yield "closure", cell.cell_contents
            except ValueError:  # not filled yet
                continue
    elif isinstance(value, types.MethodType | staticmethod | classmethod):
        yield "function", value.__func__
        yield "self", getattr(value, "__self__", None)
    elif isinstance(value, types.ModuleType):
        return
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        yield from vars(value).items()
    elif hasattr(value, "getvalue"):
        yield "buffer", value.getvalue()
    elif hasattr(value, "__iter__") and hasattr(value, "__len__") and type(value).__module__ == "collections":
        yield from (("item", item) for item in list(value))


def _held_tensors(learner: Learner) -> Iterable[tuple[str, Tensor]]:
    """All tensors of a learner: its state, and tensors in plain attributes."""
    yield from learner.state_dict().items()
    for name, module in learner.named_modules():
        for attribute, value in vars(module).items():
            for item in _flat(value):
                yield f"{name}.{attribute}", item


def _flat(value: object, depth: int = 3) -> Iterable[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, np.ndarray):
        yield torch.from_numpy(np.ascontiguousarray(value))
    elif depth and isinstance(value, dict):
        for item in value.values():
            yield from _flat(item, depth - 1)
    elif depth and isinstance(value, list | tuple | set):
        for item in value:
            yield from _flat(item, depth - 1)
