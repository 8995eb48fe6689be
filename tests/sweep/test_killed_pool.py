"""A sweep with worker processes that is killed twenty times: nothing is lost, no worker stays."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

import headfit as hf

KILLS = 20
PROCESSES = 2
MOST_BEGUN = 6  # points that begin between a start and its kill
LATEST = 0.02  # seconds from the beginning of such a point to the kill
MANY = 10**9

# Forks a child that sweeps with worker processes. It kills the child as soon as so many points have
# begun as it reads, and a moment later than that; then it says whether the child was still there.
#
# Starting a worker takes a second of imports. Here a process that has imported everything forks the
# workers instead: the server of multiprocessing's start method "forkserver". Each child uses the
# server that its parent started. It must not check whether the server still runs, since only the
# parent of a process can wait for it: `ensure_running` does nothing in the children. A server ends
# if its client is killed between the connection and the request. It serves one request after the
# other, so one that has served a process after the kill stays; otherwise the next child gets a new
# server.
FORKER = """
import multiprocessing, os, signal, sys, time
from multiprocessing import forkserver
from pathlib import Path
import headfit as hf, swept

def begun():
    return len(Path({log!r}).read_text().split()) if Path({log!r}).exists() else 0

def serve():
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        forkserver.ensure_running()
        probe = context.Process(target=int)
        try:
            probe.start()
        except (OSError, EOFError):  # the server is ending
            time.sleep(0.01)
        else:
            return probe.join()

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["headfit", "headfit.sweep", "swept"])
points = hf.sweep.grid(x=range({points}), log={log!r}, gate={gate!r})
for line in sys.stdin:
    wanted, delay = line.split()
    serve()
    child = os.fork()
    if not child:
        forkserver._forkserver.ensure_running = lambda: None
        multiprocessing.get_context = lambda _: context
        hf.sweep.run(
            points, {table!r}, function=swept.gated_square, workers={workers}, num_threads=1
        )
        os._exit(0)
    ended = 0
    while begun() < int(wanted) and not ended:
        time.sleep(0.002)
        ended, status = os.waitpid(child, os.WNOHANG)
    if not ended:
        time.sleep(float(delay))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    print(os.WIFSIGNALED(status), forkserver._forkserver._forkserver_pid, flush=True)
"""


def children(parent: int) -> list[int]:
    """Return the processes that a process has started and that are still there."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, above = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it has just ended
            continue
        if int(above) == parent and state != "Z":
            found.append(int(stat.parent.name))
    return found


def stored(table: Path) -> list[bytes]:
    """Return the whole lines of a table."""
    return table.read_bytes().split(b"\n")[:-1] if table.exists() else []


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are read in /proc")
def test_kills_lose_the_points_in_flight_alone_and_workers_end(swept, tmp_path, log):
    whole, table, gate = (tmp_path / name for name in ("whole", "table", "gate"))
    moments = random.Random(0)
    steps = [moments.randint(0, MOST_BEGUN) for _ in range(KILLS)]
    # While one worker waits at the gate, each other one begins one point more. There are points
    # left at the last kill even if a result of each of these is stored.
    count = sum(steps) + (PROCESSES - 1) * KILLS + 1
    code = FORKER.format(log=log, points=count, gate=str(gate), table=str(table), workers=PROCESSES)
    path = os.pathsep.join(sys.path)
    known: list[bytes] = []
    with subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as forker:  # fmt: skip
        assert forker.stdin
        assert forker.stdout
        for step in steps:
            begun = len(Path(log).read_text().split()) if Path(log).exists() else 0
            gate.write_text(str(begun + step))
            print(begun + step, moments.uniform(0, LATEST), file=forker.stdin, flush=True)
            killed, server = forker.stdout.readline().split()
            assert killed == "True"
            deadline = time.monotonic() + 60
            while children(int(server)) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert not children(int(server))
            now = stored(table)
            assert now[: len(known)] == known  # what was there stays, as it was
            known = now
        forker.stdin.close()
    assert 0 < len(known) < count
    gate.write_text(str(MANY))
    points = hf.sweep.grid(x=range(count), log=log, gate=str(gate))
    resumed = hf.sweep.run(points, table, function=swept.gated_square, workers=0, num_threads=1)
    assert not resumed.damaged
    assert stored(table)[: len(known)] == known
    assert len(Path(log).read_text().split()) <= count + PROCESSES * KILLS
    uninterrupted = hf.sweep.run(
        points, whole, function=swept.gated_square, workers=0, num_threads=1
    )
    for name in ("key", "x", "square", "third"):
        assert resumed.columns[name].tolist() == uninterrupted.columns[name].tolist()
