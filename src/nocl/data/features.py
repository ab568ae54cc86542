"""Features of a whole data set, computed once by one network and cached as memory-mapped files.

A :class:`FeatureData` is a data set whose rows are features in place of images, so that streams cut and shuffle it
as they do images. The network is a file, or by the word ``pretrained`` the one whose weights belong to its name. The
cache is keyed by the weights' content, the data's content (which includes the images' size) and everything that says
which features are taken: the kind of network, its stages and the engine that runs it. Features of another network or
of other pixels can never be mixed up.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import platformdirs
import torch
from filelock import FileLock
from numpy.typing import NDArray

from nocl import nets
from nocl.data.images import Dataset, ImageSet
from nocl.nets.engine import engine_named
from nocl.plumbing.files import digest, read_tensors, write_atomically, write_json
from nocl.plumbing.progress import track
from nocl.plumbing.types import JSON
from nocl.pretrain import load_given

ROWS_AT_ONCE = 250
ABOUT = "about.json"


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
    def made_by(self) -> dict[str, JSON]:
        return {"features": self.origin}

    @property
    def feature_dim(self) -> int:
        return int(self.train.images.shape[1])


def default_cache() -> Path:
    """Where features are kept unless the user names another folder."""
    return platformdirs.user_cache_path("nocl") / "features"


def trained_classes(network: Path) -> tuple[int, ...] | None:
    """The labels a network file says it was trained on, in their order; None if it does not say."""
    if str(network) == nets.PRETRAINED:
        return None
    found = read_tensors(network)[1].get("classes")
    return tuple(cast("list[int]", found)) if isinstance(found, list) else None


def extract(
    data: Dataset,
    weights: Path,
    *,
    cache: Path | None = None,
    backbone: str = "reduced_resnet18",
    stages: Sequence[int] | None = None,
    device: str = "cpu",
    engine: str = "torch",
) -> FeatureData:
    """The features of all train and test images, from the cache or computed into it by one process at a time.

    ``weights`` is the network's file, or ``pretrained``.
    """
    network = nets.build(backbone).eval()
    origin = load_given(network, weights, backbone)
    key: dict[str, JSON] = {
        "sha256": origin["sha256"],
        "fingerprint": data.fingerprint,
        "backbone": backbone,
        "stages": None if stages is None else list(stages),
    }
    if engine != "torch":  # default values are left out, so that older cached features are found
        key["engine"] = engine
    folder = (cache or default_cache()) / f"features-{digest(key)}"
    if not (folder / ABOUT).exists():  # written last: without it the other files may be incomplete
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / "lock"):
            if not (folder / ABOUT).exists():
                _compute(folder, data, network.to(device), stages, engine)
                write_json(folder / ABOUT, {**key, "weights": origin["weights"]})
    return FeatureData(
        data.name,
        _mapped(folder / "train.npy", data.train),
        _mapped(folder / "test.npy", data.test),
        data.class_names,
        data.options,
        source=data,
        origin={
            **origin, "stages": key["stages"],
            **({} if backbone == "reduced_resnet18" else {"backbone": backbone}),
            **({} if engine == "torch" else {"engine": engine}), **_trained(weights),
        },
    )  # fmt: skip


def _trained(network: Path) -> dict[str, JSON]:
    """How the network was trained, if its file has a recipe of this package."""
    recipe = None if str(network) == nets.PRETRAINED else read_tensors(network)[1].get("recipe")
    names = ("objective", "epochs", "schedule")
    return {"trained": {name: recipe.get(name) for name in names}} if isinstance(recipe, dict) else {}


def _compute(folder: Path, data: Dataset, network: nets.Backbone, stages: Sequence[int] | None, engine: str) -> None:
    runner, side = engine_named(engine), data.image_size
    dim = network.feature_dim(side, stages)
    for name, images in (("train", data.train), ("test", data.test)):
        batches = track(images.batches(ROWS_AT_ONCE), f"features of {name} images", -(-len(images) // ROWS_AT_ONCE))
        features = (runner.features(network, x, side, stages) for x, _ in batches)
        _write_features(folder / f"{name}.npy", (len(images), dim), features)


def _write_features(path: Path, shape: tuple[int, int], features: Iterable[torch.Tensor]) -> None:
    """One .npy file, batch by batch: never more than a batch in memory."""

    def write(file: BinaryIO) -> None:
        about = {"descr": np.dtype("<f4").str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_2_0(file, about)
        for z in features:
            file.write(z.float().cpu().numpy().astype("<f4").tobytes())

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
