"""The durable store: what is acknowledged survives kills, torn writes, full disks; forgetting reaches the disk."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nocl.app.classifier import Classifier
from nocl.app.serve.journal import pack, unpack
from nocl.app.serve.store import BusyModelError, Store, journal_of
from nocl.learner import UnsupportedError
from nocl.plumbing.files import DamagedFileError
from tests.support.practice_models import fitted, pictures, same_bits, state


@pytest.fixture
def path(tmp_path: Path) -> Path:
    fitted(n=2).save(tmp_path / "m.nocl")
    return tmp_path / "m.nocl"


def crash(store: Store) -> None:
    """What a kill leaves: files as they are, the lock gone."""
    store._journal.close()
    store._lock.release()


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
def test_killed_two_hundred_times_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    assert "200 kills" in kill_many(tmp_path, 200, seed=0)


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


def test_readers_keep_the_model_they_took(path: Path) -> None:
    store = Store(path)
    old = store.model
    before = state(old)
    store.learn([(pictures("blue", 1), "blue")])
    assert same_bits(before, state(old))
    assert "blue" in store.model.class_names
    store.close()


def test_a_torn_last_frame_is_cut_off_at_every_length(path: Path) -> None:
    store = Store(path)
    store.learn([(pictures("blue", 1), "blue")])
    kept = journal_of(path).stat().st_size
    first = state(store.model)
    store.learn([(pictures("grey", 1), "grey")])
    crash(store)
    whole = journal_of(path).read_bytes()
    for length in [*range(kept, len(whole), 97), len(whole) - 1]:
        journal_of(path).write_bytes(whole[:length])
        again = Store(path)
        assert same_bits(first, state(again.model))
        assert journal_of(path).stat().st_size == kept
        crash(again)


def test_damage_before_the_last_frame_is_an_error_not_a_loss(path: Path) -> None:
    store = Store(path)
    start = journal_of(path).stat().st_size
    for seed in range(3):
        store.learn([(pictures("blue", 1, seed), "blue")])
    crash(store)
    content = bytearray(journal_of(path).read_bytes())
    content[start + 40] ^= 1
    journal_of(path).write_bytes(content)
    with pytest.raises(DamagedFileError, match="before its last frame"):
        Store(path)


def test_a_journal_of_another_model_is_refused(path: Path, tmp_path: Path) -> None:
    store = Store(path)
    store.learn([(pictures("blue", 1), "blue")])
    crash(store)
    fitted(n=3).save(path)
    with pytest.raises(DamagedFileError, match="belongs to another model"):
        Store(path)


def test_forgetting_reaches_every_file(path: Path) -> None:
    store = Store(path)
    store.learn([(pictures("blue", 2), "blue")])
    mean = store.model.learner_.state_dict()["stats.mean"][2].numpy().tobytes()
    crash(store)
    leftover = path.with_name(f".{path.name}.abc.part")
    leftover.write_bytes(mean)  # what a kill in the middle of writing leaves
    store = Store(path)
    assert mean in journal_of(path).read_bytes()
    store.forget("blue")
    crash(store)
    for file in path.parent.iterdir():
        content = file.read_bytes()
        assert mean not in content
        assert b"blue" not in content
    assert Store(path).model.class_names == ["red", "green"]


def test_a_full_disk_loses_nothing_and_promises_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(path)
    store.learn([(pictures("blue", 1), "blue")])
    before, size = state(store.model), journal_of(path).stat().st_size

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            store.learn([(pictures("grey", 1), "grey")])
    assert journal_of(path).stat().st_size == size
    assert same_bits(before, state(store.model))
    store.learn([(pictures("grey", 1), "grey")])
    after = state(store.model)
    crash(store)
    assert same_bits(after, state(Store(path).model))


def test_the_journal_is_folded_in_when_it_is_large(path: Path) -> None:
    store = Store(path, snapshot_bytes=1)
    store.learn([(pictures("blue", 1), "blue")])
    assert Classifier.load(path).counts_["blue"] == 1
    assert store.model.sequence_ == 1
    crash(store)
    assert Store(path).model.counts_["blue"] == 1  # once, not twice


def test_one_process_at_a_time_holds_a_model(path: Path) -> None:
    store = Store(path)
    with pytest.raises(BusyModelError, match="held by another"):
        Store(path)
    store.close()
    Store(path).close()


def test_a_method_without_statistics_cannot_be_served(tmp_path: Path) -> None:
    model = Classifier("finetune", backbone="tiny_resnet18", recipe={"epochs": 0})
    model.fit(torch.cat([pictures("red", 2), pictures("blue", 2)]), ["red", "red", "blue", "blue"])
    model.save(tmp_path / "m.nocl")
    with pytest.raises(UnsupportedError, match="changes its network"):
        Store(tmp_path / "m.nocl")
