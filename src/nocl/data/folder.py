"""A folder of the user's own images: one folder per class, with or without ``train/`` and ``test/``."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from nocl.data.decode import DecodedFiles, Fit, decode_files
from nocl.data.images import Dataset, ImageSet, MissingDataError
from nocl.plumbing.seeding import generator
from nocl.plumbing.types import JSON

_SYSTEM_FILES = {"thumbs.db", "desktop.ini"}


def folder(
    *,
    root: Path,
    size: int = 64,
    fit: Fit = "crop",
    test_fraction: float = 0.2,
    seed: int = 0,
    skip_bad: bool = False,
) -> Dataset:
    """Images of ``root/<class name>/`` at ``size`` pixels a side.

    Where ``root`` has ``train/`` and ``test/`` these are the split; otherwise ``test_fraction`` of each
    class, chosen by ``seed``, is the test set. ``skip_bad`` leaves out, with a warning, bad files.
    """
    if fit not in ("crop", "squash"):
        raise ValueError(f"fit must be 'crop' or 'squash', not {fit!r}")
    if not 0 < test_fraction < 1:
        raise ValueError(f"test_fraction must lie between 0 and 1, not {test_fraction}")
    if not root.is_dir():
        raise MissingDataError(f"{root}: no such folder; give the folder that holds one folder per class")
    options: dict[str, JSON] = {"size": size, "fit": fit, "skip_bad": skip_bad}
    if has_splits(root, "test"):
        return _ready_split(root, options, size, fit, skip_bad)
    class_names, files, labels = class_files(root)
    decoded = decode_files("folder", root, files, size=size, fit=fit, skip_bad=skip_bad)
    train, test = _stratified(decoded, labels, class_names, test_fraction, seed)
    options |= {"test_fraction": test_fraction, "seed": seed}
    return Dataset("folder", train, test, class_names, options)


def class_files(root: Path) -> tuple[tuple[str, ...], list[Path], NDArray[np.int64]]:
    """Class names in order, their files (at any depth, hidden ones left out), and the label of each."""
    if not root.is_dir():
        raise MissingDataError(f"{root}: no such folder")
    class_names = tuple(sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")))
    if not class_names:
        raise MissingDataError(f"{root}: no class folders; expected {root}/<class name>/<image>")
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(class_names):
        found = _files_under(root / name)
        if not found:
            raise MissingDataError(f"{root / name}: no files; add images of {name!r} or remove the folder")
        files += found
        labels += [label] * len(found)
    return class_names, files, np.array(labels, dtype=np.int64)


def has_splits(root: Path, second: str) -> bool:
    """Whether ``root`` has ``train/`` and the second split; one without the other is an error."""
    there = [name for name in ("train", second) if (root / name).is_dir()]
    if len(there) == 1:
        absent = second if there == ["train"] else "train"
        raise MissingDataError(f"{root}: has {there[0]}/ but no {absent}/; add it, or rename {there[0]}/")
    return len(there) == 2


def _ready_split(root: Path, options: dict[str, JSON], size: int, fit: Fit, skip_bad: bool) -> Dataset:
    class_names, train, test = read_splits("folder", root, "test", size=size, fit=fit, skip_bad=skip_bad)
    _check_counts(class_names, train, test)
    return Dataset("folder", train, test, class_names, options)


def read_splits(
    name: str, root: Path, second: str, *, size: int, fit: Fit, skip_bad: bool = False
) -> tuple[tuple[str, ...], ImageSet, ImageSet]:
    """Class names and images of ``root/train`` and ``root/<second>``, which must hold the same classes."""
    class_names, train_files, train_labels = class_files(root / "train")
    second_names, second_files, second_labels = class_files(root / second)
    if class_names != second_names:
        odd = sorted(set(class_names) ^ set(second_names))
        listed = ", ".join(odd[:5])
        raise ValueError(f"{root}: {listed} in only one of train/ and {second}/; both need every class")
    decoded = decode_files(name, root, train_files + second_files, size=size, fit=fit, skip_bad=skip_bad)
    rows = np.arange(len(decoded.images))
    is_train = rows < len(train_files)
    labels = np.concatenate([train_labels, second_labels])
    train, test = (
        ImageSet(decoded.images, labels[keep], rows[keep])
        for keep in (is_train & decoded.good, ~is_train & decoded.good)
    )
    return class_names, train, test


def _stratified(
    decoded: DecodedFiles,
    labels: NDArray[np.int64],
    class_names: Sequence[str],
    test_fraction: float,
    seed: int,
) -> tuple[ImageSet, ImageSet]:
    """The same share of each class for testing, at least one image and never all of them."""
    is_test = np.zeros(len(labels), dtype=np.bool_)
    for label, name in enumerate(class_names):
        rows = np.flatnonzero((labels == label) & decoded.good)
        if len(rows) < 2:
            raise ValueError(f"class {name!r} has {len(rows)} readable images; a split needs at least 2")
        count = min(max(round(test_fraction * len(rows)), 1), len(rows) - 1)
        order = torch.randperm(len(rows), generator=generator(seed, "folder", name)).numpy()
        is_test[rows[order[:count]]] = True
    rows = np.arange(len(labels))
    train, test = (
        ImageSet(decoded.images, labels[keep], rows[keep]) for keep in (~is_test & decoded.good, is_test & decoded.good)
    )
    return train, test


def _check_counts(class_names: Sequence[str], train: ImageSet, test: ImageSet) -> None:
    for split, images in (("train", train), ("test", test)):
        counts = np.bincount(images.labels, minlength=len(class_names))
        empty = [name for name, count in zip(class_names, counts, strict=True) if count == 0]
        if empty:
            raise ValueError(f"{split}/ has no readable image of: {', '.join(empty[:5])}; add some")


def _files_under(path: Path) -> list[Path]:
    found: list[Path] = []
    for folder_name, folders, names in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [
            Path(folder_name, name) for name in names if not name.startswith(".") and name.lower() not in _SYSTEM_FILES
        ]
    return sorted(found)
