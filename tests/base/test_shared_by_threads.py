"""Objects shared by sixteen threads give the same answers as for a single thread."""

from __future__ import annotations

import copy
import os
import pickle
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
from tests.references import assert_same, core_arrays

import headfit as hf
from headfit._target.certify import as_read
from headfit._target.target import as_target
from headfit.errors import InputError

THREADS = 16
ROUNDS = 2  # in each, all threads ask for the derived values of a new object at once
TURNS = 2

Q, K, V = np.random.default_rng(0).standard_normal((3, 96, 16))
PATTERN = hf.patterns.random_regular(96, 3, gamma=2.0, rng=0)
LEARNED = hf.fit(PATTERN, 9, leak=0.1, distortion=0.2, rng=1)
HALF = (Q.astype("float16"), K.astype("float16"))


def at_once(work: Callable[[int], Any]) -> list[Any]:
    """Call work(0), ..., from threads that all start together."""
    barrier = Barrier(THREADS)

    def one(number: int) -> Any:
        barrier.wait()
        return [work(number) for _ in range(TURNS)]

    with ThreadPoolExecutor(THREADS) as pool:
        return [found for turns in pool.map(one, range(THREADS)) for found in turns]


def dense_module(width: int) -> hf.SelfAttention:
    return hf.SelfAttention(*np.random.default_rng(1).standard_normal((2, width, 16)))


def certificate_parts(c: hf.results.Certificate) -> list[Any]:
    return [c.status, c.leak, c.distortion, c.row_leak, c.row_distortion, c.row_tv, c.row_status]


def attention_answers(attention: hf.Attention) -> list[Any]:
    top = attention.topk(3)
    stats = attention.stats()
    applied = attention.apply(V.astype("float32"))
    return [
        attention.Q, attention.K, attention.matrix(), applied, top.indices, top.data,
        stats.entropy, stats.log_sum,
        *certificate_parts(hf.certify(PATTERN, attention, leak=0.5, distortion=3.0)),
    ]  # fmt: skip


def target_answers(target: hf.Target) -> list[Any]:
    head = hf.fit(target, 9, leak=0.1, distortion=0.2, rng=1)
    bound = hf.bounds.lower(target)
    return [*core_arrays(target), target.mean_per_row, head.Q, head.K, bound.dim, repr(target)]


def keys_answers(table: hf.methods.KeyTable) -> list[Any]:
    head = hf.fit(PATTERN, method=hf.methods.MaxMargin(keys=table), dtype="float64")
    return [table.keys, head.Q, head.K, *certificate_parts(head.certificate)]


def head_answers(head: hf.results.Fit) -> list[Any]:
    return [head.X, head.attention.matrix(), *certificate_parts(hf.certify(PATTERN, head))]


def module_answers(module: hf.SelfAttention) -> list[Any]:
    X = module.input_for(Q, K)
    attention = module(X)
    errors = () if attention.errors is None else attention.errors
    return [X, module.W_Q, module.W_K, attention.Q, attention.K, *errors]


SHAREABLE: dict[str, tuple[Callable[[], Any], Callable[[Any], list[Any]]]] = {
    "square module": (lambda: dense_module(32), module_answers),
    "wide module": (lambda: dense_module(40), module_answers),
    "canonical module": (lambda: hf.SelfAttention.canonical(16, dtype="float64"), module_answers),
    "attention": (lambda: hf.Attention(Q, K, mask="causal"), lambda a: [a.matrix(), a.apply(V)]),
    "16-bit attention": (lambda: hf.Attention(*HALF), attention_answers),
    "target": (lambda: hf.Target(PATTERN), target_answers),
    "keys": (lambda: hf.methods.KeyTable.random(96, 32, rng=2, dtype="float64"), keys_answers),
    "fit": (lambda: copy.copy(LEARNED), head_answers),
    "nothing": (
        lambda: None,
        lambda _: [
            hf.fit(PATTERN, 9, leak=0.1, distortion=0.2, rng=1).Q,
            hf.fit(PATTERN, 400, method="projection", rng=1, leak=0.4, distortion=9.0).Q,
            hf.patterns.random_regular(200, 5, rng=3).indices,
            hf.sparsify(Q, K, per_row=4).matrix.data,
            hf.describe(Q, K).statement(),
        ],
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("name", SHAREABLE)
def test_sixteen_threads_get_the_answers_of_one(name: str) -> None:
    make, ask = SHAREABLE[name]
    expected = ask(make())
    for _ in range(ROUNDS):
        shared = make()
        for found in at_once(lambda _, shared=shared: ask(shared)):
            assert_same(found, expected)


def test_solving_leaves_the_factors_alone() -> None:
    module = dense_module(32)
    module.input_for(Q, K)
    lu, pivots = module._lu_factors
    before = lu.tobytes(), pivots.tobytes()
    at_once(lambda _: module.input_for(Q, K))
    assert (lu.tobytes(), pivots.tobytes()) == before
    expected = scipy.linalg.lu_solve((lu, pivots), np.hstack([Q, K]).T).T
    np.testing.assert_array_equal(module.input_for(Q, K), expected)


def test_an_error_in_one_thread_is_an_error_in_each() -> None:
    weights = np.random.default_rng(1).standard_normal((32, 16))
    module = hf.SelfAttention(weights, weights)

    def message(_: int) -> str:
        with pytest.raises(InputError) as caught:
            module.input_for(Q, K)
        return str(caught.value)

    assert set(at_once(message)) == {
        "[W_Q W_K] must have rank 2 d = 32 for every Q and K to have an input; it has shape "
        "(32, 32) and rank 16"
    }


def test_warning_filters_are_left_alone() -> None:
    before = list(warnings.filters)
    at_once(lambda _: dense_module(32).input_for(Q, K))
    assert warnings.filters == before


def test_saving_leaves_the_umask_alone(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        at_once(lambda number: LEARNED.save(tmp_path / f"{number}.npz"))
        at_once(lambda _: LEARNED.save(tmp_path / "one.npz"))
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(old)
    files = sorted(tmp_path.iterdir())
    assert len(files) == THREADS + 1, files
    for path in files:
        assert path.stat().st_mode & 0o777 == 0o640
        np.testing.assert_array_equal(hf.load(path).Q, LEARNED.Q)


@pytest.mark.parametrize("width", [32, 40, None])
def test_a_module_travels_without_what_it_can_compute(width: int | None) -> None:
    module = dense_module(width) if width else hf.SelfAttention.canonical(16, dtype="float64")
    expected = module_answers(module)
    for other in (pickle.loads(pickle.dumps(module)), copy.copy(module), copy.deepcopy(module)):
        assert not {"_lu_factors", "_pseudo_inverse"} & set(other.__dict__)
        assert_same(module_answers(other), expected)
        with pytest.raises(ValueError, match="read-only"):
            other.weights[0, 0] = 1
        with pytest.raises(AttributeError, match="cannot assign to field"):
            other.scale = 2.0


def test_a_certificate_is_about_the_numbers_of_one_moment() -> None:
    """Another thread writes into all that a certificate reads: it may refuse, but never crash."""
    n = 300
    dense = hf.patterns.random_regular(n, 3, gamma=2.0, rng=0).toarray()
    pattern = sp.csr_array(dense)
    q, k = np.random.default_rng(0).standard_normal((2, n, 8))
    mask = np.ones((n, n), bool)
    ends = Event()

    def write() -> None:
        kept = pattern.indices.copy(), pattern.indptr.copy(), dense.copy()
        turn = 0
        while not ends.is_set():
            turn += 1
            pattern.indices[:] = kept[0] if turn % 2 else 2**30
            pattern.indptr[1:-1] = kept[1][1:-1] if turn % 3 else 2**30
            dense[:] = kept[2] if turn % 2 else 0
            q[turn % n] = turn % 5
            mask[:, turn % n] = turn % 2 == 0

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            for turn in range(60):
                A = pattern if turn % 2 else dense
                with suppress(InputError):
                    found = hf.certify(A, q, k, mask=mask, leak=0.5, num_threads=2)
                    assert found.row_status.size == n
                with suppress(InputError):
                    hf.certify(A, matrix=dense, leak=0.5, num_threads=2)
        finally:
            ends.set()
        writing.result()


def test_what_a_certificate_reads_is_not_the_callers() -> None:
    n = 16
    A, mask = sp.csr_array(np.eye(n)), np.ones((n, n), bool)
    view = mask[:]  # may be written through still
    mask.flags.writeable = False
    q, bias = np.eye(n), np.zeros((n, n))
    head = as_read(hf.Attention(q, q, mask=mask, bias=bias), hf.Kernel())
    target = as_target(A, mask=mask)
    ours = [*head.stored, head.bias, head.mask, target.mask, target.matrix.data]
    ours += [target.matrix.indices, target.matrix.indptr]
    for theirs in (q, bias, view, A.data, A.indices, A.indptr):
        assert not any(np.may_share_memory(theirs, x) for x in ours)
