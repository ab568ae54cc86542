"""Online time of every method over a bare forward pass of the same images, in one run.

    python benchmarks/online_cost.py [--methods rda dsr ...]
    python benchmarks/online_cost.py --engines

Each learner gets a short base session of images made of noise, then a session of novel classes in batches of ten, as in
the protocol; only time is measured, never accuracy. Time is processor time of one thread, so that other programs on the
machine do not count, and the bare forward pass is measured between the methods, on the same batches. ``end_session`` is
part of the session and shown beside it. ``--repeat`` rounds, every second of which goes through the methods backwards;
medians. Writes online_cost.json and online_cost.svg.

``--engines`` measures rda alone, with the network run by PyTorch and by ONNX Runtime, over a bare forward pass in
PyTorch: reduced ResNet-18 at 32 px and EfficientNet-Lite0 at 160 px, whichever comes first in turn. Writes
online_cost_engines.json.
"""

import argparse
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from time import process_time

import torch
from torch import Tensor

from bank import RESULTS, keep
from nocl import nets
from nocl.learner import FrozenLearner, Learner
from nocl.methods import METHODS, make
from nocl.nets.engine import engine_named
from nocl.plumbing.seeding import generator
from nocl.plumbing.types import JSON, Batch
from nocl.results import peak_memory


def batches(labels: Sequence[int], n: int, size: int, seed: int, size_px: int = 32) -> list[Batch]:
    """``n`` batches of noise with labels in turn."""
    draw = generator(seed, "cost")
    x = torch.randint(256, (n * size, 3, size_px, size_px), generator=draw, dtype=torch.uint8)
    y = torch.tensor(labels)[torch.randint(len(labels), (n * size,), generator=draw)]
    return [Batch(a, b) for a, b in zip(x.split(size), y.split(size))]


@torch.no_grad()
def bare(learner: Learner, x: Tensor) -> None:
    """What no method on images can do without: scale, normalise, one forward pass of the last stage."""
    learner.network.eval()
    learner.network(learner.prepare(x))


def measure(method: str, session: Sequence[Batch], base: Sequence[Batch]) -> dict[str, JSON]:
    """Median times of a batch, learned and bare, taken in turn."""
    learner = make(method, recipe={"epochs": 0, "head_epochs": 0, "compile": False})
    learner.fit_base(base)
    learned, forward = [], []
    for i, (x, y) in enumerate(session):
        start = process_time()
        bare(learner, x)
        middle = process_time()
        learner.observe(x, y)
        if i >= 2:  # the first ones warm up
            forward.append(middle - start)
            learned.append(process_time() - middle)
    start = process_time()
    learner.end_session()
    ending = process_time() - start
    ratio = statistics.median(a / b for a, b in zip(learned, forward))
    whole = (statistics.median(learned) * len(session) + ending) / (statistics.median(forward) * len(session))
    return {
        "method": method,
        "stores_exemplars": learner.stores_exemplars,
        "forward_ms": round(1000 * statistics.median(forward), 2),
        "observe_ms": round(1000 * statistics.median(learned), 2),
        "observe_over_forward": round(ratio, 3),
        "end_session_ms": round(1000 * ending, 1),
        "session_over_forward": round(whole, 3),
        "peak_memory_so_far": peak_memory(),
    }


@torch.no_grad()
def measure_engine(network: str, size: int, engine: str, n: int) -> dict[str, JSON]:
    """Median ratio of learning a batch of ten with rda to a bare PyTorch forward pass of it, in alternating order."""
    learner = make("rda", backbone=network, image_size=size)
    assert isinstance(learner, FrozenLearner)
    nets.load_pretrained(learner.network, network)
    learner.engine = engine_named(engine)
    ratios, learned, forward = [], [], []
    for i, (x, y) in enumerate(batches(range(20), n + 4, 10, seed=1, size_px=size)):
        spent = {"learn": 0.0, "bare": 0.0}
        for what in ("learn", "bare") if i % 2 else ("bare", "learn"):
            start = process_time()
            learner.observe(x, y) if what == "learn" else bare(learner, x)
            spent[what] = process_time() - start
        if i >= 4:  # the first ones export and warm up
            learned.append(spent["learn"])
            forward.append(spent["bare"])
            ratios.append(spent["learn"] / spent["bare"])
    return {
        "method": "rda", "network": network, "size": size, "engine": learner.engine.name,
        "features": learner.feature_dim, "storage": str(learner.get_params()["storage"]),
        "forward_ms": round(1000 * statistics.median(forward), 2),
        "observe_ms": round(1000 * statistics.median(learned), 2),
        "observe_over_forward": round(statistics.median(ratios), 3),
    }  # fmt: skip


def measure_engines(out: Path, n: int) -> None:
    rows: list[JSON] = []
    for network, size in (("reduced_resnet18", 32), ("efficientnet_lite0", 160)):
        for engine in ("torch", "onnx"):
            rows.append(measure_engine(network, size, engine, n))
            print(rows[-1], flush=True)
    load = os.getloadavg()[0]
    command = f"python benchmarks/online_cost.py --engines --batches {n}"
    keep(out / "online_cost_engines.json", command, None, batches=n, batch_size=10, load_average=load, rows=rows)


def draw(rows: Sequence[dict[str, JSON]], path: Path) -> None:
    import matplotlib.pyplot as plt

    rows = sorted(rows, key=lambda row: float(row["session_over_forward"]))  # type: ignore[arg-type]
    figure, axis = plt.subplots(figsize=(6, 0.35 * len(rows) + 1))
    axis.barh([str(row["method"]) for row in rows], [row["session_over_forward"] for row in rows])
    axis.axvline(1, color="grey", ls="--")
    axis.set_xscale("log")
    axis.set(xlabel="online time of a session / bare forward pass of its images")
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    exemplar_free = [name for name, cls in METHODS.items() if not cls.stores_exemplars]
    parser.add_argument("--methods", nargs="+", default=exemplar_free)
    parser.add_argument("--batches", type=int, default=30, help="of ten images each, in the session measured")
    parser.add_argument("--repeat", type=int, default=3, help="rounds through all methods")
    parser.add_argument("--engines", action="store_true", help="rda through each engine, and nothing else")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.engines:
        measure_engines(args.out, args.batches)
        return
    base = batches(range(60), 3, 100, seed=0)
    session = batches(range(60, 64), args.batches, 10, seed=1)
    found: dict[str, list[dict[str, JSON]]] = {method: [] for method in args.methods}
    for turn in range(args.repeat):
        for method in args.methods[:: -1 if turn % 2 else 1]:
            found[method].append(measure(method, session, base))
            print(found[method][-1], flush=True)
    rows = [middle(each) for each in found.values()]
    command = f"python benchmarks/online_cost.py --batches {args.batches} --methods {' '.join(args.methods)}"
    beside: dict[str, JSON] = {"batches": args.batches, "batch_size": 10, "repeat": args.repeat}
    keep(args.out / "online_cost.json", command, None, **beside, load_average=os.getloadavg()[0], rows=[*rows])
    draw(rows, args.out / "online_cost.svg")


def middle(rounds: Sequence[dict[str, JSON]]) -> dict[str, JSON]:
    """One row of several: medians of the times, the rest as in the first."""
    timed = {name for name in rounds[0] if name.endswith(("_ms", "_over_forward"))}
    medians = {name: round(statistics.median(float(str(row[name])) for row in rounds), 3) for name in timed}
    return {name: medians.get(name, value) for name, value in rounds[0].items()}


if __name__ == "__main__":
    main()
