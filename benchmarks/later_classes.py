"""Is a fitted model still to be believed when classes are added? Confidence against accuracy, before and after.

    python benchmarks/later_classes.py --data FOLDER --weights NETWORK

Base classes of CIFAR-100 (order 0) are learned, a temperature is fitted on held-out images, then novel classes are
taught, 1, 10 or 100 images of each, and all test images of the classes met are asked. Confidence is the mean largest
probability: with rda's own temperature, and with the one that the model carries over from its held-out images
(``Calibration.carried``), which is what ``Classifier`` does. Sources: the given 60-class network, base classes with all
training images, held out is the first half of the base classes' test images, which nobody asks again; and
EfficientNet-Lite0 at 128 px with 40 images of each base class to learn and 10 held out. That the temperature is carried
over, and how, was decided on training images of base classes. Nothing is chosen here. Writes later_classes.json.
"""

import argparse
import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bank import keep, open_bank, parser
from large_features import DEEP, Eyes, first_of_each
from nocl import data
from nocl.app.calibration import Calibration, calibrate
from nocl.methods.rda import RDA
from nocl.plumbing.types import JSON
from nocl.streams import class_incremental

SHOTS, ADDED = (1, 10, 100), (1, 5, 40)
LEARNED, HELD = 40, 10  # images of each base class through EfficientNet
Classes = list[Tensor]  # features [images, d] of each class


def joined(classes: Classes) -> tuple[Tensor, Tensor]:
    """Features of all classes with their numbers."""
    return torch.cat(classes), torch.cat([torch.full((len(z),), c) for c, z in enumerate(classes)])


def measure(source: str, base: Classes, held: Classes, novel: Classes, asked: Classes) -> list[JSON]:
    """One row for each number of added classes and of their images; ``asked`` are base classes, then novel ones."""
    fitted = RDA(backbone=f"features:{base[0].shape[1]}", stages=None)
    fitted.fit_base_features([joined(base)])
    z, y = joined(held)
    calibration = calibrate(fitted.score(z), y, fitted.softmax_temperature())
    rows: list[JSON] = [row(source, fitted, calibration, asked[: len(base)], 0, 0)]
    for shots in SHOTS:
        for added in ADDED:
            learner = copy.deepcopy(fitted)
            z, y = joined([each[:shots] for each in novel[:added]])
            learner.learn(z, y + len(base))
            rows.append(row(source, learner, calibration, asked[: len(base) + added], added, shots))
    return rows


def row(source: str, learner: RDA, calibration: Calibration, asked: Classes, added: int, shots: int) -> JSON:
    z, y = joined(asked)
    scores = torch.cat([learner.score(part) for part in z.split(500)]).double()
    own = learner.softmax_temperature()
    found: dict[str, JSON] = {"accuracy": round(100 * float((scores.argmax(1) == y).double().mean()), 1)}
    for name, temperature in (("own", own), ("carried", calibration.carried(own))):
        found[name] = round(100 * float(torch.softmax(scores / temperature, 1).amax(1).mean()), 1)
    print(source, added, shots, found, flush=True)
    return {"source": source, "added": added, "images": shots, **found}


def of_network(args: argparse.Namespace) -> list[JSON]:
    bank, blocks = open_bank(args)
    columns = bank.columns(RDA(backbone="reduced_resnet18").stages)
    order = [c for block in blocks for c in block]
    train, test = (
        [z[y == c][:, columns] for c in order] for z, y in ((bank.train, bank.train_y), (bank.test, bank.test_y))
    )
    k = len(blocks[0])
    held, asked = [z[:50] for z in test[:k]], [z[50:] for z in test]
    return measure("given network", train[:k], held, train[k:], asked)


def of_eyes(args: argparse.Namespace) -> list[JSON]:
    images, eyes = data.load("cifar100", root=args.data), Eyes()
    chosen = first_of_each(images.train, 500)
    columns = np.concatenate([eyes.columns[s] for s in DEEP])
    blocks = class_incremental(images).blocks
    order: Sequence[int] = [c for block in blocks for c in block]
    parts = []
    for name, some in (("train-500", chosen), ("test", images.test)):
        rows, labels = eyes.of(some, args.cache / f"lite0-128-{name}.npy"), np.asarray(some.labels)
        parts.append([torch.from_numpy(np.array(rows[labels == c])[:, columns]) for c in order])
    (train, test), k = parts, len(blocks[0])
    held = [z[LEARNED : LEARNED + HELD] for z in train[:k]]
    return measure("efficientnet_lite0@128", [z[:LEARNED] for z in train[:k]], held, train[k:], test)


def main() -> None:
    args = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    rows = of_eyes(args) + of_network(args)
    keep(args.out / "later_classes.json", "python benchmarks/later_classes.py --weights NETWORK", None, rows=rows)


if __name__ == "__main__":
    main()
