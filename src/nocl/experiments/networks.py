"""Base networks kept in a folder, found by the classes they were trained on.

A file belongs to a class order if the labels in its header are the first of that order, so a network can never be given
to an order whose novel classes it knows. Names begin with the data set: ``cifar100-60-order0-ce10.safetensors``.
"""

from functools import cache
from pathlib import Path

from nocl.experiments.on_network import class_order
from nocl.plumbing.files import read_tensors
from nocl.plumbing.types import JSON
from nocl.streams import parse_partition

KEPT = Path("benchmarks/networks")
N_CLASSES = {"cifar100": 100, "mini_imagenet": 100, "core50": 50}


def kept_network(folder: Path, dataset: str, partition: str, seed: int) -> Path | None:
    """The kept network of these base classes, the longest trained if there are several; None if there is none."""
    if dataset not in N_CLASSES:
        return None
    base = parse_partition(partition, N_CLASSES[dataset])[0]
    wanted = class_order(N_CLASSES[dataset], seed)[:base]
    files = sorted(folder.glob(f"{dataset}-*.safetensors"))
    fitting = [path for path in files if _header(path).get("classes") == wanted]
    return max(fitting, key=_epochs, default=None)


def _epochs(path: Path) -> int:
    recipe = _header(path).get("recipe")
    epochs = recipe.get("epochs", 0) if isinstance(recipe, dict) else 0
    return epochs if isinstance(epochs, int) else 0


@cache
def _header(path: Path) -> dict[str, JSON]:
    return read_tensors(path)[1]
