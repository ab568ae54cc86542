"""A data set in numbers: to look at it, and to see whether two machines have the same one."""

import numpy as np

from nocl.data.images import Dataset, ImageSet
from nocl.plumbing.types import JSON


def summary(dataset: Dataset) -> dict[str, JSON]:
    """Counts, shapes, images per class and content hashes; reads every image once."""
    return {
        "name": dataset.name,
        "options": dataset.options,
        "classes": dataset.n_classes,
        "train": _split(dataset.train, dataset.n_classes),
        "test": _split(dataset.test, dataset.n_classes),
        "class_names": list(dataset.class_names),
        "content": dataset.fingerprint,
    }


def _split(images: ImageSet, n_classes: int) -> dict[str, JSON]:
    per_class: list[JSON] = np.bincount(images.labels, minlength=n_classes).tolist()
    if images.images.ndim == 2:
        return {"vectors": len(images), "shape": [int(images.images.shape[1])], "per_class": per_class}
    count, total, squares = 0, np.zeros(3), np.zeros(3)
    for batch in images.batches(256):
        x = batch.x.numpy().astype(np.float64) / 255
        count += x.size // 3
        total += x.sum((0, 2, 3))
        squares += (x**2).sum((0, 2, 3))
    mean = total / max(count, 1)
    std = np.sqrt(np.maximum(squares / max(count, 1) - mean**2, 0))
    return {
        "images": len(images),
        "shape": [3, *images.size],
        "per_class": per_class,
        "mean": [round(float(value), 5) for value in mean],
        "std": [round(float(value), 5) for value in std],
        "content": images.content,
    }
