"""Read the pickles in which public data sets come, without letting them run anything.

A pickle may name any function of any module and have it called. Here the only names answered are those
that a plain numpy array consists of; every other name stops the reading with :class:`UnsafePickleError`
before anything is called. Not for files of our own: those are safetensors and JSON.
"""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nocl.files import DamagedFileError


class UnsafePickleError(ValueError):
    """A pickle that asks for more than arrays, numbers, text and their containers."""


def read_pickle(path: Path) -> Any:
    """The content of a pickle of Python 2 or 3, numpy 1 or 2; text keys are ``str`` in every case."""
    try:
        with open(path, "rb") as file:
            # latin1 is how numpy recovers the bytes of an array that Python 2 stored as a string
            content = _ArrayUnpickler(file, encoding="latin1").load()
    except UnsafePickleError as error:
        raise UnsafePickleError(f"{path}: {error}") from None
    except OSError:
        raise
    except Exception as error:  # damaged pickles fail in any of a dozen ways, all of them meaning the same
        raise DamagedFileError(f"{path}: not a whole pickle ({error}); copy it again") from error
    return _with_text_keys(content)


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


def _array(kind: type, shape: tuple[int, ...], typecode: bytes | str) -> NDArray[Any]:
    """What ``numpy.core.multiarray._reconstruct`` does for plain arrays: an empty one, filled next."""
    if kind is not np.ndarray:
        raise UnsafePickleError(f"the pickle asks for an array of type {kind!r}; only numpy.ndarray is read")
    text = typecode.decode() if isinstance(typecode, bytes) else typecode
    return np.ndarray.__new__(np.ndarray, shape, np.dtype(text))


def _from_buffer(raw: bytes, kind: np.dtype[Any], shape: tuple[int, ...], order: str) -> NDArray[Any]:
    """A contiguous array as protocol 5 writes it."""
    return np.frombuffer(raw, kind).reshape(shape, order="F" if order == "F" else "C")


def _latin1(text: str, encoding: str) -> bytes:
    """The one use of ``_codecs.encode`` in pickles: Python 3 writing bytes for Python 2."""
    if encoding != "latin1":
        raise UnsafePickleError(f"the pickle asks for the codec {encoding!r}; only latin1 is read")
    return text.encode("latin1")


def _scalar(kind: np.dtype[Any], raw: bytes | str) -> Any:
    """One number of a numpy type."""
    if kind.hasobject:
        raise UnsafePickleError(f"the pickle asks for a number of type {kind}; only plain numbers are read")
    raw = raw.encode("latin1") if isinstance(raw, str) else raw
    return np.frombuffer(raw, kind, count=1)[0]


_ALLOWED: dict[tuple[str, str], Callable[..., Any] | type] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _array,
    ("numpy._core.multiarray", "_reconstruct"): _array,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("numpy._core.numeric", "_frombuffer"): _from_buffer,
    ("_codecs", "encode"): _latin1,
}


def _with_text_keys(value: Any) -> Any:
    """The same dictionary with its byte keys as text, at every level."""
    if not isinstance(value, dict):
        return value
    return {
        (key.decode("latin1") if isinstance(key, bytes) else key): _with_text_keys(item) for key, item in value.items()
    }
