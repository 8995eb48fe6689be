"""Which patterns are translation-invariant, and what their stencils are."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import headfit as hf
from headfit._filter.design import Shape
from headfit._filter.stencil import Stencil
from headfit.errors import InputError


def toeplitz(n: int, offsets: dict[int, float], causal: bool = False) -> sp.csr_array:
    """Return the pattern of some offsets i - j and their weights, row by row."""
    A = np.zeros((n, n))
    for i in range(n):
        for x, weight in offsets.items():
            if 0 <= i - x < n and not (causal and x < 0):
                A[i, i - x] = weight
    return sp.csr_array(A / A.sum(axis=1, keepdims=True))


OFFSETS = st.dictionaries(st.integers(-6, 6), st.floats(0.2, 5.0), max_size=6).map(
    lambda d: {0: 1.0, **d}
)


@given(n=st.integers(1, 30), offsets=OFFSETS, causal=st.booleans())
def test_a_stencil_is_what_the_pattern_was_made_of(
    n: int, offsets: dict[int, float], causal: bool
) -> None:
    A = toeplitz(n, offsets, causal)
    found = Stencil.of(hf.Target(A, mask="causal" if causal else None))
    wanted = sorted(x for x in offsets if abs(x) < n and not (causal and x < 0))
    if found.block == 1:
        assert found.offsets.tolist() == wanted
        logs = np.log([offsets[x] for x in wanted])
        np.testing.assert_allclose(found.log_weights, logs - logs.min(), atol=1e-9)
        assert (found.first, found.last) == (0 if causal else 1 - n, n - 1)


@given(n=st.integers(8, 30), seed=st.integers(0, 1000))
def test_one_entry_more_is_no_stencil(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    A = toeplitz(n, {0: 1.0, 1: 1.0, 2: 2.0}).toarray()
    zero = np.argwhere(A == 0)
    i, j = zero[rng.integers(len(zero))]
    if abs(i - j) == n - 1:  # a corner has no other entry at its offset
        return
    A[i, j] = 1.0
    with pytest.raises(InputError, match="A must be translation-invariant"):
        Stencil.of(hf.Target(A, normalize=True))


def test_one_weight_that_differs_is_no_stencil() -> None:
    A = toeplitz(20, {0: 1.0, 1: 1.0, 2: 2.0}).toarray()
    A[10] = A[10] * np.where(np.arange(20) == 9, 1.5, 1.0)
    with pytest.raises(InputError, match=r"ratios of the weights .* row 10"):
        Stencil.of(hf.Target(A, normalize=True))


@pytest.mark.parametrize("offset", [1, 7, 8, 15])
def test_offsets_that_no_row_has_beside_others(offset: int) -> None:
    A = hf.patterns.circulant(16, [-offset])
    found = Stencil.of(hf.Target(A))
    assert found.offsets.tolist() == [offset - 16, offset]
    assert found.log_weights.tolist() == [0.0, 0.0]
    assert hf.fit(A, 8, method="toeplitz").certificate.holds


def test_levels_that_no_row_tells_apart() -> None:
    # Rows 0 ... 3 attend at -9 and -8, or one of them, and the other rows at 4 and 5.
    A = toeplitz(12, {-9: 3.0, -8: 1.0, 4: 2.0, 5: 1.0})
    found = Stencil.of(hf.Target(A))
    assert found.offsets.tolist() == [-9, -8, 4, 5]
    logs = found.log_weights
    np.testing.assert_allclose(np.exp([logs[0] - logs[1], logs[2] - logs[3]]), [3.0, 2.0])


def test_masks() -> None:
    A = hf.patterns.causal_band(12, 3)
    assert Stencil.of(hf.Target(A)).first == -11
    assert Stencil.of(hf.Target(A, mask="causal")).first == 0
    windowed = Stencil.of(hf.Target(A, mask=("window", (6, 2))))
    assert (windowed.first, windowed.last) == (-2, 6)
    with pytest.raises(InputError, match="mask must be None"):
        Stencil.of(hf.Target(A, mask=np.tri(12, dtype=bool)))


@pytest.mark.parametrize("n", [64, 60])
@pytest.mark.parametrize("causal", [False, True])
def test_blocks(n: int, causal: bool) -> None:
    A = hf.patterns.block(n, 16).toarray()
    if causal:
        A = np.tril(A)
        A /= A.sum(axis=1, keepdims=True)
    found = Stencil.of(hf.Target(A, mask="causal" if causal else None))
    assert (found.block, found.n, found.offsets.tolist()) == (16, 4, [0])
    assert found.per_row == 16


def test_rows_that_attend_to_everything_and_ignored_columns() -> None:
    A = toeplitz(20, {-1: 1.0, 0: 1.0, 1: 1.0}).toarray()
    A[[0, 7]] = 1.0
    found = Stencil.of(hf.Target(A, normalize=True))
    assert found.apart.tolist() == [0, 7]
    assert found.offsets.tolist() == [-1, 0, 1]
    A[:, 0] = 0.0
    without = hf.Target(A, normalize=True)
    with pytest.raises(InputError):
        Stencil.of(without)
    found = Stencil.of(without, np.array([0]))
    assert found.apart.tolist() == [0, 7]
    assert found.offsets.tolist() == [-1, 0, 1]


def test_nothing_but_ignored_columns() -> None:
    A = np.zeros((6, 6))
    A[:, 2] = 1.0
    found = Stencil.of(hf.Target(A), np.array([2]))
    assert found.apart.tolist() == list(range(6))
    fit = hf.fit(A, 4, method="toeplitz", exempt_columns=[2])
    assert fit.certificate.holds


def test_shapes() -> None:
    def shape(A: sp.csr_array, mask: str | None = None) -> Shape:
        return Shape.of(Stencil.of(hf.Target(A, mask=mask)))

    assert shape(hf.patterns.causal_band(50, 7), "causal") == Shape(8, 1, None, 49)
    assert shape(hf.patterns.dilated(50, 3, 4)) == Shape(7, 4, None, 49)
    strided = shape(hf.patterns.strided(200, 32, neighbors=7), "causal")
    assert (strided.width, strided.spacing, strided.stride) == (8, 1, 32)
    assert Stencil.of(hf.Target(hf.patterns.circulant(40, [-1, 0, 1]))).wraps
    assert not Stencil.of(hf.Target(hf.patterns.band(40, 1))).wraps
