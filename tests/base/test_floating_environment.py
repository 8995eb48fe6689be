"""Programs that change the floating-point mode: answers are the same, and their mode is kept.

PyTorch's `set_flush_denormal(True)` makes subnormal numbers count as zero, `fesetround` rounds
every operation in another direction. Both hold for the calling thread and for threads that it
starts.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import struct
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tests.adversarial.flushing import can_flush, flushing
from tests.references import assert_same, core_arrays

import headfit as hf

UPWARD, DOWNWARD, TO_ZERO = 0x800, 0x400, 0xC00  # rounding modes of <fenv.h> on x86-64
ENVIRONMENTS = ["flushing", "upward", "downward", "to zero", "flushing and upward"]
LIBRARY = ctypes.CDLL(ctypes.util.find_library("m")) if can_flush() else None

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="no access to the control register")


@contextlib.contextmanager
def environment(name: str) -> Iterator[None]:
    assert LIBRARY is not None
    modes = {"upward": UPWARD, "downward": DOWNWARD, "to zero": TO_ZERO}
    found = LIBRARY.fegetround()
    for mode in (m for word, m in modes.items() if word in name):
        assert LIBRARY.fesetround(mode) == 0
    try:
        with flushing("flushing" in name):
            yield
    finally:
        LIBRARY.fesetround(found)


def control() -> int:
    """Return this thread's floating-point control register without its status flags."""
    assert LIBRARY is not None
    state = ctypes.create_string_buffer(64)
    LIBRARY.fegetenv(state)
    (register,) = struct.unpack_from("<I", state, 28)
    return int(register) & ~0x3F


RNG = np.random.default_rng(0)
Q, K, V = RNG.standard_normal((3, 80, 12))
TINY_Q = (Q * 1e-39).astype("float32")  # subnormal
LARGE_K = (K[:, :3] * 1e30).astype("float32")
TINY_V = (V * 1e-310).astype("float64")
A = hf.patterns.random_regular(80, 3, gamma=2.0, rng=0)
SMALL_A, SMALL_X = A.toarray() * 1e-310, np.hstack([Q, K]) * 1e-200
SMALL_DIAGONAL = np.eye(9) * 1e-310
LARGE_Q, SMALL_Q = 3 * Q, Q * 1e-310
TINY = hf.Attention(TINY_Q, K.astype("float32"), scale=3e38)
KEYS = hf.methods.KeyTable.random(80, 30, rng=1)
MODULE = hf.SelfAttention(*RNG.standard_normal((2, 24, 12)))
WIDE = hf.SelfAttention(*RNG.standard_normal((2, 30, 12)))
LOOSE = {"leak": 0.1, "distortion": 0.2, "rng": 3}


def judged(c: hf.results.Certificate) -> list[Any]:
    numbers = [c.leak, c.distortion, c.max_logit, c.rounding_bound, c.tv_worst, c.q_norm, c.k_norm]
    return [c.status, *numbers, c.row_leak, c.row_distortion, c.row_tv, c.row_status]


def kept(c: hf.results.SelectionCertificate) -> list[Any]:
    return [c.status, c.row_mass, c.row_most, c.sure, c.columns]


def fitted(head: hf.results.Fit) -> list[Any]:
    return [head.Q, head.K, head.X, *judged(head.certificate)]


# Computations, as functions of the number of threads.
WORK: dict[str, Callable[[int], list[Any]]] = {
    "certify": lambda t: judged(hf.certify(A, Q, K, leak=0.9, num_threads=t)),
    "certify subnormal": lambda t: judged(hf.certify(A, TINY, leak=0.9, num_threads=t)),
    "certify float32": lambda t: judged(
        hf.certify(A, TINY, leak=0.9, kernel="float32", num_threads=t)
    ),
    "certify matrix": lambda t: judged(hf.certify(A, matrix=SMALL_A, leak=0.9, num_threads=t)),
    "certify module": lambda t: judged(hf.certify(A, MODULE(SMALL_X), leak=0.9, num_threads=t)),
    "certify_selection": lambda t: kept(
        hf.certify_selection(
            TINY,
            Q_index=TINY_Q[:, :3],
            K_index=LARGE_K,
            columns=True,
            keys=20,
            window=3,
            first=1,
            num_threads=t,
        )
    ),
    "target": lambda t: [*core_arrays(hf.Target(A, num_threads=t))],
    "normalised target": lambda t: [
        *core_arrays(hf.Target(SMALL_DIAGONAL, normalize=True, num_threads=t))
    ],
    "matrix": lambda t: [TINY.matrix(num_threads=t), hf.attention_matrix(Q, K, num_threads=t)],
    "logits": lambda t: [hf.attention_logits(TINY_Q, TINY_Q, scale=1e38, num_threads=t)],
    "topk": lambda t: [*hf.attention_topk(Q[None], K[None], 4, num_threads=t)],
    "apply": lambda t: [hf.attention_apply(Q, K, TINY_V, num_threads=t)],
    "stats": lambda t: [
        *(lambda s: (s.entropy, s.log_sum, s.max_weight, s.keys_for_share))(
            hf.attention_stats(LARGE_Q, K, shares=(0.5,), num_threads=t)
        )
    ],
    "learned": lambda t: fitted(hf.fit(A, 9, num_threads=t, **LOOSE)),
    "bfloat16": lambda t: fitted(hf.fit(A, 11, dtype="bfloat16", num_threads=t, **LOOSE)),
    "max-margin": lambda t: fitted(
        hf.fit(A, method=hf.methods.MaxMargin(keys=KEYS), num_threads=t, **LOOSE)
    ),
    "projection": lambda t: fitted(
        hf.fit(A, 300, method="projection", num_threads=t, leak=0.4, distortion=9.0, rng=1)
    ),
    "soft": lambda t: [
        *(lambda f: (f.Q, f.K, f.comparison.tv_mean, f.comparison.kl_mean))(
            hf.shrink(hf.Attention(Q, K), dim=4, effort=5, curve_dims=(), num_threads=t)
        )
    ],
    "sparsify": lambda t: [
        *(lambda s: (s.matrix.data, s.matrix.indices, s.dropped_mass))(
            hf.sparsify(LARGE_Q, K, per_row=5, num_threads=t)
        )
    ],
    "describe": lambda t: [
        *(np.asarray(x) for x in hf.describe(Q, K, num_threads=t).columns().values())
    ],
    "module": lambda t: [MODULE.input_for(Q, K), *MODULE.input_for(SMALL_Q, K)],
    "wide module": lambda t: [WIDE.input_for(Q, K)],
    "lower bound": lambda t: [hf.bounds.lower(A).dim, hf.bounds.random_keys_dim(1000, 4)],
    "keys": lambda t: [
        hf.methods.KeyTable.random(40, 7, rng=1).keys,
        hf.methods.KeyTable.cyclic(40, 4).keys,
    ],
    "rotation": lambda t: [hf.SelfAttention.random(6, rng=1).weights],
}


@pytest.fixture(scope="module")
def expected() -> dict[str, list[Any]]:
    return {name: work(1) for name, work in WORK.items()}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", WORK)
@pytest.mark.parametrize("asked", ENVIRONMENTS)
def test_other_arithmetic_changes_nothing(
    asked: str, name: str, threads: int, expected: dict[str, list[Any]]
) -> None:
    with environment(asked):
        before = control()
        found = WORK[name](threads)
        after = control()
    assert before == after
    assert_same(found, expected[name])


@pytest.mark.parametrize("asked", ENVIRONMENTS)
def test_errors_leave_the_environment_as_it_was(asked: str) -> None:
    with environment(asked):
        before = control()
        for call in (
            lambda: hf.certify(np.eye(3), np.full((3, 2), np.nan), np.ones((3, 2))),
            lambda: hf.attention_matrix(np.full((3, 2), np.nan), np.ones((3, 2)), num_threads=2),
            lambda: hf.Target(np.ones((3, 3))),
            lambda: hf.fit(A, 0),
        ):
            with pytest.raises(hf.HeadfitError):
                call()
            assert control() == before


def test_threads_of_other_arithmetic_get_the_same(expected: dict[str, list[Any]]) -> None:
    """Python threads do not inherit the mode from each other; each sets its own."""

    def work(number: int) -> list[Any]:
        with environment(ENVIRONMENTS[number % len(ENVIRONMENTS)]):
            before = control()
            found = WORK["certify subnormal"](2)
            assert control() == before
        return found

    with ThreadPoolExecutor(5) as pool:
        for found in pool.map(work, range(20)):
            assert_same(found, expected["certify subnormal"])


def test_pytorch_that_flushes() -> None:
    torch = pytest.importorskip("torch")
    name = "certify subnormal"
    before = WORK[name](2)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush")
    try:
        assert_same(WORK[name](2), before)
        assert float.fromhex("0x1p-1074") * 4.0 == 0.0  # the thread's own mode is unchanged
    finally:
        torch.set_flush_denormal(False)


def test_this_machine_was_asked() -> None:
    """The tests above are meaningful: another mode changes these numbers."""
    assert sys.float_info.min / 4 > 0
    with environment("flushing"):
        assert sys.float_info.min / np.float64(4) == 0
    third = np.float64(1) / np.float64(3)
    with environment("upward"):
        assert np.float64(1) / np.float64(3) > third
    with environment("downward"):
        assert -np.float64(1) / np.float64(3) < -third
