"""What rotary positions express without content, against explicit sums and the certificate."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import headfit as hf
from headfit._filter.demand import Demand, Limits
from headfit._filter.linear_program import solve
from headfit._filter.stencil import Stencil
from headfit.errors import InputError

LOOSE = hf.Tolerances(leak=0.3, distortion=0.5)
UNIFORM = hf.patterns.causal_band(9, 1).toarray()
UNIFORM[8] = 1 / 9  # row 1 is uniform too, since the window has both of its keys
AHEAD = hf.patterns.band(9, 2).toarray()
AHEAD[4] = np.where((np.arange(9) >= 2) & (np.arange(9) <= 7), 1 / 6, 0)
TIGHT = hf.Tolerances()


def window(n, width, causal):
    return hf.patterns.causal_band(n, width - 1) if causal else hf.patterns.band(n, width - 1)


def explicit_logits(found, n):
    """Return the logits of equal queries and keys, rotated pair by pair as complex numbers."""
    base, dim = found.base, found.dim
    logits = np.zeros((n, n))
    for pair in range(dim // 2):
        angle = base ** (-2 * pair / dim)
        q, k = (complex(*x[2 * pair : 2 * pair + 2]) for x in (found.q, found.k))
        for i in range(n):
            for j in range(n):
                turned_q = q * np.exp(1j * angle * i)
                turned_k = k * np.exp(1j * angle * j)
                logits[i, j] += (turned_q * turned_k.conjugate()).real
    return logits / math.sqrt(dim)


def meets(logits, wanted, tolerances, causal):
    """Say, row by row, whether logits meet the tolerances for equal weights."""
    for i, row in enumerate(logits):
        keys = range(i + 1) if causal else range(len(row))
        inside = [row[j] for j in keys if wanted(i - j)]
        outside = [row[j] for j in keys if not wanted(i - j)]
        if max(inside) - min(inside) > math.log1p(tolerances.distortion):
            return False
        if outside and max(outside) - min(inside) > math.log(tolerances.leak):
            return False
    return True


@pytest.mark.parametrize("causal", [True, False])
def test_a_small_filter_is_what_explicit_sums_say(causal):
    found = hf.rope.filter(3, n=24, dim=16, base=100.0, causal=causal, tolerances=LOOSE)
    logits = explicit_logits(found, 24)
    assert meets(logits, lambda x: abs(x) < 3, LOOSE, causal)
    attention = found.attention()
    allowed = np.tril(np.ones((24, 24), bool)) if causal else np.ones((24, 24), bool)
    got = attention.logits(num_threads=1)
    np.testing.assert_allclose(got[allowed], logits[allowed], atol=1e-10)
    assert found.max_logit == pytest.approx(np.abs(logits[allowed]).max())
    size = np.linalg.norm(found.q) * np.linalg.norm(found.k) / math.sqrt(found.dim)
    assert found.norm == pytest.approx(size)


CASES = [
    (64, 4, 32, 1e4, True, TIGHT),
    (300, 6, 64, 5e5, True, LOOSE),
    (300, 3, 64, 1e4, False, TIGHT),
    (513, 16, 128, 1e6, True, TIGHT),
    (700, 24, 128, 1e4, False, LOOSE),
    (2048, 16, 64, 1e4, True, TIGHT),
    (2048, 64, 128, 1e4, True, LOOSE),
]


@pytest.mark.parametrize(("n", "width", "dim", "base", "causal", "tolerances"), CASES)
def test_filters_are_certified_as_heads_of_that_rope(n, width, dim, base, causal, tolerances):
    found = hf.rope.filter(width, n=n, dim=dim, base=base, causal=causal, tolerances=tolerances)
    assert found.status == "found"
    assert found.width == width
    A = window(n, width, causal)
    head = found.attention()
    assert head.position == ("rope", base)
    assert (np.ptp(head.Q, axis=0) == 0).all()
    assert (np.ptp(head.K, axis=0) == 0).all()
    proved = hf.certify(A, head.rotated(), tolerances=tolerances, num_threads=1)
    assert proved.holds
    assert proved.max_logit == pytest.approx(found.max_logit, rel=1e-6)
    assert proved.q_norm * proved.k_norm / math.sqrt(dim) == pytest.approx(found.norm)
    # The polygon for amplitudes costs up to 2%, the margin for rounding less.
    assert found.least_norm <= found.norm <= 1.03 * found.least_norm
    if n <= 700:
        narrow = found.attention(dtype="float32").rotated()
        assert hf.certify(A, narrow, tolerances=tolerances, num_threads=1).holds


def test_no_filter_is_shorter_than_the_proved_bound():
    """The bound is below the optimum of a program over all offsets and 64 directions."""
    n, width, dim, base = 40, 4, 12, 50.0
    found = hf.rope.filter(width, n=n, dim=dim, base=base, tolerances=LOOSE)
    w = base ** (-np.arange(0, dim, 2) / dim)
    x = np.arange(n)
    wave = np.hstack([np.cos(np.outer(x, w)), np.sin(np.outer(x, w)), np.zeros((n, dim // 2))])
    half, gap = math.log1p(LOOSE.distortion) / 2, -math.log(LOOSE.leak)
    rows, right = [], []
    for offset in x:
        inside = offset < width
        for sign, c, m, most in (
            ((1, -1, 0, half), (-1, 1, 0, half), (-1, 0, 1, 0)) if inside else ((1, 0, -1, -gap),)
        ):
            rows.append(np.concatenate([sign * wave[offset], [c, m]]))
            right.append(most)
    for f in range(dim // 2):
        for angle in np.linspace(0, 2 * np.pi, 64, endpoint=False):
            side = np.zeros(3 * dim // 2 + 2)
            side[[f, dim // 2 + f, dim + f]] = math.cos(angle), math.sin(angle), -1
            rows.append(side)
            right.append(0.0)
    cost = np.concatenate([np.zeros(dim), np.ones(dim // 2), np.zeros(2)])
    best = linprog(cost, A_ub=np.array(rows), b_ub=right, bounds=(None, None)).fun
    best_at_most = best / math.cos(math.pi / 64)  # the polygon lies within the circle by so much
    assert found.least_norm <= best_at_most
    assert best <= found.norm * (1 + 1e-9)
    assert found.least_norm > 0.97 * best


@given(
    seed=st.integers(0, 2**32 - 1),
    width=st.integers(1, 4),
    frequencies=st.integers(2, 8),
    causal=st.booleans(),
)
@settings(max_examples=25)
def test_any_multipliers_prove_a_bound_that_no_filter_undercuts(seed, width, frequencies, causal):
    rng = np.random.default_rng(seed)
    n = 24
    offsets = np.arange(0 if causal else 1 - width, width)
    stencil = Stencil(n, offsets, rng.random(offsets.size), 0 if causal else 1 - n, n - 1)
    demand = Demand(stencil, hf.Tolerances(leak=0.4, distortion=1.5))
    w = np.sort(rng.uniform(0.05, math.pi, frequencies))
    limits = Limits.of(demand, offsets, demand.stencil.others, np.empty(0, np.int64))
    solved = solve(w, demand)
    if solved is None:
        return
    norm = solved.filter.norm
    assert solved.least_norm(demand) <= norm * 1.001
    for _ in range(5):
        assert limits.least_norm(w, rng.exponential(size=limits.right.size)) <= norm * 1.001
    # Good multipliers, of which those of one kind of limit are too large by a factor.
    at, good = Limits.of(demand, *solved.places), solved.multipliers
    for column in (at.on_c, at.on_m):
        for sign in (1.0, -1.0):
            spoilt = np.where(column == sign, 10 * good, good)
            assert at.least_norm(w, spoilt) <= norm * 1.001


def norm_by_rows(A, allowed, w, tolerances):
    """Return the norm of a filter that meets each row, with a level and a least logit of its own.

    Cosines and sines at all entries of all rows, and amplitudes in 32 directions.
    """
    n, f = len(A), len(w)
    half, gap = math.log1p(tolerances.distortion) / 2, -math.log(tolerances.leak)
    rows, right = [], []
    for i, j in np.argwhere(allowed):
        limits = [(1, 0, -1, -gap)]
        if A[i, j] > 0:
            log = math.log(A[i, j])
            limits = [(1, -1, 0, half + log), (-1, 1, 0, half - log), (-1, 0, 1, 0.0)]
        for sign, on_c, on_m, most in limits:
            levels = np.zeros((2, n))
            levels[:, i] = on_c, on_m
            wave = sign * np.cos(w * (i - j)), sign * np.sin(w * (i - j))
            rows.append(np.concatenate([*wave, np.zeros(f), *levels]))
            right.append(most)
    for angle in np.linspace(0, 2 * np.pi, 32, endpoint=False):
        parts = np.hstack([x * np.eye(f) for x in (math.cos(angle), math.sin(angle), -1)])
        rows += list(np.hstack([parts, np.zeros((f, 2 * n))]))
        right += [0.0] * f
    cost = np.repeat([0.0, 1.0, 0.0], [2 * f, f, 2 * n])
    found = linprog(cost, A_ub=np.array(rows), b_ub=right, bounds=(None, None))
    return math.inf if found.x is None else np.hypot(*found.x[: 2 * f].reshape(2, f)).sum()


@pytest.mark.parametrize("mask", [None, ("window", (8, 5)), "causal"])
@pytest.mark.parametrize(
    "offsets",
    [
        *({0: 0, 11: -8}, {0: 0, 1: -3}, {0: 0, 1: 0}, {-1: 0, 4: -2}, {5: 0}, {0: 0, 8: -8}),
        *({1: 0, 2: 0, -11: 0}, {1: 0, 2: 0, -11: 0, -10: 0}, {-9: 0, -3: 1, 0: 0, 4: 0, 7: 1}),
    ],
)
def test_no_filter_that_meets_each_row_is_shorter_than_the_proved_bound(offsets, mask):
    n, base, dim = 12, 100.0, 8
    i, j = np.indices((n, n))
    allowed = {None: i >= -1, "causal": j <= i}.get(mask, (i - j <= 8) & (j - i <= 5))
    logs = np.full((n, n), -np.inf)
    for x, log in offsets.items():
        logs[i - j == x] = log
    logs[~allowed] = -np.inf
    A = np.exp(logs)
    alone = A.sum(axis=1) == 0  # rows without any of the offsets
    if alone.any():
        A[alone] = np.where((i - j == 0) & allowed, 1.0, A)[alone]
    A /= A.sum(axis=1, keepdims=True)
    try:
        found = hf.rope.filter(A, mask=mask, dim=dim, base=base)
    except InputError:
        assert alone.any()
        return
    best = norm_by_rows(A, allowed, found.frequencies, found.tolerances)
    assert 0 < found.least_norm <= best * (1 + 1e-6)
    assert best <= found.norm * 1.02


def test_a_head_that_a_bound_must_not_exclude():
    """Its rows, none of which has all offsets, have levels of their own."""
    n, dim = 12, 8
    A = np.eye(n) + math.exp(-8.0) * np.eye(n, k=1 - n)
    A /= A.sum(axis=1, keepdims=True)
    a = np.array([14.584544589699613, 5.390524593637852, -4.296110575587952, 0])
    b = np.array([-1.8938836840802569, -10.914946085783045, 10.371728417038927, 0])
    root, phase = np.sqrt(np.hypot(a, b) * math.sqrt(dim)), np.arctan2(b, a)
    q = np.stack([root * np.cos(phase), -root * np.sin(phase)], axis=1).ravel()
    k = np.stack([root, np.zeros(4)], axis=1).ravel()
    head = hf.Attention(np.tile(q, (n, 1)), np.tile(k, (n, 1)), position=("rope", 100.0))
    assert hf.certify(A, head.rotated()).holds
    norm = head.scale * np.linalg.norm(q) * np.linalg.norm(k)
    assert 10 < hf.rope.filter(A, dim=dim, base=100.0).least_norm <= norm
    assert hf.rope.filter(A, dim=dim, base=100.0, max_norm=41).status == "undecided"


@pytest.mark.parametrize("weight", [-5.0, 0.0, 5.0])
@pytest.mark.parametrize("multipliers", [[1, 10, 0], [10, 1, 0], [1, 0, 0], [0, 1, 3], [1, 1, 1]])
def test_what_depends_on_the_level_of_the_logits_proves_nothing(weight, multipliers):
    # One token attends to itself with any norm, 0 too, whatever the level that its weight is given.
    demand = Demand(Stencil(1, np.zeros(1, np.int64), np.array([weight]), 0, 0), TIGHT)
    limits = Limits.of(demand, np.zeros(1, np.int64), demand.stencil.others, np.empty(0, np.int64))
    assert limits.least_norm(np.array([0.5]), np.array(multipliers, np.float64)) == 0


def test_a_window_out_of_reach_says_that_content_is_needed():
    found = hf.rope.filter(64, n=2048)
    assert (found.status, found.filter) == ("out of reach", None)
    assert (found.norm, found.max_logit) == (math.inf, math.inf)
    assert found.least_norm > found.max_norm > 7e5
    assert "content is needed" in str(found)
    for ask in (lambda: found.q, lambda: found.k, found.attention):
        with pytest.raises(InputError, match="out of reach"):
            ask()


def test_a_norm_above_the_limit_is_out_of_reach_and_the_bound_agrees():
    free = hf.rope.filter(8, n=256, dim=32)
    assert free.status == "found"
    least = hf.rope.filter(8, n=256, dim=32, max_norm=free.norm / 2)
    assert least.status == "out of reach"
    assert free.norm / 2 < least.least_norm <= free.norm
    assert hf.rope.filter(8, n=256, dim=32, max_norm=free.norm * 1.001).status == "found"


def test_a_limit_on_logits_is_kept_and_costs_norm_only():
    free = hf.rope.filter(8, n=256, tolerances=LOOSE)
    most = 0.8 * free.max_logit
    found = hf.rope.filter(8, n=256, leak=0.3, distortion=0.5, max_logit=most)
    assert found.status == "found"
    assert found.norm >= free.least_norm
    head = found.attention().rotated()
    assert hf.certify(window(256, 8, True), head, tolerances=found.tolerances, num_threads=1).holds


def test_targets_with_gaps():
    A = hf.patterns.dilated(200, 1, 3)
    found = hf.rope.filter(A, dim=128, tolerances=LOOSE)
    assert found.width is None
    assert "a pattern of 3 offsets" in str(found)
    assert hf.certify(A, found.attention().rotated(), tolerances=LOOSE, num_threads=1).holds


def test_the_previous_token_is_a_filter_where_the_first_row_has_no_choice():
    A = hf.Target(hf.patterns.previous_token(100), mask="causal")
    found = hf.rope.filter(A, tolerances=LOOSE)
    np.testing.assert_array_equal(found.stencil.offsets, [1])
    assert hf.certify(A, found.attention().rotated(), tolerances=LOOSE, num_threads=1).holds
    with pytest.raises(InputError, match=r"translation-invariant.* offset 0"):
        hf.rope.filter(hf.patterns.previous_token(100))


def test_targets_with_weights_that_fall_with_the_distance():
    n = 200
    x = np.subtract.outer(np.arange(n), np.arange(n))
    A = np.where((x >= 0) & (x < 6), np.exp(-0.3 * x), 0.0)
    A = hf.Target(A / A.sum(axis=1, keepdims=True), mask="causal")
    found = hf.rope.filter(A, tolerances=LOOSE)
    assert found.status == "found"
    assert hf.certify(A, found.attention().rotated(), tolerances=LOOSE, num_threads=1).holds


def test_given_frequencies_take_the_place_of_a_base():
    base, dim = 1e4, 32
    inv_freq = base ** (-np.arange(0, dim, 2) / dim)
    named = hf.rope.filter(4, n=100, dim=dim, tolerances=LOOSE)
    given_ = hf.rope.filter(4, n=100, inv_freq=inv_freq, tolerances=LOOSE)
    assert given_.norm == named.norm
    assert (given_.base, given_.dim) == (None, dim)
    head = given_.attention()
    assert head.position is not None
    np.testing.assert_array_equal(head.position[1], inv_freq)
    np.testing.assert_allclose(
        np.tril(np.exp(head.logits(num_threads=1))),
        np.tril(np.exp(named.attention().logits(num_threads=1))),
        rtol=1e-9,
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_rounding_bounds_what_storing_rotated_heads_does(dtype):
    from headfit._base.arrays import round_to

    found = hf.rope.filter(8, n=300)
    turned = found.attention().rotated()
    q, k = (round_to(x, dtype).astype(np.float64) for x in (turned.Q, turned.K))
    exact = turned.Q @ turned.K.T * turned.scale
    moved = np.abs(q @ k.T * turned.scale - exact).max()
    assert 0.01 * found.rounding(dtype) < moved <= found.rounding(dtype)


def test_a_window_over_everything_and_a_single_token():
    for n in (1, 2, 9):
        found = hf.rope.filter(n, n=n, dim=2)
        assert found.status == "found"
        head = found.attention().rotated()
        assert hf.certify(window(n, n, True), head, num_threads=1).holds


def test_long_sequences_take_few_offsets():
    found = hf.rope.filter(16, n=131_072, dim=64, tolerances=LOOSE)
    assert found.status == "found"
    x = np.arange(131_072)
    logits = sum(
        r * np.cos(w * x - phase)
        for r, w, phase in zip(
            found.filter.amplitudes,
            found.frequencies,
            np.arctan2(found.filter.sines, found.filter.cosines),
            strict=True,
        )
    )
    inside, outside = logits[:16], logits[16:]
    assert np.ptp(inside) <= math.log(1.5)
    assert outside.max() <= inside.min() + math.log(0.3)


@pytest.mark.full
def test_wide_windows_begin_with_a_sample_of_their_offsets():
    waves = np.concatenate([5 / 200 * np.arange(1, 45), np.geomspace(math.pi / 4096, 0.015, 4)])
    found = hf.rope.filter(200, n=2048, inv_freq=waves, tolerances=LOOSE)
    assert found.status == "found"
    logits = found.filter.logits_between(0, 2047)
    assert np.ptp(logits[:200]) <= math.log(1.5)
    assert logits[200:].max() <= logits[:200].min() + math.log(0.3)


def test_curves_are_the_single_filters():
    found = hf.rope.windows(
        [2, 5], n=64, dims=[8, 16], bases=[100.0], tolerances=[LOOSE, TIGHT], max_norm=1e4
    )
    assert [(f.tolerances, f.dim, f.width) for f in found] == [
        (asked, dim, width) for asked in (LOOSE, TIGHT) for dim in (8, 16) for width in (2, 5)
    ]
    alone = hf.rope.filter(5, n=64, dim=16, base=100.0, tolerances=LOOSE, max_norm=1e4)
    assert found[3].norm == alone.norm


@pytest.mark.parametrize(
    ("option", "value"), [("dims", [16, 3]), ("bases", [0.5]), ("dims", 16), ("widths", [65])]
)
def test_bad_lists_of_windows(option, value):
    with pytest.raises(hf.errors.InputError, match=f"^{option} "):
        hf.rope.windows(**{"widths": [2], "n": 64, option: value})


def test_a_list_of_windows_is_checked_before_any_filter_is_designed(monkeypatch):
    monkeypatch.setattr("headfit.rope._shortest", None)
    with pytest.raises(InputError, match=r"distortion must be at least 0\.002"):
        hf.rope.windows([2], n=64, tolerances=[LOOSE, hf.Tolerances(distortion=0.001)])


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"pattern": 0}, "pattern, the width"),
        ({"pattern": 65}, r"pattern, the width of a window, must lie in 1 \.\.\. 64"),
        ({"n": None}, "n must be given"),
        ({"dim": 7}, "dim must be even"),
        ({"base": 1.0}, "base must lie strictly"),
        ({"base": math.nan}, "base must lie strictly"),
        ({"inv_freq": [0.1]}, None),
        ({"inv_freq": [0.1], "dim": 2}, "dim and inv_freq"),
        ({"inv_freq": [math.nan]}, "inv_freq must be finite"),
        ({"mask": "causal"}, "mask must not be given with a width"),
        ({"distortion": 0.001}, "distortion must be at least 0.002"),
        ({"max_norm": 0}, "max_norm"),
        (
            {"pattern": hf.patterns.band(64, 1)},
            "pattern must be the width of a window, .* where n or causal",
        ),
        ({"pattern": hf.patterns.block(64, 4), "n": None}, "token by token.*blocks of 4 tokens"),
        ({"pattern": UNIFORM, "n": None, "mask": "causal"}, "row 8 uniform"),
        ({"pattern": AHEAD, "n": None, "mask": ("window", (2, 3))}, "row 4 uniform"),
        ({"pattern": np.vstack([np.eye(9)[:8], np.full(9, 1 / 9)]), "n": None}, "row 8 uniform"),
        ({"pattern": hf.patterns.tree(64), "n": None}, "translation-invariant"),
    ],
)
def test_bad_arguments_are_named(given_, message):
    call = {"pattern": 4, "n": 64, "tolerances": None, **given_}
    if message is None:
        assert hf.rope.filter(**call).status == "out of reach"
        return
    with pytest.raises(InputError, match=message):
        hf.rope.filter(**call)
