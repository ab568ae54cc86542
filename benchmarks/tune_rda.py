"""Choose rda's settings on the base classes' training images alone; no novel class and no test image is read.

    python benchmarks/tune_rda.py --data FOLDER

The 60 base classes of order 0 are split into 36 pseudo-base and 24 pseudo-novel ones, a fifth of each class's images
is held out, and a network is trained on the pseudo-base part only (``base_copy``). This is done twice with different
splits of the classes (``SPLITS``), because one split cannot tell settings apart that differ by half a point. Settings
are compared by what users do: pseudo-novel classes of 5, 20, 100 and of all their images beside the old ones, all
held-out images asked. The measure is the mean of Acc (old classes included) and of the harmonic mean of old and novel
ones over these counts. The search starts from plain settings (last stage, no transform), takes the best value of one
parameter after another, and goes round again until nothing changes, so neither the start nor a margin can carry in a
preference from elsewhere.
``prior`` is counted in images per feature value so that it carries over to another width.

What a class of few images pays, and so ``caution``, is chosen by first_pictures_of_base.py.
"""

import argparse
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bank import STAGES, Bank, keep, parser, percent
from nocl import data, nets
from nocl.data import Dataset
from nocl.data.features import extract
from nocl.experiments.base_copy import PARTITION, base_only
from nocl.methods.rda.method import RDA
from nocl.metrics import Scores
from nocl.plumbing.files import write_json, write_tensors
from nocl.plumbing.types import JSON
from nocl.stats.linalg import Cached
from nocl.streams import Stream, class_incremental

RECIPE: dict[str, JSON] = {
    "lr": 0.1, "schedule": "onecycle", "weight_decay": 5e-4, "augment": "crop_flip", "normalize": True,
}  # fmt: skip
START: dict[str, JSON] = {
    "stages": [4], "power": 1.0, "prior": 3.0, "ridge": 0.001, "degrees": 30.0,
}  # fmt: skip
ROUNDS: list[dict[str, list[JSON]]] = [
    {"stages": [[4], [3, 4], [2, 3, 4], [1, 2, 3, 4], [2, 3, 4, -2, -3], [1, 2, 3, 4, -1, -2, -3]]},
    {"power": [1.0, 0.75, 0.5, 0.25]},
    {"prior": [0.5, 1.0, 2.0, 3.0, 5.0, 10.0]},
    {"ridge": [0.0001, 0.001, 0.01, 0.1]},
    {"degrees": [10.0, 30.0, 100.0]},
]
SWEEPS = 3  # at most
SPLITS = (0, 1)
SHOTS = (5, 20, 100, None)
LEARNED, TESTED = 30, 50  # images of a pseudo-novel class for other benchmarks: to learn and to ask
EYES = "efficientnet_lite0@128"


def search(
    start: dict[str, JSON],
    rounds: Sequence[Mapping[str, Sequence[JSON]]],
    evaluate: Callable[[dict[str, JSON]], float],
    *,
    margin: float = 0.0,
) -> tuple[dict[str, JSON], list[dict[str, JSON]]]:
    """The best settings found by one round after another, and every trial with its ``value``.

    A round tries all combinations of its choices with everything else as the rounds before left it. The first that
    comes within ``margin`` of the best wins, so list the simplest first and let the margin be what chance can do.

    >>> search({"a": 0, "b": 0}, [{"a": [1, 2]}, {"b": [3]}], lambda p: p["a"] + p["b"])[0]
    {'a': 2, 'b': 3}
    """
    trials: list[dict[str, JSON]] = []
    best = dict(start)
    for choices in rounds:
        tried: list[tuple[float, dict[str, JSON]]] = []
        for values in itertools.product(*choices.values()):
            settings = {**best, **dict(zip(choices, values))}
            tried.append((evaluate(settings), settings))
            trials.append({**settings, "value": tried[-1][0]})
        enough = max(value for value, _ in tried) - margin
        best = next(settings for value, settings in tried if value >= enough)
    return best, trials


class Bench:
    """The score of any settings on the copy's features."""

    def __init__(self, bank: Bank, stream: Stream, backbone: str, origin: dict[str, JSON], cache: Path) -> None:
        self.bank, self.stream, self.backbone, self.origin = bank, stream, backbone, origin
        self.kept = cache / f"tune-{origin['key']}.json"  # an interrupted search goes on
        self.blocks = stream.blocks
        self.taught: dict[str, RDA] = {}  # statistics depend on these settings only; the others act when scoring
        # settings come up again in later sweeps
        self.found: dict[str, float] = json.loads(self.kept.read_text()) if self.kept.exists() else {}

    def learner(self, stages: JSON, power: JSON, shots: int | None) -> RDA:
        key = f"{stages} {power} {shots}"
        if key not in self.taught:
            learner = RDA(backbone=self.backbone, stages=stages, power=power, shortlist=None)  # type: ignore[arg-type]
            self.bank.teach_base(learner, self.blocks[0])
            self.taught[key] = self.bank.teach(learner, self.blocks[1:], shots, size=500)  # type: ignore[assignment]
        return self.taught[key]

    def value(self, settings: dict[str, JSON]) -> float:
        key = json.dumps(settings, sort_keys=True)
        if key not in self.found:
            self.found[key] = self.measure(settings)
            write_json(self.kept, self.found)
        return self.found[key]

    def measure(self, settings: dict[str, JSON]) -> float:
        found = self.scores(settings)
        return sum(((scores.acc or 0.0) + (scores.hm or 0.0)) / 2 for scores in found) / len(found)

    def scores(self, settings: dict[str, JSON], counts: Sequence[int | None] = SHOTS) -> list[Scores]:
        """For each of these numbers of images."""
        found = []
        for shots in counts:
            learner = self.learner(settings["stages"], settings["power"], shots)
            for name in ("prior", "ridge", "degrees"):
                setattr(learner, name, settings[name])
            learner._rule = Cached()
            found.append(self.bank.scores(learner, self.blocks))
        print(settings, *[percent(scores) for scores in found], flush=True)
        return found


def of_copy(bench: Bench) -> Tensor:
    """Features [classes, images, d] of the pseudo-novel classes, with rda's usual stages."""
    columns = bench.bank.columns(RDA(backbone=bench.backbone).stages)
    return torch.stack([bench.bank.train[_rows(bench.bank, c)][:, columns] for c in _novel(bench)])


def of_eyes(bench: Bench) -> Tensor:
    """The same images seen by EfficientNet-Lite0."""
    learner = RDA(backbone=EYES, image_size=32)
    nets.load_pretrained(learner.network, EYES)
    images = bench.stream.data.train
    found = []
    for c in _novel(bench):
        chosen = images.subset(np.flatnonzero(images.labels == c)[: LEARNED + TESTED])
        found.append(learner.features(chosen.take(np.arange(len(chosen))).x))
    return torch.stack(found)


def _novel(bench: Bench) -> list[int]:
    return [c for block in bench.blocks[1:] for c in block]


def _rows(bank: Bank, c: int) -> Tensor:
    return torch.from_numpy(np.flatnonzero(bank.train_y == c)[: LEARNED + TESTED])


def train(stream: Stream, backbone: str, recipe: dict[str, JSON], cache: Path) -> tuple[Path, dict[str, JSON]]:
    """The pseudo-base network as a file."""
    learner = RDA(backbone=backbone, recipe=recipe)
    learner.meet(stream.base.classes)
    origin = learner.train_network(stream.base, cache).origin
    path = cache / f"pseudo-base-{origin['key']}.safetensors"
    write_tensors(path, learner.network.state_dict(), {"classes": list(stream.base.classes)})
    return path, origin


def settle(benches: Sequence[Bench]) -> tuple[dict[str, JSON], list[JSON]]:
    """The settings that a further sweep leaves as they are, and all trials."""
    best, trials = START, []

    def value(settings: dict[str, JSON]) -> float:
        with ThreadPoolExecutor(len(benches)) as threads:
            return sum(threads.map(lambda bench: bench.value(settings), benches)) / len(benches)

    for _ in range(SWEEPS):
        before = best
        best, tried = search(before, ROUNDS, value)
        trials += [trial for trial in tried if trial not in trials]
        if best == before:
            break
    return best, [*trials]


def open_bench(whole: Dataset, split: int, args: argparse.Namespace) -> Bench:
    """A copy of the problem made of base classes, with its own network."""
    base = base_only(whole, class_incremental(whole).blocks[0])
    stream = class_incremental(base, partition=PARTITION, order_seed=split)
    path, origin = train(stream, args.backbone, {**RECIPE, "epochs": args.epochs}, args.cache)
    features = extract(stream.data, path, cache=args.cache, backbone=args.backbone, stages=STAGES)
    return Bench(Bank(features, args.backbone), stream, args.backbone, origin, args.cache)


def arguments(doc: str) -> argparse.Namespace:
    """The arguments of every benchmark on these copies."""
    wanted = parser(doc)
    wanted.add_argument("--backbone", default="reduced_resnet18")
    wanted.add_argument("--epochs", type=int, default=6)
    return wanted.parse_args()


def main() -> None:
    args = arguments(__doc__)
    whole = data.load("cifar100", root=args.data)
    benches = [open_bench(whole, split, args) for split in SPLITS]
    best, trials = settle(benches)
    copies: list[JSON] = [{"base": bench.origin, "stream": bench.stream.describe()} for bench in benches]
    command = f"python benchmarks/tune_rda.py --backbone {args.backbone} --epochs {args.epochs}"
    keep(args.out / "tune_rda.json", command, benches[0].bank, best=best, trials=trials, copies=copies)


if __name__ == "__main__":
    main()
