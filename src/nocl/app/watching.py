"""Learning pictures as they are put into class folders: ``FOLDER/<class>/<picture>``, each once.

A list beside the model says which files were learned, by digests of their names, sizes and times: no picture and no
name is kept. Each group of files stands under the id that its lesson has in the model's history, and counts as learned
only if the model has that id. The list is written before the model, so a kill at any moment neither loses nor repeats
a picture; and another model saved under the same name, or an older copy, learns what it has not learned.
"""

import hashlib
import json
import os
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from nocl.app.classifier import Classifier
from nocl.app.naming import check_name
from nocl.data.decode import BadImageError
from nocl.plumbing.files import file_digest, write_json
from nocl.plumbing.types import JSON

AT_ONCE = 256  # pictures learned before the model is written

Lessons = dict[str, list[str]]  # ids of the model's history, each with the digests of the files learned


def list_of(model_file: Path) -> Path:
    """The list of learned files that belongs to a model."""
    return model_file.with_name(model_file.name + ".watched")


@dataclass
class Step:
    """The result of one look at the folder."""

    learned: Counter[str] = field(default_factory=Counter)  # class names and how many pictures
    bad: dict[str, str] = field(default_factory=dict)  # files that cannot be learned, and the reasons
    more: bool = False  # True: more files are ready to be learned


class Watch:
    """A model that learns from a folder. The caller holds the lock of the model file."""

    def __init__(self, model_file: Path, folder: Path, model: Classifier) -> None:
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder}: no such folder; make it, with one folder for each class")
        self.model_file, self.folder, self.model = model_file, folder, model
        self._lessons, self._bad = _remembered(model_file, model)
        self._known = self._bad.union(*(self._lessons.get(entry["id"], ()) for entry in model.history_))
        self._last: set[str] = set()

    def look(self) -> Step:
        """Learn new pictures that have not changed since the last look, so that none is read while it is copied."""
        found = self._files()
        settled = [stamp for stamp in found if stamp in self._last and stamp not in self._known]
        self._last = set(found)
        step = Step(more=len(settled) > AT_ONCE)
        rows: dict[str, Tensor] = {}
        names: list[str] = []
        for stamp in settled[:AT_ONCE]:
            path = found[stamp]
            try:
                name = _class_name(path.relative_to(self.folder))
                rows[stamp] = self.model.read(path)
                names.append(name)
            except BadImageError as error:
                if path.exists():  # else it has been removed, and is new if it comes back
                    step.bad[str(path)] = str(error).removeprefix(f"{path}: ")
                    self._bad.add(stamp)
        if rows:
            self.model.partial_fit(torch.cat(list(rows.values())), names)
            self._lessons.setdefault(self.model.history_[-1]["id"], []).extend(rows)
            step.learned = Counter(names)
        self._known |= self._bad | rows.keys()
        if rows or step.bad:
            self._remember()
        if rows:
            self.model.save(self.model_file, held=True)
        return step

    def _files(self) -> dict[str, Path]:
        """Files in class folders by their stamps, hidden ones left out, in a fixed order."""
        found: dict[str, Path] = {}
        for path in sorted(path for folder in self.folder.glob("[!.]*") for path in _below(folder)):
            try:
                about = path.stat()
            except OSError:  # removed meanwhile, or a link to nothing: the next look tries again
                continue
            if stat.S_ISREG(about.st_mode):
                found[_stamp(path.relative_to(self.folder), about)] = path
        return found

    def _remember(self) -> None:
        kept: dict[str, JSON] = {
            "lessons": {lesson: [*stamps] for lesson, stamps in self._lessons.items()},
            "bad": [*sorted(self._bad)],
        }
        write_json(list_of(self.model_file), kept)


def _below(folder: Path) -> Iterator[Path]:
    """Everything in a folder and its folders that is not hidden; a folder removed meanwhile is left out."""
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(parent, name) for name in files if not name.startswith("."))


def _stamp(path: Path, about: os.stat_result) -> str:
    fact = json.dumps([path.as_posix(), about.st_size, about.st_mtime_ns])
    return hashlib.sha256(fact.encode()).hexdigest()[:32]


def _class_name(path: Path) -> str:
    try:
        return check_name(path.parts[0])
    except ValueError as error:
        raise BadImageError(f"{error}; rename the folder") from None


def _remembered(model_file: Path, model: Classifier) -> tuple[Lessons, set[str]]:
    """The lessons in the list, and the files that could not be learned."""
    path = list_of(model_file)
    if not path.exists():
        return {}, set()
    try:
        kept = json.loads(path.read_text("utf-8"))
        if "lessons" in kept:
            return {lesson: [*map(str, stamps)] for lesson, stamps in kept["lessons"].items()}, {*map(str, kept["bad"])}
        learned, pending, before = set(kept["learned"]), set(kept["pending"]), str(kept["before"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is damaged ({error}); delete it, and every picture of the folder is learned"
        ) from error
    # the first edition named no lesson: it is taken as the model's, unless the model has learned nothing
    saved = pending and file_digest(model_file) != before  # killed after the model was written
    stamps = sorted(learned | pending if saved else learned)
    return {entry["id"]: stamps for entry in model.history_[-1:]}, set()
