"""A journal of what was learned since the model file was written: one SQLite file, on disk before an answer.

A group of lessons is one transaction. The journal stores the SHA-256 of its model file. Before the model is written
again, the journal notes the digest that the new file will have: after a kill at any moment the
file on disk shows whether the lessons are in it. Each record carries a digest that also covers the records before it,
so a changed, missing or added record is detected; then the journal is refused and nothing is deleted.

The mode is a rollback journal with ``synchronous=EXTRA``. A write-ahead log would be faster, but SQLite drops the
damaged end of one without an error, and what was acknowledged last would be lost.
"""

import contextlib
import errno
import hashlib
import json
import os
import secrets
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nocl.plumbing.files import DamagedFileError, sync_folder

KEPT_ANSWERS = 10_000  # idempotency keys; the oldest go first
_FORMAT = 2  # 1 was a file of frames, without SQLite
_TABLES = """
CREATE TABLE about (id INTEGER PRIMARY KEY CHECK (id = 1), state TEXT NOT NULL, digest BLOB NOT NULL);
CREATE TABLE lessons (sequence INTEGER PRIMARY KEY, payload BLOB NOT NULL, digest BLOB NOT NULL);
CREATE TABLE answers (number INTEGER PRIMARY KEY, key BLOB UNIQUE NOT NULL, request BLOB NOT NULL,
                      answer TEXT NOT NULL, digest BLOB NOT NULL);
"""


class FailedDiskError(OSError):
    """The disk failed in the middle of a write. What it holds is known only after a restart."""


class Answer(NamedTuple):
    """The answer to a request with an idempotency key. No class name is in it: forgetting need not look here."""

    key: bytes  # SHA-256 of the key
    request: bytes  # SHA-256 of the key and what was asked
    text: str  # JSON


class Journal:
    """The lessons that the model file does not have yet. Every method that returns has reached the disk."""

    def __init__(self, path: Path, model: str, *, mode: int = 0o600) -> None:
        """Open or create the journal beside a model file with this digest; ``mode`` says who may read it."""
        self.path = path
        self._renamed = False  # the model file announced by ``announce`` is in place
        if not path.exists():
            _create(path, model, mode)
        _check_kind(path)
        _set_mode(path, mode)
        self._base = _connect(path)
        try:
            with _as_damage(path):
                self._state = _checked_state(self._base, path)
            self._continue(model)
            self._size = self._measured()
        except BaseException:
            self._base.close()
            raise

    @property
    def sequence(self) -> int:
        """The number of the last lesson."""
        return int(self._state["last"][0])

    @property
    def waiting(self) -> int:
        """How many lessons the model file does not have."""
        return self.sequence - int(self._state["folded"][0])

    @property
    def size(self) -> int:
        """Bytes of the lessons that the model file does not have."""
        return self._size

    def lessons(self) -> Iterator[bytes]:
        """The lessons that the model file does not have, oldest first."""
        for (payload,) in self._base.execute("SELECT payload FROM lessons ORDER BY sequence"):
            yield payload

    def append(self, payload: bytes, answers: Sequence[Answer] = ()) -> None:
        """Add a lesson and the answers to those who asked for it: all on disk, or none if this raises OSError."""
        with self._transaction() as state:
            number, chain = state["last"]
            digest = _record_digest(chain, number + 1, payload)
            self._base.execute("INSERT INTO lessons VALUES (?, ?, ?)", (number + 1, payload, digest))
            for answer in answers:
                self._keep(state, answer)
            state["last"] = [number + 1, digest.hex()]
        self._size += len(payload)

    def announce(self, model: str, answer: Answer | None = None) -> None:
        """Note the digest of a model file that will be put in place next and holds everything learned so far."""
        with self._transaction() as state:
            kept = None if answer is None else [answer.key.hex(), answer.request.hex(), answer.text]
            state["next"] = {"model": model, "upto": state["last"], "answer": kept}

    def renamed(self) -> None:
        """The announced model file is in place: from now on it is the one this journal continues."""
        self._renamed = True

    def fold(self) -> None:
        """Erase the lessons that the announced model file holds."""
        with self._transaction():
            pass  # the transaction itself folds
        self._size = self._measured()

    def answer(self, key: bytes) -> Answer | None:
        """What was answered to this key."""
        row = self._base.execute("SELECT key, request, answer FROM answers WHERE key = ?", (key,)).fetchone()
        return None if row is None else Answer(*row)

    def close(self, *, remove_if_empty: bool = False) -> None:
        """Close the file; it is deleted if the caller allows it and it holds neither lessons nor keys."""
        empty = not self.waiting and not self._state["answers"] and not self._renamed
        self._base.close()
        if remove_if_empty and empty:
            self.path.unlink(missing_ok=True)
            sync_folder(self.path.parent)

    def _continue(self, model: str) -> None:
        """Make sure that the lessons continue this model file."""
        announced = self._state["next"]
        if announced is not None and announced["model"] == model:  # killed after the model was put in place
            self.renamed()
            self.fold()
        elif self._state["model"] != model and not self.waiting:  # written by another command; only keys are here
            with self._transaction() as state:
                state |= {"model": model, "next": None}
        elif self._state["model"] != model:
            raise DamagedFileError(
                f"{self.path} belongs to another model or another copy of this one; put back the model it was written "
                "beside, or move the journal away to give up what it holds"
            )

    def _measured(self) -> int:
        return int(self._base.execute("SELECT COALESCE(SUM(LENGTH(payload)), 0) FROM lessons").fetchone()[0])

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[dict[str, Any]]:
        """One transaction around changes of tables and of the state handed out; OSError means it was rolled back."""
        state = json.loads(json.dumps(self._state))
        try:
            self._base.execute("BEGIN IMMEDIATE")
            if self._renamed:
                self._fold_into(state)
            yield state
            _write_state(self._base, state)
            self._base.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            raise _disk_error(self.path, error) from error
        except BaseException:
            self._roll_back()
            raise
        self._state, self._renamed = state, False

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):  # SQLite has done so itself after some errors
            if self._base.in_transaction:
                self._base.execute("ROLLBACK")

    def _fold_into(self, state: dict[str, Any]) -> None:
        announced = state["next"]
        self._base.execute("DELETE FROM lessons WHERE sequence <= ?", (announced["upto"][0],))
        if announced["answer"] is not None:
            key, request, text = announced["answer"]
            self._keep(state, Answer(bytes.fromhex(key), bytes.fromhex(request), text))
        state |= {"model": announced["model"], "folded": announced["upto"], "next": None}

    def _keep(self, state: dict[str, Any], answer: Answer) -> None:
        self._base.execute(
            "INSERT INTO answers (key, request, answer, digest) VALUES (?, ?, ?, ?)", (*answer, _answer_digest(*answer))
        )
        state["answers"] += 1
        if state["answers"] > KEPT_ANSWERS:
            self._base.execute("DELETE FROM answers WHERE number = (SELECT MIN(number) FROM answers)")
            state["answers"] -= 1


def has_lessons(path: Path) -> bool:
    """Whether a journal holds lessons that its model file does not have; True if that cannot be seen."""
    if not path.exists():
        return False
    try:
        base = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            return base.execute("SELECT 1 FROM lessons LIMIT 1").fetchone() is not None
        finally:
            base.close()
    except sqlite3.Error:
        return True


def _set_mode(path: Path, mode: int) -> None:
    if stat.S_IMODE(path.stat().st_mode) != mode:
        with contextlib.suppress(PermissionError):  # a file of another user, which only that user can change
            path.chmod(mode)


def _create(path: Path, model: str, mode: int) -> None:
    """Make an empty journal under a temporary name, then rename it: an empty file is damage, never a beginning."""
    made = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        os.close(os.open(made, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))  # SQLite would let all read it
        base = _connect(made, "auto_vacuum=FULL", "journal_mode=DELETE")
        try:
            base.executescript(f"BEGIN; {_TABLES} PRAGMA user_version={_FORMAT};")
            state = {"kind": "nocl journal", "model": model, "next": None, "answers": 0}
            _write_state(base, state | {"folded": [0, ""], "last": [0, ""]})
            base.execute("COMMIT")
        finally:
            base.close()
        os.replace(made, path)
        sync_folder(path.parent)
    except sqlite3.Error as error:
        raise _disk_error(path, error) from error
    finally:
        made.unlink(missing_ok=True)


def _connect(path: Path, *settings: str) -> sqlite3.Connection:
    # the store's lock keeps other processes out; of this one's threads only the one that learns writes
    base = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    for setting in (*settings, "synchronous=EXTRA", "secure_delete=ON", "cell_size_check=ON"):
        with contextlib.suppress(sqlite3.DatabaseError, ValueError):  # a damaged file is reported when it is read
            base.execute(f"PRAGMA {setting}")
    return base


def _check_kind(path: Path) -> None:
    with open(path, "rb") as file:
        start = file.read(20)
    if start.startswith(b'{"kind": "nocl j'):
        raise DamagedFileError(
            f"{path} was written by an earlier nocl: serve the model once more with that version and stop it, which "
            "takes the journal into the model file; or move the journal away to give up what it holds"
        )
    if start[:16] != b"SQLite format 3\0" or start[18:] != b"\1\1":  # 2: a write-ahead log, which we never have
        raise DamagedFileError(
            f"{path} is not a journal that this nocl can read ({'empty' if not start else 'damaged'}); nothing was "
            "deleted: restore it from a copy, or move it away to give up what it holds"
        )


def _checked_state(base: sqlite3.Connection, path: Path) -> dict[str, Any]:
    """The state, after every record was compared with its digest and the indices with the records."""
    for (verdict,) in base.execute("PRAGMA integrity_check(1)"):
        if verdict != "ok":
            raise _damage(path, verdict.replace("\n", " "))
    version = base.execute("PRAGMA user_version").fetchone()[0]
    if version != _FORMAT:
        raise DamagedFileError(f"{path} has format {version}, this nocl reads {_FORMAT}: use the nocl that wrote it")
    text, digest = base.execute("SELECT state, digest FROM about").fetchone() or ("", b"")
    if hashlib.sha256(text.encode()).digest() != digest:
        raise _damage(path, "its first record does not match its digest")
    state: dict[str, Any] = json.loads(text)
    number, chain = state["folded"]
    for sequence, payload, digest in base.execute("SELECT sequence, payload, digest FROM lessons ORDER BY sequence"):
        if sequence != number + 1 or _record_digest(chain, sequence, payload) != digest:
            raise _damage(path, f"lesson {number + 1} does not match its digest")
        number, chain = sequence, digest.hex()
    if [number, chain] != state["last"]:
        raise _damage(path, f"lessons {number + 1} to {state['last'][0]} are missing")
    answers = 0
    for *answer, digest in base.execute("SELECT key, request, answer, digest FROM answers"):
        answers += 1
        if _answer_digest(*answer) != digest:
            raise _damage(path, f"the answer to idempotency key {answers} does not match its digest")
    if answers != state["answers"]:
        raise _damage(path, f"{state['answers'] - answers} answers to idempotency keys are missing")
    return state


def _write_state(base: sqlite3.Connection, state: dict[str, Any]) -> None:
    text = json.dumps(state, sort_keys=True)
    digest = hashlib.sha256(text.encode()).digest()
    base.execute("INSERT OR REPLACE INTO about VALUES (1, ?, ?)", (text, digest))


def _record_digest(chain: str, sequence: int, payload: bytes) -> bytes:
    return hashlib.sha256(b"%s|%d|" % (chain.encode(), sequence) + payload).digest()


def _answer_digest(key: bytes, request: bytes, text: str) -> bytes:
    return hashlib.sha256(b"|".join([key, request, text.encode()])).digest()


@contextlib.contextmanager
def _as_damage(path: Path) -> Iterator[None]:
    """What a damaged file makes SQLite or JSON say, as one kind of error."""
    try:
        yield
    except DamagedFileError:
        raise
    except (sqlite3.DatabaseError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        if isinstance(error, sqlite3.OperationalError) and _code(error) in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL):
            raise _disk_error(path, error) from error
        raise _damage(path, str(error)) from error


def _damage(path: Path, what: str) -> DamagedFileError:
    return DamagedFileError(
        f"{path} is damaged: {what}. Nothing was deleted: restore it from a copy, or move it away to give up what it "
        "holds"
    )


def _disk_error(path: Path, error: sqlite3.Error) -> OSError:
    if _code(error) == sqlite3.SQLITE_FULL:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    name = getattr(error, "sqlite_errorname", "")
    return FailedDiskError(errno.EIO, f"{error} {name}".strip(), str(path))


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary error code."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
