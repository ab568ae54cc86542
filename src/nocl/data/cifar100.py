"""CIFAR-100 (Krizhevsky 2009): 50,000 train and 10,000 test images of 100 classes, 32x32."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nocl.data.images import Dataset, ImageSet, MissingDataError
from nocl.data.pickles import read_pickle
from nocl.plumbing.files import DamagedFileError

FOLDER = "cifar-100-python"
FILES = ("train", "test", "meta")
_PIXELS = 3 * 32 * 32


def cifar100(*, root: Path) -> Dataset:
    """CIFAR-100 from ``root/cifar-100-python/{train,test,meta}``, with its 100 fine labels."""
    folder = root / FOLDER
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise MissingDataError(
            f"CIFAR-100: {folder} has no {', '.join(missing)}; "
            f"`nocl data get cifar100 --root {root}` fetches it, "
            f"or set --root (NOCL_DATA) to the folder that holds {FOLDER}/"
        )
    names = _entry(read_pickle(folder / "meta"), "fine_label_names", folder / "meta")
    class_names = tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names)
    train, test = (_read(folder / name, len(class_names)) for name in ("train", "test"))
    return Dataset("cifar100", train, test, class_names)


def _read(path: Path, n_classes: int) -> ImageSet:
    content = read_pickle(path)
    pixels: NDArray[np.uint8] = _entry(content, "data", path)
    labels = np.asarray(_entry(content, "fine_labels", path), dtype=np.int64)
    if not isinstance(pixels, np.ndarray) or pixels.shape != (len(labels), _PIXELS) or pixels.dtype != np.uint8:
        raise DamagedFileError(f"{path}: data must be uint8 [{len(labels)}, {_PIXELS}]; copy the file again")
    if len(labels) and not 0 <= labels.min() <= labels.max() < n_classes:
        raise DamagedFileError(f"{path}: labels must lie in 0..{n_classes - 1}, not {labels.min()}..{labels.max()}")
    return ImageSet.of(pixels.reshape(-1, 3, 32, 32), labels)


def _entry(content: Any, key: str, path: Path) -> Any:
    if not isinstance(content, dict) or key not in content:
        raise DamagedFileError(f"{path}: no entry {key!r}; it is not a file of the CIFAR-100 python archive")
    return content[key]
