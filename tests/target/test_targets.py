"""Targets: those that are accepted, and the first offending row of those that are not."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import headfit as hf
from headfit._base.arrays import BFLOAT16
from headfit._base.masks import masks_agree
from headfit._base.sparse import as_csr
from headfit._target.target import SUM_TOLERANCE, as_target
from headfit.errors import InputError, TargetError

GOOD = np.array([[0.25, 0.75, 0.0], [0.0, 1.0, 0.0], [0.5, 0.0, 0.5]])
LOWER = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.25, 0.25, 0.5]])


def changed(row: int, column: int, value: float) -> np.ndarray:
    A = GOOD.copy()
    A[row, column] = value
    return A


def csr(data: Any, indices: Any, indptr: Any, n: int = 3, dtype: Any = float) -> sp.csr_array:
    return sp.csr_array((np.array(data, dtype), np.array(indices), np.array(indptr)), shape=(n, n))


# What is accepted ---------------------------------------------------------------------


def check(A: Any, **options: Any) -> hf.Target:
    target = hf.Target(A, **options)
    np.testing.assert_allclose(target.matrix.toarray(), GOOD, rtol=1e-7)
    assert (target.n, target.nonzeros, target.per_row, target.per_column) == (3, 5, 2, 2)
    assert target.gamma == pytest.approx(3)
    assert target.matrix.has_canonical_format
    assert target.matrix.dtype == np.float64
    return target


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "lil", "dok", "bsr", "dia"])
@pytest.mark.parametrize("kind", ["array", "matrix"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_formats(form: str, kind: str, dtype: str) -> None:
    check(getattr(sp, f"{form}_{kind}")(GOOD.astype(dtype)))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", ">f8"])
def test_dense(dtype: str) -> None:
    check(GOOD.astype(dtype))
    check(np.asfortranarray(GOOD.astype(dtype)))
    check(GOOD.astype(dtype).tolist())


def test_integers_and_booleans() -> None:
    assert hf.Target(np.eye(4, dtype=int)).nonzeros == 4
    assert hf.Target(np.eye(4, dtype=bool)).gamma == 1
    assert hf.Target(sp.eye_array(4, dtype=np.int8)).matrix.dtype == np.float64
    assert hf.Target(np.tri(3, dtype=int), normalize=True).per_row == 3


def test_a_target_is_taken_as_it_is() -> None:
    target = hf.Target(GOOD)
    check(target)
    assert repr(target) == "Target(n=3, nonzeros=5, per_row=2, per_column=2, gamma=3)"
    with pytest.raises(AttributeError):
        target.n = 4  # type: ignore[misc]


def test_normalize() -> None:
    check(GOOD * [[3], [1], [1e-3]], normalize=True)
    with pytest.raises(TargetError, match="row 0 sums to 3 "):
        hf.Target(GOOD * [[3], [1], [1]])
    # Scaling must not make negative entries valid.
    with pytest.raises(TargetError, match="-1 at row 1, column 0"):
        hf.Target(changed(1, 0, -1), normalize=True)


def test_normalize_takes_numbers_of_any_size() -> None:
    A = np.array([[1.7e308, 1.7e308, 0.9e308], [5e-324, 1e-323, 0.0], [1e300, 1.0, 0.0]])
    exact = [[Fraction(x) / sum(map(Fraction, row)) for x in row] for row in A]
    got = hf.Target(A, normalize=True).matrix.toarray()
    np.testing.assert_allclose(got, np.array(exact, dtype=float), rtol=1e-15)
    for large in (1e300, 1.7e308):
        bad = np.array([[0.0, 0.0, 1.0], [large, 1e-30, large], [0.0, 1.0, 0.0]])
        with pytest.raises(TargetError, match="shares of their rows; got 0 at row 1, column 1"):
            hf.Target(bad, normalize=True)


def test_sums_within_the_tolerance() -> None:
    for tolerance in (SUM_TOLERANCE, 1e-3):
        hf.Target(changed(1, 1, 1 + 0.9 * tolerance), sum_tolerance=tolerance)
        with pytest.raises(TargetError, match="row 1 sums to"):
            hf.Target(changed(1, 1, 1 + 1.1 * tolerance), sum_tolerance=tolerance)
    # Rounded thirds in float32 sum to 1 within the tolerance.
    assert hf.Target(np.full((3, 3), np.float32(1) / 3)).gamma == 1


def test_a_target_is_checked_once() -> None:
    """Its mask stays, and so does the tolerance of its sums, under any mask of the same entries."""
    A = sp.csr_array(np.tril(np.ones((12, 12))) / np.arange(1, 13)[:, None]) * 1.005
    mask = sp.csr_array(np.tril(np.ones((12, 12), dtype=bool)))
    T = hf.Target(A, mask=mask, sum_tolerance=1e-2)
    assert as_target(T, mask=mask) is T
    for same in (hf.Target(T), hf.Target(T, normalize=True), as_target(T, mask="causal")):
        assert same.mask is not None
    np.testing.assert_allclose(hf.Target(T, normalize=True).matrix.sum(axis=1), 1)
    assert hf.fit(T, 8, leak=0.5, distortion=2.0).certificate.n == 12
    assert hf.certify(T, np.eye(12), np.eye(12), mask="causal").n == 12
    with pytest.raises(TargetError, match=r"sum to 1 within 0\.001"):
        hf.Target(T, sum_tolerance=1e-3)


def check_on_a_copy(A: sp.csr_array) -> None:
    before = [x.copy() for x in (A.data, A.indices, A.indptr)]
    check(A)
    for now, then in zip((A.data, A.indices, A.indptr), before, strict=True):
        np.testing.assert_array_equal(now, then)


def test_duplicates_are_added() -> None:
    A = csr([0.25, 0.5, 0.25, 1, 0.5, 0.5], [0, 1, 1, 1, 0, 2], [0, 3, 4, 6])
    check_on_a_copy(A)


def test_explicit_zeros_are_no_nonzeros() -> None:
    A = csr([0.25, 0.75, 0, 1, 0.5, 0, 0.5], [0, 1, 0, 1, 0, 1, 2], [0, 2, 4, 7])
    check(A)
    assert A.nnz == 7


UNSORTED = ([0.75, 0.25, 1, 0.5, 0.5], [1, 0, 1, 2, 0], [0, 2, 3, 5])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_unsorted_columns_are_sorted_on_a_copy(dtype: str) -> None:
    A = csr(*UNSORTED, dtype=dtype)
    check_on_a_copy(A)


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_duplicates_of_other_dtypes_leave_the_input(dtype: str) -> None:
    A = csr([1, 2, 1, 1], [0, 1, 1, 2], [0, 3, 4, 4], dtype=dtype)
    B = csr([4, 1], [2, 2], [0, 0, 1, 2], dtype=dtype)
    for matrix in (A, B):
        before = [x.tobytes() for x in (matrix.data, matrix.indices, matrix.indptr)]
        with pytest.raises(TargetError):
            hf.Target(matrix, normalize=True)
        assert before == [x.tobytes() for x in (matrix.data, matrix.indices, matrix.indptr)]


def test_inputs_are_never_modified() -> None:
    for A in (GOOD.copy(), sp.csr_array(GOOD), sp.coo_array(GOOD), sp.csc_array(GOOD)):
        before = pickle.dumps(A)
        hf.Target(A)
        hf.Target(A, normalize=True)
        hf.fit(A, 8)
        hf.certify(A, np.ones((3, 2)), np.ones((3, 2)))
        assert pickle.dumps(A) == before
    frozen = sp.csr_array(GOOD)
    for array in (frozen.data, frozen.indices, frozen.indptr):
        array.flags.writeable = False
    check(frozen)


def test_numbers_of_64_bit_indices() -> None:
    A = sp.csr_array(GOOD)
    A.indices, A.indptr = A.indices.astype(np.int64), A.indptr.astype(np.int64)
    check(A)


@given(n=st.integers(1, 30), density=st.floats(0.05, 1), seed=st.integers(0, 99))
@settings(max_examples=30)
def test_any_row_stochastic_matrix(n: int, density: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    A = rng.random((n, n)) * (rng.random((n, n)) < density) + np.diag(rng.random(n) + 0.01)
    A /= A.sum(axis=1, keepdims=True)
    target = hf.Target(sp.coo_array(A))
    assert target.per_row == (A > 0).sum(axis=1).max()
    assert target.per_column == (A > 0).sum(axis=0).max()
    ratios = A.max(axis=1) / np.where(A > 0, A, np.inf).min(axis=1)
    assert target.gamma == pytest.approx(ratios.max())


# What is refused ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("A", "message"),
    [
        (np.ones((2, 3)), r"square matrix; got shape \(2, 3\)"),
        (sp.csr_array((2, 3)), r"square matrix; got shape \(2, 3\)"),
        (np.ones(3), r"square matrix; got shape \(3,\)"),
        (np.ones((1, 2, 2)), "square matrix"),
        (np.ones((0, 0)), "at least one row"),
        (GOOD.astype(complex), "real numbers; got dtype complex"),
        (sp.csr_array(GOOD.astype(complex)), "real numbers"),
        (GOOD.astype(object), "real numbers; got dtype object"),
        (np.array([["a"]]), "real numbers"),
        (sp.coo_array((2**31, 2**31)), r"fewer than 2\*\*31; got shape"),
        (sp.coo_array(([1.0], ([2**40], [5])), shape=(2**41, 2**41)), r"fewer than 2\*\*31"),
        (changed(1, 0, -0.5), "got -0.5 at row 1, column 0"),
        (changed(2, 1, np.nan), "got nan at row 2, column 1"),
        (changed(0, 2, np.inf), "got inf at row 0, column 2"),
        (changed(0, 2, -np.inf), "got -inf at row 0, column 2"),
        (changed(1, 1, 0.9), r"row 1 sums to 0.9\d* \(headfit.Target\(A, normalize=True\) scales"),
        (changed(1, 1, 0.0), "row 1 is empty"),
        (np.zeros((3, 3)), "row 0 is empty"),
        (csr([1, 0, 1], [0, 1, 2], [0, 1, 2, 3]), "row 1 is empty"),
        (csr([1, 0.5, -0.5, 1], [0, 1, 1, 2], [0, 1, 3, 4]), "row 1 is empty"),
        (changed(0, 0, 0.35) * [[1], [1], [7]], "row 0 sums to 1.1"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_refused(A: Any, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        hf.Target(A)
    with pytest.raises(InputError, match=message):
        hf.fit(A, 4)


@pytest.mark.parametrize("bad", [-0.5, np.nan, np.inf])
@pytest.mark.parametrize("normalize", [False, True])
def test_refused_in_sparse_ones_too(bad: float, normalize: bool) -> None:
    with pytest.raises(TargetError, match="at row 2, column 1"):
        hf.Target(sp.csc_array(changed(2, 1, bad)), normalize=normalize)


def test_bad_structure_is_refused_without_a_crash() -> None:
    A = csr([1, 1, 1], [0, 1, 2], [0, 1, 2, 3])
    A.indices = np.array([0, 7, 2], A.indices.dtype)
    with pytest.raises((InputError, ValueError)):
        hf.Target(A)
    A.indices = np.array([0, -1, 2], A.indices.dtype)
    with pytest.raises((InputError, ValueError)):
        hf.Target(A)


def test_the_first_offending_row_is_named() -> None:
    A = np.eye(9)
    A[[7, 4, 6], [7, 4, 6]] = 0.5
    A[8, 0] = -1
    with pytest.raises(TargetError, match="row 4 sums"):
        hf.Target(A)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8", "bool", BFLOAT16])
@pytest.mark.parametrize("numbers_at_once", [1, 7, 64, 2**19])
def test_dense_matrices_are_read_by_rows(
    dtype: Any, numbers_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headfit._base.sparse.BLOCK", numbers_at_once)
    rng = np.random.default_rng(0)
    numbers = np.where(rng.random((13, 13)) < 0.7, 0.0, rng.integers(-2, 3, (13, 13)))
    numbers[4] = 0
    if dtype == BFLOAT16:
        numbers[0, :2] = -0.0, np.nan
        dense = (numbers.astype("float32").view(np.uint32) >> 16).astype(np.uint16).view(dtype)
    else:
        dense = numbers.astype(dtype)
        numbers = dense.astype(float)
    for matrix, expected in ((dense, numbers), (dense.T, numbers.T)):
        got = as_csr(matrix, "A")
        assert got.dtype == np.float64
        assert got.has_canonical_format
        assert got.data.all()  # NaN included
        assert got.indices.dtype == got.indptr.dtype == np.int32
        np.testing.assert_array_equal(got.toarray(), expected)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_large_targets_on_any_threads(num_threads: int) -> None:
    A = hf.patterns.random_regular(20_000, 5, gamma=4.0, rng=0)
    A.data[12_000 * 5 : 12_001 * 5] = [0.9, 0.025, 0.025, 0.025, 0.025]
    target = hf.Target(A, num_threads=num_threads)
    columns = np.bincount(A.indices)
    assert (target.per_row, target.per_column, target.nonzeros) == (5, columns.max(), 100_000)
    assert target.gamma == pytest.approx(36)
    A.data[13_000 * 5] += 1
    A.data[19_000 * 5] = np.nan
    with pytest.raises(TargetError, match="row 13000 sums"):
        hf.Target(A, num_threads=num_threads)


@pytest.mark.parametrize("num_threads", [0, -1, 1.5, True])
def test_bad_numbers_of_threads(num_threads: Any) -> None:
    with pytest.raises(InputError, match="num_threads"):
        hf.Target(GOOD, num_threads=num_threads)


# Masks --------------------------------------------------------------------------------


def test_masks() -> None:
    for mask in ("causal", ("window", 3), np.tri(3, dtype=bool), sp.csr_array(np.tri(3) > 0)):
        target = hf.Target(LOWER, mask=mask)
        assert masks_agree(target.mask, mask, (3, 3))
        assert "mask=" in repr(target)
        with pytest.raises(TargetError, match="masked position, row 0, column 1"):
            hf.Target(GOOD, mask=mask)
    with pytest.raises(TargetError, match="masked position, row 2, column 0"):
        hf.Target(LOWER, mask=("window", 2))
    with pytest.raises(InputError, match="mask must"):
        hf.Target(LOWER, mask="lower")
    with pytest.raises(InputError, match="mask must broadcast"):
        hf.Target(LOWER, mask=np.ones((4, 4), bool))


def window_mask(n: int, left: int, right: int) -> sp.csr_array:
    offsets = range(-left, right + 1)
    return sp.diags_array([True] * len(offsets), offsets=offsets, shape=(n, n), dtype=bool).tocsr()


def test_large_sparse_masks_are_compared_with_windows() -> None:
    n = 20_000
    mask = window_mask(n, 3, 1)
    assert masks_agree(mask, ("window", (3, 1)), (n, n))
    assert masks_agree(("window", (3, 1)), mask.tocoo(), (n, n))
    for other in ("causal", None, ("window", (3, 0)), ("window", (2, 2))):
        assert not masks_agree(mask, other, (n, n))
    for row, column in ((0, 0), (n - 1, n - 1), (n // 2, n // 2)):  # one entry is elsewhere
        moved = mask.tolil()
        moved[row, column], moved[row, (column + n // 4) % n] = False, True
        assert not masks_agree(moved, ("window", (3, 1)), (n, n))


@given(st.integers(1, 6), st.integers(0, 6), st.integers(0, 6), st.integers(0, 2**32))
def test_masks_are_compared_as_arrays_are(n: int, left: int, right: int, seed: int) -> None:
    window = window_mask(n, left, right) if n > max(left, right) else None
    dense = np.random.default_rng(seed).random((n, n)) < 0.8
    forms: list[tuple[Any, np.ndarray]] = [
        (sp.csr_array(dense), dense),
        (dense[:1], np.broadcast_to(dense[:1], (n, n))),
        (sp.csr_array(np.broadcast_to(dense[:1], (n, n))), np.broadcast_to(dense[:1], (n, n))),
        (None, np.ones((n, n), bool)),
        ("causal", np.tri(n, dtype=bool)),
        (sp.csr_array(np.tri(n, dtype=bool)), np.tri(n, dtype=bool)),
    ]
    if window is not None:
        forms += [(("window", (left, right)), window.toarray()), (window, window.toarray())]
    for (a, one), (b, other) in itertools.product(forms, forms):
        assert masks_agree(a, b, (n, n)) == np.array_equal(one, other)


def spoilt(array: np.ndarray, value: Any) -> None:
    array[:] = value


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "dense"])
def test_what_was_checked_cannot_be_changed(form: str) -> None:
    mask = np.tri(3, dtype=bool)
    theirs: Any = np.array(LOWER) if form == "dense" else getattr(sp, f"{form}_array")(LOWER)
    target = hf.Target(theirs, mask=mask)
    before = target.matrix.toarray()
    mask[:] = True
    spoilt(theirs if form == "dense" else theirs.data, 7.0)
    for part in ("indices", "indptr"):
        if form in ("csr", "csc"):
            spoilt(getattr(theirs, part), 2**30)
    for one in (target, copy.deepcopy(target), pickle.loads(pickle.dumps(target))):
        np.testing.assert_array_equal(one.matrix.toarray(), before)
        np.testing.assert_array_equal(one.mask, np.tri(3, dtype=bool))
        for array in (one.matrix.data, one.matrix.indices, one.matrix.indptr, one.mask):
            with pytest.raises(ValueError, match="read-only"):
                array[:] = 0


def test_sparse_masks_are_copied() -> None:
    mask = sp.csr_array(np.tri(3, dtype=bool))
    target = hf.Target(LOWER, mask=mask)
    spoilt(mask.indices, 2)
    assert masks_agree(target.mask, "causal", (3, 3))
    with pytest.raises(ValueError, match="read-only"):
        target.mask.data[:] = False


def test_arrays_of_the_user_stay_writable() -> None:
    A = sp.csr_array(LOWER)
    hf.Target(A)
    hf.certify(A, np.eye(3), np.eye(3))
    assert A.data.flags.writeable
    assert A.indices.flags.writeable


def test_rows_may_be_empty_only_where_the_mask_leaves_nothing() -> None:
    A = LOWER.copy()
    A[1] = 0
    with pytest.raises(TargetError, match="row 1 is empty"):
        hf.Target(A)
    with pytest.raises(TargetError, match="row 1 is empty"):
        hf.Target(A, mask="causal")
    closed = np.ones((3, 3), bool)
    closed[1] = False
    for mask in (closed, sp.csr_array(closed)):
        target = hf.Target(A, mask=mask)
        assert target.nonzeros == 4
        assert hf.Target(A, mask=mask, normalize=True).nonzeros == 4
    # A target that is made from another one has its mask, unless one is given.
    assert hf.Target(hf.Target(A, mask=closed)).mask is not None
    with pytest.raises(TargetError, match="row 1 is empty"):
        hf.Target(hf.Target(A, mask=closed).matrix)


# Files --------------------------------------------------------------------------------


def test_saved_npz(tmp_path: Path) -> None:
    for form in (sp.csr_array, sp.coo_array, sp.csc_matrix):
        path = tmp_path / f"{form.__name__}.npz"
        sp.save_npz(path, form(GOOD))
        check(path)
        check(str(path))
        assert isinstance(hf.Target(path).matrix, sp.csr_array)


def test_matrix_market(tmp_path: Path) -> None:
    path = tmp_path / "A.mtx"
    scipy.io.mmwrite(path, sp.coo_array(GOOD))
    check(path)


def test_matrix_market_kinds(tmp_path: Path) -> None:
    path = tmp_path / "A.mtx"
    path.write_text(
        "%%MatrixMarket matrix coordinate pattern symmetric\n3 3 3\n1 1\n2 2\n3 2\n",
        encoding="ascii",
    )
    target = hf.Target(path, normalize=True)
    np.testing.assert_array_equal(target.matrix.toarray(), [[1, 0, 0], [0, 0.5, 0.5], [0, 1, 0]])
    scipy.io.mmwrite(path, GOOD)
    with pytest.raises(InputError, match="its layout must be coordinate; got array"):
        hf.Target(path)
    scipy.io.mmwrite(path, sp.coo_array(GOOD * 1j))
    with pytest.raises(InputError, match=r"its field must be real or .*; got complex"):
        hf.Target(path)


@pytest.mark.parametrize("name", ["A.npz", "A.mtx", "A.txt"])
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and so on", b"%%MatrixMarket matrix oops\n"])
def test_other_files_are_refused(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"{name} must be a file of"):
        hf.Target(path)


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="No such file"):
        hf.Target(tmp_path / "missing.npz")
    with pytest.raises(InputError, match="must be a file of"):
        hf.Target(tmp_path)


class Bomb:
    def __reduce__(self) -> Any:
        return (print, ("a pickle was opened",))


def test_pickled_content_is_never_opened(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    objects = np.array([Bomb()], dtype=object)
    paths = [tmp_path / name for name in ("fields.npz", "data.npz", "plain.npz", "raw.npz")]
    np.savez(paths[0], format=np.array(["csr"], dtype=object), data=objects)
    np.savez(
        paths[1],
        format=b"csr",
        shape=(1, 1),
        data=objects,
        indices=np.zeros(1, int),
        indptr=np.array([0, 1]),
    )
    np.savez(paths[2], A=objects)
    buffer = io.BytesIO()
    pickle.dump(Bomb(), buffer)
    paths[3].write_bytes(buffer.getvalue())
    for path in paths:
        for load in (hf.Target, hf.load):
            with pytest.raises(InputError):
                load(path)
    assert capsys.readouterr().out == ""


def test_a_certificate_is_about_the_mask_of_a_sparsified_head() -> None:
    rng = np.random.default_rng(0)
    whole = hf.Attention(3 * rng.normal(size=(12, 6)), rng.normal(size=(12, 6)), mask="causal")
    kept = hf.sparsify(whole, per_row=2)
    found = hf.fit(kept, 6, rng=0)
    certificate = hf.certify(kept, found.Q, found.K, scale=found.scale)
    assert certificate.holds
    assert certificate.mask == "causal"
    with pytest.raises(InputError, match="the target and the attention must have the same mask"):
        hf.certify(kept, hf.Attention(found.Q, found.K, scale=found.scale))
