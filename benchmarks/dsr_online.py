"""What DSR's online learning costs, as multiples of a bare forward pass over the same images, from one run.

    python benchmarks/dsr_online.py --dataset cifar100 --weights BASE.safetensors --sessions 1

All times are taken in one process and one run, so that their ratio does not depend on what else the machine does: each
batch is passed through the network bare and then observed. ``--weights`` is optional; the cost does not depend on it.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import torch

from nocl import data
from nocl.methods.dsr import DSR
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="cifar100")
    parser.add_argument("--data", type=Path, default=None, help="folder of the data sets; default NOCL_DATA")
    parser.add_argument("--weights", default=None)
    parser.add_argument("--partition", default="60+4x10")
    parser.add_argument("--sessions", type=int, default=1, help="sessions to learn")
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--base-images", type=int, default=20, help="images a base class, for its statistics")
    parser.add_argument("--out", type=Path, default=None, help="write the numbers to this JSON file")
    args = parser.parse_args()
    stream = class_incremental(data.load(args.dataset, root=args.data), partition=args.partition)
    learner = DSR(
        dim=args.dim, image_size=stream.image_size, recipe={"head_epochs": 0, "epochs": 0}, weights=args.weights
    )
    few = [stream.data.train.where([c]).take(range(args.base_images)) for c in stream.base.classes]
    learner.fit_base(few)
    spent: dict[str, float] = defaultdict(float)
    timed(learner, spent)
    bare, images = 0.0, 0
    for session in stream:
        if session.index > args.sessions:
            break
        for x, y in session:
            start = process_time()
            with torch.no_grad():
                learner.network(learner.prepare(x))
            bare += process_time() - start
            learner.observe(x, y)
            images += len(y)
        learner.end_session()
    ratios = {part: seconds / bare for part, seconds in spent.items()}
    for part, ratio in ratios.items():
        print(f"{part:12} {ratio:6.2f} x bare forward pass")
    total = sum(ratios.values())
    print(f"{'total':12} {total:6.2f} x bare forward pass of {images} images ({bare:.1f} s of processor time)")
    if args.out is not None:
        about = {"images": images, "dim": args.dim, "classes": len(learner.classes_), "bare_seconds": bare}
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(
            json.dumps({"ratios": ratios, "total": total, **about, "environment": environment()}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
