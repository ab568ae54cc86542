"""Fit the temperature that rda takes from itself, on training images of the base classes alone.

    python benchmarks/temperature.py --data FOLDER

A model that was only taught has no held-out images to fit a temperature on. Here models of 2 to 60 classes with 1 to
100 images each are taught from images of classes that the network was not trained on: training images of base classes
of order 0, seen by kept networks of other base classes and by EfficientNet-Lite0 (all its usual depths, and its last
stage alone), and the embedded glyphs, which are like nothing that these networks have seen. For each model the
temperature that makes other images of these classes likeliest is found, and a line through all of them in two numbers
that a model knows of itself: T = scale m2^b exp(a r), with m2 the mean squared length of the classes' posterior means
and r what is unknown of the shared covariance. Two kinds of models are left out of the line, though not of the gaps:
those of two classes, because where every image is right any small T is as likely, and those right less than twice as
often as chance, where any large T is. Photographs are what users bring: a model of glyphs counts half as much as one of
photographs, the most with which every model of photographs through EfficientNet is within ten points (of 0, 0.1, 0.25,
0.5 and 1; ``--glyphs`` tries another weight). Writes temperature.json with the line, and for every model its accuracy
and its mean confidence under the line of all and under the line of the other networks (of the photographs, for glyphs).
"""

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bank import keep, parser
from nocl import data
from nocl.app.calibration import fit_temperature
from nocl.data import ImageSet
from nocl.data.features import trained_classes
from nocl.experiments.networks import KEPT
from nocl.methods.rda.method import RDA
from nocl.nets import PRETRAINED
from nocl.nets.engine import engine_named
from nocl.plumbing.types import JSON
from nocl.pretrain import load_given
from nocl.streams import class_incremental

SMALL, EYES = "reduced_resnet18", "efficientnet_lite0@128"
GLYPHS = "glyphs"
FILES = ("cifar100-60-order1-ce14", "cifar100-60-order2-ce14", "cifar100-40-order0-ce14")
STRANGE = 60  # classes at most that a network was not trained on; the small ones have 20 to 24
CLASSES, IMAGES, ASKED, DRAWS = (2, 4, 8, 16, 24, STRANGE), (1, 3, 10, 30, 100), 30, 2
Taught = tuple[dict[str, JSON], Tensor, Tensor]  # about a model, its scores of other images, their classes


def features(
    images: ImageSet, classes: Sequence[int], weights: Path, backbone: str, stages: str | None,
    each: int = max(IMAGES) + ASKED,
) -> Tensor:  # fmt: skip
    """Features [classes, images, d] of the first images, ``each`` of them, of these classes."""
    learner = RDA(backbone=backbone, image_size=32, stages=stages)  # type: ignore[arg-type]
    load_given(learner.network, weights, backbone)
    engine, found = engine_named("onnx"), []
    for c in classes:
        x = images.take(np.flatnonzero(images.labels == c)[:each]).x
        found.append(engine.features(learner.network, x, 32, learner.stages))
    return torch.stack(found)


def teach(z: Tensor, n_classes: int, images: int, draw: int) -> Taught:
    """One model: what it knows of itself and its best temperature; its scores of other images and their classes."""
    random = np.random.default_rng([draw, n_classes])
    chosen = z[random.permutation(len(z))[:n_classes]][:, torch.from_numpy(random.permutation(z.shape[1]))]
    learner, labels = RDA(backbone=f"features:{z.shape[2]}", stages=None), torch.arange(len(chosen))
    learner.fit_base_features([(chosen[:, :images].flatten(0, 1), labels.repeat_interleave(images))])
    shown = chosen[:, images:][:, -ASKED:]
    asked = labels.repeat_interleave(shown.shape[1])
    scores = learner.score(shown.flatten(0, 1)).double()
    about: dict[str, JSON] = {
        "classes": len(chosen), "images": images, "d": z.shape[2],
        "m2": learner.squared_length_of_means(), "unknown": learner.unknown(),
        "temperature": fit_temperature(scores, asked), "accuracy": float((scores.argmax(1) == asked).double().mean()),
    }  # fmt: skip
    return about, scores, asked


def every_view(root: Path | None) -> dict[tuple[str, str], Tensor]:
    """Features of photographs and of glyphs through every network, by source and network."""
    whole, glyphs = data.load("cifar100", root=root), data.load(GLYPHS)
    drawn = np.random.default_rng(0).permutation(glyphs.n_classes)[:STRANGE].tolist()
    networks: list[tuple[str, Path, str, str | None]] = [
        *[(name, KEPT / f"{name}.safetensors", SMALL, "auto") for name in FILES],
        (EYES, Path(PRETRAINED), EYES, "auto"), (f"{EYES}, last stage", Path(PRETRAINED), EYES, None),
    ]  # fmt: skip
    found = {}
    for name, weights, backbone, stages in networks:
        known = set(trained_classes(weights) or ())
        strange = [c for c in class_incremental(whole).blocks[0] if c not in known][:STRANGE]
        found["photographs", name] = features(whole.train, strange, weights, backbone, stages)
        found[GLYPHS, name] = features(glyphs.train, drawn, weights, backbone, stages)
    return found


def numbers(models: Sequence[Taught], name: str) -> np.ndarray:
    return np.array([float(about[name]) for about, _, _ in models])  # type: ignore[arg-type]


def fit(models: Sequence[Taught], glyphs: float) -> tuple[float, float, float]:
    """scale, a and b by least squares in logarithms; ``glyphs`` is what a model of glyphs counts."""
    models = [model for model in models if _tells(model[0])]
    root = np.sqrt([glyphs if about["source"] == GLYPHS else 1.0 for about, _, _ in models])
    sides = np.column_stack([np.ones(len(models)), numbers(models, "unknown"), np.log(numbers(models, "m2"))])
    wanted = np.log(numbers(models, "temperature"))
    scale, a, b = np.linalg.lstsq(sides * root[:, None], wanted * root, rcond=None)[0]
    return float(np.exp(scale)), float(a), float(b)


def _tells(about: dict[str, JSON]) -> bool:
    """Whether a model's temperature can be told: more than two classes, and twice as good as chance."""
    n_classes = int(about["classes"])  # type: ignore[arg-type]
    return n_classes > 2 and float(about["accuracy"]) >= 2 / n_classes  # type: ignore[arg-type]


def confidences(models: Sequence[Taught], line: tuple[float, float, float]) -> list[float]:
    """The mean of the largest probability of each model under this line."""
    scale, a, b = line
    temperatures = scale * np.exp(a * numbers(models, "unknown")) * numbers(models, "m2") ** b
    return [float(torch.softmax(s / t, 1).amax(1).mean()) for (_, s, _), t in zip(models, temperatures)]


def by_others(models: Sequence[Taught], glyphs: float) -> list[float]:
    """Confidences under the lines of the other networks; of glyphs, under the line of photographs."""
    found = [0.0] * len(models)
    for kind in (*FILES, EYES, GLYPHS):
        own = [i for i, (about, _, _) in enumerate(models) if _belongs(about, kind)]
        line = fit([model for i, model in enumerate(models) if i not in own], glyphs)
        for i, sure in zip(own, confidences([models[i] for i in own], line)):
            found[i] = sure
    return found


def _belongs(about: dict[str, JSON], kind: str) -> bool:
    return kind == GLYPHS if about["source"] == GLYPHS else str(about["network"]).startswith(kind)


def summary(rows: Sequence[dict[str, JSON]], key: str) -> JSON:
    """How far confidence is from accuracy, for each source, and for photographs through EfficientNet."""
    found: dict[str, JSON] = {}
    for source in ("photographs", GLYPHS, EYES):
        chosen = [r for r in rows if r["source"] == source or (r["source"] != GLYPHS and r["network"] == source)]
        own = [abs(float(r["accuracy"]) - float(r[key])) for r in chosen]  # type: ignore[arg-type]
        over = float(np.mean(np.array(own) > 0.1))
        found[source] = {"models": len(own), "mean": float(np.mean(own)), "largest": max(own), "over_ten_points": over}
    return found


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--glyphs", type=float, default=0.5, help="what a model of glyphs counts")
    args = options.parse_args()
    models: list[Taught] = []
    for (source, name), z in every_view(args.data).items():
        for n_classes, images in itertools.product(sorted({min(n, len(z)) for n in CLASSES}), IMAGES):
            for draw in range(1 if name.startswith(EYES) else DRAWS):
                if images < z.shape[1]:
                    about, scores, asked = teach(z, n_classes, images, draw)
                    models.append(({"source": source, "network": name, **about}, scores, asked))
        print(source, name, flush=True)
    line = fit(models, args.glyphs)
    rows = [
        {**about, "confidence": sure, "confidence_by_others": other}
        for (about, _, _), sure, other in zip(models, confidences(models, line), by_others(models, args.glyphs))
    ]
    fitted: JSON = {"scale": line[0], "a": line[1], "b": line[2]}
    gaps: JSON = {key: summary(rows, key) for key in ("confidence", "confidence_by_others")}
    keep(
        args.out / "temperature.json", "python benchmarks/temperature.py", None, line=fitted, gaps=gaps, models=[*rows]
    )


if __name__ == "__main__":
    main()
