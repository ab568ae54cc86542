"""Methods on 1,280 features: CIFAR-100 through EfficientNet-Lite0 at 128 px, 60 + 40 classes; rda with 1,000 classes.

    python benchmarks/large_features.py --per-class 300 [--methods ncm slda ...]

The network has seen ImageNet, whose classes overlap with CIFAR-100's: this is a table of transfer, not of the paper's
protocol. The 32-pixel images are enlarged (bicubic). Features of all stages are computed once by ONNX Runtime and kept
under ``--cache``; 16 rows are computed again each time, so that features of anything else are refused. Base classes and
four sessions of ten are those of order 0. ``rda-full`` is rda with a covariance for every class, ``rda-shared`` with
one for all, ``rda-deep`` rda as it comes on its own choice of stages, ``rda-deep-full`` both. ``dsr`` has a smaller
space and fewer epochs than its defaults, to be done in minutes. Results are added to large_features.json method by
method; times are processor time of one thread.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from time import process_time

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bank import RESULTS
from nocl import data, metrics, nets
from nocl.data import ImageSet
from nocl.learner import FrozenLearner
from nocl.methods import make
from nocl.nets.engine import engine_named
from nocl.plumbing.files import write_atomically, write_json
from nocl.plumbing.seeding import generator
from nocl.plumbing.types import JSON, Batch
from nocl.results import environment
from nocl.streams import class_incremental

NETWORK, STAGES, DEEP = "efficientnet_lite0@128", (1, 2, 3, 4, 5), (3, 4, 5)
CONTENDERS: dict[str, tuple[str, dict[str, JSON]]] = {
    "ncm": ("ncm", {}),
    "slda": ("slda", {}),
    "rda": ("rda", {}),
    "rda-deep": ("rda", {}),
    "rda-shared": ("rda", {"storage": "shared"}),
    "ranpac": ("ranpac", {"expansion": 2000}),
    "acil": ("acil", {"expansion": 2000}),
    "fecam": ("fecam", {}),
    "rda-full": ("rda", {"storage": "full"}),
    "rda-deep-full": ("rda", {"storage": "full"}),
    "dsr": ("dsr", {"dim": 512, "recipe": {"head_epochs": 2}}),
}


class Eyes:
    """The network with its engine, all stages side by side."""

    def __init__(self) -> None:
        self.network, self.engine = nets.build(NETWORK), engine_named("onnx")
        self.origin = nets.load_pretrained(self.network, NETWORK)
        widths = [self.network.feature_dim(32, [s]) for s in STAGES]
        self.columns = dict(zip(STAGES, np.split(np.arange(sum(widths)), np.cumsum(widths)[:-1])))

    def of(self, images: ImageSet, path: Path) -> NDArray[np.float32]:
        """Features of all images, from the file or computed into it."""
        if path.exists():
            rows: NDArray[np.float32] = np.load(path, mmap_mode="r")
            some = np.linspace(0, len(images) - 1, 16).astype(int)
            again = self._run(images.take(some).x)
            if len(rows) != len(images) or np.abs(rows[some] - again).max() > 1e-3:
                raise SystemExit(f"{path} holds features of something else: delete it")
            return rows
        rows = np.concatenate([self._run(x) for x, _ in images.batches(50)])
        write_atomically(path, lambda file: np.save(file, rows))
        return rows

    def _run(self, x: Tensor) -> NDArray[np.float32]:
        found: NDArray[np.float32] = self.engine.features(self.network, x, 32, STAGES).numpy()
        return found


def first_of_each(images: ImageSet, count: int) -> ImageSet:
    """The first ``count`` images of every class, in the data set's order."""
    labels = np.asarray(images.labels)
    chosen = np.concatenate([np.flatnonzero(labels == label)[:count] for label in np.unique(labels)])
    return images.subset(np.sort(chosen))


def teach(learner: FrozenLearner, x: Tensor, y: Tensor, blocks: Sequence[Sequence[int]]) -> float:
    """The base session, then the novel ones; processor seconds of the novel ones for 1,000 features."""
    draw, seconds, learned = generator(0, "large features"), 0.0, 0
    for number, block in enumerate(blocks):
        rows = torch.isin(y, torch.tensor(block)).nonzero()[:, 0]
        rows = rows[torch.randperm(len(rows), generator=draw)]
        if number == 0:
            learner.fit_base([Batch(x[part], y[part]) for part in rows.split(500)])
            continue
        if not learner.depends_on_batching:  # class by class: one update of a large covariance each, not one a batch
            rows = rows[y[rows].argsort(stable=True)]
        size = 10 if learner.depends_on_batching else 500
        start = process_time()
        for part in rows.split(size):
            learner.learn(x[part], y[part])
        learner.end_session()
        seconds, learned = seconds + process_time() - start, learned + len(rows)
    return 1000 * seconds / learned


def measure(name: str, train: Batch, test: Batch, columns: NDArray[np.int64], blocks: Sequence[Sequence[int]]) -> JSON:
    method, params = CONTENDERS[name]
    learner = make(method, backbone=f"features:{len(columns)}", **params)
    assert isinstance(learner, FrozenLearner)
    begun = process_time()
    pace = teach(learner, train.x[:, columns], train.y, blocks)
    taught = process_time() - begun
    start = process_time()
    learner.predict(test.x[:1, columns])
    derived = process_time() - start
    start = process_time()
    answers = torch.cat([learner.predict(part[:, columns]) for part in test.x.split(250)])
    per_image = (process_time() - start) / len(test.x)
    right = answers == test.y
    means = [float(torch.stack([right[test.y == c].double().mean() for c in block]).mean()) for block in blocks]
    table = [[value if s <= t else None for s, value in enumerate(means)] for t in range(len(blocks))]
    scores = metrics.last(table, [len(block) for block in blocks])
    statistics = learner.state_bytes()["statistics"]
    return {
        "name": name, "method": method, "params": params, "features": len(columns),
        "acc": round(100 * scores.acc, 2), "base": round(100 * scores.base, 2),
        "novel": None if scores.novel is None else round(100 * scores.novel, 2),
        "hm": None if scores.hm is None else round(100 * scores.hm, 2),
        "state_bytes": statistics, "bytes_per_class": round(statistics / 100),
        "teach_seconds": round(taught, 1), "learn_seconds_per_1000": round(pace, 3),
        "derive_seconds": round(derived, 2), "predict_ms": round(1000 * per_image, 3),
    }  # fmt: skip


def many_classes(dim: int, classes: int = 1000, each: int = 10) -> JSON:
    """Time and storage of rda as it comes with a thousand classes of made-up features."""
    draw = generator(0, "many classes")
    means = torch.rand(classes, dim, generator=draw)
    learner = make("rda", backbone=f"features:{dim}")
    assert isinstance(learner, FrozenLearner)
    for _ in range(each):
        z = (means + 0.2 * torch.randn(classes, dim, generator=draw)).clamp_min(0)
        learner.learn(z, torch.arange(classes))
    test = (means + 0.2 * torch.randn(classes, dim, generator=draw)).clamp_min(0)
    learner.predict(test[:1])  # what is derived once
    start = process_time()
    right = torch.cat([learner.predict(part) for part in test.split(50)]) == torch.arange(classes)
    seconds = process_time() - start
    statistics = learner.state_bytes()["statistics"]
    return {
        "features": dim, "classes": classes, "storage": str(learner.get_params()["storage"]),
        "bytes_per_class": round(statistics / classes), "predict_ms": round(1000 * seconds / classes, 3),
        "right": round(float(right.double().mean()), 4),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder that holds cifar-100-python (default: NOCL_DATA)")
    parser.add_argument("--cache", type=Path, default=Path("cache"))
    parser.add_argument("--per-class", type=int, default=500, help="training images of each class")
    parser.add_argument("--methods", nargs="+", default=list(CONTENDERS), choices=list(CONTENDERS))
    parser.add_argument("--out", type=Path, default=RESULTS / "large_features.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    images = data.load("cifar100", root=args.data)
    blocks, eyes = class_incremental(images).blocks, Eyes()
    chosen = first_of_each(images.train, args.per_class)
    train = eyes.of(chosen, args.cache / f"lite0-128-train-{args.per_class}.npy")
    test = eyes.of(images.test, args.cache / "lite0-128-test.npy")
    learned = Batch(torch.from_numpy(np.array(train)), torch.from_numpy(np.asarray(chosen.labels).copy()))
    tested = Batch(torch.from_numpy(np.array(test)), torch.from_numpy(np.asarray(images.test.labels).copy()))
    kept = json.loads(args.out.read_text()) if args.out.exists() else {"rows": []}
    rows = {row["name"]: row for row in kept["rows"]}
    many = kept.get("thousand_classes") or [many_classes(1280), many_classes(1712)]
    for name in args.methods:
        stages = DEEP if name.startswith("rda-deep") else (5,)
        columns = np.concatenate([eyes.columns[s] for s in stages])
        row = measure(name, learned, tested, columns, blocks)
        print(row, flush=True)
        rows[name] = {**row, "environment": environment()}  # type: ignore[dict-item]
        write_json(
            args.out,
            {
                "command": f"python benchmarks/large_features.py --per-class {args.per_class}",
                "network": {"name": NETWORK, **eyes.origin, "engine": eyes.engine.name}, "data": images.fingerprint,
                "note": "ImageNet overlaps with these classes: transfer, not the paper's protocol",
                "train_images_per_class": args.per_class, "order": 0, "partition": "60+4x10",
                "thousand_classes": many,
                "rows": [rows[each] for each in CONTENDERS if each in rows],
            },
        )  # fmt: skip


if __name__ == "__main__":
    main()
