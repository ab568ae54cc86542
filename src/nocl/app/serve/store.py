"""A model file that learns durably: what ``learn`` and ``forget`` have returned from survives a kill at any moment.

One process at a time holds a model (a lock file beside it). Learning appends statistics to a journal and flushes it
to disk; now and then, and at every ``forget``, the whole model is written by rename and the journal starts anew. Each
change publishes a new model, so a reader that took ``model`` goes on with the one it has.
"""

import glob
import logging
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock, Timeout
from torch import Tensor

from nocl.app.classifier import Classifier
from nocl.app.serve.journal import Journal, pack, unpack
from nocl.learner import UnsupportedError

log = logging.getLogger(__name__)
SNAPSHOT_BYTES = 64 << 20  # the journal's size at which the model is written whole


class BusyModelError(RuntimeError):
    """Another process holds the model."""


class Store:
    """The one writer of a model file. ``model`` is never changed, only replaced."""

    def __init__(
        self, path: Path, *, trust: bool = False, device: str = "cpu", snapshot_bytes: int = SNAPSHOT_BYTES
    ) -> None:
        self.path, self._snapshot_bytes = path, snapshot_bytes
        self._lock = hold(path)
        try:
            self.model = Classifier.load(path, trust=trust, device=device)
            if not self.model.learner_.mergeable:
                raise UnsupportedError(
                    f"method {self.model.method!r} changes its network as it learns, which a journal of statistics "
                    "cannot hold; fit a model with a method on class statistics such as ncm"
                )
            self._empty = self.model.apart()
            _clear_unfinished(path)
            self._journal = Journal(journal_of(path), [entry["id"] for entry in self.model.history_])
            self._replay()
        except BaseException:
            self._lock.release()
            raise

    def learn(self, pictures: Sequence[tuple[Tensor, str]]) -> Classifier:
        """Learn batches of images, each of one class. When this returns, it is on disk and published."""
        part = self._empty.copy()
        for x, name in pictures:
            part.partial_fit(x, name)
        payload = pack(part)
        self._journal.append(self.model.sequence_ + 1, payload)
        self.model = self._applied(payload)
        if self._journal.size > self._snapshot_bytes:
            self.snapshot()
        return self.model

    def forget(self, name: str) -> Classifier:
        """Remove a class from the model and from the files on disk."""
        changed = self.model.copy()
        changed.forget(name)
        self.model = self._written(changed)
        return self.model

    def snapshot(self) -> None:
        """Write the model whole and empty the journal."""
        self.model = self._written(self.model.copy())

    def close(self) -> None:
        """Leave one model file and no journal."""
        try:
            if self.model.sequence_ > self._saved:
                self._written(self.model.copy())
            self._journal.remove()
        finally:
            self._lock.release()

    def _replay(self) -> None:
        self._saved = self.model.sequence_
        for frame in self._journal.frames:
            if frame.sequence > self.model.sequence_:
                self.model = self._applied(frame.payload)
        if self._journal.frames:
            log.info("replayed %d frames of %s", len(self._journal.frames), self._journal.path.name)
        self._journal.frames = []

    def _applied(self, payload: bytes) -> Classifier:
        """The next model. It takes in what the journal holds, not what was computed, so a replay is the same."""
        changed = self.model.copy()
        changed.take_in(unpack(payload, self._empty))
        changed.sequence_ += 1
        return changed

    def _written(self, changed: Classifier) -> Classifier:
        changed.save(self.path)
        self.model = changed
        self._saved = changed.sequence_
        self._journal.restart(changed.history_[-1]["id"])
        return changed


def hold(path: Path) -> FileLock:
    """Take the lock beside a model file, or say that another process has it."""
    lock = FileLock(path.with_name(f".{path.name}.lock"), timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise BusyModelError(f"{path} is held by another process (a service or a learning command)") from None
    return lock


def _clear_unfinished(path: Path) -> None:
    """Delete what a killed process left of a file it was writing: it may hold statistics of a forgotten class."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        leftover.unlink(missing_ok=True)


def journal_of(path: Path) -> Path:
    """Where the journal of a model file lies."""
    return path.with_name(f"{path.name}.journal")
