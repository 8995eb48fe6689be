"""Windows with global tokens and strides, blocks, and random entries beside a window."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from tests.references import leak_and_distortion, logits_of

import headfit as hf
from headfit._filter.stencil import Stencil, whole_target
from headfit._target.append_dims import without_columns


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("n_global", [1, 4])
@pytest.mark.parametrize("causal", [True, False])
def test_windows_with_global_tokens(causal: bool, n_global: int, dtype: str) -> None:
    mask = "causal" if causal else None
    A = hf.patterns.window_global(400, 36 if causal else 20, n_global, causal=causal)
    fit = hf.fit(A, 64, exempt_columns="auto", mask=mask, dtype=dtype, num_threads=1)
    assert fit.method == "toeplitz"
    assert hf.certify(A, fit.Q, fit.K, scale=fit.scale, mask=mask, num_threads=1).holds
    leak, distortion = leak_and_distortion(A.toarray(), logits_of(fit, mask))
    assert leak.max() <= 0.05 * (1 + 1e-5)
    assert 1 + distortion.max() <= 1.1 * (1 + 1e-5)


def test_a_window_on_both_sides_in_bfloat16_at_tolerances_in_reach() -> None:
    """Rounding moves logits against each other on and off the support: both keep a reserve."""
    A = hf.patterns.window_global(512, 64, 2, causal=False)
    fit = hf.fit(
        A, 64, exempt_columns="auto", dtype="bfloat16", leak=0.3, distortion=0.6, num_threads=1
    )
    assert (fit.method, fit.certificate.holds) == ("toeplitz", True)


def test_a_filter_that_is_asked_for_takes_global_tokens() -> None:
    A = hf.patterns.window_global(200, 20, 2, causal=False)
    fit = hf.fit(A, 64, method="toeplitz", exempt_columns="auto", num_threads=1)
    assert fit.certificate.holds


def test_a_window_with_a_stride_and_global_tokens() -> None:
    A = hf.patterns.window_global(1024, 32, 2, stride=64)
    fit = hf.fit(A, 64, exempt_columns="auto", mask="causal", num_threads=1, time_limit=60)
    assert fit.method == "toeplitz"
    assert hf.certify(A, fit.Q, fit.K, scale=fit.scale, mask="causal", num_threads=1).holds


def test_advice_names_global_columns() -> None:
    A = hf.patterns.window_global(300, 6, 2)
    fit = hf.fit(A, 6, mask="causal", num_threads=1, time_limit=0.05)
    assert not fit.certificate.holds
    assert 'exempt_columns="auto"' in fit.advice


@pytest.mark.parametrize("causal", [True, False])
def test_the_whole_pattern_of_a_stencil(causal: bool) -> None:
    mask = "causal" if causal else None
    window = hf.patterns.window_global(60, 5, 0, causal=causal)
    whole = hf.patterns.window_global(60, 5, 2, causal=causal)
    columns = np.array([0, 1])
    target = without_columns(hf.Target(whole, mask=mask), columns)
    stencil = Stencil.of(target, columns)
    found = whole_target(target, stencil)
    parts = (found.weights, found.columns, found.offsets)
    expected = sp.csr_array(window).toarray()
    expected[stencil.apart] = 0.0
    np.testing.assert_allclose(sp.csr_array(parts, shape=(60, 60)).toarray(), expected, rtol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
def test_the_whole_pattern_of_blocks(causal: bool) -> None:
    A = hf.patterns.block(50, 8)
    if causal:
        A = sp.csr_array(sp.tril(A))
    target = hf.Target(A, mask="causal" if causal else None, normalize=True)
    found = whole_target(target, Stencil.of(target))
    parts = (found.weights, found.columns, found.offsets)
    expected = target.matrix.toarray()
    np.testing.assert_allclose(sp.csr_array(parts, shape=(50, 50)).toarray(), expected, rtol=1e-12)


def test_random_entries_beside_a_window() -> None:
    A = hf.patterns.bigbird(256, 8, 2, 3, rng=0)
    near = hf.fit(hf.patterns.band(256, 8), 48, method="toeplitz", num_threads=1)
    keys = np.hstack([near.K, hf.methods.KeyTable.random(256, 48, rng=0).keys])
    method = hf.methods.MaxMargin(keys=keys)
    fit = hf.fit(A, method=method, exempt_columns="auto", num_threads=1)
    assert fit.dim == 98
    assert hf.certify(A, fit.Q, fit.K, scale=fit.scale, num_threads=1).holds
