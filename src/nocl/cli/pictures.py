"""What the commands for your own images share: arguments, reading a folder, loading a model, measuring it."""

import errno
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from nocl.app.classifier import Classifier
from nocl.app.serve.journal import has_lessons
from nocl.app.serve.store import journal_of
from nocl.data.decode import BadImageError, BadImagesError
from nocl.data.folder import class_files
from nocl.learner import NotFittedError
from nocl.plumbing.progress import track

_AT_ONCE = 64

Model = Annotated[Path, typer.Argument(help="A model file (.nocl).")]
Folder = Annotated[Path, typer.Argument(help="A folder with one folder of images for each class.")]
SkipBad = Annotated[bool, typer.Option(help="Leave out files that are not images, with a warning.")]
Trust = Annotated[bool, typer.Option(help="Allow a method or network of your own: its code is run.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def read_folder(folder: Path, model: Classifier, skip_bad: bool) -> Iterator[tuple[torch.Tensor, list[str]]]:
    """Batches of a folder's images with their class names; nothing is cached on disk."""
    class_names, files, labels = class_files(folder)
    bad: dict[str, str] = {}
    starts = range(0, len(files), _AT_ONCE)
    for start in track(starts, "reading images", total=len(starts)):
        rows, names = [], []
        for position in range(start, min(start + _AT_ONCE, len(files))):
            try:
                rows.append(model.read(files[position]))
                names.append(class_names[labels[position]])
            except BadImageError as error:
                bad[str(files[position])] = str(error).removeprefix(f"{files[position]}: ")
        if bad and not skip_bad:
            raise BadImagesError(bad)
        if rows:
            yield torch.cat(rows), names
    for path, reason in bad.items():
        print(f"nocl: left out {path}: {reason}", file=sys.stderr)


def files_of(folder: Path, model: Classifier, skip_bad: bool) -> tuple[list[Path], list[str]]:
    """A folder's images as paths, with class names; with ``skip_bad`` each is tried first, and named if left out."""
    class_names, files, labels = class_files(folder)
    bad = bad_files(files, model) if skip_bad else {}
    for path, reason in bad.items():
        print(f"nocl: left out {path}: {reason}", file=sys.stderr)
    named = [(path, class_names[label]) for path, label in zip(files, labels) if str(path) not in bad]
    return [path for path, _ in named], [name for _, name in named]


def bad_files(files: Sequence[Path], model: Classifier) -> dict[str, str]:
    """The files that are not images, with the reasons."""
    bad: dict[str, str] = {}
    for path in track(files, "checking images"):
        try:
            model.read(path)
        except BadImageError as error:
            bad[str(path)] = str(error).removeprefix(f"{path}: ")
    return bad


def load_model(path: Path, trust: bool, device: str) -> Classifier:
    """Load a model; a message names lessons that are only in a service's journal."""
    if has_lessons(journal_of(path)):
        print(
            f"nocl: {journal_of(path).name} lies beside {path.name}: a service is running or was killed, and what "
            "it learned since it last wrote the model is not used here",
            file=sys.stderr,
        )
    return Classifier.load(path, trust=trust, device=device)


def load_taught(path: Path, trust: bool, device: str) -> Classifier:
    """Load a model that knows a class at least."""
    model = load_model(path, trust, device)
    if not model.class_names:
        raise NotFittedError(f"{path}: the model knows no class yet; teach it: nocl learn {path} FOLDER")
    return model


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name the file in the error of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(f"{path}: not written, {error.strerror}; make room, or write to another disk") from error


def measure(model: Classifier, folder: Path, skip_bad: bool) -> dict[str, Any]:
    """Accuracy on a folder of labelled images; classes that the model does not know are counted separately."""
    right: dict[str, list[bool]] = {}
    for x, names in read_folder(folder, model, skip_bad):
        for name, found in zip(names, model.predict(x)):
            right.setdefault(name, []).append(bool(name == found))
    known = {name: float(np.mean(hits)) for name, hits in right.items() if name in model.counts_}
    images = sum(len(right[name]) for name in known)
    return {
        "images": images,
        "accuracy": sum(sum(right[name]) for name in known) / images if images else None,
        "mean_over_classes": float(np.mean(list(known.values()))) if known else None,
        "classes": {name: {"images": len(right[name]), "accuracy": value} for name, value in known.items()},
        "unknown_classes": sorted(set(right) - set(known)),
    }


def measured(result: dict[str, Any]) -> str:
    """The measurement in one line."""
    if not result["images"]:
        return "no image is of a class that the model knows"
    return (
        f"{result['accuracy']:7.1%}  of {result['images']} images; {result['mean_over_classes']:.1%} mean over classes"
    )


def summary(model: Classifier) -> str:
    """How much a model has learned, in words."""
    images = sum(model.counts_.values())
    return f"{len(model.class_names)} classes, {images} images learned, 0 stored"
