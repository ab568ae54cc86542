"""Vectors for the tests of estimators."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def blobs(seed: int = 0, labels: str = "cab", each: int = 20, dim: int = 6) -> tuple[NDArray[Any], NDArray[Any]]:
    """Vectors of either sign around one centre a class."""
    draw = np.random.default_rng(7)
    centres = {label: 3 * draw.normal(size=dim) for label in "abcdef"}
    noise = np.random.default_rng(seed)
    x = np.concatenate([centres[label] + noise.normal(size=(each, dim)) for label in labels])
    return x, np.repeat(list(labels), each)
