"""OCM: variants and losses against the public code, closed forms, and what a step does."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nocl.checks import BASE_LABELS, easy_images, split
from nocl.methods.ocm import OCM, Adam, embedding_similarity, other_view_nce, same_label_nce, variant_labels
from nocl.pretrain.augment import turned_variants
from tests.support.replay_cases import SHORT, cases, close, exact, fitted, random


@cases("ocm_rot16_")
def test_sixteen_variants(case: dict[str, Any]) -> None:
    images = torch.tensor(case["inputs"]["images"])
    assert torch.equal(turned_variants(images), torch.tensor(case["outputs"]["images"]))
    labels = variant_labels(torch.tensor(case["inputs"]["labels"]), 16, offset=1000)
    assert labels.tolist() == case["outputs"]["labels"]


def new_loss(similarity: Tensor, labels: Tensor, tau: float, official: bool) -> Tensor:
    same = same_label_nce(similarity, labels, labels, tau, self_apart=True, official=official)
    return 2 * same + other_view_nce(similarity, tau, official=official)


@cases("ocm_loss_")
def test_info_nce(case: dict[str, Any]) -> None:
    given = case["inputs"]
    similarity, labels = exact(given["similarity"]).requires_grad_(), torch.tensor(given["labels"])
    labels = labels if given["variant"] == "pre" else labels.repeat(2)
    for official in (True, False):
        if given["variant"] == "n":
            loss = new_loss(similarity, labels, given["temperature"], official)
        else:
            loss = same_label_nce(similarity, labels, labels, given["temperature"], official=official)
        if not official:
            close(loss, case["corrected"]["exact_log_softmax_value"], 1e-9)
            continue
        rows = len(similarity)
        mean = (rows - rows % 2) / rows  # of an odd number of rows the reference divides by one too few
        close(loss, case["outputs"]["loss_f64"] * mean, 1e-6)
        gradient = torch.autograd.grad(loss, similarity)[0]
        close(gradient, (exact(case["outputs"]["grad_similarity_f64"]) * mean).tolist(), 1e-6)


@cases("ocm_similarity_")
def test_similarity(case: dict[str, Any]) -> None:
    given = case["inputs"]
    similarity = embedding_similarity(exact(given["embeddings"]), exact(given["features"]), given["offset"])
    close(similarity, case["outputs"]["S"], 1e-6)
    labels = torch.tensor(given["labels_once"]).repeat(2)
    close(new_loss(similarity, labels, given["temperature"], True), case["outputs"]["L_new"], 1e-5)
    wanted = case["corrected"]["exact_log_softmax_value"]
    close(new_loss(similarity, labels, given["temperature"], False), wanted, 1e-5)


@cases("ocm_step_")
def test_three_contrastive_terms_of_a_step(case: dict[str, Any]) -> None:
    given, wanted, tau = case["inputs"], case["outputs"], case["inputs"]["temperature"]
    features, embeddings = exact(given["features"]).requires_grad_(), exact(given["embeddings"]).requires_grad_()
    labels = [variant_labels(torch.tensor(given[f"labels_{kind}"]), 16, 1000) for kind in ("new", "mem")]
    assert [t.tolist() for t in labels] == [wanted["rot_labels_new"], wanted["rot_labels_mem"]]
    n = 2 * len(labels[0])
    new = embedding_similarity(embeddings[:n], features[:n], given["offset_new"])
    old = embedding_similarity(embeddings[n:], features[n:], given["offset_mem"])
    close(new[:8, :8], wanted["S_new_block"], 1e-6)
    close(new.sum(1), wanted["S_new_row_sums"], 1e-5)
    close(old[:8, :8], wanted["S_mem_block"], 1e-6)
    first = F.normalize(embeddings[n : n + len(labels[1])], dim=1)
    cross = first @ F.normalize(exact(given["prev_embeddings"]), dim=1).T
    close(cross[:8, :8], wanted["S_prev_block"], 1e-6)
    for official, values in ((True, wanted), (False, case["corrected"]["exact_log_softmax"])):
        terms = [
            new_loss(new, labels[0].repeat(2), tau, official),
            same_label_nce(old, labels[1].repeat(2), labels[1].repeat(2), tau, official=official),
            same_label_nce(cross, labels[1], labels[1], tau, official=official),
        ]
        for term, name in zip(terms, ("L_new", "L_mem", "L_prev"), strict=True):
            close(term, values[name], 1e-5)
        if official:
            slopes = torch.autograd.grad(torch.stack(terms).sum(), (features, embeddings), retain_graph=True)
            close(slopes[0].norm(dim=1), wanted["grad_features_row_norms"], 1e-5)
            close(slopes[1].norm(dim=1), wanted["grad_embeddings_row_norms"], 1e-5)


def test_variants_of_one_class_are_different_classes() -> None:
    labels = variant_labels(torch.tensor([0, 1, 2]), n_variants=16, offset=3)
    assert len(set(labels.tolist())) == 48


def test_staying_where_the_previous_model_was_puts_most_mass_on_the_own_class() -> None:
    e, labels = torch.eye(4).double().repeat_interleave(2, 0), torch.arange(4).repeat_interleave(2)
    probability = (e @ e.T / 0.07).softmax(1)
    own = (probability * (labels[:, None] == labels[None, :])).sum(1)
    assert bool((own > 0.999).all())
    moved = same_label_nce(e.roll(2, 0) @ e.T, labels, labels, 0.07)
    assert float(same_label_nce(e @ e.T, labels, labels, 0.07)) < float(moved)


def test_clean_and_official_agree_where_epsilons_do_not_matter() -> None:
    similarity, labels = 0.1 * random(8, 8), torch.tensor([0, 1, 0, 1]).repeat(2)
    for official in (False, True):
        loss = same_label_nce(similarity, labels, labels, 1.0, official=official)
        assert float(loss) == pytest.approx(float(same_label_nce(similarity, labels, labels, 1.0)), abs=1e-6)
    assert float(other_view_nce(similarity, 1.0, official=True)) == pytest.approx(
        float(other_view_nce(similarity, 1.0)), abs=1e-6
    )


def test_similarity_takes_the_slice_at_the_offset() -> None:
    e, z = random(3, 2, seed=1), random(3, 5, seed=2)
    e_unit, z_unit = e / e.norm(dim=1, keepdim=True), z / z.norm(dim=1, keepdim=True)
    by_hand = float(e_unit[0] @ e_unit[1] + e_unit[0] @ z_unit[1, 2:4])
    assert float(embedding_similarity(e, z, offset=2)[0, 1]) == pytest.approx(by_hand)


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
