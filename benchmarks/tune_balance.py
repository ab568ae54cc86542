"""Choose how far classes of unequal numbers of images are corrected for, on the base classes' training images alone.

    python benchmarks/tune_balance.py --data FOLDER [--weights NETWORK]

The copy of the problem made of the 60 base classes of order 0 (``base_copy``, as in tune_rda.py): 36 pseudo-base
classes train a network, 24 pseudo-novel ones come as a stream, a fifth of each class's images is held out and asked. No
novel class and no test image is read. ``--weights`` takes the network that tune_rda.py has trained (with --backbone).
``balance`` acts when a learner answers, so each stream is learned once and asked with every value. Two streams, three
seeds each: a long tail, where classes are unequal for good, and disjoint sessions, where they are unequal while they
arrive. The measure is the mean over both of mean class accuracy at the end and of A_AUC, the mean accuracy of the tests
while learning.
"""

import itertools
import json
from collections.abc import Mapping

import torch

from bank import keep, parser
from nocl import data, metrics
from nocl.data.features import FeatureData, extract, trained_classes
from nocl.experiments.base_copy import PARTITION, base_only
from nocl.learner import FrozenLearner
from nocl.methods import make
from nocl.plumbing.types import JSON
from nocl.streams import arrange, class_incremental
from tune_rda import RECIPE, train

METHODS: dict[str, dict[str, JSON]] = {"acil": {"expansion": 1000}, "ranpac": {"expansion": 1000}, "slda": {}}
VALUES = (0.0, 0.25, 0.5, 0.75, 1.0)
STREAMS = ("long_tailed", "disjoint")
SEEDS = (0, 1, 2)
ROWS, EVERY = 500, 1000


class Tests:
    """The tests of one stream with one value."""

    def __init__(self, learner: FrozenLearner, features: FeatureData, value: float) -> None:
        self.learner, self.features, self.value = learner, features, value
        self.accuracy: list[float] = []

    def ask(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Labels and answers of the held-out images of all classes met."""
        self.learner.balance = self.value  # type: ignore[assignment]
        images = self.features.test.where(sorted(self.learner.classes_.tolist()))
        pairs = [(y, self.learner.predict(x)) for x, y in images.batches(2000)]
        return torch.cat([y for y, _ in pairs]), torch.cat([answer for _, answer in pairs])

    def take(self) -> None:
        truth, answer = self.ask()
        self.accuracy.append(float((truth == answer).double().mean()))

    def found(self) -> dict[str, float]:
        """A_AUC, and the mean class accuracy of a last test."""
        truth, answer = self.ask()
        classes = metrics.class_accuracies(truth, answer, [self.learner.classes_.tolist()])
        known = [value for value in classes if value is not None]
        return {"a_auc": sum(self.accuracy) / len(self.accuracy), "acc": sum(known) / len(known)}


def measure(method: str, params: Mapping[str, JSON], features: FeatureData, kind: str, seed: int) -> list[JSON]:
    """One stream learned once, asked with every value."""
    learner = make(method, **{**params, "backbone": f"features:{features.feature_dim}", "seed": seed})
    assert isinstance(learner, FrozenLearner)
    stream = arrange(features, f"{kind}:base=60", seed=seed, rows_at_once=ROWS)
    learner.fit_base(stream.base)
    tests, images = [Tests(learner, features, value) for value in VALUES], 0
    for session in stream:
        for x, y in session:
            learner.observe(x, y)
            before, images = images, images + len(y)
            if before // EVERY != images // EVERY:
                for test in tests:
                    test.take()
    found = [test.found() for test in tests]
    print(method, kind, seed, *[f"{value:g}: {100 * one['acc']:.2f}" for value, one in zip(VALUES, found)], flush=True)
    return [
        {"method": method, "stream": kind, "seed": seed, "balance": value, **one} for value, one in zip(VALUES, found)
    ]


def choose(trials: list[dict[str, JSON]], method: str) -> tuple[float, dict[str, JSON]]:
    """The value with the highest measure, and the measure of each."""
    means: dict[str, JSON] = {}
    for value in VALUES:
        own = [trial for trial in trials if (trial["method"], trial["balance"]) == (method, value)]
        means[f"{value:g}"] = sum((float(t["acc"]) + float(t["a_auc"])) / 2 for t in own) / len(own)  # type: ignore[arg-type]
    best = max(means, key=lambda name: float(means[name]))  # type: ignore[arg-type]
    return float(best), means


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--backbone", default="tiny_resnet18")
    arguments.add_argument("--epochs", type=int, default=5)
    arguments.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    args = arguments.parse_args()
    whole = data.load("cifar100", root=args.data)
    copy = class_incremental(base_only(whole, class_incremental(whole).blocks[0]), partition=PARTITION)
    path, origin = args.weights, {"weights": "given"}
    if path is None:
        path, origin = train(copy, args.backbone, {**RECIPE, "epochs": args.epochs}, args.cache)
    elif set(trained_classes(path) or ()) != set(copy.base.classes):
        raise SystemExit(f"{path.name} was not trained on the pseudo-base classes alone")
    features = extract(copy.data, path, cache=args.cache, backbone=args.backbone)
    out = args.out / "tune_balance.json"
    trials = json.loads(out.read_text("utf-8"))["trials"] if out.exists() else []
    for method in args.methods:
        if any(trial["method"] == method for trial in trials):
            continue  # from an earlier call
        for kind, seed in itertools.product(STREAMS, SEEDS):
            trials += measure(method, METHODS[method], features, kind, seed)
        found = [name for name in METHODS if any(trial["method"] == name for trial in trials)]
        chosen = {name: choose(trials, name) for name in found}
        keep(
            out,
            f"python benchmarks/tune_balance.py --backbone {args.backbone} "
            + (f"--epochs {args.epochs}" if args.weights is None else f"--weights {args.weights.name}"),
            None,
            best={name: value for name, (value, _) in chosen.items()},
            measure={name: means for name, (_, means) in chosen.items()},
            trials=trials, base=origin, stream=copy.describe(), network=features.origin,
        )  # fmt: skip


if __name__ == "__main__":
    main()
