"""The fixed module: its weights never change, and every head has an input."""

from __future__ import annotations

import numpy as np
import pytest

import headfit as hf
from headfit.errors import InputError

RNG = np.random.default_rng
DTYPES = ["float32", "float64"]


def heads(n: int, d: int, dtype: str = "float64", seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = RNG(seed)
    return rng.standard_normal((n, d)).astype(dtype), rng.standard_normal((n, d)).astype(dtype)


def dense_module(width: int, d: int, dtype: str = "float64", seed: int = 1) -> hf.SelfAttention:
    rng = RNG(seed)
    return hf.SelfAttention(*(rng.standard_normal((2, width, d)).astype(dtype)))


# Construction -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_canonical(dtype: str) -> None:
    module = hf.SelfAttention.canonical(3, dtype=dtype)
    assert (module.dim, module.width, module.dtype) == (3, 6, np.dtype(dtype))
    assert module.is_canonical
    assert module.scale == 1 / np.sqrt(3)
    np.testing.assert_array_equal(module.W_Q, np.eye(6)[:, :3])
    np.testing.assert_array_equal(module.W_K, np.eye(6)[:, 3:])
    assert module.W_Q.dtype == dtype
    Q, K = heads(7, 3, dtype)
    X = module.input_for(Q, K)
    np.testing.assert_array_equal(X, np.hstack([Q, K]))
    attention = module(X, mask="causal")
    np.testing.assert_array_equal(attention.Q, Q)
    np.testing.assert_array_equal(attention.K, K)
    assert attention.errors is None
    np.testing.assert_array_equal(attention.matrix(), hf.attention_matrix(Q, K, mask="causal"))
    assert repr(module) == f"SelfAttention(canonical, D=6, d=3, {dtype}, scale=0.57735)"


def test_weights_are_copied_and_read_only() -> None:
    W = RNG(0).standard_normal((2, 8, 3))
    module = hf.SelfAttention(W[0], W[1], scale=2.0)
    kept = module.weights.tobytes()
    W[:] = 0
    assert module.weights.tobytes() == kept
    for array in (module.W_Q, module.W_K, module.weights):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 1
    for name in ("W_Q", "scale", "dim", "weights", "new"):
        with pytest.raises(AttributeError):
            setattr(module, name, 1)
        with pytest.raises(AttributeError):
            delattr(module, name)
    assert module.scale == 2.0
    assert (module.dim, module.width) == (3, 8)
    canonical = hf.SelfAttention.canonical(2)
    with pytest.raises(ValueError, match="read-only"):
        canonical.weights[0, 0] = 5


@pytest.mark.parametrize(
    ("q", "k", "message"),
    [
        (np.ones((4, 2)), np.ones((4, 3)), "must have one shape"),
        (np.ones((4, 0)), np.ones((4, 0)), "must have one shape"),
        (np.ones(4), np.ones(4), "at least 2 axes"),
        (np.ones((2, 4, 2)), np.ones((2, 4, 2)), "must be a matrix"),
        (
            np.full((4, 2), np.nan),
            np.ones((4, 2)),
            "W_Q must be finite; got nan at row 0, column 0",
        ),
        (np.ones((4, 2)), np.full((4, 2), np.inf), "W_K must be finite"),
        (np.ones((4, 2), object), np.ones((4, 2)), "W_Q must hold real numbers"),
    ],
)
def test_bad_weights(q: np.ndarray, k: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        hf.SelfAttention(q, k)


def test_bad_arguments() -> None:
    for dim in (0, -1, 1.5):
        with pytest.raises(InputError, match="dim must be an integer of at least 1"):
            hf.SelfAttention.canonical(dim)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="dtype must be"):
        hf.SelfAttention.canonical(2, dtype="int32")
    with pytest.raises(InputError, match="scale must be"):
        hf.SelfAttention.canonical(2, scale=0)


# Calls --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("x_dtype", DTYPES)
@pytest.mark.parametrize("width", [6, 11, 40])
def test_products_lie_within_their_stated_errors(width: int, x_dtype: str, dtype: str) -> None:
    module = dense_module(width, 3, dtype)
    X = (RNG(2).standard_normal((20, width)) * 10.0 ** RNG(3).integers(-20, 15, (20, 1))).astype(
        x_dtype
    )
    attention = module(X)
    assert attention.Q.dtype == np.result_type(dtype, x_dtype)
    assert attention.scale == module.scale
    assert attention.errors is not None
    for got, W, bound in (
        (attention.Q, module.W_Q, attention.errors[0]),
        (attention.K, module.W_K, attention.errors[1]),
    ):
        exact = X.astype(np.longdouble) @ W.astype(np.longdouble)
        error = np.sqrt(((got - exact) ** 2).sum(axis=1))
        assert (error <= bound).all()
        # The bound must not be far too large either.
        size = np.linalg.norm(X.astype(float), axis=1) * np.linalg.norm(W)
        assert (bound <= 4 * width * np.finfo(got.dtype).eps * size + 1e-30).all()


def test_bad_inputs() -> None:
    module = dense_module(6, 3)
    with pytest.raises(InputError, match="X must have 6 columns"):
        module(np.ones((4, 5)))
    X = np.ones((4, 6))
    X[2, 3] = np.nan
    with pytest.raises(InputError, match="X must be finite; got nan at row 2, column 3"):
        module(X)
    with pytest.raises(InputError, match="mask must"):
        module(np.ones((4, 6)), mask="upper")


# Inputs -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "d"), [(2, 1), (12, 6), (13, 6), (40, 6), (128, 64)])
def test_input_round_trip(width: int, d: int, dtype: str) -> None:
    module = dense_module(width, d, dtype)
    Q, K = heads(9, d, dtype, seed=4)
    X = module.input_for(Q, K)
    assert X.shape == (9, width)
    assert X.dtype == dtype
    W = module.weights.astype(float)
    # The error is relative to the sizes in the product, as for a backward stable method.
    near = 50 * width * np.finfo(dtype).eps * np.linalg.norm(X, axis=1)[:, None] * np.linalg.norm(W)
    assert (np.abs(X.astype(float) @ W - np.hstack([Q, K])) <= near).all()
    if width > 2 * d:  # the input of least norm has no component outside the row space
        outside = X - (X @ W) @ np.linalg.pinv(W)
        assert np.linalg.norm(outside) <= 1e3 * np.finfo(dtype).eps * np.linalg.norm(X)
    again = module.input_for(Q, K)
    np.testing.assert_array_equal(X, again)


def test_input_takes_the_widest_dtype() -> None:
    module = dense_module(6, 3, "float32")
    Q, K = heads(4, 3, "float32")
    assert module.input_for(Q, K).dtype == np.float32
    assert module.input_for(Q.astype(float), K).dtype == np.float64
    assert hf.SelfAttention.canonical(3).input_for(Q, K.astype(float)).dtype == np.float64


def deficient(width: int, d: int, rank: int) -> hf.SelfAttention:
    rng = RNG(5)
    W = rng.standard_normal((width, rank)) @ rng.standard_normal((rank, 2 * d))
    return hf.SelfAttention(W[:, :d], W[:, d:])


@pytest.mark.parametrize(
    ("width", "d", "rank"), [(6, 3, 5), (6, 3, 1), (9, 3, 4), (64, 32, 63), (5, 3, 5)]
)
def test_deficient_rank_is_an_error_that_states_it(width: int, d: int, rank: int) -> None:
    module = deficient(width, d, rank)
    with pytest.raises(InputError, match=rf"rank 2 d = {2 * d} .*rank {rank}$"):
        module.input_for(*heads(4, d))


def test_weights_of_full_rank_that_are_nearly_singular() -> None:
    u, v = (np.linalg.qr(RNG(seed).standard_normal((64, 64)))[0] for seed in (0, 1))
    W = u * np.append(np.ones(63), 1e-13) @ v
    assert np.linalg.matrix_rank(W) == 64
    with pytest.raises(InputError, match=r"condition number above .* 1\.42e-14,.* about"):
        hf.SelfAttention(W[:, :32], W[:, 32:]).input_for(*heads(4, 32))


def test_zero_weights() -> None:
    module = hf.SelfAttention(np.zeros((4, 2)), np.zeros((4, 2)))
    narrow = hf.SelfAttention(np.empty((0, 2)), np.empty((0, 2)))
    with pytest.raises(InputError, match=r"shape \(0, 4\) and rank 0"):
        narrow.input_for(np.ones((3, 2)), np.ones((3, 2)))
    with pytest.raises(InputError, match="rank 0"):
        module.input_for(*heads(3, 2))


def test_bad_heads() -> None:
    module = dense_module(6, 3)
    Q, K = heads(4, 3)
    with pytest.raises(InputError, match="must have one shape"):
        module.input_for(Q, K[:3])
    with pytest.raises(InputError, match="must have one shape"):
        module.input_for(Q[:, :2], K[:, :2])
    Q[3, 1] = np.inf
    with pytest.raises(InputError, match="Q must be finite; got inf at row 3, column 1"):
        module.input_for(Q, K)


@pytest.mark.parametrize("width", [6, 8])
def test_inputs_that_exceed_their_dtype_are_refused(width: int) -> None:
    weights = np.linalg.qr(RNG(2).standard_normal((width, 6)))[0]
    Q, K = np.full((2, 4, 3), 1e20, np.float32)
    small = (1e-30 * weights).astype(np.float32)
    module = hf.SelfAttention(small[:, :3], small[:, 3:])
    with pytest.raises(InputError, match=r"X must fit float32; got numbers up to .*e\+50"):
        module.input_for(Q, K)
    assert np.isfinite(module.input_for(Q.astype(np.float64), K)).all()


def test_what_cannot_fit_in_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headfit._base.machine.available_memory", lambda: 1000)
    monkeypatch.setattr("headfit._base.machine.SMALL", 0)
    with pytest.raises(InputError, match=r"factorisation of 128 x 128 needs .* GiB"):
        dense_module(128, 64).input_for(*heads(3, 64))
    with pytest.raises(InputError, match="pseudo-inverse of 129 x 128"):
        dense_module(129, 64).input_for(*heads(3, 64))


# Rotations ----------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [1, 3, 64, 100, 512])
def test_random_rotation_is_orthogonal(dim: int) -> None:
    # 512 takes the fast path of cosine transforms, the others the QR factorisation.
    module = hf.SelfAttention.random(dim, rng=1, dtype=np.float64)
    W = module.weights
    assert W.shape == (2 * dim, 2 * dim)
    np.testing.assert_allclose(W.T @ W, np.eye(2 * dim), atol=1e-12)
    assert not module.is_canonical
    if dim > 1:
        # The weights are dense: no entry is much larger or smaller than the others.
        assert np.abs(W).max() < 8 / np.sqrt(2 * dim)
        assert (W != 0).mean() > 0.9
    same = hf.SelfAttention.random(dim, rng=1, dtype=np.float64)
    np.testing.assert_array_equal(same.weights, W)
    other = hf.SelfAttention.random(dim, rng=2, dtype=np.float64)
    assert dim == 1 or not np.array_equal(other.weights, W)
    narrow = hf.SelfAttention.random(dim, rng=1)
    assert narrow.dtype == np.float32
    np.testing.assert_array_equal(narrow.weights, W.astype(np.float32))


# One module for many patterns ------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_module_many_patterns(dtype: str) -> None:
    """Random dense weights are fitted with many patterns and keep every byte."""
    n, d = 64, 1024
    module = (
        dense_module(2 * d, d, dtype, seed=7) if dtype == "float64" else hf.SelfAttention.random(d)
    )
    weights, stored = module.weights.tobytes(), module.weights
    targets = {
        "band": hf.patterns.band(n, 1),
        "permutation": hf.patterns.permutation(n, rng=0),
        "regular": hf.patterns.random_regular(n, 3, rng=1),
        "tree": hf.patterns.tree(n),
        "grid": hf.patterns.grid2d(8, 8),
        "circulant": hf.patterns.circulant(n, [0, 3]),
        "hypercube": hf.patterns.hypercube(n),
    }
    inputs = {}
    for name, A in targets.items():
        fit = hf.fit(A, module=module, dtype=dtype, leak=0.5, distortion=4.0)
        assert fit.module is module
        assert fit.certificate.basis == "module"
        assert fit.certificate.holds, (name, fit)
        inputs[name] = fit.X
        # A check from the input alone agrees, and it fails for another pattern.
        attention = module(fit.X)
        assert hf.certify(A, attention, leak=0.5, distortion=4.0).holds
        np.testing.assert_array_equal(attention.Q, fit.Q)
        other = targets["band" if name != "band" else "tree"]
        assert hf.certify(other, attention, leak=0.5, distortion=4.0).status == "fails"
        # The largest weights of the rows lie on the supports.
        support = hf.attention_topk(fit.Q, fit.K, int(np.diff(A.indptr).min()), scale=fit.scale)
        assert (support.toarray()[A.toarray() == 0] == 0).all()
    assert module.weights is stored
    assert module.weights.tobytes() == weights
    assert len({x.tobytes() for x in inputs.values()}) == len(targets)


def test_a_perturbed_input_fails() -> None:
    module = hf.SelfAttention.random(512, rng=3)
    A = hf.patterns.permutation(32, rng=0)
    fit = hf.fit(A, module=module, leak=0.3, distortion=1.0)
    assert fit.certificate.holds
    X = fit.X.copy()
    X[5] = X[6]
    certificate = hf.certify(A, module(X), leak=0.3, distortion=1.0)
    assert certificate.status == "fails"
    assert 5 in certificate.failed_rows
