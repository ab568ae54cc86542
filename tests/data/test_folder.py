"""A folder of one's own images: layouts, splits, bad files."""

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nocl.data import Dataset, MissingDataError, load
from nocl.data.decode import BadImagesError
from nocl.data.folder import class_files, refuse_splits
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


def test_links_are_followed_once_and_a_link_to_what_holds_it_is_refused(tmp_path: Path) -> None:
    root, store = tmp_path / "set", tmp_path / "store"
    write_folder(root, {"cat": 2, "dog": 1})
    write_folder(store, {"more": 3})
    (root / "cat" / "linked").symlink_to(store / "more")
    (root / "cat" / "again").symlink_to(store / "more")
    (root / "cat" / "round").symlink_to(root / "cat")
    (store / "more" / "back").symlink_to(store / "more")
    names, files, labels = class_files(root)
    assert (names, labels.tolist()) == (("cat", "dog"), [0] * 5 + [1])
    assert [path.relative_to(root).as_posix() for path in files][2:] == [
        "cat/again/0.png", "cat/again/1.png", "cat/again/2.png", "dog/0.png",
    ]  # fmt: skip
    for link, target in ((root / "dog" / "up", root), (root / "all", tmp_path), (root / "self", Path())):
        link.symlink_to(target)
        with pytest.raises(ValueError, match=rf"{link.name} links to a folder that holds it"):
            class_files(root)
        link.unlink()


def test_only_files_are_images(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_folder(tmp_path, {"cat": 2, "dog": 2})
    os.mkfifo(tmp_path / "cat" / "pipe.png")
    (tmp_path / "cat" / "zero.png").symlink_to("/dev/zero")
    (tmp_path / "dog" / "lost.png").symlink_to(tmp_path / "nothing.png")
    (tmp_path / "dog" / "circle.png").symlink_to(tmp_path / "dog" / "circle.png")
    _, files, _ = class_files(tmp_path)
    assert [path.name for path in files] == ["0.png", "1.png", "0.png", "1.png", "circle.png", "lost.png"]
    assert caplog.messages == [f"left out {tmp_path / 'cat' / name}: not a file" for name in ("pipe.png", "zero.png")]


def test_images_beside_the_class_folders_are_counted_in_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_folder(tmp_path, {"cat": 1})
    for name in ("a.png", "b.JPG", "notes.txt", ".c.png"):
        (tmp_path / name).write_bytes(b"")
    class_files(tmp_path)
    assert len(caplog.messages) == 1
    assert "2 images lie beside the class folders and are left out, such as a.png" in caplog.messages[0]


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path, {"cat": 1})
    write_folder(tmp_path / "cat", {"closed": 1})
    scandir = os.scandir

    def guarded(path: Path) -> Any:
        if path.name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    with pytest.raises(OSError, match=r"cat/closed: the folder cannot be read \(Permission denied\)"):
        class_files(tmp_path)


def test_a_size_that_is_no_number_is_refused_in_words(tmp_path: Path) -> None:
    write_folder(tmp_path, {"a": 2})
    for options in ({"size": "abc"}, {"size": 3.5}, {"size": True}, {"seed": "x"}, {"test_fraction": "half"}):
        with pytest.raises(ValueError, match=f"{next(iter(options))} must .*, not {next(iter(options.values()))!r}"):
            load("folder", root=tmp_path, **options)  # type: ignore[arg-type]


def test_splits_are_refused_where_classes_are_needed(tmp_path: Path) -> None:
    write_folder(tmp_path / "set" / "train", {"a": 1})
    with pytest.raises(ValueError, match=r"set: holds train/ and not one .*; give .*set/train"):
        refuse_splits(tmp_path / "set", "test")
    write_folder(tmp_path / "set" / "test", {"a": 1})
    with pytest.raises(ValueError, match=r"set: holds train/ and test/ and not one .*; give .*set/test"):
        refuse_splits(tmp_path / "set", "test")
    write_folder(tmp_path / "vehicles", {"train": 1, "bus": 1})
    refuse_splits(tmp_path / "vehicles", "train")
    refuse_splits(tmp_path / "no such folder", "train")
