"""Work split by rows among the workers of a Dask cluster: one machine's results, bit for bit."""

from __future__ import annotations

import dataclasses
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from tests.references import assert_same

import headfit as hf
from headfit import _core
from headfit._cluster import cluster

distributed = pytest.importorskip("distributed")

RNG = np.random.default_rng
N = 2 * cluster.GRANULE + 70  # three blocks of the smallest size
SMALL = {"n_workers": 0, "processes": False, "dashboard_address": ":0"}


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    settings = {"n_workers": 2, "threads_per_worker": 1, "memory_limit": 0}
    with (
        distributed.LocalCluster(processes=True, dashboard_address=":0", **settings) as workers,
        distributed.Client(workers) as client,
    ):
        yield client


WINDOW = ("window", (150, 20))
MASKS: dict[str, Callable[[int, int], Any]] = {
    "open": lambda n, m: None,
    "causal": lambda n, m: "causal",
    "window": lambda n, m: WINDOW,
    "dense": lambda n, m: (RNG(3).random((n, m)) < 0.7) | np.eye(n, m, dtype=bool),
    "sparse": lambda n, m: sp.csr_array((RNG(4).random((n, m)) < 0.1) | np.eye(n, m, dtype=bool)),
}
DTYPES = ("float32", "float64", "float16")


def queries_and_keys(dtype: str, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [RNG(i).normal(size=shape).astype(dtype) for i, shape in enumerate(shapes)]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_certificates(client, dtype, mask):
    Q, K = queries_and_keys(dtype, (N, 9), (N, 9))
    given = {"mask": MASKS[mask](N, N), "leak": 0.4, "max_logit": 8.0}
    mass = mask != "causal"
    local = hf.certify(sp.eye_array(N), Q, K, certificate_mass=mass, **given, num_threads=1)
    found = hf.certify(sp.eye_array(N), Q, K, certificate_mass=mass, **given, client=client)
    assert_same(found, local)
    assert 0 < found.failed_rows.size < N or mask in ("open", "dense")


def narrowly_met(mask: Any) -> tuple[sp.csr_array, np.ndarray, np.ndarray, float]:
    """Return a target, Q, K and the leak of two rows in three, which float32 cannot decide."""
    distance = np.arange(N)[:, None] - np.arange(N)
    same = distance % 16 == 0
    if mask is not None:
        same &= (distance <= 150) & (distance >= -20)
    A = sp.csr_array(same / same.sum(axis=1, keepdims=True))
    K = np.eye(16, dtype=np.float32)[np.arange(N) % 16]
    Q = np.float32(3.1) * K
    Q[::3] *= np.float32(1.5)
    return A, Q, K, float(np.exp(-np.float64(np.float32(3.1))))


@pytest.mark.parametrize("mask", [None, WINDOW])
@pytest.mark.parametrize("mass", [True, False])
def test_certificates_with_a_second_scan(client, mask, mass):
    A, Q, K, leak = narrowly_met(mask)
    given = {"mask": mask, "scale": 1.0, "leak": leak * (1 + 1e-9), "certificate_mass": mass}
    local = hf.certify(A, Q, K, **given, num_threads=1)
    assert cluster.GRANULE < local.rescanned < N
    assert_same(hf.certify(A, Q, K, **given, client=client), local)


def test_certificates_of_modules_and_of_kernels(client):
    A = hf.patterns.permutation(N, rng=0)
    fit = hf.fit(A, method="projection", num_threads=1, module=hf.SelfAttention.random(64, rng=0))
    assert fit.certificate.basis == "module"
    assert_same(hf.certify(A, fit, client=client), hf.certify(A, fit, num_threads=1))
    narrow = {"kernel": "eager-bfloat16"}
    local = hf.certify(A, fit, **narrow, num_threads=1)
    assert_same(hf.certify(A, fit, **narrow, client=client, num_threads=2), local)


@pytest.mark.parametrize("per_slot", [1, 8])
@pytest.mark.parametrize("mask", ["open", "window", "dense"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_largest_weights(client, monkeypatch, dtype, mask, per_slot):
    monkeypatch.setattr(cluster, "PER_SLOT", per_slot)
    n, m = 3 * N, N
    Q, K = queries_and_keys(dtype, (n, 9), (m, 9))
    given = {"mask": MASKS[mask](n, m)}
    for more in ({}, {"values": "logits"}, {"renormalize": True}):
        local = hf.attention_topk(Q, K, 6, **given, **more, num_threads=1)
        assert_same(hf.attention_topk(Q, K, 6, **given, **more, client=client), local)


OPTIONS = {
    "plain": {},
    "rope": {"position": "rope", "softcap": 3.0},
    "alibi": {"position": "alibi", "key_mask": RNG(5).random(700) < 0.8},
    "bias": {"bias": RNG(6).normal(size=(1, 700)), "sinks": [0.5, -1.0, 2.0, 0.0]},
    "lengths": {"key_lengths": [400, 700], "mask": ("window", 50)},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_largest_weights_of_several_heads(client, name):
    Q, K = queries_and_keys("float64", (2, 4, 1400, 8), (2, 2, 700, 8))
    head = hf.Attention(Q, K, **OPTIONS[name])
    local = head.topk(5, num_threads=1)
    assert_same(head.topk(5, client=client, num_threads=2), local)


@pytest.mark.parametrize(
    ("dim", "method"),
    [
        (40, hf.methods.MaxMargin()),
        (16, hf.methods.MaxMargin(form="equality")),
        (40, hf.methods.MaxMargin(max_norm=15.0, keys="cyclic")),
    ],
)
def test_max_margin_queries(client, dim, method):
    A = hf.patterns.random_regular(N, 3, gamma=2.0, rng=0)
    given = {"method": method, "leak": 0.2, "distortion": 0.5}
    local = hf.fit(A, dim, **given, num_threads=1)
    found = hf.fit(A, dim, **given, client=client)
    for name in ("Q", "K", "certificate", "failed_rows", "witnesses", "stopped", "advice"):
        assert_same(getattr(found, name), getattr(local, name), name)
    # Rows of two blocks share no scan.
    assert found.settings.pop("scans") >= local.settings.pop("scans")
    assert found.settings == local.settings


LEARNED: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (hf.patterns.random_regular(N, 3, gamma=2.0, rng=0), {}),
    "logits": (hf.patterns.random_regular(N, 3, rng=0), {"max_logit": 15.0}),
    "causal": (hf.patterns.causal_band(N, 2), {"mask": "causal"}),
    "narrow": (hf.patterns.random_regular(N, 3, rng=0), {"dtype": "bfloat16"}),
    "sampled": (hf.patterns.random_regular(5 * N, 2, rng=0), {}),
    "kept": (hf.patterns.random_regular(5 * N, 2, rng=0), {}),
}


@pytest.mark.parametrize("name", LEARNED)
def test_scans_of_learned_fits(client, name, monkeypatch):
    A, given = LEARNED[name]
    if name == "kept":  # candidate lists are kept as where there are many more tokens
        keeping = partial(_core.LearnedOptions, many_rows_from=N)
        monkeypatch.setattr(_core, "LearnedOptions", keeping)

    def fitted(**more: Any) -> hf.results.Fit:
        left = iter(range({"sampled": 3, "kept": 6}.get(name, 8)))
        method = hf.methods.Learned(effort=30, callback=lambda *_: next(left, None) is not None)
        return hf.fit(A, 7, method=method, **given, **more)

    local, found = fitted(num_threads=1), fitted(client=client)
    for part in ("Q", "K", "certificate", "failed_rows", "stopped"):
        assert_same(getattr(found, part), getattr(local, part), part)
    for fit in (local, found):
        del fit.settings["learned"]["seconds"]
    assert found.settings == local.settings


@pytest.mark.full
def test_a_learned_fit_to_its_end(client):
    A = hf.patterns.random_regular(N, 4, gamma=2.0, rng=0)
    local = hf.fit(A, 8, method="learned", rng=0, num_threads=1)
    found = hf.fit(A, 8, method="learned", rng=0, client=client)
    report = local.settings["learned"]
    assert report["quenches"] >= 1
    assert report["reheats"] >= 1
    assert local.certificate.holds
    for part in ("Q", "K", "certificate", "failed_rows", "stopped"):
        assert_same(getattr(found, part), getattr(local, part), part)


def test_any_method_gets_its_certificate_from_the_workers(client):
    A = hf.patterns.band(N, 1)
    given = {"method": "projection", "leak": 0.3, "distortion": 2.0}
    found = hf.fit(A, 64, **given, client=client)
    assert_same(found.certificate, hf.fit(A, 64, **given, num_threads=1).certificate)


def left_at(client: Any) -> list[str]:
    """Return the tasks that a client does not let go of, in another thread, within a minute."""
    deadline = time.perf_counter() + 60
    while client.futures and time.perf_counter() < deadline:
        gc.collect()  # the traceback of an error holds what its frames hold
        time.sleep(0.05)
    return list(client.futures)


def test_a_time_limit(client):
    A = hf.patterns.random_regular(N, 2, rng=0)
    given = {"method": hf.methods.MaxMargin(), "leak": 0.3, "distortion": 2.0}
    cut = hf.fit(A, 60, **given, client=client, time_limit=0.05)
    assert cut.stopped == "time limit"
    assert not left_at(client)


def after_the_first(monkeypatch: pytest.MonkeyPatch, then: Callable[[], None]) -> None:
    """Have something done as soon as the first block is done."""
    completed = distributed.as_completed

    def watched(*args: Any, **kwargs: Any) -> Iterator[Any]:
        for future in completed(*args, **kwargs):
            future.result()
            then()
            yield future

    monkeypatch.setattr(distributed, "as_completed", watched)


def killing(monkeypatch: pytest.MonkeyPatch, pids: list[int]) -> None:
    """Kill these workers as soon as the first block is done."""

    def kill() -> None:
        while pids:
            os.kill(pids.pop(), signal.SIGKILL)

    after_the_first(monkeypatch, kill)


@pytest.mark.full
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills processes")
@pytest.mark.parametrize("killed", [1, 2])
def test_workers_are_killed_midway(client, monkeypatch, killed):
    client.wait_for_workers(2)
    pids = list(client.run(os.getpid).values())[:killed]
    Q, K = queries_and_keys("float64", (12 * cluster.GRANULE, 16), (12 * cluster.GRANULE, 16))
    A = sp.eye_array(len(Q))
    local = hf.certify(A, Q, K, mask="causal", num_threads=1)
    killing(monkeypatch, pids)
    assert_same(hf.certify(A, Q, K, mask="causal", client=client), local)
    assert not pids


def largest(**more: Any) -> Any:
    Q, K = queries_and_keys("float64", (12 * cluster.GRANULE, 9), (N, 9))
    return hf.attention_topk(Q, K, 6, **more)


def margins(**more: Any) -> Any:
    A = hf.patterns.random_regular(N, 3, gamma=2.0, rng=0)
    fit = hf.fit(A, 40, method=hf.methods.MaxMargin(), leak=0.2, distortion=0.5, **more)
    return fit.Q, fit.failed_rows


def scanned(**more: Any) -> Any:
    left = iter(range(8))
    method = hf.methods.Learned(effort=30, callback=lambda *_: next(left, None) is not None)
    fit = hf.fit(hf.patterns.random_regular(N, 3, rng=0), 7, method=method, **more)
    return fit.Q, fit.K, fit.failed_rows


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills processes")
@pytest.mark.parametrize("work", [largest, margins, scanned])
def test_a_worker_is_killed_midway(client, monkeypatch, work):
    client.wait_for_workers(2)
    pids = list(client.run(os.getpid).values())[:1]
    local = work(num_threads=1)
    killing(monkeypatch, pids)
    assert_same(work(client=client), local)
    assert not pids


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills processes")
def test_a_result_that_is_lost_before_it_is_taken_is_computed_again(client, monkeypatch):
    client.wait_for_workers(2)

    def lost(futures: list[Any], **kwargs: Any) -> Iterator[Any]:
        distributed.wait(futures)
        for pid in client.run(os.getpid).values():
            os.kill(pid, signal.SIGKILL)
        while futures[0].status == "finished":
            time.sleep(0.01)
        return iter(futures)

    Q, K = queries_and_keys("float32", (N, 4), (N, 4))
    local = hf.attention_topk(Q, K, 4, num_threads=1)
    monkeypatch.setattr(distributed, "as_completed", lost)
    assert_same(hf.attention_topk(Q, K, 4, client=client), local)


def test_tasks_that_are_cancelled_end_the_work(client, monkeypatch):
    def cancelled(futures: list[Any], **kwargs: Any) -> Iterator[Any]:
        client.cancel(futures)
        return iter(futures)

    X = np.eye(4)
    monkeypatch.setattr(distributed, "as_completed", cancelled)
    with pytest.raises(hf.HeadfitError, match="the cluster gave up: its scheduler ended"):
        hf.attention_topk(X, X, 1, client=client)


def test_a_worker_that_leaves_before_it_answers_is_left_out():
    class Leaving:
        def run(self, *_: Any, on_error: str) -> dict[str, Any]:
            return {"here": 1, "gone": OSError("connection refused"), "bad": OSError("no file")}

        def nthreads(self) -> dict[str, int]:
            return {"here": 1, "bad": 1}

    assert sorted(cluster.answers(Leaving(), os.getpid)) == ["bad", "here"]


def test_ctrl_c_cancels_what_is_left(client, monkeypatch):
    def interrupted() -> None:
        raise KeyboardInterrupt

    Q, K = queries_and_keys("float32", (12 * cluster.GRANULE, 16), (600, 16))
    after_the_first(monkeypatch, interrupted)
    with pytest.raises(KeyboardInterrupt):
        hf.attention_topk(Q, K, 4, client=client)
    monkeypatch.undo()
    assert_same(
        hf.attention_topk(Q, K, 4, client=client), hf.attention_topk(Q, K, 4, num_threads=1)
    )
    assert not left_at(client)


def test_errors_of_workers_are_raised_here(client):
    Q, K = queries_and_keys("float32", (N, 4), (N, 4))
    Q[N - 3, 2] = np.nan
    with pytest.raises(hf.errors.NonFiniteError, match=f"row {N - 3}"):
        hf.attention_topk(Q, K, 2, client=client)
    assert not left_at(client)


def test_progress_counts_blocks(client, capsys):
    pytest.importorskip("tqdm")
    Q, K = queries_and_keys("float32", (N, 4), (N, 4))
    hf.attention_topk(Q, K, 2, client=client, progress=True)
    assert "3/3" in capsys.readouterr().err
    hf.certify(sp.eye_array(N), Q, K, client=client, progress=True)
    assert "3/3" in capsys.readouterr().err


def test_rows_are_split_at_multiples_of_the_granule():
    for rows, products, slots in [(1, 1, 1), (10**6, 12 * 10**6, 8), (5000, 10**12, 3), (0, 5, 5)]:
        found = cluster.row_blocks(rows, products, slots)
        assert all(block.start % cluster.GRANULE == 0 for block in found)
        covered = [row for block in found for row in range(block.start, block.stop)]
        assert covered == list(range(rows))
    few = cluster.row_blocks(10**6, 12 * 10**6, 8)
    assert len(few) >= 64
    assert (
        few[0].stop - few[0].start
    ) * 12 * 10**6 <= cluster.AT_ONCE + cluster.GRANULE * 12 * 10**6


def level_setter() -> Callable[[str], str]:
    """Return a function for `client.run`: a nested one, since workers cannot import the tests."""

    def set_level(level: str) -> str:
        """Pretend that the core has another level; return the old one."""
        from headfit import _core

        old, _core.build["level"] = _core.build["level"], level
        return old

    return set_level


def test_mixed_levels_are_refused(client):
    X = np.eye(4)
    client.wait_for_workers(2, timeout=120)  # another test may have killed one
    first, second = client.run(os.getpid)
    level = client.run(level_setter(), "v2", workers=[second])[second]
    try:
        with pytest.raises(hf.errors.InputError) as caught:
            hf.certify(sp.eye_array(4), X, X, client=client)
        with pytest.raises(
            hf.errors.InputError, match="client: all workers must have the same build"
        ):
            hf.fit(sp.eye_array(4), 2, client=client)
    finally:
        client.run(level_setter(), level, workers=[second])
    for part in ("client", first, second, f"CPU level {level}", "CPU level v2", "HEADFIT_CPU"):
        assert part in str(caught.value)


def test_fits_want_the_level_of_this_process(client):
    level = client.run(level_setter(), "v2")
    try:
        X = np.eye(4)
        assert hf.certify(sp.eye_array(4), X, X, client=client).n == 4
        with pytest.raises(
            hf.errors.InputError, match="workers must have the build and CPU level of th"
        ):
            hf.fit(sp.eye_array(4), 2, client=client)
    finally:
        client.run(level_setter(), next(iter(level.values())))


def test_a_worker_of_another_level_that_joins_later_is_refused(client):
    checked = cluster.Cluster.of(client)
    assert checked is not None
    other = dataclasses.replace(checked, build=checked.build._replace(cpu="v2"))
    X = np.eye(4)
    with pytest.raises(hf.errors.InputError, match="on a worker that joined later"):
        hf.attention_topk(X, X, 1, client=other)


def test_other_versions_and_missing_packages_are_refused():
    here = cluster.own_build()
    assert cluster.common_build({"a": here, "b": here}) == here
    old = here._replace(version="0.0")
    with pytest.raises(hf.errors.InputError, match=r"must have headfit .*; got 0.0 on b, c"):
        cluster.common_build({"a": here, "b": old, "c": old})
    with pytest.raises(hf.errors.InputError, match="the worker b could not import headfit: Module"):
        cluster.common_build({"a": here, "b": ModuleNotFoundError("No module named 'headfit'")})
    workers = {str(i): here for i in range(6)}
    with pytest.raises(hf.errors.InputError, match=r"on 0, 1, 2, 3 and 2 more; .*v1.* on late"):
        cluster.common_build({**workers, "late": here._replace(cpu="v1")})


@pytest.mark.parametrize("wrong", ["tcp://127.0.0.1:8786", 5, object(), True, []])
def test_what_is_no_client_is_refused(client, wrong):
    A, X = sp.eye_array(4), np.eye(4)
    for call in (
        lambda: hf.certify(A, X, X, client=wrong),
        lambda: hf.attention_topk(X, X, 1, client=wrong),
        lambda: hf.fit(A, 2, client=wrong),
    ):
        with pytest.raises(hf.errors.InputError, match=r"client must be a dask\.distributed"):
            call()


def test_what_workers_cannot_do_is_refused(client):
    A, X = sp.eye_array(4), np.eye(4)
    with pytest.raises(hf.errors.InputError, match="client must not be given with matrix"):
        hf.certify(A, matrix=X, client=client)
    with pytest.raises(hf.errors.InputError, match="progress counts blocks of rows that a client"):
        hf.certify(A, X, X, progress=True)
    with pytest.raises(hf.errors.InputError, match="progress counts blocks of rows that a client"):
        hf.attention_topk(X, X, 1, progress=True)


def test_a_cluster_without_workers_is_refused():
    X = np.eye(4)
    with (
        distributed.LocalCluster(**SMALL) as empty,
        distributed.Client(empty) as alone,
        pytest.raises(hf.errors.InputError, match="client must have at least one worker"),
    ):
        hf.attention_topk(X, X, 1, client=alone)
    with pytest.raises(hf.errors.InputError, match="client must be connected to a scheduler"):
        hf.attention_topk(X, X, 1, client=alone)


def test_headfit_imports_no_dask():
    code = "import sys, headfit; print('dask' in sys.modules or 'distributed' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(hf.__file__).parents[1])}
    run = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    assert run.strip() == "False"
