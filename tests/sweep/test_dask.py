"""Sweeps on a cluster of Dask, with a worker that is killed midway."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import headfit as hf
from headfit import cli
from headfit._sweep.dask_cluster import PER_THREAD, DaskCluster
from headfit._sweep.work import Work
from headfit.errors import HeadfitError, InputError

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
    points = hf.grid(pattern="random_regular", n=[24, 32], k=2, dim=6, seed=[0, 1])
    here = hf.sweep(points, tmp_path / "here", processes=0, num_threads=1)
    there = hf.sweep(points, tmp_path / "there", client=client)
    for name in ("key", "certified", "dim_found", "leak_found", "max_norm_found", "threads"):
        assert here.columns[name].tolist() == there.columns[name].tolist()


def test_failures_and_results_come_back(client, store, swept, log):
    points = hf.grid(x=range(6), log=log)
    found = hf.sweep(points, store, run=swept.picky, client=client)
    assert [row["x"] for row in found.rows] == [0, 2, 4]
    assert sorted(row["error"] for row in found.failures) == [
        "SystemExit", "ValueError", "headfit.errors.InputError",
    ]  # fmt: skip
    hf.sweep(points, store, run=swept.picky, client=client)
    assert len(Path(log).read_text().split()) == 6
    hf.sweep(points, store, run=swept.picky, client=client, retry_failed=True)
    assert len(Path(log).read_text().split()) == 9


def test_few_points_are_in_flight(client, store, swept, monkeypatch):
    seen = []

    def submit(self: DaskCluster, task: Any) -> None:
        submitted(self, task)
        seen.append(self.in_flight)

    submitted = DaskCluster.submit
    monkeypatch.setattr(DaskCluster, "submit", submit)
    hf.sweep(hf.grid(x=range(20)), store, run=swept.square, client=client)
    assert len(seen) == 20
    assert max(seen) == PER_THREAD * 2  # two workers of one thread


def test_a_worker_killed_midway_loses_no_result(client, store, swept, log):
    points = hf.grid(x=range(60), log=log, seconds=0.05)
    kept = []

    def kill(line: str) -> None:
        if line.startswith("10 of"):
            kept.append(len(hf.load_sweep(store)))
            os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)

    found = hf.sweep(points, store, run=swept.slow_square, client=client, progress=kill)
    assert kept == [10]
    assert [row["square"] for row in found.rows] == [x * x for x in range(60)]
    assert not found.failures
    client.wait_for_workers(2, timeout=600)


def test_a_point_that_kills_its_workers_takes_no_other_with_it(swept, store, log):
    points = hf.grid(x=range(4), log=log, once=False)
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        made(n_workers=1) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        found = hf.sweep(points, store, run=swept.deadly, client=client)
    assert [row["x"] for row in found.rows] == [0, 1, 3]
    (failure,) = found.failures
    assert (failure["x"], failure["error"]) == (2, "distributed.scheduler.KilledWorker")
    # Once beside others, and once alone.
    assert Path(log).read_text().split().count("2") == 2


def test_a_client_that_loses_its_scheduler_is_an_error_that_says_so(cluster, swept):
    (task,) = Work.of(swept.square, None).tasks([{"x": 1}])
    with distributed.Client(cluster, set_as_default=False) as client:
        engine = DaskCluster(client, 1)
        client.close()
        with pytest.raises(HeadfitError, match="the cluster gave up: its scheduler ended"):
            _ = engine.most
        with pytest.raises(HeadfitError, match="the cluster gave up: its scheduler ended"):
            engine.submit(task)


def test_the_command_takes_a_scheduler(cluster, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("sweep.toml").write_text('[grid]\npattern = "band"\nn = [8, 12]\nneighbors = 1\ndim = 6\n')
    given = ["sweep", "sweep.toml", "--out", "results", "--scheduler", cluster.scheduler_address]
    assert cli.main(given) == 0
    assert "2 points done, 0 failed" in capsys.readouterr().out
    assert cli.main([*given, "--processes", "2"]) == 2


def test_workers_that_cannot_import_the_function_are_named(client, store, tmp_path, monkeypatch):
    (tmp_path / "elsewhere.py").write_text("def half(x):\n    return {'half': x / 2}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    half = import_module("elsewhere").half
    with pytest.raises(InputError, match="cannot import run: No module named 'elsewhere'"):
        hf.sweep([{"x": 1}], store, run=half, client=client)
    assert not store.exists()


def test_a_cluster_without_workers_is_an_error(store, swept):
    with (
        made(n_workers=0) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
        pytest.raises(InputError, match="client must have at least one worker"),
    ):
        hf.sweep([{"x": 1}], store, run=swept.square, client=client)
    assert not store.exists()


def test_a_worker_whose_connection_breaks_has_left(client, store, swept, monkeypatch):
    def run(self: Any, function: Any, *given: Any, **options: Any) -> dict[str, Any]:
        first, *rest = asked(self, function, *given, **options).items()
        return {first[0]: ConnectionResetError("Connection reset by peer"), **dict(rest)}

    asked = distributed.Client.run
    monkeypatch.setattr(distributed.Client, "run", run)
    assert len(hf.sweep([{"x": 1}], store, run=swept.square, client=client)) == 1


def test_an_interrupt_of_a_function_is_a_failure_of_its_point(client, store, swept):
    points = [{"kind": kind} for kind in ("text", "interrupt")]
    found = hf.sweep(points, store, run=swept.own_classes, client=client)
    assert [row["value"] for row in found.rows] == ["x"]
    assert [row["error"] for row in found.failures] == ["KeyboardInterrupt"]


def test_a_client_must_be_one_that_is_connected(cluster, store, swept):
    with (
        distributed.Client(cluster, set_as_default=False) as client,
        pytest.raises(InputError, match="processes must not be given beside a client"),
    ):
        hf.sweep([{"x": 1}], store, run=swept.square, client=client, processes=2)
    with pytest.raises(InputError, match="client must be connected"):
        hf.sweep([{"x": 1}], store, run=swept.square, client=client)
    with pytest.raises(InputError, match=r"client must be a dask\.distributed\.Client"):
        hf.sweep([{"x": 1}], store, run=swept.square, client=cluster)
    assert not store.exists()
