"""nocl: learn new classes from a stream, in one pass, with no stored examples.

The names below are public. They are imported when first used, so that ``import nocl`` and the command line's help do
not wait for PyTorch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from nocl.plumbing.version import __version__

if TYPE_CHECKING:
    from nocl.app.classifier import Classifier
    from nocl.data import Dataset, ImageSet
    from nocl.learner import FrozenLearner, Learner, NotFittedError
    from nocl.methods import METHODS, make
    from nocl.methods._saving import load, save
    from nocl.plumbing.types import Batch
    from nocl.pretrain import Recipe
    from nocl.run import run
    from nocl.stats.class_stats import ClassStats
    from nocl.streams import Session, Stream, StreamConsumedError, class_incremental

__all__ = [
    "METHODS",
    "Batch",
    "ClassStats",
    "Classifier",
    "Dataset",
    "FrozenLearner",
    "ImageSet",
    "Learner",
    "NotFittedError",
    "Recipe",
    "Session",
    "Stream",
    "StreamConsumedError",
    "__version__",
    "class_incremental",
    "load",
    "make",
    "run",
    "save",
]

_HOMES = {
    "nocl.app.classifier": ("Classifier",),
    "nocl.data": ("Dataset", "ImageSet"),
    "nocl.learner": ("FrozenLearner", "Learner", "NotFittedError"),
    "nocl.methods": ("METHODS", "make"),
    "nocl.methods._saving": ("load", "save"),
    "nocl.plumbing.types": ("Batch",),
    "nocl.pretrain": ("Recipe",),
    "nocl.run": ("run",),  # a module that can be called, because both have this name
    "nocl.stats.class_stats": ("ClassStats",),
    "nocl.streams": ("Session", "Stream", "StreamConsumedError", "class_incremental"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'nocl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
