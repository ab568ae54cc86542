"""Cheaters: a method that keeps images where shapes do not show it is found.

That honest methods are not suspected is a part of ``tests/test_contract.py``.
"""

import io

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from nocl.checks import CheckError, no_image_is_kept, state_is_all_there_is
from nocl.checks.everywhere import prints
from nocl.learner import Learner
from nocl.plumbing.types import JSON
from tests.support import cheaters

UNTRAINED: dict[str, JSON] = {"recipe": {"epochs": 0, "compile": False}}  # what is kept does not depend on training


@pytest.mark.parametrize(
    "cls",
    [cheaters.FlatStore, cheaters.ScaledStore, cheaters.ColoursTogether, cheaters.CroppedRows, cheaters.InTheModule,
     cheaters.InAClosure, cheaters.OnTheClass, cheaters.Halved, cheaters.Pooled, cheaters.FourBits, cheaters.Backwards,
     cheaters.NormalisedColoursTogether, cheaters.InAnotherModule, cheaters.InAThread, cheaters.InACache,
     cheaters.InADefault, cheaters.AsText, cheaters.ByReference],
)  # fmt: skip
def test_hidden_images_are_found(cls: type[Learner]) -> None:
    with pytest.raises(CheckError, match="an image that was learned lies in"):
        no_image_is_kept(cls, UNTRAINED)


@pytest.mark.parametrize("cls", [cheaters.BaseImages, cheaters.NormalisedBaseImages])
def test_hidden_images_of_the_base_session_are_found(cls: type[Learner]) -> None:
    with pytest.raises(CheckError, match=r"an image of the base session lies in state\.extra"):
        no_image_is_kept(cls, UNTRAINED)


@pytest.mark.parametrize("cls", [cheaters.InAFile, cheaters.InAFileOfTorch])
def test_images_that_leave_the_process_are_noticed(cls: type[Learner]) -> None:
    with pytest.raises(CheckError, match="something left the process"):
        no_image_is_kept(cls, UNTRAINED)


def test_an_answer_that_is_not_in_the_state_is_found() -> None:
    with pytest.raises(CheckError, match="a fresh process answers otherwise"):
        state_is_all_there_is(cheaters.AnswersFromTheModule, UNTRAINED)


def test_what_cannot_be_read_is_passed_over() -> None:
    closed = io.BytesIO(b"x" * 100)
    closed.close()
    with FakeTensorMode():
        stand_in = torch.zeros(20)  # as an export leaves them behind
    assert prints()
    assert closed.closed
    assert len(stand_in) == 20
