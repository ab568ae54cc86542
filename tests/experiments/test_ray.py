"""The Ray engine: a worker killed in the middle of a run changes no result.

Marked ``ray`` and run by ``make test`` after the others, alone: Ray starts eight processes of its own and does not like
to wait for processors. ``pytest -m ray`` runs it by itself.
"""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from nocl.experiments.grid import Engine, Event, run_grid
from nocl.plumbing.cluster import start_local
from tests.support.grid_jobs import TWO, job, measured

pytest.importorskip("ray")
pytestmark = pytest.mark.ray


def test_killed_worker_changes_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_worker_niceness", "0")  # Ray's workers give way to everything else unless told not to
    marks = tmp_path / "marks"
    slow = job("tests.support.grid_methods:Slow", marks=str(marks))
    jobs = [slow, job("slda", seed=1), job("tests.support.grid_methods:Broken")]
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


class BusyRay:
    """Stands in for Ray on a machine where its node is too late a given number of times."""

    def __init__(self, too_late: int, complaint: str = "The current node timed out during startup.") -> None:
        self.too_late, self.complaint, self.starts, self.stops = too_late, complaint, 0, 0

    def init(self, **settings: object) -> None:
        assert settings == {"include_dashboard": False, "num_cpus": 2}
        self.starts += 1
        if self.starts <= self.too_late:
            raise Exception(self.complaint)

    def shutdown(self) -> None:
        self.stops += 1


def test_a_local_ray_that_starts_too_late_is_started_again() -> None:
    busy = BusyRay(too_late=2)
    start_local(busy, num_cpus=2)
    assert (busy.starts, busy.stops) == (3, 2)
    with pytest.raises(Exception, match="timed out"):
        start_local(BusyRay(too_late=3), num_cpus=2)
    broken = BusyRay(too_late=3, complaint="no space left")
    with pytest.raises(Exception, match="no space left"):
        start_local(broken, num_cpus=2)
    assert broken.starts == 1  # another try would not help
