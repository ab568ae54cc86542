"""Wrong values of the research commands: each is one line, said before anything is trained."""

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
    with pytest.raises(TypeError, match="Careless: keep parameter alpha as self.alpha"):
        nocl("run", "tests.cli.test_values:Careless", *SMALL, "--epochs", "0", "--out", tmp_path)
