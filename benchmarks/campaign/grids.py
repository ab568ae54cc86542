"""Kill -9 of grids: processes of runs, the fork server, the grid itself. Every job ends as in a quiet run."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from functools import cache
from multiprocessing import forkserver
from pathlib import Path

from benchmarks.campaign.kills import place
from benchmarks.campaign.tally import Counts
from tests.support.grid_jobs import TWO, job, measured

from nocl.experiments.grid import run_grid
from nocl.experiments.job import Job

ROOT = Path(__file__).parents[2]
JOBS = [job("ncm", seed) for seed in range(3)] + [job("slda"), job("rda")]


def kill_grid_processes(times: int, seed: int) -> Counts:
    """Kill the processes of runs, and now and then their fork server, while a grid works; then let it end."""
    draw = random.Random(seed)
    total = {"kills": 0, "of the fork server": 0, "grids": 0, "runs reported as failed": 0, "other results": 0}
    with place() as folder:
        expected = _undisturbed()
        while total["kills"] < times:
            total["grids"] += 1
            out, over = Path(folder) / str(total["grids"]), threading.Event()
            killer = threading.Thread(target=_kill, args=(draw, over, total))
            killer.start()
            try:
                for _ in range(4):  # what was killed is tried again, and may be killed again
                    for outcome in run_grid(JOBS, out, engine=TWO):
                        total["runs reported as failed"] += outcome.error is not None
            finally:
                over.set()
                killer.join()
            total["other results"] += _results(JOBS, out) != expected
    return total


@cache
def _undisturbed() -> list[str]:
    with place() as folder:
        return _results(JOBS, Path(folder))


def _results(jobs: list[Job], out: Path) -> list[str]:
    return [json.dumps(measured(outcome.result), sort_keys=True) for outcome in run_grid(jobs, out, engine=TWO)]


def _kill(draw: random.Random, over: threading.Event, total: Counts) -> None:
    """Kill one process after the other until the grid is over."""
    while not over.wait(draw.uniform(0.1, 1.0)):
        server = int(forkserver._forkserver._forkserver_pid or 0)  # type: ignore[attr-defined]
        runs = _children(server) if server else []
        if not runs:
            continue
        victim = server if draw.random() < 0.02 else draw.choice(runs)
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            continue
        total["kills"] += 1
        total["of the fork server"] += victim == server


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


_CODE = """
import sys
from pathlib import Path
from benchmarks.campaign.grids import JOBS
from nocl.experiments.grid import run_grid
from tests.support.grid_jobs import TWO
print("ready", flush=True)
run_grid(JOBS, Path(sys.argv[1]), engine=TWO)
"""


def kill_grids(times: int, seed: int) -> Counts:
    """Kill the grid's own process; its processes end by themselves, and the next call goes on."""
    draw, total = random.Random(seed), {"kills": 0, "ended before the kill": 0, "grids": 0, "other results": 0}
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    with place() as folder:
        expected = _undisturbed()
        while total["kills"] < times:
            total["grids"] += 1
            out = Path(folder) / str(total["grids"])
            for _ in range(2):
                grid = subprocess.Popen(
                    [sys.executable, "-c", _CODE, str(out)], env=environment, stdout=subprocess.PIPE, cwd=ROOT,
                    stderr=subprocess.DEVNULL,
                )  # fmt: skip
                assert grid.stdout is not None
                grid.stdout.readline()
                time.sleep(draw.uniform(0, 12))
                total["kills" if grid.poll() is None else "ended before the kill"] += 1
                grid.kill()
                grid.wait()
            total["other results"] += _results(JOBS, out) != expected
    return total
