"""Features of a whole data set, computed once by one network and kept as memory-mapped files.

A :class:`FeatureData` is a data set whose rows are features in place of images, so that streams cut and shuffle it
as they do images. The cache is keyed by the network file's content, the data's content and the stages: features of
another network or of other pixels can never be mixed up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import torch
from numpy.typing import NDArray

from nocl.data import Dataset, ImageSet
from nocl.learner import FrozenLearner
from nocl.methods.ncm import NCM
from nocl.plumbing.files import digest, file_digest, read_tensors, write_atomically, write_json
from nocl.plumbing.progress import track
from nocl.plumbing.types import JSON
from nocl.pretrain import load_weights

ROWS_AT_ONCE = 250


@dataclass(frozen=True, eq=False)
class FeatureData(Dataset):
    """A data set of features [N, d]. ``origin`` says which network made them of which images."""

    source: Dataset | None = None
    origin: dict[str, JSON] | None = None

    @property
    def image_size(self) -> int:
        """Of the images the features were made of."""
        assert self.source is not None
        return self.source.image_size

    @property
    def fingerprint(self) -> str:
        """Of the images the features were made of."""
        assert self.source is not None
        return self.source.fingerprint

    @property
    def feature_dim(self) -> int:
        return int(self.train.images.shape[1])


def trained_classes(checkpoint: Path) -> tuple[int, ...] | None:
    """The labels a network file says it was trained on, in their order; None if it does not say."""
    found = read_tensors(checkpoint)[1].get("classes")
    return tuple(cast("list[int]", found)) if isinstance(found, list) else None


def extract(
    data: Dataset,
    checkpoint: Path,
    *,
    cache: Path,
    backbone: str = "reduced_resnet18",
    stages: Sequence[int] | None = None,
) -> FeatureData:
    """The features of all train and test images, from the cache or computed into it."""
    key: dict[str, JSON] = {
        "sha256": file_digest(checkpoint),
        "fingerprint": data.fingerprint,
        "backbone": backbone,
        "stages": None if stages is None else list(stages),
    }
    folder = cache / f"features-{digest(key)}"
    if not (folder / "about.json").exists():  # written last: without it the rest may be of a broken attempt
        learner = NCM(backbone=backbone, image_size=data.image_size, stages=stages)
        load_weights(learner.network, checkpoint)
        for name, images in (("train", data.train), ("test", data.test)):
            _write_features(folder / f"{name}.npy", learner, images, f"features of {name} images")
        write_json(folder / "about.json", {**key, "weights": checkpoint.name})
    return FeatureData(
        data.name,
        _mapped(folder / "train.npy", data.train),
        _mapped(folder / "test.npy", data.test),
        data.class_names,
        data.options,
        source=data,
        origin={"weights": checkpoint.name, "sha256": key["sha256"], "stages": key["stages"]},
    )


def _write_features(path: Path, learner: FrozenLearner, images: ImageSet, description: str) -> None:
    """One .npy file, batch by batch: never more than a batch in memory."""

    def write(file: BinaryIO) -> None:
        shape = (len(images), learner.feature_dim)
        np.lib.format.write_array_header_2_0(
            file, {"descr": np.dtype("<f4").str, "fortran_order": False, "shape": shape}
        )
        for x, _ in track(images.batches(ROWS_AT_ONCE), description, -(-len(images) // ROWS_AT_ONCE)):
            file.write(learner.features(x).float().cpu().numpy().astype("<f4").tobytes())

    write_atomically(path, write)


def _mapped(path: Path, images: ImageSet) -> ImageSet:
    rows: NDArray[Any] = np.load(path, mmap_mode="r")
    if len(rows) != len(images):
        raise ValueError(f"{path} has {len(rows)} rows for {len(images)} images; delete its folder to compute it again")
    return ImageSet(rows, images.labels, np.arange(len(rows)))


def tensors(images: ImageSet) -> tuple[torch.Tensor, torch.Tensor]:
    """All rows and labels of a feature set, in memory."""
    batch = images.take(np.arange(len(images)))
    return batch.x, batch.y
