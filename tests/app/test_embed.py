"""Embeddings of a folder: right, resumable, plain arrays."""

import json
from pathlib import Path

import numpy as np
import pytest

from nocl.app import embed
from nocl.app.classifier import Classifier
from nocl.app.embed import Embedder, embed_folder
from nocl.cli import main
from nocl.data.decode import BadImagesError
from nocl.data.vectors import read_vectors
from nocl.learner import NotFittedError
from tests.support.practice_models import folder_of

OWN = "tests.support.own_networks:trained"


def _embedder() -> Embedder:
    return Embedder.of("cifar100", stages=[2, 4], engine="torch")


def test_rows_are_the_networks_features_with_names(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "images", {"red": 3, "blue": 2})
    assert embed_folder(root, tmp_path / "f.npz", _embedder()) == {}
    with np.load(tmp_path / "f.npz", allow_pickle=False) as found:
        assert found["X"].dtype == np.float32
        assert found["y"].dtype == np.int64
        assert found["classes"].tolist() == ["blue", "red"]
        assert found["y"].tolist() == [0, 0, 1, 1, 1]
        assert found["files"].tolist() == ["blue/0.png", "blue/1.png", "red/0.png", "red/1.png", "red/2.png"]
        about = json.loads(str(found["about"]))
        x = found["X"]
    assert (about["backbone"], about["stages"], about["size"], about["engine"]) == ("cifar100", [2, 4], 32, "torch")
    model = Classifier("ncm", backbone="cifar100", params={"stages": [2, 4]}, engine="torch")
    model.partial_fit(root / "red" / "0.png", "red")
    pixels = model.read([root / name for name in ("blue/0.png", "red/2.png")])
    expected = model.learner_.features(pixels).numpy()  # type: ignore[operator]
    np.testing.assert_allclose(x[[0, 4]], expected, atol=1e-5)
    assert [path.name for path in tmp_path.iterdir() if "part" in path.name] == []


def test_an_interrupted_run_goes_on_and_another_network_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embed, "_AT_ONCE", 2)
    root, output = folder_of(tmp_path / "images", {"red": 5, "blue": 4}), tmp_path / "f.npz"
    embed_folder(root, tmp_path / "whole.npz", _embedder())
    calls: list[int] = []
    whole = Embedder.features

    def counted(self: Embedder, images: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return whole(self, images)  # type: ignore[arg-type]

    monkeypatch.setattr(Embedder, "features", counted)
    with pytest.raises(KeyboardInterrupt):
        embed_folder(root, output, _embedder())
    assert not output.exists()
    with open(tmp_path / ".f.npz.part", "ab") as part:
        part.write(b"half a row")  # a process killed while it wrote
    embed_folder(root, output, _embedder())
    assert len(calls) == 3 + 3  # nine images by two: two batches were kept, the third was lost
    np.testing.assert_array_equal(np.load(output)["X"], np.load(tmp_path / "whole.npz")["X"])
    calls.clear()
    with pytest.raises(KeyboardInterrupt):
        embed_folder(root, output, _embedder())
    calls.append(1)
    embed_folder(root, output, Embedder.of(OWN, engine="torch"))
    assert np.load(output)["X"].shape == (9, 6)


def test_a_bad_file_is_an_error_or_left_out(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "images", {"red": 2, "blue": 2})
    (root / "blue" / "0.png").write_bytes(b"nothing")
    with pytest.raises(BadImagesError, match=r"blue/0\.png: not an image"):
        embed_folder(root, tmp_path / "f.npz", _embedder())
    assert embed_folder(root, tmp_path / "f.npz", _embedder(), skip_bad=True) == {"blue/0.png": "not an image"}
    vectors = read_vectors(tmp_path / "f.npz")
    assert vectors.labels.tolist() == [0, 1, 1]


def test_networks_and_settings_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError, match="'tiny_resnet18' is not trained"):
        Embedder.of("tiny_resnet18")
    with pytest.raises(ValueError, match=r"stages \[7\]: this backbone has stages 1 to 4"):
        Embedder.of("cifar100", stages=[7])


def test_the_command_and_learning_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = folder_of(tmp_path / "images", {"red": 3, "blue": 3})
    file, model = tmp_path / "f.npz", tmp_path / "m.nocl"
    monkeypatch.setattr("sys.argv", ["nocl", "embed", str(root), "-o", str(file), "--backbone", "cifar100"])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert "6 images of 2 classes, 160 values each" in capsys.readouterr().out
    first = Classifier("ncm", backbone="cifar100")
    first.partial_fit(root / "red" / "0.png", "red").save(model)
    monkeypatch.setattr("sys.argv", ["nocl", "learn", str(model), str(file)])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert Classifier.load(model).counts_ == {"red": 4, "blue": 3}


def test_files_that_an_interrupted_run_left_out_are_not_left_out_silently_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embed, "_AT_ONCE", 2)
    root, output = folder_of(tmp_path / "images", {"red": 2, "blue": 4}), tmp_path / "f.npz"
    (root / "blue" / "1.png").write_bytes(b"nothing")
    (root / "blue" / "2.png").unlink()
    (root / "blue" / "2.png").symlink_to(tmp_path / "nowhere.png")

    def stopped(*arguments: object) -> object:
        raise KeyboardInterrupt

    with monkeypatch.context() as later:
        later.setattr(embed, "_finish", stopped)
        with pytest.raises(KeyboardInterrupt):
            embed_folder(root, output, _embedder(), skip_bad=True)
    with pytest.raises(BadImagesError, match="2 files are not images") as caught:
        embed_folder(root, output, _embedder())
    reasons = {"blue/1.png": "not an image", "blue/2.png": "no such file"}
    assert caught.value.reasons == reasons
    assert embed_folder(root, output, _embedder(), skip_bad=True) == reasons
    assert len(read_vectors(output)) == 4


def test_a_file_of_something_else_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, output = folder_of(tmp_path / "images", {"red": 2}), tmp_path / "f.npz"
    output.write_bytes(b"something else")
    with pytest.raises(FileExistsError, match=r"f\.npz exists .*--force"):
        embed_folder(root, output, _embedder(), overwrite=False)
    assert output.read_bytes() == b"something else"

    def stopped(*arguments: object) -> object:
        raise KeyboardInterrupt

    with monkeypatch.context() as later:
        later.setattr(embed, "_finish", stopped)
        with pytest.raises(KeyboardInterrupt):
            embed_folder(root, output, _embedder())
    embed_folder(root, output, _embedder(), overwrite=False)  # goes on with what was begun
    before = output.read_bytes()
    embed_folder(root, output, _embedder(), overwrite=False)  # the same again
    assert output.read_bytes() == before
    folder_of(tmp_path / "images", {"blue": 1})
    with pytest.raises(FileExistsError):
        embed_folder(root, output, _embedder(), overwrite=False)
    assert output.read_bytes() == before


@pytest.mark.parametrize("size", [0, -3])
def test_a_size_below_one_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"size must be 1 pixel or more, not {size}"):
        Embedder.of("cifar100", size=size)
