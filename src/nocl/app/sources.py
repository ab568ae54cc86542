"""What a model can learn in parts: a folder of images, or a file of embeddings.

A source can be divided into slices in class order and gives each to a classifier, batch by batch. It is small and can
be sent to another process, which reads the images or vectors.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nocl.app.classifier import Classifier
from nocl.data.decode import BadImageError, file_facts
from nocl.data.folder import class_files
from nocl.data.vectors import Vectors, read_vectors
from nocl.learner import FrozenLearner
from nocl.plumbing.seeding import generator
from nocl.plumbing.types import JSON

_IMAGES_AT_ONCE = 64
_VECTORS_AT_ONCE = 4096
Bad = dict[str, str]  # a file: why it cannot be used


@dataclass(frozen=True, eq=False)
class Source(ABC):
    """Samples with class names: sample i is of class ``class_names[labels[i]]``; sorted by class."""

    class_names: tuple[str, ...]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def taken(self, positions: NDArray[np.int64]) -> Self:
        """The samples at these positions, in this order."""

    @abstractmethod
    def identity(self) -> JSON:
        """Identifies these samples without reading them: names, sizes and times of files."""

    @abstractmethod
    def teach(self, model: Classifier, say: Callable[[int], None]) -> Bad:
        """Let the model learn all samples; reports the size of each batch. Returns what was left out."""

    def slices(self, size: int) -> list[Self]:
        """Slices of at most ``size`` samples in class order: each has few classes, so its statistics are small."""
        everything = np.arange(len(self))
        return [self.taken(everything[start : start + size]) for start in range(0, len(self), size)]

    def shuffled(self, seed: int) -> Self:
        """The samples in the order in which one process learns them."""
        return self.taken(torch.randperm(len(self), generator=generator(seed, "learn")).numpy())

    def names_in_order(self) -> list[str]:
        """The classes in the order of their first samples."""
        return [self.class_names[label] for label in dict.fromkeys(self.labels.tolist())]


@dataclass(frozen=True, eq=False)
class ImageFolder(Source):
    """Images as ``folder/<class>/<image>``."""

    files: tuple[Path, ...]

    def taken(self, positions: NDArray[np.int64]) -> Self:
        chosen = tuple(self.files[position] for position in positions)
        return replace(self, labels=self.labels[positions], files=chosen)

    def identity(self) -> JSON:
        labelled = zip(self.files, self.labels.tolist())
        return [[str(path), *file_facts(path), self.class_names[label]] for path, label in labelled]

    def teach(self, model: Classifier, say: Callable[[int], None]) -> Bad:
        bad: Bad = {}
        for start in range(0, len(self), _IMAGES_AT_ONCE):
            rows: list[Tensor] = []
            names: list[str] = []
            stop = min(start + _IMAGES_AT_ONCE, len(self))
            for path, label in zip(self.files[start:stop], self.labels[start:stop]):
                try:
                    rows.append(model.read(path))
                    names.append(self.class_names[label])
                except BadImageError as error:
                    bad[str(path)] = str(error).removeprefix(f"{path}: ")
            if rows:
                model.partial_fit(torch.cat(rows), names)
            say(stop - start)
        return bad


@dataclass(frozen=True, eq=False)
class Embeddings(Source):
    """Rows of an embeddings file."""

    path: Path
    rows: NDArray[np.int64]

    def taken(self, positions: NDArray[np.int64]) -> Self:
        return replace(self, labels=self.labels[positions], rows=self.rows[positions])

    def identity(self) -> JSON:
        stat = self.path.stat()
        return [str(self.path), stat.st_size, stat.st_mtime_ns, self.rows.tolist()]

    def teach(self, model: Classifier, say: Callable[[int], None]) -> Bad:
        vectors = read_vectors(self.path)
        _check_origin(vectors, model)
        for start in range(0, len(self), _VECTORS_AT_ONCE):
            rows = self.rows[start : start + _VECTORS_AT_ONCE]
            z = _finite_rows(vectors, rows)
            model.learn_features(z, [self.class_names[label] for label in self.labels[start : start + len(rows)]])
            say(len(rows))
        return {}


def open_source(path: Path) -> Source:
    """A folder of images or an ``.npz`` file of embeddings, its samples in class order."""
    if path.suffix == ".npz":
        vectors = read_vectors(path)
        order = np.argsort(vectors.labels, kind="stable")
        return Embeddings(vectors.class_names, vectors.labels[order], path, order.astype(np.int64))
    class_names, files, labels = class_files(path)
    return ImageFolder(class_names, labels, tuple(files))


def _check_origin(vectors: Vectors, model: Classifier) -> None:
    """Refuse features of another length, or that say they come from another network or image size than the model's."""
    learner = model.learner_
    base = learner.base_
    if isinstance(learner, FrozenLearner) and vectors.x.shape[1] != learner.feature_dim:
        stages = "" if learner.stages is None else f" --stages {','.join(map(str, learner.stages))}"
        remedy = f"nocl embed DIR -o {vectors.path.name} --backbone {model.backbone} --size {model.size}{stages}"
        lengths = f"its vectors have {vectors.x.shape[1]} values, this model learns from {learner.feature_dim}"
        raise ValueError(
            f"{vectors.path}: {lengths}: {remedy if base.get('sha256') else 'make them as the first ones were made'}"
        )
    pairs = [("network (sha256)", "sha256", base.get("sha256"))]
    if base.get("sha256") is not None:  # a model on stored features has no images
        pairs.append(("image size", "size", model.size))
    for words, name, ours in pairs:
        theirs = vectors.about.get(name)
        if theirs is not None and ours is not None and theirs != ours:
            raise ValueError(
                f"{vectors.path}: its features are of another {words} than the model's: {str(theirs)[:12]}, not "
                f"{str(ours)[:12]}; embed the images with the model's network"
            )


def _finite_rows(vectors: Vectors, rows: NDArray[np.int64]) -> Tensor:
    values = np.asarray(vectors.x[rows], dtype=np.float32)
    finite = np.isfinite(values).all(1)
    if not finite.all():
        raise ValueError(f"{vectors.path}: row {rows[~finite][0]} of X holds NaN or infinity; remove or correct it")
    return torch.from_numpy(values)
