"""Classifiers on the same vectors, one pass in class order: nocl's methods beside what scikit-learn and river offer.

    python benchmarks/embeddings.py --data FOLDER --backbone cifar100
    python benchmarks/embeddings.py --data FOLDER --backbone efficientnet_lite0@128

The vectors are features of CIFAR-100: the first images of each class, from the packaged network or another. Every
classifier has its default parameters; nothing is chosen on test data. Linear models that need a scale get vectors
standardised by all training data, which is more than a stream allows. Writes embeddings-BACKBONE.json after each
classifier, so that an interrupted call goes on, and prints the table. Seconds are processor time of one thread; bytes
are those of the pickled classifier. ``--limit`` bounds the seconds that a classifier may learn, and those that it may
answer; what needs more is reported as stopped.
"""

import argparse
import json
import pickle
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from river import forest, linear_model, naive_bayes, neighbors, preprocessing, tree
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.preprocessing import StandardScaler

from nocl import nets
from nocl.app import weights
from nocl.data import Dataset, ImageSet, load
from nocl.methods.ncm import NCM
from nocl.nets.engine import engine_named
from nocl.plumbing.files import write_json
from nocl.plumbing.types import JSON
from nocl.pretrain import load_weights
from nocl.results import environment
from nocl.sklearn import StreamingClassifier

RESULTS = Path(__file__).parent / "results"
AT_ONCE, ENGINE = 100, "onnx"
Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Split:
    """Training vectors in class order, and test vectors."""

    x: Vectors
    y: NDArray[np.int64]
    test: Vectors
    labels: NDArray[np.int64]


class OutOfTimeError(Exception):
    """A classifier needs more seconds than it may have."""


@dataclass
class Contender:
    """A classifier behind three functions; ``refitted`` ones see everything at once, again and again."""

    name: str
    kind: str
    build: Callable[[], Any]
    learn: Callable[[Any, Vectors, NDArray[np.int64]], object]
    predict: Callable[[Any, Vectors], Any]
    scaled: bool = False
    refitted: bool = False

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.name


def ours(name: str, method: str, **params: JSON) -> Contender:
    return Contender(
        name, "nocl", lambda: StreamingClassifier(method, params=params),
        lambda model, x, y: model.partial_fit(x, y), lambda model, x: model.predict(x),
    )  # fmt: skip


def partial(name: str, build: Callable[[], Any], *, scaled: bool = False) -> Contender:
    return Contender(
        name, "scikit-learn", build, lambda model, x, y: model.partial_fit(x, y, classes=np.arange(100)),
        lambda model, x: model.predict(x), scaled,
    )  # fmt: skip


def refitted(name: str, build: Callable[[], Any], *, scaled: bool = False) -> Contender:
    return Contender(
        name, "scikit-learn, refitted", build, lambda model, x, y: model.fit(x, y), lambda model, x: model.predict(x),
        scaled, refitted=True,
    )  # fmt: skip


def of_river(name: str, build: Callable[[], Any]) -> Contender:
    def learn(model: Any, x: Vectors, y: NDArray[np.int64]) -> None:
        for row, label in zip(x.tolist(), y.tolist()):
            model.learn_one(dict(enumerate(row)), label)

    def predict(model: Any, x: Vectors) -> list[Any]:
        return [model.predict_one(dict(enumerate(row))) for row in x.tolist()]

    return Contender(name, "river", build, learn, predict)


CONTENDERS = [
    ours("rda", "rda"),
    ours("rda, square roots", "rda", power=0.5),
    ours("slda", "slda"),
    ours("ncm", "ncm"),
    ours("fecam, square roots", "fecam", power=0.5),
    ours("ranpac", "ranpac"),
    ours("acil", "acil"),
    partial("SGDClassifier, logistic", lambda: SGDClassifier(loss="log_loss", random_state=0), scaled=True),
    partial("SGDClassifier, hinge", lambda: SGDClassifier(random_state=0), scaled=True),
    partial("GaussianNB", GaussianNB),
    of_river("GaussianNB", naive_bayes.GaussianNB),
    of_river("SoftmaxRegression", lambda: preprocessing.StandardScaler() | linear_model.SoftmaxRegression()),
    of_river("KNNClassifier", neighbors.KNNClassifier),
    of_river("HoeffdingTreeClassifier", tree.HoeffdingTreeClassifier),
    of_river("ARFClassifier", lambda: forest.ARFClassifier(seed=0)),
    refitted("LogisticRegression", lambda: LogisticRegression(max_iter=1000), scaled=True),
    refitted("LinearDiscriminantAnalysis", LinearDiscriminantAnalysis),
]


def measure(contender: Contender, split: Split, limit: float) -> dict[str, JSON]:
    """Learn in class order and, for comparison, shuffled; stop a classifier that needs more than ``limit`` seconds."""
    x, test = split.x, split.test
    if contender.scaled:
        scaler = StandardScaler().fit(x)
        x, test = scaler.transform(x), scaler.transform(test)
    row: dict[str, JSON] = {"name": contender.name, "kind": contender.kind, "limit": limit}
    try:
        model = contender.build()
        row["seconds"] = round(_taught(contender, model, x, split.y, limit), 2)
        start = time.process_time()
        right = _answers(contender, model, test, limit) == split.labels
        row["ms_per_answer"] = round(1000 * (time.process_time() - start) / len(test), 3)
        row["accuracy"] = round(100 * float(np.mean(right)), 2)
        row["bytes"] = len(pickle.dumps(model))
        if not contender.refitted:
            order = np.random.default_rng(0).permutation(len(x))
            model = contender.build()
            _taught(contender, model, x[order], split.y[order], limit)
            row["accuracy_shuffled"] = round(
                100 * float(np.mean(_answers(contender, model, test, limit) == split.labels)), 2
            )
    except OutOfTimeError as error:
        row["stopped"] = str(error)
    print(row, flush=True)
    return row


def _taught(contender: Contender, model: Any, x: Vectors, y: NDArray[np.int64], limit: float) -> float:
    start = time.process_time()
    if contender.refitted:
        contender.learn(model, x, y)
        return time.process_time() - start
    for begin in range(0, len(x), AT_ONCE):
        contender.learn(model, x[begin : begin + AT_ONCE], y[begin : begin + AT_ONCE])
        if time.process_time() - start > limit:
            raise OutOfTimeError(f"{begin + AT_ONCE} of {len(x)} vectors learned in {limit:.0f} s")
    return time.process_time() - start


def _answers(contender: Contender, model: Any, test: Vectors, limit: float) -> NDArray[np.int64]:
    start, found = time.process_time(), []
    for begin in range(0, len(test), AT_ONCE):
        found += list(contender.predict(model, test[begin : begin + AT_ONCE]))
        if time.process_time() - start > limit:
            raise OutOfTimeError(f"{begin + AT_ONCE} of {len(test)} answers in {limit:.0f} s")
    return np.array([-1 if label is None else label for label in found])


def vectors_of(backbone: str, data: Dataset, train: int, test: int, cache: Path) -> Split:
    """Features of the first images of each class, computed once."""
    path = cache / f"embeddings-{backbone}-{train}-{test}.npz"
    if not path.exists():
        learner = NCM(backbone=weights.PACKAGED.get(backbone, backbone), image_size=data.image_size)
        if backbone in weights.PACKAGED:
            load_weights(learner.network, weights.file(backbone))
        else:
            nets.load_pretrained(learner.network, backbone)
        learner.engine = engine_named(ENGINE)
        parts = [*_features(learner, data.train, train), *_features(learner, data.test, test)]
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, x=parts[0], y=parts[1], test=parts[2], labels=parts[3])
    found = np.load(path)
    return Split(found["x"], found["y"], found["test"], found["labels"])


def _features(learner: NCM, images: ImageSet, each: int) -> Iterator[NDArray[Any]]:
    rows = np.concatenate([np.flatnonzero(images.labels == label)[:each] for label in np.unique(images.labels)])
    chosen = images.subset(rows)
    found = [learner.features(x).numpy() for x, _ in chosen.batches(AT_ONCE)]
    yield np.concatenate(found)
    yield chosen.labels


def table(rows: list[dict[str, JSON]]) -> str:
    """Markdown, best first within its kind."""
    lines = [
        "| | classifier | accuracy, class order | shuffled | seconds | ms an answer | MB |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        if "accuracy" not in row:
            lines.append(f"| {row['kind']} | {row['name']} | {row['stopped']} | | | | |")
            continue
        shuffled = row.get("accuracy_shuffled", "-")
        size = f"{int(str(row['bytes'])) / 1e6:.2f}"
        lines.append(
            f"| {row['kind']} | {row['name']} | {row['accuracy']} | {shuffled} | {row['seconds']} | "
            f"{row['ms_per_answer']} | {size} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="where CIFAR-100 lies")
    parser.add_argument("--backbone", default="cifar100")
    parser.add_argument("--train", type=int, default=100, help="images a class to learn")
    parser.add_argument("--test", type=int, default=20, help="images a class to test")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds a classifier may learn, and may answer")
    parser.add_argument("--kinds", nargs="+", default=sorted({contender.kind for contender in CONTENDERS}))
    parser.add_argument("--cache", type=Path, default=Path("runs/cache"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=FutureWarning)
    split = vectors_of(args.backbone, load("cifar100", root=args.data), args.train, args.test, args.cache)
    about = {"backbone": args.backbone, "train": args.train, "test": args.test, "dim": split.x.shape[1], "seed": 0}
    about |= {"engine": ENGINE}
    path = args.out / f"embeddings-{args.backbone.replace('@', '-')}.json"
    found = known(path, about)
    for contender in CONTENDERS:
        if contender.key not in found and contender.kind in args.kinds:
            found[contender.key] = measure(contender, split, args.limit) | {"environment": environment()}
            rows = [found[c.key] for c in CONTENDERS if c.key in found]
            write_json(path, {**about, "rows": rows})  # type: ignore[dict-item]
    print(table([found[c.key] for c in CONTENDERS if c.key in found]))


def known(path: Path, about: dict[str, Any]) -> dict[tuple[str, str], dict[str, JSON]]:
    """The rows of an earlier, interrupted call with the same settings."""
    content = json.loads(path.read_text()) if path.exists() else {}
    if any(content.get(name) != value for name, value in about.items()):
        return {}
    return {(row["kind"], row["name"]): row for row in content["rows"]}


if __name__ == "__main__":
    main()
