"""The Ray engine: the same tasks on a Ray cluster, or on a local Ray. Results are those of the local engine.

Ray starts a task again when the process or node that had it is lost; it goes on in the run's folder if that lies on
a file system the nodes share, else from the start. Needs the extra ``ray``.
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
    """Bring the result home."""
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
    """What runs on a node. An error of the run is an answer; only a lost process is tried again."""
    try:
        return {"result": perform(task, _say_nothing).to_json()}
    except Exception:  # whatever a run raises must not stop the others: it is reported with its traceback
        return {"error": traceback.format_exc()}


def _say_nothing(event: Event) -> None:
    """Nodes have no way to speak but their result."""
