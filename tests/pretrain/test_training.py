"""Base training: every strategy learns, resumes with the same bits, and reuses a given network's features."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nocl import nets
from nocl.checks import easy_images, split
from nocl.nets.projection import Projection
from nocl.plumbing.files import write_tensors
from nocl.plumbing.registry import UnknownNameError
from nocl.plumbing.seeding import generator
from nocl.plumbing.types import JSON, Batch
from nocl.pretrain import Contrastive, CrossEntropy, Recipe, Trained, train_base
from nocl.pretrain.augment import Augment
from nocl.pretrain.objectives import mix_classes
from nocl.pretrain.supcon import supcon
from nocl.pretrain.training import _Training

CLASSES = (7, 3, 40, 0)
QUICK = Recipe(epochs=3, lr=0.05, projection=32, power=0.5, compile=False)
STRATEGIES = ("ce", "ce+ssl", "ce+da", "sc", "sc+ssl", "sc+da", "sc+ssl+da")


@dataclass
class Images:
    """A base session of easy images, the same order in every epoch of one index."""

    classes: tuple[int, ...] = CLASSES
    n: int = 8
    size: int = 16
    drawn: list[int] = field(default_factory=list)

    def epoch(self, index: int) -> Iterator[Batch]:
        self.drawn.append(index)
        return iter(split(easy_images(self.classes, self.n, seed=index), self.size))

    def __iter__(self) -> Iterator[Batch]:
        return self.epoch(0)

    def __len__(self) -> int:
        return -(-self.n * len(self.classes) // self.size)

    def describe(self) -> dict[str, JSON]:
        return {"images": "easy", "n": self.n, "size": self.size}


def train(recipe: Recipe, *, workdir: Path | None = None, weights: Path | None = None) -> tuple[nets.Backbone, Trained]:
    network = nets.build("tiny_resnet18")
    trained = train_base(
        network, Images(), recipe, classes=CLASSES, image_size=32, seed=0, workdir=workdir, weights=weights
    )
    return network, trained


@pytest.mark.parametrize("objective", STRATEGIES)
def test_every_strategy_lowers_its_loss(objective: str) -> None:
    _, trained = train(QUICK.with_changes({"objective": objective}))
    assert trained.losses[-1] < trained.losses[0]
    assert isinstance(trained.objective, CrossEntropy if objective.startswith("ce") else Contrastive)
    assert not trained.objective.training


def objective_of(**changes: JSON) -> tuple[nets.Backbone, Contrastive | CrossEntropy]:
    recipe = QUICK.with_changes(changes)
    network = nets.build("tiny_resnet18")
    cls = Contrastive if recipe.objective.startswith("sc") else CrossEntropy
    return network, cls.build(network, 64, len(CLASSES), 0, recipe)


def batch() -> tuple[Tensor, Tensor]:
    x = torch.rand(6, 3, 32, 32, generator=generator(1))
    return x, torch.tensor([0, 1, 2, 3, 0, 1])


def test_sc_is_the_sum_of_both_spaces_on_raw_and_heavy_views() -> None:
    network, both = objective_of(objective="sc")
    x, y = batch()
    images, targets = both.views(x, y, generator(3))
    heavy = Augment("heavy")(x, generator(3))
    assert torch.equal(images, torch.cat([x, heavy]))
    assert targets[:, 0].tolist() == [*y.tolist(), *y.tolist()]
    z = (network(images).clamp_min(0) + 1e-6).sqrt()
    by_hand = supcon(both.heads["vanilla"](z), targets[:, 0], 0.1)
    assert both.projection is not None
    by_hand = by_hand + supcon(both.heads["high"](both.projection(z)), targets[:, 0], 0.1)
    torch.testing.assert_close(both.loss(network, x, y, generator(3)), by_hand)


def test_heads_have_the_papers_widths() -> None:
    _, sc = objective_of(objective="sc", projection=2048)
    assert [tuple(p.shape) for p in sc.heads["vanilla"].parameters()] == [(160, 64), (160,), (128, 160), (128,)]
    assert [tuple(p.shape) for p in sc.heads["high"].parameters()] == [(160, 2048), (160,), (128, 160), (128,)]
    _, ce = objective_of(objective="ce")
    assert tuple(ce.heads["vanilla"].weight.shape) == (4, 64)  # type: ignore[union-attr]


def test_the_high_space_alone_has_no_vanilla_head() -> None:
    _, high = objective_of(objective="sc", spaces="high")
    assert list(high.heads) == ["high"]


def test_rotation_labels_count_quarter_turns_counter_clockwise() -> None:
    _, ssl = objective_of(objective="ce+ssl")
    x, y = batch()
    images, targets = ssl.views(x, y, generator(0))
    assert targets[:6].tolist() == [[label, 4 * label] for label in y.tolist()]
    assert targets[6:12].tolist() == [[-1, 4 * label + 1] for label in y.tolist()]
    assert torch.equal(images[6:12, :, 0, 0], x[:, :, 0, -1])  # the right upper corner comes to the left


def test_mixing_keeps_weights_near_a_half_and_labels_beyond_the_real_ones() -> None:
    y = torch.tensor([0, 1, 2, 2])
    x = torch.nn.functional.one_hot(y, 3).float()[:, :, None, None].expand(4, 3, 2, 2)
    images, labels = mix_classes([x, 1 - x], y, 3, generator(0), times=50)
    for view, other, label in zip(images[::2], images[1::2], labels[::2]):
        torch.testing.assert_close(view + other, torch.ones_like(view))  # same partner and weight in both views
        shares = view[:, :, 0, 0]
        assert ((shares == 0) | ((shares > 0.3999) & (shares < 0.6001))).all()
        pairs = {3: [0, 1], 4: [0, 2], 5: [1, 2]}
        assert [row.nonzero().flatten().tolist() for row in shares] == [pairs[int(k)] for k in label]


def test_mixing_one_class_gives_nothing_and_a_finite_loss() -> None:
    network, da = objective_of(objective="sc+da")
    x, _ = batch()
    loss = da.loss(network, x, torch.zeros(6, dtype=torch.int64), generator(0))
    assert bool(torch.isfinite(loss))


def test_a_killed_training_continues_with_the_same_bits(tmp_path: Path) -> None:
    recipe = QUICK.with_changes({"objective": "sc", "momentum": 0.9})
    straight, _ = train(recipe)
    whole = Images.epoch

    def dies(self: Images, index: int) -> Iterator[Batch]:
        if index == 2:
            raise KeyboardInterrupt
        return whole(self, index)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Images, "epoch", dies)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, workdir=tmp_path)
    assert len(list(tmp_path.glob("*.partial.safetensors"))) == 1
    network, trained = train(recipe, workdir=tmp_path)
    assert len(trained.losses) == 3
    for name, tensor in straight.state_dict().items():
        assert torch.equal(tensor, network.state_dict()[name]), name


def test_a_finished_network_is_taken_from_the_folder(tmp_path: Path) -> None:
    first, trained = train(QUICK, workdir=tmp_path)
    second, again = train(QUICK, workdir=tmp_path)
    assert trained.losses == again.losses
    assert len(list(tmp_path.glob("base-*.safetensors"))) == 1
    assert torch.equal(first.state_dict()["conv1.weight"], second.state_dict()["conv1.weight"])
    train(QUICK.with_changes({"tau": 0.2}), workdir=tmp_path)
    assert len(list(tmp_path.glob("base-*.safetensors"))) == 2


@pytest.fixture
def given(tmp_path: Path) -> Path:
    path = tmp_path / "network.safetensors"
    network, _ = train(QUICK)
    write_tensors(path, network.state_dict(), {"classes": list(CLASSES)})
    return path


def test_with_given_weights_images_pass_the_network_once_a_round(given: Path, tmp_path: Path) -> None:
    recipe = QUICK.with_changes({"objective": "sc", "head_epochs": 7, "head_rounds": 2})
    network, base = nets.build("tiny_resnet18"), Images()
    passed: list[int] = []
    network.register_forward_hook(lambda _, inputs, __: passed.append(len(inputs[0])))
    trained = train_base(network, base, recipe, classes=CLASSES, image_size=32, seed=0, weights=given, workdir=tmp_path)
    assert len(trained.losses) == 7
    assert trained.losses[-1] < trained.losses[0]
    assert sum(passed) == 2 * 2 * 32  # two rounds of two views of 32 images
    again = train_base(network, base, recipe, classes=CLASSES, image_size=32, seed=0, weights=given, workdir=tmp_path)
    assert sum(passed) == 2 * 2 * 32  # the second time the projection comes from the folder
    state, other = trained.objective.state_dict(), again.objective.state_dict()
    assert all(torch.equal(tensor, other[name]) for name, tensor in state.items())


def test_given_weights_are_not_changed_by_training_the_projection(given: Path) -> None:
    network, _ = train(QUICK.with_changes({"objective": "sc"}), weights=given)
    plain, _ = train(QUICK)
    for name, tensor in plain.state_dict().items():
        assert torch.equal(tensor, network.state_dict()[name]), name


def test_projection_has_the_papers_size() -> None:
    for dim, size in ((160, 8_730_624), (640, 9_713_664), (2560, 13_645_824)):
        assert sum(p.numel() for p in Projection(dim, 2048).parameters()) == size


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": "sc+dda"}, "did you mean 'sc"),
        ({"schedule": "linear"}, "unknown schedule 'linear'"),
        ({"tau": 0}, "tau must be above 0, not 0"),
        ({"spaces": "high", "projection": 0}, "needs a projection"),
        ({"head": [160]}, "two widths above 0"),
        ({"batch": 3}, "unknown recipe setting 'batch'"),
    ],
)
def test_a_wrong_recipe_is_refused(changes: dict[str, JSON], message: str) -> None:
    with pytest.raises((ValueError, UnknownNameError), match=message):
        QUICK.with_changes(changes)


def test_what_only_changes_speed_or_heads_does_not_change_the_network_key() -> None:
    assert Recipe(compile=True, head_epochs=9).to_json() == Recipe().to_json()
    assert Recipe(tau=0.07).to_json() != Recipe().to_json()


def test_rates_of_every_schedule() -> None:
    from nocl.pretrain.steps import learning_rate

    def rates(**changes: JSON) -> list[float]:
        return [learning_rate(QUICK.with_changes(changes), epoch, 4 * epoch, 40) for epoch in range(10)]

    assert rates(lr=0.5) == [0.5] * 10
    steps = rates(lr=0.5, schedule="steps:6,8")
    assert steps == pytest.approx([0.5] * 6 + [0.05] * 2 + [0.005] * 2)
    cosine = rates(lr=0.5, schedule="cosine")
    assert cosine[0] == 0.5
    assert cosine[5] == pytest.approx(0.25)
    assert cosine == sorted(cosine, reverse=True)
    for wrong in ("steps:a", "step:60"):
        with pytest.raises(ValueError, match="schedule"):
            QUICK.with_changes({"schedule": wrong})


def test_settings_that_came_later_leave_the_key_of_older_networks_alone() -> None:
    plain = Recipe().to_json()
    assert "optimizer" not in plain
    assert "options" not in plain
    adam = Recipe(optimizer="adam", options={"margin": 0.1}).to_json()
    assert adam == plain | {"optimizer": "adam", "options": {"margin": 0.1}}


def test_adam_continues_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = QUICK.with_changes({"optimizer": "adam", "lr": 0.001, "projection": 0, "schedule": "steps:1"})
    straight, trained = train(recipe)
    assert trained.losses[-1] < trained.losses[0]
    epoch = Images.epoch

    def stop_at_second(self: Images, index: int) -> Iterator[Batch]:
        if index == 2:
            raise KeyboardInterrupt
        return epoch(self, index)

    monkeypatch.setattr(Images, "epoch", stop_at_second)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, workdir=tmp_path)
    monkeypatch.setattr(Images, "epoch", epoch)
    resumed, again = train(recipe, workdir=tmp_path)
    assert again.losses == trained.losses
    assert all(torch.equal(a, b) for a, b in zip(straight.state_dict().values(), resumed.state_dict().values()))


@pytest.mark.parametrize(("objective", "views"), [("ce", 1), ("sc", 2), ("ce+ssl", 4), ("sc+ssl", 5)])
def test_every_view_counts_as_an_image_that_passes_the_network(objective: str, views: int) -> None:
    recipe = QUICK.with_changes({"objective": objective})
    network = nets.build("tiny_resnet18")
    training = _Training(network, network.feature_dim(32), recipe, CLASSES, 0, frozen=False)
    assert training.passes(Images()) == views * sum(len(y) for _, y in Images())
