"""How long a grid will take: from finished runs of the same kind where there are any, else from a short measurement.

The network's passes are what costs, so a measurement times a few of them and counts how many a run needs. That is right
within a factor of two or so for methods on a frozen network and rougher for the others; it is meant for planning.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from time import perf_counter

import torch

from nocl import nets
from nocl.grid import base_of
from nocl.job import Job
from nocl.learner import FrozenLearner, Learner
from nocl.results import RunResult
from nocl.stream import parse_partition

BACKBONE = "reduced_resnet18"
SIZES = {  # classes, training and test images of each, side
    "cifar100": (100, 500, 100, 32),
    "mini_imagenet": (100, 500, 100, 84),
    "core50": (50, 2398, 900, 128),
}


@dataclass(frozen=True)
class Cost:
    """Seconds for the base network and for everything after it, and whether the latter come from finished runs."""

    base: float
    rest: float
    from_results: bool


def cost(job: Job, known: Sequence[RunResult]) -> Cost:
    """What one run takes alone; ``known`` are finished runs, of which those of the same method and data set count."""
    learner = job.with_changes(device="cpu").learner(32)
    n_classes, n_train, n_test, side = _sizes(job)
    sizes = parse_partition(job.partition, n_classes)
    pace = seconds_per_image(learner.backbone, side)
    epochs = 0 if learner.weights else learner.full_recipe.epochs
    base = epochs * sizes[0] * n_train * _views(learner.full_recipe.objective) * pace
    same = [run for run in known if (run.method, run.stream.get("dataset")) == (job.method, job.dataset)]
    if same:
        return Cost(base, median(sum(run.seconds[1:]) + sum(run.test_seconds) for run in same), True)
    online = sum(sizes[1:]) * n_train * _passes(learner, job.batch_size) * pace
    seen = sum(sum(sizes[: t + 1]) for t in range(len(sizes)))
    return Cost(base, online + (sizes[0] * n_train + seen * n_test) * pace / 3, False)


def total_seconds(jobs: Sequence[Job], known: Sequence[RunResult], done: set[str], workers: int) -> float:
    """All jobs on so many workers; each base network counts once, those in ``done`` not at all."""
    seconds, paid = 0.0, set(done)
    for job in jobs:
        needed = cost(job, known)
        key = base_of(job)
        seconds += needed.rest + (0.0 if key in paid else needed.base)
        paid.add(key)
    return seconds / workers


def feature_seconds(job: Job) -> float:
    """One pass of all images of the job's data set through its network."""
    n_classes, n_train, n_test, side = _sizes(job)
    return n_classes * (n_train + n_test) * seconds_per_image(str(job.chosen().get("backbone", BACKBONE)), side) / 3


@cache
def seconds_per_image(backbone: str, side: int, n: int = 20) -> float:
    """Time of one image forward and backward through the network, measured now; a third of it is forward."""
    network = nets.build(backbone).train()
    images = torch.zeros(n, 3, side, side)
    times = []
    for _ in range(3):
        start = perf_counter()
        network(images).sum().backward()
        times.append(perf_counter() - start)
    return min(times) / n


def _sizes(job: Job) -> tuple[int, int, int, int]:
    if job.dataset in SIZES:
        return SIZES[job.dataset]
    data = job.stream().data
    return data.n_classes, len(data.train) // data.n_classes, len(data.test) // data.n_classes, data.image_size


def _views(objective: str) -> int:
    """Images that pass the network for each image of a base batch."""
    views = 2 if objective.startswith("sc") else 1
    return views * (2 if "+da" in objective else 1) + (3 if "+ssl" in objective else 0)


def _passes(learner: Learner, batch_size: int) -> float:
    """Training passes for each online image: a third for a frozen network, more with replay."""
    if isinstance(learner, FrozenLearner):
        return 1 / 3
    replayed = getattr(learner, "replay_batch", 0)
    return 1 + float(replayed) / batch_size
