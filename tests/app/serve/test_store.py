"""The durable store: what is acknowledged survives kills, torn writes, full disks; forgetting reaches the disk."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from nocl.app.classifier import Classifier
from nocl.app.packing import pack, unpack
from nocl.app.serve.journal import KEPT_ANSWERS, FailedDiskError, Journal, has_lessons
from nocl.app.serve.store import Key, OtherRequestError, Store, journal_of
from nocl.learner import UnsupportedError
from nocl.plumbing.files import BusyFileError
from tests.support.practice_models import fitted, pictures, same_bits, state
from tests.support.stores import crash, taught


def kill_many(folder: Path, kills: int, seed: int) -> str:
    root = Path(__file__).parents[3]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])}
    done = subprocess.run(
        [sys.executable, str(root / "tests" / "support" / "kill_store.py"), str(folder), str(kills), str(seed)],
        env=environment, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_again_and_again_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    assert "20 kills" in kill_many(tmp_path, 20, seed=0)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_five_hundred_times_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    assert "500 kills" in kill_many(tmp_path, 500, seed=1)


def test_packed_statistics_come_back_bit_for_bit() -> None:
    model = fitted()
    part = model.apart().partial_fit(pictures("blue", 3), "blue").partial_fit(pictures("red", 1), "red")
    again = unpack(pack(part), model.apart())
    assert same_bits(state(part), state(again))
    assert again.counts_ == {"blue": 3, "red": 1}


def test_learning_is_replayed_after_a_crash(path: Path) -> None:
    store = Store(path)
    store.learn([(pictures("blue", 2), "blue"), (pictures("red", 1, 7), "red")])
    store.learn([(pictures("grey", 1), "grey")])
    before = state(store.model)
    crash(store)
    assert Classifier.load(path).class_names == ["red", "green"]  # only the journal knows
    again = Store(path)
    assert same_bits(before, state(again.model))
    again.close()
    assert not journal_of(path).exists()
    assert Classifier.load(path).counts_ == {"red": 3, "green": 2, "blue": 2, "grey": 1}


def test_after_a_crash_a_copy_made_before_counts_once(path: Path) -> None:
    store = Store(path)
    store.learn([(pictures("blue", 2), "blue")])
    download = store.model.copy()
    store.learn([(pictures("grey", 1), "grey")])
    history = store.model.history_
    crash(store)
    again = Store(path)
    assert again.model.history_ == history
    again.close()
    model = Classifier.load(path)
    assert model.merge(download).counts_ == {"red": 2, "green": 2, "blue": 2, "grey": 1}


def test_readers_keep_the_model_they_took(path: Path) -> None:
    store = Store(path)
    old = store.model
    before = state(old)
    store.learn([(pictures("blue", 1), "blue")])
    assert same_bits(before, state(old))
    assert "blue" in store.model.class_names
    store.close()


def test_lessons_leave_no_threads_behind(path: Path) -> None:
    store = Store(path)
    before = threading.active_count()
    for _ in range(6):
        store.learn([(pictures("red", 1), "red")])
    time.sleep(0.2)  # for those that were told to end
    assert threading.active_count() <= before + 1  # the one that ends the time for undo
    assert store.before is not None
    store.close()
    time.sleep(0.2)
    assert threading.active_count() <= before


def test_a_model_with_an_empty_history_can_be_served(path: Path) -> None:
    model = Classifier.load(path)
    model.history_ = []
    model.save(path)
    store = Store(path)
    store.learn([(pictures("blue", 1), "blue")])
    crash(store)
    assert Store(path).model.counts_["blue"] == 1


def test_a_key_is_answered_with_the_first_answer_across_restarts(path: Path) -> None:
    store = Store(path)
    key = Key.of("a", "learn", "blue", 1)
    first = store.learn([(pictures("blue", 1), "blue")], [key])[0]
    assert store.answered(key).values == first.values  # type: ignore[union-attr]
    crash(store)
    store = Store(path)
    assert store.answered(key).values == first.values  # type: ignore[union-attr]
    store.close()  # now the lesson is in the model file, and the key still in the journal
    assert not has_lessons(journal_of(path))
    Classifier.load(path).partial_fit(pictures("grey", 1), "grey").save(path)  # another command may write the model
    store = Store(path)
    assert store.answered(key).values == first.values  # type: ignore[union-attr]
    assert store.model.counts_["grey"] == 1
    with pytest.raises(OtherRequestError, match="another request"):
        store.answered(Key.of("a", "learn", "red", 1))
    forget = Key.of("b", "forget", "blue")
    gone = store.forget("blue", forget)
    crash(store)
    assert Store(path).answered(forget).values == gone.values  # type: ignore[union-attr]


def test_the_number_of_keys_is_bounded_and_the_oldest_go_first(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert KEPT_ANSWERS == 10_000
    monkeypatch.setattr("nocl.app.serve.journal.KEPT_ANSWERS", 3)
    taught(path, 5)
    store = Store(path)
    known = [store.answered(Key.of(f"k{i}", "learn")) is not None for i in range(5)]
    assert known == [False, False, True, True, True]


def test_forgetting_reaches_every_file(path: Path) -> None:
    store = Store(path)
    store.learn([(pictures("blue", 2), "blue")], [Key.of("my key", "learn", "blue", 2)])
    mean = store.model.learner_.state_dict()["stats.mean"][2].numpy().tobytes()
    crash(store)
    leftover = path.with_name(f".{path.name}.abc.part")
    leftover.write_bytes(mean)  # what a kill in the middle of writing leaves
    store = Store(path)
    assert mean in journal_of(path).read_bytes()
    store.forget("blue", Key.of("other key", "forget", "blue"))
    crash(store)
    _assert_nowhere(path, mean)
    assert Store(path).model.class_names == ["red", "green"]


def test_what_neighbours_left_is_theirs(path: Path) -> None:
    theirs = path.with_name(f".{path.name}.bak.parts")
    theirs.mkdir()
    left = [path.with_name(f".{path.name}{end}") for end in (".bak.abcd_123.part", ".old.journal.0123abcd.part")]
    ours = [path.with_name(f".{path.name}{end}") for end in (".abcd_123.part", ".journal.0123abcd.part-journal")]
    for file in (*left, *ours):
        file.write_bytes(b"x")
    path.with_name(f".{path.name}.zzzzzzzz.part").mkdir()  # a folder is never what a killed writer leaves
    Store(path).close()
    assert theirs.is_dir()
    assert [file.exists() for file in (*left, *ours)] == [True, True, False, False]


def _assert_nowhere(path: Path, mean: bytes) -> None:
    for file in path.parent.iterdir():
        content = file.read_bytes()
        assert mean not in content
        assert b"blue" not in content


def test_after_an_interrupted_forget_the_statistics_do_not_stay_in_the_journal(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(path)
    store.learn([(pictures("blue", 2), "blue")])
    mean = store.model.learner_.state_dict()["stats.mean"][2].numpy().tobytes()

    def killed(self: Journal) -> None:
        raise KeyboardInterrupt

    key = Key.of("k", "forget", "blue")
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "fold", killed)  # the model file is in place, the journal not yet emptied
        with pytest.raises(KeyboardInterrupt):
            store.forget("blue", key)
    crash(store)
    assert mean in journal_of(path).read_bytes()
    store = Store(path)
    assert store.model.class_names == ["red", "green"]
    assert store.answered(key) is not None
    crash(store)
    _assert_nowhere(path, mean)


def fill_disk(store: Store) -> None:
    """No page more in the journal: SQLite says that the disk is full."""
    pages = store._journal._base.execute("PRAGMA page_count").fetchone()[0]
    store._journal._base.execute(f"PRAGMA max_page_count={pages}")


def empty_disk(store: Store) -> None:
    store._journal._base.execute("PRAGMA max_page_count=1000000")


def test_a_full_disk_loses_nothing_and_promises_nothing(path: Path) -> None:
    store = Store(path)
    store.learn([(pictures("blue", 1), "blue")])
    before = state(store.model)
    fill_disk(store)
    many = [(pictures("grey", 1), f"grey {i}") for i in range(20)]  # more than the last page has room for
    with pytest.raises(OSError, match="No space"):
        store.learn(many, [Key.of("k", "learn")])
    assert "No space" in (store.trouble or "")
    assert same_bits(before, state(store.model))
    assert store.answered(Key.of("k", "learn")) is None
    empty_disk(store)
    store.learn([(pictures("grey", 1), "grey")], [Key.of("k", "learn")])
    assert store.trouble is None
    after = state(store.model)
    crash(store)
    assert same_bits(after, state(Store(path).model))


def _no_space(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


def _broken(*_: object, **__: object) -> None:
    raise OSError(5, "Input/output error")


def test_a_snapshot_that_fails_does_not_turn_a_durable_lesson_into_an_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(path, snapshot_bytes=1)
    with monkeypatch.context() as patched:
        patched.setattr("nocl.app.modelfile.write_atomically", _no_space)
        assert store.learn([(pictures("blue", 1), "blue")])[0].values["count"] == 1
        assert "stay in the journal" in (store.trouble or "")
        with pytest.raises(OSError, match="No space"):
            store.forget("blue")
        assert store.model.counts_["blue"] == 1
        store.close()
    store = Store(path)
    assert store.model.counts_["blue"] == 1
    store.learn([(pictures("blue", 1), "blue")])
    assert store.trouble is None
    store.close()
    assert Classifier.load(path).counts_["blue"] == 2


def test_after_an_error_of_the_disk_itself_nothing_is_learned_until_a_restart(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(path)
    store.learn([(pictures("blue", 1), "blue")])
    with monkeypatch.context() as patched:
        patched.setattr("nocl.app.modelfile.write_atomically", _broken)
        with pytest.raises(FailedDiskError):
            store.snapshot()
    for change in (lambda: store.learn([(pictures("red", 1), "red")]), lambda: store.forget("red"), store.snapshot):
        with pytest.raises(FailedDiskError, match="until a restart"):
            change()
    assert store.trouble is not None
    store.close()
    store = Store(path)
    assert store.model.counts_ == {"red": 2, "green": 2, "blue": 1}
    store.learn([(pictures("red", 1), "red")])


def test_lessons_after_a_journal_that_could_not_be_emptied_count_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(path)
    store.learn([(pictures("blue", 1), "blue")])
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "fold", _no_space)
        with pytest.raises(OSError, match="No space"):
            store.snapshot()
    store.learn([(pictures("blue", 1, 1), "blue")])
    crash(store)
    store = Store(path)
    assert store.model.counts_["blue"] == 2
    store.snapshot()
    store.learn([(pictures("blue", 1, 2), "blue")])
    crash(store)
    assert Store(path).model.counts_["blue"] == 3


@pytest.mark.skipif(sys.platform != "linux", reason="refuses the system call by seccomp")
@pytest.mark.parametrize("call", ["fsync", "write"])
def test_a_disk_that_fails_under_sqlite_stops_the_store_and_loses_nothing(path: Path, call: str) -> None:
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, str(root / "tests" / "support" / "failing_disk.py"), str(path), call],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "3 learned, then refused twice\n"
    assert Store(path).model.counts_ == {"red": 2, "green": 2, "blue": 3}


def test_the_journal_is_folded_in_when_it_is_large(path: Path) -> None:
    store = Store(path, snapshot_bytes=1)
    store.learn([(pictures("blue", 1), "blue")])
    assert Classifier.load(path).counts_["blue"] == 1
    assert store.sequence == 1
    crash(store)
    assert Store(path).model.counts_["blue"] == 1  # once, not twice


def test_one_process_at_a_time_holds_a_model(path: Path) -> None:
    store = Store(path)
    with pytest.raises(BusyFileError, match="held by another"):
        Store(path)
    linked = path.with_name("linked.nocl")
    linked.symlink_to(path)
    with pytest.raises(BusyFileError, match="held by another"):
        Store(linked)
    with pytest.raises(BusyFileError, match="held by another"):
        store.model.copy().save(linked)
    with pytest.raises(BusyFileError, match="held by another"):
        store.model.copy().save(path)
    store.close()
    Store(linked).close()


def test_a_method_without_statistics_cannot_be_served(tmp_path: Path) -> None:
    model = Classifier("finetune", backbone="tiny_resnet18", recipe={"epochs": 0})
    model.fit(torch.cat([pictures("red", 2), pictures("blue", 2)]), ["red", "red", "blue", "blue"])
    model.save(tmp_path / "m.nocl")
    with pytest.raises(UnsupportedError, match="changes its network"):
        Store(tmp_path / "m.nocl")
