"""Networks by name: ``build("reduced_resnet18")``, ``timm:NAME``, or a user's own as ``module:factory``."""

from collections.abc import Callable

from torch import nn

from nocl.nets.backbone import Backbone, Wrapped
from nocl.nets.resnet import reduced_resnet18, tiny_resnet18
from nocl.nets.timm import PREFIX, load_pretrained, timm_factory
from nocl.plumbing.registry import by_name
from nocl.plumbing.seeding import scoped

BACKBONES: dict[str, Callable[[], nn.Module]] = {
    "reduced_resnet18": reduced_resnet18,
    "tiny_resnet18": tiny_resnet18,
}


def build(name: str, *, seed: int = 0) -> Backbone:
    """A freshly initialised backbone; the global generator is left alone."""
    factory = timm_factory(name) if name.startswith(PREFIX) else by_name(name, BACKBONES, "backbone")
    with scoped(seed):
        network = factory()
    if not isinstance(network, nn.Module):
        raise TypeError(f"backbone {name!r} must build a torch module, not {type(network).__name__}")
    return network if isinstance(network, Backbone) else Wrapped(network)


__all__ = ["BACKBONES", "Backbone", "build", "load_pretrained"]
