"""The base class: parameters, classes, the door inward, saving."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nocl.checks import CheckError, check_learner, easy_images, no_image_is_kept
from nocl.learner import FrozenLearner, Learner
from nocl.methods import METHODS, make
from nocl.methods._saving import load, save
from nocl.nets import build
from nocl.plumbing.files import DamagedFileError
from nocl.plumbing.registry import UnknownNameError
from nocl.stats.class_stats import ClassStats


def flat_pixels() -> nn.Module:
    """A user's own network: the mean colour of the four quarters."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())


class Hoarder(FrozenLearner):
    """Breaks the contract: keeps features of every sample, draws from the global generator."""

    def __init__(
        self,
        *,
        backbone: str = "tests.test_learner:flat_pixels",
        recipe: dict | None = None,  # type: ignore[type-arg]
        image_size: int = 32,
        seed: int = 0,
    ) -> None:
        super().__init__(backbone=backbone, recipe={**(recipe or {}), "epochs": 0}, image_size=image_size, seed=seed)
        self.register_buffer("hoard", torch.zeros(0, self.feature_dim))
        self.stats = ClassStats(self.feature_dim)

    def grow(self, n: int) -> None:
        self.stats.grow(n)

    def learn(self, z: Tensor, y: Tensor) -> None:
        self.hoard = torch.cat([self.hoard, z])
        self.stats.update(z + 0 * torch.rand(1), self.columns(y))

    def score(self, z: Tensor) -> Tensor:
        return -torch.cdist(z, self.stats.mean.to(z))


class Album(Learner):
    """Breaks the contract: hides the images themselves in a plain list."""

    def __init__(
        self, *, backbone: str = "tiny_resnet18", recipe: dict | None = None, seed: int = 0, image_size: int = 32
    ):  # type: ignore[type-arg]
        super().__init__(backbone=backbone, recipe=recipe, seed=seed, image_size=image_size)
        self.album: list[Tensor] = []

    def observe(self, x: Tensor, y: Tensor) -> None:
        self.prepare(x)
        self.columns(y)
        self.album.append(x)

    def decision_function(self, x: Tensor) -> Tensor:
        return torch.zeros(len(x), len(self.classes_)) + self.prepare(x).mean((1, 2, 3))[:, None]


def test_checks_find_what_a_method_breaks() -> None:
    with pytest.raises(CheckError) as found:
        check_learner(Hoarder, backbone="tests.test_learner:flat_pixels")
    text = str(found.value)
    assert "state_stops_growing: CheckError: grew with the number of samples: hoard" in text
    assert "it_learns" not in text
    assert "global_generator_untouched" in text


def test_checks_find_hidden_images() -> None:
    with pytest.raises(CheckError, match="album has the shape of images"):
        no_image_is_kept(Album, {"recipe": {"epochs": 0}})


def test_own_backbone_by_name() -> None:
    network = build("tests.test_learner:flat_pixels")
    assert network.feature_dim(32) == 12
    learner = make("ncm", backbone="tests.test_learner:flat_pixels", space="vanilla", recipe={"epochs": 0})
    x, y = easy_images((3, 8), 5, seed=0)
    learner.observe(x, y)
    assert float((learner.predict(x) == y).float().mean()) == 1.0


def test_own_method_by_name() -> None:
    assert type(make("tests.test_learner:Hoarder")).__name__ == "Hoarder"


@pytest.mark.parametrize("name", ["ncmm", "no_module_at_all:Thing", "tests.test_learner:Nothing"])
def test_unknown_method_is_explained(name: str) -> None:
    with pytest.raises(UnknownNameError, match=r"ncm|no_module_at_all|Nothing"):
        make(name)


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        (torch.zeros(4, 1), r"must give scores \[4, 2\], one of each image and class, not \[4, 1\]"),
        (torch.zeros(4, 3), r"not \[4, 3\]"),
        (torch.full((4, 2), float("nan")), "gives NaN"),
    ],
)
def test_scores_that_are_none_give_no_answers(scores: Tensor, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make("ncm", backbone="features:3")
    learner.observe(torch.eye(2, 3), torch.tensor([5, 7]))
    monkeypatch.setattr(learner, "decision_function", lambda x: scores)
    with pytest.raises(ValueError, match=said):
        learner.predict(torch.zeros(4, 3))


def test_unknown_parameter_lists_the_valid_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean 'power'\? Valid: .*metric"):
        make("ncm", powr=1)
    with pytest.raises(UnknownNameError, match="recipe setting 'epoch'; did you mean 'epochs'"):
        make("ncm", recipe={"epoch": 3})


def test_backbones_have_the_papers_size() -> None:
    network = build("reduced_resnet18")
    assert sum(parameter.numel() for parameter in network.parameters()) == 1_093_140
    assert [network.feature_dim(side) for side in (32, 84, 128)] == [160, 640, 2560]
    assert network.feature_dim(32, (2, 3, 4)) == 40 + 80 + 160


def test_normalisation_travels_with_the_network() -> None:
    network = build("tiny_resnet18")
    network.mean.fill_(0.5)
    network.std.fill_(0.25)
    other = build("tiny_resnet18")
    other.load_state_dict(network.state_dict())
    assert torch.equal(other.normalise(torch.ones(1, 3, 2, 2)), torch.full((1, 3, 2, 2), 2.0))


def test_state_ledger_adds_up() -> None:
    learner = make("ncm", backbone="tiny_resnet18")
    learner.observe(*easy_images((1, 2, 3), 2, seed=0))
    sizes = learner.state_bytes()
    total = sum(tensor.numel() * tensor.element_size() for tensor in learner.state_dict().values())
    assert sum(sizes.values()) == total
    assert sizes["exemplars"] == 0
    assert sizes["statistics"] >= 3 * (64 * 8 + 8)


@pytest.mark.parametrize("damage", ["cut", "flip", "foreign", "empty"])
def test_damaged_file_is_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "learner.safetensors"
    learner = make("ncm", backbone="tiny_resnet18")
    learner.observe(*easy_images((1, 2), 2, seed=0))
    save(learner, path)
    whole = path.read_bytes()
    path.write_bytes(
        {"cut": whole[:-100], "flip": b"\xff" * 8 + whole[8:], "foreign": b"PK\x03\x04" * 99, "empty": b""}[damage]
    )
    with pytest.raises(DamagedFileError, match=r"learner\.safetensors"):
        load(path)


def test_every_method_documents_itself() -> None:
    for name, cls in METHODS.items():
        assert (cls.__doc__ or "").strip(), name
        assert len((__import__(cls.__module__, fromlist=["x"]).__doc__ or "").strip()) > 200, name
