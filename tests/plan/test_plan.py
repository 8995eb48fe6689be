"""`hf.plan`: every verdict, what it says of it, and the time it takes."""

from __future__ import annotations

import functools
import inspect
import json
import math
import re
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import headfit as hf
from headfit._plan.plan import source_of
from headfit._plan.search import Clock, Planner, Question
from headfit.errors import InputError, TooLargeError

identity = functools.partial(sp.eye_array)


@dataclass(frozen=True)
class Ring(hf.methods.Method):
    """Keys on a circle, each token attending to itself: certified in float32 and not in bfloat16.

    `leak` is that of its heads; `most` and `room` the n and the |logit| above which it has none at
    the time limit.
    """

    leak: float = 0.04
    most: float = math.inf
    room: float = math.inf
    ended: Any = "stalled"
    deadlines: list[float] = field(default_factory=list)

    name = "ring"

    def head(
        self, problem: hf.methods.Problem, dim: int, patience: Any = "full"
    ) -> hf.methods.Head:
        self.deadlines.append(problem.deadline)
        n = problem.target.n
        if n > self.most:
            raise TimeoutError
        angles = 2 * np.pi * np.arange(n) / n
        keys = np.stack([np.cos(angles), np.sin(angles)], axis=1)[:, :dim]
        long = min(-math.log(self.leak) / (1 - math.cos(2 * math.pi / n)), self.room)
        rows = np.empty(0, dtype=np.intp) if self.ended == "stalled" else None
        return hf.methods.Head(long * keys, keys, failed_rows=rows, ended=self.ended)


def plan(
    pattern: Any = identity, n: int | None = 64, dim: int = 4, **options: Any
) -> hf.results.Plan:
    options = {"dtype": "float32", "method": Ring(), "time_limit": 8.0, **options}
    found = hf.plan(pattern, n, dim, num_threads=1, **options)
    lines = str(found).splitlines()
    assert len(lines) <= 30
    assert max(len(line) for line in lines) <= 100
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["verdict"] == found.verdict
    return found


def purposes(found: hf.results.Plan) -> list[str]:
    return [a.purpose for a in found.attempts if not a.purpose.startswith("rounded")]


# Verdicts -----------------------------------------------------------------------------


def test_yes_with_a_smaller_head_and_what_formats_break() -> None:
    found = plan(n=128, dim=8)
    assert (found.verdict, found.obstacle, found.best.purpose) == ("yes", None, "asked")
    with pytest.raises(TypeError, match=r"no truth value: ask for \.verdict"):
        assert found
    assert found.fit.certificate.holds
    assert found.fit.Q.shape == (128, 8)
    first = found.attempts[0]
    assert (first.n, first.dim, first.dtype, first.method) == (128, 8, "float32", "ring")
    assert (first.share_held, first.stopped, first.obstacle) == (1.0, "certified", None)
    c = found.fit.certificate
    assert first.max_logit == c.max_logit
    assert first.max_norm == pytest.approx(c.scale * c.q_norm * c.k_norm)
    assert found.smallest.dim == 2  # a ring has two dimensions
    assert found.lower_bound.dim == 2
    rounded = {str(a.kernel): a for a in found.attempts if "rounded" in a.purpose}
    assert not rounded["flash-bfloat16"].holds
    assert not rounded["eager-bfloat16"].holds
    assert rounded["flash-bfloat16"].leak > 0.05
    said = str(found)
    assert said.startswith("Yes: head size 8 in float32 is enough for eye_array at n = 128")
    assert "d = 2 is certified too" in said
    assert "flash-bfloat16 breaks it (leak" in " ".join(said.split())
    assert repr(found).startswith("Plan(yes: dim=8, float32")


def test_yes_with_the_smallest_logits_that_certify() -> None:
    found = hf.plan(hf.patterns.block(32, 4), dim=12, dtype="float32", time_limit=20, num_threads=1)
    assert found.verdict == "yes"
    assert found.best.purpose == "smaller logits"
    assert found.best.max_logit <= found.best.tolerances.max_logit < found.attempts[0].max_logit
    assert found.fit.certificate.max_logit == found.best.max_logit
    assert f"|logit| <= {found.best.tolerances.max_logit:.3g}" in str(found)


def test_smaller_n_and_a_trend_that_is_called_one() -> None:
    found = plan(n=2048, method=Ring(most=500))
    assert (found.verdict, found.obstacle) == ("not found", "time")
    tried = [(a.n, a.holds) for a in found.attempts if a.purpose == "smaller n"]
    assert tried == [(32, True), (128, True), (512, False)]
    assert (found.best.n, found.fit.Q.shape[0]) == (128, 128)
    trend = found.trend
    assert trend.sizes == (32, 128)
    assert trend.value(128) == pytest.approx(trend.logits[1])
    assert trend.at_n == pytest.approx(trend.logits[1] + 4 * trend.per_doubling)
    longest = trend.seconds[1]
    assert 16 * longest <= trend.seconds_at_n * (1 + 1e-9) <= 256 * longest * (1 + 2e-9)
    said = " ".join(str(found).split())
    assert said.startswith("Not found: head size 4 in float32 for eye_array at n = 2,048")
    assert "certified up to n = 128" in said
    assert "trend no proof: largest |logit|" in said


def test_time_stood_in_the_way() -> None:
    found = plan(method=Ring(most=0), n=48)
    assert (found.verdict, found.obstacle, found.fit, found.trend) == (
        "not found", "time", None, None
    )  # fmt: skip
    assert found.attempts[0].stopped == "time limit"
    assert "nothing near it was certified" in str(found)
    assert "proves nothing" in found.advice
    assert "no row holds" in found.advice


@pytest.mark.parametrize(
    ("ended", "said"),
    [("steps", "does not hold"), ("callback", "callback"), ("stalled", "rounding to")],
)
def test_other_ends_are_named(ended: Any, said: str) -> None:
    found = plan(method=Ring(leak=0.9, ended=ended), n=32)
    obstacle = "format" if ended == "stalled" else ended
    assert (found.verdict, found.obstacle) == ("not found", obstacle)
    assert said in found.advice
    assert "leak <= 0.9" in found.advice


def test_a_proof_ends_a_plan() -> None:
    found = plan(hf.patterns.band(32, 1), n=None, dim=1)
    assert (found.verdict, found.obstacle, found.attempts) == ("no", "bound", ())
    assert found.lower_bound.dim == 2
    assert found.lower_bound.verify(hf.patterns.band(32, 1))
    assert str(found).startswith("No (proved): head size 1 in float32 is not enough for the matrix")


def test_logits_that_no_head_can_keep_to_are_refuted() -> None:
    found = plan(max_logit=1.4)
    assert (found.verdict, found.attempts) == ("no", ())
    assert found.least_logit == pytest.approx(math.log(20) / 2)
    assert "a |logit| of 1.49 or more in a head of any size" in " ".join(str(found).split())
    size = r"; d = [\d,]+ always suffices in exact arithmetic"
    assert re.search(size + ", logits not bounded", " ".join(str(found).split()))
    assert re.search(size + "(?!,)", " ".join(str(plan()).split()))
    assert plan(sp.csr_array(np.full((4, 4), 0.25)), None).least_logit == 0
    triangle = np.tril(np.ones((4, 4))) / np.arange(1, 5)[:, None]
    assert plan(triangle, None, mask="causal").least_logit == 0
    assert plan(triangle, None).least_logit > 0


def test_a_late_proof_counts_too() -> None:
    """`fit` looks for a proof itself where a small size does not certify."""
    pattern = hf.patterns.random_regular(128, k=4, gamma=2.0, rng=0)
    bound = hf.bounds.lower(pattern, time_limit=10)
    found = hf.plan(pattern, dim=bound.dim - 1, dtype="float32", time_limit=60, num_threads=1)
    assert (found.verdict, found.obstacle) == ("no", "bound")
    assert found.lower_bound.dim == bound.dim


# What stood in the way ----------------------------------------------------------------


def test_the_narrow_format_stood_in_the_way() -> None:
    found = plan(dtype="bfloat16")
    assert (found.verdict, found.obstacle) == ("not found", "format")
    assert (found.best.purpose, found.fit.dtype) == ("float32", "float32")
    assert found.attempts[0].leak > 0.05
    assert "certified with float32 instead" in " ".join(str(found).split())
    assert "bfloat16, of 8 significant bits, was not certified" in found.advice


def test_the_rounding_of_logits_stood_in_the_way() -> None:
    found = plan(n=128, kernel=hf.Kernel("float32", logits="bfloat16"))
    assert (found.verdict, found.obstacle) == ("not found", "format")
    assert found.best.purpose == "float32 logits"
    assert "Fused kernels keep logits wide" in found.advice


def test_the_rounding_of_weights_stays_part_of_what_is_asked() -> None:
    options = {"method": "auto", "dtype": None, "distortion": 0.006}
    for path in ("flash", "eager"):
        kernel = hf.Kernel.named(f"{path}-bfloat16", weights=True)
        found = plan(hf.patterns.band(32, 1), None, 16, kernel=kernel, **options)
        # A weight of bfloat16 is off by up to 0.004 of it, whatever the head is.
        assert {a.purpose for a in found.attempts} >= {"float32", "looser"}
        assert all(a.kernel.weights for a in found.attempts)
        assert not found.certified("float32", "float32 logits")
    exact = plan(kernel="flash-bfloat16", dtype="bfloat16")
    assert exact.certified("float32")[0].kernel.is_exact
    yes = plan(kernel=hf.Kernel.named("float32", weights=True))
    readers = {a.kernel for a in yes.attempts if a.purpose == "rounded"}
    assert readers == {hf.Kernel.named(f"flash-{x}", weights=True) for x in ("bfloat16", "float16")}


def test_the_bound_on_logits_stood_in_the_way() -> None:
    found = plan(max_logit=10.0)
    assert (found.verdict, found.obstacle) == ("not found", "logits")
    assert found.best.purpose == "free logits"
    assert "in place of 10" in found.advice


def test_a_bound_above_what_the_kernel_allows_is_met_by_less() -> None:
    band = hf.patterns.band(64, 1)
    for limit in (8.0, 30.0, 100.0):
        found = plan(band, None, 16, method="auto", dtype=None, kernel="eager-bfloat16",
                     max_logit=limit)  # fmt: skip
        assert found.verdict == "yes"


def test_looser_tolerances_in_reach_are_named() -> None:
    found = plan(method=Ring(leak=0.2))
    assert found.verdict == "not found"
    assert [a.holds for a in found.attempts if a.purpose == "looser"] == [True, False]
    assert (found.best.tolerances.leak, found.best.tolerances.distortion) == pytest.approx(
        (0.3, 0.6)
    )
    assert "certified with leak <= 0.3, distortion <= 0.6" in " ".join(str(found).split())


def test_the_loosest_tolerances_are_tried_where_wider_ones_fail() -> None:
    found = plan(method=Ring(leak=0.4))
    assert [a.holds for a in found.attempts if a.purpose == "looser"] == [False, True]
    assert "certified with leak <= 0.5, distortion <= 1," in " ".join(str(found).split())


def test_after_a_time_out_smaller_n_come_first() -> None:
    found = plan(n=2048, method=Ring(most=500), dtype="bfloat16")
    tried = purposes(found)  # bfloat16 is too coarse at n = 32, the first of them
    assert tried == ["asked", "smaller n", "float32", "looser", "looser"]


def test_a_relaxed_head_at_the_n_asked_for_is_better_than_one_at_a_smaller_n() -> None:
    @dataclass(frozen=True)
    class SlowIfBounded(Ring):
        def head(
            self, problem: hf.methods.Problem, dim: int, patience: Any = "full"
        ) -> hf.methods.Head:
            if problem.target.n > 64 and problem.tolerances.max_logit is not None:
                raise TimeoutError
            return super().head(problem, dim, patience)

    found = plan(n=256, method=SlowIfBounded(), max_logit=1e6)
    assert purposes(found)[:3] == ["asked", "smaller n", "free logits"]
    assert [a.holds for a in found.attempts[:3]] == [False, True, True]
    assert (found.best.purpose, found.best.n, found.fit.Q.shape[0]) == ("free logits", 256, 256)
    assert "certified with logits not bounded, logits" in " ".join(str(found).split())


def test_the_time_that_smaller_n_took_is_continued() -> None:
    found = plan(n=2048, method=Ring(most=500))
    sizes = [str(n) for n in found.trend.sizes]
    took = r"\S+ at {} in [\d.e-]+ s, \S+ at {} in [\d.e-]+ s; .* at 2,048, in some [\d.e-]+ s"
    assert re.search(took.format(*sizes), " ".join(str(found).split()))


def test_the_tightest_of_the_looser_tolerances_is_best() -> None:
    found = plan(method=Ring(leak=0.09))
    assert [a.holds for a in found.attempts if a.purpose == "looser"] == [True, True]
    assert found.best.tolerances.leak == pytest.approx(0.1)


def test_global_tokens_get_coordinates_of_their_own() -> None:
    def star(n: int) -> Any:
        return (sp.eye_array(n).tolil() + sp.csr_array(np.eye(1, n)[[0] * n])).tocsr() / 2

    found = plan(star, n=48, method="auto", dim=10, dtype="bfloat16")
    assert found.verdict == "yes"
    assert found.global_columns == 1
    assert found.attempts[0].exempt == 1
    assert found.fit.settings["exempt_columns"] == [0]
    assert "1 global column" in str(found)
    # Two coordinates of its own leave no room in a head of size 2.
    assert plan(star, n=48, dim=2, dtype="bfloat16", method=Ring()).attempts[0].exempt == 0


def test_global_columns_beside_a_bound_on_norms_get_none() -> None:
    def previous_and_first(n: int) -> Any:
        rows = np.eye(n) + np.eye(n, k=-1) + np.eye(1, n)[[0] * n] > 0
        return rows / rows.sum(axis=1, keepdims=True)

    method = hf.methods.Learned(max_norm=200.0)
    found = plan(previous_and_first, n=64, dim=16, method=method)
    assert (found.verdict, found.global_columns, found.attempts[0].exempt) == ("yes", 1, 0)
    assert found.fit.certificate.max_norm <= 200


def test_a_causal_pattern_without_its_mask_is_told() -> None:
    pattern = functools.partial(hf.patterns.causal_band, neighbors=0)
    assert 'mask="causal"' in plan(pattern).advice
    assert 'mask="causal"' not in plan(pattern, mask="causal").advice


# Sizes --------------------------------------------------------------------------------


def test_leading_blocks_of_a_matrix_that_looks_back() -> None:
    found = plan(sp.eye_array(512), None, method=Ring(most=100))
    assert [(a.n, a.holds) for a in found.attempts if a.purpose == "smaller n"] == [
        (32, True),
        (128, False),
    ]
    other = hf.patterns.band(128, 1)
    found = plan(other, None, method=Ring(most=0))
    assert "smaller n" not in purposes(found)
    assert "known at this n alone" in found.advice


def test_dense_masks_are_for_one_n() -> None:
    mask = np.ones((256, 256), dtype=bool)
    found = plan(n=256, mask=mask, method=Ring(most=100))
    assert "smaller n" not in purposes(found)
    of_its_own = plan(hf.Target(np.eye(256), mask=mask), None, method=Ring(most=100))
    for one in (found, of_its_own):
        assert "known at this n alone" in one.advice


def test_an_n_whose_certificate_takes_too_long_is_not_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Clock, "measure", lambda clock, *_: setattr(clock, "rate", 1e-4))
    found = plan(n=4096, method=Ring(), time_limit=20)
    assert (found.verdict, found.obstacle) == ("not found", "time")
    assert purposes(found) == ["smaller n"]  # a certificate of 64 tokens takes "0.4 s"
    assert found.attempts[0].n == 64
    assert "is predicted to take 1.7e+03 s" in found.advice
    late = plan(n=4096, method=Ring(leak=0.5), dtype="bfloat16", time_limit=20)
    assert purposes(late) == ["smaller n", "float32"]  # what failed at 64 is tried in float32


def test_a_pattern_that_fits_in_memory_only_when_smaller() -> None:
    def wide(n: int) -> Any:
        if n > 300:
            raise TooLargeError("too large")
        return sp.eye_array(n)

    found = plan(wide, n=1024)
    assert (found.verdict, found.obstacle, found.target) == ("not found", "memory", None)
    assert found.best.n == 256
    assert "does not fit in memory" in str(found)

    def never(n: int) -> Any:
        raise MemoryError

    assert (plan(never).obstacle, plan(never).fit) == ("memory", None)


def test_sizes_that_a_function_refuses_are_left_out() -> None:
    def some(n: int) -> Any:
        if n == 64:
            raise InputError("n must not be 64")
        return sp.eye_array(32 if n == 1 else n)

    found = plan(some, n=1024, method=Ring(most=1000))
    assert [a.n for a in found.attempts if a.purpose == "smaller n"] == [256]


# Time and progress --------------------------------------------------------------------


@pytest.mark.parametrize("leak", [0.04, 0.9])
def test_no_deadline_that_is_passed_down_lies_beyond_the_limit(leak: float) -> None:
    ring = Ring(leak=leak)
    question = Question(
        4, "bfloat16", hf.Kernel.named("float32"), hf.Tolerances(max_logit=20.0), ring, 0, 1
    )
    clock = Clock(3.0)
    source = source_of(identity, 256, None, 1)
    found = Planner(source, question, clock, lambda _: None).carry_out()
    assert len(ring.deadlines) >= 3
    assert all(deadline <= clock.start + 3.0 for deadline in ring.deadlines)
    assert ring.deadlines[0] <= clock.start + 0.8 * 3.0  # others are left some time
    assert found.time_limit == 3.0


def test_no_time_is_no_attempt() -> None:
    found = plan(time_limit=1e-6)
    assert (found.verdict, found.obstacle, found.attempts) == ("not found", "time", ())


def test_the_default_time_is_a_minute() -> None:
    assert inspect.signature(hf.plan).parameters["time_limit"].default == 60.0


def test_a_clock_shares_what_is_left() -> None:
    clock = Clock(100.0, start=time.perf_counter() - 60)
    assert clock.left == pytest.approx(40, abs=1)
    assert clock.part("asked") == pytest.approx(24, abs=1)
    clock.rate = 1e-6
    assert clock.certificate(1000) == pytest.approx(1.0)
    assert clock.affords(3000)
    assert not clock.affords(4000)


def test_progress_goes_to_a_function_or_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    plan(progress=lines.append)
    assert any("n = 64, d = 4, float32 (asked)" in line for line in lines)
    pytest.importorskip("tqdm")
    plan(progress=True)
    assert "step" in capsys.readouterr().err


# Bad input ----------------------------------------------------------------------------

BAD: list[tuple[dict[str, Any], str]] = [
    ({"pattern": None}, "pattern must"),
    ({"pattern": "nowhere.npz", "n": None}, "pattern: nowhere.npz"),
    ({"pattern": hf.Attention(np.eye(2), np.eye(2))}, "pattern must be sparse"),
    ({"pattern": -np.eye(3), "n": None}, "pattern must"),
    ({"pattern": lambda: 1}, "pattern must be a function of n alone"),
    ({"pattern": lambda n: 1}, "pattern"),
    ({"pattern": lambda n: sp.eye_array(n - 1)}, "must return a matrix of 64 tokens for n = 64"),
    ({"pattern": hf.patterns.causal_band}, "a function of n alone"),
    ({"n": None}, "n must be given"),
    ({"n": 0}, "n must"),
    ({"n": 2.5}, "n must"),
    ({"pattern": np.eye(3), "n": 4}, "n must be the matrix's own, 3"),
    ({"dim": 0}, "dim must"),
    ({"dim": -2}, "dim must"),
    ({"dim": None}, "dim must"),
    ({"dtype": "int8"}, "dtype must"),
    ({"kernel": "int8"}, "kernel must"),
    ({"leak": 0.0}, "leak must"),
    ({"distortion": 0.0}, "distortion must"),
    ({"tolerances": 0.1}, "tolerances must"),
    ({"mask": "Causal"}, "mask"),
    ({"time_limit": math.nan}, "time_limit must"),
    ({"time_limit": 0.0}, "time_limit must"),
    ({"time_limit": None}, "time_limit must"),
    ({"progress": 1}, "progress must"),
    ({"rng": "x"}, "rng must"),
    ({"method": "none"}, "method must"),
]


@pytest.mark.parametrize(("given", "said"), BAD)
def test_bad_input_is_refused_before_any_fit(given: dict[str, Any], said: str) -> None:
    ring = Ring()
    options = {"pattern": identity, "n": 64, "method": ring, "time_limit": 5.0, **given}
    with pytest.raises(InputError, match=said):
        hf.plan(options.pop("pattern"), num_threads=1, **options)
    assert ring.deadlines == []


def test_what_a_method_refuses_is_refused_before_any_work() -> None:
    said: list[str] = []
    graph, keys = hf.patterns.random_regular(64, 3, rng=0), hf.methods.MaxMargin(keys=np.eye(8))
    refused: list[tuple[Any, str]] = [
        ("toeplitz", "pattern must be translation-invariant"),
        ("mixed", "pattern must attend at some offset"),
        (keys, "one row for each of the 64 rows of pattern; got 8"),
    ]
    for method, words in refused:
        with pytest.raises(InputError, match=words):
            hf.plan(graph, dim=8, method=method, num_threads=1, progress=said.append)
    assert said == []
    # The columns with coordinates of their own are not among those that keys are for.
    star = (np.eye(8) + np.eye(1, 8)[[0] * 8]) / 2
    assert plan(star, None, 9, method=keys, time_limit=2.0).attempts[0].exempt == 1


def test_threads_are_checked() -> None:
    with pytest.raises(InputError, match="num_threads must"):
        hf.plan(identity, 8, num_threads=0)


def test_a_missing_file_is_that_error() -> None:
    with pytest.raises(hf.errors.MissingFileError):
        hf.plan("nowhere.npz")


def test_names_of_patterns() -> None:
    def at(pattern: Any) -> str:
        return source_of(pattern, 8, None, 1).name

    assert at(functools.partial(hf.patterns.band, neighbors=2, rng=0)) == "band(neighbors=2)"
    assert at(functools.partial(hf.patterns.permutation, rng=0)) == "permutation"
    assert at(lambda n: sp.eye_array(n)) == "the pattern"
    assert at(np.eye(8)) == "the matrix"
    assert len(at(functools.partial(hf.patterns.circulant, offsets=list(range(50))))) <= 48


def causal_band(n: int) -> Any:
    return hf.patterns.causal_band(n, 2)


@pytest.mark.parametrize(
    ("pattern", "options"),
    [
        (np.eye(8), {"dim": 8, "method": hf.methods.MaxMargin(keys=np.eye(8))}),
        (causal_band, {"n": 64, "dim": 16, "method": hf.methods.Mixed(filter_dim=8)}),
    ],
)
def test_methods_of_one_size_answer_for_it(pattern: Any, options: dict[str, Any]) -> None:
    found = hf.plan(pattern, **options, time_limit=2, num_threads=1)
    assert found.verdict == "yes"


@pytest.mark.parametrize("error", [ValueError, IndexError, ZeroDivisionError])
def test_patterns_of_some_n_alone(error: type[Exception]) -> None:
    def large(n: int) -> Any:
        if n < 512:
            raise error("n must be 512 or more")
        return hf.patterns.random_regular(n, 3, rng=0)

    found = hf.plan(large, 512, dim=4, time_limit=1, num_threads=1)
    assert found.verdict == "not found"


def test_sizes_beyond_memory_are_refused() -> None:
    with pytest.raises(TooLargeError):
        hf.plan(np.eye(8), dim=2**40)
