"""Fit the temperature that rda takes from itself, on training images of the base classes alone.

    python benchmarks/temperature.py --data FOLDER

A model that was only taught has no held-out images to fit a temperature on. Here models of 4 to 23 classes with 1 to 30
images each are taught from the pseudo-novel classes of tune_rda.py (training images of base classes that the network
was not trained on), seen by that file's network and by EfficientNet-Lite0. For each, the temperature that makes other
training images of these classes likeliest is found, and a line through all of them in two numbers that a model knows of
itself: T = scale m2^a d^b, where m2 is the mean squared length of the classes' posterior means and d the length of the
feature; times one more number as long as every class has one image, when the prior of the means is round.
Writes temperature.json with the line and, for every model, accuracy and mean confidence under it.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bank import keep
from nocl import data
from nocl.app.calibration import fit_temperature
from nocl.methods.rda.method import RDA
from nocl.plumbing.types import JSON
from tune_rda import EYES, LEARNED, SPLITS, TESTED, arguments, of_copy, of_eyes, open_bench

CLASSES, IMAGES, DRAWS = (4, 10, 23), (1, 3, 10, 30), 2


def model(z: Tensor, n_classes: int, images: int, draw: int) -> tuple[dict[str, JSON], Tensor, Tensor]:
    """What one model knows of itself and its best temperature; its scores of other images and their classes."""
    random = np.random.default_rng(draw)
    chosen = z[random.permutation(len(z))[:n_classes]][:, torch.from_numpy(random.permutation(z.shape[1]))]
    learner = RDA(backbone=f"features:{z.shape[2]}", stages=None)
    labels = torch.arange(n_classes)
    learner.fit_base_features([(chosen[:, :images].flatten(0, 1), labels.repeat_interleave(images))])
    asked = labels.repeat_interleave(TESTED)
    scores = learner.score(chosen[:, LEARNED:].flatten(0, 1)).double()
    return (
        {"classes": n_classes, "images": images, "d": z.shape[2], "m2": learner.squared_length_of_means(),
         "temperature": fit_temperature(scores, asked)},
        scores, asked,
    )  # fmt: skip


def fit(found: Sequence[dict[str, JSON]]) -> tuple[float, float, float, float]:
    """scale, a, b and the factor of single images by least squares in logarithms."""
    table = np.log([[float(m[key]) for key in ("temperature", "m2", "d")] for m in found])  # type: ignore[arg-type]
    single = [m["images"] == 1 for m in found]
    sides = np.column_stack([np.ones(len(table)), table[:, 1:], single])
    scale, a, b, factor = np.linalg.lstsq(sides, table[:, 0], rcond=None)[0]
    return float(np.exp(scale)), float(a), float(b), float(np.exp(factor))


def main() -> None:
    args = arguments(__doc__)
    bench = open_bench(data.load("cifar100", root=args.data), SPLITS[0], args)
    taught = [
        ({"network": name, **about}, scores, asked)
        for name, z in ((args.backbone, of_copy(bench)), (EYES, of_eyes(bench)))
        for n_classes in CLASSES for images in IMAGES for draw in range(DRAWS)
        for about, scores, asked in [model(z, n_classes, images, draw)]
    ]  # fmt: skip
    scale, a, b, single = fit([about for about, _, _ in taught])
    models: list[JSON] = []
    for about, scores, asked in taught:
        line = scale * float(about["m2"]) ** a * float(about["d"]) ** b  # type: ignore[arg-type]
        line *= single if about["images"] == 1 else 1
        sure = torch.softmax(scores / line, 1).amax(1).mean()
        right = (scores.argmax(1) == asked).double().mean()
        models.append({**about, "line": line, "accuracy": float(right), "confidence": float(sure)})
    apart = [abs(float(m["accuracy"]) - float(m["confidence"])) for m in models]  # type: ignore[arg-type, call-overload, index]
    fitted: JSON = {
        "scale": scale,
        "a": a,
        "b": b,
        "single": single,
        "mean_gap": float(np.mean(apart)),
        "largest_gap": max(apart),
    }
    keep(args.out / "temperature.json", "python benchmarks/temperature.py", bench.bank, line=fitted, models=models)


if __name__ == "__main__":
    main()
