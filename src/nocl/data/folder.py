"""A folder of the user's own images: one folder per class, with or without ``train/`` and ``test/``."""

import logging
import os
import stat
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from nocl.data.decode import DecodedFiles, Fit, decode_files
from nocl.data.images import Dataset, ImageSet, MissingDataError
from nocl.plumbing.seeding import generator
from nocl.plumbing.types import JSON

log = logging.getLogger(__name__)

_SYSTEM_FILES = {"thumbs.db", "desktop.ini"}
_SUFFIXES = {
    ".avif", ".bmp", ".gif", ".jp2", ".jpeg", ".jpg", ".png", ".ppm", ".tga", ".tif", ".tiff", ".webp",
}  # fmt: skip
_Identity = tuple[int, int]  # of a folder: the same by all its names


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
    for name, value in (("size", size), ("seed", seed)):
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{name} must be a whole number, not {value!r}")
    if not isinstance(test_fraction, int | float) or not 0 < test_fraction < 1:
        raise ValueError(f"test_fraction must lie between 0 and 1, not {test_fraction!r}")
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
    """Class names in order, their files (at any depth, hidden ones left out), and the label of each.

    Links are followed; one to a folder that holds the classes is an error. Of what lies in the class folders, pipes,
    sockets and devices are left out with a warning, and so are images beside the class folders.
    """
    if not root.is_dir():
        raise MissingDataError(f"{root}: no such folder")
    class_names, others = _folders_and_others(root)
    if not class_names:
        raise MissingDataError(f"{root}: no class folders; expected {root}/<class name>/<image>")
    _warn_of_loose(root, others)
    above = {_identity(path) for path in (root.resolve(), *root.resolve().parents)}
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(class_names):
        found = sorted(_files_under(root / name, above, set()))
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


def refuse_splits(root: Path, wanted: str) -> None:
    """Refuse a folder that holds ``train/`` and ``test/`` where one folder per class is needed."""
    there = [name for name in ("train", "test") if (root / name).is_dir()]
    if len(there) == 1:  # may be a class of that name
        inside, loose = _folders_and_others(root / there[0])
        there = there if len(_folders_and_others(root)[0]) == 1 and inside and not loose else []
    if there:
        held = " and ".join(f"{name}/" for name in there)
        right = wanted if wanted in there else there[0]
        raise ValueError(f"{root}: holds {held} and not one folder for each class; give {root / right}")


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


def _files_under(folder: Path, above: set[_Identity], visited: set[_Identity]) -> list[Path]:
    """The files of a folder and its subfolders; ``above`` are the folders that hold it, ``visited`` those read."""
    identity = _identity(folder)
    if identity in above:
        raise ValueError(
            f"{folder} links to a folder that holds it, so its class would have all images: remove the link"
        )
    if identity in visited:
        return []
    visited.add(identity)
    found: list[Path] = []
    for entry in _entries(folder):
        path = folder / entry.name
        if _is_folder(entry):
            found += _files_under(path, above, visited)
        elif _may_be_read(entry):
            found.append(path)
        else:
            log.warning("left out %s: not a file", path)
    return found


def _folders_and_others(folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names in a folder: those of folders, and the rest."""
    inside: dict[bool, list[str]] = {True: [], False: []}
    for entry in _entries(folder):
        inside[_is_folder(entry)].append(entry.name)
    return tuple(inside[True]), tuple(inside[False])


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What a folder holds, in order, without hidden files and those of file managers."""
    try:
        with os.scandir(folder) as found:
            seen = [
                entry for entry in found if not entry.name.startswith(".") and entry.name.lower() not in _SYSTEM_FILES
            ]
    except OSError as error:
        raise OSError(f"{folder}: the folder cannot be read ({error.strerror}); permit it, or move it away") from error
    return sorted(seen, key=lambda entry: entry.name)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle
        return False


def _may_be_read(entry: os.DirEntry[str]) -> bool:
    """False for pipes, sockets and devices, which could be read for ever; decoding reports links that lead nowhere."""
    try:
        return stat.S_ISREG(entry.stat().st_mode) if entry.is_symlink() else entry.is_file()
    except OSError:
        return True


def _identity(folder: Path) -> _Identity:
    found = folder.stat()
    return found.st_dev, found.st_ino


def _warn_of_loose(root: Path, names: Sequence[str]) -> None:
    loose = [name for name in names if Path(name).suffix.lower() in _SUFFIXES]
    if loose:
        log.warning(
            "%s: %d images lie beside the class folders and are left out, such as %s; put them into one",
            root, len(loose), loose[0],
        )  # fmt: skip
