"""Names of classes: what is taken as one and what is refused, in every call that takes names."""

from typing import Any

import numpy as np
import pytest
import torch

from nocl.app.naming import check_name, names_from
from tests.support.practice_models import fitted, pictures


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("mug", ["mug", "mug"]),
        (np.array("mug"), ["mug", "mug"]),
        (["mug", "cup"], ["mug", "cup"]),
        (np.array(["mug", "cup"]), ["mug", "cup"]),
        (torch.tensor([0, 1]), ["0", "1"]),
        ([torch.tensor(0), np.int64(1)], ["0", "1"]),
        (np.array([True, False]), ["True", "False"]),
        ((name for name in ("mug", "cup")), ["mug", "cup"]),
    ],
)
def test_names_are_text_or_numbers(given: Any, names: list[str]) -> None:
    assert names_from(given, 2) == names


@pytest.mark.parametrize(
    "given",
    [b"mu", [b"mug", b"cup"], np.array([b"mug", b"cup"]), {"mug", "cup"}, {"mug": 1, "cup": 2}, [None, None],
     [float("nan"), 1.0], np.array([[0], [1]]), [["mug"], ["cup"]], 3, None],
)  # fmt: skip
def test_what_is_no_name_is_refused_and_teaches_nothing(given: Any) -> None:
    model = fitted()
    with pytest.raises(TypeError, match="name"):
        model.partial_fit(pictures("blue", 2), given)
    assert model.counts_ == {"red": 8, "green": 8}


def test_numbers_are_the_same_class_in_every_call() -> None:
    model = fitted().partial_fit(pictures("blue", 3), [7, 7, 7])
    assert model.score(pictures("blue", 2, seed=1), [7, np.int64(7)]) == 1.0
    assert model.leaves_no_trace(7)  # type: ignore[arg-type]
    assert "7" not in model.forget(7).counts_  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["می\u200cخواهم", "👩\u200d🍳", "a"])
def test_joiners_are_part_of_words(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", " mug", "mug\n", "\u200cmug", "mug\u200d", "m\u200bug", "x" * 201])
def test_what_cannot_be_shown_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="class name"):
        check_name(name)
