"""A model file with durable changes: once ``learn`` or ``forget`` has returned, the change survives a kill.

One process at a time holds a model (a lock file beside it). Learning adds statistics to a journal and flushes it to
disk; from time to time, and at every ``forget``, the whole model is written and the journal is emptied. Each change
publishes a new model object, so a reader of ``model`` continues with the one it has.

An OSError means that nothing changed, on disk or here. After one that says that the disk itself failed, nothing more
is learned until a restart has read what the disk really holds. ``trouble`` says what is wrong, for ``/healthz``.
"""

import errno
import hashlib
import json
import logging
import re
import stat
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from nocl.app import modelfile
from nocl.app.classifier import Classifier
from nocl.app.packing import entry_in, pack, unpack
from nocl.app.serve.journal import Answer, FailedDiskError, Journal
from nocl.learner import UnsupportedError
from nocl.plumbing.files import file_digest, hold
from nocl.plumbing.types import JSON

log = logging.getLogger(__name__)
SNAPSHOT_BYTES = 64 << 20  # the journal's size at which the model is written whole
UNDO_SECONDS = 600.0  # how long a change can be taken back
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk works but has no room


class Key(NamedTuple):
    """A client's name for a request: asked again with the same one, it is answered and not done again."""

    key: bytes
    request: bytes

    @classmethod
    def of(cls, key: str, *asked: str | int) -> "Key":
        """The key and what is asked, as digests: neither key nor class name can be read from the file."""
        name = hashlib.sha256(key.encode()).digest()
        return cls(name, hashlib.sha256(json.dumps([key, *asked]).encode()).digest())


class NothingToUndoError(LookupError):
    """No change can be taken back."""


class OtherRequestError(ValueError):
    """An idempotency key that was used for another request."""


@dataclass(frozen=True)
class Receipt:
    """The result of a change; ``repeated`` if it was done before with the same key."""

    values: dict[str, JSON]
    repeated: bool = False


@dataclass(frozen=True)
class Before:
    """The model before the last change, for ``undo``. It is in memory only and not kept for long."""

    model: Classifier
    change: str  # learn, forget or replace
    label: str | None
    until: float  # on the monotonic clock


class Store:
    """The one writer of a model file. ``model`` is never changed, only replaced."""

    def __init__(
        self, path: Path, *, trust: bool = False, device: str = "cpu", snapshot_bytes: int = SNAPSHOT_BYTES
    ) -> None:
        self.path, self._snapshot_bytes = path.resolve(), snapshot_bytes
        self.trouble: str | None = None
        self._failed = False
        self._snapshot_at = snapshot_bytes
        self._before: Before | None = None
        self._clock = threading.Timer(0, lambda: None)  # never started; then the one that ends the time for undo
        self._lock = hold(path)
        try:
            self.model = Classifier.load(self.path, trust=trust, device=device)
            _need_statistics(self.model)
            self._empty = self.model.apart()
            _clear_unfinished(self.path)
            mode = stat.S_IMODE(self.path.stat().st_mode) & 0o666 | 0o600  # the model's, but always ours to write
            self._journal = Journal(journal_of(self.path), file_digest(self.path), mode=mode)
            self._replay()
        except BaseException:
            self._lock.release()
            raise

    @property
    def sequence(self) -> int:
        """The number of the last group of lessons."""
        return self._journal.sequence

    @property
    def before(self) -> Before | None:
        """What ``undo`` would bring back; None after UNDO_SECONDS, and where several lessons were learned together."""
        if self._before is not None and time.monotonic() > self._before.until:
            self._before = None
        return self._before

    def answered(self, key: Key | None) -> Receipt | None:
        """The receipt of a request that was done before under this key."""
        found = None if key is None else self._journal.answer(key.key)
        if found is None or key is None:
            return None
        if found.request != key.request:
            raise OtherRequestError("this Idempotency-Key was used for another request; take a new key for each")
        return Receipt(json.loads(found.text), repeated=True)

    def learn(self, pictures: Sequence[tuple[Tensor, str]], keys: Sequence[Key | None] = ()) -> list[Receipt]:
        """Learn batches of images, each of one class. When this returns, it is on disk and published."""
        self._check_disk()
        part = self._empty.copy()
        for x, name in pictures:
            part.partial_fit(x, name)
        payload = pack(part, self.model.next_entry())
        changed = self._applied(payload)
        receipts = [
            Receipt({"learned": len(x), "count": changed.counts_.get(name, 0), "classes": len(changed.class_names),
                     "sequence": self.sequence + 1})
            for x, name in pictures
        ]  # fmt: skip
        answers = [_answer(key, receipt) for key, receipt in zip(keys, receipts) if key is not None]
        try:
            self._journal.append(payload, answers)
        except OSError as error:
            raise self._noted(error) from error
        label = pictures[0][1] if len(pictures) == 1 else None
        self._remember("learn", label)
        self.model, self.trouble = changed, None
        if self._journal.size > self._snapshot_at:
            self._try_snapshot()
        return receipts

    def forget(self, name: str, key: Key | None = None) -> Receipt:
        """Remove a class from the model and from the files on disk."""
        self._check_disk()
        changed = self.model.copy()
        exactly = changed.leaves_no_trace(name)
        changed.forget(name)
        receipt = Receipt({"classes": len(changed.class_names), "exactly": exactly})
        before = self.model
        self._write(changed, None if key is None else _answer(key, receipt))
        self._remember("forget", name, before)
        self._fold("the class is out of the model file")
        return receipt

    def replace(self, model: Classifier, key: Key | None = None, done: dict[str, JSON] | None = None) -> Receipt:
        """Put another model in the place of this one, on disk too. ``done`` is what to answer beside its classes."""
        self._check_disk()
        _need_statistics(model)
        before, empty = self.model, model.apart()
        receipt = Receipt({**(done or {}), "classes": len(model.class_names)})
        self._write(model.copy(), None if key is None else _answer(key, receipt))
        self._empty = empty
        self._remember("replace", None, before)
        self._fold("the model was replaced")
        return receipt

    def undo(self, key: Key | None = None) -> Receipt:
        """Bring back the model before the last change, bit for bit."""
        before = self.before
        if before is None:
            raise NothingToUndoError("there is no change to take back, or it was made too long ago")
        receipt = self.replace(before.model, key, {"undone": before.change})
        self._before = None
        return Receipt({**receipt.values, "label": before.label})  # no class name is kept with a key

    def _fold(self, done: str) -> None:
        """Erase what the model file holds from the journal. If that fails, only a restart tells what the disk holds."""
        try:
            self._journal.fold()
        except OSError as error:
            self._failed = True
            self.trouble = f"{done}, but the lessons before it are still in {self._journal.path.name}: {error}"
            raise FailedDiskError(errno.EIO, self.trouble) from error

    def _remember(self, change: str, label: str | None, model: Classifier | None = None) -> None:
        """Keep the model before a change of one class, or of the whole; drop the one kept so far."""
        known = label is not None or change == "replace"
        until = time.monotonic() + UNDO_SECONDS
        self._before = Before(model or self.model, change, label, until) if known else None
        self._clock.cancel()
        if known:
            self._clock = threading.Timer(UNDO_SECONDS + 1, lambda: self.before)  # a forgotten class leaves memory too
            self._clock.daemon = True
            self._clock.start()

    def snapshot(self) -> None:
        """Write the model whole and empty the journal."""
        self._check_disk()
        self._write(self.model.copy(), None)
        self._journal.fold()

    def close(self) -> None:
        """Leave one model file, and a journal only if it holds idempotency keys or could not be taken in."""
        self._clock.cancel()
        try:
            if self._journal.waiting and not self._failed:
                self._try_snapshot()
            self._journal.close(remove_if_empty=not self._failed)
        finally:
            self._lock.release()

    def _try_snapshot(self) -> None:
        """Write the model whole. If that fails, the lessons are still in the journal, and nobody is told an error."""
        try:
            self.snapshot()
            self._snapshot_at = self._snapshot_bytes
        except OSError as error:
            self.trouble = f"{self.path.name} could not be written, the lessons stay in the journal: {error}"
            log.warning("%s", self.trouble)
            self._snapshot_at = self._journal.size + self._snapshot_bytes

    def _replay(self) -> None:
        for payload in self._journal.lessons():
            self.model = self._applied(payload)
        if self._journal.waiting:
            log.info("replayed %d groups of lessons of %s", self._journal.waiting, self._journal.path.name)

    def _applied(self, payload: bytes) -> Classifier:
        """The next model. It takes in what the journal holds, not what was computed, so a replay is the same."""
        changed = self.model.successor()
        changed.take_in(unpack(payload, self._empty), entry_in(payload))
        return changed

    def _write(self, changed: Classifier, answer: Answer | None) -> None:
        """Put the model file in place and publish it; the journal still has to be folded."""
        content = changed.to_bytes()
        digest = hashlib.sha256(content).hexdigest()
        try:
            self._journal.announce(digest, answer)
            modelfile.put(self.path, content)
        except OSError as error:
            in_place = _is_file_with(self.path, digest)  # renamed, and then the folder could not be flushed
            raise self._noted(error, failed=in_place) from error
        self._journal.renamed()
        self.model, self.trouble = changed, None

    def _check_disk(self) -> None:
        if self._failed:
            raise FailedDiskError(errno.EIO, f"the disk failed, nothing is learned until a restart: {self.trouble}")

    def _noted(self, error: OSError, *, failed: bool = False) -> OSError:
        """The error, after noting whether the store may go on."""
        self._failed = failed or error.errno not in _FULL
        self.trouble = str(error)
        return FailedDiskError(errno.EIO, self.trouble) if self._failed else error


def _need_statistics(model: Classifier) -> None:
    if not model.learner_.mergeable:
        raise UnsupportedError(
            f"method {model.method!r} changes its network as it learns, which a journal of statistics cannot hold; "
            "fit a model with a method on class statistics such as ncm"
        )


def _answer(key: Key, receipt: Receipt) -> Answer:
    return Answer(key.key, key.request, json.dumps(receipt.values))


def _is_file_with(path: Path, digest: str) -> bool:
    try:
        return file_digest(path) == digest
    except OSError:
        return False


def _clear_unfinished(path: Path) -> None:
    """Delete what a killed process left of a file it was writing: it may hold statistics of a forgotten class."""
    name = re.compile(rf"\.{re.escape(path.name)}\.(journal\.)?[a-z0-9_]+\.part(-journal)?")  # of mkstemp, and SQLite's
    for leftover in path.parent.iterdir():
        if name.fullmatch(leftover.name) and leftover.is_file():
            leftover.unlink(missing_ok=True)


def journal_of(path: Path) -> Path:
    """Where the journal of a model file lies."""
    real = path.resolve()
    return real.with_name(f"{real.name}.journal")
