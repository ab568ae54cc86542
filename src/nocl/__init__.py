"""nocl: learn new classes from a stream, in one pass, with no stored examples."""

from nocl.batch import Batch
from nocl.checkpoint import load, save
from nocl.classifier import Classifier
from nocl.data import Dataset, ImageSet
from nocl.learner import FrozenLearner, Learner, NotFittedError
from nocl.methods import METHODS, make
from nocl.pretrain import Recipe
from nocl.stream import Session, Stream, StreamConsumedError, class_incremental
from nocl.version import __version__

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
