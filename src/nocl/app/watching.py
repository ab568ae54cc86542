"""Learning pictures as they are put into class folders: ``FOLDER/<class>/<picture>``, each once.

A list beside the model says which files were learned, by digests of their names, sizes and times: no picture and no
name is kept. It is written before the model and again after it, so that a kill at any moment neither loses nor
repeats a picture: if the model file has changed, the last group is in it.
"""

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch

from nocl.app.classifier import Classifier
from nocl.data.decode import BadImageError
from nocl.plumbing.files import file_digest, write_json
from nocl.plumbing.types import JSON

AT_ONCE = 256  # pictures learned before the model is written


def list_of(model_file: Path) -> Path:
    """The list of learned files that belongs to a model."""
    return model_file.with_name(model_file.name + ".watched")


@dataclass
class Step:
    """The result of one look at the folder."""

    learned: Counter[str] = field(default_factory=Counter)  # class names and how many pictures
    bad: dict[str, str] = field(default_factory=dict)  # files that are not pictures, and the reasons
    more: bool = False  # True: more files are ready to be learned


class Watch:
    """A model that learns from a folder. The caller holds the lock of the model file."""

    def __init__(self, model_file: Path, folder: Path, model: Classifier) -> None:
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder}: no such folder; make it, with one folder for each class")
        self.model_file, self.folder, self.model = model_file, folder, model
        self._known = _remembered(model_file)
        self._last: set[str] = set()

    def look(self) -> Step:
        """Learn new pictures that have not changed since the last look, so that none is read while it is copied."""
        found = {_stamp(self.folder, path): path for path in self._files()}
        settled = [stamp for stamp in found if stamp in self._last and stamp not in self._known]
        self._last = set(found)
        group = settled[:AT_ONCE]
        step = Step(more=len(settled) > AT_ONCE)
        rows, names = [], []
        for stamp in group:
            path = found[stamp]
            try:
                rows.append(self.model.read(path))
                names.append(path.relative_to(self.folder).parts[0])
            except BadImageError as error:
                step.bad[str(path)] = str(error).removeprefix(f"{path}: ")
        if rows:
            self._remember(pending=group)
            self.model.partial_fit(torch.cat(rows), names)
            self.model.save(self.model_file, held=True)
            step.learned = Counter(names)
        if group:
            self._known |= set(group)
            self._remember()
        return step

    def _files(self) -> list[Path]:
        """Files in class folders, hidden ones left out, in a fixed order."""
        paths = (path for path in self.folder.glob("*/**/*") if path.is_file())
        return sorted(p for p in paths if not any(part.startswith(".") for part in p.relative_to(self.folder).parts))

    def _remember(self, pending: list[str] | None = None) -> None:
        kept: dict[str, JSON] = {
            "learned": [*sorted(self._known)],
            "pending": [*(pending or [])],
            "before": file_digest(self.model_file),
        }
        write_json(list_of(self.model_file), kept)


def _stamp(folder: Path, path: Path) -> str:
    stat = path.stat()
    fact = json.dumps([path.relative_to(folder).as_posix(), stat.st_size, stat.st_mtime_ns])
    return hashlib.sha256(fact.encode()).hexdigest()[:32]


def _remembered(model_file: Path) -> set[str]:
    """The digests of the files that are in the model."""
    path = list_of(model_file)
    if not path.exists():
        return set()
    try:
        kept = json.loads(path.read_text("utf-8"))
        learned, pending, before = set(kept["learned"]), set(kept["pending"]), str(kept["before"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged ({error}); delete it, and every picture of the folder is learned"
        ) from error
    saved = pending and file_digest(model_file) != before  # killed after the model was written
    return learned | pending if saved else learned
