"""Windows with random entries beside them, and patterns of blocks, against the certificate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from tests.references import leak_and_distortion, logits_of

import headfit as hf
from headfit._filter.stencil import Parts
from headfit._target.append_dims import without_columns
from headfit._target.target import Blocks
from headfit.errors import InputError


def bigbird(n: int, window: int, n_global: int, *, causal: bool = False) -> hf.Target:
    A: Any = hf.patterns.bigbird(n, window, n_global, 3, rng=0)
    if causal:
        A = sp.csr_array(sp.tril(A))
    return hf.Target(A, mask="causal" if causal else None, normalize=True)


def in_blocks(small: Any, size: int, *, causal: bool = False, n: int | None = None) -> hf.Target:
    """Return the pattern whose tokens are blocks of another."""
    whole = sp.csr_array(sp.kron(sp.csr_array(small) != 0, np.ones((size, size))))[:n, :n]
    whole = sp.csr_array(sp.tril(whole)) if causal else whole
    return hf.Target(whole, mask="causal" if causal else None, normalize=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("causal", [True, False])
def test_random_entries_beside_a_window(causal: bool, dtype: str) -> None:
    A = bigbird(300, 20 if causal else 10, 2, causal=causal)
    exempt = [0, 1]
    fit = hf.fit(
        A,
        56,
        method=hf.methods.Mixed(),
        dtype=dtype,
        exempt_columns=exempt,
        num_threads=1,
        time_limit=200,
    )
    assert fit.certificate.holds
    assert fit.method == "mixed"
    leak, distortion = leak_and_distortion(A.matrix.toarray(), logits_of(fit, A.mask))
    assert leak.max() <= 0.05 * (1 + 1e-5)
    assert distortion.max() <= 0.1 * (1 + 1e-5)


def test_auto_starts_from_a_filter() -> None:
    A = bigbird(300, 16, 2)
    fits = [
        hf.fit(A, 48, exempt_columns="auto", num_threads=threads, time_limit=200)
        for threads in (1, 2)
    ]
    assert all(fit.method == "mixed" and fit.certificate.holds for fit in fits)
    assert np.array_equal(fits[0].Q, fits[1].Q)
    assert np.array_equal(fits[0].K, fits[1].K)


@pytest.mark.full
def test_auto_starts_from_a_narrow_filter_in_a_head_with_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headfit._fit.registry.LONG", 200)
    A = bigbird(200, 3, 2)
    fit = hf.fit(A, 64, exempt_columns="auto", num_threads=1, time_limit=200)
    assert (fit.method, fit.certificate.holds) == ("mixed", True)
    assert fit.settings["dim_used"] < 64  # more columns would take time and help nothing
    window = hf.fit(hf.patterns.causal_band(200, 5), 64, mask="causal", num_threads=1)
    assert (window.method, window.certificate.holds) == ("toeplitz", True)
    # Without room, without a stencil, or in a search, it is the learned method.
    for pattern, dim in ((A, 20), (hf.patterns.random_regular(200, 6, rng=0), 64)):
        assert hf.fit(pattern, dim, num_threads=1, time_limit=0.5).method == "learned"
    assert hf.fit(hf.patterns.band(200, 1), num_threads=1, time_limit=5).method == "learned"


def test_weights_that_differ() -> None:
    A = hf.patterns.bigbird(200, 5, 0, 2, gamma=2.0, rng=1)
    fit = hf.fit(A, 24, method="mixed", num_threads=1, time_limit=200)
    assert fit.certificate.holds


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="filter_dim must be even; got 7"):
        hf.methods.Mixed(filter_dim=7)
    with pytest.raises(InputError, match="nearly all rows"):
        hf.fit(hf.patterns.permutation(60, rng=0), 8, method=hf.methods.Mixed())
    with pytest.raises(InputError, match="dim must be at least 30, with filter_dim = 30; got 20"):
        hf.fit(bigbird(60, 3, 0), 20, method=hf.methods.Mixed(filter_dim=30))


def test_a_size_without_a_filter_says_so() -> None:
    A = bigbird(200, 16, 0)
    fit = hf.fit(A, 12, method=hf.methods.Mixed(filter_dim=2), num_threads=1, time_limit=60)
    assert not fit.certificate.holds
    assert fit.advice is not None
    assert "No filter of size" in fit.advice


def test_a_search_tries_sizes_below_that_of_the_filter() -> None:
    A = bigbird(60, 2, 0)
    fit = hf.fit(A, method=hf.methods.Mixed(filter_dim=12), num_threads=1, time_limit=60)
    assert fit.certificate.holds
    assert fit.search is not None
    assert 12 <= fit.dim <= 60


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_time_limit_is_kept(dtype: str) -> None:
    A = bigbird(400, 16, 0)
    fit = hf.fit(A, 48, method="mixed", dtype=dtype, num_threads=1, time_limit=0.01)
    assert not fit.certificate.holds
    assert fit.stopped == "time limit"


def test_bounded_logits() -> None:
    A = bigbird(120, 8, 0)
    fit = hf.fit(A, 40, method="mixed", max_logit=30.0, num_threads=1, time_limit=200)
    assert fit.certificate.holds
    assert fit.certificate.max_logit <= 30


@pytest.mark.parametrize("causal", [True, False])
def test_the_parts_of_a_pattern(causal: bool) -> None:
    A = bigbird(120, 6, 2, causal=causal)
    columns = np.array([0, 1])
    parts = Parts.of(without_columns(A, columns), columns)
    assert parts.stencil.offsets.tolist() == list(range(0 if causal else -6, 7))
    assert np.ptp(parts.stencil.log_weights) < 1e-9
    assert 0 < parts.per_row <= 3
    apart = set(parts.stencil.apart.tolist())
    assert apart >= set(range(2, 7)) if causal else apart == {0, 1}
    found = parts.target.matrix.toarray()
    for i in set(range(120)) - apart:
        row = A.matrix[[i]].toarray()[0] > 0
        row[:2] = np.isin(i - np.arange(2), parts.stencil.offsets)  # a filter does as it likes
        assert np.array_equal(found[i] > 0, row)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n", [96, 90])
def test_blocks_are_found(n: int, causal: bool) -> None:
    small = hf.patterns.bigbird(12, 1, 1, 2, rng=0)
    A = in_blocks(small, 8, causal=causal, n=n)
    found = Blocks.of(A)
    assert found is not None
    assert found.size == 8
    assert found.target.n == 12
    wanted = small.toarray() > 0
    assert np.array_equal(found.target.matrix.toarray() > 0, np.tril(wanted) if causal else wanted)


def test_what_is_not_made_of_blocks() -> None:
    assert Blocks.of(hf.Target(hf.patterns.band(40, 3))) is None
    one_more = in_blocks(np.eye(5), 8).matrix.tolil()
    one_more[3, 30] = 0.5
    assert Blocks.of(hf.Target(sp.csr_array(one_more), normalize=True)) is None
    weights = in_blocks(np.eye(5), 8).matrix.copy()
    weights.data[::3] *= 2
    assert Blocks.of(hf.Target(weights, normalize=True)) is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("causal", [True, False])
def test_bigbird_by_blocks(causal: bool, dtype: str) -> None:
    A = in_blocks(hf.patterns.bigbird(20, 1, 1, 3, rng=0), 16, causal=causal)
    fit = hf.fit(A, 24, dtype=dtype, exempt_columns="auto", num_threads=1, time_limit=200)
    assert fit.certificate.holds
    assert fit.settings["block"] == 16
    leak, distortion = leak_and_distortion(A.matrix.toarray(), logits_of(fit, A.mask))
    assert leak.max() <= 0.05 * (1 + 1e-5)
    assert distortion.max() <= 0.1 * (1 + 1e-5)
