"""Networks of the timm package, by ``timm:NAME`` (extra ``timm``). They are built untrained.

Building must not download anything, because a saved model is built before its own weights are loaded into it. Only
:func:`load_timm` gets weights from timm, which downloads them or finds them in its cache.

Stages: if timm lists the network's layers of increasing depth (``feature_info``), the stages are the means over
positions of these layers and, last, timm's own pooled feature. Otherwise that feature is the only stage.
"""

import difflib
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nocl.nets.backbone import Backbone
from nocl.plumbing.registry import UnknownNameError

PREFIX = "timm:"


class MissingExtraError(ImportError):
    """An optional package is not installed."""


class TimmNetwork(Backbone):
    """A network of timm without its classifier layer."""

    fit = "photo"

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.side = _settings(module).get("input_size", (3, 224, 224))[-1]
        self.layers = _layers(module)
        self.n_stages = len(self.layers) + 1

    def stage_features(self, x: Tensor, stages: Sequence[int]) -> tuple[Tensor, ...]:
        """Means over positions of the listed layers; the last stage is timm's own feature."""
        pooled: dict[int, Tensor] = {}
        handles = [
            self.module.get_submodule(layer).register_forward_hook(_keep(pooled, number, channels))
            for number, (layer, channels) in enumerate(self.layers, start=1)
            if number in stages
        ]
        try:
            out: Tensor = self.module(x)
        finally:
            for handle in handles:
                handle.remove()
        if out.ndim != 2:
            raise ValueError(f"a backbone must return [B, d]; {type(self.module).__name__} gave {list(out.shape)}")
        return tuple(out if s == self.n_stages else pooled[s] for s in stages)


def timm_factory(name: str) -> Callable[[], nn.Module]:
    """Builds the untrained network, without its classifier layer."""
    return lambda: TimmNetwork(_created(name, pretrained=False))


def load_timm(network: Backbone, name: str) -> None:
    """Fill the network with timm's weights and the normalisation they were trained with."""
    if not isinstance(network, TimmNetwork):
        raise TypeError(f"{name} must be built by nocl.nets.build before its weights are loaded")
    trained = _created(name, pretrained=True)
    network.module.load_state_dict(trained.state_dict())
    settings = _settings(trained)
    for buffer, key in ((network.mean, "mean"), (network.std, "std")):
        if key in settings:
            buffer.copy_(torch.tensor(settings[key], dtype=buffer.dtype).view(3, 1, 1))


def _created(name: str, *, pretrained: bool) -> Any:
    timm, plain = _timm(), name.removeprefix(PREFIX)
    if hasattr(timm, "is_model") and not timm.is_model(plain):
        near = difflib.get_close_matches(plain, timm.list_models(), n=3, cutoff=0.4)
        hint = f"; did you mean {' or '.join(near)}?" if near else "."
        raise UnknownNameError(
            f"timm has no network {plain!r}{hint} All: python -c 'import timm; print(*timm.list_models())'"
        )
    try:
        return timm.create_model(plain, pretrained=pretrained, num_classes=0)
    except (RuntimeError, OSError) as error:
        if not pretrained:
            raise
        raise OSError(f"timm could not get the weights of {plain}, which it downloads once: {error}") from error


def _settings(module: nn.Module) -> dict[str, Any]:
    return getattr(module, "pretrained_cfg", None) or getattr(module, "default_cfg", None) or {}


def _layers(module: nn.Module) -> list[tuple[str, int]]:
    """Submodules that timm lists as features of increasing depth, with their channels; [] if it lists none."""
    listed = getattr(module, "feature_info", None)
    known = {name for name, _ in module.named_modules()}
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    layers = [(str(row.get("module", "")), int(row.get("num_chs", 0))) for row in rows]
    return layers if all(name in known and channels for name, channels in layers) else []


def _keep(pooled: dict[int, Tensor], number: int, channels: int) -> Callable[[nn.Module, Any, Tensor], None]:
    def hook(layer: nn.Module, inputs: Any, output: Tensor) -> None:
        if output.ndim == 4 and output.shape[1] == channels:  # [B, C, H, W]
            pooled[number] = output.mean(dim=(2, 3))
        elif output.shape[-1] == channels:  # transformers: [B, H, W, C] or [B, tokens, C]
            pooled[number] = output.flatten(1, -2).mean(1)
        else:
            raise ValueError(f"stage {number} of this timm network is {list(output.shape)}, not of {channels} channels")

    return hook


def _timm() -> Any:
    try:
        return importlib.import_module("timm")
    except ModuleNotFoundError as error:
        raise MissingExtraError("backbone timm:NAME needs the package timm: pip install 'nocl[timm]'") from error
