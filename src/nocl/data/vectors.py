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
    try:
        with np.load(path, allow_pickle=False) as archive:
            kept = {name: archive[name] for name in archive.files if name not in ("X", "files")}
            x = _mapped(path) if "X" in archive.files else None
            x = archive["X"] if x is None and "X" in archive.files else x
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such file") from None
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, AttributeError) as error:
        raise DamagedFileError(f"{path}: not a whole .npz file of plain arrays ({error})") from error
    if x is None or "y" not in kept:
        raise DamagedFileError(f"{path}: needs the arrays X and y; it has {', '.join(sorted(kept)) or 'none'}")
    if x.ndim != 2 or not np.issubdtype(x.dtype, np.floating) or kept["y"].shape != (len(x),):
        raise DamagedFileError(
            f"{path}: X must be float [n, d] and y [n], not {x.dtype} {list(x.shape)} and {list(kept['y'].shape)}"
        )
    labels, class_names = _labels(path, kept["y"], kept.get("classes"))
    return Vectors(path, x, labels, class_names, _about(kept.get("about")))


def _labels(path: Path, y: NDArray[Any], classes: NDArray[Any] | None) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    if classes is None:
        names, found = np.unique(y, return_inverse=True)
        return found.astype(np.int64), tuple(str(name) for name in names)
    if not np.issubdtype(y.dtype, np.integer):
        raise DamagedFileError(f"{path}: with classes, y must be whole numbers that point at them, not {y.dtype}")
    if len(y) and not (y.min() >= 0 and y.max() < len(classes)):
        raise DamagedFileError(f"{path}: y runs from {y.min()} to {y.max()}, but there are {len(classes)} classes")
    return y.astype(np.int64), tuple(str(name) for name in classes)


def _about(value: NDArray[Any] | None) -> dict[str, JSON]:
    try:
        found = {} if value is None else json.loads(str(value))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _mapped(path: Path) -> NDArray[Any] | None:
    """``X`` as a map of the file; None if it is compressed or not laid out plainly."""
    with zipfile.ZipFile(path) as archive:
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
