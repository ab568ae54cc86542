"""A folder of one's own images: layouts, splits, bad files."""

import logging
from pathlib import Path

import numpy as np
import pytest

from nocl.data import Dataset, MissingDataError, load
from nocl.data.decode import BadImagesError
from tests.support.data_layouts import write_folder, write_image


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NOCL_CACHE", str(tmp_path / "cache"))


def sums(dataset: Dataset) -> list[int]:
    """A number that tells the images apart, train first."""
    return [int(x.sum()) for images in (dataset.train, dataset.test) for x in images.images[images.rows]]


def test_split_takes_a_share_of_every_class_and_depends_on_the_seed_alone(tmp_path: Path) -> None:
    write_folder(tmp_path / "set", {"cat": 10, "dog": 5})
    first, again, other = (load("folder", root=tmp_path / "set", size=8, seed=seed) for seed in (0, 0, 1))
    assert first.class_names == ("cat", "dog")
    assert np.bincount(first.train.labels).tolist() == [8, 4]
    assert np.bincount(first.test.labels).tolist() == [2, 1]
    assert sums(first) == sums(again)
    assert sums(first) != sums(other)
    assert sorted(sums(first)) == sorted(sums(other))
    assert len(set(sums(first))) == 15
    assert first.options == {
        "size": 8, "fit": "crop", "skip_bad": False, "test_fraction": 0.2, "seed": 0,
    }  # fmt: skip


def test_train_and_test_folders_are_the_split(tmp_path: Path) -> None:
    write_folder(tmp_path / "train", {"b": 3, "a": 2})
    noise = write_image(tmp_path / "test" / "b" / "x.png", 99)
    write_image(tmp_path / "test" / "a" / "deep" / "below" / "x.png", 98)
    dataset = load("folder", root=tmp_path, size=8)
    assert dataset.class_names == ("a", "b")
    assert dataset.train.labels.tolist() == [0, 0, 1, 1, 1]
    assert dataset.test.labels.tolist() == [0, 1]
    np.testing.assert_array_equal(dataset.test.take([1]).x[0].numpy(), noise.transpose(2, 0, 1))


def test_any_size_is_brought_to_the_one_asked_for(tmp_path: Path) -> None:
    write_folder(tmp_path, {"a": 2}, side=50)
    write_image(tmp_path / "a" / "small.png", 1, side=3)
    assert load("folder", root=tmp_path, size=16).image_size == 16


def spoil(root: Path) -> set[str]:
    (root / "cat" / "empty.jpg").write_bytes(b"")
    (root / "cat" / "notes.txt").write_text("two of these are blurred")
    (root / "cat" / ".hidden").write_text("not looked at")
    (root / "cat" / "Thumbs.db").write_text("not looked at")
    return {str(root / "cat" / "empty.jpg"), str(root / "cat" / "notes.txt")}


def test_bad_files_stop_the_reading_with_the_whole_list(tmp_path: Path) -> None:
    write_folder(tmp_path / "set", {"cat": 3, "dog": 3})
    bad = spoil(tmp_path / "set")
    with pytest.raises(BadImagesError, match=r"2 files are not images.*--skip-bad") as caught:
        load("folder", root=tmp_path / "set", size=8)
    assert set(caught.value.reasons) == bad
    assert not list((tmp_path / "cache").glob("*.npy")), "a refused set leaves no cache"


def test_skip_bad_leaves_them_out_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_folder(tmp_path / "set", {"cat": 3, "dog": 3})
    good = sums(load("folder", root=tmp_path / "set", size=8))
    bad = spoil(tmp_path / "set")
    for _ in range(2):  # built, then found
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            dataset = load("folder", root=tmp_path / "set", size=8, skip_bad=True)
        assert all(any(path in message for message in caplog.messages) for path in bad)
        assert sorted(sums(dataset)) == sorted(good)
    with pytest.raises(BadImagesError):
        load("folder", root=tmp_path / "set", size=8)


def test_skipping_bad_files_may_not_empty_a_class(tmp_path: Path) -> None:
    write_folder(tmp_path, {"cat": 3, "dog": 1})
    (tmp_path / "dog" / "x.png").write_bytes(b"")
    with pytest.raises(ValueError, match="class 'dog' has 1 readable images; a split needs at least 2"):
        load("folder", root=tmp_path, size=8, skip_bad=True)


def test_wrong_layouts_are_explained(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="no such folder"):
        load("folder", root=tmp_path / "absent")
    with pytest.raises(MissingDataError, match="no class folders"):
        load("folder", root=tmp_path)
    write_folder(tmp_path / "train", {"a": 2, "b": 2})
    with pytest.raises(MissingDataError, match="has train/ but no test/"):
        load("folder", root=tmp_path)
    write_folder(tmp_path / "test", {"a": 2, "c": 2})
    with pytest.raises(ValueError, match="b, c in only one of train/ and test/"):
        load("folder", root=tmp_path)
    (tmp_path / "test" / "c").rename(tmp_path / "test" / "b")
    (tmp_path / "train" / "empty").mkdir()
    with pytest.raises(MissingDataError, match="empty: no files"):
        load("folder", root=tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fit": "stretch"}, "'crop' or 'squash'"),
        ({"test_fraction": 1.0}, "between 0 and 1"),
        ({"size": 0}, "size"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, options: dict[str, object], message: str) -> None:
    write_folder(tmp_path, {"a": 2})
    with pytest.raises(ValueError, match=message):
        load("folder", root=tmp_path, **options)
