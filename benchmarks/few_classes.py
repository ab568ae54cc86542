"""A classifier that starts from nothing: a few images of a few classes, without a base session.

    NOCL_DATA=FOLDER python benchmarks/few_classes.py

The packaged network, training images of 30 CIFAR-100 classes (no test image is read): some of the classes are taught
with a few images each and told apart on 40 others of each. Compared are ``ncm``, ``rda``, and ``rda`` that trusts its
shared covariance from the first image, for several numbers of images a feature value from which it is known.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nocl import data
from nocl.app import weights
from nocl.learner import FrozenLearner
from nocl.methods import make
from nocl.methods.rda import method as rda
from nocl.plumbing.files import write_json
from nocl.pretrain import load_weights
from nocl.results import environment

CLASSES, TAUGHT, TESTED, DRAWS = 30, 50, 40, 4
CASES = ((2, 5), (6, 1), (6, 5), (6, 20), (6, 40), (20, 5), (20, 40))  # classes, images of each
TRUST_AT_ONCE = 1e-9
RULES = {"ncm": None, "rda, trusting at once": TRUST_AT_ONCE, "rda, from 3": 3, "rda, from 10": 10, "rda, from 30": 30}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", type=Path, default=None, help="folder of the data sets; default NOCL_DATA")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/few_classes.json"))
    given = parser.parse_args()
    images = data.load("cifar100", root=given.root).train
    features = {method: features_of(method, images) for method in ("ncm", "rda")}
    rows = []
    for n_classes, shots in CASES:
        row = {"classes": n_classes, "images": shots}
        for name, known_from in RULES.items():
            method = name.partition(",")[0]
            rda._KNOWN_FROM = known_from or rda._KNOWN_FROM  # type: ignore[assignment]
            found = [accuracy(method, features[method], n_classes, shots, seed) for seed in range(DRAWS)]
            row[name] = round(100 * float(np.mean(found)), 1)
        print(row, flush=True)
        rows.append(row)
    about = {
        "command": "python benchmarks/few_classes.py",
        "draws_of_classes": DRAWS,
        "environment": environment("cpu"),
    }
    write_json(given.out, {**about, "rows": rows})


def features_of(method: str, images: data.ImageSet) -> Tensor:
    """Features [classes, images, d] by the packaged network, as the method wants them."""
    learner = make(method)
    assert isinstance(learner, FrozenLearner)
    load_weights(learner.network, weights.file("cifar100"))
    found = []
    for label in range(CLASSES):
        rows = np.flatnonzero(images.labels == label)[: TAUGHT + TESTED]
        found.append(learner.features(images.subset(rows).take(np.arange(len(rows))).x))
    return torch.stack(found)


def accuracy(method: str, z: Tensor, n_classes: int, shots: int, seed: int) -> float:
    """Share told apart among classes drawn by the seed."""
    drawn = torch.randperm(CLASSES, generator=torch.Generator().manual_seed(seed))[:n_classes]
    learner = make(method)
    assert isinstance(learner, FrozenLearner)
    for column, label in enumerate(drawn):
        learner.learn(z[label, :shots], torch.full((shots,), column))
    answers = learner.score(z[drawn, TAUGHT:].flatten(0, 1)).argmax(1).view(n_classes, -1)
    return float((answers == torch.arange(n_classes)[:, None]).float().mean())


if __name__ == "__main__":
    main()
