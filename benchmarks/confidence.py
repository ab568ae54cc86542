"""Can a model that was only ever taught be believed? Confidence against accuracy, and images of classes never taught.

    python benchmarks/confidence.py --fashion FOLDER --cifar10 FOLDER

The packaged network, sources and images as in first_picture.py. Classes of 1, 3, 10 and 30 images are learned without
any held-out image; probabilities are the softmax of scores over the method's own temperature. ``auroc``: the chance
that an image of a class that was learned has a greater confidence than one of a class that was not, with the largest
score and with the largest probability as confidence. Writes confidence.json.

rda's temperature comes from benchmarks/temperature.py, which reads neither of these sources.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from first_picture import POOL, cifar10, fashion, features_of
from nocl.app import weights
from nocl.app.calibration import auc
from nocl.learner import FrozenLearner
from nocl.methods import make
from nocl.plumbing.files import write_json
from nocl.plumbing.types import JSON
from nocl.results import environment

METHODS = ("rda", "ncm", "slda", "fecam")
SHOTS, KNOWN = (1, 3, 10, 30), 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--fashion", type=Path, required=True, help="folder of the idx files of Fashion-MNIST")
    parser.add_argument("--cifar10", type=Path, required=True, help="folder of the PNG sheets of CIFAR-10")
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/confidence.json"))
    given = parser.parse_args()
    rows: list[JSON] = []
    for name, images in (("Fashion-MNIST", fashion(given.fashion)), ("CIFAR-10", cifar10(given.cifar10))):
        for method in METHODS:
            z = features_of(method, images, weights.file("cifar100"))
            for shots in SHOTS:
                found = np.mean([measure(method, z, shots, seed) for seed in range(given.repetitions)], 0).round(3)
                names = ("accuracy", "confidence", "auroc_score", "auroc_probability")
                row = {"source": name, "method": method, "images": shots, **dict(zip(names, found.tolist()))}
                print(row, flush=True)
                rows.append(row)
    command = f"python benchmarks/confidence.py --fashion FOLDER --cifar10 FOLDER --repetitions {given.repetitions}"
    write_json(given.out, {"command": command, "known_classes": KNOWN, "environment": environment("cpu"), "rows": rows})


def measure(method: str, z: Tensor, shots: int, seed: int) -> tuple[float, float, float, float]:
    """Accuracy and mean confidence on learned classes; AUROC by score and by probability."""
    draw = np.random.default_rng(seed)
    classes, order = draw.permutation(len(z)), torch.from_numpy(draw.permutation(POOL))
    learner = make(method, backbone=f"features:{z.shape[2]}", stages=None)
    assert isinstance(learner, FrozenLearner)
    learned = z[classes[:KNOWN]][:, :POOL][:, order[:shots]]
    learner.learn(learned.flatten(0, 1), torch.arange(KNOWN).repeat_interleave(shots))
    tests = z[classes][:, POOL:]
    truth = torch.arange(KNOWN).repeat_interleave(tests.shape[1])
    known, unknown = (learner.score(part.flatten(0, 1)).double() for part in (tests[:KNOWN], tests[KNOWN:]))
    sure = [torch.softmax(scores / learner.softmax_temperature(), 1).amax(1) for scores in (known, unknown)]
    accuracy = float((learner.classes_[known.argmax(1)] == truth).double().mean())
    return accuracy, float(sure[0].mean()), auc(known.amax(1), unknown.amax(1)), auc(sure[0], sure[1])


if __name__ == "__main__":
    main()
