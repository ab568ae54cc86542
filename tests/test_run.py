"""The protocol: a killed run ends as an uninterrupted one does; base networks are cached and never mixed up."""

import subprocess
import sys
import time
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from nocl.checks import QUICK
from nocl.experiments.job import Job
from nocl.learner import Learner, UnsupportedError
from nocl.methods import make
from nocl.plumbing.types import Batch
from nocl.pretrain import WrongBaseError
from nocl.results import RunResult
from nocl.run import RESULT, STATE, ResumeError, run
from nocl.streams import Stream, arrange, class_incremental
from tests.support.commands import nocl
from tests.support.small_data import small

TIMES = ("seconds", "test_seconds", "peak_memory", "environment")


def stream() -> Stream:
    return class_incremental(small(10, per_class=6), partition="60+20x2", base_batch_size=12)


def learner(method: str = "finetune", **params: object) -> Learner:
    return make(method, **{**QUICK, "recipe": {"epochs": 2, "compile": False}, **params})  # type: ignore[arg-type]


def measured(result: RunResult) -> dict[str, object]:
    return {name: value for name, value in result.to_json().items() if name not in TIMES}


class Killed(Exception):
    pass


def test_interrupted_run_ends_with_the_same_result(tmp_path: Path) -> None:
    whole = run(learner(), stream())

    def die_after_session_one(result: RunResult) -> None:
        if len(result.accuracy) == 2:
            raise Killed

    with pytest.raises(Killed):
        run(learner(), stream(), folder=tmp_path, on_session=die_after_session_one)
    partial = RunResult.load(tmp_path / RESULT)
    assert not partial.finished
    assert len(partial.accuracy) == 2
    assert measured(run(learner(), stream(), folder=tmp_path)) == measured(whole)


def test_finished_run_is_not_run_again(tmp_path: Path) -> None:
    first = run(learner("ncm"), stream(), folder=tmp_path)
    again = run(learner("ncm"), stream(), folder=tmp_path)
    assert again == first  # times included: nothing was measured anew


def test_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    run(learner("ncm"), stream(), folder=tmp_path)
    with pytest.raises(ResumeError, match="another run"):
        run(learner("ncm", power=0.3), stream(), folder=tmp_path)


def test_base_network_is_trained_once_and_shared(tmp_path: Path) -> None:
    first, second = learner("ncm"), learner("finetune")
    run(first, stream(), cache=tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert len(before) == 1
    base = stream().base
    second.fit_base(base, workdir=tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    assert torch.equal(first.network.conv1.weight, second.network.conv1.weight)
    run(learner("ncm", seed=1), stream(), cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_base_network_under_a_wrong_name_is_refused(tmp_path: Path) -> None:
    run(learner("ncm"), stream(), cache=tmp_path)
    (right,) = tmp_path.iterdir()
    run(learner("ncm", seed=1), stream(), cache=tmp_path)
    (wrong,) = set(tmp_path.iterdir()) - {right}
    right.rename(wrong)
    with pytest.raises(WrongBaseError, match="other settings"):
        run(learner("ncm", seed=1), stream(), cache=tmp_path)


def test_weights_trained_on_later_classes_are_refused(tmp_path: Path) -> None:
    run(learner("ncm"), stream(), cache=tmp_path)
    (path,) = tmp_path.iterdir()
    fine = run(learner("ncm", weights=str(path)), stream())
    assert fine.base["weights"] == path.name
    with pytest.raises(WrongBaseError, match="brings later"):
        run(
            learner("ncm", weights=str(path)),
            class_incremental(small(10, per_class=6), partition="60+20x2", order_seed=4),
        )


def test_base_training_killed_and_continued_gives_the_same_bits(tmp_path: Path) -> None:
    epochs = {"recipe": {"epochs": 3, "schedule": "onecycle", "augment": "crop_flip", "compile": False}}
    whole = learner("ncm", **epochs).fit_base(stream().base)

    class Stops(Exception):
        pass

    class Base:
        """The base session, broken off in its third epoch."""

        def __init__(self) -> None:
            self.inner = stream().base
            self.classes = self.inner.classes

        def __len__(self) -> int:
            return len(self.inner)

        def __iter__(self):  # type: ignore[no-untyped-def]
            return iter(self.inner)

        def epoch(self, index: int):  # type: ignore[no-untyped-def]
            if index == 2:
                raise Stops
            return self.inner.epoch(index)

        def describe(self):  # type: ignore[no-untyped-def]
            return self.inner.describe()

    with pytest.raises(Stops):
        learner("ncm", **epochs).fit_base(Base(), workdir=tmp_path)
    assert [path.name.endswith(".partial.safetensors") for path in tmp_path.glob("*.safetensors")] == [True]
    continued = learner("ncm", **epochs).fit_base(stream().base, workdir=tmp_path)
    for name, tensor in whole.network.state_dict().items():
        assert torch.equal(tensor, continued.network.state_dict()[name]), name
    assert continued.log_ == whole.log_


def test_killed_process_loses_no_finished_session(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "nocl", "run", "ncm", "--partition", "60+4x10", "--epochs", "1"]
    command += ["--set", "backbone=tiny_resnet18", "--set", "recipe.compile=false", "--out", str(tmp_path)]
    command += ["--data", "train_per_class=4", "--data", "test_per_class=2"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob(f"ncm*/{STATE}")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    (folder,) = tmp_path.glob("ncm*")
    assert (folder / STATE).exists()
    nocl("run", "--resume", folder)
    result = RunResult.load(folder / RESULT)
    job = Job.load(folder)
    images = job.stream()
    assert measured(result) == measured(run(job.learner(images.image_size), images))
    assert (folder / "report.html").exists()


def test_every_batch_is_delivered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Batch] = []
    counted = learner("ncm")
    observe = counted.observe
    monkeypatch.setattr(counted, "observe", lambda x, y: (seen.append(Batch(x, y)), observe(x, y)))
    run(counted, stream())
    assert sum(len(y) for _, y in seen) == 4 * 6


BLURRED = "si_blurry:base=60,sessions=3,blur=0.5"


def blurred(seed: int = 0) -> Stream:
    return arrange(small(10, per_class=8), BLURRED, batch_size=3, base_batch_size=12, seed=seed)


def test_tests_in_the_middle_of_sessions_change_nothing_learned() -> None:
    plain, tested = learner(), learner()
    without, result = run(plain, blurred()), run(tested, blurred(), test_every=8)
    for name, tensor in plain.state_dict().items():
        assert torch.equal(tensor, tested.state_dict()[name]), name
    assert {**measured(result), "anytime": None} == {**measured(without), "anytime": None}
    assert result.anytime is not None
    assert without.anytime is None
    ends = list(accumulate(len(y) for session in blurred() for _, y in session))
    assert list(result.anytime.images) == [min(end for end in ends if end >= n) for n in (8, 16, 24, 32)]
    assert sum(result.test_seconds) > 0


def test_a_learner_that_does_not_depend_on_batches_is_tested_at_exactly_that_image() -> None:
    plain, tested = learner("ncm"), learner("ncm")
    run(plain, blurred())
    result = run(tested, blurred(), test_every=7)  # in the middle of batches of 3
    assert result.anytime is not None
    assert list(result.anytime.images) == [7, 14, 21, 28]
    asked: list[int] = []
    ncm = learner("ncm")
    ncm.predict = lambda x: asked.append(len(x)) or type(ncm).predict(ncm, x)  # type: ignore[method-assign, func-returns-value]
    ends = run(ncm, blurred(), test_every=32)  # the last test falls on the end of the last session
    assert ends.anytime is not None
    assert ends.anytime.class_accuracy[-1] == ends.class_accuracy[-1]
    assert sum(asked) == 2 * (6 + sum(len(set().union(*blurred().blocks[: t + 1])) for t in (1, 2, 3)))  # the last once
    x = small(10, per_class=8).test.take(np.arange(20)).x
    assert torch.allclose(tested.decision_function(x), plain.decision_function(x), atol=1e-6)


def test_interrupted_run_with_tests_in_the_middle_ends_with_the_same_result(tmp_path: Path) -> None:
    whole = run(learner(), blurred(), test_every=4)

    def die(result: RunResult) -> None:
        if len(result.accuracy) == 2:
            raise Killed

    with pytest.raises(Killed):
        run(learner(), blurred(), folder=tmp_path, on_session=die, test_every=4)
    with pytest.raises(ResumeError, match="tested every 4 images, not 8"):
        run(learner(), blurred(), folder=tmp_path, test_every=8)
    assert measured(run(learner(), blurred(), folder=tmp_path, test_every=4)) == measured(whole)


def test_killed_in_the_middle_of_a_session_the_session_begins_again(tmp_path: Path) -> None:
    whole = run(learner(), blurred(), test_every=4)
    broken = learner()
    observe, calls = broken.observe, []

    def sometimes(x: torch.Tensor, y: torch.Tensor) -> None:
        calls.append(1)
        if len(calls) == 7:
            raise Killed
        observe(x, y)

    broken.observe = sometimes  # type: ignore[method-assign]
    with pytest.raises(Killed):
        run(broken, blurred(), folder=tmp_path, test_every=4)
    assert measured(run(learner(), blurred(), folder=tmp_path, test_every=4)) == measured(whole)


def test_blurred_sessions_are_tested_on_the_classes_met() -> None:
    stream = blurred(1)
    result = run(learner("ncm"), stream)
    assert sorted(label for block in result.session_classes for label in block) == list(range(10))
    for t, row in enumerate(result.class_accuracy):
        met = sum(len(block) for block in stream.blocks[: t + 1])
        assert sum(value is not None for value in row) == met
        assert sum(result.confusion[t].values()) == 2 * met  # two test images a class


def test_without_a_base_session_a_network_must_be_given(tmp_path: Path) -> None:
    data = small(10, per_class=6)
    with pytest.raises(UnsupportedError, match="give the weights"):
        run(learner("ncm"), arrange(data, "disjoint:base=0"))
    run(learner("ncm"), class_incremental(data, partition="60+20x2"), cache=tmp_path)
    (weights,) = tmp_path.iterdir()
    with pytest.raises(WrongBaseError, match="brings later"):  # it has seen classes of this very stream
        run(learner("ncm", weights=str(weights)), arrange(data, "disjoint:base=0"))


def test_a_stream_without_sessions_is_refused_by_a_method_that_needs_them() -> None:
    with pytest.raises(UnsupportedError, match="this stream has none"):
        run(learner("pass"), arrange(small(10), "shuffled"))


def test_a_network_of_other_data_needs_no_base_session(tmp_path: Path) -> None:
    state = learner("ncm").network.state_dict()
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, tmp_path / "other.safetensors")
    data = small(10, per_class=6)

    def again() -> RunResult:
        stream = arrange(data, "disjoint:base=0,sessions=3", batch_size=4)
        return run(learner("ncm", weights=str(tmp_path / "other.safetensors")), stream, folder=tmp_path / "run")

    result = again()
    assert result.sizes == (0, 4, 3, 3)
    assert result.base_acc is None
    assert result.base["weights"] == "other.safetensors"
    assert result.accuracy[0] == (None,) * 4
    assert result.novel_acc == result.acc == pytest.approx(result.a_last)
    assert again() == result
