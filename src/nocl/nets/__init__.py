"""Networks by name: ``build("reduced_resnet18")``, ``timm:NAME``, or a user's own as ``module:factory``.

``features:D`` is no network but the place of one, for rows of D features: see :mod:`nocl.nets.stored`.
"""

from collections.abc import Callable

from torch import nn

from nocl.nets.backbone import Backbone, Wrapped
from nocl.nets.efficientnet import efficientnet_lite0, efficientnet_lite1, efficientnet_lite2
from nocl.nets.resnet import reduced_resnet18, tiny_resnet18
from nocl.nets.stored import PREFIX as STORED
from nocl.nets.stored import StoredFeatures, stored_factory
from nocl.nets.timm import PREFIX as TIMM
from nocl.nets.timm import load_pretrained, timm_factory
from nocl.plumbing.registry import by_name
from nocl.plumbing.seeding import scoped

BACKBONES: dict[str, Callable[[], nn.Module]] = {
    "reduced_resnet18": reduced_resnet18,
    "tiny_resnet18": tiny_resnet18,
    "efficientnet_lite0": efficientnet_lite0,
    "efficientnet_lite1": efficientnet_lite1,
    "efficientnet_lite2": efficientnet_lite2,
}


def build(name: str, *, seed: int = 0) -> Backbone:
    """A freshly initialised backbone; the global generator is left alone."""
    with scoped(seed):
        network = _factory(name)()
    if not isinstance(network, nn.Module):
        raise TypeError(f"backbone {name!r} must build a torch module, not {type(network).__name__}")
    return network if isinstance(network, Backbone) else Wrapped(network)


def _factory(name: str) -> Callable[[], nn.Module]:
    if name.startswith(TIMM):
        return timm_factory(name)
    return stored_factory(name) if name.startswith(STORED) else by_name(name, BACKBONES, "backbone")


__all__ = ["BACKBONES", "Backbone", "StoredFeatures", "build", "load_pretrained"]
