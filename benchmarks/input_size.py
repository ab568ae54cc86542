"""At which size the default network sees enough: accuracy and time of an image, EfficientNet-Lite0 from 96 to 224 px.

    python benchmarks/input_size.py [--folder PHOTOS] [--sizes 96 128 160 192 224]

``--folder`` is any folder of photographs, one folder a class; without it CIFAR-100's training images stand in, enlarged
from 32 px: they hold no more detail than that, so for photographs the answer can only move towards larger sizes. Of
every class 15 images are learned and 15 others answered, after 1, 5 and 15 images, by the nearest mean and by rda with
its defaults. Time is processor time of one thread by ONNX Runtime. Writes input_size.json.
"""

import argparse
from pathlib import Path
from time import process_time

import numpy as np
import torch
from torch import Tensor

from bank import RESULTS
from nocl import data, nets
from nocl.data.folder import class_files
from nocl.data.pictures import batch_of
from nocl.learner import FrozenLearner
from nocl.methods import make
from nocl.nets.engine import engine_named
from nocl.plumbing.files import write_json
from nocl.plumbing.types import JSON
from nocl.results import environment

NETWORK, SHOTS = "efficientnet_lite0", (1, 5, 15)
EACH = max(SHOTS)


def pictures(args: argparse.Namespace, size: int) -> tuple[Tensor, Tensor]:
    """Images uint8 [classes * 30, 3, side, side] and labels, the learned half of each class first."""
    draw = np.random.default_rng(0)
    if args.folder is not None:
        _, files, labels = class_files(args.folder)
        rows = _rows(labels, args.classes, draw)
        return batch_of([files[row] for row in rows], size, "photo"), torch.from_numpy(labels[rows])
    images = data.load("cifar100", root=args.data).train
    rows = _rows(np.asarray(images.labels), args.classes, draw)
    batch = images.take(rows)
    return batch.x, batch.y


def _rows(labels: np.ndarray, classes: int, draw: np.random.Generator) -> np.ndarray:
    found = [draw.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    return np.concatenate([rows[: 2 * EACH] for rows in found if len(rows) >= 2 * EACH][:classes])


def measure(args: argparse.Namespace, size: int) -> dict[str, JSON]:
    x, y = pictures(args, size)
    name = NETWORK if args.folder is not None else f"{NETWORK}@{size}"
    network, engine = nets.build(name), engine_named("onnx")
    nets.load_pretrained(network, name)
    stages = network.last_stages(3)
    engine.features(network, x[:10], x.shape[-1], stages)  # export and warm up
    start = process_time()
    z = torch.cat([engine.features(network, part, x.shape[-1], stages) for part in x.split(10)])
    seconds = process_time() - start
    place = torch.arange(len(y)) % (2 * EACH)
    row: dict[str, JSON] = {"size": size, "ms": round(1000 * seconds / len(x), 2), "engine": engine.name}
    for method, columns in (("ncm", slice(-1280, None)), ("rda", slice(None))):
        for shots in SHOTS:
            learner = make(method, backbone=f"features:{z[:, columns].shape[1]}")
            assert isinstance(learner, FrozenLearner)
            learned, asked = place < shots, place >= EACH
            learner.learn(z[learned][:, columns], y[learned])
            right = learner.predict(z[asked][:, columns]) == y[asked]
            row[f"{method}_{shots}"] = round(100 * float(right.double().mean()), 1)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder that holds cifar-100-python (default: NOCL_DATA)")
    parser.add_argument("--folder", type=Path, help="a folder of photographs, one folder a class")
    parser.add_argument("--classes", type=int, default=50)
    parser.add_argument("--sizes", type=int, nargs="+", default=[96, 128, 160, 192, 224])
    parser.add_argument("--out", type=Path, default=RESULTS / "input_size.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[JSON] = []
    for size in args.sizes:
        rows.append(measure(args, size))
        print(rows[-1], flush=True)
    source = "cifar100 training images, enlarged from 32 px" if args.folder is None else args.folder.name
    sizes = " ".join(map(str, args.sizes))
    command = f"python benchmarks/input_size.py --classes {args.classes} --sizes {sizes}"
    write_json(args.out, {"command": command, "source": source, "environment": environment(), "rows": rows})


if __name__ == "__main__":
    main()
