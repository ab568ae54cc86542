"""Choosing with Optuna: on base-session training images only, resumable, ending in a preset that runs take."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from nocl.cli import app
from nocl.data import Dataset, ImageSet
from nocl.experiments.job import Job, read_preset
from nocl.experiments.tune import Space, Tuning, check_spaces, spaces_of, tune
from nocl.methods import METHODS
from nocl.plumbing.types import JSON

pytest.importorskip("optuna")
NETWORK: dict[str, JSON] = {"backbone": "tiny_resnet18", "recipe": {"epochs": 1, "compile": False}}
TWO = Tuning(trials=2, partition="60+20x2")
PARTITION = "50+25x2"


def images(spoil: str = "") -> Dataset:
    """Twenty classes of noise around a colour; ``spoil`` blackens the test images or those of novel classes."""
    chance = np.random.default_rng(0)
    labels = np.arange(20).repeat(5)
    colours = chance.integers(40, 200, (20, 3, 1, 1))
    x = np.clip(colours[labels] + chance.integers(-40, 40, (100, 3, 32, 32)), 0, 255).astype(np.uint8)
    test = np.zeros_like(x) if spoil == "test" else x.copy()
    if spoil == "novel":
        x = np.where(np.isin(labels, base_classes())[:, None, None, None], x, 0).astype(np.uint8)
    names = tuple(str(label) for label in range(20))
    return Dataset("colours", ImageSet.of(x, labels), ImageSet.of(test, labels), names)


def base_classes() -> tuple[int, ...]:
    return Job("ncm", dataset="tests.experiments.test_tune:images", partition=PARTITION).stream().blocks[0]


def spoiled_test() -> Dataset:
    return images("test")


def spoiled_novel() -> Dataset:
    return images("novel")


def job(dataset: str = "images", method: str = "ncm") -> Job:
    return Job(
        method, NETWORK, dataset=f"tests.experiments.test_tune:{dataset}", partition=PARTITION, base_batch_size=20
    )


def trials(path: Path) -> list[tuple[JSON, JSON]]:
    return [(trial["params"], trial["value"]) for trial in json.loads(path.read_text())["trials"]]


def test_neither_test_images_nor_novel_classes_matter(tmp_path: Path) -> None:
    found = {
        name: trials(tune(job(name), spaces_of("ncm"), tmp_path / name, TWO))
        for name in ("images", "spoiled_test", "spoiled_novel")
    }
    assert found["images"] == found["spoiled_test"] == found["spoiled_novel"]
    assert found["images"][0][0] == {"power": 0.5, "metric": "cosine"}  # the defaults come first


def test_study_goes_on_and_its_choice_is_a_preset(tmp_path: Path) -> None:
    spaces = [Space.parse("power=0.2:1"), Space.parse("recipe.lr=0.01:0.2:log")]
    first = trials(tune(job(), spaces, tmp_path, Tuning(1, partition="60+20x2")))
    again = tune(job(), spaces, tmp_path, TWO)
    assert trials(again)[:1] == first
    assert len(trials(again)) == 2
    stopped = again.read_bytes()
    assert tune(job(), spaces, tmp_path, TWO).read_bytes() == stopped  # nothing left to do
    best = max(trials(again), key=lambda trial: float(str(trial[1])))[0]
    assert isinstance(best, dict)
    params = read_preset(again, "ncm")
    assert params["power"] == best["power"]
    assert params["recipe"] == {"epochs": 1, "compile": False, "lr": best["recipe.lr"]}
    with pytest.raises(ValueError, match="is a preset of ncm, not of slda"):
        read_preset(again, "slda")
    with pytest.raises(ValueError, match="study of another job or space"):
        tune(job(), spaces[:1], tmp_path, TWO)


def test_given_network_is_refused(tmp_path: Path) -> None:
    given = Job("ncm", {**NETWORK, "weights": "network.safetensors"})
    with pytest.raises(ValueError, match="has seen the classes that tuning holds out"):
        tune(given, spaces_of("ncm"), tmp_path)


def test_spaces_are_read_and_wrong_ones_refused() -> None:
    assert Space.parse("metric=cosine,euclidean").choices == ("cosine", "euclidean")
    assert Space.parse("lr=1e-4:0.1:log") == Space("lr", 1e-4, 0.1, log=True)
    assert not Space.parse("power=0.2:1").holds(1.5)
    for text in ("power", "power=", "power=2:1", "lr=0:1:log", "lr=a:b", "power=1e:e1", "power=0:1e999", "n=0.5:3:int"):
        with pytest.raises(ValueError, match="space"):
            Space.parse(text)
    with pytest.raises(ValueError, match="gdumb declares no search space"):
        spaces_of("gdumb")
    with pytest.raises(ValueError, match="alice declares no search space"):  # NCM's is not its own
        spaces_of("alice")
    declared = [name for name, cls in METHODS.items() if "search_space" in vars(cls)]
    assert len(declared) == 8
    for method in declared:
        for space in spaces_of(method):  # both ends are values that the method takes
            kind = int if space.whole else float
            for value in space.choices or (kind(space.low), kind(space.high)):
                Job(method, {space.name: value})


@pytest.mark.parametrize(
    ("spaces", "words"),
    [
        (["foo=0.2:1"], "unknown parameter of ncm 'foo'"),
        (["recipe.foo=0.2:1"], "unknown parameter of ncm 'recipe.foo'"),
        (["foo.bar=1,2"], "unknown parameter of ncm 'foo.bar'"),
        (["power=3:9"], "NCM: power must be from 0 to 2, not 3.0"),
        (["metric=cosine,euclidean", "power=1:9"], "NCM: power must be from 0 to 2, not 9.0"),
        (["power=abc,def"], "NCM: power must be from 0 to 2, not 'abc'"),
        (["recipe.epochs=a,b"], "Recipe: epochs must be a whole number, not 'a'"),
        (["recipe.epochs=-2:3:int"], "epochs must be 0 or more, not -2"),
        (["recipe.epochs=1:5"], "recipe.epochs takes whole numbers alone: write the space as recipe.epochs=1:5:int"),
        (["power=1e:e1"], "space 'power=1e:e1': '1e' is not a number; write name=low:high"),
        (["power=0:1", "power=1:2"], "spaces power, power: give each parameter one space"),
    ],
)
def test_a_wrong_space_is_refused_before_the_study_begins(spaces: list[str], words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        tune(job(), [Space.parse(text) for text in spaces], tmp_path / "study", TWO)
    assert not (tmp_path / "study").exists()


def test_ends_that_only_fit_together_are_taken() -> None:
    together = [Space.parse("recipe.spaces=both,high"), Space.parse("recipe.projection=0:64:int")]
    check_spaces(job(), together[1:])
    with pytest.raises(ValueError, match="needs a projection"):
        check_spaces(job(), together)  # projection 0 with high
    check_spaces(job(), [together[0], Space.parse("recipe.projection=32:64:int")])


def test_run_takes_the_preset_file(tmp_path: Path) -> None:
    preset = tmp_path / "preset.json"
    preset.write_text(json.dumps({"kind": "nocl preset", "method": "ncm", "params": {**NETWORK, "power": 0.3}}))
    command = ["run", "ncm", "--preset", str(preset), "--partition", "60+20x2", "--out", str(tmp_path)]
    command += ["--data", "n_classes=10", "--data", "train_per_class=4", "--data", "test_per_class=2"]
    answer = CliRunner().invoke(app, command)
    assert answer.exit_code == 0, answer.output
    (result,) = tmp_path.rglob("result.json")
    assert json.loads(result.read_text())["params"]["power"] == 0.3
