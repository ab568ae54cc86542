"""Mini-ImageNet and CORe50 in every layout in which they are published."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from nocl.data import Dataset, ImageSet, MissingDataError, load
from nocl.data.pickles import UnsafePickleError
from nocl.plumbing.files import DamagedFileError
from tests.support.data_layouts import (
    MINI_LISTS,
    write_core50,
    write_core50_lists,
    write_mini_folders,
    write_mini_lists,
    write_mini_pickles,
)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NOCL_CACHE", str(tmp_path / "cache"))


def corners(images: ImageSet) -> list[tuple[int, ...]]:
    """Red, green and blue of each image, all of them flat."""
    return [tuple(int(v) for v in x) for x in images.images[images.rows][:, :, 0, 0]]


MINI = {"pickles": write_mini_pickles, "lists": write_mini_lists, "folders": write_mini_folders}


@pytest.mark.parametrize("layout", MINI)
@pytest.mark.parametrize("place", ["mini-imagenet", "."])
def test_mini_imagenet_has_its_hundred_classes_in_list_order(tmp_path: Path, layout: str, place: str) -> None:
    MINI[layout](tmp_path / "set" / place)
    dataset = load("mini_imagenet", root=tmp_path / "set")
    assert dataset.options["layout"] == layout
    assert dataset.class_names == tuple(wnid for wnids in MINI_LISTS.values() for wnid in wnids)
    assert dataset.image_size == 84
    assert np.bincount(dataset.train.labels).tolist() == [5] * 100
    assert np.bincount(dataset.test.labels).tolist() == [1] * 100
    for images in (dataset.train, dataset.test):
        assert [red for red, _, _ in corners(images)] == images.labels.tolist()
    assert not set(corners(dataset.train)) & set(corners(dataset.test))


def test_mini_imagenet_is_the_same_set_from_pickles_and_from_lists(tmp_path: Path) -> None:
    write_mini_pickles(tmp_path / "a" / "mini_imagenet", per_class=12)
    write_mini_lists(tmp_path / "b" / "mini_imagenet", per_class=12)
    first, second = (load("mini_imagenet", root=tmp_path / name) for name in "ab")
    assert len(first.test) == 200
    assert first.fingerprint == second.fingerprint
    assert len({green for _, green, _ in corners(first.test)}) > 4, "test images are chosen by chance"


def test_mini_imagenet_absent_or_damaged_is_explained(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"put there the three mini-imagenet-cache"):
        load("mini_imagenet", root=tmp_path)
    write_mini_lists(tmp_path / "lists")
    (tmp_path / "lists" / "images" / "n0000000002.png").unlink()
    with pytest.raises(MissingDataError, match=r"1 of 600 listed images.*n0000000002\.png"):
        load("mini_imagenet", root=tmp_path / "lists")
    (tmp_path / "lists" / "val.csv").write_text("filename,label\n../../secret,n64\n")
    with pytest.raises(DamagedFileError, match="not a plain file name"):
        load("mini_imagenet", root=tmp_path / "lists")
    write_mini_pickles(tmp_path / "pickles")
    content = {"image_data": np.zeros((2, 84, 84, 3), np.uint8), "class_dict": {"n00": [0, 0]}}
    (tmp_path / "pickles" / "mini-imagenet-cache-val.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(DamagedFileError, match="must name each of the 2 images once"):
        load("mini_imagenet", root=tmp_path / "pickles")


def frames(dataset: Dataset) -> list[list[tuple[int, ...]]]:
    return [corners(images) for images in (dataset.train, dataset.test)]


def test_core50_tests_on_recording_sessions_3_7_and_10(tmp_path: Path) -> None:
    write_core50(tmp_path, sessions=(1, 2, 3, 7, 10, 11), frames=1)
    dataset = load("core50", root=tmp_path)
    assert dataset.n_classes == 50
    assert dataset.class_names[:6] == (*(f"plug adapter {i}" for i in range(1, 6)), "mobile phone 1")
    assert dataset.image_size == 128
    train, test = frames(dataset)
    assert {session for _, session, _ in train} == {1, 2, 11}
    assert {session for _, session, _ in test} == {3, 7, 10}
    assert [thing - 1 for thing, _, _ in train] == dataset.train.labels.tolist()
    assert (len(train), len(test)) == (150, 150)
    assert dataset.options == {"labels": "object", "every": 1, "split": "recording sessions"}


def test_core50_categories_are_five_objects_each_and_frames_are_thinned(tmp_path: Path) -> None:
    write_core50(tmp_path, frames=5)
    dataset = load("core50", root=tmp_path, labels="category", every=2)
    assert dataset.class_names[0] == "plug adapter"
    assert dataset.class_names[9] == "remote control"
    train, test = frames(dataset)
    assert [(thing - 1) // 5 for thing, _, _ in train] == dataset.train.labels.tolist()
    assert {frame for _, _, frame in train + test} == {0, 2, 4}
    assert dataset.options == {"labels": "category", "every": 2, "split": "recording sessions"}


@pytest.mark.parametrize("place", ["", "core50_128x128"])
def test_core50_official_lists_decide_where_present(tmp_path: Path, place: str) -> None:
    names = write_core50(tmp_path, sessions=(1, 2, 3))
    write_core50_lists(tmp_path / place, names, test_session=2)  # unlike the rule by session, to tell them apart
    dataset = load("core50", root=tmp_path)
    assert dataset.options["split"] == "official lists"
    train, test = frames(dataset)
    assert {session for _, session, _ in train} == {1, 3}
    assert {session for _, session, _ in test} == {2}
    assert [thing - 1 for thing, _, _ in test] == dataset.test.labels.tolist()


def test_core50_lists_and_session_rule_give_the_same_set_where_they_agree(tmp_path: Path) -> None:
    names = write_core50(tmp_path)
    by_name = load("core50", root=tmp_path)
    write_core50_lists(tmp_path, sorted(names), test_session=3)
    assert load("core50", root=tmp_path).fingerprint == by_name.fingerprint
    write_core50_lists(tmp_path, sorted(names), test_session=3, relabel=lambda label: 49 - label)
    assert load("core50", root=tmp_path).fingerprint == by_name.fingerprint


def test_core50_absent_or_damaged_is_explained(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"unpack core50_128x128\.zip there"):
        load("core50", root=tmp_path)
    names = write_core50(tmp_path)
    with pytest.raises(ValueError, match="labels must be 'object'"):
        load("core50", root=tmp_path, labels="colour")
    with pytest.raises(ValueError, match="every must be 1"):
        load("core50", root=tmp_path, every=0)
    write_core50_lists(tmp_path, [*names, "s1/o1/C_01_01_777.png"], test_session=3)
    with pytest.raises(MissingDataError, match=r"1 of 201 listed frames absent; first: s1/o1/C_01_01_777\.png"):
        load("core50", root=tmp_path)
    write_core50_lists(tmp_path, names, test_session=3)
    (tmp_path / "LUP.pkl").write_bytes(pickle.dumps({"ni": [[[0, 1], [10**9]]]}))
    with pytest.raises(DamagedFileError, match="do not fit together"):
        load("core50", root=tmp_path)
    write_core50_lists(tmp_path, names, test_session=3, relabel=lambda label: label // 2)
    with pytest.raises(DamagedFileError, match="each object a label of its own"):
        load("core50", root=tmp_path)
    write_core50_lists(tmp_path, [*names, names[0]], test_session=3)
    with pytest.raises(DamagedFileError, match="lists a frame twice"):
        load("core50", root=tmp_path)
    (tmp_path / "LUP.pkl").write_bytes(b"cos\nsystem\n(Vfalse\ntR.")
    with pytest.raises(UnsafePickleError, match=r"LUP\.pkl: the pickle asks for os\.system"):
        load("core50", root=tmp_path)


def test_core50_misnamed_frames_are_reported(tmp_path: Path) -> None:
    write_core50(tmp_path)
    frame = tmp_path / "core50_128x128" / "s1" / "o2" / "C_01_02_000.png"
    moved = frame.rename(tmp_path / "core50_128x128" / "s1" / "o3" / frame.name)
    with pytest.raises(DamagedFileError, match="session and object must agree"):
        load("core50", root=tmp_path)
    moved.unlink()
    for path in (tmp_path / "core50_128x128" / "s3" / "o2").iterdir():
        path.unlink()
    with pytest.raises(MissingDataError, match="no test frames of 'plug adapter 2'"):
        load("core50", root=tmp_path)
