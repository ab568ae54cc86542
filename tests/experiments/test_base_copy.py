"""Choosing on base data: the copy holds base classes' training images only."""

import pytest
import torch

from nocl.data import Dataset, ImageSet
from nocl.experiments.base_copy import base_only
from nocl.plumbing.seeding import generator


def test_base_only_splits_the_base_classes_and_nothing_else() -> None:
    images = torch.randint(256, (60, 3, 32, 32), generator=generator(0), dtype=torch.uint8).numpy()
    labels = torch.arange(60).numpy() % 6
    whole = Dataset(
        "toy", ImageSet.of(images[:48], labels[:48]), ImageSet.of(images[48:], labels[48:]), tuple("abcdef")
    )
    small = base_only(whole, (4, 1, 3), holdout=0.25)
    assert small.class_names == ("e", "b", "d")
    rows = [*small.train.rows, *small.test.rows]
    assert sorted(rows) == [i for i in range(48) if labels[i] in (4, 1, 3)]  # training images, each once
    for part, n in ((small.train, 6), (small.test, 2)):
        assert part.labels.tolist().count(0) == n
        assert [(4, 1, 3)[c] for c in part.labels] == labels[part.rows].tolist()


def test_base_only_refuses_to_hold_out_everything() -> None:
    images = ImageSet.of(torch.zeros(4, 3, 32, 32, dtype=torch.uint8).numpy(), [0, 0, 1, 1])
    with pytest.raises(ValueError, match="holdout must lie between 0 and 1"):
        base_only(Dataset("toy", images, images, ("a", "b")), (0,), holdout=1.0)
