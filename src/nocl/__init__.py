"""nocl: learn new classes from a stream, in one pass, with no stored examples."""

from nocl.app.classifier import Classifier
from nocl.data import Dataset, ImageSet
from nocl.learner import FrozenLearner, Learner, NotFittedError
from nocl.methods import METHODS, make
from nocl.methods._saving import load, save
from nocl.plumbing.types import Batch
from nocl.plumbing.version import __version__
from nocl.pretrain import Recipe
from nocl.streams import Session, Stream, StreamConsumedError, class_incremental

__all__ = [
    "METHODS",
    "Batch",
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
    "save",
]
