"""Read the pickle files of public data sets without running code from them.

A pickle can call any function of any module. Here only the names that plain numpy arrays need are allowed; every other
name raises :class:`UnsafePickleError` before anything is called. Our own files are safetensors and JSON.
"""

import os
import pickle
import pickletools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from nocl.plumbing.files import DamagedFileError

_DEEPEST = 20  # dictionaries within dictionaries


class UnsafePickleError(ValueError):
    """A pickle with more than arrays, numbers, text and their containers."""


def read_pickle(path: Path) -> Any:
    """The content of a pickle of Python 2 or 3, numpy 1 or 2; text keys are ``str`` in every case."""
    try:
        with open(path, "rb") as file:
            _check_memo(file)
            # latin1 is how numpy recovers the bytes of an array that Python 2 stored as a string
            content = _ArrayUnpickler(file, encoding="latin1").load()
        return _with_text_keys(content)
    except UnsafePickleError as error:
        raise UnsafePickleError(f"{path}: {error}") from None
    except OSError:
        raise
    except Exception as error:  # damaged pickles raise many kinds of errors
        raise DamagedFileError(f"{path}: not a whole pickle ({error}); copy it again") from error


def _check_memo(file: BinaryIO) -> None:
    """Refuse a pickle that numbers an object beyond its own size: Python would make room for all numbers below."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    for operation, number, _ in pickletools.genops(file):
        if "PUT" in operation.name and not 0 <= int(number or 0) <= size:
            raise UnsafePickleError(f"the pickle numbers an object {number}; get the file from its official source")
    file.seek(0)


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise UnsafePickleError(
                f"the pickle asks for {module}.{name}, which no data set needs; nothing was run. "
                "Get the file from its official source"
            ) from None

    def persistent_load(self, pid: Any) -> Any:
        raise UnsafePickleError(f"the pickle refers to an outside object {pid!r}; get it from its official source")


class _Callable:
    """A function that a pickle may call but neither inspect nor change."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise UnsafePickleError("the pickle tries to change a function; get it from its official source")


class _TypeCode:
    """Stands for ``numpy.dtype``: plain numbers and text only. numpy's own would take types that hold pointers."""

    def __init__(self, code: str | bytes, *_: Any) -> None:
        self._code = code.decode() if isinstance(code, bytes) else code
        self._order = "="
        if not re.fullmatch(r"b1|[iu][1248]|f[248]|[SU]\d{1,4}", self._code):
            raise UnsafePickleError(f"the pickle has an array of type {self._code!r}; only numbers and text are read")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = state[1].decode() if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "|", "=") or any(part is not None for part in state[2:5]):
            raise UnsafePickleError("the pickle has an array of records; only numbers and text are read")
        self._order = order

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self._order + self._code)


class _Array(np.ndarray[Any, Any]):
    """An array under construction: empty until the pickle gives it shape, type and content."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        shape, kind, is_fortran, raw = state[-4:]
        super().__setstate__((1, shape, kind.dtype, bool(is_fortran), _bytes(raw)))  # type: ignore[arg-type]


def _start_array(kind: object, *_: Any) -> _Array:
    """``numpy.core.multiarray._reconstruct``: the state that makes it an array comes next."""
    if kind is not _ALLOWED["numpy", "ndarray"]:
        raise UnsafePickleError("the pickle has an array of a special kind; only numpy.ndarray is read")
    return np.ndarray.__new__(_Array, (0,), np.uint8)


def _from_buffer(raw: bytes, kind: _TypeCode, shape: tuple[int, ...], order: str) -> NDArray[Any]:
    """``numpy._core.numeric._frombuffer``: a contiguous array as protocol 5 writes it."""
    return np.frombuffer(_bytes(raw), kind.dtype).reshape(shape, order="F" if order == "F" else "C")


def _scalar(kind: _TypeCode, raw: bytes | str) -> Any:
    """``numpy.core.multiarray.scalar``: one number."""
    return np.frombuffer(_bytes(raw), kind.dtype, count=1)[0]


def _latin1(text: str, encoding: str) -> bytes:
    """The one use of ``_codecs.encode`` in pickles: Python 3 writing bytes for Python 2."""
    if encoding != "latin1":
        raise UnsafePickleError(f"the pickle asks for the codec {encoding!r}; only latin1 is read")
    return _bytes(text)


def _bytes(raw: bytes | bytearray | str) -> bytes:
    """Bytes that Python 2 stored as text, or bytes; a list, as arrays of objects have, is refused."""
    if not isinstance(raw, bytes | bytearray | str):
        raise UnsafePickleError(f"the pickle has an array made of {type(raw).__name__}; only numbers are read")
    return raw.encode("latin1") if isinstance(raw, str) else bytes(raw)


def _not_called(*_: Any) -> None:
    raise UnsafePickleError("the pickle calls numpy.ndarray, which no data set does; get it from its official source")


_ALLOWED: dict[tuple[str, str], _Callable] = {
    ("numpy", "ndarray"): _Callable(_not_called),  # only its name is used, never called
    ("numpy", "dtype"): _Callable(_TypeCode),
    ("numpy.core.multiarray", "_reconstruct"): _Callable(_start_array),
    ("numpy._core.multiarray", "_reconstruct"): _Callable(_start_array),
    ("numpy.core.multiarray", "scalar"): _Callable(_scalar),
    ("numpy._core.multiarray", "scalar"): _Callable(_scalar),
    ("numpy.core.numeric", "_frombuffer"): _Callable(_from_buffer),
    ("numpy._core.numeric", "_frombuffer"): _Callable(_from_buffer),
    ("_codecs", "encode"): _Callable(_latin1),
}


def _with_text_keys(value: Any) -> Any:
    """The same dictionary with its byte keys as text, at every level, and plain arrays."""
    return _Translation().of(value, 0)


class _Translation:
    """Each dictionary is translated once, however often it is referred to, so that work grows with the file alone."""

    def __init__(self) -> None:
        self._done: dict[int, Any] = {}
        self._open: set[int] = set()

    def of(self, value: Any, depth: int) -> Any:
        if isinstance(value, _Array):
            return value.view(np.ndarray)
        if not isinstance(value, dict):
            return value
        if id(value) in self._done:
            return self._done[id(value)]
        if id(value) in self._open or depth > _DEEPEST:
            raise UnsafePickleError("the pickle has dictionaries within themselves or nested beyond any use")
        self._open.add(id(value))
        made = {
            (key.decode("latin1") if isinstance(key, bytes) else key): self.of(item, depth + 1)
            for key, item in value.items()
        }
        self._open.discard(id(value))
        self._done[id(value)] = made
        return made
