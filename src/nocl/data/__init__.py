"""Data sets by name. Each is a function that returns a :class:`Dataset`; nothing is loaded on import."""

import importlib
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from nocl.data.images import Dataset, ImageSet, MissingDataError
from nocl.plumbing.registry import UnknownNameError, by_name, unknown
from nocl.plumbing.types import JSON

__all__ = ["DATASETS", "Dataset", "ImageSet", "MissingDataError", "about", "default_root", "load", "loader_of"]


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
    "embeddings": _Lazy("embeddings"),
}


def load(name: str, *, root: Path | None = None, **options: JSON) -> Dataset:
    """The data set of that name, from ``root`` (by default :func:`default_root`), with these options.

    A user's own is ``module:function``, where the function returns a :class:`Dataset`.
    """
    loader = loader_of(name)
    parameters = inspect.signature(loader.function if isinstance(loader, _Lazy) else loader).parameters
    valid = [option for option in parameters if option != "root"]
    for option in options:
        if option not in valid:
            raise UnknownNameError(unknown(option, valid, f"option of data set {name}"))
    place = {"root": default_root() if root is None else Path(root)} if "root" in parameters else {}
    found: object = loader(**place, **options)
    if not isinstance(found, Dataset):
        raise TypeError(f"{name} is not a data set: its function must return a nocl.data.Dataset, not {found!r:.80}")
    return found


def loader_of(name: str) -> Callable[..., Dataset]:
    """The function that loads the data set of that name."""
    loader = by_name(name, DATASETS, "data set")
    if not callable(loader):
        raise TypeError(f"{name} is not a data set: it must be a function that returns a nocl.data.Dataset")
    return loader


def about(name: str) -> str:
    """The first line of the docstring of a data set's module."""
    loader = loader_of(name)
    owner = importlib.import_module(f"nocl.data.{loader.name}") if isinstance(loader, _Lazy) else loader
    return (inspect.getdoc(owner) or name).splitlines()[0].rstrip(".").replace("``", "")


def default_root() -> Path:
    """Where data sets are looked for: ``NOCL_DATA``, else the user's cache directory."""
    return Path(os.environ.get("NOCL_DATA") or platformdirs.user_cache_path("nocl") / "data").expanduser()
