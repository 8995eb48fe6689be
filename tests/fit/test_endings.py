"""Why a fit ended: a fit cut short is not called a failure, and hints say what to try."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headfit as hf
from headfit import cli
from headfit._base.calls import calls_until
from headfit._fit import head as heads
from headfit._fit.method import doubled, galloping, tried
from headfit._target.target import global_columns, heavy_notes

A = hf.patterns.random_regular(128, k=4, gamma=2.0, rng=0)
PROJECTION = {"method": "projection", "leak": 0.3, "distortion": 2.0}


# The search ---------------------------------------------------------------------------


def trial(dim: int, least: int, cut: set[int], reason: str = "time limit") -> hf.results.Trial:
    holds = dim >= least and dim not in cut
    why = "certified" if holds else reason if dim in cut else "steps"
    return hf.results.Trial(dim, holds, 0.1, 0.1, 0.0, 0, why)


@pytest.mark.parametrize("reason", ["time limit", "callback"])
@pytest.mark.parametrize("cut", [5, 6, 7, 9, 12])
@pytest.mark.parametrize("least", [5, 7, 12])
def test_a_size_that_was_cut_is_not_refuted(least: int, cut: int, reason: str) -> None:
    for sizes in (galloping(9, 1, 100), doubled(3, 100, "the end")):
        search = tried(sizes, lambda d, _: trial(d, least, {cut}, reason), math.inf)
        dims = [t.dim for t in search.trials]
        assert search.dim == min((t.dim for t in search.trials if t.holds), default=None)
        if cut in dims:
            assert dims[-1] == cut  # it ends the search
            assert search.stopped == f"the {reason}"
            assert search.was_cut == (reason == "time limit")
            assert f"{cut} not certified before the {reason}" in repr(search)
        else:
            assert not search.was_cut
            assert search.stopped == "bisected to neighbouring sizes"
            assert search.dim == least


def test_the_largest_size_may_be_cut_too() -> None:
    for sizes in (galloping(100, 1, 100), doubled(100, 100, "the end")):
        late = tried(sizes, lambda d, _: trial(d, 200, {100}), math.inf)
        assert (late.dim, late.stopped) == (None, "the time limit")


def test_doubling_keeps_to_its_deadline() -> None:
    for least, dim in ((50, None), (5, 16)):
        late = tried(doubled(16, 1000, "the end"), lambda d, _, x=least: trial(d, x, set()), 0.0)
        assert (late.dim, late.stopped, len(late.trials)) == (dim, "the time limit", 1)


def test_what_a_search_says_agrees_with_its_trials() -> None:
    search = hf.fit(A, method=hf.methods.Learned(effort=100), time_limit=3).search
    assert search is not None
    assert all((t.reason == "certified") == t.holds for t in search.trials)
    if search.trials[-1].reason == "time limit":
        assert search.was_cut
    if search.stopped == "bisected to neighbouring sizes":
        assert {t.dim: t.reason for t in search.trials}[search.dim - 1] == "steps"


def test_a_callback_ends_a_search() -> None:
    scans = []

    def few(*scan: Any) -> bool:
        scans.append(scan)
        return len(scans) < 3

    head = hf.fit(A, method=hf.methods.Learned(callback=few))
    assert head.search is not None
    assert [t.reason for t in head.search.trials] == ["callback"]
    assert head.search.stopped == "the callback"
    assert head.stopped == "callback"
    assert "proves nothing" in head.advice


# Fits ---------------------------------------------------------------------------------


ENDS: list[tuple[dict[str, Any], str, str]] = [
    ({"dim": 9}, "certified", "The certificate holds."),
    ({"dim": 6, "time_limit": 1e-6}, "time limit", "larger time_limit"),
    ({"time_limit": 1e-6}, "time limit", "larger time_limit"),
    ({"dim": 5, "method": hf.methods.Learned(effort=1)}, "steps", "larger dim, a higher effort"),
    (
        {"dim": 6, "method": hf.methods.Learned(callback=lambda *_: np.False_)},
        "callback",
        "callback ended the fit at d = 6",
    ),
    ({"dim": 3, "method": hf.methods.Learned(effort=20)}, "infeasible", "Ask for dim=4 or more"),
    ({"dim": 8, "method": "max-margin"}, "infeasible", "for these keys"),
    ({"dim": 40, **PROJECTION}, "stalled", "bounds.projection_dim"),
]


OBSTACLES = {
    "certified": None, "time limit": "time", "steps": "steps", "callback": "callback",
    "infeasible": "bound", "stalled": "method",
}  # fmt: skip


@pytest.mark.parametrize(("options", "stopped", "said"), ENDS)
def test_a_fit_says_why_it_ended(options: dict[str, Any], stopped: str, said: str) -> None:
    head = hf.fit(A, **options)
    assert head.stopped == stopped
    assert said in head.advice
    assert head.certificate.holds == (stopped == "certified")
    assert (f"NOT certified ({stopped})" in repr(head)) != head.certificate.holds
    if stopped not in ("certified", "infeasible"):
        assert "proves nothing" in head.advice
    if stopped == "infeasible" and head.method == "learned":
        assert head.lower_bound.dim > head.dim
        assert head.lower_bound.verify(A)
    if stopped == "infeasible" and head.method == "max-margin":
        assert head.witnesses
        assert head.witnesses[0].verify(A, head.K)
    c = head.certificate
    assert head.obstacle == OBSTACLES[stopped]
    assert c.share_held == 1 - (c.failed_rows.size + c.undecided_rows.size) / 128
    assert c.to_dict()["share_held"] == c.share_held
    assert c.max_norm == pytest.approx(c.scale * c.q_norm * c.k_norm)
    assert ("Reached: " in head.advice) != c.holds
    if not c.holds:
        held = round(128 * c.share_held)
        rows = "no row holds" if held == 0 else f"{held} of 128 rows hold"
        assert f"Reached: {rows}; leak <= " in head.advice
        assert f"(tolerance {head.tolerances.distortion:.3g})" in head.advice


def test_demands_that_may_stand_in_the_way_are_named() -> None:
    head = hf.fit(
        A,
        7,
        dtype="bfloat16",
        kernel=hf.Kernel("float32", logits="float16"),
        max_logit=9.0,
        time_limit=1e-3,
    )
    assert head.obstacle == "time"
    assert 'bfloat16 stands in the way, a fit with dtype="float32" tells' in head.advice
    assert 'rounds logits: kernel="float32" tells' in head.advice
    assert "max_logit = 9: a fit without it" in head.advice
    assert "stands in the way" not in hf.fit(A, 7, time_limit=1e-3).advice


@pytest.mark.parametrize(("dtype", "wider"), [("bfloat16", "float32"), ("float32", "float64")])
def test_a_format_that_lost_what_was_found_is_named(
    dtype: str, wider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = heads.Head.stored
    monkeypatch.setattr(heads.Head, "stored", lambda *a: [1.5 * x for x in stored(*a)])
    head = hf.fit(A, 12, dtype=dtype)
    assert (head.stopped, head.obstacle) == ("stalled", "format")
    assert f"significant bits of {dtype} takes more" in head.advice
    assert f'Try dtype="{wider}"' in head.advice
    bounded = hf.fit(A, 12, dtype=dtype, max_logit=20.0)
    assert bounded.certificate.max_logit > 20
    assert bounded.obstacle == "logits"


def test_a_certificate_of_a_matrix_has_no_norm() -> None:
    judged = hf.certify(np.eye(3), matrix=np.eye(3))
    assert math.isnan(judged.max_norm)
    assert judged.to_dict()["max_norm"] is None
    assert judged.reached.startswith("3 of 3 rows hold; leak <= 0 (tolerance 0.05)")


def test_a_strict_fit_says_why_too() -> None:
    with pytest.raises(hf.errors.CertificateError, match=r"FAILS(?s:.*)steps: All .* were spent"):
        hf.fit(A, 5, method=hf.methods.Learned(effort=1), strict=True)


def test_a_search_below_the_lower_bound_is_infeasible() -> None:
    head = hf.fit(
        A,
        module=hf.SelfAttention.random(3, rng=0),
        method=hf.methods.Learned(effort=20),
        time_limit=20,
    )
    assert head.stopped == "infeasible"


def test_what_the_stored_numbers_lose_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The method has met the tolerances, but the certificate of what is stored does not hold."""
    stored = heads.Head.stored
    monkeypatch.setattr(heads.Head, "stored", lambda *a: [1.5 * x for x in stored(*a)])
    head = hf.fit(A, 9)
    assert head.stopped == "stalled"
    assert "certificate of the stored numbers" in head.advice


def test_a_search_that_was_cut_says_it_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "headfit._fit.method.tried",
        lambda _, attempt, __: hf.results.Search((attempt(9, False),), 9, "the time limit"),
    )
    head = hf.fit(A)
    assert head.stopped == "certified"
    assert "proves nothing about smaller sizes" in head.advice


@pytest.mark.full
@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_files_keep_why(suffix: str, tmp_path: Path) -> None:
    if suffix == "safetensors":
        pytest.importorskip("safetensors")
    head = hf.fit(A, method=hf.methods.Learned(effort=1), time_limit=20)
    kept = hf.load(head.save(tmp_path / f"head.{suffix}"))
    assert (kept.stopped, kept.advice) == (head.stopped, head.advice)
    assert kept.search == head.search
    assert kept.search.trials[0].reason


@pytest.mark.parametrize(("dim", "stopped"), [(9, "certified"), (2, None)])
def test_files_from_before_are_read(dim: int, stopped: str | None, tmp_path: Path) -> None:
    path = hf.fit(A, dim, method=hf.methods.Learned(effort=100), time_limit=5).save(
        tmp_path / "head.npz"
    )
    with np.load(path) as file:
        arrays = dict(file)
    about = json.loads(str(arrays["about"]))
    del about["stopped"], about["advice"]
    old = hf.results.Trial(dim, dim == 9, 0.1, 0.1, 0.0)
    about["search"] = {"trials": [dict(vars(old))], "dim": None, "stopped": "the time limit"}
    del about["search"]["trials"][0]["reason"]
    np.savez(path, **{**arrays, "about": np.array(json.dumps(about))})
    kept = hf.load(path)
    assert kept.stopped == stopped
    assert kept.advice == ""
    assert kept.search is not None
    assert kept.search.trials == (old,)
    assert ("2 no;" in repr(kept.search)) == (dim == 2)


# Time limits --------------------------------------------------------------------------

MANY = hf.patterns.random_regular(40000, k=4, gamma=2.0, rng=0)


@pytest.mark.parametrize("options", [{"dim": 10}, {}, {"dim": 10, "init": "given"}])
def test_a_learned_fit_of_many_tokens_keeps_to_its_time(options: dict[str, Any]) -> None:
    if "init" in options:
        q = np.random.default_rng(0).standard_normal((40000, 10))
        options = {"dim": 10, "method": hf.methods.Learned(init=(q, q))}
    begin = time.perf_counter()
    head = hf.fit(MANY, time_limit=1, certificate_mass=False, **options)
    whole = time.perf_counter() - begin
    assert head.stopped == "time limit"
    assert head.failed_rows is not None
    assert head.failed_rows.size > 0
    # It takes about 1.5 s on a machine that is not busy, plus the time of its certificate.
    assert head.settings["learned"]["seconds"] < 15
    assert whole < 60


@pytest.mark.parametrize("dim", [64, None])
def test_max_margin_and_its_search_keep_to_their_time(dim: int | None) -> None:
    A = hf.patterns.random_regular(3000, k=8, rng=0)
    begin = time.perf_counter()
    head = hf.fit(A, dim, method="max-margin", time_limit=0.1, certificate_mass=False)
    assert time.perf_counter() - begin < 30
    assert head.stopped == "time limit"
    assert "proves nothing" in head.advice
    if dim is None:
        assert head.search is not None
        assert head.search.stopped == "the time limit"
    else:
        assert head.failed_rows is not None
        assert head.failed_rows.size == 3000


def test_a_search_of_projections_keeps_to_its_time() -> None:
    begin = time.perf_counter()
    head = hf.fit(
        hf.patterns.band(3000, 1), method="projection", time_limit=0.5, certificate_mass=False
    )
    assert time.perf_counter() - begin < 30
    assert head.stopped == "time limit"


def test_calls_end_at_a_deadline_and_only_there() -> None:
    Q = np.random.default_rng(0).standard_normal((20000, 64)).astype(np.float32)
    B = hf.patterns.band(20000, 1)
    with pytest.raises(TimeoutError), calls_until(time.perf_counter()):
        hf.certify(B, Q, Q)
    with calls_until(time.perf_counter() + 1000):
        hf.certify(B, Q[:, :2], Q[:, :2])
    assert not hf.certify(B, Q[:, :2], Q[:, :2]).holds  # no limit is left behind


# Heavy columns and rows ---------------------------------------------------------------


def hub(n: int, *, column: int | None = None, row: int | None = None) -> np.ndarray:
    """Return a band with one full column, one full row, or neither."""
    pattern = (hf.patterns.band(n, 1).toarray() > 0).astype(float)
    if column is not None:
        pattern[:, column] = 1
    if row is not None:
        pattern[row] = 1
    return pattern / pattern.sum(axis=1, keepdims=True)


def test_hubs_are_named() -> None:
    n = 300
    assert heavy_notes(hf.Target(hub(n))) == ()
    assert heavy_notes(hf.Target(np.full((n, n), 1 / n))) == ()  # no column or row stands out
    (note,) = heavy_notes(hf.Target(hub(n, column=7)))
    assert note.startswith("column 7 (300 nonzeros, 4 on average) is far heavier than the rest")
    assert 'exempt_columns="auto"' in note
    (note,) = heavy_notes(hf.Target(hub(n, row=5)))
    assert note.startswith("row 5 (300 nonzeros, 4 on average) is far heavier than the rest")
    assert len(heavy_notes(hf.Target(hub(n, column=0, row=0)))) == 2
    assert heavy_notes(hf.Target(hub(n, column=7)), np.array([7])) == ()
    some = hub(n, column=7)
    some[n // 4 :] = hub(n)[n // 4 :]  # a quarter of the rows: a hub, but no global token
    (note,) = heavy_notes(hf.Target(some))
    assert note.startswith("column 7 (75 nonzeros, 3.2 on average) is far heavier")
    assert "a larger dim makes room for it" in note
    many = hf.Target(hf.patterns.bigbird(n, 1, 5, 0))
    assert heavy_notes(many)[0].startswith("columns 0, 1, 2 and 2 more (300 nonzeros")


def test_global_columns_are_those_of_most_rows() -> None:
    assert global_columns(hf.Target(hf.patterns.bigbird(300, 1, 3, 2, rng=0))).tolist() == [0, 1, 2]
    assert global_columns(hf.Target(hf.patterns.band(300, 2))).size == 0
    assert global_columns(hf.Target(np.full((30, 30), 1 / 30))).size == 0
    assert global_columns(hf.Target(np.eye(1))).size == 0


def test_the_command_line_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from scipy import sparse

    A_file, head_file = str(tmp_path / "A.npz"), str(tmp_path / "head.npz")
    sparse.save_npz(A_file, sparse.csr_array(hub(300, column=7)))
    fit = ["fit", A_file, "-o", head_file, "--dim", "4", "--time-limit", "1e-6"]
    assert cli.main(fit) == 1
    said = capsys.readouterr()
    assert "Column 7 (300 nonzeros" in said.out
    assert "NOT certified (time limit)" in said.out
    assert "time limit: The time limit came after" in said.out
    assert cli.main([*fit, "--force", "--json"]) == 1
    figures = json.loads(capsys.readouterr().out)
    assert figures["stopped"] == "time limit"
    assert "larger time_limit" in figures["advice"]
    assert cli.main(["info", head_file]) == 0
    assert "NOT certified (time limit)" in capsys.readouterr().out
