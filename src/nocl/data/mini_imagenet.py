"""Mini-ImageNet (Vinyals et al. 2016; lists of Ravi and Larochelle 2017): 100 classes of 600 images, 84x84.

Read from any of its public formats, whichever is under ``root/mini_imagenet`` (or ``mini-imagenet``,
``miniImageNet``, or ``root`` itself):

1. ``mini-imagenet-cache-{train,val,test}.pkl``, each with 64, 16 or 20 of the classes;
2. ``{train,val,test}.csv`` (columns ``filename,label``) with an ``images/`` folder;
3. ``train/<wnid>/*`` and ``val/<wnid>/*``, 500 and 100 images of every class.

Formats 1 and 2 split classes, not images. There the labels follow the lists (train, val, test; wnids in order
within each), each class is shuffled by a generator used for nothing else (seed 0), and its first sixth is the
test set.
The reference code draws that shuffle from the global generator, so its split depends on what ran before.
"""

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from nocl.data.cache import stored
from nocl.data.decode import decode_files
from nocl.data.folder import has_splits, read_splits
from nocl.data.images import Dataset, ImageSet, MissingDataError
from nocl.data.pickles import read_pickle
from nocl.plumbing.files import DamagedFileError
from nocl.plumbing.progress import track
from nocl.plumbing.types import JSON

SIZE = 84
_FOLDERS = ("mini_imagenet", "mini-imagenet", "miniImageNet", ".")
_LISTS = ("train", "val", "test")


def mini_imagenet(*, root: Path) -> Dataset:
    """Mini-ImageNet from whichever public format is under ``root``."""
    folder, reader = _find(root)
    return reader(folder)


def _find(root: Path) -> tuple[Path, Callable[[Path], Dataset]]:
    for folder in (root / name for name in _FOLDERS):
        if all((folder / f"mini-imagenet-cache-{name}.pkl").is_file() for name in _LISTS):
            return folder, _from_pickles
        if all((folder / f"{name}.csv").is_file() for name in _LISTS) and (folder / "images").is_dir():
            return folder, _from_lists
        if (folder / "train").is_dir() and (folder / "val").is_dir() and has_splits(folder, "val"):
            return folder, _from_folders
    raise MissingDataError(
        f"Mini-ImageNet: nothing of it in {root / _FOLDERS[0]}. Its images are ImageNet's and have no open "
        "download; put there the three mini-imagenet-cache-{train,val,test}.pkl, or {train,val,test}.csv "
        "with images/, or train/<wnid>/ and val/<wnid>/ (docs/data.md)"
    )


def _from_folders(folder: Path) -> Dataset:
    class_names, train, test = read_splits("mini_imagenet", folder, "val", size=SIZE, fit="squash")
    return Dataset("mini_imagenet", train, test, class_names, {"layout": "folders"})


def _from_lists(folder: Path) -> Dataset:
    files: list[Path] = []
    wnids: list[str] = []
    class_names: list[str] = []
    for name in _LISTS:
        listed = _read_list(folder / f"{name}.csv")
        class_names += sorted({wnid for _, wnid in listed})
        files += [folder / "images" / filename for filename, _ in listed]
        wnids += [wnid for _, wnid in listed]
    absent = [path for path in files if not path.is_file()]
    if absent:
        raise MissingDataError(f"{len(absent)} of {len(files)} listed images are not there; first: {absent[0]}")
    labels = _labels(class_names, wnids, folder)
    images = decode_files("mini_imagenet", folder, files, size=SIZE, fit="squash").images
    return _split("lists", images, labels, class_names)


def _read_list(path: Path) -> list[tuple[str, str]]:
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    if not rows or not {"filename", "label"} <= set(rows[0]):
        raise DamagedFileError(f"{path}: needs the columns filename,label and at least one row")
    for row in rows:
        if Path(row["filename"]).name != row["filename"]:
            raise DamagedFileError(f"{path}: {row['filename']!r} is not a plain file name in images/")
    return [(row["filename"], row["label"]) for row in rows]


def _from_pickles(folder: Path) -> Dataset:
    paths = [folder / f"mini-imagenet-cache-{name}.pkl" for name in _LISTS]
    key: list[JSON] = [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in paths]
    expected = sum(path.stat().st_size for path in paths) // (3 * SIZE * SIZE)
    found = stored("mini_imagenet", key, SIZE, expected, lambda file: _write_pickles(file, paths))
    class_names = found.notes["class_names"]
    return _split("pickles", found.images, _labels(class_names, found.notes["wnids"], folder), class_names)


def _write_pickles(file: BinaryIO, paths: Sequence[Path]) -> dict[str, JSON]:
    """Write the images class by class; notes are the wnid of each and the class names in label order."""
    wnids: list[JSON] = []
    class_names: list[JSON] = []
    for path in paths:
        pixels, classes = _read_cache(path)
        for wnid in track(sorted(classes), f"storing {path.name}"):
            rows = pixels[np.asarray(classes[wnid])]
            file.write(np.ascontiguousarray(rows.transpose(0, 3, 1, 2)).tobytes())
            wnids += [wnid] * len(rows)
            class_names.append(wnid)
    return {"wnids": wnids, "class_names": class_names}


def _read_cache(path: Path) -> tuple[NDArray[np.uint8], dict[str, Sequence[int]]]:
    content: Any = read_pickle(path)
    if not isinstance(content, dict) or not {"image_data", "class_dict"} <= set(content):
        raise DamagedFileError(f"{path}: no entries image_data and class_dict; it is not a Mini-ImageNet pickle")
    pixels, classes = content["image_data"], content["class_dict"]
    if not isinstance(pixels, np.ndarray) or pixels.shape[1:] != (SIZE, SIZE, 3) or pixels.dtype != np.uint8:
        raise DamagedFileError(f"{path}: image_data must be uint8 [N, {SIZE}, {SIZE}, 3]")
    rows = [row for rows in classes.values() for row in rows]
    if sorted(rows) != list(range(len(pixels))):
        raise DamagedFileError(f"{path}: class_dict must name each of the {len(pixels)} images once")
    return pixels, {str(wnid): [int(row) for row in rows] for wnid, rows in classes.items()}


def _labels(class_names: Sequence[str], wnids: Sequence[str], folder: Path) -> NDArray[np.int64]:
    if len(set(class_names)) != len(class_names):
        raise DamagedFileError(f"{folder}: a class is in more than one of the train, val and test lists")
    label_of = {wnid: label for label, wnid in enumerate(class_names)}
    return np.array([label_of[wnid] for wnid in wnids], dtype=np.int64)


def _split(layout: str, images: NDArray[np.uint8], labels: NDArray[np.int64], class_names: Sequence[str]) -> Dataset:
    """The protocol's rule: shuffle each class, the first sixth is for testing."""
    shuffle = torch.Generator().manual_seed(0)
    train_rows, test_rows = [], []
    for label in range(len(class_names)):
        rows = np.flatnonzero(labels == label)
        rows = rows[torch.randperm(len(rows), generator=shuffle).numpy()]
        test_rows.append(rows[: len(rows) // 6])
        train_rows.append(rows[len(rows) // 6 :])
    train, test = (
        ImageSet(images, labels[rows], rows) for rows in (np.concatenate(train_rows), np.concatenate(test_rows))
    )
    options: dict[str, JSON] = {"layout": layout, "split_seed": 0}
    return Dataset("mini_imagenet", train, test, tuple(class_names), options)
