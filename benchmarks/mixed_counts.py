"""Classes of very different sizes in one model: numbers of images from 1 to 500, drawn by a power law.

    python benchmarks/mixed_counts.py --data FOLDER --weights NETWORK
    python benchmarks/mixed_counts.py --data FOLDER --eyes

CIFAR-100, all 100 classes, the given 60-class network; with ``--eyes`` EfficientNet-Lite0 at 128 px, whose ImageNet
weights know such classes (a table of transfer), the last stage of it, for ``rda`` the last three. The class of rank r,
in an order drawn by the seed, has 500 / r images, at least 1, so that half of them have ten or fewer. Acc is over all
test images (100 of each class, so it is the mean of the classes' accuracies too); ``few``, ``some`` and ``many`` are
the classes of 1 to 9, 10 to 49 and 50 to 500 images. ``first edition`` is the rule rda had before means were uncertain:
d / n_c less the squared distance, with the same covariances. Writes mixed_counts.json, or mixed_counts_eyes.json.
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bank import Bank, keep, open_bank, parser
from large_features import CONTENDERS, DEEP, Eyes
from nocl import data
from nocl.learner import FrozenLearner
from nocl.methods import make
from nocl.methods.rda import RDA
from nocl.plumbing.types import JSON
from nocl.results import environment
from nocl.stats import linalg
from nocl.stats.class_stats import tukey

METHODS = ("rda", "first edition", "ncm", "slda", "fecam", "ranpac")
GROUPS = {"few": (1, 9), "some": (10, 49), "many": (50, 500)}


class FirstEdition(RDA):
    """score = d / n_c - (z - mean)^T Sigma_c^-1 (z - mean)."""

    def score(self, z: Tensor) -> Tensor:
        z, d = tukey(z, self.power).double(), self.feature_dim
        scores = []
        for c in range(len(self.stats)):
            root = linalg.inverse_root(self.class_covariances(torch.tensor([c])), "a class")[0]
            scores.append(d / self.stats.count[c] - ((z - self.stats.mean[c]) @ root.T).square().sum(1))
        return torch.stack(scores, 1)


def counts_of(n_classes: int, seed: int) -> list[int]:
    """How many images each class has.

    >>> sorted(counts_of(5, 0))
    [100, 125, 167, 250, 500]
    """
    rank = np.random.default_rng(seed).permutation(n_classes) + 1
    return [max(1, round(500 / r)) for r in rank.tolist()]


class Pool(NamedTuple):
    """Features as one learner wants them."""

    train: Tensor
    train_y: Tensor
    test: Tensor
    test_y: Tensor


def of_bank(bank: Bank, method: str) -> tuple[FrozenLearner, Pool]:
    """A learner, and features of the given network for it."""
    learner = FirstEdition() if method == "first edition" else make(method)
    assert isinstance(learner, FrozenLearner)
    columns = bank.columns(learner.stages)
    return learner, Pool(bank.train[:, columns], bank.train_y, bank.test[:, columns], bank.test_y)


class Transfer:
    """The features of EfficientNet, images in an order of their own."""

    def __init__(self, args: argparse.Namespace) -> None:
        images, eyes = data.load("cifar100", root=args.data), Eyes()
        train, test = (
            np.array(eyes.of(part, args.cache / f"lite0-128-{name}.npy"))
            for name, part in (("train-500", images.train), ("test", images.test))
        )
        order = np.random.default_rng(0).permutation(len(train))  # which images are "the first n" of a class
        arrays = train[order], np.asarray(images.train.labels)[order], test, np.array(images.test.labels)
        self.all, self.eyes, self.n_classes = Pool(*map(torch.from_numpy, arrays)), eyes, images.n_classes
        self.about: dict[str, JSON] = {"network": eyes.origin, "engine": eyes.engine.name, "data": images.fingerprint}

    def __call__(self, method: str) -> tuple[FrozenLearner, Pool]:
        """A learner, and features for it."""
        columns = np.concatenate([self.eyes.columns[s] for s in (DEEP if method == "rda" else DEEP[-1:])])
        learner = make(method, backbone=f"features:{len(columns)}", **CONTENDERS[method][1])
        assert isinstance(learner, FrozenLearner)
        return learner, self.all._replace(train=self.all.train[:, columns], test=self.all.test[:, columns])


def measure(learner: FrozenLearner, pool: Pool, counts: list[int]) -> dict[str, float]:
    """Accuracies in percent: of all, and of classes by their number of images."""
    rows = torch.cat([(pool.train_y == c).nonzero()[:n, 0] for c, n in enumerate(counts)])
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    learner.meet(range(len(counts)))
    learner.fit_base_features((pool.train[part], pool.train_y[part]) for part in rows.split(500))
    answers = torch.cat([learner.classes_[learner.score(part).argmax(1)] for part in pool.test.split(500)])
    right = (answers == pool.test_y).double()
    by_class = torch.stack([right[pool.test_y == c].mean() for c in range(len(counts))])
    sizes = torch.tensor(counts)
    found = {"acc": float(right.mean())}
    for name, (low, high) in GROUPS.items():
        found[name] = float(by_class[(sizes >= low) & (sizes <= high)].mean())
    return {name: 100 * value for name, value in found.items()}


def over_seeds(
    source: Callable[[str], tuple[FrozenLearner, Pool]], method: str, orders: list[list[int]]
) -> dict[str, JSON]:
    """Means and standard deviations over these counts."""
    found = [measure(*source(method), counts) for counts in orders]
    row: dict[str, JSON] = {"method": method}
    for name in found[0]:
        values = np.array([one[name] for one in found])
        row[name], row[f"{name}_sd"] = round(float(values.mean()), 2), round(float(values.std(ddof=1)), 2)
    return row


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--methods", nargs="+", choices=METHODS)
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--eyes", action="store_true", help="EfficientNet-Lite0 in place of a base network")
    args = arguments.parse_args()
    torch.set_num_threads(1)
    bank: Bank | None = None
    about: dict[str, JSON] = {}
    source: Callable[[str], tuple[FrozenLearner, Pool]]
    if args.eyes:
        transfer = Transfer(args)
        source, n_classes, about = transfer, transfer.n_classes, transfer.about
    else:
        bank = open_bank(args)[0]
        source, n_classes = partial(of_bank, bank), bank.n_classes
    command = f"python benchmarks/mixed_counts.py{' --eyes' if args.eyes else ''}"
    path = args.out / f"mixed_counts{'_eyes' if args.eyes else ''}.json"
    orders = [counts_of(n_classes, seed) for seed in range(args.seeds)]
    rows = rows_of(path)
    for method in args.methods or [each for each in METHODS if not args.eyes or each in CONTENDERS]:
        rows[method] = {**over_seeds(source, method, orders), "commit": environment()["commit"]}
        print(rows[method], flush=True)
        keep(path, command, bank, seeds=args.seeds, rows=[rows[each] for each in METHODS if each in rows], **about)


def rows_of(path: Path) -> dict[str, dict[str, JSON]]:
    """The rows of an earlier call by method, each with its commit; they stay unless measured again."""
    if not path.exists():
        return {}
    known = json.loads(path.read_text())
    return {row["method"]: {"commit": known["environment"]["commit"], **row} for row in known["rows"]}


if __name__ == "__main__":
    main()
