"""Networks by name: ``build("efficientnet_lite0")``, ``timm:NAME``, or a user's own as ``module:factory``.

``NAME@SIDE`` resizes input images to SIDE pixels. ``features:D`` stands for a network whose features of D values were
computed elsewhere: see :mod:`nocl.nets.stored`.
"""

import difflib
import re
from collections.abc import Callable

from torch import nn

from nocl.nets.backbone import Backbone, Wrapped
from nocl.nets.efficientnet import efficientnet_lite0, efficientnet_lite1, efficientnet_lite2
from nocl.nets.imagenet import WHEELS
from nocl.nets.resnet import reduced_resnet18, tiny_resnet18
from nocl.nets.stored import PREFIX as STORED
from nocl.nets.stored import StoredFeatures, stored_factory
from nocl.nets.timm import PREFIX as TIMM
from nocl.nets.timm import timm_factory
from nocl.nets.trained import PRETRAINED, fill_by_name, state_digest
from nocl.plumbing.registry import UnknownNameError, by_name
from nocl.plumbing.seeding import scoped
from nocl.plumbing.types import JSON

BACKBONES: dict[str, Callable[[], nn.Module]] = {
    "reduced_resnet18": reduced_resnet18,
    "tiny_resnet18": tiny_resnet18,
    "efficientnet_lite0": efficientnet_lite0,
    "efficientnet_lite1": efficientnet_lite1,
    "efficientnet_lite2": efficientnet_lite2,
}
_SIDE = re.compile(r"(.+)@(\d{1,4})")


def build(name: str, *, seed: int = 0) -> Backbone:
    """A newly initialised backbone; the global generator is not changed."""
    plain, side = split_side(name)
    with scoped(seed):
        network = _factory(plain)()
    if not isinstance(network, nn.Module):
        raise TypeError(f"backbone {name!r} must build a torch module, not {type(network).__name__}")
    backbone = network if isinstance(network, Backbone) else Wrapped(network)
    backbone.enlarge_to = side
    return backbone


def load_pretrained(network: Backbone, name: str) -> dict[str, JSON]:
    """Load the weights that belong to a network's name; returns their origin, or {} if there are none."""
    plain, _ = split_side(name)
    own = ":" in plain and not plain.startswith((TIMM, STORED))
    return fill_by_name(network, plain, build(plain, seed=1) if own else None)


def split_side(name: str) -> tuple[str, int | None]:
    """The network's name, and the side to which images are resized if the name has one.

    >>> split_side("efficientnet_lite0@128")
    ('efficientnet_lite0', 128)
    """
    match = _SIDE.fullmatch(name)
    return (match[1], int(match[2])) if match else (name, None)


def valid_backbones(packaged: tuple[str, ...] = ()) -> str:
    """All kinds of backbones in one sentence; ``packaged`` are more names that the caller accepts."""
    ready = ", ".join((*packaged, *WHEELS))
    untrained = ", ".join(name for name in BACKBONES if name not in WHEELS)
    return (
        f"trained: {ready}; to be trained: {untrained}; timm:NAME (extra timm); your own as module:factory; "
        f"{'a FILE.safetensors; ' if packaged else ''}vectors as features:D"
    )


def unknown_backbone(name: str, packaged: tuple[str, ...] = ()) -> UnknownNameError:
    """The error for an unknown backbone."""
    near = difflib.get_close_matches(name, [*packaged, *BACKBONES], n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return UnknownNameError(f"unknown backbone {name!r}{hint} Valid: {valid_backbones(packaged)}")


def _factory(name: str) -> Callable[[], nn.Module]:
    if name.startswith(TIMM):
        return timm_factory(name)
    if name.startswith(STORED):
        return stored_factory(name)
    if name not in BACKBONES and ":" not in name:
        raise unknown_backbone(name)
    return by_name(name, BACKBONES, "backbone")


__all__ = [
    "BACKBONES",
    "PRETRAINED",
    "WHEELS",
    "Backbone",
    "StoredFeatures",
    "build",
    "load_pretrained",
    "split_side",
    "state_digest",
    "unknown_backbone",
]
