"""Can a model that was only ever taught be believed? Confidence against accuracy, and images of classes never taught.

    python benchmarks/confidence.py --fashion FOLDER --cifar10 FOLDER --data FOLDER

Sources and images as in first_picture.py: six classes of Fashion-MNIST and of CIFAR-10 through the packaged network and
through EfficientNet-Lite0, 24 of the novel classes of CIFAR-100 through a kept network and through EfficientNet.
Classes of 1, 3, 10 and 30 images are learned without any held-out image; probabilities are the softmax of scores over
the method's own temperature. ``auroc``: the chance that an image of a class that was learned has a greater confidence
than one of a class that was not, with the largest score and with the largest probability as confidence. Writes
confidence.json.

rda's temperature comes from benchmarks/temperature.py, which reads none of these sources.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from first_picture import EYES, POOL, Images, cifar10, fashion, features_of, novel
from nocl.app import weights
from nocl.app.calibration import auc
from nocl.experiments.networks import KEPT
from nocl.learner import FrozenLearner
from nocl.methods import make
from nocl.plumbing.files import write_json
from nocl.plumbing.types import JSON
from nocl.results import environment

METHODS, BY_EYES = ("rda", "ncm", "slda", "fecam"), ("rda", "ncm")  # fecam is slow with 1,280 values
SHOTS, FEW, MANY = (1, 3, 10, 30), 6, 24
NAMES = ("accuracy", "confidence", "auroc_score", "auroc_probability")
NETWORK = KEPT / "cifar100-60-order0-ce10.safetensors"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--fashion", type=Path, required=True, help="folder of the idx files of Fashion-MNIST")
    parser.add_argument("--cifar10", type=Path, required=True, help="folder of the PNG sheets of CIFAR-10")
    parser.add_argument("--data", type=Path, help="folder that holds cifar-100-python (default: NOCL_DATA)")
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/confidence.json"))
    given = parser.parse_args()
    packaged = weights.file("cifar100")
    sources: list[tuple[str, Images, Path, int]] = [
        ("Fashion-MNIST", fashion(given.fashion), packaged, FEW),
        ("CIFAR-10", cifar10(given.cifar10), packaged, FEW),
        ("CIFAR-100, novel classes", novel(given.data), NETWORK, MANY),
    ]
    rows: list[JSON] = []
    for name, images, network, known in sources:
        for eyes, methods in ((network, METHODS), (EYES, BY_EYES)):
            for method in methods:
                z = features_of(method, images, eyes)
                for shots in SHOTS:
                    draws = [measure(method, z, shots, known, seed) for seed in range(given.repetitions)]
                    found = dict(zip(NAMES, np.mean(draws, 0).round(3).tolist()))
                    row = {"source": name, "network": eyes if isinstance(eyes, str) else eyes.stem, "known": known}
                    rows.append({**row, "method": method, "images": shots, **found})
                    print(rows[-1], flush=True)
    command = f"python benchmarks/confidence.py --fashion FOLDER --cifar10 FOLDER --repetitions {given.repetitions}"
    write_json(given.out, {"command": command, "environment": environment("cpu"), "rows": rows})


def measure(method: str, z: Tensor, shots: int, known: int, seed: int) -> tuple[float, float, float, float]:
    """Accuracy and mean confidence on learned classes; AUROC by score and by probability."""
    draw = np.random.default_rng(seed)
    classes, order = draw.permutation(len(z)), torch.from_numpy(draw.permutation(POOL))
    learner = make(method, backbone=f"features:{z.shape[2]}", stages=None)
    assert isinstance(learner, FrozenLearner)
    learned = z[classes[:known]][:, :POOL][:, order[:shots]]
    learner.learn(learned.flatten(0, 1), torch.arange(known).repeat_interleave(shots))
    tests = z[classes][:, POOL:]
    truth = torch.arange(known).repeat_interleave(tests.shape[1])
    met, strange = (learner.score(part.flatten(0, 1)).double() for part in (tests[:known], tests[known:]))
    sure = [torch.softmax(scores / learner.softmax_temperature(), 1).amax(1) for scores in (met, strange)]
    accuracy = float((learner.classes_[met.argmax(1)] == truth).double().mean())
    return accuracy, float(sure[0].mean()), auc(met.amax(1), strange.amax(1)), auc(sure[0], sure[1])


if __name__ == "__main__":
    main()
