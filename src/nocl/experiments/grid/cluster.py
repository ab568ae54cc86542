"""The Ray engine: the same tasks on a Ray cluster, or on a local Ray. Results are those of the local engine.

Ray restarts a task when its process or node is lost; the run continues in its folder if the nodes share a file system,
else from the start. Needs the extra ``ray``.
"""

import traceback
from collections.abc import Sequence
from typing import Any

from nocl.experiments.grid.work import Event, Say, Task, perform
from nocl.plumbing.cluster import on_cluster
from nocl.plumbing.types import JSON
from nocl.results import RunResult
from nocl.run import RESULT

SECONDS_BETWEEN_LOOKS = 1.0


def run_on_ray(
    tasks: Sequence[Task], say: Say, *, workers: int, address: str | None, gpus: float, retries: int
) -> None:
    """Perform the tasks on the cluster at ``address``, or on a local Ray with room for ``workers`` tasks."""
    cpus = workers * max((task.threads for task in tasks), default=1)
    with on_cluster(address, cpus=cpus) as ray:
        _perform_all(ray, tasks, say, gpus, retries)


def _perform_all(ray: Any, tasks: Sequence[Task], say: Say, gpus: float, retries: int) -> None:
    running: dict[Any, Task] = {}
    for task in tasks:  # Ray starts as many as there is room for
        settings = {"num_cpus": task.threads, "num_gpus": gpus, "max_retries": retries, "name": task.job.name()}
        running[ray.remote(_work).options(**settings).remote(task)] = task
        say(Event(task.number, "started"))
    while running:
        over, _ = ray.wait(list(running), timeout=SECONDS_BETWEEN_LOOKS)
        for reference in over:
            say(_outcome(ray, reference, running.pop(reference)))
        for task in running.values():
            _tell_progress(task, say)


def _outcome(ray: Any, reference: Any, task: Task) -> Event:
    """Write the result to the local folder if the node could not."""
    try:
        found: dict[str, JSON] = ray.get(reference)
    except ray.exceptions.RayError as error:  # lost more often than the retries allow
        return Event(task.number, "failed", f"Ray gave this run up: {error}")
    if "error" in found:
        return Event(task.number, "failed", str(found["error"]))
    path = task.folder / RESULT
    if not path.exists():  # the node does not share our file system
        RunResult.from_json(found["result"]).save(path)
    return Event(task.number, "done")


def _tell_progress(task: Task, say: Say) -> None:
    """Sessions learned, read from the result so far where the file system is shared."""
    path = task.folder / RESULT
    if path.exists():
        result = RunResult.load(path)
        say(Event(task.number, "progress", "sessions", len(result.accuracy) - 1, len(result.sizes) - 1))


def _work(task: Task) -> dict[str, JSON]:
    """Runs on a node. An error of the run is returned as its result; only a lost process is tried again."""
    try:
        return {"result": perform(task, _say_nothing).to_json()}
    except Exception:  # any error of a run is reported with its traceback and must not stop the others
        return {"error": traceback.format_exc()}


def _say_nothing(event: Event) -> None:
    """Ignore progress: a node can send its result only."""
