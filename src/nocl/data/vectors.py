"""A file of embeddings: ``.npz`` with the vectors ``X`` [n, d], their labels ``y`` [n] and, for whole numbers in ``y``,
the class names ``classes`` they point at. ``files`` and ``about`` may say where the vectors come from.

``X`` is mapped into memory where the file is not compressed, so that many processes can read parts of a file that
is larger than memory. Nothing is unpickled.
"""

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nocl.plumbing.files import DamagedFileError
from nocl.plumbing.types import JSON

_USED = ("X", "y", "classes", "about")


@dataclass(frozen=True, eq=False)
class Vectors:
    """Vectors with the names of their classes; row i is of class ``class_names[labels[i]]``."""

    path: Path
    x: NDArray[Any]  # float [n, d]
    labels: NDArray[np.int64]  # [n]
    class_names: tuple[str, ...]
    about: dict[str, JSON]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def names(self) -> NDArray[np.str_]:
        """The class name of each row [n]: the ``y`` of an estimator."""
        return np.array(self.class_names, dtype=np.str_)[self.labels]


def read_vectors(path: Path) -> Vectors:
    """Open an embeddings file; the vectors themselves are read when they are used."""
    arrays = _arrays(path)
    x, y = arrays.get("X"), arrays.get("y")
    if x is None or y is None:
        raise DamagedFileError(f"{path}: needs the arrays X and y; it has {', '.join(sorted(arrays)) or 'none'}")
    if x.ndim != 2 or not np.issubdtype(x.dtype, np.floating) or y.shape != (len(x),):
        raise DamagedFileError(
            f"{path}: X must be float [n, d] and y [n], not {x.dtype} {list(x.shape)} and {list(y.shape)}"
        )
    labels, class_names = _labels(path, y, arrays.get("classes"))
    return Vectors(path, x, labels, class_names, _about(arrays.get("about")))


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of the file by name; of those that are not used, only the name is read."""
    arrays: dict[str, Any] = {}
    try:
        with open(path, "rb") as file:
            if file.read(6) == b"\x93NUMPY":
                raise DamagedFileError(f"{path}: one array, not an archive of arrays; write it with np.savez")
        with np.load(path, allow_pickle=False) as archive:
            for name in archive.files:
                mapped = _mapped(path) if name == "X" else None
                arrays[name] = archive[name] if mapped is None and name in _USED else mapped
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such file") from None
    except (DamagedFileError, PermissionError, IsADirectoryError):
        raise
    except Exception as error:  # readers of archives and arrays raise many kinds of errors for damaged files
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DamagedFileError(f"{path}: not a whole .npz file of plain arrays ({reason})") from error
    for name, value in arrays.items():
        if name in _USED and not isinstance(value, np.ndarray):
            raise DamagedFileError(f"{path}: {name} is not an array; write the file with np.savez")
    return arrays


def _labels(path: Path, y: NDArray[Any], classes: NDArray[Any] | None) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    if classes is None:
        if np.issubdtype(y.dtype, np.inexact) and not np.isfinite(y).all():
            row = int(np.flatnonzero(~np.isfinite(y))[0])
            raise DamagedFileError(f"{path}: y[{row}] is {y[row]}, which is no class; give it one or remove the row")
        names, found = np.unique(_text(path, "y", y), return_inverse=True)
        return found.astype(np.int64), tuple(str(name) for name in names)
    if not np.issubdtype(y.dtype, np.integer):
        raise DamagedFileError(f"{path}: with classes, y must be whole numbers that point at them, not {y.dtype}")
    if classes.ndim != 1 or classes.dtype.kind not in "USiu":
        raise DamagedFileError(
            f"{path}: classes must be text or whole numbers [k], not {classes.dtype} {list(classes.shape)}"
        )
    if len(y) and not (y.min() >= 0 and y.max() < len(classes)):
        raise DamagedFileError(f"{path}: y runs from {y.min()} to {y.max()}, but there are {len(classes)} classes")
    return y.astype(np.int64), tuple(str(name) for name in _text(path, "classes", classes))


def _text(path: Path, name: str, values: NDArray[Any]) -> NDArray[Any]:
    """The values, byte strings decoded."""
    try:
        return np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values
    except UnicodeDecodeError as error:
        raise DamagedFileError(f"{path}: {name} holds bytes that are not UTF-8 ({error}); write it as text") from None


def _about(value: NDArray[Any] | None) -> dict[str, JSON]:
    try:
        found = {} if value is None else json.loads(str(value))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _mapped(path: Path) -> NDArray[Any] | None:
    """``X`` as a map of the file; None if it is compressed or not laid out plainly."""
    with zipfile.ZipFile(path) as archive:
        if "X.npy" not in archive.namelist():
            return None
        entry = archive.getinfo("X.npy")
    if entry.compress_type != zipfile.ZIP_STORED:
        return None
    with open(path, "rb") as file:
        file.seek(entry.header_offset + 26)  # of the entry's own header: two lengths, then what they measure
        lengths = np.frombuffer(file.read(4), "<u2")
        file.seek(int(lengths.sum()), 1)
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, by_column, dtype = read(file)
        if by_column or dtype.hasobject:
            return None
        return np.memmap(path, dtype, "r", file.tell(), shape)
