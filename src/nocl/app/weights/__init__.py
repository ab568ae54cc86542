"""Networks that ship with the package, by name: ``file("cifar100")`` is the path of its safetensors file.

``cifar100``: a reduced ResNet-18 trained on all hundred CIFAR-100 classes at 32 pixels in ten epochs; it answers 61.4 %
of their test images right with its own head. The command, seed and commit are in ``benchmarks/results/joint``; the
file that the command leaves in its cache became this one by ``python -m nocl.app.weights SOURCE TARGET``.
"""

from importlib.resources import files
from pathlib import Path

from nocl.plumbing.registry import UnknownNameError, unknown

PACKAGED = {"cifar100": "reduced_resnet18"}  # name: the network it holds the weights of


def file(name: str) -> Path:
    """Where the packaged weights of that name are."""
    if name not in PACKAGED:
        raise UnknownNameError(unknown(name, PACKAGED, "packaged network"))
    path = Path(str(files("nocl.app.weights"))) / f"{name}.safetensors"
    if not path.is_file():
        raise FileNotFoundError(
            f"the packaged network {name!r} is missing from this installation; install nocl again, "
            "or give backbone= a safetensors file or a network to train"
        )
    return path
