"""ASER: Shapley values against the public code, the exchange of stored images, and what a step does."""

from typing import Any

import pytest
import torch

from nocl.checks import novel, teach
from nocl.methods.aser import ASER, adversarial_shapley, exchange, knn_shapley
from nocl.stats.memory import highest
from tests.support.replay_cases import SHORT, cases, close, fitted


@cases("knnsv_")
def test_knn_shapley(case: dict[str, Any]) -> None:
    given = case["inputs"]
    points, candidates = torch.tensor(given["eval_features"]), torch.tensor(given["cand_features"])
    labels = torch.tensor(given["eval_labels"]), torch.tensor(given["cand_labels"])
    values = knn_shapley(points, labels[0], candidates, labels[1], given["K"])
    wanted = case.get("corrected", {}).get("exact_sv_matrix", case["outputs"]["sv_matrix"])
    close(values, wanted, 2e-5)
    order = case["outputs"]["sorted_cand_index"]
    matches = labels[1][torch.tensor(order)[:, : given["K"]]] == labels[0][:, None]
    close(values.sum(1), (matches.sum(1) / given["K"]).tolist(), 2e-5)


@cases("aser_retrieve_")
def test_aser_retrieval(case: dict[str, Any]) -> None:
    given, wanted = case["inputs"], case["outputs"]
    features, labels = torch.tensor(given["buffer_features"]), torch.tensor(given["buffer_labels"])
    new, new_labels = torch.tensor(given["batch_features"]), torch.tensor(given["batch_labels"])
    slots = torch.tensor(given["cand_slots"])
    adversarial = knn_shapley(new, new_labels, features[slots], labels[slots], given["K"])
    close(adversarial, wanted["sv_adversarial"], 2e-5)
    cooperative = adversarial
    if given["coop_slots"] is not None:
        others = torch.tensor(given["coop_slots"])
        cooperative = knn_shapley(features[others], labels[others], features[slots], labels[slots], given["K"])
        close(cooperative, wanted["sv_cooperative"], 2e-5)
    scores = adversarial_shapley(adversarial, cooperative, given["score_type"])
    close(scores, wanted["score_per_cand"], 2e-5)
    assert slots[highest(scores, given["n_replay"])].tolist() == wanted["retrieved_slots"]


@cases("aser_update_")
def test_aser_update(case: dict[str, Any]) -> None:
    given, wanted = case["inputs"], case["outputs"]
    features, labels = torch.tensor(given["buffer_features"]), torch.tensor(given["buffer_labels"])
    new, new_labels = torch.tensor(given["batch_features"]), torch.tensor(given["batch_labels"])
    points, slots = torch.tensor(given["eval_slots"]), torch.tensor(given["cand_slots"])
    share = torch.bincount(labels, minlength=given["n_classes"]) / len(labels)
    minority = share[new_labels] < given["minority_threshold"]
    assert minority.nonzero().flatten().tolist() == wanted["minority_batch_index"]
    values = knn_shapley(
        torch.cat([features[points], new[minority]]),
        torch.cat([labels[points], new_labels[minority]]),
        torch.cat([features[slots], new]),
        torch.cat([labels[slots], new_labels]),
        given["K"],
    )
    close(values, wanted["sv_matrix"], 2e-5)
    close(values.sum(0), wanted["cand_score"], 1e-4)
    lost, kept = exchange(values.sum(0), len(slots))
    owners = dict(enumerate(wanted["slot_owner"]))
    assert set(slots[lost].tolist()) == {slot for slot, owner in owners.items() if owner != slot}
    assert set((kept + 100).tolist()) == {owner for owner in owners.values() if owner >= 100}


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
