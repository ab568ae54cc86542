"""The replay baselines step by step: what a step adds up to, what it leaves alone, what the memory sees."""

import copy
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from benchmarks.scr_ft import StoredSCR

from nocl import nets
from nocl.checks import BASE_LABELS, LEARNER_CHECKS, QUICK, easy_images, novel, split, teach
from nocl.learner import Learner
from nocl.methods import METHODS
from nocl.methods.aser import ASER
from nocl.methods.gdumb import GDumb
from nocl.methods.mir import MIR
from nocl.methods.ocm import OCM, Adam
from nocl.methods.scr import SCR
from nocl.plumbing.files import write_tensors
from nocl.plumbing.types import JSON
from nocl.pretrain.augment import turned_variants
from nocl.stats.memory import gradients

REPLAY = ("aser", "dvc", "gdumb", "mir", "ocm", "scr")
WITH_FT = ("dvc", "ocm", "scr")
SHORT: dict[str, JSON] = {**QUICK, "recipe": {"epochs": 2, "lr": 0.05, "compile": False}}


def fitted(name: str, **params: JSON) -> Any:
    """A learner after a base session of 4 classes with 6 images each; trained once, then copied."""
    return copy.deepcopy(_fitted_once(name, json.dumps(params)))


@lru_cache(maxsize=32)
def _fitted_once(name: str, settings: str) -> Any:
    cls, params = METHODS[name], json.loads(settings)
    learner = cls(**{**SHORT, **cls.check_params, **params})  # type: ignore[arg-type]
    return learner.fit_base(split(easy_images(BASE_LABELS, 6, seed=1), 8))


def changed(before: Learner, after: Learner) -> set[str]:
    """First parts of the names of parameters and buffers that moved."""
    old, new = before.state_dict(), after.state_dict()
    same_shape = [name for name in old if old[name].shape == new[name].shape]
    return {name.split(".")[0] for name in same_shape if not torch.equal(old[name], new[name])}


# --- all of them ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REPLAY)
def test_base_epochs_do_not_touch_the_counter(name: str) -> None:
    learner = fitted(name)  # the recipe has two epochs
    assert int(learner.memory.seen) == 24  # one pass over 4 classes of 6 images
    assert learner.stores_exemplars
    assert learner.memory.images.dtype == torch.uint8


@pytest.mark.parametrize("name", REPLAY)
def test_exemplars_are_in_the_ledger_and_bounded(name: str) -> None:
    learner = fitted(name)
    before = learner.state_bytes()["exemplars"]
    teach(learner, novel(6))
    size = learner.memory_size
    assert before == learner.state_bytes()["exemplars"]
    assert size * 3 * 32 * 32 <= before <= size * (3 * 32 * 32 + 16) + 16  # images, columns, perhaps arrivals
    stored = {row.numpy().tobytes(): int(label) for row, label in zip(*_stored(learner))}
    offered = [*split(easy_images(BASE_LABELS, 6, seed=1), 8), *novel(6)]
    known = {x.numpy().tobytes(): int(y) for batch in offered for x, y in zip(batch.x, batch.y)}
    assert stored.items() <= known.items()


def _stored(learner: Any) -> tuple[torch.Tensor, torch.Tensor]:
    n = len(learner.memory)
    return learner.memory.images[:n], learner.classes_[learner.memory.columns[:n]]


@pytest.mark.parametrize("name", WITH_FT)
def test_ft_leaves_the_backbone_alone(name: str) -> None:
    assert METHODS[name].presets["ft"] == {"freeze_backbone": True}
    learner = fitted(name, freeze_backbone=True)
    before = copy.deepcopy(learner)
    for x, y in split(easy_images(BASE_LABELS, 3, seed=5), 6):
        learner.observe(x, y)
    moved = changed(before, learner)
    assert "network" not in moved
    assert "head" in moved
    heads = {"dvc": "qnet", "ocm": "embed"}
    assert name not in heads or heads[name] in moved
    free = fitted(name)
    before = copy.deepcopy(free)
    free.observe(*split(easy_images(BASE_LABELS, 3, seed=5), 6)[0])
    assert "network" in changed(before, free)


@pytest.mark.parametrize(("name", "check"), [("dvc", "interrupted_equals_uninterrupted"), ("scr", "it_learns")])
def test_ft_keeps_the_contract(name: str, check: str) -> None:
    LEARNER_CHECKS[check](METHODS[name], {"freeze_backbone": True})


@pytest.mark.parametrize("name", REPLAY)
def test_all_start_from_the_same_given_network(name: str, tmp_path: Path) -> None:
    network = nets.build("tiny_resnet18", seed=7)
    write_tensors(tmp_path / "base.safetensors", network.state_dict(), {"classes": list(BASE_LABELS)})
    extra: dict[str, JSON] = {"base_epochs": 0} if name == "ocm" else {}
    recipe: dict[str, JSON] = {"head_epochs": 1, "lr": 0.05, "compile": False}
    learner = fitted(name, weights=str(tmp_path / "base.safetensors"), recipe=recipe, **extra)
    for key, tensor in network.state_dict().items():
        assert torch.equal(learner.network.state_dict()[key], tensor), key
    assert len(learner.memory) == 24
    assert learner.base_["weights"] == "base.safetensors"


# --- MIR ------------------------------------------------------------------------------------------------------------


def test_mir_step_is_the_gradient_of_the_new_plus_that_of_the_retrieved(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = fitted("mir", lr=0.1)
    x, y = easy_images(BASE_LABELS, 2, seed=3)
    slots = torch.tensor([3, 1, 7])
    monkeypatch.setattr(MIR, "retrieve", lambda self, ahead: slots)
    twin = copy.deepcopy(learner)
    learner.observe(x, y)
    twin.set_training(True)
    parameters = twin.learning_parameters()
    new = gradients(F.cross_entropy(twin(twin.prepare(x)), twin.columns(y)), parameters)
    images, columns = twin.recall(slots)
    old = gradients(F.cross_entropy(twin(images), columns), parameters)
    for name, value in learner.learning_parameters().items():
        wanted = parameters[name] - 0.1 * (new[name] + old[name])
        torch.testing.assert_close(value, wanted, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_mir_retrieval_leaves_no_trace(mode: str) -> None:
    learner = fitted("mir", score_bn_mode=mode)
    ahead = {name: value + 0.01 for name, value in learner.learning_parameters().items()}
    before = {name: tensor.clone() for name, tensor in learner.state_dict().items() if "extra" not in name}
    slopes = {name: p.grad.clone() for name, p in learner.named_parameters() if p.grad is not None}
    slots = learner.retrieve(ahead)
    assert len(set(slots.tolist())) == len(slots) == 10
    assert int(slots.max()) < len(learner.memory)
    for name, tensor in before.items():
        assert torch.equal(tensor, learner.state_dict()[name]), name
    after = {name: p.grad for name, p in learner.named_parameters() if p.grad is not None}
    assert after.keys() == slopes.keys()
    assert all(torch.equal(after[name], slope) for name, slope in slopes.items())


def test_choosing_all_candidates_is_refused() -> None:
    with pytest.raises(ValueError, match="replay_batch must be at most candidates, 50, not 100"):
        MIR(replay_batch=100)


# --- ASER -----------------------------------------------------------------------------------------------------------


def test_aser_memory_stays_full_and_true_under_exchange() -> None:
    learner = fitted("aser", memory_size=20, n_per_class=1)
    assert int(learner.memory.seen) > len(learner.memory) == 20
    before = learner.memory.columns.clone()
    teach(learner, novel(10))
    assert len(learner.memory) == 20
    assert int(learner.memory.seen) == 24 + 20
    assert not torch.equal(before, learner.memory.columns)


def test_aser_minority_is_below_the_threshold_drawn() -> None:
    learner = ASER(**SHORT, memory_size=10)  # type: ignore[arg-type]
    learner.meet([0, 1, 2])
    learner.memory.write(torch.zeros(10, 3, 32, 32, dtype=torch.uint8), torch.tensor([0] * 9 + [1]), torch.arange(10))
    drawn = torch.stack([learner.is_minority(torch.tensor([0, 1, 2])) for _ in range(400)]).double().mean(0)
    assert float(drawn[0]) == 0.0  # a share of 0.9 is above any threshold below 1/3
    assert float(drawn[1]) == pytest.approx(0.7, abs=0.1)  # 0.1 < u / 3 for u uniform in [0, 1]
    assert float(drawn[2]) > 0.99


# --- GDumb ----------------------------------------------------------------------------------------------------------


def test_gdumb_depends_on_the_memory_and_not_on_the_past() -> None:
    x = easy_images(BASE_LABELS, 2, seed=9).x
    first = fitted("gdumb", epochs=2)
    second = copy.deepcopy(first)
    first.predict(x)  # one has trained before, the other has not
    for learner in (first, second):
        teach(learner, novel(3))
    assert torch.equal(first.decision_function(x), second.decision_function(x))


def test_gdumb_from_scratch_forgets_the_base_network() -> None:
    x = easy_images(BASE_LABELS, 2, seed=9).x
    first = fitted("gdumb", epochs=1, init="scratch")
    second = copy.deepcopy(first)
    with torch.no_grad():
        for parameter in second.network.parameters():
            parameter.mul_(1.5)
    assert torch.equal(first.decision_function(x), second.decision_function(x))


def test_gdumb_trains_once_for_one_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, trainings = fitted("gdumb", epochs=1), []
    original = GDumb.train_on_memory
    monkeypatch.setattr(GDumb, "train_on_memory", lambda self: trainings.append(1) or original(self))
    x = easy_images(BASE_LABELS, 2, seed=9).x
    learner.predict(x)
    learner.predict(x[:3])
    assert len(trainings) == 1
    teach(learner, novel(2))
    learner.predict(x)
    assert len(trainings) == 2


def test_gdumb_learns_with_augmentation_and_cutmix() -> None:
    learner = fitted("gdumb", epochs=2, augment="crop_flip", cutmix=0.5)
    assert bool(torch.isfinite(learner.decision_function(easy_images(BASE_LABELS, 2, seed=9).x)).all())


# --- SCR ------------------------------------------------------------------------------------------------------------


def test_scr_with_one_exemplar_a_class_is_the_nearest_neighbour() -> None:
    learner = SCR(**SHORT, memory_size=4)  # type: ignore[arg-type]
    x, y = easy_images(BASE_LABELS, 1, seed=1)
    learner.memory.write(x, learner.columns(y), torch.arange(4))
    learner.memory.seen.fill_(4)
    queries = easy_images(BASE_LABELS, 3, seed=2).x
    learner.eval()
    with torch.no_grad():
        stored, asked = learner.network(learner.prepare(x)), learner.network(learner.prepare(queries))
    nearest = F.cosine_similarity(asked[:, None], stored[None], dim=2).argmax(1)
    assert torch.equal(learner.predict(queries), y[nearest])


def test_scr_class_without_exemplars_cannot_win() -> None:
    learner = fitted("scr")
    learner.meet([99])
    x = easy_images(BASE_LABELS, 5, seed=2).x
    scores = learner.decision_function(x)
    assert 99 not in learner.predict(x).tolist()
    assert bool((scores[:, :-1] > scores[:, -1:]).all())


def test_scr_means_are_computed_once_until_something_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, passes = fitted("scr"), []
    original = SCR.class_means
    monkeypatch.setattr(SCR, "class_means", lambda self: passes.append(1) or original(self))
    x, y = easy_images(BASE_LABELS, 2, seed=2)
    learner.predict(x)
    learner.predict(x)
    assert len(passes) == 1
    learner.observe(x, y)
    learner.predict(x)
    assert len(passes) == 2


def test_scr_ft_answers_do_not_depend_on_the_head() -> None:
    learner = fitted("scr", freeze_backbone=True)
    x = easy_images(BASE_LABELS, 2, seed=2).x
    before = learner.decision_function(x)
    with torch.no_grad():
        learner.head[0].weight.zero_()
    assert torch.equal(before, learner.decision_function(x))


# --- DVC ------------------------------------------------------------------------------------------------------------


def test_dvc_never_writes_the_base_checkpoint(tmp_path: Path) -> None:
    cls = METHODS["dvc"]
    learner = cls(**{**SHORT, **cls.check_params})  # type: ignore[arg-type]
    learner.fit_base(_Base(), workdir=tmp_path)
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert files
    teach(learner, novel(3))
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == files


class _Base:
    """A base session that can be described, so that its network is kept."""

    classes = BASE_LABELS

    def __iter__(self) -> Any:
        return self.epoch(0)

    def epoch(self, index: int) -> Any:
        return iter(split(easy_images(BASE_LABELS, 4, seed=1), 8))

    def describe(self) -> dict[str, JSON]:
        return {"dataset": "easy images"}


# --- OCM ------------------------------------------------------------------------------------------------------------


def test_variants_are_turns_of_the_pixels() -> None:
    x = torch.arange(2 * 3 * 8 * 8).view(2, 3, 8, 8)
    variants = turned_variants(x).view(16, 2, 3, 8, 8)
    assert torch.equal(variants[0], x)
    for local in (1, 2, 3):
        twice = turned_variants(variants[local]).view(16, 2, 3, 8, 8)[local]
        assert torch.equal(twice, x)
    for variant in variants:
        assert torch.equal(variant.flatten(1).sort(1).values, x.flatten(1))
    assert len({variant[0].numpy().tobytes() for variant in variants}) == 16


def test_previous_model_is_still_during_a_session_and_follows_at_its_end() -> None:
    learner = fitted("ocm")
    before = copy.deepcopy(learner.previous.state_dict())
    for x, y in split(easy_images(BASE_LABELS, 3, seed=5), 6):
        learner.observe(x, y)
    assert all(torch.equal(before[name], tensor) for name, tensor in learner.previous.state_dict().items())
    learner.end_session()
    for name, tensor in learner.previous.network.state_dict().items():
        assert torch.equal(tensor, learner.network.state_dict()[name])
    with torch.no_grad():  # right after the copy both models answer alike, so the distillation term is 0
        x = learner.prepare(easy_images(BASE_LABELS, 2, seed=6).x)
        assert torch.equal(learner.head(learner.network(x)), learner.previous.head(learner.previous.network(x)))


@pytest.mark.parametrize(("n_classes", "wanted"), [(4, 28), (10, 64), (12, 64)])
def test_ocm_replays_seven_images_a_class_up_to_64(
    n_classes: int, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = OCM(**SHORT, memory_size=100)  # type: ignore[arg-type]
    learner.meet(range(n_classes))
    learner.memory.write(
        torch.zeros(100, 3, 32, 32, dtype=torch.uint8), torch.arange(100) % n_classes, torch.arange(100)
    )
    learner.end_session()
    replayed: list[int] = []

    def loss(self: OCM, x: Any, columns: Any, old: Any, recalled: Any) -> Any:
        replayed.append(len(recalled))
        return sum(p.sum() for p in self.learning_parameters().values()) * 0

    monkeypatch.setattr(OCM, "loss", loss)
    learner.observe(*easy_images((0, 1), 1, seed=0))
    assert replayed == [wanted]


def test_adam_is_torchs_adam() -> None:
    ours, theirs = torch.randn(5, 3), torch.nn.Parameter(torch.zeros(5, 3))
    theirs.data.copy_(ours)
    adam, reference = Adam(0.01, 1e-4), torch.optim.Adam([theirs], 0.01, (0.9, 0.99), weight_decay=1e-4)
    adam.follow({"w": ours})
    for step in range(5):
        slope = torch.randn(5, 3, generator=torch.Generator().manual_seed(step))
        adam.step({"w": ours}, {"w": slope})
        theirs.grad = slope.clone()
        reference.step()
    torch.testing.assert_close(ours, theirs.data, atol=1e-7, rtol=1e-6)
    adam.follow({"w": torch.zeros(7, 3)})
    assert torch.equal(adam.first_w[5:], torch.zeros(2, 3))
    assert bool(adam.first_w[:5].any())


def test_ocm_refuses_an_embedding_that_leaves_no_offset() -> None:
    with pytest.raises(ValueError, match="embed_dim must be below the feature's 64 values, not 200"):
        OCM(**SHORT, embed_dim=200)  # type: ignore[arg-type]


def test_frozen_scr_answers_as_the_benchmark_does_from_features() -> None:
    learner = fitted("scr", freeze_backbone=True)
    teach(learner, novel())
    images = easy_images(BASE_LABELS, 3, 9).x
    stored = StoredSCR(memory_size=learner.memory_size, backbone=f"features:{learner.feature_dim}")
    stored.meet(learner.classes_.tolist())
    features = learner.network(learner.prepare(learner.memory.images[: len(learner.memory)]))
    stored.memory.images[: len(learner.memory)] = features.detach()
    stored.memory.columns.copy_(learner.memory.columns)
    stored.memory.filled.copy_(learner.memory.filled)
    z = learner.network(learner.prepare(images)).detach()
    assert torch.allclose(stored.score(z), learner.decision_function(images), atol=1e-5)
