"""Damage to the journal: whatever happened to its bytes, it is reported by name, and nothing is deleted."""

import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from nocl.app.serve.journal import Journal, has_lessons
from nocl.app.serve.store import Key, Store, journal_of
from nocl.plumbing.files import DamagedFileError, file_digest
from tests.support.practice_models import fitted, pictures
from tests.support.stores import crash, taught


def test_any_flipped_bit_in_the_journal_is_reported_or_harmless_and_deletes_nothing(path: Path) -> None:
    whole, model = taught(path), file_digest(path)
    lessons = list(_lessons(path))
    draw, reported = np.random.default_rng(0), 0
    written = np.flatnonzero(np.frombuffer(whole, np.uint8))  # most of a page is empty
    for position in draw.choice(written, 300):
        content = bytearray(whole)
        content[position] ^= 1 << int(draw.integers(8))
        journal_of(path).write_bytes(content)
        try:
            journal = Journal(journal_of(path), model)
        except DamagedFileError as error:
            said, reported = str(error), reported + 1
        else:
            said = None
            assert list(journal.lessons()) == lessons  # a byte that means nothing
            journal.close()
        if said is not None:
            assert str(journal_of(path)) in said
            assert journal_of(path).read_bytes() == content  # the evidence is as it was
    assert reported > 250


def test_a_flipped_bit_in_the_index_of_keys_is_found(path: Path) -> None:
    """The table still holds the answer, but a retry would not find it and would be learned twice."""
    store, key = Store(path), Key.of("k", "learn")
    store.learn([(pictures("blue", 1), "blue")], [key])
    crash(store)
    content = journal_of(path).read_bytes()
    places = [at for at in range(len(content)) if content.startswith(key.key, at)]
    assert len(places) == 2  # the record and the index
    for place in places:
        damaged = bytearray(content)
        damaged[place + 5] ^= 1
        journal_of(path).write_bytes(damaged)
        with pytest.raises(DamagedFileError, match="is damaged"):
            Store(path)
        assert journal_of(path).read_bytes() == damaged
    journal_of(path).write_bytes(content)
    crash(Store(path))


def test_a_flipped_bit_in_the_last_lesson_is_named(path: Path) -> None:
    content = bytearray(taught(path))
    payload = list(_lessons(path))[-1]
    content[content.find(payload[-40:]) + 3] ^= 1
    journal_of(path).write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"lesson 3 does not match its digest.*Nothing was deleted"):
        Store(path)


def _lessons(path: Path) -> Iterator[bytes]:
    with sqlite3.connect(journal_of(path)) as base:
        for (payload,) in base.execute("SELECT payload FROM lessons ORDER BY sequence"):
            yield payload


@pytest.mark.parametrize("which", [1, 2, 3])
def test_a_lesson_that_is_missing_is_noticed(path: Path, which: int) -> None:
    taught(path)
    with sqlite3.connect(journal_of(path)) as base:
        base.execute("DELETE FROM lessons WHERE sequence = ?", (which,))
    with pytest.raises(DamagedFileError, match=f"lesson {which} does not|lessons 3 to 3 are missing"):
        Store(path)


@pytest.mark.parametrize("content", [b"", b"junk", b'{"kind": "nocl journal", "format": 1, "model": "x"}\n'])
def test_what_is_not_a_journal_of_ours_is_refused_with_a_remedy(path: Path, content: bytes) -> None:
    journal_of(path).write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"move it away|move the journal away"):
        Store(path)
    assert journal_of(path).read_bytes() == content


def test_a_journal_of_another_model_is_refused(path: Path) -> None:
    store = Store(path)
    store.learn([(pictures("blue", 1), "blue")])
    crash(store)
    fitted(n=3).save(path)
    with pytest.raises(DamagedFileError, match="belongs to another model"):
        Store(path)


@pytest.mark.parametrize("folder", ["a#b", "50%", "a%20b", "what?", "ü b"])
def test_lessons_are_seen_whatever_the_folder_is_called(tmp_path: Path, folder: str) -> None:
    path = tmp_path / folder / "m.nocl"
    path.parent.mkdir()
    fitted(n=2).save(path)
    taught(path, 1)
    before = sorted(tmp_path.rglob("*"))
    assert has_lessons(journal_of(path))
    assert sorted(tmp_path.rglob("*")) == before
    Store(path).close()  # takes the lessons in; the keys stay
    assert not has_lessons(journal_of(path))


def test_a_journal_is_seen_by_a_relative_path(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taught(path, 1)
    monkeypatch.chdir(path.parent)
    assert has_lessons(Path(journal_of(path).name))


@pytest.mark.skipif(os.name != "posix", reason="file modes")
@pytest.mark.parametrize(("mode", "wanted"), [(0o600, 0o600), (0o640, 0o640), (0o400, 0o600)])
def test_the_journal_can_be_read_by_those_who_can_read_the_model(path: Path, mode: int, wanted: int) -> None:
    path.chmod(mode)
    taught(path, 1)
    assert stat.S_IMODE(journal_of(path).stat().st_mode) == wanted
    journal_of(path).chmod(0o666)  # as one of before may be
    crash(Store(path))
    assert stat.S_IMODE(journal_of(path).stat().st_mode) == wanted
