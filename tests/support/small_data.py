"""A data set of random images, for tests of streams and runs."""

import numpy as np

from nocl.data import Dataset, ImageSet


def small(n_classes: int, per_class: int = 3) -> Dataset:
    """``per_class`` training and two test images of each class."""
    numbers = np.random.default_rng(0)

    def images(n: int) -> ImageSet:
        labels = np.arange(n_classes).repeat(n)
        return ImageSet.of(numbers.integers(0, 256, (len(labels), 3, 32, 32), dtype=np.uint8), labels)

    return Dataset("small", images(per_class), images(2), tuple(str(i) for i in range(n_classes)))
