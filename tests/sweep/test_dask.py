"""Sweeps on a cluster of Dask, with a worker that is killed midway."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import headfit as hf
from headfit import cli
from headfit.errors import HeadfitError

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")

FUNCTIONS = str(Path(__file__).parent / "functions")


def made(n_workers: int) -> Any:
    # Dask warns of its own timings, ports and sockets on a busy machine.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return distributed.LocalCluster(
            n_workers=n_workers, threads_per_worker=1, dashboard_address=None, processes=True
        )


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FUNCTIONS)  # workers start with the path of this process
        with made(n_workers=2) as workers:
            yield workers


@pytest.fixture
def client(cluster: Any) -> Iterator[Any]:
    with distributed.Client(cluster, set_as_default=False) as client:
        yield client


def test_fits_on_a_cluster_are_those_of_this_process(client, tmp_path):
    points = hf.sweep.grid(pattern="random_regular", n=[24, 32], k=2, dim=6, seed=[0, 1])
    here = hf.sweep.run(points, tmp_path / "here", workers=0, num_threads=1)
    there = hf.sweep.run(points, tmp_path / "there", executor=client.get_executor())
    for name in ("key", "certified", "dim_found", "leak_found", "max_norm_found", "threads"):
        assert here.columns[name].tolist() == there.columns[name].tolist()


def test_failures_and_results_come_back(client, table, swept, log):
    points = hf.sweep.grid(x=range(6), log=log)
    options = {"function": swept.picky, "executor": client.get_executor()}
    found = hf.sweep.run(points, table, **options)
    assert [row["x"] for row in found.rows] == [0, 2, 4]
    assert sorted(row["exception"].split(":")[0] for row in found.failures) == [
        "InputError", "SystemExit", "ValueError",
    ]  # fmt: skip
    hf.sweep.run(points, table, **options)
    assert len(Path(log).read_text().split()) == 6
    hf.sweep.run(points, table, **options, retry_failed=True)
    assert len(Path(log).read_text().split()) == 9


def test_a_worker_killed_midway_loses_no_result(client, table, swept, log):
    points = hf.sweep.grid(x=range(60), log=log, seconds=0.05)
    kept = []

    def kill(line: str) -> None:
        if line.startswith("10 of"):
            kept.append(len(hf.sweep.load(table)))
            os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)

    found = hf.sweep.run(
        points, table, function=swept.slow_square, executor=client.get_executor(), progress=kill
    )
    assert kept == [10]
    assert [row["square"] for row in found.rows] == [x * x for x in range(60)]
    assert not found.failures
    client.wait_for_workers(2, timeout=600)


@pytest.mark.full
def test_a_point_that_kills_its_workers_takes_no_other_with_it(swept, table, log):
    points = hf.sweep.grid(x=range(4), log=log, once=False)
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        made(n_workers=1) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        executor = client.get_executor()
        found = hf.sweep.run(points, table, function=swept.deadly, executor=executor)
    assert [row["x"] for row in found.rows] == [0, 1, 3]
    (failure,) = found.failures
    assert failure["x"] == 2
    assert failure["exception"].startswith("KilledWorker: ")
    # Once beside others, and once alone.
    assert Path(log).read_text().split().count("2") == 2


def test_an_executor_whose_client_closes_is_an_error(cluster, table, swept, log):
    with distributed.Client(cluster, set_as_default=False) as client:
        executor = client.get_executor()

        def close(line: str) -> None:
            if line.startswith("2 of"):
                client.close()

        points = hf.sweep.grid(x=range(30), log=log, seconds=0.05)
        for _ in range(2):
            with pytest.raises(HeadfitError, match="executor: "):
                hf.sweep.run(
                    points, table, function=swept.slow_square, executor=executor, progress=close
                )
    assert 2 <= len(hf.sweep.load(table)) < 30


def test_the_command_takes_a_scheduler(cluster, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("sweep.toml").write_text('[grid]\npattern = "band"\nn = [8, 12]\nneighbors = 1\ndim = 6\n')
    words = ["sweep", "sweep.toml", "--out", "results", "--scheduler", cluster.scheduler_address]
    assert cli.main(words) == 0
    assert "2 points done, 0 failed" in capsys.readouterr().out
    assert cli.main([*words, "--workers", "2"]) == 2


def test_workers_that_cannot_import_the_function_are_named(client, table, tmp_path, monkeypatch):
    (tmp_path / "elsewhere.py").write_text("def half(x):\n    return {'half': x / 2}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    half = import_module("elsewhere").half
    with pytest.raises(HeadfitError, match=r"its workers cannot import elsewhere\.half"):
        hf.sweep.run([{"x": 1}], table, function=half, executor=client.get_executor())
    assert len(hf.sweep.load(table)) == 0


def test_an_interrupt_of_a_function_is_a_failure_of_its_point(client, table, swept):
    points = [{"kind": kind} for kind in ("text", "interrupt")]
    executor = client.get_executor()
    found = hf.sweep.run(points, table, function=swept.own_classes, executor=executor)
    assert [row["value"] for row in found.rows] == ["x"]
    assert [row["exception"] for row in found.failures] == ["KeyboardInterrupt: "]


@pytest.mark.full
def test_a_function_of_a_script_reaches_the_workers(cluster, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import headfit as hf\n"
        "from distributed import Client\n"
        "def double(x):\n    return {'double': 2 * x}\n"
        "if __name__ == '__main__':\n"
        f"    with Client({cluster.scheduler_address!r}) as client:\n"
        "        swept = hf.sweep.run([{'x': 1}, {'x': 2}], 'table', function=double,\n"
        "                             executor=client.get_executor())\n"
        "    print([row['double'] for row in swept.rows])\n"
    )
    ran = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, timeout=120,
    )  # fmt: skip
    assert ran.stdout == "[2, 4]\n", ran.stderr
