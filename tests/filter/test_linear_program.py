"""Filters and their programs, against sums of cosines and a grid of all offsets."""

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headfit import Tolerances
from headfit._filter.demand import SLACK, Demand, Filter
from headfit._filter.design import Layout, Shape, _moved, design
from headfit._filter.linear_program import is_out_of_reach, solve
from headfit._filter.stencil import Stencil


def window(n: int, offsets: range, first: int | None = None) -> Stencil:
    inside = np.array(offsets, dtype=np.int64)
    return Stencil(n, inside, np.zeros(inside.size), 1 - n if first is None else first, n - 1)


@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 5),
    first=st.integers(-300, 10),
    length=st.integers(1, 500),
)
def test_logits_are_the_sum(seed: int, count: int, first: int, length: int) -> None:
    rng = np.random.default_rng(seed)
    made = Filter(rng.uniform(0, np.pi, count), *rng.normal(size=(2, count)))
    offsets = np.arange(first, first + length)
    wanted = [
        sum(
            a * math.cos(w * x) + b * math.sin(w * x)
            for w, a, b in zip(made.frequencies, made.cosines, made.sines, strict=True)
        )
        for x in offsets.tolist()
    ]
    np.testing.assert_allclose(made.logits_between(first, first + length - 1), wanted, atol=1e-9)
    assert np.abs(wanted).max() <= made.norm * (1 + 1e-12)


@pytest.mark.parametrize("block", [1, 3])
def test_queries_times_keys_are_the_logits(block: int) -> None:
    rng = np.random.default_rng(0)
    made = Filter(rng.uniform(0, np.pi, 4), *rng.normal(size=(2, 4)))
    q, k = made.head(20, block)
    i, j = np.indices((20, 20))
    wanted = made.logits_between(-19, 19)[i // block - j // block + 19]
    np.testing.assert_allclose(q @ k.T, wanted, atol=1e-12)
    np.testing.assert_allclose((q**2).sum(axis=1), made.norm)
    np.testing.assert_allclose((k**2).sum(axis=1), made.norm)


@pytest.mark.parametrize(("share", "first"), [(None, None), (None, 0), (0.98, 0)])
@pytest.mark.parametrize("weights", ["equal", "falling"])
def test_a_solution_meets_the_demand_at_every_offset(
    share: float | None, first: int | None, weights: str
) -> None:
    n, w = 400, 9
    stencil = window(n, range(w) if first == 0 else range(-4, 5), first)
    logs = -0.2 * np.abs(stencil.offsets) if weights == "falling" else np.zeros(w)
    stencil = Stencil(n, stencil.offsets, logs, stencil.first, stencil.last)
    x = np.arange(stencil.first, n)
    found, max_logit = design(Demand(stencil, Tolerances(0.05, 0.1)), 28, moves=0), None
    if share is not None:
        assert found is not None
        max_logit = share * float(np.abs(found.filter.logits_between(stencil.first, n - 1)).max())
        found = design(Demand(stencil, Tolerances(0.05, 0.1, max_logit)), 28, moves=0)
    assert found is not None
    assert found.meets
    p = found.filter.logits_between(stencil.first, n - 1)
    inside = np.isin(x, stencil.offsets)
    error = p[inside] - logs
    assert np.ptp(error) <= math.log(1.1) + SLACK
    assert p[~inside].max() <= p[inside].min() - math.log(20) + SLACK
    assert max_logit is None or np.abs(p).max() <= max_logit + SLACK


def test_the_program_is_optimal_for_its_frequencies() -> None:
    # One frequency, and the offset 0 among 0, 1, 2, 3: p(0) - p(x) >= gap for all x. With
    # w = pi / 2 the binding offsets are 1 and 3, where a (1 - 0) -+ b >= gap: a = gap, b = 0.
    stencil = Stencil(4, np.array([0]), np.zeros(1), 0, 3)
    demand = Demand(stencil, Tolerances(0.05, 0.1))
    found = solve(np.array([np.pi / 2]), demand)
    assert found is not None
    assert found.meets
    assert found.filter.norm == pytest.approx(math.log(20), rel=0.03)


@pytest.mark.parametrize("max_logit", [None, 4.4, 4.0])
def test_exchange_finds_what_the_whole_program_finds(max_logit: float | None) -> None:
    stencil = window(400, range(9), 0)
    demand = Demand(stencil, Tolerances(0.05, 0.1, max_logit))
    shape = Shape.of(stencil)
    frequencies = Layout(lows=4).frequencies(stencil, shape, 14)
    assert frequencies is not None
    by_exchange = solve(frequencies, demand)
    whole = solve(frequencies, demand, demand.stencil.others)
    if max_logit == 4.0:
        assert by_exchange is whole is None
        return
    assert by_exchange is not None
    assert whole is not None
    assert by_exchange.meets
    assert whole.meets
    assert by_exchange.filter.norm == pytest.approx(whole.filter.norm, rel=0.02)


def test_frequencies_that_cannot_do_it() -> None:
    stencil = window(100, range(10), 0)
    demand = Demand(stencil, Tolerances(0.05, 0.1))
    assert solve(np.array([2 * np.pi / 5]), demand) is None  # offsets 0 and 10 are the same
    assert design(demand, 4) is None
    assert design(demand, 1) is None


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("count", [8, 12, 24, 32])
def test_what_is_out_of_reach_has_no_solution_of_so_small_a_norm(count: int, causal: bool) -> None:
    """A window of 96 keys has more offsets than the small program looks at."""
    stencil = window(600, range(96), 0) if causal else window(600, range(-95, 96))
    demand = Demand(stencil, Tolerances())
    even = stencil.is_symmetric
    frequencies = Layout().frequencies(stencil, Shape.of(stencil), count)
    assert frequencies is not None
    found = solve(frequencies, demand, even=even)
    norm = math.inf if found is None or not found.meets else found.filter.norm
    limits = np.array([1.0, 10.0, 100.0, 1e3, 1e5])
    answers = [is_out_of_reach(frequencies, demand, limit, even) for limit in limits]
    assert answers[0]  # the leak alone needs more
    assert answers == sorted(answers, reverse=True)
    assert (norm > limits[answers]).all()
    if causal and count == 32:
        assert not answers[3]


@pytest.mark.full
def test_larger_heads_have_smaller_norms() -> None:
    demand = Demand(window(1000, range(16), 0), Tolerances(0.05, 0.1))
    norms = []
    for dim in (16, 20, 28, 40):
        found = design(demand, dim, moves=0)
        assert found is not None
        norms.append(found.filter.norm)
    assert norms == sorted(norms, reverse=True)


@pytest.mark.parametrize(
    ("n", "width", "dim"), [(64, 4, 14), (64, 4, 12), (100, 5, 16), (100, 5, 12), (128, 3, 10)]
)
def test_the_shorter_of_the_last_two_filters_is_taken(
    n: int, width: int, dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last program has the final frequencies again, with more directions and other offsets."""
    norms: list[float] = []

    def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            found = function(*args, **options)
            norms.append(found.filter.norm if found and found.meets else math.inf)
            return found

        return call

    for function in (solve, _moved):
        monkeypatch.setattr(f"headfit._filter.design.{function.__name__}", recorded(function))
    made = design(Demand(window(n, range(width), 0), Tolerances()), dim, moves=0)
    assert made is not None
    assert made.filter.norm <= min(norms[-2:]) * (1 + 1e-9)


def test_no_program_begins_after_the_deadline() -> None:
    demand = Demand(window(400, range(9), 0), Tolerances())
    frequencies = Layout(lows=4).frequencies(demand.stencil, Shape.of(demand.stencil), 14)
    assert frequencies is not None
    assert solve(frequencies, demand, deadline=time.perf_counter() + 1000) is not None
    assert solve(frequencies, demand, deadline=time.perf_counter()) is None


def test_moves_lower_the_norm() -> None:
    demand = Demand(window(500, range(12), 0), Tolerances(0.05, 0.1))
    still, moved = (design(demand, 16, moves=moves) for moves in (0, 10))
    assert still is not None
    assert moved is not None
    assert moved.meets
    assert moved.filter.norm < still.filter.norm
