"""rda's time to classify one image among up to ten thousand classes, beside the network's own forward pass.

    python benchmarks/many_classes.py

Classes are synthetic: means and spreads drawn at random, 300 values a feature, since only time is measured. Factors of
the classes met in shortlists are computed once before timing, as in a service between two updates. Writes
many_classes.json and many_classes.svg.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time

import torch

from bank import RESULTS, keep
from nocl.batch import JSON
from nocl.methods.rda import RDA
from nocl.seeding import generator

COUNTS = (100, 1000, 10_000)
IMAGES = 32


def seconds(act: Callable[[], object], repeats: int = 5) -> float:
    """Median processor time of one call, so that other programs do not count."""
    act()
    times = []
    for _ in range(repeats):
        start = process_time()
        act()
        times.append(process_time() - start)
    return sorted(times)[repeats // 2]


def filled(n_classes: int, shortlist: int | None) -> RDA:
    """A learner of that many synthetic classes with three images each."""
    learner, draw = RDA(shortlist=shortlist), generator(0, "many classes")
    for start in range(0, n_classes, 500):
        labels = torch.arange(start, min(start + 500, n_classes))
        centres = torch.rand(len(labels), learner.feature_dim, generator=draw)
        for _ in range(3):
            noise = torch.randn(centres.shape, generator=draw)
            learner.learn((centres + 0.3 * noise).abs(), labels)
    return learner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shortlist", type=int, default=20)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    draw = generator(0, "images")
    images = torch.randint(256, (IMAGES, 3, 32, 32), generator=draw, dtype=torch.uint8)
    learner = RDA()
    forward = 1000 * seconds(lambda: learner.features(images)) / IMAGES
    points: list[JSON] = []
    for count in COUNTS:
        learner = filled(count, args.shortlist)
        z = torch.rand(IMAGES, learner.feature_dim, generator=draw)
        started = perf_counter()
        learner.score(z)
        first = perf_counter() - started
        each = 1000 * seconds(lambda learner=learner, z=z: learner.score(z)) / IMAGES  # type: ignore[misc]
        points.append({"classes": count, "score_ms": round(each, 3), "first_call_s": round(first, 2)})
        print(points[-1], flush=True)
    keep(
        args.out / "many_classes.json", f"python benchmarks/many_classes.py --shortlist {args.shortlist}", None,
        forward_ms_per_image=round(forward, 3), batch=IMAGES, shortlist=args.shortlist, points=points,
    )  # fmt: skip


if __name__ == "__main__":
    main()
