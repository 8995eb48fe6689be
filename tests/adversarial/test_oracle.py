"""The oracle itself: compared with high precision, and with certificates that were made to lie."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from tests.adversarial import attack, dyadic, float32_results, generators, oracle
from tests.adversarial.truth import kernel_inputs, truth_of

import headfit as hf

RNG = np.random.default_rng


def value(m: int, e: int) -> Fraction:
    return Fraction(m) * Fraction(2) ** e


@pytest.mark.parametrize("seed", range(20))
def test_integers_are_the_floats(seed):
    rng = RNG(seed)
    x = np.ldexp(rng.standard_normal((3, 2)), rng.integers(-1074, 1020, (3, 2)))
    x[rng.random((3, 2)) < 0.2] = 0
    rows, e = dyadic.integers(x)
    assert [[value(m, e) for m in row] for row in rows] == [
        [Fraction(v) for v in row] for row in x.tolist()
    ]


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_rounding_is_to_the_nearest_with_ties_to_even(name):
    digits, least, largest = dyadic.FORMATS[name]
    rng = RNG(1)
    for _ in range(2000):
        top = int(rng.integers(least - digits - 2, largest + 2))
        kept = int(rng.integers(2 ** (digits - 1), 2**digits))
        rest = int(rng.choice([0, 1, 127, 128, 129, 255]))  # in units of a 256th
        m, e = (kept << 8) + rest, top - digits + 1 - 8
        got = dyadic.rounded(m, e, name)
        x = value(m, e)
        unit = Fraction(2) ** (max(least, top) - digits + 1)
        if got == math.inf:
            assert x >= (2 - Fraction(2) ** -digits) * Fraction(2) ** largest
            continue
        error = abs(Fraction(got) - x)
        assert error <= unit / 2
        assert Fraction(got) % unit == 0
        if error == unit / 2:
            assert Fraction(got) / unit % 2 == 0
        assert dyadic.rounded(-m, e, name) == -got


def test_rounding_agrees_with_numpy():
    rng = RNG(2)
    x = np.ldexp(rng.standard_normal(3000), rng.integers(-150, 130, 3000))
    with np.errstate(over="ignore"):
        for name, numpy_type in (("float32", np.float32), ("float16", np.float16)):
            expected = x.astype(numpy_type).astype(np.float64).tolist()
            got = []
            for v in x.tolist():
                n, d = v.as_integer_ratio()
                got.append(dyadic.rounded(n, 1 - d.bit_length(), name))
            assert got == expected


def test_fused_multiply_add_rounds_once():
    rng = RNG(3)
    a, b, c = (
        np.float32(np.ldexp(rng.standard_normal(4000), rng.integers(-70, 40, 4000)))
        for _ in range(3)
    )
    b[:2000] = 1 + np.float32(2**-12)
    c[:2000] = np.float32(-a[:2000] * rng.choice([1, 1 + 2**-12, 2**-24, 2**24], 2000))
    got = float32_results.fused(a, b, c)
    for x, y, z, found in zip(*(v.tolist() for v in (a, b, c)), got.tolist(), strict=True):
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        n, d = exact.numerator, exact.denominator
        assert found == dyadic.rounded(n, 1 - d.bit_length(), "float32")


@pytest.mark.parametrize("dtype", generators.DTYPES)
def test_kernels_start_from_the_exact_products_of_a_module_rounded_once(dtype):
    rng = RNG([6, generators.DTYPES.index(dtype)])
    for family in generators.FAMILIES:
        head, _, _ = generators.head(rng, family, dtype, "module-accumulate")
        assert head.is_module
        assert head.accumulate == "float32"
        for found, weights in zip(kernel_inputs(head), (head.W_Q, head.W_K), strict=True):
            exact = times(fractions(head.X), fractions(weights.T))
            assert found.tolist() == rounded(exact, "float32")


@pytest.mark.parametrize("reading", ["exact", "module", "bfloat16", "float16", "float32"])
@pytest.mark.parametrize("dtype", generators.DTYPES)
def test_truth_agrees_with_high_precision(dtype, reading):
    rng = RNG([4, generators.DTYPES.index(dtype)])
    compared = 0
    for family in generators.FAMILIES:
        head, logits, e = generators.head(rng, family, dtype, reading)
        if head.accumulate == "float32":
            continue
        truth = truth_of(head, logits, e)
        with mpmath.workprec(6000):
            compared += compare(head, truth, exact_logits(head))
    assert compared > 20


def times(a: list, b: list) -> list[list[Fraction]]:
    return [[sum(x * y for x, y in zip(u, v, strict=True)) for v in b] for u in a]


def fractions(x: np.ndarray) -> list[list[Fraction]]:
    return [[Fraction(v) for v in row] for row in x.tolist()]


def rounded(x: list[list[Fraction]], name: str) -> list[list[float]]:
    def one(v):
        return dyadic.rounded(v.numerator, 1 - v.denominator.bit_length(), name)

    return [[one(v) for v in row] for row in x]


def exact_logits(head) -> list[list[Fraction]]:
    """Return the exact logits by plain rational arithmetic, rounded as the head asks."""
    if head.X is not None:
        x = fractions(head.X)
        q, k = times(x, fractions(head.W_Q.T)), times(x, fractions(head.W_K.T))
    else:
        q, k = fractions(head.Q), fractions(head.K)
    found = [[Fraction(float(head.scale)) * v for v in row] for row in times(q, k)]
    if head.bias is not None:
        bias = fractions(head.bias)
        found = [
            [x + y for x, y in zip(*rows, strict=True)] for rows in zip(found, bias, strict=True)
        ]
    if head.logits_dtype is None:
        return found
    return rounded(found, head.logits_dtype)


def compare(head, truth: oracle.Truth, logits: list) -> int:
    allowed = oracle.allowed_matrix(head.mask, len(head.A))
    compared = 0
    for i, weights in enumerate(head.A.tolist()):
        opened = [j for j in range(len(weights)) if allowed[i][j]]
        row = truth.rows[i][0]
        own = [logits[i][j] for j in opened]
        assert row.undefined == (math.inf in own or set(own) == {-math.inf})
        if row.undefined or -math.inf in own:
            continue
        s = {j: mpmath.mpf(Fraction(logits[i][j]).numerator) for j in opened}
        s = {j: s[j] / Fraction(logits[i][j]).denominator for j in opened}
        on = [j for j in opened if weights[j]]
        off = [j for j in opened if not weights[j]]
        compared += compare_row(row, s, on, off, weights)
    return compared


def compare_row(row: oracle.Row, s: dict, on: list, off: list, weights: list) -> int:
    if on and off:
        gap = max(s[j] for j in off) - min(s[j] for j in on)
        check_threshold(row.leak_exceeds, mpmath.exp(gap) if abs(gap) < 1e5 else None, row.leak())
    if len(on) > 1:
        terms = [s[j] - mpmath.log(mpmath.mpf(weights[j])) for j in on]
        spread = max(terms) - min(terms)
        exact = mpmath.expm1(spread) if spread < 1e5 else None
        check_threshold(row.distortion_exceeds, exact, row.distortion())
    if s:
        size = max(abs(x) for x in s.values())
        check_threshold(row.size_exceeds, size, float(size) if size < 1e300 else math.inf)
    return 1


def check_threshold(exceeds, exact, near: float) -> None:
    """Check that bounds around a value are compared with it as high precision does."""
    if exact is None or not 0 < near < 1e300:
        return
    for steps in (-(10**9), -1, 0, 1, 10**9):
        bound = float(near + steps * np.spacing(near))
        if bound > 0:
            assert exceeds(bound) == bool(exact > mpmath.mpf(bound))


def test_ties_are_decided():
    weights = np.array([[0.25, 0.75, 0.0]])
    pattern = oracle.Pattern(np.vstack([weights] * 3), np.ones((3, 3), bool))
    rows = oracle.exact_rows(pattern, [[5, 5, 5]] * 3, -1)
    row = rows[0][0]
    assert not row.distortion_exceeds(2.0)
    assert row.distortion_exceeds(float(np.nextafter(2.0, 0)))
    assert not row.leak_exceeds(1.0)
    assert row.leak_exceeds(float(np.nextafter(1.0, 0)))


# Certificates that are made to lie must be found out ------------------------------------------


def doctored(monkeypatch, change) -> set[str]:
    """Return the kinds of lies that the attack finds when `change` alters every certificate."""
    true = hf.certify

    def certify(*args, **keywords):
        c = true(*args, **keywords)
        return dataclasses.replace(c, **change(c))

    monkeypatch.setattr(hf, "certify", certify)
    found: set[str] = set()
    for reading in generators.READINGS:
        tally = attack.attack("float32", reading, 150, 5, ["plain", "masks"])
        counts = tally.cells["float32", reading]
        found |= {(reading, kind) for kind in attack.LIES if counts[kind]}
    return found


def every(*kinds: str) -> set:
    return {(reading, kind) for reading in generators.READINGS for kind in kinds}


def test_nothing_is_found_where_nothing_is_changed(monkeypatch):
    assert doctored(monkeypatch, lambda c: {}) == set()


def test_rows_that_hold_falsely_are_found(monkeypatch):
    found = doctored(monkeypatch, lambda c: {"row_status": np.zeros_like(c.row_status)})
    assert found == every("false holds")


def test_certificates_that_hold_falsely_are_found(monkeypatch):
    assert doctored(monkeypatch, lambda c: {"status": "holds"}) == every("false holds")


@pytest.mark.full
def test_certificates_that_fail_falsely_are_found(monkeypatch):
    assert doctored(monkeypatch, lambda c: {"status": "fails"}) == every("false fails")
    found = doctored(monkeypatch, lambda c: {"row_status": np.ones_like(c.row_status)})
    assert every("false fails") <= found


@pytest.mark.parametrize("name", ["row_leak", "row_distortion"])
@pytest.mark.parametrize("factor", [0.5, 1 - 1e-5, math.nan])
def test_bounds_that_are_too_small_are_found(monkeypatch, name, factor):
    found = doctored(monkeypatch, lambda c: {name: getattr(c, name) * factor})
    exact = {(r, "false bound") for r in ("exact", "module", "matrix")}
    assert exact <= found


@pytest.mark.parametrize("name", ["max_logit", "q_norm", "k_norm", "leak", "distortion"])
def test_other_bounds_that_are_too_small_are_found(monkeypatch, name):
    found = doctored(monkeypatch, lambda c: {name: getattr(c, name) * (1 - 1e-5)})
    assert ("exact", "false bound") in found


def test_what_is_left_undecided_is_counted(monkeypatch):
    def change(c):
        return {"status": "undecided", "row_status": np.full_like(c.row_status, 2)}

    assert doctored(monkeypatch, change) == set()
    tally = attack.attack("float32", "exact", 200, 5, ["plain"])
    counts = tally.cells["float32", "exact"]
    assert counts["missed"] == counts["away"] > 100


@pytest.mark.parametrize("reading", ["accumulate", "module-accumulate"])
def test_bounds_that_leave_out_the_kernels_are_found(monkeypatch, reading):
    true = hf.certify
    monkeypatch.setattr(hf, "certify", lambda *a, **k: true(*a, **{**k, "kernel": "exact"}))
    counts = attack.attack("float32", reading, 900, 5, ["plain"]).cells["float32", reading]
    assert counts["false holds"] > 10
    assert counts["false bound"] > 10


def test_refusals_and_crashes_are_found(monkeypatch):
    def refuse(*args, **keywords):
        raise hf.errors.InputError("no")

    def crash(*args, **keywords):
        raise ZeroDivisionError

    for function, kind in ((refuse, "unfair refusal"), (crash, "crash")):
        monkeypatch.setattr(hf, "certify", function)
        counts = attack.attack("float32", "exact", 20, 5, ["plain"]).cells["float32", "exact"]
        assert counts[kind] >= counts["cases"]


def test_lies_are_reduced_and_printed_as_code_that_runs(monkeypatch):
    true = hf.certify
    monkeypatch.setattr(
        hf, "certify", lambda *a, **k: dataclasses.replace(true(*a, **k), status="holds")
    )
    for reading in generators.READINGS:
        lie = attack.attack("float32", reading, 150, 5, ["plain"]).lies[0]
        smaller = attack.reduce(lie)
        assert len(smaller.head.A) <= len(lie.head.A)
        assert lie.kind in dict(attack.lies_of(smaller))
        exec(attack.as_code(smaller).replace("print(", "found = ("), scope := {})
        assert scope["found"].holds
