"""Memories keep what they promise: rates, balance, labels, bounds; choosing leaves no trace on the model."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nocl.methods.aser import adversarial_shapley, exchange, knn_shapley
from nocl.methods.dvc import last_layer_gradient
from nocl.methods.mir import interference
from nocl.stats import memory
from nocl.stats.memory import BalancedMemory, Reservoir, gradients, highest, moved
from tests.support.replay_cases import cases


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def marked(numbers: Tensor) -> Tensor:
    """One-pixel images that carry a number up to 2^16, so that labels can be checked against images."""
    pixels = torch.stack([numbers % 256, numbers // 256, torch.zeros_like(numbers)], dim=1)
    return pixels.to(torch.uint8)[:, :, None, None]


def numbers_in(memory: Reservoir | BalancedMemory) -> Tensor:
    pixels = memory.images[: len(memory), :, 0, 0].long()
    return pixels[:, 0] + 256 * pixels[:, 1]


def test_novel_share_after_base_3000_and_novel_2000_is_two_fifths() -> None:
    shares = []
    for seed in range(60):
        memory, generator = Reservoir(100, image_size=1), draw(seed)
        for size, start, stop in ((1000, 0, 3000), (100, 3000, 5000)):
            for first in range(start, stop, size):
                numbers = torch.arange(first, first + size)
                memory.update(marked(numbers), (numbers >= 3000).long(), generator)
        shares.append(float(memory.columns.double().mean()))
        assert torch.equal((numbers_in(memory) >= 3000).long(), memory.columns)
    assert int(memory.seen) == 5000
    assert sum(shares) / len(shares) == pytest.approx(0.40, abs=0.03)


def test_every_position_of_the_stream_is_kept_equally_often() -> None:
    runs, kept = 800, torch.zeros(20)
    generator = draw(1)
    for _ in range(runs):
        memory = Reservoir(5, image_size=1)
        for numbers in torch.arange(20).split(4):
            memory.update(marked(numbers), numbers, generator)
        kept[memory.columns] += 1
    spread = math.sqrt(0.25 * 0.75 / runs)
    assert bool(((kept / runs - 0.25).abs() < 4.5 * spread).all())


@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 12), batches=st.lists(st.integers(1, 9), min_size=1, max_size=12), seed=st.integers(0, 99))
def test_reservoir_is_bounded_and_labels_match_images(size: int, batches: list[int], seed: int) -> None:
    memory, generator, offered = Reservoir(size, image_size=1), draw(seed), 0
    n_bytes = sum(buffer.numel() * buffer.element_size() for buffer in memory.buffers())
    for n in batches:
        numbers = torch.arange(offered, offered + n)
        memory.update(marked(numbers), numbers * 7 % 13, generator)
        offered += n
        assert len(memory) == min(size, offered)
        assert int(memory.seen) == offered
        assert torch.equal(numbers_in(memory) * 7 % 13, memory.columns[: len(memory)])
        assert len(set(numbers_in(memory).tolist())) == len(memory)
    assert sum(buffer.numel() * buffer.element_size() for buffer in memory.buffers()) == n_bytes


def test_draws_are_without_replacement_and_from_filled_slots() -> None:
    memory = Reservoir(50, image_size=1)
    numbers = torch.arange(7)
    memory.update(marked(numbers), numbers, draw())
    assert sorted(memory.random(100, draw()).tolist()) == list(range(7))
    assert len(set(memory.random(5, draw()).tolist())) == 5
    assert set(memory.random(100, draw(), avoid=torch.tensor([0, 3])).tolist()) == {1, 2, 4, 5, 6}


def test_balanced_draw_takes_as_many_of_each_class() -> None:
    memory = Reservoir(100, image_size=1)
    columns = torch.tensor([0] * 30 + [1] * 5 + [4] * 1)
    memory.update(marked(torch.arange(36)), columns, draw())
    first = memory.balanced(3, draw(1))
    assert torch.bincount(memory.columns[first]).tolist() == [3, 3, 0, 0, 1]
    second = memory.balanced(3, draw(2), avoid=first)
    assert torch.bincount(memory.columns[second]).tolist() == [3, 2]
    assert not set(first.tolist()) & set(second.tolist())


def test_a_memory_needs_a_slot() -> None:
    with pytest.raises(ValueError, match="memory_size must be 1 or more, not 0"):
        Reservoir(0, image_size=1)


def fed(size: int, labels: list[int], seed: int = 0) -> BalancedMemory:
    memory = BalancedMemory(size, image_size=1)
    memory.update(marked(torch.arange(len(labels))), torch.tensor(labels), draw(seed))
    return memory


def test_balance_of_small_streams() -> None:
    assert fed(4, [0] * 10 + [1] * 10).counts(2).tolist() == [2, 2]
    assert sorted(fed(4, [0] * 10 + [1] * 10 + [2] * 5).counts(3).tolist()) == [1, 1, 2]
    assert fed(6, [0] * 10).counts(1).tolist() == [6]


def test_shuffled_base_session_leaves_sixteen_of_each_of_sixty_classes() -> None:
    labels = torch.arange(60).repeat(40)[torch.randperm(2400, generator=draw())].tolist()
    memory = fed(1000, labels)
    assert memory.counts(60).tolist() == [16] * 60
    for block in range(10):
        labels = (60 + 4 * block + torch.arange(4).repeat(40))[torch.randperm(160, generator=draw(block))].tolist()
        memory.update(marked(torch.zeros(160, dtype=torch.int64)), torch.tensor(labels), draw(block))
    assert memory.counts(100).tolist() == [10] * 100


@settings(max_examples=40, deadline=None)
@given(size=st.integers(6, 20), labels=st.lists(st.integers(0, 5), min_size=1, max_size=80), seed=st.integers(0, 99))
def test_greedy_memory_is_bounded_never_shrinks_and_knows_its_labels(size: int, labels: list[int], seed: int) -> None:
    memory, generator, full = BalancedMemory(size, image_size=1), draw(seed), 0
    for first in range(0, len(labels), 5):
        numbers = torch.arange(first, min(first + 5, len(labels)))
        memory.update(marked(numbers), torch.tensor(labels)[numbers], generator)
        assert full <= len(memory) <= size
        full = len(memory)
    kept = numbers_in(memory)
    assert torch.equal(torch.tensor(labels)[kept], memory.columns[: len(memory)])
    assert len(set(kept.tolist())) == len(kept)
    assert set(memory.columns[: len(memory)].tolist()) == set(labels)  # no class is lost
    counts = memory.counts(6)
    offered = torch.bincount(torch.tensor(labels), minlength=6)
    share = size // len(set(labels))
    assert bool((counts >= torch.minimum(offered, torch.tensor(share)) - 1).all())


def zero_model() -> nn.Linear:
    model = nn.Linear(1, 2, bias=False)
    nn.init.zeros_(model.weight)
    return model


def test_interference_by_hand() -> None:
    model = zero_model()
    loss = F.cross_entropy(model(torch.tensor([[1.0]])), torch.tensor([0]))
    gradient = gradients(loss, dict(model.named_parameters()))
    assert gradient["weight"].flatten().tolist() == [-0.5, 0.5]
    ahead = moved(dict(model.named_parameters()), gradient, lr=1.0)
    assert ahead["weight"].flatten().tolist() == [0.5, -0.5]
    x, y = torch.tensor([[1.0], [-1.0], [1.0]]), torch.tensor([1, 0, 0])
    scores = interference(model, x, y, ahead)
    torch.testing.assert_close(scores, torch.tensor([0.62011, 0.62011, -0.37989]), atol=1e-5, rtol=0)
    assert highest(scores, 1).tolist() in ([0], [1])
    still = moved(dict(model.named_parameters()), gradient, lr=0.0)
    assert interference(model, x, y, still).tolist() == [0.0, 0.0, 0.0]
    assert model.weight.tolist() == [[0.0], [0.0]]
    assert model.weight.grad is None


def test_a_loss_that_is_not_finite_is_refused() -> None:
    model = zero_model()
    with pytest.raises(FloatingPointError, match="smaller lr"):
        gradients(model.weight.sum() * float("nan"), dict(model.named_parameters()))


def test_last_layer_gradient_is_the_norm_autograd_finds() -> None:
    z, y = torch.randn(6, 4, generator=draw()), torch.tensor([0, 1, 2, 0, 1, 2])
    weight = torch.randn(3, 4, generator=draw(1), requires_grad=True)
    norms = [
        torch.autograd.grad(F.cross_entropy(z[i : i + 1] @ weight.T, y[i : i + 1]), weight)[0].abs().sum()
        for i in range(6)
    ]
    torch.testing.assert_close(last_layer_gradient(z @ weight.T, z, y).detach(), torch.stack(norms), atol=1e-5, rtol=0)


def test_last_layer_gradient_of_even_predictions() -> None:
    z = torch.tensor([[1.0, -2.0]])
    assert float(last_layer_gradient(torch.zeros(1, 5), z, torch.tensor([3]))) == pytest.approx(1.6 * 3)


def values_of(match: list[int], k: int) -> list[float]:
    """Shapley values of candidates on a line, in order of distance from the one point."""
    line = torch.arange(float(len(match)))[:, None]
    return knn_shapley(line[:1], torch.tensor([1]), line, torch.tensor(match), k)[0].tolist()


def test_shapley_values_by_hand() -> None:
    assert values_of([1, 0, 1], k=1) == pytest.approx([0.83333, -0.16667, 0.33333], abs=1e-5)
    assert values_of([1, 0, 1], k=2) == pytest.approx([0.33333, -0.16667, 0.33333], abs=1e-5)
    assert values_of([1, 1, 0, 0, 1], k=3) == pytest.approx([0.28333, 0.28333, -0.05, -0.05, 0.2], abs=1e-5)
    assert values_of([1, 1, 1, 1], k=3) == pytest.approx([0.25] * 4)
    assert values_of([0, 0, 0, 0], k=3) == [0.0] * 4
    assert sum(values_of([1, 1], k=3)) == pytest.approx(2 / 3)  # the reference gives 1


@settings(max_examples=30, deadline=None)
@given(match=st.lists(st.integers(0, 1), min_size=1, max_size=12), k=st.integers(1, 6))
def test_shapley_values_share_out_the_vote(match: list[int], k: int) -> None:
    assert sum(values_of(match, k)) == pytest.approx(sum(match[:k]) / k, abs=1e-5)


def test_shapley_values_do_not_depend_on_where_the_features_lie() -> None:
    z, candidates = torch.randn(4, 3, generator=draw()).double(), torch.randn(9, 3, generator=draw(1)).double()
    y, labels = torch.tensor([0, 1, 0, 2]), torch.tensor([0, 1, 2] * 3)
    turn = torch.linalg.qr(torch.randn(3, 3, generator=draw(2)).double()).Q
    moved_values = knn_shapley(z @ turn + 5, y, candidates @ turn + 5, labels, 3)
    torch.testing.assert_close(knn_shapley(z, y, candidates, labels, 3), moved_values)


def test_neg_sv_is_the_reverse_of_the_summed_adversarial_value() -> None:
    adversarial = torch.randn(4, 7, generator=draw())
    scores = adversarial_shapley(adversarial, adversarial, "neg_sv")
    assert highest(scores, 7).tolist() == highest(adversarial.sum(0), 7).flip(0).tolist()


def test_exchange_keeps_the_size() -> None:
    lost, kept = exchange(torch.tensor([0.1, 0.9, -0.5, 0.5, 0.3, -1.0]), n_kept=3)
    assert lost.tolist() == [0, 2]
    assert kept.tolist() == [0, 1]


def test_equal_scores_keep_their_order() -> None:
    assert highest(torch.tensor([1.0, 2.0, 1.0, 2.0]), 3).tolist() == [1, 3, 0]


def numbered(ids: list[int]) -> Tensor:
    """Images of one pixel that say which they are."""
    return torch.tensor(ids, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 1, 1)


@cases("reservoir_")
def test_reservoir_writes_what_was_drawn(case: dict[str, Any]) -> None:
    """The slots drawn are given: the reference freezes their bound during a batch, ours is the unbiased one."""
    store = Reservoir(case["inputs"]["capacity"], image_size=1)
    for batch, step in zip(case["inputs"]["batches"], case["outputs"]["steps"], strict=True):
        ids, drawn = batch["item_ids"], batch["drawn_slots_for_overflow_items"]
        free = list(range(len(store), len(store) + len(ids) - len(drawn)))
        store.write(numbered(ids), torch.tensor(batch["labels"]), torch.tensor(free + drawn))
        held = [slot for slot in step["slot_ids_after"] if slot >= 0]
        assert store.images[: len(store), 0, 0, 0].tolist() == held
        assert store.columns[: len(store)].tolist() == step["slot_labels_after"][: len(store)]


@cases("gdumb_blocks", "gdumb_random_stream", "gdumb_sessions")
def test_greedy_sampler_keeps_the_same_images(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    labels, positions = case["inputs"]["labels"], case["inputs"]["evict_positions"]
    order = list(dict.fromkeys(labels))
    store = BalancedMemory(case["inputs"]["capacity"], image_size=1)
    draws: list[int] = []
    monkeypatch.setattr(memory, "below", lambda n, generator: draws.pop(0))
    for i, (label, position) in enumerate(zip(labels, positions, strict=True)):
        draws[:] = [] if position is None else [0, position]  # ties fall to the class that came first
        store.update(numbered([i]), torch.tensor([order.index(label)]), torch.Generator())
        assert not draws
        counts = {str(order[c]): n for c, n in enumerate(store.counts(0).tolist()) if n}
        assert counts == {name: n for name, n in case["outputs"]["counts_after_each"][i].items() if n}
    kept = sorted(store.images[: len(store), 0, 0, 0].tolist())
    assert kept == sorted(item for ids in case["outputs"]["final_ids"].values() for item in ids)


@cases("gdumb_more_classes_than_slots")
def test_more_classes_than_slots_is_refused(case: dict[str, Any]) -> None:
    """The reference's memory freezes with a quota of 0."""
    labels = case["inputs"]["labels"]
    store = BalancedMemory(case["inputs"]["capacity"], image_size=1)
    with pytest.raises(ValueError, match="memory_size 3 cannot hold 4 classes"):
        store.update(numbered(list(range(len(labels)))), torch.tensor(labels), torch.Generator())


@cases("gdumb_original_")
def test_streaming_sampler_keeps_at_least_the_offline_quota(case: dict[str, Any]) -> None:
    """The original repository selects offline and leaves slots unused; one pass must not keep less of a class."""
    targets = case["inputs"]["targets"]
    store = BalancedMemory(case["inputs"]["capacity"], image_size=1)
    store.update(numbered(list(range(len(targets)))), torch.tensor(targets), torch.Generator().manual_seed(0))
    counts = store.counts(0).tolist()
    assert all(counts[int(label)] >= n for label, n in case["outputs"]["kept_counts"].items())
    assert len(store) <= case["inputs"]["capacity"]
    kept = store.images[: len(store), 0, 0, 0].tolist()
    assert [targets[pixel] for pixel in kept] == store.columns[: len(store)].tolist()
