"""hf.patterns.from_mask compared with masks of booleans, and its refusals."""

from __future__ import annotations

import re
import subprocess
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import sparse

import headfit as hf
from headfit import patterns
from headfit.errors import InputError, TargetError
from headfit.patterns import _masks

SPARSE = ("csr", "csc", "coo", "bsr", "lil", "dok", "dia")
N = 5
LOWER = np.tri(N, dtype=bool)


def reference(mask: np.ndarray) -> np.ndarray:
    """Return the row-stochastic matrix with equal weights where a mask is True."""
    return mask / mask.sum(axis=1, keepdims=True)


def forms(mask: np.ndarray) -> dict[str, Any]:
    """Return the same mask in every form that needs NumPy and SciPy only."""
    additive = np.where(mask, 0.0, -np.inf)
    lowest = {d: np.where(mask, 0, np.finfo(d).min).astype(d) for d in ("f2", "f4", "f8")}
    return {
        "bool": mask,
        "list": mask.tolist(),
        "transposed in memory": np.asfortranarray(mask),
        "read-only": np.broadcast_to(mask, (1, 1, *mask.shape)),
        **{f"integers {d}": mask.astype(d) for d in ("i1", "u1", "i8", ">i4")},
        **{f"additive {d}": additive.astype(d) for d in ("f2", "f4", "f8", ">f4")},
        **{f"lowest {d}": values for d, values in lowest.items()},
        "minus zero": np.where(mask, -0.0, -np.inf),
        **{f"sparse {form}": getattr(sparse, f"{form}_array")(mask) for form in SPARSE},
        "sparse integers": sparse.csr_array(mask.astype(np.int8)),
        "sparse matrix": sparse.csr_matrix(mask),
        "stored zeros": sparse.csr_array(
            (
                mask.ravel(),
                np.tile(np.arange(len(mask)), len(mask)),
                len(mask) * np.arange(len(mask) + 1),
            )
        ),
    }


@st.composite
def masks(draw: st.DrawFn) -> np.ndarray:
    """Draw a square mask that allows at least one key in each row."""
    n = draw(st.integers(1, 12))
    mask = draw(arrays.arrays(np.bool_, (n, n)))
    own = draw(arrays.arrays(np.int64, n, elements=st.integers(0, n - 1)))
    mask[np.arange(n), own] = True
    return mask


@given(masks())
def test_every_form_gives_the_same_pattern(mask: np.ndarray) -> None:
    for name, form in forms(mask).items():
        A = patterns.from_mask(form)
        np.testing.assert_array_equal(A.toarray(), reference(mask), err_msg=name)
        assert A.has_sorted_indices
        assert A.indices.dtype == A.indptr.dtype == np.int32


@given(masks())
def test_a_pattern_is_the_pattern_of_its_own_support(mask: np.ndarray) -> None:
    A = patterns.from_mask(mask, gamma=3.0, rng=0)
    again = patterns.from_mask(A != 0, gamma=3.0, rng=0)
    np.testing.assert_array_equal(again.toarray(), A.toarray())


@settings(max_examples=20)
@given(masks(), st.integers(1, 40))
def test_chunks_of_rows_change_nothing(mask: np.ndarray, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_masks, "BLOCK", size)
        for form in (mask, np.where(mask, 0.0, -np.inf)):
            A = patterns.from_mask(form)
            np.testing.assert_array_equal(A.toarray(), reference(mask))


@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**32))
def test_leading_axes(batch: int, heads: int, seed: int) -> None:
    stack = np.random.default_rng(seed).random((batch, heads, N, N)) < 0.5
    stack |= np.eye(N, dtype=bool)
    for b, h in np.ndindex(batch, heads):
        chosen = patterns.from_mask(stack, batch=b, head=h)
        np.testing.assert_array_equal(chosen.toarray(), reference(stack[b, h]))
        of_heads = patterns.from_mask(stack[b], head=h)
        np.testing.assert_array_equal(of_heads.toarray(), reference(stack[b, h]))
    if batch * heads == 1:
        deep = patterns.from_mask(stack[None, None])
        np.testing.assert_array_equal(deep.toarray(), reference(stack[0, 0]))
    else:
        name, size = ("head", heads) if heads > 1 else ("batch", batch)
        shape = re.escape(str(stack.shape))
        with pytest.raises(InputError, match=f"^mask must .*{shape}.*{name}=0 ... {size - 1}$"):
            patterns.from_mask(stack)


def test_patterns_of_masks_of_the_library() -> None:
    n = 40
    for A in (patterns.band(n, 3), patterns.bigbird(n, 2, 2, 3, rng=0), patterns.tree(n)):
        np.testing.assert_array_equal(patterns.from_mask(A != 0).toarray(), A.toarray())


def test_nothing_is_shared_with_the_mask() -> None:
    mask = sparse.csr_array(LOWER)
    A = patterns.from_mask(mask)
    A.indices[:] = 0
    A.indptr[:] = 0
    np.testing.assert_array_equal(mask.toarray(), LOWER)


class OfAnotherLibrary:
    """An array that NumPy can read by DLPack only."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_arrays_of_any_library() -> None:
    A = patterns.from_mask(OfAnotherLibrary(LOWER))
    np.testing.assert_array_equal(A.toarray(), reference(LOWER))


def changed(mask: np.ndarray, value: Any) -> np.ndarray:
    """Return a mask with another value in row 2, column 3."""
    mask = mask.copy()
    mask[2, 3] = value
    return mask


ZEROS = np.zeros((N, N))


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (changed(ZEROS, np.nan), ["0 or -inf", "nan", "row 2, column 3"]),
        (changed(ZEROS, 1.0), ["0 or -inf", "1.0", "row 2, column 3"]),
        (changed(ZEROS, np.inf), ["0 or -inf", "inf", "row 2, column 3"]),
        (changed(ZEROS.astype("f2"), -1e4), ["0 or -inf", "-10000.0", "row 2, column 3"]),
        (changed(LOWER.astype(int), 2), ["0 or 1", "got 2", "row 2, column 3"]),
        (changed(LOWER.astype(int), -1), ["0 or 1", "got -1", "row 2, column 3"]),
        (sparse.csr_array(changed(LOWER.astype(int), 2)), ["0 or 1", "got 2", "row 2, column 3"]),
        (sparse.csr_array(LOWER.astype(float)), ["boolean", "float64"]),
        (sparse.coo_array(([1, 1], ([0, 0], [0, 0])), shape=(1, 1)), ["0 or 1", "got 2", "row 0"]),
        (LOWER.astype(complex), ["boolean", "complex128"]),
        (LOWER.astype(str), ["boolean", "<U"]),
        (np.array([[None]]), ["boolean", "object"]),
        ("causal", ["boolean", "'causal'"]),
        (None, ["boolean", "None"]),
        (np.ones((N, N + 1), bool), ["square", "(5, 6)"]),
        (sparse.eye_array(N, N + 1, dtype=bool), ["square", "(5, 6)"]),
        (np.ones((N, 1, N), bool), ["square", "(5, 1, 5)"]),
        (np.ones(N, bool), ["square", "(5,)"]),
        (np.empty((0, 0), bool), ["square", "(0, 0)"]),
        (np.ones((3, N, N), bool), ["one matrix", "(3, 5, 5)", "head=0 ... 2"]),
        (np.ones((2, 1, N, N), bool), ["one matrix", "(2, 1, 5, 5)", "batch=0 ... 1"]),
        (np.ones((2, 1, 1, N, N), bool), ["(batch, head, n, n)", "(2, 1, 1, 5, 5)"]),
        ([[True], [True, False]], ["an array"]),
    ],
)
def test_bad_masks_are_refused_by_place(mask: Any, words: list[str]) -> None:
    with pytest.raises(InputError, match=r"^mask must ") as caught:
        patterns.from_mask(mask)
    for word in words:
        assert word in str(caught.value)


def test_places_are_those_of_the_whole_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_masks, "BLOCK", 1)
    with pytest.raises(InputError, match=r"row 2, column 3$"):
        patterns.from_mask(changed(ZEROS, np.nan))


@pytest.mark.parametrize("form", ["bool", "additive f4", "integers i1", "sparse csr", "sparse coo"])
def test_an_empty_row_is_named(form: str) -> None:
    mask = LOWER.copy()
    mask[[1, 3]] = False
    with pytest.raises(TargetError, match=r"^mask must .* none in row 1 \(2 of 5 rows\)"):
        patterns.from_mask(forms(mask)[form])


@pytest.mark.parametrize(
    ("mask", "name", "value"),
    [
        (LOWER, "head", 0),
        (LOWER[None], "head", 1),
        (LOWER[None], "head", -1),
        (LOWER[None], "head", True),
        (LOWER[None], "head", 0.0),
        (LOWER[None], "batch", 0),
        (LOWER[None, None], "batch", 1),
        (sparse.csr_array(LOWER), "batch", 0),
    ],
)
def test_bad_indices_are_refused(mask: Any, name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"^{name} must"):
        patterns.from_mask(mask, **{name: value})


def test_memory_is_that_of_a_few_rows() -> None:
    n = 6000
    mask = np.eye(n, dtype=np.float32)
    mask[mask == 0] = -np.inf
    mask[mask == 1] = 0
    tracemalloc.start()
    try:
        A = patterns.from_mask(mask)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert A.nnz == n
    assert peak < mask.nbytes / 4


def test_torch_is_not_imported_unasked() -> None:
    code = "import sys, headfit as hf, numpy as np; hf.patterns.from_mask(np.ones((2, 2), bool))"
    code += "; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_mask_that_is_enforced_leaves_nothing_to_leak() -> None:
    # What docs/patterns.md says of masks: with equal weights, one coordinate is enough.
    A = patterns.window_global(64, 8, 1)
    zeros = np.zeros((64, 1))
    certificate = hf.certify(A, zeros, zeros, mask=A != 0)
    assert certificate.holds
    assert certificate.leak == 0
    assert not hf.certify(A, zeros, zeros).holds
