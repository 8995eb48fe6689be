"""Fits by projection: the method itself, its bound, the search over sizes, and saved heads."""

from __future__ import annotations

import json
import math
import operator
import os
import pickle
import zipfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from tests.references import assert_same

import headfit as hf
from headfit import _core, bounds
from headfit._fit import method as searching
from headfit._fit.method import doubled, galloping, tried
from headfit.errors import CertificateError, InputError, TargetError

RNG = np.random.default_rng
BAND = hf.patterns.band(24, 1, gamma=2.0, rng=0)
LOOSE = {"leak": 0.5, "distortion": 3.0}
DTYPES = ["float32", "float64"]
SKETCHES = ["gaussian", "rademacher"]


def fit_by_projection(A: Any, dim: int | None = None, **options: Any) -> hf.results.Fit:
    """Fit with the projection method, whatever the defaults are."""
    own = {"sketch": "gaussian"} | {
        name: options.pop(name) for name in ("sketch", "factor") if name in options
    }
    return hf.fit(A, dim, **{"method": hf.methods.Projection(**own), **options})


def target_logits(A: Any, leak: float, distortion: float) -> np.ndarray:
    """Return the matrix B of the theory, dense."""
    dense = sp.csr_array(A).toarray()
    least = np.where(dense > 0, dense, np.inf).min(axis=1, keepdims=True)
    tau = math.log(1 / leak) + math.log1p(distortion)
    with np.errstate(divide="ignore"):
        return np.where(dense > 0, np.log(dense / least) + tau, 0)


def sketch_of(fit: hf.results.Fit) -> np.ndarray:
    """Return the random matrix of a fit by identity factors."""
    return fit.K * math.sqrt(fit.dim)


# The projection -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sketch", SKETCHES)
def test_identity_factors(sketch: str, dtype: str) -> None:
    fit = fit_by_projection(BAND, 96, dtype=dtype, sketch=sketch, **LOOSE)
    assert (fit.dim, fit.dtype, fit.method) == (96, dtype, "projection")
    assert fit.Q.dtype == fit.K.dtype == fit.X.dtype == dtype
    assert fit.Q.shape == fit.K.shape == (24, 96)
    assert fit.scale == 1 / math.sqrt(96)
    G = sketch_of(fit)
    if sketch == "rademacher":
        np.testing.assert_allclose(np.abs(G), 1, rtol=1e-6)
    assert abs(G.mean()) < 0.1
    assert abs((G**2).mean() - 1) < 0.15
    B = target_logits(BAND, **LOOSE)
    np.testing.assert_allclose(fit.Q, B @ fit.K / fit.scale, rtol=1e-4, atol=1e-4)
    # The attention is also right with the default scale, 1 / sqrt(dim).
    np.testing.assert_array_equal(hf.attention_matrix(fit.Q, fit.K), fit.attention.matrix())


@pytest.mark.parametrize("factor", ["identity", "svd"])
@pytest.mark.parametrize("sketch", SKETCHES)
def test_products_are_unbiased(factor: str, sketch: str) -> None:
    B = target_logits(BAND, **LOOSE)
    total = np.zeros_like(B)
    draws, dim = 60, 64
    for seed in range(draws):
        fit = fit_by_projection(
            BAND, dim, rng=seed, factor=factor, sketch=sketch, dtype="float64", **LOOSE
        )
        total += fit.attention.logits()
    spread = np.linalg.norm(B, axis=1).max() * math.sqrt(2 / (draws * dim))
    assert np.abs(total / draws - B).max() < 6 * spread


def test_svd_factors() -> None:
    fit = fit_by_projection(BAND, 256, factor="svd", dtype="float64", **LOOSE)
    u, s, vt = np.linalg.svd(target_logits(BAND, **LOOSE))
    G = np.empty((24, 256))
    _core.fill_sketch(G, "gaussian", fit.settings["seed"], 1)
    product = fit.Q @ fit.K.T * fit.scale
    exact = (u * np.sqrt(s)) @ (G @ G.T / 256) @ (vt.T * np.sqrt(s)).T
    np.testing.assert_allclose(product, exact, atol=1e-9)
    assert fit_by_projection(BAND, 256, factor="svd", **LOOSE).Q.dtype == np.float32


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sketch", SKETCHES)
def test_a_wider_sketch_begins_with_the_narrower(sketch: str, dtype: str) -> None:
    wide = np.empty((70, 600), dtype)
    _core.fill_sketch(wide, sketch, 12345, 1)
    for n, d in ((70, 1), (70, 127), (70, 128), (70, 256), (70, 257), (1, 600), (65, 600)):
        narrow = np.empty((n, d), dtype)
        _core.fill_sketch(narrow, sketch, 12345, 2)
        np.testing.assert_array_equal(narrow, wide[:n, :d])
    # The same holds for the keys of fits, up to the factor 1 / sqrt(d).
    a, b = (fit_by_projection(BAND, d, dtype=dtype, sketch=sketch, rng=3) for d in (300, 40))
    np.testing.assert_allclose(sketch_of(a)[:, :40], sketch_of(b), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("factor", ["identity", "svd"])
@pytest.mark.parametrize("sketch", SKETCHES)
def test_threads_do_not_matter(sketch: str, factor: str) -> None:
    A = hf.patterns.random_regular(150, 3, gamma=2, rng=0)
    fits = [
        fit_by_projection(A, 70, factor=factor, sketch=sketch, num_threads=t) for t in (1, 2, 3)
    ]
    for other in fits[1:]:
        np.testing.assert_array_equal(fits[0].Q, other.Q)
        np.testing.assert_array_equal(fits[0].K, other.K)
        np.testing.assert_array_equal(
            fits[0].certificate.row_distortion, other.certificate.row_distortion
        )
        assert fits[0].certificate.leak == other.certificate.leak


def test_seeds_and_generators() -> None:
    def Q(rng: Any) -> bytes:
        return fit_by_projection(BAND, 8, rng=rng).Q.tobytes()

    assert Q(0) == Q(0) == Q(RNG(0))
    assert Q(0) != Q(1)
    generator = RNG(0)
    assert Q(generator) != Q(generator)  # each fit draws new numbers from the generator


def test_scale() -> None:
    default = fit_by_projection(BAND, 16, dtype="float64")
    fit = fit_by_projection(BAND, 16, dtype="float64", scale=1.0)
    assert fit.scale == fit.module.scale == 1.0
    np.testing.assert_allclose(fit.Q, default.Q * default.scale)
    np.testing.assert_allclose(fit.attention.logits(), default.attention.logits(), atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sketch", SKETCHES)
def test_a_method_alone_makes_a_head_without_a_certificate(sketch: str, dtype: str) -> None:
    problem = hf.methods.Problem(hf.Target(BAND), hf.Tolerances(**LOOSE), dtype, seed=5)
    head = hf.methods.Projection(sketch=sketch).head(problem, 50)
    assert head.Q.dtype == head.K.dtype == dtype
    near = {"float32": 1e-5, "float64": 1e-13}[dtype]
    np.testing.assert_allclose(head.Q, target_logits(BAND, **LOOSE) @ head.K, rtol=near, atol=near)


# The certificate and the module -------------------------------------------------------


def test_a_fit_that_holds() -> None:
    fit = fit_by_projection(BAND, 2048, rng=1, **LOOSE)
    c = fit.certificate
    assert c.holds
    assert fit.status == c.status == "holds"
    assert c.leak <= fit.tolerances.leak == 0.5
    assert c.distortion <= fit.tolerances.distortion == 3.0
    assert c.basis == "logits"
    assert fit.module.is_canonical
    assert fit.module.dim == 2048
    np.testing.assert_array_equal(fit.X, np.hstack([fit.Q, fit.K]))
    assert (fit.failed_rows, fit.witnesses, fit.search, fit.lower_bound) == (None,) * 4
    assert fit.seconds > 0
    assert "certified" in repr(fit)
    assert hf.certify(BAND, fit, **LOOSE).holds
    assert hf.certify(BAND, fit.module(fit.X), **LOOSE).holds
    for name, value in {
        "dim": 2048,
        "method": "projection",
        "dtype": "float32",
        "factor": "identity",
        "sketch": "gaussian",
        **LOOSE,
    }.items():
        assert fit.settings[name] == value
    assert isinstance(fit.settings["seed"], int)
    assert c.row_tv is not None
    assert fit_by_projection(BAND, 16, certificate_mass=False).certificate.row_tv is None


def test_a_fit_that_does_not() -> None:
    fit = fit_by_projection(BAND, 4)
    assert not fit.certificate.holds
    assert fit.status == "fails"
    assert "NOT certified" in repr(fit)
    with pytest.raises(CertificateError, match="FAILS in"):
        fit_by_projection(BAND, 4, strict=True)
    assert fit_by_projection(BAND, 2048, rng=1, strict=True, **LOOSE).certificate.holds


def test_masks() -> None:
    A = hf.patterns.causal_band(20, 3)
    fit = fit_by_projection(A, 1024, mask="causal", **LOOSE)
    assert fit.mask == "causal"
    assert fit.certificate.mask == "causal"
    matrix = fit.attention.matrix()
    assert (np.triu(matrix, 1) == 0).all()
    with pytest.raises(TargetError, match="masked position, row 0, column 1"):
        fit_by_projection(BAND, 64, mask="causal")
    assert fit_by_projection(hf.Target(A, mask="causal"), 16).mask == "causal"


def test_a_row_that_the_mask_leaves_empty() -> None:
    A = np.eye(5)
    A[2] = 0
    mask = np.ones((5, 5), bool)
    mask[2] = False
    fit = fit_by_projection(A, 256, mask=mask, **LOOSE)
    assert fit.certificate.holds
    assert (fit.Q[2] == 0).all()
    assert (fit.attention.matrix()[2] == 0).all()


def test_one_token() -> None:
    fit = fit_by_projection([[1.0]], None)
    assert fit.certificate.holds
    assert fit.dim == 1


def test_with_a_module() -> None:
    module = hf.SelfAttention.random(128, rng=0)
    fit = fit_by_projection(BAND, module=module, **LOOSE)
    assert fit.module is module
    assert fit.dim == 128
    assert fit.scale == module.scale
    assert fit.certificate.basis == "module"
    # Q and K are the rounded products that the module computes from X.
    recomputed = module(fit.X)
    np.testing.assert_array_equal(fit.Q, recomputed.Q)
    np.testing.assert_array_equal(fit.K, recomputed.K)
    intended = fit_by_projection(BAND, 128, **LOOSE)
    np.testing.assert_allclose(fit.K, intended.K, atol=1e-5)
    assert fit.attention.errors is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 0}, "dim must be an integer of at least 1"),
        ({"dim": -3}, "dim must be an integer of at least 1"),
        ({"dim": 2.5}, "dim must be an integer of at least 1"),
        ({"dim": True}, "dim must be an integer of at least 1"),
        ({"dim": "many"}, "dim must be"),
        ({"method": "magic"}, "method must be one of"),
        ({"dtype": "int8"}, "dtype must be one of"),
        ({"dtype": "int32"}, "dtype must be one of"),
        ({"factor": "qr"}, "factor must be one of"),
        ({"sketch": "sparse"}, "sketch must be one of"),
        ({"leak": 0}, "leak must lie strictly between 0 and 1"),
        ({"leak": 1}, "leak must lie strictly"),
        ({"leak": math.nan}, "leak must lie strictly"),
        ({"distortion": 0}, "distortion must be above 0"),
        ({"distortion": math.inf}, "distortion must be finite"),
        ({"distortion": "small"}, "distortion must be a number"),
        ({"scale": 0}, "scale must be finite and nonzero"),
        ({"module": np.eye(4)}, "module must be a SelfAttention"),
        ({"module": hf.SelfAttention.canonical(4), "dim": 5}, "dim must be the module's, 4"),
        ({"module": hf.SelfAttention.canonical(4), "dim": 4, "scale": 1.0}, "beside a module"),
        ({"num_threads": 0}, "num_threads must lie"),
    ],
    ids=str,
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        fit_by_projection(BAND, **{"dim": None if "module" in options else 4, **options})


def test_what_cannot_fit_in_memory_is_refused() -> None:
    with pytest.raises(InputError, match=r"head of size .* needs .* GiB"):
        fit_by_projection(np.eye(64), 2**40)


# The search ---------------------------------------------------------------------------


def test_search_finds_a_size_by_doubling_and_bisection() -> None:
    fit = fit_by_projection(BAND, None, rng=2, **LOOSE)
    search = fit.search
    assert search is not None
    assert fit.certificate.holds
    assert fit.dim == search.dim
    by_dim = {t.dim: t for t in search.trials}
    assert by_dim[fit.dim].holds
    assert not by_dim[fit.dim - 1].holds  # the next smaller size was tried
    assert search.trials[0].dim == 16
    assert [t.dim for t in search.trials[:3]] == [16, 32, 64]
    assert fit.settings["dim"] is None
    assert repr(search).startswith(f"Search(smallest found {fit.dim}; tried 16")
    # The search draws the same sketches as fits of these sizes.
    again = fit_by_projection(BAND, fit.dim, rng=2, **LOOSE)
    np.testing.assert_array_equal(again.Q, fit.Q)
    assert not fit_by_projection(BAND, fit.dim - 1, rng=2, **LOOSE).certificate.holds


def trial(dim: int, least: int) -> hf.results.Trial:
    return hf.results.Trial(dim, dim >= least, 0.1, 0.1, 0.0)


@pytest.mark.parametrize("least", [1, 2, 15, 16, 17, 31, 100, 999, 1000])
def test_bisection_is_exact_for_a_threshold(least: int) -> None:
    search = tried(doubled(16, 1000, "the end"), lambda d, _: trial(d, least), math.inf)
    assert search.dim == least
    assert len(search.trials) < 22
    assert len({t.dim for t in search.trials}) == len(search.trials)


@pytest.mark.parametrize("lowest", [1, 5])
@pytest.mark.parametrize("hard", [0, 1, 5])
@pytest.mark.parametrize("least", [5, 6, 7, 8, 12, 40, 100])
def test_a_search_finds_sizes_that_fail_in_haste(least: int, hard: int, lowest: int) -> None:
    calls = []

    def attempt(dim: int, haste: bool) -> hf.results.Trial:
        calls.append((dim, haste))
        return trial(dim, least + hard if haste else least)

    search = tried(galloping(7, lowest, 100), attempt, math.inf)
    assert search.dim == least
    assert len(set(calls)) == len(calls) == len(search.trials) < 17
    assert all(lowest <= dim <= 100 for dim, _ in calls)
    closed = "the bracket closed" in repr(search)
    assert closed == (least == lowest)


def test_a_search_ends_at_the_largest_size_and_at_its_deadline() -> None:
    search = tried(galloping(7, 1, 100), lambda d, _: trial(d, 5000), math.inf)
    assert search.dim is None
    assert search.trials[-1].dim == 100
    assert repr(search).endswith("stopped at 100)")
    late = tried(galloping(7, 1, 100), lambda d, _: trial(d, 5), 0.0)
    assert late.dim == 7
    assert repr(late).endswith("the time limit)")


def test_a_search_that_finds_nothing_says_where_it_stopped() -> None:
    search = tried(doubled(16, 1000, "what fits in memory"), lambda d, _: trial(d, 5000), math.inf)
    assert search.dim is None
    assert [t.dim for t in search.trials] == [16, 32, 64, 128, 256, 512, 1000]
    assert repr(search).endswith("stopped at 1000, what fits in memory)")


def test_a_search_that_finds_nothing_returns_the_largest_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(searching, "available_memory", lambda: 8 * 24 * 4 * 33)
    fit = fit_by_projection(BAND, None)
    assert fit.search is not None
    assert fit.search.dim is None
    assert fit.dim == 33
    assert not fit.certificate.holds


# The proved bound ---------------------------------------------------------------------


def test_projection_dim_formula() -> None:
    assert bounds.projection_dim(1024, 4, 2.0, 0.05, 0.25, failure=1.0) == 302839
    R = bounds.logit_range(2.0, 0.05, 0.25)
    assert pytest.approx(math.log(20 * 1.25 * 2)) == R
    wide, narrow = (bounds.projection_dim(100, 4, 1.0, 0.05, d) for d in (0.1, 0.2))
    assert wide > narrow
    assert bounds.projection_dim(100, 8) > bounds.projection_dim(100, 4)
    assert bounds.projection_dim(200, 4) > bounds.projection_dim(100, 4)
    assert bounds.projection_dim(100, 4, failure=1e-9) > bounds.projection_dim(100, 4)


def test_ratios_that_overflow() -> None:
    tiny = math.ulp(0.0)
    R = bounds.logit_range(math.inf, leak=tiny)
    assert pytest.approx(math.log1p(0.1) + 1024 * math.log(2) - 2 * math.log(tiny)) == R
    A = np.eye(4) + tiny * np.roll(np.eye(4), 1, axis=1)
    assert np.isfinite(hf.fit(A, 64, method="projection", leak=tiny).Q).all()


@pytest.mark.parametrize(
    "arguments",
    [
        {"n": 0},
        {"k": 0},
        {"k": 11},
        {"n": 2.5},
        {"gamma": 0.5},
        {"gamma": math.nan},
        {"leak": 1.0},
        {"distortion": 0.0},
        {"failure": 0.0},
        {"failure": 1.5},
        {"distortion": 1e-170},
    ],
    ids=str,
)
def test_projection_dim_refuses(arguments: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        bounds.projection_dim(**{"n": 10, "k": 2, **arguments})


@pytest.mark.parametrize("sketch", SKETCHES)
@pytest.mark.parametrize(
    ("A", "leak", "distortion"),
    [
        (hf.patterns.permutation(40, rng=0), 0.9, 20.0),
        (hf.patterns.random_regular(64, 2, rng=1), 0.9, 40.0),
        (hf.patterns.random_regular(30, 3, gamma=1.5, rng=2), 0.9, 60.0),
    ],
    ids=["permutation", "regular-2", "regular-3"],
)
def test_no_draw_violates_the_bound(A: Any, leak: float, distortion: float, sketch: str) -> None:
    target = hf.Target(A)
    dim = bounds.projection_dim(target.n, target.per_row, target.gamma, leak, distortion)
    assert dim < 6000
    B = target_logits(A, leak, distortion)
    for seed in range(8):
        fit = fit_by_projection(
            target,
            dim,
            rng=seed,
            dtype="float64",
            sketch=sketch,
            leak=leak,
            distortion=distortion,
            certificate_mass=False,
        )
        assert fit.certificate.holds
        error = np.abs(fit.attention.logits() - B).max()
        assert error <= math.log1p(distortion) / 2


def test_stray_and_leak() -> None:
    # In the worst case k weights are equal and all others are at the leak.
    n, k, leak = 50, 3, 0.01
    row = np.full(n, leak)
    row[:k] = 1
    row /= row.sum()
    assert bounds.stray_for_leak(n, k, leak) == pytest.approx(row[k:].sum())
    for stray in (1e-6, 0.01, 0.3):
        found = bounds.leak_for_stray(n, k, stray)
        assert bounds.stray_for_leak(n, k, found) == pytest.approx(stray)
        off = Fraction(found) * (n - k)
        assert off / (k + off) <= Fraction(stray)
        off = Fraction(leak := stray / 7) * (n - k)
        assert off / (k + off) <= Fraction(bounds.stray_for_leak(n, k, leak))
    assert bounds.leak_for_stray(n, k, 0.99) == 1.0
    assert bounds.leak_for_stray(5, 5, 0.1) == 1.0
    assert bounds.stray_for_leak(5, 5, 0.1) == 0
    for call in (bounds.stray_for_leak, bounds.leak_for_stray):
        for bad in ((5, 6, 0.1), (5, 2, 0.0), (5, 2, 1.0), (0, 1, 0.1)):
            with pytest.raises(InputError):
                call(*bad)
    # A certified leak keeps the stray mass of a fit below it.
    fit = fit_by_projection(BAND, 2048, rng=1, **LOOSE)
    c = fit.certificate
    least = int(np.diff(BAND.indptr).min())
    assert c.stray_worst <= bounds.stray_for_leak(24, least, c.leak) * (1 + 1e-6)


# Files --------------------------------------------------------------------------------


def same(a: hf.results.Fit, b: hf.results.Fit) -> None:
    """Assert that two fits have equal records in a file, and compute the same."""
    assert_same(a._record(), b._record())
    for name in ("X", "status", "module.weights"):
        assert_same(*map(operator.attrgetter(name), (a, b)), name)
    assert repr(a.certificate) == repr(b.certificate)
    assert_same(a.attention.matrix(), b.attention.matrix())


CAUSAL = hf.patterns.causal_band(24, 2)
MASKS = [
    None,
    "causal",
    ("window", 4),
    ("window", (3, 1)),
    np.tri(24, dtype=bool),
    sp.csr_array(np.tri(24) > 0),
]


@pytest.mark.parametrize("mask", MASKS, ids=lambda m: type(m).__name__ if m is not None else "none")
@pytest.mark.parametrize("with_module", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_save_and_load(tmp_path: Path, mask: Any, with_module: bool, dtype: str) -> None:
    options: dict[str, Any] = {"mask": mask, "dtype": dtype, **LOOSE}
    if with_module:
        W = RNG(0).standard_normal((2, 70, 32)).astype(dtype)
        options["module"] = hf.SelfAttention(*W, scale=0.7)
    fit = fit_by_projection(CAUSAL, None if with_module else 32, **options)
    path = tmp_path / "head.npz"
    assert fit.save(path) == path  # exactly this name
    loaded = hf.load(path)
    same(fit, loaded)
    assert type(loaded.mask) is type(fit.mask)
    certificate = hf.certify(CAUSAL, loaded, **LOOSE)
    np.testing.assert_array_equal(certificate.row_leak, fit.certificate.row_leak)


def test_search_and_numbers_that_are_no_json_survive(tmp_path: Path) -> None:
    fit = fit_by_projection(BAND, None, rng=2, certificate_mass=False, **LOOSE)
    same(fit, hf.load(fit.save(tmp_path / "head.npz")))


@pytest.mark.parametrize(
    "options", [{"dim": np.int64(16)}, {"dim": 16, "mask": ("window", np.int64(5))}], ids=str
)
def test_integers_of_numpy_are_saved(tmp_path: Path, options: dict[str, Any]) -> None:
    fit = fit_by_projection(hf.patterns.previous_token(8), **options)
    same(fit, hf.load(fit.save(tmp_path / "head.npz")))


def test_a_saved_file_is_plain(tmp_path: Path) -> None:
    path = fit_by_projection(BAND, 8).save(str(tmp_path / "head.npz"))
    with np.load(path, allow_pickle=False) as file:
        about = json.loads(str(file["about"]))
        assert {"Q", "K", "about"} <= set(file.files)
        assert not any(file[name].dtype.hasobject for name in file.files)
    assert about["headfit"] == hf.__version__
    assert about["settings"]["dim"] == 8
    assert about["certificate"]["leak_tolerance"] == 0.05
    assert oct(path.stat().st_mode & 0o400) == "0o400"


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = fit_by_projection(BAND, 8), fit_by_projection(BAND, 9)
    path = old.save(tmp_path / "head.npz")
    before = path.read_bytes()

    def half(file: Any, **arrays: Any) -> None:
        file.write(b"half of it")
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savez", half)
    with pytest.raises(OSError, match="no space left"):
        new.save(path)
    monkeypatch.undo()

    def killed(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        new.save(path)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["head.npz"]
    new.save(path)
    assert hf.load(path).dim == 9
    with pytest.raises(FileNotFoundError):
        new.save(tmp_path / "no" / "head.npz")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda raw: b"",
        lambda raw: b"not a file of arrays",
        lambda raw: pickle.dumps({"Q": 1}),
        lambda raw: raw[:10],
        lambda raw: raw[: len(raw) // 2],
        lambda raw: raw[:-5],
        lambda raw: raw[:300] + bytes([raw[300] ^ 255]) + raw[301:],
    ],
    ids=["empty", "text", "pickle", "head", "half", "tail", "flipped"],
)
def test_spoilt_files_are_refused(tmp_path: Path, spoil: Any) -> None:
    path = fit_by_projection(BAND, 8).save(tmp_path / "head.npz")
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(InputError, match=r"head.npz is no saved fit"):
        hf.load(path)


def rewrite(path: Path, **changes: Any) -> None:
    """Save the file anew with other values in its JSON text; None leaves an entry out."""
    with np.load(path) as file:
        arrays = dict(file)
    about = json.loads(str(arrays["about"])) | changes
    arrays["about"] = np.array(json.dumps({k: v for k, v in about.items() if v is not None}))
    np.savez(path, **arrays)


def test_other_archives_are_refused(tmp_path: Path) -> None:
    path = fit_by_projection(BAND, 8).save(tmp_path / "head.npz")
    rewrite(path, format=99)
    with pytest.raises(InputError, match="a newer version"):
        hf.load(path)
    rewrite(path, format=1, certificate={})
    with pytest.raises(InputError, match="no saved fit"):
        hf.load(path)
    sp.save_npz(path, BAND)
    with pytest.raises(InputError, match="no saved fit: it holds indices"):
        hf.load(path)
    with (tmp_path / "one.npz").open("wb") as file:
        np.save(file, np.eye(3))
    with pytest.raises(InputError, match="is no saved fit"):
        hf.load(tmp_path / "one.npz")
    with zipfile.ZipFile(tmp_path / "text.npz", "w") as file:
        file.writestr("about", "{}")
    with pytest.raises(InputError, match="no saved fit"):
        hf.load(tmp_path / "text.npz")
    with pytest.raises(FileNotFoundError):
        hf.load(tmp_path / "missing.npz")


def test_objects_are_never_written_or_read(tmp_path: Path) -> None:
    fit = fit_by_projection(hf.patterns.previous_token(8), 8, mask=np.ones((8, 8), bool))
    object.__setattr__(fit, "mask", np.ones((8, 8), object))
    with pytest.raises(InputError, match="mask_dense holds Python objects"):
        fit.save(tmp_path / "head.npz")
    assert os.listdir(tmp_path) == []
    np.savez(tmp_path / "objects.npz", about=np.array([{}], dtype=object))
    with pytest.raises(InputError, match="no saved fit"):
        hf.load(tmp_path / "objects.npz")


def test_a_head_that_is_met_at_once_counts_no_restart() -> None:
    search = hf.fit(np.eye(8)).search  # the tolerances are met before the annealing
    assert search.trials
    assert all(trial.restarts == 0 for trial in search.trials)
