"""How learning scales with the number of processes: a million vectors of 1,280 values, 1,000 classes, made by a seed.

    python benchmarks/scale_learning.py                       # the million, with one and two workers
    python benchmarks/scale_learning.py --vectors 50000       # a quick look

Every part of the vectors is generated where it is learned and is never held whole. The method is slda, whose statistics
(count and mean of each class, one covariance) are also those that rda shares among classes. scale_learning.json has
the seconds and the peak memory by number of workers, the seconds of each piece of the work (generation in place of a
network's features, statistics, packing, merging), and from the pieces what more workers would give. Run it on an idle
machine.
"""

import argparse
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load as tensors_from
from safetensors.torch import save as tensor_bytes

from nocl.methods.slda import SLDA
from nocl.plumbing.files import write_json
from nocl.plumbing.types import JSON
from nocl.plumbing.workers import Say, Work, in_processes
from nocl.results import environment, peak_memory

RESULTS = Path(__file__).parent / "results"
DIM, CLASSES, AT_ONCE, PARTS = 1280, 1000, 1024, 64
NETWORK_BYTES_PER_SECOND = 1e9  # 10 Gbit/s, less what is lost on the way: only for the prediction of many machines


@dataclass(frozen=True)
class Part:
    """Vectors ``first`` to ``last`` of ``total``, which are sorted by class."""

    first: int
    last: int
    total: int


@dataclass(frozen=True)
class Learned:
    """What a worker answers."""

    payload: bytes
    seconds: dict[str, float]
    memory: int


def start(seed: int) -> Work:
    """A worker: one learner, emptied before each part."""
    torch.set_num_threads(1)
    empty = learner_of(seed)
    centres = np.random.default_rng(seed).normal(size=(CLASSES, DIM)).astype(np.float32)

    def learn(part: Part, say: Say) -> Learned:
        learner = empty.empty_copy()
        seconds = dict.fromkeys(("generation", "statistics"), 0.0)
        for first in range(part.first, part.last, AT_ONCE):
            begun = time.perf_counter()
            z, y = vectors(part, first, seed, centres)
            made = time.perf_counter()
            learner.learn(z, y)
            seconds["generation"] += made - begun
            seconds["statistics"] += time.perf_counter() - made
            say(len(z))
        begun = time.perf_counter()
        payload = tensor_bytes({name: t for name, t in learner.state_dict().items() if name != "_extra_state"})
        seconds["packing"] = time.perf_counter() - begun
        return Learned(payload, seconds, peak_memory() or 0)

    return learn


def learner_of(seed: int) -> SLDA:
    return SLDA(backbone=f"features:{DIM}", seed=seed)


def vectors(part: Part, first: int, seed: int, centres: NDArray[np.float32]) -> tuple[torch.Tensor, torch.Tensor]:
    """One batch; its numbers depend on the seed and on its place alone."""
    last = min(first + AT_ONCE, part.last)
    labels = np.arange(first, last) * CLASSES // part.total
    noise = np.random.default_rng([seed, first]).standard_normal((last - first, DIM), dtype=np.float32)
    return torch.from_numpy(noise + centres[labels]), torch.from_numpy(labels)


def measure(total: int, workers: int, seed: int) -> tuple[dict[str, Any], SLDA]:
    """Learn all vectors with so many processes, adding up their parts as they come."""
    count = min(PARTS, max(1, total // AT_ONCE))
    bounds = [round(total / count * i) for i in range(count + 1)]
    parts = [Part(first, last, total) for first, last in pairwise(bounds)]
    whole = learner_of(seed)
    pieces = dict.fromkeys(("generation", "statistics", "packing", "merging"), 0.0)
    memory = size = 0
    begun, starting = time.perf_counter(), 0.0
    for _, value, over in in_processes(parts, start, seed, workers=workers):
        starting = starting or time.perf_counter() - begun  # until the first batch: processes, imports
        if not over:
            continue
        since = time.perf_counter()
        learner = learner_of(seed)
        learner.load_state_dict(tensors_from(value.payload), strict=False)
        whole.merge(learner)
        pieces["merging"] += time.perf_counter() - since
        for name, seconds in value.seconds.items():
            pieces[name] += seconds
        memory, size = max(memory, value.memory), size + len(value.payload)
    seconds = time.perf_counter() - begun
    row = {
        "workers": workers, "seconds": round(seconds, 2), "vectors_per_second": round(total / seconds),
        "starting": round(starting, 2), **{name: round(value, 2) for name, value in pieces.items()},
        "parts": count, "transferred_mb": round(size / 1e6, 1), "worker_peak_mb": round(memory / 1e6),
        "main_peak_mb": round((peak_memory() or 0) / 1e6),
    }  # fmt: skip
    print(row, flush=True)
    return row, whole


def predicted(row: dict[str, Any], workers: int) -> dict[str, JSON]:
    """From one worker's pieces. What is done apart is shared out, a part a time; the rest one process does alone.

    There are at least as many parts as workers, and each sends its own statistics, so both grow with the workers.
    """
    parts = max(row["parts"], workers)
    apart = (row["generation"] + row["statistics"] + row["packing"]) * -(-parts // workers) / parts
    once = row["merging"] / row["parts"] + 1e6 * row["transferred_mb"] / row["parts"] / NETWORK_BYTES_PER_SECOND
    seconds = row["starting"] + max(apart, parts * once) + once  # merging goes on while others learn, but for the last
    return {"workers": workers, "seconds": round(seconds, 1), "times_one": round(row["seconds"] / seconds, 1)}


def difference(a: SLDA, b: SLDA) -> float:
    """The largest difference of the two learners' means and covariances, relative to the largest value."""
    order = torch.tensor([a.classes_.tolist().index(label) for label in b.classes_.tolist()])
    pairs = [(a.stats.mean[order], b.stats.mean), (a.stats.scatter, b.stats.scatter)]
    return max(float((mine - theirs).abs().max() / mine.abs().max()) for mine, theirs in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rows, learners = zip(*(measure(args.vectors, workers, args.seed) for workers in args.workers))
    report: dict[str, JSON] = {
        "vectors": args.vectors, "dim": DIM, "classes": CLASSES, "seed": args.seed, "method": "slda",
        "rows": list(rows), "times_one": [round(rows[0]["seconds"] / row["seconds"], 2) for row in rows],
        "largest_difference": max(difference(learners[0], other) for other in learners),
        "predicted": [predicted(rows[0], workers) for workers in (2, 16, 256)],
        "environment": environment(),
    }  # fmt: skip
    print(report["times_one"], report["largest_difference"], report["predicted"])
    suffix = "" if args.vectors == 1_000_000 else f"-{args.vectors}"
    write_json(RESULTS / f"scale_learning{suffix}.json", report)


if __name__ == "__main__":
    main()
