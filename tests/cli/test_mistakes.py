"""Mistakes with the commands for your own images: each is one line that names a remedy, and nothing is lost."""

import errno
import io
import os
from pathlib import Path

import pytest

from nocl.app.classifier import Classifier
from nocl.app.sources import open_source
from nocl.cli import main
from nocl.data.decode import BadImagesError
from nocl.learner import NotFittedError
from tests.support.commands import nocl
from tests.support.practice_models import fitted, folder_of, png


@pytest.fixture
def model(tmp_path: Path) -> Path:
    fitted().save(tmp_path / "m.nocl")
    return tmp_path / "m.nocl"


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    Classifier("ncm", backbone="cifar100").save(tmp_path / "empty.nocl")
    return tmp_path / "empty.nocl"


def test_learning_into_another_file_leaves_one_that_exists_alone(model: Path, tmp_path: Path) -> None:
    folder, other = folder_of(tmp_path / "new", {"blue": 1}), tmp_path / "other.nocl"
    other.write_bytes(b"another model")
    with pytest.raises(FileExistsError, match=r"other\.nocl exists: .*--force"):
        nocl("learn", model, folder, "-o", other)
    assert other.read_bytes() == b"another model"
    nocl("learn", model, folder, "-o", other, "--force")
    assert "blue" in Classifier.load(other).counts_
    nocl("learn", model, folder, "-o", model.parent / "." / model.name)
    assert "blue" in Classifier.load(model).counts_


def test_embedding_leaves_a_file_of_other_features_alone(tmp_path: Path) -> None:
    first, second = (folder_of(tmp_path / name, {"red": n}) for name, n in (("a", 2), ("b", 3)))
    embed = ["embed", "-o", tmp_path / "f.npz", "--backbone", "cifar100"]
    nocl(*embed, first)
    with pytest.raises(FileExistsError, match="--force"):
        nocl(*embed, second)
    assert "2 images" in nocl(*embed, first)
    assert "3 images" in nocl(*embed, second, "--force")


def test_a_folder_of_splits_is_not_two_classes(model: Path, tmp_path: Path) -> None:
    for split in ("train", "test"):
        folder_of(tmp_path / "set" / split, {"red": 1, "blue": 1})
    before = model.read_bytes()
    for command, wanted in (("learn", "train"), ("evaluate", "test")):
        with pytest.raises(ValueError, match=rf"holds train/ and test/ .*give .*set/{wanted}"):
            nocl(command, model, tmp_path / "set")
    with pytest.raises(ValueError, match=r"give .*set/train"):
        nocl("learn", model, tmp_path / "set", "--watch")
    with pytest.raises(ValueError, match=r"give .*set/train"):
        nocl("embed", tmp_path / "set", "-o", tmp_path / "f.npz", "--backbone", "cifar100")
    assert model.read_bytes() == before


def test_a_model_without_classes_asks_to_be_taught(empty: Path, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "test", {"red": 1})
    picture = folder / "red" / "0.png"
    for command in (["predict", picture], ["predict", picture, "--json"], ["evaluate", folder]):
        with pytest.raises(NotFittedError, match=r"knows no class yet; teach it: nocl learn .*empty\.nocl"):
            nocl(command[0], empty, *command[1:])
    with pytest.raises(NotFittedError, match="knows no class: call fit or partial_fit"):
        Classifier.load(empty).predict(picture)


@pytest.mark.parametrize("device", ["foo", "meta", "cuda:77"])
def test_a_device_that_is_not_there_is_one_line(device: str, model: Path, tmp_path: Path) -> None:
    for command in (
        ["learn", model, tmp_path], ["predict", model, "a.png"], ["evaluate", model, tmp_path],
        ["fit", tmp_path, "-o", tmp_path / "n.nocl"], ["embed", tmp_path, "-o", tmp_path / "f.npz"], ["run", "ncm"],
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"--device {device}: PyTorch finds no such device on this machine; use"):
            nocl(*command, "--device", device)


def test_a_link_to_nothing_is_a_bad_file(model: Path, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "new", {"blue": 2})
    (folder / "blue" / "lost.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(BadImagesError, match=r"lost\.png: no such file"):
        nocl("learn", model, folder)
    nocl("learn", model, folder, "--skip-bad")
    assert Classifier.load(model).counts_["blue"] == 2
    before = open_source(folder).identity()  # by which --workers knows the parts
    (tmp_path / "nowhere.png").write_bytes(png("blue"))
    assert open_source(folder).identity() != before


@pytest.mark.parametrize("command", [["run", "ncm"], ["tune", "ncm"], ["data", "check", "glyphs"]])
def test_an_option_of_the_data_that_is_no_number_is_one_line(command: list[str]) -> None:
    with pytest.raises(ValueError, match="--data size=abc: size must be a whole number, such as 32"):
        nocl(*command, "--data", "size=abc")
    with pytest.raises(ValueError, match="--data size=True: size must be a whole number"):
        nocl(*command, "--data", "size=true")


def test_fit_lists_all_bad_files_and_the_remedy(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "base", {"red": 4, "green": 4})
    for name in ("red/bad.png", "green/worse.png"):
        (folder / name).write_bytes(b"junk")
    with pytest.raises(BadImagesError, match=r"2 files are not images(?s:.)*--skip-bad(?s:.)*worse\.png"):
        nocl("fit", folder, "-o", tmp_path / "m.nocl", "--method", "ncm", "--backbone", "cifar100")
    nocl("fit", folder, "-o", tmp_path / "m.nocl", "--method", "ncm", "--backbone", "cifar100", "--skip-bad")
    assert Classifier.load(tmp_path / "m.nocl").counts_ == {"green": 4, "red": 4}


def test_a_full_disk_is_reported_with_the_files_name(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder = folder_of(tmp_path / "new", {"blue": 1})
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"m\.nocl: not written, No space left on device; make room"):
        nocl("learn", model, folder)
    with pytest.raises(OSError, match=r"f\.npz: not written, No space left on device; make room"):
        nocl("embed", folder, "-o", tmp_path / "f.npz", "--backbone", "cifar100")


def test_names_that_are_not_utf8_do_not_end_a_prediction(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [os.fsdecode(os.fsencode(tmp_path) + name) for name in (b"/caf\xe9.png", b"/plain.png")]
    for file in files:
        Path(file).write_bytes(png("red"))
    said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr("sys.stdout", said)
    monkeypatch.setattr("sys.argv", ["nocl", "predict", str(model), *files])
    with pytest.raises(SystemExit, match="0"):
        main()
    said.seek(0)
    first, second = said.read().splitlines()
    assert r"caf\udce9.png: red" in first
    assert "plain.png: red" in second
