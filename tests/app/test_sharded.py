"""Learning in parts: the result of one process, whatever happens to the workers."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from nocl.app.classifier import Classifier
from nocl.app.modelfile import parts_folder
from nocl.app.sharded import learn_sharded
from nocl.app.sources import open_source
from nocl.cli import app
from nocl.data.decode import BadImagesError
from nocl.learner import UnsupportedError
from nocl.plumbing.files import DamagedFileError
from nocl.plumbing.workers import WorkFailedError
from tests.support.practice_models import folder_of, pictures
from tests.support.shard_faults import DiesOnce, LearnsTwo, always_dies
from tests.support.sharded_models import assert_same, in_one_process, model_file

COUNTS = {"blue": 9, "grey": 7, "red": 8}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return folder_of(tmp_path / "new", COUNTS, seed=3)


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    (tmp_path / "marks").mkdir()
    return tmp_path / "marks"


@pytest.mark.parametrize("method", ["ncm", "slda", "rda", "ranpac"])
def test_two_workers_learn_what_one_process_learns(method: str, tmp_path: Path, images: Path) -> None:
    path = model_file(tmp_path, method, **({"expansion": 32} if method == "ranpac" else {}))
    model, bad = learn_sharded(path, open_source(images), workers=2, part_size=5)
    assert not bad
    assert model.counts_ == {"red": 16, "green": 8, "blue": 9, "grey": 7}
    assert_same(model, in_one_process(path, images))


def test_a_part_whose_process_dies_is_learned_again_and_counts_once(tmp_path: Path, images: Path, marks: Path) -> None:
    path = model_file(tmp_path)
    source = open_source(images)
    model, _ = learn_sharded(path, source, workers=2, part_size=5, prepare=DiesOnce(marks))
    assert (marks / "died").exists()
    assert sum(map(int, (marks / "learned").read_text().split())) == len(source)
    assert_same(model, in_one_process(path, images))


def test_a_part_that_kills_every_process_is_an_error_and_the_model_stays(tmp_path: Path, images: Path) -> None:
    path = model_file(tmp_path)
    before = path.read_bytes()
    with pytest.raises(WorkFailedError, match=r"died 3 times \(exit code 3\)"):
        learn_sharded(path, open_source(images), workers=1, prepare=always_dies)
    assert path.read_bytes() == before


def test_an_interrupted_command_goes_on_with_the_parts_it_has(tmp_path: Path, images: Path, marks: Path) -> None:
    path, source = model_file(tmp_path), open_source(images)
    with pytest.raises(WorkFailedError, match="KeyError: 'interrupted on purpose'"):
        learn_sharded(path, source, workers=1, part_size=5, prepare=LearnsTwo(marks))
    assert len(list(parts_folder(path).iterdir())) == 2
    (marks / "go").touch()
    model, _ = learn_sharded(path, source, workers=1, part_size=5, prepare=LearnsTwo(marks))
    assert (marks / "learned").read_text().split() == ["5", "5", "5", "5", "4"]  # none twice
    assert_same(model, in_one_process(path, images))
    (images / "blue" / "0.png").write_bytes((images / "red" / "0.png").read_bytes())
    (marks / "learned").unlink()
    learn_sharded(path, open_source(images), workers=1, part_size=5, prepare=LearnsTwo(marks))
    assert (marks / "learned").read_text().split() == ["5"]  # only the part whose file has changed


def test_bad_files_are_named_and_nothing_is_learned_unless_they_are_left_out(tmp_path: Path, images: Path) -> None:
    path = model_file(tmp_path)
    (images / "grey" / "bad.png").write_bytes(b"junk")
    with pytest.raises(BadImagesError, match=r"bad\.png: not an image"):
        learn_sharded(path, open_source(images), workers=1, part_size=5)
    model, bad = learn_sharded(path, open_source(images), workers=1, part_size=5, skip_bad=True)
    assert [Path(name).name for name in bad] == ["bad.png"]
    assert model.counts_["grey"] == COUNTS["grey"]
    with pytest.raises(BadImagesError):  # the part that was kept says what it left out
        learn_sharded(path, open_source(images), workers=1, part_size=5)


@pytest.mark.parametrize(("method", "params"), [("acil", {"expansion": 16}), ("slda", {"update": "official"})])
def test_a_method_without_statistics_that_add_up_refuses(
    method: str, params: dict[str, object], tmp_path: Path, images: Path
) -> None:
    path = model_file(tmp_path, method, **params)
    with pytest.raises(UnsupportedError, match="cannot be learned in parts and merged"):
        learn_sharded(path, open_source(images), workers=2)


def test_embeddings_are_learned_in_parts_as_the_images_they_came_from(tmp_path: Path, images: Path) -> None:
    path, source = model_file(tmp_path, "rda"), open_source(images)
    x = torch.cat(_pixels(images))
    learner = Classifier.load(path).learner_
    features = learner.features(x).numpy()
    np.savez(tmp_path / "f.npz", X=features, y=source.labels, classes=np.array(source.class_names))
    model, _ = learn_sharded(path, open_source(tmp_path / "f.npz"), workers=2, part_size=7)
    assert_same(model, in_one_process(path, images))


def test_vectors_that_are_not_numbers_or_of_another_length_are_refused_in_one_line(tmp_path: Path) -> None:
    path = model_file(tmp_path)
    dim = Classifier.load(path).learner_.feature_dim
    x = np.ones((6, dim), dtype=np.float32)
    x[4, 0] = np.nan
    np.savez(tmp_path / "nan.npz", X=x, y=np.array(list("aabbcc")))
    with pytest.raises(WorkFailedError, match=r"row 4 of X holds NaN"):
        learn_sharded(path, open_source(tmp_path / "nan.npz"), workers=1)
    np.savez(tmp_path / "long.npz", X=np.ones((2, dim + 1)), y=np.array(["a", "b"]))
    with pytest.raises(WorkFailedError, match=rf"have {dim + 1} values, this model learns from {dim}: "):
        learn_sharded(path, open_source(tmp_path / "long.npz"), workers=1)
    (tmp_path / "junk.npz").write_bytes(b"PK junk")
    with pytest.raises(DamagedFileError, match="not a whole"):
        open_source(tmp_path / "junk.npz")
    np.savez(tmp_path / "y.npz", X=x, y=np.array([0, 1, 2, 3, 4, 9]), classes=np.array(list("abcde")))
    with pytest.raises(DamagedFileError, match="y runs from 0 to 9, but there are 5 classes"):
        open_source(tmp_path / "y.npz")


def test_features_of_another_network_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.nocl"
    model = Classifier("ncm", backbone="cifar100").partial_fit(pictures("red", 2), "red")
    model.save(path)
    x, y = np.ones((2, 160), dtype=np.float32), np.array(["a", "b"])
    for about, reason in (({"sha256": "0" * 64}, "another network"), ({"size": 64}, "another image size")):
        np.savez(tmp_path / "f.npz", X=x, y=y, about=np.array(json.dumps(about)))
        with pytest.raises(WorkFailedError, match=reason):
            learn_sharded(path, open_source(tmp_path / "f.npz"), workers=1)
    np.savez(tmp_path / "f.npz", X=x, y=y, about=np.array(json.dumps(model.learner_.base_ | {"size": 32})))
    assert learn_sharded(path, open_source(tmp_path / "f.npz"), workers=1)[0].counts_["a"] == 1


def _pixels(folder: Path) -> list[torch.Tensor]:
    from nocl.data.pictures import batch_of

    source = open_source(folder)
    return [batch_of(path, 32) for path in source.files]  # type: ignore[attr-defined]


def test_forgetting_a_class_deletes_the_parts_an_interrupted_command_left(
    tmp_path: Path, images: Path, marks: Path
) -> None:
    path = model_file(tmp_path)
    model = Classifier.load(path)
    model.partial_fit(images / "red" / "0.png", "red")
    model.save(path)
    with pytest.raises(WorkFailedError):
        learn_sharded(path, open_source(images), workers=1, part_size=5, prepare=LearnsTwo(marks))
    assert parts_folder(path).exists()
    assert CliRunner().invoke(app, ["forget", str(path), "red"]).exit_code == 0
    assert not parts_folder(path).exists()
