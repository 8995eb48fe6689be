"""hf.patterns.from_mask of PyTorch's masks: tensors, sparse tensors and block masks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headfit as hf
from headfit import patterns
from headfit.errors import InputError, TargetError
from headfit.patterns import _masks

torch = pytest.importorskip("torch")
flex = pytest.importorskip("torch.nn.attention.flex_attention")

# PyTorch says so of every CSR tensor.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")

N = 12
BAND = torch.ones(N, N).tril().triu(-3).bool()


def reference(mask):
    mask = np.asarray(mask)
    return mask / mask.sum(axis=1, keepdims=True)


def assert_pattern(mask, expected, **options):
    np.testing.assert_array_equal(
        patterns.from_mask(mask, **options).toarray(), reference(expected)
    )


# Tensors ------------------------------------------------------------------------------


@pytest.mark.parametrize("lead", [(), (1,), (1, 1), (1, 1, 1)])
def test_dense_tensors(lead):
    added = torch.zeros(N, N).masked_fill(~BAND, float("-inf"))
    lowest = torch.zeros(N, N, dtype=torch.bfloat16)
    lowest = lowest.masked_fill(~BAND, torch.finfo(torch.bfloat16).min)
    for mask in (BAND, BAND.int(), added, added.half(), added.bfloat16(), lowest, BAND.T.T):
        assert_pattern(mask.expand(*lead, N, N), BAND)
    assert_pattern(added.clone().requires_grad_(), BAND)
    assert_pattern(torch.nn.Transformer.generate_square_subsequent_mask(N), np.tri(N))


def test_stacks_of_tensors():
    stack = torch.stack([torch.eye(N).bool(), BAND])
    assert_pattern(stack, BAND, head=1)
    assert_pattern(stack[:, None], BAND, batch=1)
    with pytest.raises(InputError, match=r"^mask must be one matrix; .*\(3, 4, 4\).* head=0 ... 2"):
        patterns.from_mask(torch.ones(3, 4, 4).bool())


SPARSE = {
    "coo": lambda x: x.to_sparse(),
    "csr": lambda x: x.to_sparse_csr(),
    "csc": lambda x: x.to_sparse_csc(),
    "bsr": lambda x: x.to_sparse_bsr((3, 4)),
}


@pytest.mark.parametrize("layout", SPARSE)
@pytest.mark.parametrize("dtype", ["bool", "int8", "int64"])
def test_sparse_tensors(layout, dtype):
    mask = BAND.to(getattr(torch, dtype))
    assert_pattern(SPARSE[layout](mask), BAND)
    # Each matrix of a stack must store as many entries in CSR: these two are permutations.
    stack = torch.stack([torch.eye(N), torch.eye(N).roll(1, 0)]).to(mask.dtype)
    for head in range(2):
        assert_pattern(SPARSE[layout](stack), stack[head], head=head)
        assert_pattern(SPARSE[layout](stack[None]), stack[head], head=head)
        assert_pattern(SPARSE[layout](stack[:, None]), stack[head], batch=head)
        assert_pattern(SPARSE[layout](stack[head][None, None]), stack[head])


def test_entries_that_are_stored_twice_or_as_zero():
    places = torch.tensor([[0, 1, 1, 0], [0, 1, 1, 1]])
    values = torch.tensor([True, True, True, False])
    assert_pattern(
        torch.sparse_coo_tensor(places, values, (2, 2), check_invariants=True), np.eye(2)
    )
    with pytest.raises(InputError, match=r"^mask must be 0 or 1 .* got 2 in row 1, column 1"):
        patterns.from_mask(
            torch.sparse_coo_tensor(places, values.int(), (2, 2), check_invariants=True)
        )


def spoilt():
    offsets, columns = torch.tensor([0, 1, 2]), torch.tensor([0, 1])
    ones = torch.ones(2, dtype=torch.bool)

    def csr(offsets, columns):
        return torch.sparse_csr_tensor(offsets, columns, ones, (2, 2), check_invariants=False)

    yield csr(offsets, torch.tensor([0, 10**8]))
    yield csr(torch.tensor([0, 3, 2]), columns)
    yield csr(torch.tensor([0, 1, 10**8]), columns)
    places = torch.tensor([[0, 1], [0, -5]])
    yield torch.sparse_coo_tensor(places, ones, (2, 2), check_invariants=False)
    yield torch.eye(4).bool().to_sparse_bsc((2, 2))
    yield torch.eye(4).bool()[None].to_sparse(2)
    yield torch.ones(2, 3).bool().to_sparse()
    yield torch.eye(2).to_sparse()
    yield torch.eye(2).bfloat16().to_sparse_csr()
    yield torch.eye(2).to(torch.complex64).to_sparse()
    yield torch.stack([torch.eye(3).bool()] * 2).to_sparse()
    yield flex.create_block_mask(flex.noop_mask, None, None, 8, 16, device="cpu")


@pytest.mark.parametrize("number", range(12))
def test_bad_tensors_are_refused(number):
    assert len(list(spoilt())) == 12
    with pytest.raises(InputError, match=r"^mask must|^mask has"):
        patterns.from_mask(list(spoilt())[number])


def test_an_empty_row_of_a_tensor_is_named():
    mask = BAND.clone()
    mask[5:8] = False
    for x in (mask, mask.to_sparse(), mask.to_sparse_csr()):
        with pytest.raises(TargetError, match=r"^mask must .* row 5 \(3 of 12 rows\)"):
            patterns.from_mask(x)


# Block masks ---------------------------------------------------------------------------

DOCUMENTS = torch.arange(400) // 70
TABLE = torch.rand(400, 400, generator=torch.Generator().manual_seed(0)) < 0.3
MODS = {
    "causal": lambda b, h, q, k: q >= k,
    "window": lambda b, h, q, k: (q >= k) & (q - k < 20),
    "global and stride": lambda b, h, q, k: (
        (q >= k) & ((q - k < 9) | (k < 2) | ((q - k) % 32 == 0))
    ),
    "documents": lambda b, h, q, k: (DOCUMENTS[q] == DOCUMENTS[k]) & (q >= k),
    "table": lambda b, h, q, k: TABLE[q, k] | (q == k),
    "table by rows": lambda b, h, q, k: TABLE[q][k] | (q == k),
    "diagonal": lambda b, h, q, k: q == k,
    "all": flex.noop_mask,
    "and": flex.and_masks(lambda b, h, q, k: q >= k, lambda b, h, q, k: q - k < 50),
    "or": flex.or_masks(lambda b, h, q, k: q == k, lambda b, h, q, k: k < 1),
}


@pytest.mark.parametrize("name", MODS)
@pytest.mark.parametrize("n", [1, 100, 128, 300])
@pytest.mark.parametrize("size", [128, (16, 48)])
def test_block_masks(name, n, size):
    mod = MODS[name]
    mask = flex.create_block_mask(mod, None, None, n, n, device="cpu", BLOCK_SIZE=size)
    assert_pattern(mask, flex.create_mask(mod, 1, 1, n, n, device="cpu")[0, 0])


def test_the_pattern_is_that_of_what_flex_attention_computes():
    n = 256
    mask = flex.create_block_mask(MODS["documents"], None, None, n, n, device="cpu")
    q = torch.zeros(1, 1, n, n)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *args, **options: None)  # it is not compiled here
        weights = flex.flex_attention(q, q, torch.eye(n)[None, None], block_mask=mask)[0, 0]
    np.testing.assert_allclose(patterns.from_mask(mask).toarray(), weights, atol=1e-6)


def test_heads_and_batch_entries_of_a_block_mask():
    def mod(b, h, q, k):
        return (q >= k) & (q - k <= 3 * b + h)

    mask = flex.create_block_mask(mod, 2, 3, 200, 200, device="cpu", BLOCK_SIZE=64)
    for batch, head in np.ndindex(2, 3):
        expected = patterns.causal_band(200, 3 * batch + head)
        A = patterns.from_mask(mask, batch=batch, head=head)
        np.testing.assert_array_equal(A.toarray(), expected.toarray())
    with pytest.raises(InputError, match=r"^mask must be one matrix; .* choose with head=0 ... 2$"):
        patterns.from_mask(mask)
    with pytest.raises(InputError, match=r"choose with batch=0 ... 1$"):
        patterns.from_mask(mask, head=0)
    part = mask[1, 2]
    part.mask_mod = None  # PyTorch 2.6 leaves it that of the whole mask
    with pytest.raises(InputError, match=r"^mask must have a mask_mod .* batch= and head="):
        patterns.from_mask(part)
    # With its mask_mod, a slice is a block mask again, whose only entry is number 0.
    part.mask_mod = lambda b, h, q, k: mod(b + 1, h + 2, q, k)
    A = patterns.from_mask(part)
    np.testing.assert_array_equal(A.toarray(), patterns.causal_band(200, 5).toarray())


def listed(lists):
    """Return the counts and the padded lists of the block columns of each block row."""
    count = torch.tensor([[[len(row) for row in lists]]], dtype=torch.int32)
    most = max(len(row) for row in lists)
    # Places beyond the count hold numbers that mean nothing.
    filled = [row + [99] * (most - len(row)) for row in lists]
    places = torch.tensor([[filled]], dtype=torch.int32)
    return count, places


def block_mask(partial, full=None, *, seq_lengths, size=4, mask_mod=flex.noop_mask):
    """Return a block mask with these blocks of square size.

    The lists for gradients, which nothing here reads, are the same.
    """
    lists = (*listed(partial), *((None, None) if full is None else listed(full)))
    return flex.BlockMask(seq_lengths, *lists, *lists, (size, size), mask_mod)


def test_the_function_is_not_asked_about_full_blocks():
    # The blocks say more than the function, and are listed in any order.
    def mod(b, h, q, k):
        return q > k

    mask = block_mask([[0], [1, 0], [2]], [[2], [], [1, 0]], mask_mod=mod, seq_lengths=(11, 11))
    expected = np.tri(11, k=-1, dtype=bool)
    expected[8:, :4] = expected[8:, 4:8] = True
    expected[:4, 8:] = True
    assert_pattern(mask, expected)


@pytest.mark.parametrize("size", [1, 40, 400])
def test_chunks_of_rows_change_nothing(size, monkeypatch):
    monkeypatch.setattr(_masks, "BLOCK", size)
    mod = MODS["global and stride"]
    mask = flex.create_block_mask(mod, None, None, 45, 45, device="cpu", BLOCK_SIZE=16)
    assert_pattern(mask, flex.create_mask(mod, 1, 1, 45, 45, device="cpu")[0, 0])


@settings(max_examples=30)
@given(st.integers(1, 30), st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32))
def test_block_masks_of_any_shape(n, height, width, seed):
    table = torch.from_numpy(np.random.default_rng(seed).random((n, n)) < 0.6)
    table[range(n), range(n)] = True
    mask = flex.create_block_mask(
        lambda b, h, q, k: table[q, k], 1, 1, n, n, device="cpu", BLOCK_SIZE=(height, width)
    )
    assert_pattern(mask, table)


def test_the_places_of_a_block_mask_are_a_mask_of_attention():
    mask = flex.create_block_mask(
        lambda b, h, q, k: (k <= q) & (q <= k + 3), 1, 1, N, N, device="cpu", BLOCK_SIZE=4
    )
    sparse = patterns.from_mask(mask).astype(bool)
    X = np.random.default_rng(0).normal(size=(N, 4))
    expected = hf.attention_matrix(X, X, mask=BAND.numpy())
    np.testing.assert_allclose(hf.attention_matrix(X, X, mask=sparse), expected, rtol=1e-12)


def test_bad_block_masks_are_refused():
    for mask, words in (
        (block_mask([[0], [0, 2]], seq_lengths=(8, 8)), "block indices of 0 ... 1; got 2"),
        (block_mask([[0], [-1]], seq_lengths=(8, 8)), "block indices of 0 ... 1; got -1"),
        (block_mask([[0], [0, 0]], seq_lengths=(8, 8)), "block row 1, block column 0 twice"),
        (block_mask([[0], [0]], [[], [0]], seq_lengths=(8, 8)), "block column 0 twice"),
        (block_mask([[0]], seq_lengths=(8, 8)), "2 rows of blocks of 4"),
        (block_mask([[0], []], seq_lengths=(8, 8)), r"none in row 4 \(4 of 8 rows\)"),
        (block_mask([[0, 1], [0]], seq_lengths=(8, 12)), "square"),
        (
            block_mask([[0], [1]], mask_mod=lambda b, h, q, k: q + k, seq_lengths=(8, 8)),
            "returns booleans; got torch.int64",
        ),
        (
            block_mask([[0], [1]], mask_mod=lambda b, h, q, k: 1 / 0, seq_lengths=(8, 8)),
            "ZeroDivisionError",
        ),
    ):
        with pytest.raises(InputError, match=f"^mask must .*{words}"):
            patterns.from_mask(mask)
    too_many = block_mask([[0], [1]], seq_lengths=(8, 8))
    too_many.kv_num_blocks[0, 0, 1] = 5
    with pytest.raises(InputError, match=r"^mask must have block counts of 0 ... 1"):
        patterns.from_mask(too_many)


@pytest.mark.full
def test_a_long_block_mask_needs_no_dense_one():
    # 20,000 rows: a dense mask would have 400 million entries.
    n, size = 20_000, 128
    rows = -(-n // size)
    lists = [sorted({0, max(0, row - 1), row}) for row in range(rows)]
    mask = block_mask(
        lists,
        mask_mod=lambda b, h, q, k: (q >= k) & ((q - k < 16) | (k < 2)),
        seq_lengths=(n, n),
        size=size,
    )
    A, B = patterns.from_mask(mask), patterns.window_global(n, 16, 2)
    np.testing.assert_array_equal(A.indptr, B.indptr)
    np.testing.assert_array_equal(A.indices, B.indices)


def test_a_head_for_a_block_mask_certifies():
    mask = flex.create_block_mask(MODS["window"], None, None, 48, 48, device="cpu")
    A = patterns.from_mask(mask)
    assert hf.certify(A, np.zeros((48, 1)), np.zeros((48, 1)), mask=A != 0).holds
