"""What DSR's online learning costs, as multiples of a bare forward pass over the same images, from one run.

    python benchmarks/dsr_online.py --dataset cifar100 --out benchmarks/results/dsr/online-d2048.json

All times are taken in one process, so that their ratio does not depend on what else the machine does: each batch is
passed through the network bare and then observed. One session with the defaults and one with the preset ``fast``, in
turn and in alternating order; medians over ``--repeat``. ``--weights`` is optional; the cost does not depend on it.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import torch

from nocl import data
from nocl.methods.dsr import DSR
from nocl.plumbing.files import write_json
from nocl.plumbing.types import JSON, Batch
from nocl.results import environment
from nocl.streams import class_incremental

PARTS = {"features": "forward", "learn": "statistics", "lower_level": "lower level", "upper_level": "upper level"}


def timed(learner: DSR, spent: dict[str, float]) -> None:
    """Add up the processor time of each part of the method."""

    def wrap(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            start = process_time()
            out = method(*args)
            spent[name] += process_time() - start
            return out

        return run

    for method, part in PARTS.items():
        setattr(learner, method, wrap(part, getattr(learner, method)))


def session(learner: DSR, batches: list[Batch]) -> tuple[float, dict[str, float]]:
    """One session: processor time of a bare forward pass of its images, and of each part of the method."""
    spent: dict[str, float] = defaultdict(float)
    timed(learner, spent)
    bare = 0.0
    for x, y in batches:
        start = process_time()
        with torch.no_grad():
            learner.network(learner.prepare(x))
        bare += process_time() - start
        learner.observe(x, y)
    learner.end_session()
    return bare, spent


def medians(runs: list[tuple[float, dict[str, float]]]) -> dict[str, float]:
    """Each part, and the whole, as the median over repetitions of its ratio to that repetition's forward pass."""
    ratios = {part: median(spent[part] / bare for bare, spent in runs) for part in PARTS.values()}
    return {**ratios, "total": median(sum(spent.values()) / bare for bare, spent in runs)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="cifar100")
    parser.add_argument("--data", type=Path, default=None, help="folder of the data sets; default NOCL_DATA")
    parser.add_argument("--weights", default=None)
    parser.add_argument("--partition", default="60+4x10")
    parser.add_argument("--presets", nargs="+", default=["default", "fast"])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--base-images", type=int, default=20, help="images a base class, for its statistics")
    parser.add_argument("--out", type=Path, default=None, help="write the numbers to this JSON file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    stream = class_incremental(data.load(args.dataset, root=args.data), partition=args.partition)
    few = [stream.data.train.where([c]).take(range(args.base_images)) for c in stream.base.classes]
    batches = list(stream.sessions[0])
    runs: dict[str, list[tuple[float, dict[str, float]]]] = {name: [] for name in args.presets}
    for number in range(args.repeat):
        for name in args.presets if number % 2 == 0 else reversed(args.presets):
            params = {} if name == "default" else DSR.presets[name]
            size: dict[str, JSON] = {"dim": args.dim, "image_size": stream.image_size, "weights": args.weights}
            learner = DSR(**{**params, **size, "recipe": {"head_epochs": 0, "epochs": 0}})  # type: ignore[arg-type]
            runs[name].append(session(learner.fit_base(few), batches))
            print(name, medians(runs[name]), flush=True)
    images = sum(len(y) for _, y in batches)
    if args.out is not None:
        about: dict[str, JSON] = {
            "command": f"python benchmarks/dsr_online.py --repeat {args.repeat}", "images": images, "dim": args.dim,
            "classes": len(learner.classes_), "repetitions": args.repeat,
            "bare_seconds": median(bare for some in runs.values() for bare, _ in some),
        }  # fmt: skip
        ratios: dict[str, JSON] = {name: {**medians(some)} for name, some in runs.items()}
        write_json(args.out, {"ratios": ratios, **about, "environment": environment()})


if __name__ == "__main__":
    main()
