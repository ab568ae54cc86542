"""Stores for tests: one that was killed, and one that was taught."""

from pathlib import Path

from nocl.app.serve.store import Key, Store, journal_of
from tests.support.practice_models import pictures


def crash(store: Store) -> None:
    """What a kill leaves: files as they are, the lock gone."""
    store._journal.close()
    store._lock.release()


def taught(path: Path, lessons: int = 3) -> bytes:
    """A journal with lessons, after a crash; its content."""
    store = Store(path)
    for seed in range(lessons):
        store.learn([(pictures("blue", 1, seed), "blue")], [Key.of(f"k{seed}", "learn")])
    crash(store)
    return journal_of(path).read_bytes()
