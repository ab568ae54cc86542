"""Embeddings as a data set: an ``.npz`` file as ``nocl embed`` writes it, cut into training and test vectors."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from nocl.data.features import FeatureData
from nocl.data.images import ImageSet
from nocl.data.vectors import Vectors, read_vectors
from nocl.plumbing.files import DamagedFileError, digest, file_digest
from nocl.plumbing.seeding import generator
from nocl.plumbing.types import JSON

NAME = "embeddings"
FILES = ("file", "test")  # options that name a file: what it holds decides a run, not its name
_ROWS_AT_ONCE = 16384


@dataclass(frozen=True, eq=False)
class Embeddings(FeatureData):
    """Vectors made elsewhere; nothing is known of the images."""

    content: str = ""

    @property
    def image_size(self) -> int:
        return 1

    @property
    def fingerprint(self) -> str:
        """Of the vectors and of how they are cut."""
        return self.content

    @cached_property
    def has_negative(self) -> bool:
        """Whether any value is below 0: then powers other than 1 have no meaning."""
        return any(bool((part.images < 0).any()) for part in (self.train, self.test))


def embeddings(
    *, file: str = "", test: str | None = None, test_fraction: float = 0.2, seed: int = 0
) -> Embeddings:  # fmt: skip
    """The vectors of ``file``; those of the file ``test``, or else a part of each class by ``seed``, are tested on."""
    if not file:
        raise ValueError("embeddings need a file: give --features FILE.npz, or --data file=FILE.npz")
    paths = [Path(file)] if test is None else [Path(file), Path(test)]
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file; `nocl embed DIR -o {path.name}` makes one")
    return _read(tuple((str(path), *_state(path)) for path in paths), test_fraction, seed)


def _state(path: Path) -> tuple[int, int]:
    stat = os.stat(path)
    return stat.st_size, stat.st_mtime_ns


@cache  # a comparison asks for each of its runs; size and time of the files are part of the key
def _read(files: tuple[tuple[str, int, int], ...], test_fraction: float, seed: int) -> Embeddings:
    paths = [Path(name) for name, *_ in files]
    vectors = [_checked(read_vectors(path)) for path in paths]
    whole = ImageSet(vectors[0].x, vectors[0].labels, np.arange(len(vectors[0])))
    names = vectors[0].class_names
    options: dict[str, JSON] = {"file": paths[0].name}
    if len(vectors) == 2:
        train, test = whole, _same_classes(vectors[1], vectors[0])
        options["test"] = paths[1].name
    else:
        train, test = _split(whole, names, paths[0], test_fraction, seed)
        options |= {"test_fraction": test_fraction, "seed": seed}
    contents: list[JSON] = [file_digest(path) for path in paths]
    origin = {**vectors[0].about, "vectors": contents[0]}
    cut: list[JSON] = [contents, options]
    return Embeddings(NAME, train, test, names, options, origin=origin, content=digest(cut))


def _checked(vectors: Vectors) -> Vectors:
    for start in range(0, len(vectors), _ROWS_AT_ONCE):
        finite = np.isfinite(vectors.x[start : start + _ROWS_AT_ONCE]).all(1)
        if not finite.all():
            row = start + int(np.flatnonzero(~finite)[0])
            raise DamagedFileError(f"{vectors.path}: row {row} of X is not finite: leave it out or mend it")
    return vectors


def _same_classes(test: Vectors, train: Vectors) -> ImageSet:
    """The test vectors, labelled by the training file's classes."""
    if test.x.shape[1] != train.x.shape[1]:
        lengths = f"{test.x.shape[1]} values, those of {train.path} {train.x.shape[1]}"
        raise ValueError(f"the vectors of {test.path} have {lengths}: make both with the same network and stages")
    for key in ("sha256", "stages"):
        here, there = test.about.get(key), train.about.get(key)
        if here is not None and there is not None and here != there:
            raise ValueError(f"{test.path} and {train.path} were made by different networks ({key})")
    number = {name: i for i, name in enumerate(train.class_names)}
    unknown = [name for name in test.class_names if name not in number]
    if unknown:
        raise ValueError(f"{test.path} has the class {unknown[0]!r}, which {train.path} does not have")
    labels = np.array([number[name] for name in test.class_names], dtype=np.int64)[test.labels]
    absent = sorted(set(range(len(number))) - set(labels.tolist()))
    if absent:
        raise ValueError(f"{test.path} has no vector of the class {train.class_names[absent[0]]!r} to test on")
    return ImageSet(test.x, labels, np.arange(len(test)))


def _split(
    whole: ImageSet, names: Sequence[str], path: Path, test_fraction: float, seed: int
) -> tuple[ImageSet, ImageSet]:  # fmt: skip
    if not 0 < test_fraction < 1:
        raise ValueError(f"test_fraction must lie between 0 and 1, not {test_fraction}")
    draw, held = generator(seed, "embeddings test"), np.zeros(len(whole), dtype=bool)
    for label, name in enumerate(names):
        own: NDArray[np.int64] = np.flatnonzero(whole.labels == label)
        if len(own) < 2:
            raise ValueError(f"{path}: class {name!r} has {len(own)} vectors; two or more are needed, one to test on")
        count = min(len(own) - 1, max(1, round(test_fraction * len(own))))
        held[own[torch.randperm(len(own), generator=draw).numpy()[:count]]] = True
    return whole.subset(np.flatnonzero(~held)), whole.subset(np.flatnonzero(held))
