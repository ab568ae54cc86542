"""Which vectors the sketches of rda should look through, decided on base classes alone.

    python benchmarks/sketch_vectors.py --data FOLDER --cache CACHE [--whole]

Training images of CIFAR-100's 60 base classes (order 0) through EfficientNet-Lite0 at 128 px, 400 to learn and 100 to
ask of each. The first 36 classes are the base session, whose images shape the vectors; the other 24 come later. G are
the blind vectors that every learner has at first, T the shared covariance of the base session: T^a G for several a, and
T's own largest directions (a without bound). ``rows`` doubles the number of vectors, to tell what more bytes would
give. ``--whole`` adds whole covariances, which take minutes. Writes results/sketch_vectors.json.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bank import RESULTS
from large_features import DEEP, NETWORK, Eyes, first_of_each
from nocl import data
from nocl.methods import make
from nocl.methods.rda.method import RDA
from nocl.methods.rda.sketches import ClassSketches, rows_for
from nocl.plumbing.files import write_json
from nocl.plumbing.types import JSON
from nocl.results import environment
from nocl.streams import class_incremental

LEARNED, EARLY = 400, 36
POWERS: dict[str, float | None] = {"blind": 0.0, "T^0.5 G": 0.5, "T G": 1.0, "T^2 G": 2.0, "largest of T": None}


class Problem:
    """Features [60, 500, d] of the base classes, and the covariance that their first classes show."""

    def __init__(self, features: Tensor) -> None:
        self.features = features
        early = self.learner("shared")
        for label in range(EARLY):
            early.learn(features[label, :LEARNED], torch.full((LEARNED,), label))
        self.values, self.axes = torch.linalg.eigh(early.shared_covariance())

    def learner(self, storage: str) -> RDA:
        made = make("rda", backbone=f"features:{self.features.shape[2]}", storage=storage)
        assert isinstance(made, RDA)
        return made

    def vectors(self, power: float | None, rows: int) -> Tensor:
        """Orthonormal, float32 [d, rows]."""
        if power is None:
            return self.axes[:, -rows:].float()
        blind = ClassSketches(len(self.values), rows).blind
        shaped: Tensor = (self.axes * self.values.clamp_min(0) ** power) @ (self.axes.T @ blind)
        return torch.linalg.qr(shaped).Q.float()

    def answer(self, learner: RDA) -> dict[str, JSON]:
        """Percent of the held-out images told apart among all 60 classes, of early and of later classes."""
        for label, images in enumerate(self.features):
            learner.learn(images[:LEARNED], torch.full((LEARNED,), label))
        asked = self.features[:, LEARNED:]
        right = torch.stack([learner.predict(images) == label for label, images in enumerate(asked)]).double()
        parts = {"all": right, "early": right[:EARLY], "later": right[EARLY:]}
        return {name: round(100 * float(part.mean()), 2) for name, part in parts.items()}


def rows_of(problem: Problem, whole: bool) -> list[JSON]:
    dim = problem.features.shape[2]
    found: list[JSON] = []
    for name, power in POWERS.items():
        for rows in (rows_for(dim), 2 * rows_for(dim)):
            learner = problem.learner("sketch")
            learner.sketches = ClassSketches(dim, rows)
            learner.sketches.shaped = problem.vectors(power, rows)
            found.append({"features": dim, "vectors": name, "rows": rows, **problem.answer(learner)})
            print(found[-1], flush=True)
    if whole:
        found.append({"features": dim, "vectors": "whole", "rows": dim, **problem.answer(problem.learner("full"))})
        print(found[-1], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder that holds cifar-100-python (default: NOCL_DATA)")
    parser.add_argument("--cache", type=Path, default=Path("cache"))
    parser.add_argument("--whole", action="store_true", help="whole covariances too")
    args = parser.parse_args()
    torch.set_num_threads(1)
    images = data.load("cifar100", root=args.data)
    base, eyes = class_incremental(images).blocks[0], Eyes()
    every = eyes.of(first_of_each(images.train, 500), args.cache / "lite0-128-train-500.npy")
    labels, rows = np.asarray(images.train.labels), []
    for stages in ((5,), DEEP):
        columns = np.concatenate([eyes.columns[s] for s in stages])
        features = torch.stack([torch.from_numpy(every[labels == label][:, columns]) for label in base])
        rows += rows_of(Problem(features), args.whole)
    write_json(
        RESULTS / "sketch_vectors.json",
        {"command": "python benchmarks/sketch_vectors.py" + " --whole" * args.whole, "network": NETWORK,
         "images": f"training images of the base classes of order 0, {LEARNED} learned and 100 asked of each",
         "environment": environment(), "rows": rows},
    )  # fmt: skip


if __name__ == "__main__":
    main()
