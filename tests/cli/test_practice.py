"""The commands for your own images, from folder to prediction; bad files, killed and merged models, ONNX."""

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from nocl.app.classifier import Classifier
from nocl.app.serve.store import Store, journal_of
from nocl.cli import app
from nocl.data.decode import BadImagesError
from nocl.plumbing.files import BusyFileError, hold
from tests.support.commands import nocl
from tests.support.practice_models import folder_of, pictures, png

BASE = ["--method", "ncm", "--backbone", "tiny_resnet18", "--recipe", "epochs=0"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder_of(tmp_path / "base", {"red": 6, "green": 6})
    nocl("fit", tmp_path / "base", "-o", tmp_path / "m.nocl", *BASE)
    return tmp_path / "m.nocl"


def test_from_folders_to_predictions(model: Path, tmp_path: Path) -> None:
    folder_of(tmp_path / "new", {"blue": 3})
    assert "3 classes, 15 images learned, 0 stored" in nocl("learn", model, tmp_path / "new")
    picture = tmp_path / "p.png"
    picture.write_bytes(png("blue", 9))
    assert f"{picture}: blue" in nocl("predict", model, picture)
    answer = json.loads(nocl("predict", model, picture, "--json", "--top", 1))
    assert (answer["label"], len(answer["top"])) == ("blue", 1)
    folder_of(tmp_path / "test", {"red": 2, "blue": 2, "grey": 2}, seed=5)
    result = json.loads(nocl("evaluate", model, tmp_path / "test", "--json"))
    assert result["images"] == 4
    assert result["accuracy"] == 1.0
    assert result["unknown_classes"] == ["grey"]
    shown = nocl("inspect", model)
    for words in ("method         ncm", "images stored            0", "forgets exactly          True", "3  blue"):
        assert words in shown
    header: Any = json.loads(nocl("inspect", model, "--json"))
    assert header["classes"] == ["green", "red", "blue"]


def test_bad_files_leave_the_model_as_it_was_or_are_left_out(model: Path, tmp_path: Path) -> None:
    folder_of(tmp_path / "new", {"blue": 2})
    (tmp_path / "new" / "blue" / "bad.png").write_bytes(b"junk")
    before = model.read_bytes()
    with pytest.raises(BadImagesError, match=r"bad\.png: not an image"):
        nocl("learn", model, tmp_path / "new")
    assert model.read_bytes() == before
    nocl("learn", model, tmp_path / "new", "--skip-bad")
    assert Classifier.load(model).counts_["blue"] == 2
    done = CliRunner().invoke(app, ["predict", str(model), str(tmp_path / "new" / "blue" / "bad.png")])
    assert done.exit_code == 1
    assert "not an image" in done.stderr


def test_learning_folds_in_what_a_killed_service_learned(model: Path, tmp_path: Path) -> None:
    store = Store(model)
    store.learn([(pictures("grey", 1), "grey")])
    store._journal.close()
    store._lock.release()  # killed
    nocl("learn", model, folder_of(tmp_path / "new", {"blue": 2}))
    assert Classifier.load(model).counts_ == {"green": 6, "red": 6, "grey": 1, "blue": 2}
    assert not journal_of(model).exists()
    lock = hold(model)
    with pytest.raises(BusyFileError):
        nocl("learn", model, tmp_path / "new")
    lock.release()


def test_a_new_model_learns_and_forgets(tmp_path: Path) -> None:
    path = tmp_path / "new.nocl"
    assert "0 classes, 0 images" in nocl("new", path, "--method", "ncm", "--backbone", "cifar100")
    nocl("learn", path, folder_of(tmp_path / "a", {"red": 2, "blue": 2}))
    assert "1 classes, 2 images learned" in nocl("forget", path, "red")
    with pytest.raises(ValueError, match="no class 'red'; there are: blue"):
        nocl("forget", path, "red")
    with pytest.raises(FileExistsError, match="--force"):
        nocl("new", path)
    with pytest.raises(FileNotFoundError, match="nocl new"):
        nocl("learn", tmp_path / "other.nocl", tmp_path / "a")
    assert not list(tmp_path.glob(".other*"))


def test_fit_uses_a_ready_split_and_keeps_what_is_there(tmp_path: Path) -> None:
    folder_of(tmp_path / "set" / "train", {"red": 6, "green": 6})
    folder_of(tmp_path / "set" / "test", {"red": 2, "green": 2}, seed=3)
    said = nocl("fit", tmp_path / "set", "-o", tmp_path / "m.nocl", *BASE)
    assert "2 classes, 12 images learned" in said
    assert "100.0%  of 4 images" in said
    with pytest.raises(FileExistsError, match="--force"):
        nocl("fit", tmp_path / "set", "-o", tmp_path / "m.nocl", *BASE)
    nocl("fit", tmp_path / "set", "-o", tmp_path / "m.nocl", *BASE, "--force")


def test_serving_starts_an_empty_model_and_speaks_once_it_listens(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="the extra serve is not installed")
    command = [sys.executable, "-m", "nocl", "serve", str(tmp_path / "kitchen.nocl"), "--port"]
    with subprocess.Popen([*command, "0"], stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        line = service.stdout.readline()
        assert "is new and knows no class yet" in line
        address = line.rsplit(" ", 1)[1].strip()
        with urllib.request.urlopen(f"{address}healthz", timeout=30) as answer:
            assert answer.status == 200
        taken = subprocess.run([*command, address.rstrip("/").rsplit(":", 1)[1]], capture_output=True, text=True)
        assert taken.returncode == 1
        assert taken.stdout == ""
        assert taken.stderr.count("\n") == 1
        assert "choose another --port" in taken.stderr
        service.send_signal(signal.SIGINT)
        service.wait(timeout=60)
    assert Classifier.load(tmp_path / "kitchen.nocl").class_names == []


def test_merging_two_machines(model: Path, tmp_path: Path) -> None:
    nocl("learn", model, folder_of(tmp_path / "a", {"blue": 2}), "-o", tmp_path / "a.nocl")
    nocl("learn", model, folder_of(tmp_path / "b", {"grey": 3}), "-o", tmp_path / "b.nocl")
    nocl("merge", tmp_path / "a.nocl", tmp_path / "b.nocl", "-o", tmp_path / "ab.nocl")
    assert Classifier.load(tmp_path / "ab.nocl").counts_ == {"green": 6, "red": 6, "blue": 2, "grey": 3}


@pytest.mark.parametrize("method", [pytest.param("ncm", marks=pytest.mark.slow), "rda"])
def test_onnx_gives_the_same_predictions(method: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    names = ["red", "green", "blue"]
    made = Classifier(method, backbone="tiny_resnet18", recipe={"epochs": 0})
    made.fit([png(name, i) for name in names for i in range(6)], [name for name in names for _ in range(6)])
    made.save(tmp_path / "m.nocl")
    nocl("export", tmp_path / "m.nocl", "--onnx", tmp_path / "m.onnx")
    session = runtime.InferenceSession(str(tmp_path / "m.onnx"))
    assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == names
    for n in (1, 5):
        x = pictures("blue", n, seed=8)
        scores, probabilities = session.run(None, {"images": x.numpy()})
        expected = made.decision_function(x)
        np.testing.assert_allclose(scores, expected, rtol=1e-2, atol=1e-2)
        np.testing.assert_allclose(probabilities, made.predict_proba(x), atol=2e-3)
        assert (scores.argmax(1) == expected.argmax(1)).all()
    (tmp_path / "a.png").write_bytes(png("blue", 9))
    example = Path(__file__).parents[2] / "examples" / "onnx_predict.py"
    done = subprocess.run(
        [sys.executable, str(example), str(tmp_path / "m.onnx"), str(tmp_path / "a.png")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split(" ", 1)[1].startswith("blue")


def test_learning_with_workers_writes_the_same_model_and_leaves_nothing_behind(model: Path, tmp_path: Path) -> None:
    folder_of(tmp_path / "new", {"blue": 3, "grey": 2})
    nocl("learn", model, tmp_path / "new", "-o", tmp_path / "one.nocl")
    said = nocl("learn", model, tmp_path / "new", "-o", tmp_path / "two.nocl", "--workers", 2)
    assert "4 classes, 17 images learned, 0 stored" in said
    one, two = (Classifier.load(tmp_path / name) for name in ("one.nocl", "two.nocl"))
    assert one.counts_ == two.counts_
    x = pictures("blue", 2, seed=7)
    np.testing.assert_allclose(one.predict_proba(x), two.predict_proba(x), rtol=1e-5)
    assert not list(tmp_path.glob(".*.parts"))
