"""Learned keys and queries: certified, reproducible, and stopped when asked to."""

import math
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import scipy.sparse as sp
from tests.references import allowed_by, leak_and_distortion

import headfit as hf
from headfit import _core
from headfit._fit.learned import EFFORTS, ample_dim, learned, likely_dim
from headfit._target.target import Target, as_target

LEAK, DISTORTION = 0.05, math.expm1(0.1)
THREADS = 2


def head_for(
    target, dim, *, seed=0, threads=THREADS, time_limit=math.inf, most_steps=None, **options
):
    problem = hf.methods.Problem(
        target,
        hf.Tolerances(LEAK, DISTORTION),
        seed=seed,
        threads=threads,
        deadline=time.perf_counter() + time_limit,
    )
    method = hf.methods.Learned(**options)
    most_steps = most_steps or 200 * EFFORTS.get(method.effort, method.effort)
    return learned(method, problem, dim, most_steps)


def rows_outside(target, head):
    """Return the rows that miss a tolerance, by all n**2 logits in float64."""
    logits = head.Q.astype(np.float64) @ head.K.astype(np.float64).T
    seen = np.where(allowed_by(target.mask, target.n), logits, -np.inf)
    leak, distortion = leak_and_distortion(target.matrix.toarray(), seen)
    return np.flatnonzero((leak > LEAK) | (distortion > DISTORTION)).tolist()


def certified(target, head, dtype="float32"):
    q, k = head.stored(1.0, dtype)
    attention = hf.Attention(q, k, scale=1.0, mask=target.mask)
    return hf.certify(target, attention, leak=LEAK, distortion=DISTORTION).holds


@pytest.mark.parametrize(
    ("n", "k", "dim", "seed"), [(256, 4, 6, 0), (256, 4, 6, 1), (512, 4, 7, 2), (512, 8, 12, 3)]
)
def test_small_heads_are_certified(n, k, dim, seed):
    target = as_target(hf.patterns.random_regular(n, k, gamma=2.0, rng=seed))
    head = head_for(target, dim, seed=seed)
    assert head.failed_rows.size == 0
    assert head.Q.shape == head.K.shape == (n, dim)
    assert head.Q.dtype == np.float32
    assert head.settings["learned"]["status"] == "met"
    assert certified(target, head)
    assert rows_outside(target, head) == []


@pytest.mark.parametrize("distortion", [1e-2, 1e-3, 3e-4])
def test_a_small_distortion_is_met_as_soon(distortion):
    A = hf.patterns.random_regular(64, 4, gamma=2.0, rng=0)
    head = hf.fit(A, 10, method="learned", distortion=distortion, rng=0)
    assert head.certificate.holds
    assert head.settings["learned"]["quenches"] == 1


def test_a_brief_hold_does_where_there_is_room():
    A = hf.patterns.random_regular(256, 4, gamma=2.0, rng=0)
    steps = [
        hf.fit(A, dim, method="learned", rng=0).settings["learned"]["steps"] for dim in (6, 10)
    ]
    assert steps[1] < EFFORTS["low"] < steps[0]


def test_a_causal_band_is_certified():
    target = as_target(hf.patterns.causal_band(256, 3), mask="causal")
    assert target.mask == "causal"
    head = head_for(target, 8)
    assert head.failed_rows.size == 0
    assert certified(target, head)
    assert rows_outside(target, head) == []


def test_threads_change_no_bit_and_seeds_do():
    target = as_target(hf.patterns.random_regular(300, 4, gamma=2.0, rng=5))
    one = head_for(target, 7, threads=1)
    for threads in (2, 3):
        other = head_for(target, 7, threads=threads)
        assert np.array_equal(one.Q, other.Q)
        assert np.array_equal(one.K, other.K)
    assert not np.array_equal(one.Q, head_for(target, 7, seed=1).Q)


def test_a_start_that_holds_is_kept_and_permutes_with_the_tokens():
    target = as_target(hf.patterns.random_regular(200, 3, gamma=2.0, rng=6))
    head = head_for(target, 6)
    again = head_for(target, 6, init=(head.Q, head.K))
    assert again.settings["learned"]["steps"] == 0
    assert np.array_equal(again.Q, head.Q)
    p = np.random.default_rng(0).permutation(200)
    moved = as_target(sp.csr_array(target.matrix)[p][:, p])
    permuted = head_for(moved, 6, init=(head.Q[p], head.K[p]))
    assert np.array_equal(permuted.Q, head.Q[p])
    assert np.array_equal(permuted.K, head.K[p])


def few_steps(target, q, k, steps=3):
    return _core.fit_learned(
        target.core,
        _core.Tolerances(LEAK, DISTORTION),
        _core.LearnedOptions(dim=q.shape[1], first_hold=500, max_steps=steps, start=(q, k)),
        1,
    )


def test_a_few_steps_from_a_start_permute_with_the_tokens():
    # The heads are not exactly equal, since sums over rows are in the order of the tokens.
    rng = np.random.default_rng(1)
    target = as_target(hf.patterns.random_regular(20, 3, gamma=2.0, rng=6))
    q, k = (rng.standard_normal((20, 3)).astype(np.float32) for _ in range(2))
    p = rng.permutation(20)
    moved = as_target(sp.csr_array(target.matrix)[p][:, p])
    got_q, got_k, _ = few_steps(target, q, k)
    permuted_q, permuted_k, _ = few_steps(moved, q[p], k[p])
    assert not np.allclose(got_q, q, atol=1e-3)
    np.testing.assert_allclose(permuted_q, got_q[p], atol=1e-4)
    np.testing.assert_allclose(permuted_k, got_k[p], atol=1e-4)


def test_a_start_of_fewer_columns_is_widened():
    target = as_target(hf.patterns.random_regular(256, 4, gamma=2.0, rng=7))
    narrow = head_for(target, 5, time_limit=0.5)
    assert narrow.failed_rows.size > 0
    head = head_for(target, 8, init=(narrow.Q, narrow.K))
    assert head.failed_rows.size == 0
    assert certified(target, head)


def test_failed_rows_are_those_that_miss():
    target = as_target(hf.patterns.random_regular(256, 4, gamma=2.0, rng=8))
    head = head_for(target, 2, effort=5)
    report = head.settings["learned"]
    assert report["status"] == "step limit"
    assert report["worst_deficit"] > 0
    assert set(rows_outside(target, head)) <= set(head.failed_rows.tolist())
    assert head.failed_rows.size == report["rows_left"] - report["rows_polished"] > 0


def test_rows_that_are_left_are_polished():
    target = as_target(hf.patterns.random_regular(256, 4, gamma=2.0, rng=9))
    whole = head_for(target, 7)
    q = whole.Q.copy()
    q[[3, 50, 200]] *= -1
    seen = []

    def stop_late(step, left, worst):
        seen.append((step, left, worst))

    head = head_for(target, 7, init=(q, whole.K), callback=stop_late, time_limit=1e-9)
    report = head.settings["learned"]
    assert seen == [(0, 3, pytest.approx(seen[0][2]))]
    assert report["status"] == "time limit"
    assert (report["rows_left"], report["rows_polished"]) == (3, 3)
    assert head.failed_rows.size == 0
    assert certified(target, head)
    others = np.setdiff1d(np.arange(256), [3, 50, 200])
    assert np.array_equal(head.Q[others], whole.Q[others])


def test_norms_are_bounded():
    target = as_target(hf.patterns.random_regular(256, 4, gamma=2.0, rng=9))
    free = head_for(target, 8)
    longest = [np.linalg.norm(x, axis=1).max() for x in (free.Q, free.K)]
    bound = 0.5 * float(np.prod(longest))
    head = head_for(target, 8, max_norm=bound)
    assert np.prod([np.linalg.norm(x, axis=1).max() for x in (head.Q, head.K)]) <= bound
    assert certified(target, head)


def test_a_callback_stops_and_its_errors_pass():
    target = as_target(hf.patterns.random_regular(256, 4, gamma=2.0, rng=9))
    calls = []
    head = head_for(target, 3, callback=lambda *scan: calls.append(scan) or len(calls) < 4)
    assert len(calls) == 4
    assert head.settings["learned"]["status"] == "stopped"

    def fail(*scan):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        head_for(target, 3, callback=fail)


def test_the_time_limit_holds():
    target = as_target(hf.patterns.random_regular(512, 4, gamma=2.0, rng=9))
    begin = time.perf_counter()
    head = head_for(target, 3, effort=10**6, time_limit=0.2)
    assert time.perf_counter() - begin < 30  # without the limit it would take days
    assert head.settings["learned"]["status"] == "time limit"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"effort": "huge"}, "effort"),
        ({"effort": 0}, "effort"),
        ({"effort": 10**18}, "effort must lie in 1 ... 1000000000"),
        ({"init": (np.ones((20, 4)), np.ones((20, 4)))}, "init"),
        ({"max_norm": -1.0}, "max_norm"),
        ({"reheats": -1}, "reheats"),
    ],
)
def test_impossible_options_are_refused(options, message):
    target = as_target(hf.patterns.random_regular(20, 2, rng=0))
    with pytest.raises(hf.errors.InputError, match=message):
        head_for(target, 3, **options)


def test_edges():
    for n in (1, 2, 3):
        target = as_target(np.full((n, n), 1 / n))
        assert isinstance(target, Target)
        head = head_for(target, 1)
        assert head.failed_rows.size == 0
        assert certified(target, head)


@pytest.mark.parametrize(("reheats", "least"), [(0, 0), (6, 1), (40, 7)])
def test_a_quench_is_followed_by_as_many_reheats_as_asked_for(reheats, least):
    """With d = 2 keys are corners of a polygon: token 0 has no three edges, so a row is left."""
    n = 16
    pairs = np.eye(n)
    pairs[[0, 1, 2], [1, 2, 3]] = pairs[[0, 1, 2], 0] = 1 / 2
    pairs[[1, 2], [1, 2]] = 0
    method = hf.methods.Learned(
        effort=1000, reheats=reheats, callback=lambda step, *_: step < 20_000
    )
    fit = hf.fit(pairs, 2, method=method, rng=0, num_threads=1)
    report = fit.settings["learned"]
    assert not fit.certificate.holds
    assert fit.settings["reheats"] == reheats
    assert report["quenches"] >= 1
    assert least * report["quenches"] <= report["reheats"] <= reheats * report["quenches"]


@pytest.mark.parametrize("effort", [1, 7, 29, 31, 99, 101, 300])
def test_any_effort_ends(effort):
    """A hold is first checked at fixed steps; a fit ends also if it is shorter than these."""
    target = as_target(hf.patterns.random_regular(200, 4, gamma=2.0, rng=0))
    head = head_for(target, 2, effort=effort, most_steps=3 * effort)
    report = head.settings["learned"]
    assert report["status"] == "step limit"
    assert 3 * effort <= report["steps"] <= 3 * effort + 1000


def test_ample_room_is_seen_early():
    """A head several sizes above the smallest takes one short hold and one short quench."""
    target = as_target(hf.patterns.random_regular(300, 3, gamma=2.0, rng=0))
    head = head_for(target, 10)
    assert head.failed_rows.size == 0
    assert certified(target, head)
    report = head.settings["learned"]
    assert report["quenches"] == 1
    assert report["steps"] < 200


@pytest.mark.parametrize("threads", [1, 2])
def test_ctrl_c_stops_the_fit(threads):
    code = f"""
        import signal
        signal.signal(signal.SIGINT, signal.default_int_handler)
        import headfit as hf
        target = hf.Target(hf.patterns.random_regular(512, 4, rng=0))
        problem = hf.methods.Problem(target, hf.Tolerances(), threads={threads})
        print("ready", flush=True)
        try:
            hf.methods.Learned(effort="high").head(problem, 2)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=60)
    assert out == "interrupted\n"


def test_the_ample_size_grows_with_the_tokens_and_the_nonzeros():
    tokens, per_row = (64, 512, 4096, 32_768, 10**6), (1, 2, 4, 8, 16, 32)
    sizes = np.array([[ample_dim(n, k) for k in per_row] for n in tokens])
    likely = np.array([[likely_dim(n, k) for k in per_row] for n in tokens])
    assert (np.diff(sizes, axis=0) >= 0).all()
    assert (np.diff(sizes, axis=1) > 0).all()
    assert (sizes - likely >= 4).all()


@pytest.mark.parametrize("columns", [3, 4, 6])
@pytest.mark.parametrize("width", [None, 12])
def test_a_search_from_a_start_goes_no_lower_than_its_columns(columns, width):
    A = hf.patterns.random_regular(64, 3, rng=0)
    found = hf.fit(A, columns, rng=0)
    method = hf.methods.Learned(init=(found.Q * found.scale, found.K))
    module = None if width is None else hf.SelfAttention.canonical(width, 0.3)
    searched = hf.fit(A, method=method, module=module)
    assert searched.certificate.holds
    assert min(trial.dim for trial in searched.search.trials) >= columns


@pytest.mark.parametrize("answer", [None, 0, np.array([1, 2]), np.array([]), True])
def test_only_false_ends_a_fit(answer):
    method = hf.methods.Learned(callback=lambda *_: answer)
    assert hf.fit(hf.patterns.band(32, 1), 5, method=method, rng=0).certificate.holds
