"""Sparse input with invalid indices, offsets or shapes is refused by every function."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import headfit as hf
from headfit._base.sparse import checked_csr
from headfit.errors import InputError

N = 6
GOOD = np.eye(N) * 0.5 + np.roll(np.eye(N), 1, axis=1) * 0.5
FORMATS = ("csr", "csc", "coo", "bsr", "dia", "lil", "dok")
KINDS = tuple(itertools.product(FORMATS, ("array", "matrix")))


def of_kind(format: str, kind: str, dense: Any = GOOD) -> Any:
    made = getattr(sp, f"{format}_{kind}")(dense)
    return made.copy()


def spoilt(format: str, kind: str, bad: int, dtype: Any = None) -> Any:
    """Return a sparse matrix with one entry at the column (or row, or diagonal) `bad`."""
    dense = GOOD if dtype is None else GOOD.astype(dtype)
    x = of_kind(format, kind, dense)
    if format in ("csr", "csc", "bsr"):
        x.indices = x.indices.astype(np.int64)
        x.indices[3] = bad
    elif format == "coo":
        x.coords = tuple(c.astype(np.int64) for c in x.coords)
        x.coords[1][3] = bad
    elif format == "dia":
        x.offsets = x.offsets.astype(np.int64)
        x.offsets[-1] = bad
    elif format == "lil":
        x.rows[2] = [bad]
        x.data[2] = [dense[0, 0]]
    else:
        x._dict[2, bad] = dense[0, 0]
    return x


DAMAGED = "has damaged .*(ind|column|axis|int|diagonal)"
BAD = (N, -1 - N, 10**8, 2**32 + 3, 2**62, -(2**33))


@pytest.mark.parametrize(("format", "kind"), KINDS)
@pytest.mark.parametrize("bad", BAD)
def test_an_index_out_of_range_is_refused(format: str, kind: str, bad: int) -> None:
    x = spoilt(format, kind, bad)
    for door in DOORS.values():
        with pytest.raises(InputError, match=rf"(A|M|graph) {DAMAGED}"):
            door(x)
    mask = spoilt(format, kind, bad, bool)
    for masked in MASKED.values():
        with pytest.raises(InputError, match=f"mask {DAMAGED}"):
            masked(mask)


DOORS: dict[str, Callable[[Any], Any]] = {
    "Target": hf.Target,
    "certify": lambda A: hf.certify(A, np.eye(N), np.eye(N)),
    "fit": lambda A: hf.fit(A, 4),
    "lower": hf.bounds.lower,
    "sparsify": lambda A: hf.sparsify(A, per_row=1),
    "from_graph": hf.patterns.from_graph,
    "plot": hf.plot.attention,
    "plot.compare": lambda A: hf.plot.compare(A, GOOD),
    "tiles": lambda A: hf.plot.tiles(A, 4),
    "append_dims": lambda A: hf.methods.append_dims(A, hf.Attention(GOOD, GOOD), [0]),
}
MASKED: dict[str, Callable[[Any], Any]] = {
    "attention_matrix": lambda m: hf.attention_matrix(GOOD, GOOD, mask=m),
    "Attention": lambda m: hf.Attention(GOOD, GOOD, mask=m),
    "Target": lambda m: hf.Target(GOOD, mask=m),
    "sparsify": lambda m: hf.sparsify(GOOD, mask=m, per_row=1),
    "lower": lambda m: hf.bounds.lower(GOOD, mask=m),
}


@pytest.mark.parametrize("format", ["csr", "csc", "bsr"])
@pytest.mark.parametrize("kind", ["array", "matrix"])
@pytest.mark.parametrize(
    "offsets",
    [
        [0, 2, 4, 2, 8, 10, 12],
        [0, 2, 4, 6, 8, 10, 2**40],
        [0, 2, 4, 6, 8, 10, 13],
        [1, 2, 4, 6, 8, 10, 12],
        [-5, 2, 4, 6, 8, 10, 12],
        [0, 2, 4, 6, 8, 12],
        [0.0, 2, 4, 6, 8, 10, 12],
        [[0, 2, 4, 6, 8, 10, 12]],
        [0, 2, 4, 6, 8, 10, np.iinfo(np.uint64).max],
    ],
    ids=str,
)
def test_offsets_that_lie_are_refused(format: str, kind: str, offsets: Any) -> None:
    for name, dense, doors in (("A|M|graph", GOOD, DOORS), ("mask", GOOD > 0, MASKED)):
        x = of_kind(format, kind, dense)
        if format == "bsr":
            x = x.tobsr((1, 1))
        x.indptr = np.array(offsets)
        for door in doors.values():
            with pytest.raises(
                InputError, match=rf"({name}) has damaged .*(offset|index pointer|1-D)"
            ):
                door(x)


@pytest.mark.parametrize("format", FORMATS[:-1])
def test_lengths_that_differ_are_refused(format: str) -> None:
    x = of_kind(format, "array")
    if format in ("csr", "csc", "bsr"):
        x.indices = x.indices[:-3]
    elif format == "coo":
        x.coords = (x.coords[0], x.coords[1][:-3])
    elif format == "dia":
        x.offsets = x.offsets[:-1]
    else:
        x.rows[0] = [0]
    for door in DOORS.values():
        with pytest.raises(InputError, match=r"^(A|M|graph) "):
            door(x)


@pytest.mark.parametrize(("format", "kind"), KINDS)
def test_what_is_right_comes_out_right(format: str, kind: str) -> None:
    rng = np.random.default_rng(0)
    for shape, dtype in itertools.product(
        ((6, 6), (4, 8), (8, 4), (1, 1)), ("f4", "f8", "?", "i8")
    ):
        dense = (rng.integers(-3, 4, shape) * (rng.random(shape) < 0.5)).astype(dtype)
        x = of_kind(format, kind, dense)
        csr = checked_csr(x, "x")
        assert csr.has_canonical_format
        assert csr.dtype == x.dtype
        np.testing.assert_array_equal(csr.toarray(), dense)
        np.testing.assert_array_equal(checked_csr(x, "x", dtype="f8").toarray(), dense)
        assert checked_csr(x, "x", keep_zeros=False).nnz == np.count_nonzero(dense)


def test_duplicates_zeros_and_false_claims_of_order() -> None:
    x = sp.csr_array((np.array([1.0, 2, 4, 0]), np.array([2, 0, 2, 1]), np.array([0, 3, 4])))
    before = [a.copy() for a in (x.data, x.indices, x.indptr)]
    x.has_canonical_format = True  # a false claim
    csr = checked_csr(x, "x", keep_zeros=False)
    np.testing.assert_array_equal(csr.toarray(), [[2, 0, 5], [0, 0, 0]])
    assert csr.nnz == 2
    for now, then in zip((x.data, x.indices, x.indptr), before, strict=True):
        np.testing.assert_array_equal(now, then)


def test_a_mask_with_stored_falses_and_duplicates_is_read_as_scipy_adds_it() -> None:
    rows, columns = [0, 0, 1, 1, 2, 2], [0, 0, 0, 1, 2, 0]
    stored = np.array([True, False, False, True, True, False])
    mask = sp.coo_array((stored, (rows, columns)), shape=(3, 3))
    csr = sp.csr_array((stored, columns, [0, 2, 4, 6]), shape=(3, 3))
    want = hf.attention_matrix(GOOD[:3], GOOD[:3], mask=np.eye(3, dtype=bool))
    for given in (mask, csr):
        np.testing.assert_array_equal(hf.attention_matrix(GOOD[:3], GOOD[:3], mask=given), want)
        head = hf.fit(np.eye(3), 2, mask=given)
        assert head.certificate.holds
        assert hf.bounds.lower(np.eye(3), mask=given).verify(np.eye(3))


def test_a_saved_sparse_mask_keeps_what_it_forbids(tmp_path: Path) -> None:
    stored = np.array([True, False, True, True])
    mask = sp.csr_array((stored, [0, 1, 1, 2], [0, 2, 3, 4]), shape=(3, 3))
    head = hf.fit(np.eye(3), 2, mask=mask)
    again = hf.load(head.save(tmp_path / "head.npz"))
    np.testing.assert_array_equal(again.attention.matrix(), head.attention.matrix())


# Claims ------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["coo", "dok", "dia"])
def test_a_shape_that_the_entries_cannot_mean_is_refused_at_once(format: str) -> None:
    n = 2**31 - 1
    x = sp.coo_array(([1.0, 1.0], ([0, 1], [0, 1])), shape=(n, n)).asformat(format)
    for door in DOORS.values():
        if door is DOORS["plot.compare"]:
            continue  # the error about different shapes comes first
        with pytest.raises(InputError, match=r"(A|M|graph) claims the shape"):
            door(x)


def test_a_file_that_claims_two_thousand_million_rows(tmp_path: Path) -> None:
    n = 2**31 - 1
    path = tmp_path / "A.npz"
    sp.save_npz(path, sp.coo_array(([1.0], ([0], [0])), shape=(n, n)))
    market = tmp_path / "A.mtx"
    market.write_text(f"%%MatrixMarket matrix coordinate real general\n{n} {n} 1\n1 1 1\n")
    for file in (path, market):
        for read in (hf.Target, lambda p: hf.fit(p, 2)):
            with pytest.raises(InputError, match="claims the shape"):
                read(file)


# Masked arrays, and outputs on inputs -----------------------------------------------


def test_masked_arrays_are_refused_where_something_is_masked() -> None:
    masked = np.ma.masked_array(GOOD, mask=np.eye(N) > 0)
    for call in (
        lambda x: hf.Target(x),
        lambda x: hf.attention_matrix(x, GOOD),
        lambda x: hf.attention_matrix(GOOD, x),
        lambda x: hf.attention_matrix(GOOD, GOOD, bias=x),
        lambda x: hf.attention_matrix(GOOD, GOOD, mask=x > 0),
        lambda x: hf.sparsify(x, per_row=1),
        lambda x: hf.methods.KeyTable(x),
        lambda x: hf.patterns.knn(x, 1),
        lambda x: hf.patterns.from_graph(x),
        lambda x: hf.patterns.circulant(9, x[0].astype(int)),
        lambda x: hf.patterns.induction(x[0].astype(int)),
        lambda x: hf.compare(x, hf.Attention(GOOD, GOOD)),
    ):
        with pytest.raises(InputError, match="masked"):
            call(masked)
    open_one = np.ma.masked_array(GOOD, mask=np.zeros((N, N), bool))
    np.testing.assert_array_equal(hf.Target(open_one).matrix.toarray(), GOOD)


def test_out_must_not_lie_on_any_input() -> None:
    base = np.zeros((N, N))
    for name in ("Q", "K", "bias"):
        given = {"Q": GOOD, "K": GOOD, name: base}
        with pytest.raises(InputError, match=f"out must not share memory with {name}"):
            hf.attention_matrix(**given, out=base)
        with pytest.raises(InputError, match=f"out must not share memory with {name}"):
            hf.attention_logits(**given, out=base)
    mask = base.view(np.bool_)[:, :N]
    mask[:] = True
    with pytest.raises(InputError, match="out must not share memory with mask"):
        hf.attention_matrix(GOOD, GOOD, mask=mask, out=base)
    turned = hf.attention_matrix(GOOD, GOOD, bias=base.T.copy(), out=base)
    assert turned is base


@pytest.mark.parametrize("format", ["csr", "csc", "bsr", "coo", "dia"])
def test_arrays_that_were_replaced_by_masked_ones_are_refused(format: str) -> None:
    parts = {"coo": ["data"], "dia": ["data", "offsets"]}
    for part in parts.get(format, ["data", "indices", "indptr"]):
        A = getattr(sp, f"{format}_array")(np.eye(2))
        array = getattr(A, part)
        setattr(A, part, np.ma.masked_array(array, mask=np.ones(array.shape, bool)))
        with pytest.raises(hf.errors.InputError, match=r"A.*masked"):
            hf.Target(A)


def test_lists_and_plain_numbers_in_a_sparse_matrix_are_read() -> None:
    A, B = sp.csr_array(np.eye(2)), sp.dok_array((2, 2))
    A.data = [1.0, 1.0]
    B.setdefault((0, 0), 1.0), B.setdefault((1, 1), 1.0)
    assert hf.Target(A).nonzeros == hf.Target(B).nonzeros == 2
    A.data = np.ones(2, ">f8")
    assert hf.certify(np.eye(2), matrix=A).holds


def test_fractions_and_unsigned_overflow_are_no_diagonals_or_coordinates() -> None:
    A, B, C = sp.dia_array(np.eye(2)), sp.coo_array(np.eye(2)), sp.lil_array(np.eye(2))
    B.coords = (np.array([0.5, 1.5]), np.array([0, 1]))
    C.rows[0] = [0.5]
    D = sp.dok_array(np.eye(2))
    D._dict[(0.5, 0)] = np.float64(1)
    for offsets in (np.array([0.5]), np.array([2**64 - 1], np.uint64)):
        A.offsets = offsets
        with pytest.raises(hf.errors.InputError, match="A has damaged"):
            hf.Target(A)
    for matrix in (B, C, D):
        with pytest.raises(hf.errors.InputError, match="A has damaged"):
            hf.Target(matrix)


def test_a_key_mask_has_an_entry_for_every_key() -> None:
    with pytest.raises(hf.errors.InputError, match="key_mask must have an entry for each of 4"):
        hf.Attention(np.ones((2, 3)), np.ones((4, 3)), key_mask=[1])


def test_a_market_file_that_claims_no_entries_must_have_none(tmp_path: Path) -> None:
    path = tmp_path / "none.mtx"
    path.write_text("%%MatrixMarket matrix coordinate real general\n2 2 0\n1 1 1\n")
    with pytest.raises(hf.errors.InputError, match="claims no entries"):
        hf.Target(path)
