"""Fit the temperature that rda takes from itself, on training images of the base classes alone.

    python benchmarks/temperature.py --data FOLDER

A model that was only taught has no held-out images to fit a temperature on. Here models of 2 to 24 classes with 1 to
100 images each are taught from training images of base classes of order 0 that the network was not trained on, seen by
kept networks of other base classes and by EfficientNet-Lite0 (all its usual depths, and its last stage alone). For each
the temperature that makes other training images of these classes likeliest is found, and a line through all of them in
two numbers that a model knows of itself: T = scale d^b exp(a r), with d the length of the feature and r what is unknown
of the shared covariance. Models of two classes are left out of the line, because where every image is right any small T
is as likely, but not of the gaps. Writes temperature.json with the line, and for every model its accuracy and its mean
confidence under the line of all networks and under the line of the other kinds of network.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bank import keep, parser
from nocl import data
from nocl.app.calibration import fit_temperature
from nocl.data import Dataset
from nocl.data.features import trained_classes
from nocl.experiments.networks import KEPT
from nocl.methods.rda.method import RDA
from nocl.nets import PRETRAINED
from nocl.plumbing.types import JSON
from nocl.pretrain import load_given
from nocl.streams import class_incremental

SMALL, EYES = "reduced_resnet18", "efficientnet_lite0@128"
FILES = ("cifar100-60-order1-ce14", "cifar100-60-order2-ce14", "cifar100-40-order0-ce14")
STRANGE = 24  # classes at most that a network was not trained on
CLASSES, IMAGES, LEARNED, ASKED, DRAWS = (2, 4, 8, 16, STRANGE), (1, 3, 10, 30, 100), 100, 30, 2
Taught = tuple[dict[str, JSON], Tensor, Tensor]  # about a model, its scores of other images, their classes


def features(whole: Dataset, weights: Path, backbone: str, stages: str | None = "auto") -> Tensor:
    """Features [classes, images, d] of base classes that the network does not know."""
    learner = RDA(backbone=backbone, image_size=whole.image_size, stages=stages)  # type: ignore[arg-type]
    load_given(learner.network, weights, backbone)
    known = set(trained_classes(weights) or ())
    classes = [c for c in class_incremental(whole).blocks[0] if c not in known][:STRANGE]
    found = []
    for c in classes:
        chosen = np.flatnonzero(whole.train.labels == c)[: LEARNED + ASKED]
        found.append(torch.cat([learner.features(whole.train.take(part).x) for part in np.array_split(chosen, 3)]))
    return torch.stack(found)


def teach(z: Tensor, n_classes: int, images: int, draw: int) -> Taught:
    """One model: what it knows of itself and its best temperature; its scores of other images and their classes."""
    random = np.random.default_rng([draw, n_classes])
    chosen = z[random.permutation(len(z))[:n_classes]][:, torch.from_numpy(random.permutation(z.shape[1]))]
    learner, labels = RDA(backbone=f"features:{z.shape[2]}", stages=None), torch.arange(len(chosen))
    learner.fit_base_features([(chosen[:, :images].flatten(0, 1), labels.repeat_interleave(images))])
    asked = labels.repeat_interleave(ASKED)
    scores = learner.score(chosen[:, LEARNED:].flatten(0, 1)).double()
    about: dict[str, JSON] = {
        "classes": len(chosen), "images": images, "d": z.shape[2], "unknown": learner.unknown(),
        "temperature": fit_temperature(scores, asked), "accuracy": float((scores.argmax(1) == asked).double().mean()),
    }  # fmt: skip
    return about, scores, asked


def numbers(models: Sequence[Taught], name: str) -> np.ndarray:
    return np.array([float(about[name]) for about, _, _ in models])  # type: ignore[arg-type]


def fit(models: Sequence[Taught]) -> tuple[float, float, float]:
    """scale, a and b by least squares in logarithms."""
    models = [model for model in models if model[0]["classes"] != 2]
    sides = np.column_stack([np.ones(len(models)), numbers(models, "unknown"), np.log(numbers(models, "d"))])
    scale, a, b = np.linalg.lstsq(sides, np.log(numbers(models, "temperature")), rcond=None)[0]
    return float(np.exp(scale)), float(a), float(b)


def confidences(models: Sequence[Taught], line: tuple[float, float, float]) -> list[float]:
    """The mean of the largest probability of each model under this line."""
    scale, a, b = line
    temperatures = scale * np.exp(a * numbers(models, "unknown")) * numbers(models, "d") ** b
    return [float(torch.softmax(s / t, 1).amax(1).mean()) for (_, s, _), t in zip(models, temperatures)]


def main() -> None:
    args = parser(__doc__).parse_args()
    whole = data.load("cifar100", root=args.data)
    seen = {name: features(whole, KEPT / f"{name}.safetensors", SMALL) for name in FILES}
    seen[EYES] = features(whole, Path(PRETRAINED), EYES)
    seen[f"{EYES}, last stage"] = features(whole, Path(PRETRAINED), EYES, None)
    models: list[Taught] = []
    for name, z in seen.items():
        for n_classes in CLASSES:
            for images in IMAGES:
                for draw in range(1 if name.startswith(EYES) else DRAWS):
                    about, scores, asked = teach(z, n_classes, images, draw)
                    models.append(({"network": name, **about}, scores, asked))
        print(name, flush=True)
    line = fit(models)
    rows = [{**about, "confidence": sure} for (about, _, _), sure in zip(models, confidences(models, line))]
    for kind in (*FILES, EYES):  # a line of the other networks, as for a network that was not here
        own = [i for i, (about, _, _) in enumerate(models) if str(about["network"]).startswith(kind)]
        others = fit([model for i, model in enumerate(models) if i not in own])
        for i, sure in zip(own, confidences([models[i] for i in own], others)):
            rows[i]["confidence_by_others"] = sure
    gaps = {
        key: [abs(float(row["accuracy"]) - float(row[key])) for row in rows]  # type: ignore[arg-type]
        for key in ("confidence", "confidence_by_others")
    }
    fitted: JSON = {"scale": line[0], "a": line[1], "b": line[2]}
    summary: JSON = {
        key: {"mean": float(np.mean(gap)), "largest": max(gap), "over_ten_points": float(np.mean(np.array(gap) > 0.1))}
        for key, gap in gaps.items()
    }
    keep(
        args.out / "temperature.json",
        "python benchmarks/temperature.py",
        None,
        line=fitted,
        gaps=summary,
        models=[*rows],
    )


if __name__ == "__main__":
    main()
