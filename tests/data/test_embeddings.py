"""Embeddings as a data set: how a file is cut, what is refused, and what identifies it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nocl.data import load
from nocl.data.embeddings import Embeddings
from nocl.data.summary import summary
from nocl.plumbing.files import DamagedFileError


def written(path: Path, names: str = "abc", each: int = 5, dim: int = 4, **changes: Any) -> str:
    draw = np.random.default_rng(each)
    y = np.repeat(list(names), each)
    np.savez(path, **{"X": draw.random((len(y), dim), dtype=np.float32), "y": y, **changes})
    return str(path)


def opened(**options: Any) -> Embeddings:
    found = load("embeddings", **options)
    assert isinstance(found, Embeddings)
    return found


def test_a_fifth_of_each_class_is_held_out_and_a_seed_chooses_it(tmp_path: Path) -> None:
    file = written(tmp_path / "a.npz", each=10)
    data = opened(file=file)
    assert (len(data.train), len(data.test), data.class_names) == (24, 6, ("a", "b", "c"))
    assert np.bincount(data.test.labels).tolist() == [2, 2, 2]
    assert set(data.train.rows.tolist()).isdisjoint(data.test.rows.tolist())
    assert data.feature_dim == 4
    assert opened(file=file).test.rows.tolist() == data.test.rows.tolist()
    other = opened(file=file, seed=1)
    assert other.test.rows.tolist() != data.test.rows.tolist()
    assert other.fingerprint != data.fingerprint


def test_a_test_file_is_labelled_by_the_names_of_the_training_file(tmp_path: Path) -> None:
    train = written(tmp_path / "train.npz", "abc")
    test = written(tmp_path / "test.npz", each=2, y=np.array([1, 1, 0, 0, 2, 2]), classes=np.array(["b", "a", "c"]))
    data = opened(file=train, test=test)
    assert (len(data.train), data.test.labels.tolist()) == (15, [0, 0, 1, 1, 2, 2])
    assert data.options == {"file": "train.npz", "test": "test.npz"}


def test_what_a_file_holds_identifies_it_and_a_changed_file_is_read_again(tmp_path: Path) -> None:
    first = opened(file=written(tmp_path / "a.npz"))
    (tmp_path / "b").mkdir()
    assert opened(file=written(tmp_path / "b" / "a.npz")).fingerprint == first.fingerprint
    assert opened(file=written(tmp_path / "a.npz", each=6)).fingerprint != first.fingerprint
    assert not first.has_negative
    assert opened(file=written(tmp_path / "a.npz", X=-np.ones((15, 4), np.float32))).has_negative


def test_a_look_at_the_file_counts_its_vectors(tmp_path: Path) -> None:
    found = summary(opened(file=written(tmp_path / "a.npz", each=10)))
    assert found["train"] == {"vectors": 24, "shape": [4], "per_class": [8, 8, 8]}
    assert found["test"] == {"vectors": 6, "shape": [4], "per_class": [2, 2, 2]}


def test_what_cannot_be_used_is_refused_in_one_line(tmp_path: Path) -> None:
    train = written(tmp_path / "train.npz")
    with pytest.raises(ValueError, match="embeddings need a file"):
        opened()
    with pytest.raises(FileNotFoundError, match=r"no\.npz: no such file; `nocl embed"):
        opened(file=str(tmp_path / "no.npz"))
    with pytest.raises(ValueError, match=r"test_fraction must lie between 0 and 1, not 1\.5"):
        opened(file=train, test_fraction=1.5)
    with pytest.raises(ValueError, match=r"class 'a' has 1 vectors; two or more"):
        opened(file=written(tmp_path / "one.npz", each=1))
    with pytest.raises(ValueError, match=r"have 6 values, those of .* 4"):
        opened(file=train, test=written(tmp_path / "long.npz", dim=6))
    with pytest.raises(ValueError, match="has the class 'd', which"):
        opened(file=train, test=written(tmp_path / "other.npz", "abd"))
    with pytest.raises(ValueError, match="has no vector of the class 'c' to test on"):
        opened(file=train, test=written(tmp_path / "few.npz", "ab"))
    with pytest.raises(ValueError, match=r"different networks \(sha256\)"):
        opened(
            file=written(tmp_path / "here.npz", about=np.array('{"sha256": "1"}')),
            test=written(tmp_path / "there.npz", about=np.array('{"sha256": "2"}')),
        )
    rows = np.ones((15, 4), np.float32)
    rows[7, 2] = np.nan
    with pytest.raises(DamagedFileError, match="row 7 of X is not finite"):
        opened(file=written(tmp_path / "nan.npz", X=rows))
