"""How long a grid will take: from finished runs of the same kind where there are any, else from a short measurement.

Through images the network's passes are what costs, so a measurement times a few of them and counts how many a run
needs. On features that are there the method itself is what costs, so it is tried on a few rows of noise. Either is
right within a factor of two or so for methods on a frozen network and rougher for the others; it is meant for planning.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from nocl import nets
from nocl.experiments.grid import base_of
from nocl.experiments.job import Job
from nocl.learner import FrozenLearner, Learner
from nocl.plumbing.seeding import generator
from nocl.pretrain import heads_on_features
from nocl.results import RunResult
from nocl.streams import parse_partition

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
    base = epochs * sizes[0] * n_train * views(learner.full_recipe.objective) * pace
    if (taken := _taken(job, known)) is not None:
        return Cost(base, taken, True)
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


def seconds_on_features(job: Job, known: Sequence[RunResult]) -> Cost:
    """What one run takes on features that are there; base is its heads and base statistics, which orders share."""
    learner = job.with_changes(device="cpu", params={**job.params, "weights": None}).learner(32)
    if not isinstance(learner, FrozenLearner):
        raise TypeError(f"{job.method} does not run on features alone")
    n_classes, n_train, n_test, _ = _sizes(job)
    sizes = parse_partition(job.partition, n_classes)
    learner.meet(range(sizes[0]))
    few, more = 5, 20  # rows of a class: part of the cost goes with them, part is paid once, and the first call is slow
    _, first, second = (_base_session(copy.deepcopy(learner), sizes[0], rows) for rows in (1, few, more))
    base = first + max(0.0, second - first) * (n_train - few) / (more - few)
    if (taken := _taken(job, known)) is not None:
        return Cost(base, taken, True)
    learner.fit_base_features([_noise(sizes[0], few, learner.feature_dim)])
    learner.meet(range(sizes[0], sizes[0] + sizes[1]))
    z, y = _noise(sizes[1], 20, learner.feature_dim)
    start = perf_counter()
    for some, labels in zip(z.split(job.batch_size), y.split(job.batch_size)):
        learner.learn(some, labels + sizes[0])
    learned = (perf_counter() - start) * sum(sizes[1:]) * n_train / len(z)
    start = perf_counter()
    learner.end_session()
    ended = (perf_counter() - start) * (len(sizes) - 1)
    learner.score(z[:1])  # what is solved once after learning is no cost of one image
    start = perf_counter()
    learner.score(z)
    seen = sum(sum(sizes[: t + 1]) for t in range(len(sizes)))
    return Cost(base, learned + ended + (perf_counter() - start) * seen * n_test / len(z), False)


def _base_session(learner: FrozenLearner, n_classes: int, each: int) -> float:
    """Seconds for heads and base statistics from so many rows of noise of each class."""
    z, y = _noise(n_classes, each, learner.feature_dim)
    start = perf_counter()
    if learner.needs_heads():
        heads_on_features(learner.network, z, y, learner.full_recipe, n_classes=n_classes, seed=0)
    learner.fit_base_features([(z, y)])
    return perf_counter() - start


def _noise(n_classes: int, each: int, dim: int) -> tuple[Tensor, Tensor]:
    """Features [N, dim] as a rectified layer gives them, and their labels, shuffled."""
    draw = generator(0, "noise")
    y = torch.arange(n_classes).repeat(each)[torch.randperm(n_classes * each, generator=draw)]
    return torch.rand(len(y), dim, generator=draw), y


def _taken(job: Job, known: Sequence[RunResult]) -> float | None:
    """Seconds after the base session of finished runs of the same method on the same data; None without any."""
    same = [run for run in known if (run.method, run.stream.get("dataset")) == (job.method, job.dataset)]
    return median(sum(run.seconds[1:]) + sum(run.test_seconds) for run in same) if same else None


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


def views(objective: str) -> int:
    """Images that pass the network for each image of a base batch."""
    views = 2 if objective.startswith("sc") else 1
    return views * (2 if "+da" in objective else 1) + (3 if "+ssl" in objective else 0)


def _passes(learner: Learner, batch_size: int) -> float:
    """Training passes for each online image: a third for a frozen network, more with replay."""
    if isinstance(learner, FrozenLearner):
        return 1 / 3
    replayed = getattr(learner, "replay_batch", 0)
    return 1 + float(replayed) / batch_size
