"""Ctrl-C during long calls: they end soon with a KeyboardInterrupt, and the package still works."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from headfit._base.calls import AT_ONCE, interruptible, short_blocks

SETTLED = 0.3  # seconds into the call
SOON = 30.0  # a fraction of a second on a machine that is not busy

# Preparations, and a call that takes seconds if it is not interrupted.
LONG = {
    "certify with long rows": (
        "Q = rng.random((32, 2_000_000), dtype='float32')",
        "hf.certify(np.eye(32), Q, Q)",
    ),
    "max-margin": (
        "A = hf.patterns.random_regular(4096, k=8, rng=0)",
        "hf.fit(A, 96, method='max-margin')",
    ),
    "factorisation": (
        "W = rng.random((2, 6000, 3000), dtype='float32'); module = hf.SelfAttention(*W)",
        "module.input_for(np.ones((1, 3000)), np.ones((1, 3000)))",
    ),
    "pseudo-inverse": (
        "W = rng.random((2, 4000, 1000), dtype='float32'); module = hf.SelfAttention(*W)",
        "module.input_for(np.ones((1, 1000)), np.ones((1, 1000)))",
    ),
    "dense target": (
        "A = np.full((12_000, 12_000), 1 / 12_000, 'float32')",
        "while True: hf.Target(A)",
    ),
    "random pattern": ("", "hf.patterns.random_regular(3_000_000, 16)"),
    "complement of a random pattern": ("", "hf.patterns.random_regular(12_000, 11_000)"),
    "values with long rows": (
        "Q = rng.random((64, 4), dtype='float32'); V = rng.random((64, 1_000_000), 'float32')",
        "while True: hf.attention_apply(Q, Q, V)",
    ),
    "a rotation of many latents": (
        "options = hf._core.LatentOptions(bits=[], latents_per_step=2**48, rank=5000, "
        "total_bits=0, steps=0, rows=0, seed=0); "
        "spectrum = np.zeros((1, 5000)), np.ones((1, 5000)), np.eye(5000)",
        "hf._core.principal_latents(spectrum, options)",
    ),
    "projection to many dimensions": (
        "A = hf.patterns.random_regular(64, 8, rng=0)",
        "while True: hf.fit(A, 2_000_000, method='projection', leak=0.4, distortion=9.0)",
    ),
}

CHILD = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # even where it is ignored
import numpy as np
import headfit as hf
import headfit._core  # the signal is for the call, not for the loading of the core
rng = np.random.default_rng(0)
{prepare}
print("ready", flush=True)
try:
    {call}
    print("finished", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
assert hf.certify(np.eye(3), 4 * np.eye(3), np.eye(3), scale=1.0).holds
print("works", flush=True)
"""


@pytest.mark.parametrize("name", LONG)
def test_ctrl_c_is_heard_soon(name: str) -> None:
    prepare, call = LONG[name]
    code = CHILD.format(prepare=prepare, call=call)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "ready\n"
            time.sleep(SETTLED)
            child.send_signal(signal.SIGINT)
            start = time.perf_counter()
            assert child.stdout.readline() == "interrupted\n"
            assert time.perf_counter() - start < SOON
            assert child.stdout.readline() == "works\n"
        finally:
            child.kill()  # the process would wait for its factorisation


# Calls in a thread of their own -------------------------------------------------------


def thread_of(_: object = None) -> int:
    return threading.get_ident()


def test_only_long_calls_get_a_thread() -> None:
    here = threading.get_ident()
    assert interruptible(AT_ONCE - 1, thread_of) == here
    assert interruptible(AT_ONCE, thread_of) != here
    found: list[int] = []
    other = threading.Thread(target=lambda: found.append(interruptible(AT_ONCE, thread_of)))
    other.start()
    other.join()
    assert found == [other.ident]  # threads other than the main one get no signals


def test_errors_and_error_states_pass_through() -> None:
    def divide(x: float) -> float:
        return float(np.float64(1) / np.float64(x))

    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        interruptible(AT_ONCE, divide, 0.0)
    with np.errstate(divide="ignore"):
        assert interruptible(AT_ONCE, divide, x=0.0) == np.inf


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 1000])
@pytest.mark.parametrize("operations", [0.0, 1e6, 1e8, 1e12])
def test_short_blocks_cover_everything_once(count: int, operations: float) -> None:
    blocks = list(short_blocks(count, operations))
    places = [i for block in blocks for i in range(count)[block]]
    assert places == list(range(count))
    assert all(
        block.stop - block.start <= max(16, AT_ONCE / max(operations, 1)) for block in blocks
    )
