"""Closed forms and bounds of the replay baselines' losses."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nocl.methods.dvc import dual_view
from nocl.methods.ocm import embedding_similarity, other_view_nce, same_label_nce, variant_labels
from nocl.pretrain.supcon import supcon


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


@pytest.mark.parametrize(("tau", "wanted"), [(1.0, 0.55144), (0.1, 9.08e-5)])
def test_supcon_of_two_orthogonal_classes(tau: float, wanted: float) -> None:
    views = torch.eye(2).double().repeat(2, 1)  # both views of a sample are the same
    loss = float(supcon(views, torch.tensor([0, 1, 0, 1]), tau))
    assert loss == pytest.approx(math.log(1 + 2 * math.exp(-1 / tau)))
    assert loss == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize("tau", [0.07, 0.5, 3.0])
def test_supcon_of_equal_embeddings_is_log_3(tau: float) -> None:
    labels = torch.tensor([0, 1, 0, 1])
    assert float(supcon(torch.ones(4, 6).double(), labels, tau)) == pytest.approx(math.log(3))


def test_supcon_does_not_care_for_order_or_views() -> None:
    z, y = random(5, 2, 8), torch.tensor([0, 1, 0, 2, 1])
    stacked, swapped = z.transpose(0, 1).flatten(0, 1), z.flip(1).transpose(0, 1).flatten(0, 1)
    order = torch.randperm(5, generator=torch.Generator().manual_seed(1))
    shuffled = z[order].transpose(0, 1).flatten(0, 1)
    loss = float(supcon(stacked, y.repeat(2), 0.1))
    assert float(supcon(swapped, y.repeat(2), 0.1)) == pytest.approx(loss)
    assert float(supcon(shuffled, y[order].repeat(2), 0.1)) == pytest.approx(loss)


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 8), k=st.integers(2, 7), scale=st.floats(0.01, 50), seed=st.integers(0, 99))
def test_dual_view_terms_keep_their_bounds(n: int, k: int, scale: float, seed: int) -> None:
    """The entropy term lies between -log K and 0; the distance is 0 only if the joint prediction is each view's."""
    raw, heavy, joint = (scale * random(n, k, seed=seed + i) for i in range(3))
    y = torch.arange(n) % k
    terms = dual_view(raw, heavy, joint, y, weight=4.0)
    assert -math.log(k) - 1e-9 <= float(terms.entropy) <= 1e-9
    assert float(terms.distance) > 0
    assert float(dual_view(raw, raw, raw, y, weight=4.0).distance) == 0
    swapped = dual_view(heavy, raw, joint, y, weight=4.0)
    assert float(swapped.cross_entropy) == pytest.approx(float(terms.cross_entropy))


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
