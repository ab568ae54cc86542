"""The Ray engine: a worker killed in the middle of a run changes no result.

Marked slow: it took 142 s on two busy cores, and Ray gives its own node 30 s to start and fails beyond that, so on a
machine with much else to do the test fails for no fault of ours. Run it with ``pytest -m slow tests/test_ray.py``.
"""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from nocl.grid import Engine, Event, run_grid

from .test_grid import TWO, job, measured

pytest.importorskip("ray")
pytestmark = pytest.mark.slow


def test_killed_worker_changes_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_worker_niceness", "0")  # Ray's workers give way to everything else unless told not to
    marks = tmp_path / "marks"
    slow = job("tests.grid_methods:Slow", marks=str(marks))
    jobs = [slow, job("slda", seed=1), job("tests.grid_methods:Broken")]
    killed: list[int] = []

    def kill_once() -> None:
        deadline = time.monotonic() + 300
        while not marks.exists() or marks.read_text().count("\n") < 3:
            if time.monotonic() > deadline:
                return
            time.sleep(0.05)
        killed.append(int(marks.read_text().split()[0]))
        marks.with_suffix(".go").touch()  # the second attempt does not wait
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill_once, daemon=True)
    killer.start()
    events: list[Event] = []
    engine = Engine("ray", workers=2, threads=1, retries=2)
    outcomes = run_grid(jobs, tmp_path / "ray", engine=engine, on_event=events.append)
    killer.join()
    pids = set(marks.read_text().split())
    assert killed
    assert len(pids) == 2  # a second process took the run over
    assert outcomes[2].error is not None
    assert "ZeroDivisionError: broken on purpose" in outcomes[2].error  # reported, not tried again
    assert [event.kind for event in events if event.kind in ("done", "failed")].count("done") == 2
    local = run_grid(jobs[:2], tmp_path / "local", engine=TWO)
    for ours, theirs in zip(outcomes, local):
        assert measured(ours.result) == measured(theirs.result)
