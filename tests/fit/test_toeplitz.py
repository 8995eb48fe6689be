"""Heads that are filters, judged by the certificate."""

import math

import numpy as np
import pytest
import scipy.sparse as sp

import headfit as hf
from headfit._fit.registry import Auto
from headfit.errors import InputError


def weighted(A: sp.csr_array, weight: object) -> sp.csr_array:
    """Return the pattern with weights that are a function of i - j."""
    A = sp.coo_array(A)
    data = weight(A.row - A.col)  # type: ignore[operator]
    return hf.Target(sp.csr_array((data, (A.row, A.col)), A.shape), normalize=True).matrix


CASES = {
    "causal window": (lambda n: hf.patterns.causal_band(n, 7), "causal", 20),
    "causal window without a mask": (lambda n: hf.patterns.causal_band(n, 7), None, 20),
    "window": (lambda n: hf.patterns.band(n, 5), None, 24),
    "dilated window": (lambda n: hf.patterns.dilated(n, 4, 3), None, 28),
    "circulant": (lambda n: hf.patterns.circulant(n, range(-4, 5)), None, 24),
    "stride": (lambda n: hf.patterns.strided(n, 8, neighbors=0), "causal", 16),
    "blocks": (lambda n: hf.patterns.block(n, 16), None, 12),
    "Gaussian weights": (
        lambda n: weighted(hf.patterns.band(n, 6), lambda x: np.exp(-(x**2) / 18)),
        None,
        24,
    ),
    "a linear bias": (
        lambda n: weighted(hf.patterns.causal_band(n, 9), lambda x: np.exp(-0.3 * x)),
        "causal",
        24,
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", CASES)
def test_heads_certify(case: str, dtype: str) -> None:
    make, mask, dim = CASES[case]
    fit = hf.fit(make(300), dim, method="toeplitz", mask=mask, dtype=dtype)
    assert fit.certificate.holds, fit.advice
    assert fit.method == "toeplitz"
    assert fit.Q.dtype == dtype
    assert fit.dim == dim
    assert fit.stopped == "certified"
    norms = [np.linalg.norm(x.astype(float), axis=1).max() for x in (fit.Q, fit.K)]
    assert fit.certificate.max_logit <= fit.attention.scale * norms[0] * norms[1] * (1 + 1e-6)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 20, 5000])
@pytest.mark.parametrize("mask", [None, "causal"])
def test_every_length(n: int, mask: str | None) -> None:
    A = hf.patterns.causal_band(n, 3) if mask else hf.patterns.band(n, 2)
    fit = hf.fit(A, 18, method="toeplitz", mask=mask)
    assert fit.certificate.holds, fit.advice


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_formats(dtype: str) -> None:
    A = hf.patterns.causal_band(600, 39)
    fit = hf.fit(A, 64, mask="causal", dtype=dtype)
    assert fit.method == "toeplitz"
    assert fit.certificate.holds, fit.advice


@pytest.mark.parametrize("dim", [10, 11, 13])
def test_narrow_queries_are_of_the_scale_of_the_whole_head(dim: int) -> None:
    A = hf.patterns.causal_band(256, 7)
    frequencies = hf.fit(A, 10, method="toeplitz", mask="causal").settings["filter"]["frequencies"]
    for method in (hf.methods.Toeplitz(frequencies=frequencies), "toeplitz"):
        fit = hf.fit(A, dim, method=method, mask="causal", dtype="bfloat16", num_threads=1)
        assert fit.certificate.holds, fit.advice
        assert fit.settings.get("dim_used", dim) == 10 or method == "toeplitz"
        assert not fit.Q[:, len(fit.settings["filter"]["frequencies"]) * 2 :].any()


def test_bounds_on_logits_and_norms_are_kept() -> None:
    A = hf.patterns.causal_band(300, 7)
    free = hf.fit(A, 20, method="toeplitz", mask="causal")
    limit = 0.95 * free.certificate.max_logit
    bounded = hf.fit(A, 20, method="toeplitz", mask="causal", max_logit=limit)
    assert bounded.certificate.holds
    assert bounded.certificate.max_logit <= limit
    norm = sum(np.hypot(*(free.settings["filter"][x] for x in ("cosines", "sines"))))
    small = hf.fit(A, 20, method=hf.methods.Toeplitz(max_norm=0.5 * norm), mask="causal")
    assert not small.certificate.holds
    assert "No filter of size 20 was found" in small.advice


def norm_of(fit: hf.results.Fit) -> float:
    return float(sum(np.hypot(*(fit.settings["filter"][x] for x in ("cosines", "sines")))))


@pytest.mark.parametrize("share", [1.0001, 1.05, 1.5])
def test_a_bound_above_the_norm_of_a_free_search_is_met(share: float) -> None:
    A = hf.patterns.causal_band(128, 3)
    free = norm_of(hf.fit(A, 10, method="toeplitz", mask="causal"))
    method = hf.methods.Toeplitz(max_norm=share * free)
    bounded = hf.fit(A, 10, method=method, mask="causal")
    assert bounded.certificate.holds
    assert norm_of(bounded) <= share * free


def test_given_frequencies_keep_to_the_time_limit() -> None:
    A = hf.patterns.causal_band(300, 7)
    frequencies = hf.fit(A, 20, method="toeplitz", mask="causal").settings["filter"]["frequencies"]
    method = hf.methods.Toeplitz(frequencies=frequencies)
    fit = hf.fit(A, method=method, mask="causal", time_limit=1e-6)
    assert fit.stopped == "time limit"
    assert not fit.certificate.holds


def test_given_frequencies() -> None:
    A = hf.patterns.causal_band(300, 7)
    first = hf.fit(A, 20, method="toeplitz", mask="causal")
    frequencies = first.settings["filter"]["frequencies"]
    method = hf.methods.Toeplitz(frequencies=frequencies)
    again = hf.fit(A, method=method, mask="causal")
    assert again.dim == 2 * len(frequencies)
    assert again.certificate.holds
    with pytest.raises(InputError, match="dim must be at least"):
        hf.fit(A, again.dim - 1, method=method, mask="causal")
    poor = hf.fit(A, method=hf.methods.Toeplitz(frequencies=[math.pi]), mask="causal")
    assert not poor.certificate.holds
    assert "no solution for these frequencies" in poor.advice


def test_a_search_finds_a_small_size() -> None:
    A = hf.patterns.causal_band(400, 15)
    fit = hf.fit(A, method="toeplitz", mask="causal")
    assert fit.certificate.holds
    assert fit.search.dim == fit.dim <= 20
    assert fit.dim % 2 == 0


@pytest.mark.full
def test_auto_takes_a_filter_for_wide_patterns_only() -> None:
    narrow, wide = hf.patterns.causal_band(200, 3), hf.patterns.causal_band(200, 40)
    assert hf.fit(narrow, 8, mask="causal").method == "learned"
    by_auto = hf.fit(wide, 40, mask="causal")
    assert by_auto.method == by_auto.settings["method"] == "toeplitz"
    assert by_auto.certificate.holds
    no_stencil = hf.patterns.random_regular(200, 40, rng=0)
    assert hf.fit(no_stencil, 64, time_limit=1.0).method == "learned"
    # A search: filters alone where they are smaller than learned heads are likely to be.
    searched = hf.fit(wide, mask="causal")
    assert searched.method == "toeplitz"
    assert searched.dim < 40
    assert searched.certificate.holds
    # A start or an option of the learned method asks for it.
    start = (np.ones((200, 4)), np.ones((200, 4)))
    learned = hf.fit(wide, 40, method=hf.methods.Learned(init=start), mask="causal", time_limit=0.5)
    assert learned.method == "learned"


def test_auto_ends_where_no_filter_is_found_and_the_head_is_far_too_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headfit._fit.registry.LONG", 200)
    fit = hf.fit(hf.patterns.band(200, 40), 16, num_threads=1)
    assert (fit.method, fit.stopped, fit.obstacle) == ("toeplitz", "stalled", "method")
    assert "No filter of size 16 was found" in fit.advice
    near = hf.fit(hf.patterns.band(200, 40), 40, time_limit=0.5, max_logit=2.0, num_threads=1)
    assert near.method == "learned"
    # An option of the learned method asks for it.
    tried = hf.fit(hf.patterns.band(200, 40), 16, method=Auto(effort=1), num_threads=1)
    assert (tried.method, tried.stopped) == ("learned", "steps")


@pytest.mark.parametrize(("dim", "holds"), [(48, True), (8, False)])
def test_a_search_stays_within_the_module(dim: int, holds: bool) -> None:
    module = hf.SelfAttention.canonical(dim=dim)
    A = hf.patterns.causal_band(200, 40)
    fit = hf.fit(A, module=module, mask="causal", time_limit=5.0)
    assert fit.certificate.holds == holds
    assert fit.method == ("toeplitz" if holds else "learned")
    assert all(trial.dim <= dim for trial in fit.search.trials)


@pytest.mark.parametrize("causal", [True, False])
def test_global_tokens(causal: bool) -> None:
    A = hf.patterns.window_global(400, 36, 2, causal=causal)
    fit = hf.fit(A, 64, exempt_columns="auto", mask="causal" if causal else None)
    assert fit.method == "toeplitz"
    assert fit.certificate.holds, fit.advice


def test_what_is_not_translation_invariant_is_refused() -> None:
    A = hf.patterns.random_regular(50, 3, rng=0)
    with pytest.raises(InputError, match="A must be translation-invariant"):
        hf.fit(A, 8, method="toeplitz")


def test_saved_heads_load(tmp_path: object) -> None:
    fit = hf.fit(hf.patterns.causal_band(100, 7), 24, method="toeplitz", mask="causal")
    for suffix in (".npz", ".safetensors"):
        path = f"{tmp_path}/head{suffix}"
        fit.save(path)
        loaded = hf.load(path)
        assert loaded.method == "toeplitz"
        assert loaded.settings == fit.settings
        np.testing.assert_array_equal(loaded.Q, fit.Q)


@pytest.mark.full
def test_threads_do_not_change_the_result() -> None:
    A = hf.patterns.causal_band(500, 40)
    one, two = (hf.fit(A, 48, mask="causal", num_threads=t, dtype="bfloat16") for t in (1, 2))
    np.testing.assert_array_equal(one.Q, two.Q)
    np.testing.assert_array_equal(one.K, two.K)
