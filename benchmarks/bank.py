"""Cached features of all stages, for benchmarks that vary what the arena does not: images per class, settings, storage.

Feeding cached features gives the answers that images would give (the contract of
:class:`~nocl.learner.FrozenLearner`), so a hundred runs cost one forward pass.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nocl import data, metrics
from nocl.data.features import FeatureData, extract, tensors
from nocl.learner import FrozenLearner
from nocl.metrics import Scores
from nocl.nets import build
from nocl.plumbing.files import write_json
from nocl.plumbing.types import JSON, Batch
from nocl.results import environment
from nocl.streams import class_incremental

LAST = 4
STAGES = (1, 2, 3, LAST, -1, -2, -3)  # a minus sign: the spread over positions
RESULTS = Path("benchmarks/results")


class Bank:
    """All stages' features of a data set under one network, in memory."""

    def __init__(self, features: FeatureData, backbone: str = "reduced_resnet18") -> None:
        self.features, self.n_classes = features, features.n_classes
        network = build(backbone, seed=0)
        self.widths = [network.feature_dim(features.image_size, [s]) for s in STAGES]
        (self.train, self.train_y), (self.test, self.test_y) = tensors(features.train), tensors(features.test)
        order = np.random.default_rng(0).permutation(len(self.train_y))  # which images are "the first n" of a class
        self.train, self.train_y = self.train[order], self.train_y[order]

    def columns(self, stages: Sequence[int] | None) -> Tensor:
        """Where these stages' values are; None is the last stage alone."""
        parts = torch.arange(sum(self.widths)).split(self.widths)
        return torch.cat([parts[STAGES.index(s)] for s in (stages or (LAST,))])

    def batch(self, learner: FrozenLearner, classes: Sequence[int], shots: int | None = None) -> Batch:
        """Training features of these classes, the first ``shots`` of each, as this learner wants them."""
        rows = torch.isin(self.train_y, torch.tensor(classes))
        if shots is not None:
            seen = torch.nn.functional.one_hot(self.train_y, self.n_classes).cumsum(0)
            rows &= seen.gather(1, self.train_y[:, None])[:, 0] <= shots
        return Batch(self.train[rows][:, self.columns(learner.stages)], self.train_y[rows])

    def teach_base(self, learner: FrozenLearner, classes: Sequence[int]) -> FrozenLearner:
        """The base session's pass over the features."""
        learner.meet(classes)
        z, y = self.batch(learner, classes)
        return learner.fit_base_features(zip(z.split(500), y.split(500)))

    def teach(
        self, learner: FrozenLearner, sessions: Sequence[Sequence[int]], shots: int | None = None, size: int = 10
    ) -> FrozenLearner:
        """Sessions of novel classes."""
        for classes in sessions:
            z, y = self.batch(learner, classes, shots)
            for part, labels in zip(z.split(size), y.split(size)):
                learner.learn(part, labels)
            learner.end_session()
        return learner

    @torch.no_grad()
    def predict(self, learner: FrozenLearner) -> Tensor:
        """Labels of all test images."""
        z = self.test[:, self.columns(learner.stages)]
        return torch.cat([learner.classes_[learner.score(part).argmax(1)] for part in z.split(500)])

    def scores(self, learner: FrozenLearner, blocks: Sequence[Sequence[int]]) -> Scores:
        """Acc, base, novel and HM of this learner over all blocks, the base first."""
        return self.scores_of(self.predict(learner), blocks)

    def scores_of(self, answers: Tensor, blocks: Sequence[Sequence[int]]) -> Scores:
        """The same of given answers to all test images."""
        right = answers == self.test_y
        means = [
            float(torch.stack([right[self.test_y == c].double().mean() for c in block]).mean()) for block in blocks
        ]
        table = [[value if s <= t else None for s, value in enumerate(means)] for t in range(len(blocks))]
        return metrics.last(table, [len(block) for block in blocks])


def parser(description: str) -> argparse.ArgumentParser:
    """The arguments these benchmarks share."""
    arguments = argparse.ArgumentParser(description=description.splitlines()[0])
    arguments.add_argument("--data", type=Path, help="folder that holds cifar-100-python (default: NOCL_DATA)")
    arguments.add_argument("--weights", type=Path, help="base network of order 0, 60+4x10, as safetensors")
    arguments.add_argument("--cache", type=Path, default=Path("cache"), help="where features are kept")
    arguments.add_argument("--out", type=Path, default=RESULTS)
    return arguments


def open_bank(args: argparse.Namespace) -> tuple[Bank, tuple[tuple[int, ...], ...]]:
    """CIFAR-100 under the given network, and the sessions of 60+4x10 in order 0."""
    if args.weights is None:
        raise SystemExit("--weights: name the base network's safetensors file")
    images = data.load("cifar100", root=args.data)
    return Bank(extract(images, args.weights, cache=args.cache, stages=STAGES)), class_incremental(images).blocks


def percent(scores: Scores) -> dict[str, JSON]:
    """Rounded to the hundredth of a percent, the resolution of ten thousand test images."""
    values = {"acc": scores.acc, "base": scores.base, "novel": scores.novel, "hm": scores.hm}
    return {name: None if value is None else round(100 * value, 2) for name, value in values.items()}


def keep(path: Path, command: str, bank: Bank | None, **content: JSON) -> None:
    """Write a result with what is needed to make it again."""
    origin: JSON = None if bank is None else {"network": bank.features.origin, "data": bank.features.fingerprint}
    write_json(path, {"command": command, "origin": origin, "environment": environment(), **content})
    print(json.dumps(content, indent=1)[:2000])
