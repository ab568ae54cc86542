"""Networks of the timm package, by ``timm:NAME`` (extra ``timm``). They are built untrained; weights come on demand.

Building must not fetch anything, because a saved model is built before its own weights are loaded into it.
``load_pretrained`` is the one place that asks timm for weights, which timm downloads or finds in its cache.
"""

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from nocl.nets.backbone import Backbone, Wrapped

PREFIX = "timm:"


class MissingExtraError(ImportError):
    """A package that nocl can use but does not need is not installed."""


def timm_factory(name: str) -> Callable[[], nn.Module]:
    """Builds the untrained network, without its classifier layer."""

    def build() -> nn.Module:
        module: nn.Module = _timm().create_model(name.removeprefix(PREFIX), pretrained=False, num_classes=0)
        return module

    return build


def load_pretrained(network: Backbone, name: str) -> None:
    """Fill the network with timm's weights and the normalisation they were trained with."""
    if not isinstance(network, Wrapped):
        raise TypeError(f"{name} must be built by nocl.nets.build before its weights are loaded")
    trained = _timm().create_model(name.removeprefix(PREFIX), pretrained=True, num_classes=0)
    network.module.load_state_dict(trained.state_dict())
    settings: dict[str, Any] = getattr(trained, "pretrained_cfg", None) or getattr(trained, "default_cfg", {})
    for buffer, key in ((network.mean, "mean"), (network.std, "std")):
        if key in settings:
            buffer.copy_(torch.tensor(settings[key], dtype=buffer.dtype).view(3, 1, 1))


def _timm() -> Any:
    try:
        return importlib.import_module("timm")
    except ModuleNotFoundError as error:
        raise MissingExtraError("backbone timm:NAME needs the package timm: pip install 'nocl[timm]'") from error
