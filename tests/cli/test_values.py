"""Wrong values of the research commands: each is one line, said before anything is trained."""

import re
from pathlib import Path
from typing import Any

import pytest

from nocl.methods.ncm import NCM
from tests.support.commands import nocl

SMALL = [
    "--data",
    "n_classes=10",
    "--data",
    "train_per_class=2",
    "--data",
    "test_per_class=1",
    "--partition",
    "60+20x2",
]


def five() -> int:
    return 5


class Careless(NCM):
    """Does not keep its parameter."""

    def __init__(self, *, alpha: float = 1.0, **common: Any) -> None:
        super().__init__(**common)


@pytest.mark.parametrize("name", ["json:loads", "os:path", "builtins:dict"])
@pytest.mark.parametrize("command", ["run", "tune", "check"])
def test_what_is_no_method_is_one_line(command: str, name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} is not a method: it must be a class derived from nocl.Learner"):
        nocl(command, name)


def test_what_is_no_data_set_is_one_line() -> None:
    with pytest.raises(
        TypeError, match=r"test_values:five is not a data set: .* must return a nocl.data.Dataset, not 5"
    ):
        nocl("run", "ncm", "--dataset", "tests.cli.test_values:five")
    with pytest.raises(TypeError, match="os:path is not a data set: it must be a function"):
        nocl("run", "ncm", "--dataset", "os:path")


def test_a_parameter_that_is_not_kept_is_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"Careless: keep parameter alpha as self\.alpha"):
        nocl("run", "tests.cli.test_values:Careless", *SMALL, "--epochs", "0", "--out", tmp_path)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("recipe=3", "NCM: recipe must be a dictionary, or None, not 3"),
        ("recipe.epochs=abc", "Recipe: epochs must be a whole number, not 'abc'"),
        ("recipe.epochs=1.5", "Recipe: epochs must be a whole number, not 1.5"),
        ("recipe.momentum=abc", "Recipe: momentum must be a number, not 'abc'"),
        ("recipe.options=3", "Recipe: options must be a dictionary, not 3"),
        ("recipe.normalize=1", "Recipe: normalize must be true or false, not 1"),
        ("recipe.head=160", "Recipe: head must be a list of whole numbers, not 160"),
        ("recipe.schedule=3", "Recipe: schedule must be text, not 3"),
        ("seed=abc", "NCM: seed must be a whole number, not 'abc'"),
        ("seed=1.5", "NCM: seed must be a whole number, not 1.5"),
        ("stages=2", "NCM: stages must be a list of whole numbers or auto, or None, not 2"),
        ("stages=last", "NCM: stages must be a list of whole numbers or auto, or None, not 'last'"),
        ("backbone=5", "NCM: backbone must be text, not 5"),
        ("weights=5", "NCM: weights must be text, or None, not 5"),
        ("power=true", "NCM: power must be from 0 to 2, not True"),
    ],
)
@pytest.mark.parametrize("command", ["run", "tune"])
def test_a_setting_of_another_type_is_refused_before_data_are_loaded(
    command: str, setting: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nocl.data.load", None)
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        nocl(command, "ncm", "--set", setting)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "ncm", "--seed", 10**20], f"seed must be from -2**63 to below 2**63, not {10**20}"),
        (["run", "ncm", "--set", f"seed={10**20}"], f"seed must be from -2**63 to below 2**63, not {10**20}"),
        (["run", "ncm", "--dataset", "embeddings", "--data", "file=3"], "--data file=3: file must be text; write"),
        (["run", "ncm", "--dataset", "embeddings", "--data", "test=3"], "--data test=3: test must be text; write"),
        (["run", "ncm", "--preset", "foo"], "ncm has no presets: leave preset 'foo' out"),
        (["run", "ncm", "--base-batch-size", "0"], "base_batch_size must be 1 or more, not 0"),
        (["reproduce", "main-60-4-10", "--dry-run", "--dataset", "foo"], "unknown data set 'foo'"),
        (["reproduce", "main-60-4-10", "--dry-run", "--workers", "-1"], "workers must be 1 or more, not -1"),
    ],
)
def test_a_value_that_no_run_can_have_is_one_line(
    arguments: list[object], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nocl.data.load", None)
    with pytest.raises(ValueError, match=re.escape(words)):
        nocl(*arguments)
