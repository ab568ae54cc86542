"""Rows of features in place of images: the same answers, the same base session, and clear refusals."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from nocl.learner import FrozenLearner
from nocl.methods import METHODS, make
from nocl.methods._saving import load, save
from nocl.nets import build
from nocl.plumbing.types import JSON, Batch
from nocl.stats.class_stats import tukey

FACT = "fact"  # its base objective mixes inside the network, so it needs images
NAMES = [name for name, cls in METHODS.items() if issubclass(cls, FrozenLearner) and name != FACT]


def _images(labels: tuple[int, ...], n: int, seed: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    y = torch.tensor(labels).repeat(n)
    noise = torch.randint(0, 120, (len(y), 3, 32, 32), generator=draw)
    return (noise + (y * 17 % 130).view(-1, 1, 1, 1)).to(torch.uint8), y


def _plain(name: str) -> dict[str, JSON]:
    """Quick parameters without the recipe: both ways begin at the same features, nothing is trained."""
    params = {key: value for key, value in METHODS[name].check_params.items() if key != "recipe"}
    return params | ({"recipe": {"head_epochs": 0}} if name == "dsr" else {})


@pytest.mark.parametrize("name", NAMES)
def test_answers_are_those_through_images_with_the_same_features(name: str) -> None:
    through = make(name, backbone="tiny_resnet18", **_plain(name))
    assert isinstance(through, FrozenLearner)
    stored = make(name, backbone=f"features:{through.feature_dim}", **_plain(name))
    base, novel, test = _images((3, 1, 4), 12, 0), _images((5, 9), 12, 1), _images((3, 1, 4, 5, 9), 4, 2)
    for learner, see in ((through, lambda x: x), (stored, through.features)):
        assert isinstance(learner, FrozenLearner)
        learner.fit_base_features([(learner.features(see(base[0])), base[1])])
        for rows in torch.arange(len(novel[1])).split(6):
            learner.observe(see(novel[0][rows]), novel[1][rows])
        learner.end_session()
    expected = through.decision_function(test[0])
    torch.testing.assert_close(stored.decision_function(through.features(test[0])), expected)
    assert stored.predict(through.features(test[0])).tolist() == through.predict(test[0]).tolist()
    assert stored.state_bytes()["statistics"] == through.state_bytes()["statistics"]


def test_a_method_learns_vectors_as_an_ordinary_learner() -> None:
    learner = make("rda", backbone="features:16", stages=[2, 3], image_size=84)
    z = torch.rand(40, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z[20:] += 2
    before = z.clone()
    learner.observe(z, torch.arange(2).repeat_interleave(20))
    assert learner.predict(z).tolist() == [0] * 20 + [1] * 20
    assert torch.equal(z, before)
    assert isinstance(learner, FrozenLearner)
    assert learner.feature_dim == 16
    assert list(learner.network.parameters()) == []


@pytest.mark.parametrize("params", [{"space": "hyper", "dim": 8}, {}])
def test_the_base_session_trains_a_projection_where_one_is_wanted(params: dict[str, JSON]) -> None:
    learner = make("ncm", backbone="features:4", recipe={"head_epochs": 3}, **params)
    z = torch.rand(60, 4, generator=torch.Generator().manual_seed(0))
    base = [Batch(z, torch.arange(3).repeat(20))]
    untrained = {name: value.clone() for name, value in learner.state_dict().items() if "projection" in name}
    learner.fit_base(base)
    losses = learner.log_["base_loss"]
    assert isinstance(losses, list)
    assert len(losses) == (3 if params else 0)
    changed = [name for name, value in untrained.items() if not torch.equal(learner.state_dict()[name], value)]
    assert bool(changed) == bool(params)
    assert int(learner.n_base_) == 3
    if not params:
        mean = tukey(z[::3].double(), 0.5).mean(0)
        torch.testing.assert_close(learner.stats.mean[0], mean, atol=1e-6, rtol=0)  # type: ignore[union-attr, index]


def test_a_saved_learner_on_vectors_goes_on_as_if_never_stopped(tmp_path: Path) -> None:
    z, y = torch.rand(20, 6, generator=torch.Generator().manual_seed(0)), torch.arange(2).repeat(10)
    learner = make("slda", backbone="features:6")
    learner.observe(z, y)
    save(learner, tmp_path / "state.safetensors")
    again = load(tmp_path / "state.safetensors")
    for one in (learner, again):
        one.observe(z + 1, y + 2)
    assert torch.equal(learner.decision_function(z), again.decision_function(z))


def test_other_rows_are_refused_by_name_and_change_nothing() -> None:
    learner = make("ncm", backbone="features:4")
    y = torch.zeros(2, dtype=torch.int64)
    holed = torch.rand(2, 4)
    holed[1, 2] = float("nan")
    for x, message in (
        (torch.rand(2, 5), r"float \[B, 4\], not float32 \[2, 5\]"),
        (torch.zeros(2, 4, dtype=torch.int64), "not int64"),
        (torch.zeros(2, 3, 32, 32, dtype=torch.uint8), "not uint8"),
        (holed, "row 1 of 2"),
    ):
        with pytest.raises(ValueError, match=message):
            learner.observe(x, y)
    assert not len(learner.classes_)


@pytest.mark.parametrize("name", ["features:", "features:0", "features:-3", "features:x"])
def test_a_length_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="length of the features"):
        build(name)


def test_what_needs_images_is_refused(tmp_path: Path) -> None:
    base = [Batch(torch.rand(8, 4), torch.arange(2).repeat(4))]
    with pytest.raises(ValueError, match="cannot take features:4"):
        make("scr", backbone="features:4")
    with pytest.raises(ValueError, match="flip"):
        make("rda", backbone="features:4", flip=True)
    with pytest.raises(ValueError, match="take no weights"):
        make("ncm", backbone="features:4", weights=str(tmp_path / "some.safetensors")).fit_base(base)
