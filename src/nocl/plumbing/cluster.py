"""Ray, if installed: starting it, and doing the work of :mod:`nocl.plumbing.workers` on a cluster."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from nocl.plumbing.workers import TRIES, Message, Prepare, WorkFailedError, cores

LOCAL = "local"  # the address that means: start one here
STARTS = 3  # of a local Ray, before its failure is reported


@contextmanager
def on_cluster(address: str | None, *, cpus: int) -> Iterator[Any]:
    """Connect Ray to ``address``, or start it here with so many processors; stop it if it was started here."""
    ray = import_ray()
    started_here = not ray.is_initialized()
    if started_here:
        quiet = {"log_to_driver": False, "logging_level": logging.WARNING}
        if address and address != LOCAL:
            ray.init(address=address, **quiet)
        else:
            start_local(ray, num_cpus=cpus, **quiet)
    try:
        yield ray
    finally:
        if started_here:
            ray.shutdown()


def start_local(ray: Any, **settings: Any) -> None:
    """Start a local Ray. Ray waits 30 s for its node; on a busy machine one more attempt helps."""
    for left in reversed(range(STARTS)):
        try:
            ray.init(include_dashboard=False, **settings)
            return
        except Exception as error:  # Ray raises nothing more exact for a start that takes too long
            if not left or "timed out during startup" not in str(error):
                raise
            ray.shutdown()


def import_ray() -> Any:
    """The package, or an error that says how to install it."""
    try:
        import ray
    except ImportError as error:
        raise ImportError("Ray is an extra: pip install 'nocl[ray]'") from error
    return ray


def on_ray(
    pieces: Sequence[Any],
    prepare: Prepare,
    settings: Any,
    *,
    address: str,
    workers: int | None = None,
    tries: int = TRIES,
) -> Iterator[Message]:
    """Do all pieces with actors of one processor each; ``workers`` None: as many as the cluster has processors.

    Ray replaces a lost actor. Progress is reported for whole pieces only.
    """
    with on_cluster(address, cpus=workers or cores()) as ray:
        workers = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        shared = ray.put(settings)
        options = {"num_cpus": 1, "max_restarts": tries, "max_task_retries": tries}
        idle = [ray.remote(_Actor).options(**options).remote(prepare, shared) for _ in range(min(workers, len(pieces)))]
        left = list(enumerate(pieces))[::-1]
        running: dict[Any, tuple[int, Any]] = {}
        while left or running:
            while left and idle:
                (number, piece), actor = left.pop(), idle.pop()
                running[actor.do.remote(piece)] = number, actor
            over, _ = ray.wait(list(running), num_returns=1)
            for reference in over:
                number, actor = running.pop(reference)
                idle.append(actor)
                yield Message(number, _answer(ray, reference, number), over=True)


class _Actor:
    """One process on a node."""

    def __init__(self, prepare: Prepare, settings: Any) -> None:
        self._work = prepare(settings)

    def do(self, piece: Any) -> Any:
        return self._work(piece, _say_nothing)


def _answer(ray: Any, reference: Any, number: int) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise WorkFailedError(f"{type(error.cause).__name__}: {error.cause}") from None
    except ray.exceptions.RayError as error:  # lost more often than the retries allow
        raise WorkFailedError(f"Ray gave part {number + 1} up: {error}") from error


def _say_nothing(value: Any) -> None:
    """Ignore progress: a node can send its result only."""
