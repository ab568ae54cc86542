"""Cholesky solves and the cache."""

import copy
import logging

import pytest
import torch

from nocl.stats.linalg import (
    Cached,
    NotPositiveDefiniteError,
    cholesky,
    inverse_root,
    solve,
)


def _definite(*shape: int, seed: int = 0) -> torch.Tensor:
    a = torch.randn(*shape, shape[-1] + 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return a @ a.mT


def test_solve_equals_torch() -> None:
    matrix, right = _definite(6), torch.arange(12.0).view(6, 2)
    torch.testing.assert_close(
        solve(matrix, right, "m"), torch.linalg.solve(matrix, right.double()), rtol=1e-10, atol=1e-10
    )


def test_inverse_root_gives_the_mahalanobis_length() -> None:
    matrix, v = _definite(3, 4), torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    length = (inverse_root(matrix, "m") @ v).square().sum(-1)
    torch.testing.assert_close(length, torch.einsum("i,kij,j->k", v, torch.linalg.inv(matrix), v))
    by_hand = inverse_root(torch.tensor([[1.0, 0.5], [0.5, 1.0]]), "m") @ torch.tensor([1.0, -1.0]).double()
    assert by_hand.square().sum().item() == pytest.approx(4)


def test_indefinite_matrix_in_a_batch_is_mended_alone(caplog: pytest.LogCaptureFixture) -> None:
    good, bad = _definite(3), torch.diag(torch.tensor([4.0, 1.0, -1.0], dtype=torch.float64))
    with caplog.at_level(logging.WARNING):
        roots = inverse_root(torch.stack([good, bad]), "covariance")
    assert "covariance: 1 of 2 matrices are not positive definite" in caplog.text
    torch.testing.assert_close(roots[0], inverse_root(good, "m"))
    lengths = (roots[1] @ torch.eye(3, dtype=torch.float64)).square().sum(0)
    torch.testing.assert_close(lengths, torch.tensor([0.25, 1.0, 1 / (4e-10)], dtype=torch.float64))


def test_what_has_no_factor_is_refused_by_name() -> None:
    with pytest.raises(NotPositiveDefiniteError, match="scatter is not positive definite"):
        cholesky(torch.tensor([[1.0, 2.0], [2.0, 1.0]]), "scatter")
    with pytest.raises(NotPositiveDefiniteError, match="scatter holds NaN"):
        cholesky(torch.tensor([[float("nan")]]), "scatter")


def test_cache_notices_change_replacement_and_copy() -> None:
    calls = 0

    def compute() -> float:
        nonlocal calls
        calls += 1
        return float(state.sum())

    state, cache = torch.ones(3), Cached[float]()
    assert [cache.get((state,), compute) for _ in range(2)] == [3, 3]
    assert calls == 1
    state += 1
    assert cache.get((state,), compute) == 6
    with torch.inference_mode():
        state[0] = 0
    assert cache.get((state,), compute) == 4
    state = state.clone()
    assert cache.get((state,), compute) == 4
    assert calls == 4
    copied, state = copy.deepcopy(cache), copy.deepcopy(state)
    copied.get((state,), compute)
    assert calls == 5
