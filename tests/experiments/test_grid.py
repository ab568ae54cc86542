"""The grid: nothing twice, the rest after a kill, one failure beside the others, one training of a base network."""

import json
import os
import signal
import subprocess
import sys
import time
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch

from nocl.experiments.grid import Engine, Event, finished, folder_of, run_grid
from nocl.experiments.grid.work import BEFORE, ERROR
from nocl.plumbing import workers
from nocl.results import RunResult
from nocl.run import RESULT, STATE, run
from tests.support.grid_jobs import TWO, job, measured


def test_results_equal_those_of_plain_runs_and_are_found_again(tmp_path: Path) -> None:
    jobs = [job(), job("slda"), job()]
    kinds: list[tuple[int, str]] = []
    outcomes = run_grid(jobs, tmp_path, engine=TWO, on_event=lambda event: kinds.append((event.number, event.kind)))
    assert [outcome.error for outcome in outcomes] == [None] * 3
    torch.set_num_threads(1)
    stream = job("slda").stream()
    alone = run(job("slda").learner(stream.image_size), stream)
    assert measured(outcomes[1].result) == measured(alone)
    assert outcomes[2].result == outcomes[0].result  # named twice, run once: the times are equal too
    assert {number for number, kind in kinds if kind == "done"} == {0, 1}
    assert not list(tmp_path.rglob(STATE))  # finished runs leave their result

    again: list[Event] = []
    found = run_grid(jobs, tmp_path, engine=TWO, on_event=again.append)
    assert [event.kind for event in again] == ["cached", "cached"]
    assert [outcome.result for outcome in found] == [outcome.result for outcome in outcomes]
    assert all(outcome.cached for outcome in found)


def test_a_result_of_other_defaults_is_not_taken_for_this_one(tmp_path: Path) -> None:
    usual, chosen = job("slda"), job("slda", shrinkage=0.5)
    first = run_grid([usual, chosen], tmp_path, engine=TWO)
    for each in (usual, chosen):  # as if the default had been another one then
        path = folder_of(each, tmp_path) / RESULT
        content = json.loads(path.read_text())
        content["params"]["shrinkage"] = 0.5
        path.write_text(json.dumps(content))
    again = run_grid([usual, chosen], tmp_path, engine=TWO)
    assert [outcome.cached for outcome in again] == [False, True]
    assert measured(again[0].result) == measured(first[0].result)
    assert json.loads((folder_of(usual, tmp_path) / BEFORE).read_text())["params"]["shrinkage"] == 0.5


def test_a_result_of_an_earlier_rule_is_not_taken_for_this_one(tmp_path: Path) -> None:
    now = run_grid([job("rda")], tmp_path, engine=TWO)[0].result
    assert now is not None
    path = folder_of(job("rda"), tmp_path) / RESULT
    content = json.loads(path.read_text())
    assert content.pop("scoring") == now.scoring > 1  # the first results did not say it
    path.write_text(json.dumps(content))
    assert RunResult.load(path).scoring == 1
    [again] = run_grid([job("rda")], tmp_path, engine=TWO)
    assert not again.cached
    assert measured(again.result) == measured(now)


def test_base_network_is_trained_once_by_jobs_that_share_it(tmp_path: Path) -> None:
    """The method's base training takes a while and counts itself; the second job must wait for the first."""
    counter = tmp_path / "trainings"
    jobs = [job("tests.support.grid_methods:Counting", counter=str(counter), tag=tag) for tag in ("a", "b")]
    outcomes = run_grid(jobs, tmp_path / "out", engine=TWO)
    assert [outcome.error for outcome in outcomes] == [None, None]
    assert counter.read_text().count("epoch") == 1
    assert len(list((tmp_path / "out" / "cache").iterdir())) == 1


def test_two_processes_that_do_not_know_of_each_other_train_one_network(tmp_path: Path) -> None:
    """Without the grid's order the lock beside the network decides."""
    code = (
        "import sys; from pathlib import Path; from tests.support.grid_jobs import job; from nocl.run import run\n"
        "one = job('tests.support.grid_methods:Counting', counter=sys.argv[2], tag=sys.argv[3])\n"
        "stream = one.stream()\n"
        "run(one.learner(stream.image_size), stream, cache=Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "cache"), str(tmp_path / "trainings")]
    processes = [subprocess.Popen([*command, tag]) for tag in "ab"]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    assert (tmp_path / "trainings").read_text().count("epoch") == 1


def test_failures_are_reported_and_the_others_go_on(tmp_path: Path) -> None:
    jobs = [job("tests.support.grid_methods:Broken"), job("tests.support.grid_methods:Dying"), job()]
    outcomes = run_grid(jobs, tmp_path, engine=TWO)
    broken, dying, fine = outcomes
    assert broken.error is not None
    assert "Traceback" in broken.error
    assert "ZeroDivisionError: broken on purpose" in broken.error
    assert (broken.folder / ERROR).read_text() == broken.error
    assert dying.error is not None
    assert "SIGKILL" in dying.error
    assert (fine.error, broken.result, dying.result) == (None, None, None)
    assert finished(fine.folder) is not None


def test_killed_grid_continues_where_it_stood(tmp_path: Path) -> None:
    """Kill the grid itself after a session; its processes end, and the next call goes on from that session."""
    out = tmp_path / "out"
    slow = job("tests.support.grid_methods:Slow", marks=str(tmp_path / "marks"))
    code = (
        "import sys; from pathlib import Path; from nocl.experiments.grid import run_grid\n"
        "from tests.support.grid_jobs import job, TWO\n"
        "run_grid([job('tests.support.grid_methods:Slow', marks=sys.argv[2])], Path(sys.argv[1]), engine=TWO)"
    )
    grid = subprocess.Popen([sys.executable, "-c", code, str(out), str(tmp_path / "marks")])
    result = folder_of(slow, out) / RESULT
    deadline = time.monotonic() + 120
    while not (result.exists() and len(RunResult.load(result).accuracy) == 2):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(grid.pid, signal.SIGKILL)
    grid.wait()
    before = RunResult.load(result)
    (tmp_path / "marks").with_suffix(".go").touch()  # from here on it is not slow any more
    (outcome,) = run_grid([slow], out, engine=TWO)
    assert outcome.result is not None
    assert outcome.result.seconds[:2] == before.seconds[:2]  # kept, not measured again
    whole = slow.stream()
    assert measured(outcome.result) == measured(run(slow.learner(whole.image_size), whole))


def test_a_killed_fork_server_takes_no_other_run_along(tmp_path: Path) -> None:
    """Kill the server that processes are forked from, as the system does for lack of memory; the grid goes on."""
    killed: list[int] = []

    def kill_once(event: Event) -> None:
        if event.kind == "started" and not killed:
            killed.append(int(forkserver._forkserver._forkserver_pid))  # type: ignore[attr-defined]
            os.kill(killed[0], signal.SIGKILL)

    jobs = [job(), job("slda"), job(seed=1)]
    outcomes = run_grid(jobs, tmp_path, engine=Engine(workers=1, threads=1), on_event=kill_once)
    assert killed
    assert all((outcome.result is None) != (outcome.error is None) for outcome in outcomes)  # each one is accounted for
    assert [outcome.error for outcome in outcomes[1:]] == [None, None]
    again = run_grid(jobs, tmp_path, engine=Engine(workers=1, threads=1))
    assert [outcome.error for outcome in again] == [None] * 3


def test_a_server_that_dies_between_request_and_answer_is_started_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaths = iter([EOFError(), ConnectionRefusedError()])
    real = workers._context("nocl.experiments.grid.local").Process.start  # type: ignore[attr-defined]

    def start(process: BaseProcess) -> None:
        if (death := next(deaths, None)) is not None:
            raise death
        real(process)

    monkeypatch.setattr(workers._context("nocl.experiments.grid.local").Process, "start", start)  # type: ignore[attr-defined]
    (outcome,) = run_grid([job()], tmp_path, engine=TWO)
    assert outcome.error is None
    deaths = iter([EOFError()] * workers.STARTS)
    failed, fine = run_grid([job("slda"), job("fecam")], tmp_path, engine=TWO)
    assert failed.error is not None
    assert "fork server died 3 times" in failed.error
    assert fine.error is None


def test_interrupting_the_grid_ends_its_processes(tmp_path: Path) -> None:
    pids: list[int] = []

    def interrupt(event: Event) -> None:
        if event.kind == "progress" and (tmp_path / "marks").exists():
            pids.extend(int(line) for line in (tmp_path / "marks").read_text().split())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_grid(
            [job("tests.support.grid_methods:Slow", marks=str(tmp_path / "marks"))],
            tmp_path / "out", engine=TWO, on_event=interrupt,
        )  # fmt: skip
    assert pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_weights_count_by_content(tmp_path: Path) -> None:
    first, copy, other = (tmp_path / name for name in ("a", "b", "c"))
    first.write_bytes(b"x")
    copy.write_bytes(b"x")
    other.write_bytes(b"y")
    assert job(weights=str(first)).digest() == job(weights=str(copy)).digest() != job(weights=str(other)).digest()


def test_workers_and_threads_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nocl.experiments.grid.cores", lambda: 8)
    assert Engine().shares(100) == (8, 1)
    assert Engine().shares(3) == (3, 2)
    assert Engine(threads=2).shares(100) == (4, 2)
    assert Engine(workers=1).shares(100) == (1, 8)
    assert Engine().shares(0) == (1, 8)
    with pytest.raises(ValueError, match="workers must be 1 or more"):
        Engine(workers=0)
    with pytest.raises(ValueError, match="unknown engine 'rye'; did you mean 'ray'"):
        Engine("rye")


def test_tensorboard_writes_one_point_a_session(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    (outcome,) = run_grid([job()], tmp_path, engine=TWO, log="tensorboard")
    assert outcome.result is not None
    events = accumulator.EventAccumulator(str(outcome.folder / "tensorboard"))
    events.Reload()
    assert [point.value for point in events.Scalars("session/acc")] == pytest.approx(
        [scores.acc for scores in outcome.result.curve]
    )
