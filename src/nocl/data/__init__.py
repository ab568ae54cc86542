"""Data sets by name. Each is a function that returns a :class:`Dataset`; nothing is loaded on import."""

import difflib
import importlib
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from nocl.batch import JSON
from nocl.data.images import Dataset, ImageSet, MissingDataError

__all__ = ["DATASETS", "Dataset", "ImageSet", "MissingDataError", "default_root", "load"]


@dataclass(frozen=True)
class _Lazy:
    """The function of the same name in ``nocl.data.<name>``, imported when first used."""

    name: str

    @property
    def function(self) -> Callable[..., Dataset]:
        found: Callable[..., Dataset] = getattr(importlib.import_module(f"nocl.data.{self.name}"), self.name)
        return found

    def __call__(self, **options: Any) -> Dataset:
        return self.function(**options)


DATASETS: dict[str, Callable[..., Dataset]] = {
    "glyphs": _Lazy("glyphs"),
    "cifar100": _Lazy("cifar100"),
    "mini_imagenet": _Lazy("mini_imagenet"),
    "core50": _Lazy("core50"),
    "folder": _Lazy("folder"),
}


def load(name: str, *, root: Path | None = None, **options: JSON) -> Dataset:
    """The data set of that name, from ``root`` (by default :func:`default_root`), with these options."""
    parameters = _parameters(name)
    valid = [option for option in parameters if option != "root"]
    for option in options:
        if option not in valid:
            raise ValueError(f"{name} has no option {option!r}{_nearest(option, valid)}; it takes: {_listed(valid)}")
    if "root" in parameters:
        return DATASETS[name](root=default_root() if root is None else Path(root), **options)
    return DATASETS[name](**options)


def default_root() -> Path:
    """Where data sets are looked for: ``NOCL_DATA``, else the user's cache directory."""
    return Path(os.environ.get("NOCL_DATA") or platformdirs.user_cache_path("nocl") / "data").expanduser()


def _parameters(name: str) -> dict[str, inspect.Parameter]:
    """The parameters of a data set's function, by name."""
    if name not in DATASETS:
        raise ValueError(f"no data set {name!r}{_nearest(name, list(DATASETS))}; there are: {_listed(list(DATASETS))}")
    loader = DATASETS[name]
    return dict(inspect.signature(loader.function if isinstance(loader, _Lazy) else loader).parameters)


def _nearest(word: str, words: list[str]) -> str:
    near = difflib.get_close_matches(word.lower().replace("-", "_"), words, n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _listed(words: list[str]) -> str:
    return ", ".join(words) or "no options"
