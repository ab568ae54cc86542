"""CIFAR-100: small files in the public layout, and the real ones where they are at hand."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nocl.data import load
from nocl.plumbing.files import DamagedFileError
from tests.support.data_layouts import write_cifar100


@pytest.mark.parametrize("python2", [False, True])
def test_public_layout_is_read_from_both_pickle_generations(tmp_path: Path, python2: bool) -> None:
    pixels = write_cifar100(tmp_path, python2=python2)
    dataset = load("cifar100", root=tmp_path)
    assert dataset.class_names == ("class 0", "class 1", "class 2")
    assert dataset.train.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert len(dataset.test) == 3
    assert dataset.image_size == 32
    # rows of the archive are red, green, blue planes of 32 rows each
    assert dataset.train.images[4, 1, 2, 3] == pixels[4, 1024 + 2 * 32 + 3]


def test_files_of_another_kind_are_named(tmp_path: Path) -> None:
    write_cifar100(tmp_path)
    train = tmp_path / "cifar-100-python" / "train"
    train.write_bytes(pickle.dumps({"data": np.zeros((2, 5), np.uint8), "fine_labels": [0, 1]}))
    with pytest.raises(DamagedFileError, match=r"train: data must be uint8 \[2, 3072\]"):
        load("cifar100", root=tmp_path)
    train.write_bytes(pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "fine_labels": [3]}))
    with pytest.raises(DamagedFileError, match=r"labels must lie in 0..2, not 3..3"):
        load("cifar100", root=tmp_path)
    train.write_bytes(pickle.dumps([1]))
    with pytest.raises(DamagedFileError, match="no entry 'data'"):
        load("cifar100", root=tmp_path)


@pytest.fixture(scope="module")
def real_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where real CIFAR-100 is: NOCL_DATA, or unpacked from the sheets beside the repository."""
    given = os.environ.get("NOCL_DATA")
    if given and (Path(given) / "cifar-100-python" / "train").is_file():
        return Path(given)
    script = Path(__file__).resolve().parents[3] / "shared" / "data" / "unpack_cifar100.py"
    if not script.is_file():
        pytest.skip("no real CIFAR-100: nocl data get cifar100, or set NOCL_DATA")
    root = tmp_path_factory.mktemp("cifar100")
    subprocess.run([sys.executable, str(script), str(root)], check=True, capture_output=True)
    return root


@pytest.mark.real
def test_real_cifar100_has_the_published_statistics(real_root: Path) -> None:
    dataset = load("cifar100", root=real_root)
    assert dataset.train.images.shape == (50_000, 3, 32, 32)
    assert dataset.test.images.shape == (10_000, 3, 32, 32)
    assert np.bincount(dataset.train.labels).tolist() == [500] * 100
    assert np.bincount(dataset.test.labels).tolist() == [100] * 100
    assert dataset.train.labels[:3].tolist() == [19, 29, 0]
    assert dataset.test.labels[:3].tolist() == [49, 33, 72]
    assert dataset.class_names[0] == "apple"
    assert dataset.class_names[19] == "cattle"
    levels = np.arange(256) / 255
    counts = np.stack([np.bincount(dataset.train.images[:, c].ravel(), minlength=256) for c in range(3)])
    mean = counts @ levels / counts.sum(1)
    std = np.sqrt(counts @ levels**2 / counts.sum(1) - mean**2)
    np.testing.assert_allclose(mean, [0.50708, 0.48655, 0.44092], atol=5e-6)
    np.testing.assert_allclose(std, [0.26733, 0.25644, 0.27615], atol=5e-6)
