"""SCR: the nearest mean of stored exemplars, and when the means are computed."""

import pytest
import torch
import torch.nn.functional as F
from benchmarks.scr_ft import StoredSCR

from nocl.checks import BASE_LABELS, easy_images, novel, teach
from nocl.methods.scr import SCR
from tests.support.replay_cases import SHORT, fitted


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
