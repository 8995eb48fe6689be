"""Sweeps that are killed lose no result, and worker processes end with their sweep."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import headfit as hf

KILLS = 20
LONGEST = 0.12  # seconds from a start to its kill

# The kills come after 1.3 seconds of sweeping in all, the points sleep for 4.5: a fast machine
# must not finish before the last kill.
POINTS = 150
SECONDS = 0.03

# Forks a child that sweeps, says so, and kills it after the time that it reads.
FORKER = """
import os, signal, sys, time
import headfit as hf, swept
points = hf.sweep.grid(x=range({points}), log={log!r}, seconds={seconds})
for line in sys.stdin:
    child = os.fork()
    if not child:
        hf.sweep.run(points, {table!r}, function=swept.slow_square, workers=0, num_threads=1)
        os._exit(0)
    time.sleep(float(line))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    print(os.WIFSIGNALED(status), flush=True)
"""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def results(table: Path) -> dict[int, tuple[float, float]]:
    return {row["x"]: (row["square"], row["third"]) for row in hf.sweep.load(table).rows}


def test_kill_at_random_moments_loses_the_point_in_flight_alone(swept, tmp_path, log):
    whole, table = tmp_path / "whole.jsonl", tmp_path / "table.jsonl"
    points = hf.sweep.grid(x=range(POINTS), log=log, seconds=SECONDS)
    quick = hf.sweep.grid(x=range(POINTS), log=log, seconds=0.0)
    hf.sweep.run(quick, whole, function=swept.slow_square, workers=0, num_threads=1)
    Path(log).unlink()
    code = FORKER.format(points=POINTS, log=log, table=str(table), seconds=SECONDS)
    moments = random.Random(0)
    killed, known = 0, {}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment(), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    ) as forker:  # fmt: skip
        assert forker.stdin
        assert forker.stdout
        for _ in range(KILLS):
            print(moments.uniform(0.01, LONGEST), file=forker.stdin, flush=True)
            killed += forker.stdout.readline() == "True\n"
            if table.exists():
                now = results(table)
                assert known.items() <= now.items()  # what was there stays, as it was
                assert not hf.sweep.load(table).damaged
                known = now
        forker.stdin.close()
    assert killed == KILLS
    assert len(known) < POINTS  # otherwise the last kills hit nothing
    hf.sweep.run(points, table, function=swept.slow_square, workers=0, num_threads=1)
    assert results(table) == results(whole)
    computed = len(Path(log).read_text().split())
    assert POINTS <= computed <= POINTS + KILLS


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z"
    return False


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are read in /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_their_sweep(how, swept, log, table):
    code = (
        "import signal, headfit as hf, swept\n"
        # A shell that starts the tests in the background has Ctrl-C ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"points = hf.sweep.grid(x=[1, 2], log={log!r})\n"
        f"hf.sweep.run(points, {str(table)!r}, function=swept.endless, workers=2, num_threads=1)"
    )
    sweep = subprocess.Popen(
        [sys.executable, "-c", code], env=environment(), stderr=subprocess.PIPE, text=True
    )
    workers: list[int] = []
    deadline = time.monotonic() + 120
    while len(workers) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
        if Path(log).exists():
            workers = [int(pid) for pid in Path(log).read_text().split()]
    sweep.send_signal(how)
    _, said = sweep.communicate(timeout=60)
    assert sweep.returncode in (-how, 1, 130)
    if how == signal.SIGINT:
        assert said.rstrip().endswith("KeyboardInterrupt")
        assert said.count("Traceback") == 1  # the workers say nothing
    deadline = time.monotonic() + 30
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, workers))
    assert len(hf.sweep.load(table)) == 0
    hf.sweep.run([{"x": 1}], table, function=swept.square, workers=0)  # it is no longer locked


def test_the_point_of_a_dead_worker_is_computed_again(swept, log, table):
    points = hf.sweep.grid(x=range(5), log=log)
    found = hf.sweep.run(points, table, function=swept.deadly, workers=2, num_threads=1)
    assert [row["square"] for row in found.rows] == [0, 1, 4, 9, 16]
    begun = Path(log).read_text().split()
    assert set(begun) == {"0", "1", "2", "3", "4"}
    assert begun.count("2") == 2
    assert len(begun) <= 7  # the other worker ended as well


def test_a_point_that_kills_its_workers_fails_after_a_few(swept, log, table):
    points = hf.sweep.grid(x=range(5), log=log, once=False)
    found = hf.sweep.run(points, table, function=swept.deadly, workers=1, num_threads=1)
    assert [row["x"] for row in found.rows] == [0, 1, 3, 4]
    (failure,) = found.failures
    assert failure["x"] == 2
    assert failure["exception"].startswith("BrokenProcessPool: ")
    assert Path(log).read_text().split().count("2") == 2  # once beside others, and once alone
