"""Class statistics from a stream are exact in any order, batch size and split."""

import numpy as np
import pytest
import torch

from nocl.stats.class_stats import ClassStats

SPREADS = ("none", "diagonal", "full", "shared")


def _samples() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    y = torch.randint(4, (90,), generator=draw)
    return 100 + torch.randn(90, 6, generator=draw, dtype=torch.float64), y


def _fed(spread: str, size: int, z: torch.Tensor, y: torch.Tensor) -> ClassStats:
    stats = ClassStats(6, spread)  # type: ignore[arg-type]
    stats.grow(4)
    for start in range(0, len(y), size):
        stats.update(z[start : start + size], y[start : start + size])
    return stats


@pytest.mark.parametrize("size", [1, 7, 90])
def test_statistics_equal_numpy_to_rounding(size: int) -> None:
    z, y = _samples()
    full, diagonal, shared = (_fed(spread, size, z, y) for spread in ("full", "diagonal", "shared"))
    for label in range(4):
        rows = z[y == label].numpy()
        np.testing.assert_allclose(full.mean[label], rows.mean(0), rtol=1e-13)
        np.testing.assert_allclose(full.covariance(unbiased=True)[label], np.cov(rows.T), atol=1e-11)
        np.testing.assert_allclose(diagonal.variance()[label], rows.var(0), atol=1e-11)
    pooled = sum(np.cov(z[y == c].numpy().T) * (int((y == c).sum()) - 1) for c in range(4)) / 90
    np.testing.assert_allclose(shared.shared_covariance(), pooled, atol=1e-11)
    np.testing.assert_allclose(full.shared_covariance(), pooled, atol=1e-11)
    assert full.count.tolist() == torch.bincount(y).tolist()


@pytest.mark.parametrize("spread", SPREADS)
def test_merged_shards_equal_the_whole(spread: str) -> None:
    z, y = _samples()
    whole, shard, rest = (
        _fed(spread, 90, z, y),
        _fed(spread, 7, z[:33], y[:33]),
        _fed(spread, 5, z[33:], y[33:]),
    )
    shard.merge(rest)
    for name, tensor in whole.state_dict().items():
        torch.testing.assert_close(shard.state_dict()[name], tensor, atol=1e-10, rtol=1e-13)


def test_spread_is_left_alone_on_request() -> None:
    z, y = _samples()
    stats = _fed("full", 90, z, y)
    before = stats.scatter.clone()
    stats.update(z, y, spread=False)
    assert torch.equal(stats.scatter, before)
    assert stats.count.tolist() == (2 * torch.bincount(y)).tolist()


def test_bad_features_are_refused() -> None:
    stats = ClassStats(2)
    stats.grow(1)
    with pytest.raises(ValueError, match=r"features must be \[B, 2\], not \[1, 3\]"):
        stats.update(torch.zeros(1, 3), torch.zeros(1, dtype=torch.int64))
    with pytest.raises(ValueError, match="NaN or infinity"):
        stats.update(torch.tensor([[0.0, float("nan")]]), torch.zeros(1, dtype=torch.int64))


def test_wide_features_give_the_same_scatter_to_rounding() -> None:
    z = torch.randn(40, 1280, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    stats = ClassStats(1280, "shared")
    stats.grow(1)
    stats.update(z, torch.zeros(40, dtype=torch.int64))
    centred = z - z.mean(0)
    torch.testing.assert_close(stats.scatter, centred.T @ centred, rtol=1e-12, atol=1e-12)


def test_spread_false_leaves_the_scatter_when_merging() -> None:
    z, y = _samples()
    whole, part = _fed("shared", 90, z, y), _fed("shared", 90, z[:30], y[:30])
    before = whole.scatter.clone()
    whole.merge(part, spread=False)
    assert torch.equal(whole.scatter, before)
    assert int(whole.count.sum()) == 120
    whole.subtract(part, spread=False)
    torch.testing.assert_close(whole.mean, _fed("shared", 90, z, y).mean)
