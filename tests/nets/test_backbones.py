"""Networks by name: sizes, stages of other networks, and what a wrong name is told."""

import importlib
import sys
import types

import pytest
import torch
from torch import nn

from nocl import nets
from nocl.methods import METHODS, make
from nocl.nets.trained import fill_by_name
from nocl.plumbing.registry import UnknownNameError
from nocl.plumbing.types import JSON
from tests.support.own_networks import Deep, Plain

OWN = "tests.support.own_networks"


def test_a_name_with_a_side_enlarges_images() -> None:
    small, large = nets.build("efficientnet_lite0@64"), nets.build("efficientnet_lite0")
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    enlarged = nn.functional.interpolate(x, (64, 64), mode="bicubic", align_corners=False)
    assert small.normalise(x).shape == (2, 3, 64, 64)
    torch.testing.assert_close(small.normalise(x), large.normalise(enlarged))
    assert small.normalise(torch.zeros(1, 3, 64, 64)).shape == (1, 3, 64, 64)
    assert small.feature_dim(32) == 1280


@pytest.mark.parametrize(
    ("network", "stages"),
    [
        ("tiny_resnet18", (1, 2, 3, 4, -1, -2, -3)),
        ("efficientnet_lite0@32", (3, 4, 5)),
        (f"{OWN}:trained", (1,)),
        ("features:7", (1,)),
    ],
)
def test_auto_takes_what_the_network_has(network: str, stages: tuple[int, ...]) -> None:
    learner = make("rda", backbone=network)
    assert learner.stages == stages
    assert make("rda", **learner.get_params()).stages == stages  # type: ignore[attr-defined]
    assert make("ncm", backbone=network).stages is None


def test_a_stage_that_is_not_there_is_an_error_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"stages \[2, 3\]: this backbone has stages 1 to 1; stages='auto'"):
        make("rda", backbone=f"{OWN}:trained", stages=[2, 3])


# one covariance a class of 1,712 values would take the tests seconds to factorise
FROZEN: dict[str, dict[str, JSON]] = {
    "ncm": {}, "slda": {}, "fecam": {"stages": [1]}, "ranpac": {}, "acil": {}, "rda": {},
}  # fmt: skip


@pytest.mark.parametrize("method", FROZEN)
@pytest.mark.parametrize("network", ["efficientnet_lite0@64", f"{OWN}:trained", "timm:deep"])
def test_every_frozen_method_learns_on_every_kind_of_network(
    method: str, network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake_timm(monkeypatch)
    learner = make(method, backbone=network, **METHODS[method].check_params, **FROZEN[method])
    if not network.startswith("timm:"):
        nets.load_pretrained(learner.network, network)
    draw = torch.Generator().manual_seed(0)
    x = torch.cat([torch.randint(low, low + 60, (4, 3, 32, 32), generator=draw) for low in (0, 180)]).to(torch.uint8)
    y = torch.tensor([3] * 4 + [5] * 4)
    learner.fit_base_features([(learner.features(x), y)])  # type: ignore[attr-defined]
    learner.observe(x[:1], torch.tensor([9]))
    assert learner.predict(x[4:]).tolist() == [5] * 4


def test_timm_networks_give_the_stages_that_timm_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_timm(monkeypatch)
    deep, plain = nets.build("timm:deep"), nets.build("timm:plain")
    assert (deep.n_stages, plain.n_stages) == (4, 1)
    assert (deep.side, deep.fit) == (48, "photo")
    x = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        first, tokens, last = deep.stage_features(x, (1, 3, 4))
        assert isinstance(deep.module, Deep)
        torch.testing.assert_close(first, deep.module.one(x).mean((2, 3)))
        torch.testing.assert_close(tokens, deep.module.tokens(deep.module.two(deep.module.one(x))).mean(1))
        torch.testing.assert_close(last, deep.module(x))


def test_timm_itself() -> None:
    try:
        timm = importlib.import_module("timm")
    except Exception as error:  # its torchvision fails in many ways where it was built for another torch
        pytest.skip(f"the extra timm does not import here: {error}")
    network = nets.build("timm:resnet18")
    assert network.n_stages >= 4
    assert network.feature_dim(64) == timm.create_model("resnet18").num_features
    assert network.feature_dim(64, network.last_stages(3)) == 256 + 512 + 512
    with pytest.raises(UnknownNameError, match=r"timm has no network 'resnet19'; did you mean .*resnet"):
        nets.build("timm:resnet19")
    make("rda", backbone="timm:resnet18", image_size=64)


def test_own_networks_are_trained_if_their_weights_do_not_depend_on_the_seed() -> None:
    trained = nets.load_pretrained(nets.build(f"{OWN}:trained"), f"{OWN}:trained")
    assert trained["weights"] == f"{OWN}:trained"
    assert len(str(trained["sha256"])) == 64
    assert nets.load_pretrained(nets.build(f"{OWN}:untrained"), f"{OWN}:untrained") == {}
    assert fill_by_name(nets.build("tiny_resnet18"), "tiny_resnet18") == {}


def test_weights_by_name_in_a_base_session() -> None:
    x = torch.randint(0, 256, (6, 3, 32, 32), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    batches = [(x, torch.tensor([0, 1] * 3))]
    learner = make("ncm", backbone=f"{OWN}:trained", weights=nets.PRETRAINED)
    learner.fit_base(batches)  # type: ignore[arg-type]
    assert learner.base_["weights"] == f"{OWN}:trained"
    with pytest.raises(ValueError, match="'tiny_resnet18' has no weights of its own"):
        make("ncm", backbone="tiny_resnet18", weights=nets.PRETRAINED).fit_base(batches)  # type: ignore[arg-type]


def test_a_wrong_name_lists_everything_that_is_right() -> None:
    with pytest.raises(UnknownNameError) as caught:
        nets.build("efficientnet_lite7")
    words = str(caught.value)
    for right in ("did you mean 'efficientnet_lite", "reduced_resnet18", "timm:NAME", "module:factory", "features:D"):
        assert right in words
    with pytest.raises(UnknownNameError, match="has no 'nothing'"):
        nets.build(f"{OWN}:nothing")


def _fake_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    def create_model(name: str, *, pretrained: bool, num_classes: int) -> nn.Module:
        assert not pretrained, "building must not fetch anything"
        return Deep() if name == "deep" else Plain()

    monkeypatch.setitem(sys.modules, "timm", types.SimpleNamespace(create_model=create_model))


@pytest.mark.parametrize("name", ["tiny_resnet18", "efficientnet_lite0"])
def test_a_stage_with_a_minus_is_its_spread_over_positions(name: str) -> None:
    network = nets.build(name, seed=0).eval()
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    maps = network.stage_maps(x)  # type: ignore[operator]
    both = network(x, [2, -2, -1])
    expected = [
        maps[1].mean((2, 3)),
        maps[1].flatten(2).std(2, unbiased=False),
        maps[0].flatten(2).std(2, unbiased=False),
    ]
    torch.testing.assert_close(both, torch.cat(expected, 1), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="this backbone has stages 1 to"):
        network(x, [-9])


def test_a_network_without_maps_has_no_spread() -> None:
    with pytest.raises(ValueError, match="does not give the spread"):
        nets.Wrapped(nn.Flatten())(torch.zeros(1, 3, 4, 4), [-1])
