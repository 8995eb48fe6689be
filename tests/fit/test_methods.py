"""Methods as objects: what their constructors check, and a method from outside the package."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headfit as hf
from headfit._fit import registry
from headfit.errors import InputError

A = hf.patterns.random_regular(32, 2, gamma=2.0, rng=0)
BAND = hf.patterns.band(24, 1)


class TruncatedSVD(hf.methods.Method):
    """The truncated singular value decomposition of the logarithm of the target."""

    name = "truncated-svd"

    def head(
        self, problem: hf.methods.Problem, dim: int, patience: str = "full"
    ) -> hf.methods.Head:
        B = problem.target.matrix.toarray()
        gap = -np.log(problem.tolerances.leak) + 1
        B[B > 0] = np.log(B[B > 0] / B[B > 0].min()) + gap
        u, s, vt = np.linalg.svd(B)
        return hf.methods.Head((u * s)[:, :dim], vt[:dim].T, settings={"largest": float(s[0])})


class Structural:
    """A method that inherits nothing: all members are its own."""

    name = "structural"
    seeks_smallest = False

    def check(self, problem: hf.methods.Problem, dim: int | None) -> int | None:
        if problem.target.n % 2:
            raise InputError("A must have an even number of rows")
        return dim

    def head(
        self, problem: hf.methods.Problem, dim: int, patience: str = "full"
    ) -> hf.methods.Head:
        return TruncatedSVD().head(problem, dim)

    def search(self, problem: hf.methods.Problem, attempt: Any) -> hf.results.Search:
        trials = [attempt(d) for d in (problem.target.n, problem.target.n // 2)]
        return hf.results.Search(tuple(trials), problem.target.n, "tried two sizes")

    def advice(self, head: hf.methods.Head) -> str | None:
        return f"{head.dim} singular vectors are too few."


def test_a_method_of_ones_own_searches_and_is_certified() -> None:
    fit = hf.fit(BAND, method=TruncatedSVD())
    assert isinstance(TruncatedSVD(), hf.methods.Method)
    assert fit.method == fit.settings["method"] == "truncated-svd"
    assert fit.certificate.holds
    assert fit.search is not None
    assert fit.dim == fit.search.dim < 24
    by_size = {t.dim: t.holds for t in fit.search.trials}
    assert by_size[fit.dim]
    assert by_size[fit.dim - 1] is False
    assert fit.search.stopped == "bisected to neighbouring sizes"
    assert fit.settings["largest"] > 0
    assert hf.certify(BAND, fit.Q, fit.K, tolerances=fit.tolerances).holds
    assert fit.lower_bound is None


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_it_has_what_every_method_has(dtype: str) -> None:
    options: dict[str, Any] = {"leak": 0.1, "distortion": 0.5, "dtype": dtype}
    fit = hf.fit(BAND, 24, method=TruncatedSVD(), **options)
    assert fit.certificate.holds
    assert (fit.dtype, fit.dim) == (dtype, 24)
    small = hf.fit(BAND, 3, method=TruncatedSVD(), **options)
    assert (small.status, small.stopped) == ("fails", "stalled")
    assert small.advice


def test_it_works_with_a_module_a_mask_and_exempt_columns() -> None:
    module = hf.SelfAttention.random(30, rng=0)
    fit = hf.fit(BAND, method=TruncatedSVD(), module=module)
    assert fit.module is module
    assert fit.certificate.holds
    assert fit.search is None  # the module's size is the one to fit
    causal = hf.patterns.causal_band(24, 2)
    assert hf.fit(causal, 24, method=TruncatedSVD(), mask="causal").certificate.holds
    A = BAND.toarray()
    A[:, 0] = 1
    target = hf.Target(A, normalize=True)
    exempt = hf.fit(target, method=TruncatedSVD(), exempt_columns=[0])
    assert exempt.certificate.holds
    assert exempt.settings["exempt_columns"] == [0]
    assert all(t.dim > 1 for t in exempt.search.trials)


def test_a_method_need_not_inherit() -> None:
    assert isinstance(Structural(), hf.methods.Method)
    fit = hf.fit(BAND, method=Structural())
    assert fit.certificate.holds
    assert fit.search.stopped == "tried two sizes"
    assert "2 singular vectors" in hf.fit(BAND, 2, method=Structural()).advice
    with pytest.raises(InputError, match="even number"):
        hf.fit(np.eye(3), method=Structural())


class Late(TruncatedSVD):
    def head(
        self, problem: hf.methods.Problem, dim: int, patience: str = "full"
    ) -> hf.methods.Head:
        assert problem.seconds_left <= 5
        raise TimeoutError


def test_a_method_that_has_nothing_in_time_ends_in_zeros() -> None:
    fit = hf.fit(BAND, 4, method=Late(), time_limit=5)
    assert fit.stopped == "time limit"
    assert not fit.Q.any()
    assert fit.failed_rows.size == 24
    assert hf.fit(BAND, method=Late(), time_limit=5).search.was_cut


class Wrong(TruncatedSVD):
    def __init__(self, made: Any) -> None:
        self.made = made

    def head(self, problem: hf.methods.Problem, dim: int, patience: str = "full") -> Any:
        return self.made


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (None, "must return a Head; truncated-svd returned a NoneType"),
        (hf.methods.Head(np.ones((24, 2)), np.ones((24, 3))), "equal shape, 24 rows"),
        (hf.methods.Head(np.ones((23, 2)), np.ones((23, 2))), "equal shape, 24 rows"),
        (
            hf.methods.Head(np.ones((24, 9)), np.ones((24, 9))),
            "1 to 4 columns; truncated-svd returned shapes .24, 9.",
        ),
        (hf.methods.Head(np.ones((24, 0)), np.ones((24, 0))), "1 to 4 columns"),
        (hf.methods.Head(np.ones((24, 2)) + 1j, np.ones((24, 2))), "Q of method trunc.* real"),
        (hf.methods.Head(np.ones((24, 2)), np.ones(24)), "K of method trunc.* 2 axes"),
    ],
)
def test_what_a_method_returns_is_checked(made: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        hf.fit(BAND, 4, method=Wrong(made))


@pytest.mark.parametrize("dtype", [np.int64, np.float16, list])
def test_heads_of_any_dtype_mean_the_same(dtype: Any) -> None:
    q = 600 * np.eye(24, 4)
    made = q.tolist() if dtype is list else q.astype(dtype)
    of = [hf.fit(BAND, 4, method=Wrong(hf.methods.Head(x, x)), scale=0.005) for x in (q, made)]
    np.testing.assert_array_equal(*(fit.attention.logits() for fit in of))


def test_smaller_heads_are_filled_up() -> None:
    q = np.zeros((24, 2))
    assert hf.fit(BAND, 4, method=Wrong(hf.methods.Head(q, q))).Q.shape == (24, 4)


@pytest.mark.parametrize(
    "method", ["magic", None, 5, hf.methods.Learned, TruncatedSVD, object(), ["auto"]]
)
def test_what_is_no_method_is_refused(method: Any) -> None:
    with pytest.raises(InputError, match=r"method must be one of 'auto' or .*, or a Method; got"):
        hf.fit(BAND, 4, method=method)


# headfit's own -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "method"),
    [
        ("auto", hf.methods.Learned()),
        ("learned", hf.methods.Learned()),
        ("max-margin", hf.methods.MaxMargin()),
        ("projection", hf.methods.Projection()),
    ],
)
def test_words_stand_for_defaults(word: str, method: hf.methods.Method) -> None:
    words = {"auto", "learned", "max-margin", "mixed", "projection", "toeplitz"}
    assert {*registry.METHODS} == words
    by_word = hf.fit(A, 24, method=word)
    by_object = hf.fit(A, 24, method=method)
    assert by_word.method == by_object.method == method.name
    np.testing.assert_array_equal(by_word.Q, by_object.Q)
    np.testing.assert_array_equal(by_word.K, by_object.K)


def test_toeplitz_by_word() -> None:
    by_word = hf.fit(BAND, 12, method="toeplitz")
    by_object = hf.fit(BAND, 12, method=hf.methods.Toeplitz())
    assert by_word.method == by_object.method == "toeplitz"
    assert by_word.certificate.holds
    np.testing.assert_array_equal(by_word.Q, by_object.Q)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hf.methods.Learned(effort="most"), "effort must be one of"),
        (lambda: hf.methods.Learned(effort=0), "effort must"),
        (lambda: hf.methods.Learned(callback=5), "callback must be callable"),
        (lambda: hf.methods.Learned(init=5), "init must be a pair"),
        (lambda: hf.methods.Learned(init=(np.eye(3), np.ones((3, 2)))), "init must be Q and K"),
        (
            lambda: hf.methods.Learned(init=(np.eye(3), np.eye(3) * np.nan)),
            "init must be finite; K",
        ),
        (lambda: hf.methods.Learned(max_norm=0), "max_norm must lie"),
        (lambda: hf.methods.Toeplitz(frequencies=[]), "frequencies must be finite and below"),
        (lambda: hf.methods.Toeplitz(frequencies=[1.0, np.nan]), "frequencies must be finite"),
        (
            lambda: hf.methods.Toeplitz(frequencies=[1.0, 4.0]),
            r"frequencies must lie in \(0, pi\]; got 4",
        ),
        (lambda: hf.methods.Toeplitz(frequencies=[[1.0]]), "frequencies must be a vector"),
        (lambda: hf.methods.Toeplitz(max_norm=0), "max_norm must lie"),
        (lambda: hf.methods.MaxMargin(keys="spiral"), 'keys must be "random", "cyclic"'),
        (lambda: hf.methods.MaxMargin(keys=np.ones(3)), "keys must have at least 2 axes"),
        (lambda: hf.methods.MaxMargin(form="loose"), "form must be one of"),
        (lambda: hf.methods.MaxMargin(max_norm="x"), "max_norm must be a number"),
        (lambda: hf.methods.Projection(sketch="sparse"), "sketch must be one of"),
        (lambda: hf.methods.Projection(factor="qr"), "factor must be one of"),
    ],
)
def test_options_are_checked_where_they_are_given(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("method", "names"),
    [
        (hf.methods.Learned, ["effort", "init", "callback", "max_norm", "reheats", "stages"]),
        (hf.methods.MaxMargin, ["keys", "form", "max_norm"]),
        (hf.methods.Projection, ["sketch", "factor"]),
    ],
)
def test_a_method_has_its_own_options_and_fit_has_none_of_them(method: Any, names: Any) -> None:
    assert list(inspect.signature(method).parameters) == names
    taken = inspect.signature(hf.fit).parameters
    assert not set(names) & set(taken)
    assert len(taken) <= 20
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(method(), names[0], "low")
    every = {
        n
        for m in (hf.methods.Learned, hf.methods.MaxMargin, hf.methods.Projection)
        for n in inspect.signature(m).parameters
    }
    for other in every - set(names):
        with pytest.raises(TypeError, match=other):
            method(**{other: 1})


def test_efforts_and_settings_are_saved(tmp_path: Path) -> None:
    fit = hf.fit(BAND, 4, method=hf.methods.Learned(effort=np.array(300)))
    fit.save(tmp_path / "fit.npz")
    assert hf.load(tmp_path / "fit.npz").settings["effort"] == 300
    own = hf.methods.Head(np.ones((24, 2)), np.ones((24, 2)), settings={"by": np.ones(2)})
    with pytest.raises(InputError, match="what is of class ndarray is not saved"):
        hf.fit(BAND, 4, method=Wrong(own)).save(tmp_path / "own.npz")


def test_a_start_is_a_copy() -> None:
    q = np.ones((32, 4))
    method = hf.methods.Learned(init=(q, q))
    q[:] = np.nan
    assert np.isfinite(hf.fit(A, 4, method=method, time_limit=1).Q).all()


def test_progress_is_shown_by_every_method(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    for method in ("learned", "max-margin", TruncatedSVD()):
        assert hf.fit(BAND, 24, method=method, progress=True).certificate.holds
        assert "24/24" in capsys.readouterr().err


# Tolerances ------------------------------------------------------------------------------


def test_tolerances_are_stated_once() -> None:
    asked = hf.Tolerances(leak=0.2, distortion=0.5, max_logit=30.0)
    fit = hf.fit(A, 8, tolerances=asked)
    named = hf.fit(A, 8, leak=0.2, distortion=0.5, max_logit=30.0)
    np.testing.assert_array_equal(fit.Q, named.Q)
    assert fit.tolerances is asked
    assert fit.certificate.tolerances == named.tolerances == asked
    assert fit.certificate.holds
    assert fit.certificate.leak <= 0.2
    assert fit.certificate.max_logit <= 30.0
    assert not hasattr(fit, "leak")
    assert fit.certificate.to_dict()["tolerances"] == dataclasses.asdict(asked)
    for call in (hf.fit, hf.certify, hf.bounds.projection_dim, hf.bounds.lower,
                 hf.bounds.logit_range, hf.methods.append_dims):  # fmt: skip
        parameters = inspect.signature(call).parameters
        for name in ("leak", "distortion", "max_logit", "tolerances"):
            assert name not in parameters or parameters[name].default is None, (call, name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"leak": 0}, "leak must lie strictly between 0 and 1; got 0"),
        ({"leak": None}, "leak must"),
        ({"distortion": -0.1}, "distortion must be finite and at least 0"),
        ({"distortion": np.inf}, "distortion must be finite and at least 0"),
        ({"max_logit": 0}, "max_logit must lie strictly"),
        ({"max_logit": np.inf}, "max_logit must lie strictly"),
    ],
)
def test_tolerances_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        hf.Tolerances(**options)


def test_tolerances_are_given_in_one_way() -> None:
    asked, head = hf.Tolerances(), hf.fit(BAND, 4)
    for name, value in {"leak": 0.1, "distortion": 0.2, "max_logit": 9.0}.items():
        for call in (
            lambda **o: hf.fit(BAND, 4, **o),
            lambda **o: hf.certify(BAND, head, **o),
        ):
            with pytest.raises(InputError, match=f"{name} and tolerances must not both be given"):
                call(**{name: value}, tolerances=asked)
    with pytest.raises(InputError, match="distortion and tolerances must not both"):
        hf.bounds.lower(BAND, distortion=0.1, tolerances=asked)
    with pytest.raises(InputError, match=r"tolerances must be a Tolerances or None; got 0\.1"):
        hf.fit(BAND, 4, tolerances=0.1)
    with pytest.raises(InputError, match="tolerances must have max_logit=None here"):
        hf.bounds.projection_dim(24, 3, tolerances=hf.Tolerances(max_logit=9.0))
    with pytest.raises(InputError, match="bfloat16 alone moves ratios"):
        hf.fit(BAND, 4, dtype="bfloat16", tolerances=hf.Tolerances(distortion=0))
    assert hf.certify(np.eye(3), 9 * np.eye(3), np.eye(3), distortion=0).tolerances.distortion == 0
