"""Choosing a method's parameters on the base session alone: a small copy of the whole problem made of base classes.

No image of a novel class and no test image is used. The base classes' training images become a data set of
their own (:func:`base_only`): part of each class is held out as its test images, and
:func:`~nocl.streams.class_incremental` splits the classes into pseudo-base and pseudo-novel ones. A network trained on
the pseudo-base part has not seen the pseudo-novel classes or the held-out images, so base and novel classes differ
in the copy as they do in the real run.
"""

from collections.abc import Sequence

import numpy as np
import torch

from nocl.data import Dataset, ImageSet
from nocl.plumbing.seeding import generator

PARTITION = "60+10x4"  # of the base classes: 60 % pseudo-base, then four sessions


def base_only(data: Dataset, classes: Sequence[int], *, holdout: float = 0.2, seed: int = 0) -> Dataset:
    """The training images of these classes, relabelled 0, 1, ... in this order, with a part held out for testing."""
    if not 0 < holdout < 1:
        raise ValueError(f"holdout must lie between 0 and 1, not {holdout}: the part of each class to test on")
    images = data.train.where(classes)
    label = np.full(data.n_classes, -1)
    label[list(classes)] = np.arange(len(classes))
    labels = label[images.labels]
    shuffled = torch.randperm(len(images), generator=generator(seed, "holdout")).numpy()
    test: list[int] = []
    for c in range(len(classes)):
        own = shuffled[labels[shuffled] == c]
        test.extend(own[: max(1, round(holdout * len(own)))].tolist())
    held = np.zeros(len(images), dtype=bool)
    held[test] = True
    whole = ImageSet(images.images, labels, images.rows)
    return Dataset(
        f"{data.name}-base",
        whole.subset(np.flatnonzero(~held)),
        whole.subset(np.flatnonzero(held)),
        tuple(data.class_names[c] for c in classes),
        {"of": data.name, "fingerprint": data.fingerprint, "classes": list(classes), "holdout": holdout, "seed": seed},
    )
