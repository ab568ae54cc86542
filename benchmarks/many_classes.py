"""rda's time to classify one image among up to ten thousand classes, beside the network's own forward pass.

    python benchmarks/many_classes.py

Classes are synthetic: means and spreads drawn at random, 440 values a feature, since only time is measured. They are
kept in the low-rank form of the preset ``compact`` (``--storage full`` for packed triangles, 388 kB a class, and twice
as much again for their factors). What the first prediction after an update derives is timed apart, as ``first_call_s``:
a service pays it once between two updates. Times are processor time of one thread. Writes many_classes.json.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from time import process_time

import torch

from bank import RESULTS, keep
from nocl.methods.rda.method import RDA
from nocl.plumbing.seeding import generator
from nocl.plumbing.types import JSON
from nocl.results import peak_memory
from nocl.stats.class_stats import tukey

COUNTS = (100, 1000, 10_000)
IMAGES = 32
TAUGHT = 500


def seconds(act: Callable[[], object], repeats: int = 9) -> float:
    """Median processor time of one call, so that other programs do not count."""
    act()
    times = []
    for _ in range(repeats):
        start = process_time()
        act()
        times.append(process_time() - start)
    return sorted(times)[repeats // 2]


def filled(learner: RDA, n_classes: int) -> RDA:
    """Teach that many synthetic classes, three images each; low-rank shapes of all but the first 500 are copies."""
    draw = generator(0, "many classes")
    for start in range(0, n_classes, TAUGHT):
        labels = torch.arange(start, min(start + TAUGHT, n_classes))
        centres = torch.rand(len(labels), learner.feature_dim, generator=draw)
        z = (centres.repeat(3, 1) + 0.3 * torch.randn(3 * len(labels), learner.feature_dim, generator=draw)).abs()
        if start and learner.storage == "lowrank":
            learner.meet(labels.tolist())
            learner.stats.update(tukey(z, learner.power), labels.repeat(3))
            learner.shapes.directions[labels] = learner.shapes.directions[: len(labels)].clone()
            learner.shapes.weights[labels] = learner.shapes.weights[: len(labels)].clone()
        else:
            learner.learn(z, labels.repeat(3))
            learner.end_session()
    return learner


def measure(count: int, storage: str, shortlist: int | None) -> dict[str, JSON]:
    """Time and bytes of one learner of ``count`` classes."""
    params: dict[str, JSON] = {**RDA.presets["compact"], "storage": storage, "shortlist": shortlist}
    learner = filled(RDA(**params), count)  # type: ignore[arg-type]
    z = torch.rand(IMAGES, learner.feature_dim, generator=generator(count, "queries"))
    state = sum(t.numel() * t.element_size() for part in (learner.stats, learner.shapes) for t in part.buffers())
    started = process_time()
    learner.score(z)
    first = process_time() - started
    each = 1000 * seconds(lambda: learner.score(z)) / IMAGES
    return {
        "classes": count, "score_ms": round(each, 3), "first_call_s": round(first, 2),
        "state_mb": round(state / 1e6, 1), "peak_memory_so_far_mb": round((peak_memory() or 0) / 1e6),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--storage", default="lowrank", choices=("lowrank", "full"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    learner = RDA()
    images = torch.randint(256, (IMAGES, 3, 32, 32), generator=generator(0, "images"), dtype=torch.uint8)
    forwards: list[float] = []
    points: list[JSON] = []
    for count in COUNTS:
        forwards.append(1000 * seconds(lambda: learner.features(images)) / IMAGES)
        points.append({**measure(count, args.storage, learner.shortlist), "forward_ms": round(forwards[-1], 3)})
        print(points[-1], flush=True)
    keep(
        args.out / "many_classes.json", f"python benchmarks/many_classes.py --storage {args.storage}", None,
        forward_ms_per_image=round(sorted(forwards)[1], 3), batch=IMAGES, shortlist=learner.shortlist,
        storage=args.storage, points=points,
    )  # fmt: skip


if __name__ == "__main__":
    main()
