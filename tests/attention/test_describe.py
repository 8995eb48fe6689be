"""`describe`: its measures compared with explicit NumPy on the dense matrix."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import headfit as hf
from headfit._attention.describe import product_spectrum
from headfit.errors import InputError, NonFiniteError

RNG = np.random.default_rng
NAMES = [
    "keys_mean", "keys_median", "keys_max", "top_mass_mean", "top_mass_worst", "load",
    "max_load", "gamma", "gamma_median", "entropy", "column_mass", "sink_columns", "sink_mass",
    "offset_mass", "distance", "previous", "diagonal", "induction", "rank", "rank_99", "sparse",
]  # fmt: skip


def slow(
    logits: np.ndarray,
    tokens: Any = None,
    per_row: int = 8,
    share: float = 0.9,
    shares: tuple[float, ...] = (0.9, 0.95, 0.99),
    sink: float = -np.inf,
) -> dict[str, Any]:
    """Compute all measures of one head from its logits and its sink, row by row."""
    n, m = logits.shape
    names = ("keys", "top", "gamma", "entropy", "induction", "mass")
    rows: dict[str, list[Any]] = {k: [] for k in names}
    load, column, offset = np.zeros(m, int), np.zeros(m), np.zeros(n + m - 1)
    steps: dict[int, list[float]] = {0: [], 1: []}
    for i, s in enumerate(logits.astype(np.longdouble)):
        if np.isneginf(s).all():
            continue
        w = np.exp(s - s.max())
        w = (w / w.sum()).astype(np.float64)
        order = np.lexsort((np.arange(m), -s))
        held = np.cumsum(w[order])
        rows["keys"].append([int((held < x - 1e-9).sum()) + 1 for x in shares])
        rows["top"].append(held[min(per_row, m) - 1])
        kept = order[: min(int((held < share - 1e-9).sum()) + 1, per_row)]
        kept = kept[w[kept] > 0]
        load[kept] += 1
        rows["gamma"].append(w[kept].max() / w[kept].min())
        rows["entropy"].append(-sum(x * np.log(x) for x in w if x > 0))
        whole = np.exp(np.append(s, np.longdouble(sink)) - max(s.max(), sink))
        w = (whole / whole.sum())[:-1].astype(np.float64)
        rows["mass"].append(w.sum())
        column += w
        for j in range(m):
            offset[i + m - n - j + n - 1] += w[j]
        for step, found in steps.items():
            key = i + m - n - step
            if 0 <= key < m:
                found.append(w[key])
        if tokens is not None:
            follow = [j + 1 for j in range(i - 1) if tokens[j] == tokens[i]]
            if follow:
                rows["induction"].append(w[follow].sum())
    count = len(rows["top"])
    keys = np.array(rows["keys"])
    sinks = (2 * load > count) & (load > min(per_row, m))
    mass = column / count
    return {
        "keys_mean": keys.mean(axis=0),
        "keys_median": np.median(keys, axis=0),
        "keys_max": keys.max(axis=0),
        "top_mass_mean": np.mean(rows["top"]),
        "top_mass_worst": np.min(rows["top"]),
        "load": load,
        "max_load": load.max(),
        "gamma": np.max(rows["gamma"]),
        "gamma_median": np.median(rows["gamma"]),
        "entropy": np.mean(rows["entropy"]),
        "key_mass": np.mean(rows["mass"]),
        "column_mass": mass,
        "sink_columns": sinks,
        "sink_mass": mass[sinks].sum(),
        "offset_mass": offset / count,
        "distance": offset / offset.sum() @ np.abs(np.arange(1 - n, m)),
        "previous": np.mean(steps[1]) if steps[1] else np.nan,
        "diagonal": np.mean(steps[0]) if steps[0] else np.nan,
        "induction": np.mean(rows["induction"]) if rows["induction"] else np.nan,
        "sparse": min(rows["top"]) >= share and load.max() <= min(per_row, m),
    }


def check(
    table: hf.results.HeadTable, head: tuple[int, ...], expected: dict[str, Any], rtol: float
):
    for name, value in expected.items():
        np.testing.assert_allclose(
            getattr(table, name)[head], value, rtol=rtol, atol=rtol, err_msg=name
        )


MASKS: dict[str, Any] = {
    "none": lambda n, m: {},
    "causal": lambda n, m: {"mask": "causal"},
    "window": lambda n, m: {"mask": ("window", (3, 1))},
    "dense": lambda n, m: {"mask": RNG(1).random((n, m)) < 0.4},
    "sparse": lambda n, m: {"mask": sp.csr_array(RNG(2).random((n, m)) < 0.4)},
    "lengths": lambda n, m: {"key_lengths": max(1, m - 2)},
    "bias": lambda n, m: {"bias": RNG(3).standard_normal((n, m)), "softcap": 3.0},
    "keys": lambda n, m: {"key_mask": np.arange(m) != 1, "mask": "causal"},
    "sinks": lambda n, m: {"sinks": [-1.0, 0.5, 9.0, -np.inf], "mask": ("window", (20, 2))},
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("n", "m"), [(40, 40), (30, 65), (50, 20), (1, 3), (3, 1)])
def test_measures_are_those_of_the_dense_matrix(mask, dtype, n, m):
    rng = RNG(0)
    Q = (1.5 * rng.standard_normal((2, 4, n, 6))).astype(dtype)
    K = (1.5 * rng.standard_normal((2, 2, m, 6))).astype(dtype)
    tokens = rng.integers(0, 5, (2, n)) if n == m else None
    options = MASKS[mask](n, m)
    table = hf.describe(Q, K, tokens=tokens, per_row=4, **options)
    logits = hf.Attention(Q, K, **options).logits()
    for b, h in np.ndindex(2, 4):
        sink = options["sinks"][h] if "sinks" in options else -np.inf
        if np.isneginf(logits[b, h]).all():
            assert np.isnan(table.entropy[b, h])
            continue
        expected = slow(logits[b, h], None if tokens is None else tokens[b], per_row=4, sink=sink)
        check(table, (b, h), expected, 2e-5 if dtype == "float32" else 1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mask", [None, "causal"])
def test_the_number_of_threads_changes_nothing(dtype, mask):
    rng = RNG(4)
    Q, K = rng.standard_normal((2, 3, 150, 8)).astype(dtype)
    tokens = rng.integers(0, 9, 150)
    tables = [
        hf.describe(Q, K, mask=mask, tokens=tokens, num_threads=threads) for threads in (1, 2, 3)
    ]
    for other in tables[1:]:
        for name in NAMES:
            np.testing.assert_array_equal(getattr(tables[0], name), getattr(other, name), name)


@pytest.mark.parametrize("share", [0.5, 0.9, 1.0])
def test_the_support_is_what_sparsify_keeps(share):
    rng = RNG(5)
    Q, K = 2 * rng.standard_normal((2, 80, 6))
    table = hf.describe(Q, K, per_row=6, share=share)
    kept = hf.sparsify(Q, K, per_row=6, mass=share)
    np.testing.assert_array_equal(
        table.load, np.bincount(kept.matrix.indices, minlength=kept.matrix.shape[1])
    )
    assert table.max_load == kept.per_column
    assert table.gamma == pytest.approx(hf.Target(kept.matrix).gamma)


def head_that_attends(columns: np.ndarray, n: int, d: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Return queries and keys of a head whose row i attends to columns[i]."""
    K = np.linalg.qr(RNG(6).standard_normal((max(n, d), n)))[0].T * 12
    return K[columns], K


def test_heads_that_do_one_thing_are_recognised():
    n, period = 64, 16
    tokens = np.tile(RNG(7).permutation(50)[:period], n // period)
    row = np.arange(n)
    previous = np.maximum(row - 1, 0)
    induction = np.where(row >= period, row - period + 1, 0)
    heads = [head_that_attends(c, n) for c in (row, previous, induction, np.zeros(n, int))]
    Q, K = (np.stack(x) for x in zip(*heads, strict=True))
    table = hf.describe(Q, K, scale=1.0, mask="causal", tokens=tokens, per_row=1)
    np.testing.assert_allclose(table.diagonal, [1, 1 / n, 1 / n, 1 / n], atol=1e-9)
    np.testing.assert_allclose(table.previous[:2], [0, 1], atol=1e-9)
    assert table.induction[2] == pytest.approx(1)
    assert table.induction[0] == pytest.approx(0, abs=1e-9)
    assert table.sink_columns[3].nonzero()[0].tolist() == [0]
    assert table.sink_mass[3] == pytest.approx(1)
    assert table.max_load[3] == n
    # Two rows of the previous-token head attend to column 0, so it is not sparse at 1 per column.
    assert table.sparse.tolist() == [True, False, False, False]
    assert table.statement(0).startswith("sparse at 1 a row and 1 a column")
    assert table.statement(3).startswith("not sparse")
    assert "1 sink with 100% of all mass" in table.statement(3)
    assert hf.describe(Q[1], K[1], scale=1.0, mask="causal", per_row=1, per_column=2).sparse


def test_offsets_say_where_a_head_looks():
    n = 32
    Q, K = head_that_attends(np.maximum(np.arange(n) - 5, 0), n)
    table = hf.describe(Q, K, scale=1.0)
    assert table.offsets[table.offset_mass.argmax()] == 5
    assert table.offset_mass.sum() == pytest.approx(1)
    assert table.column_mass.sum() == pytest.approx(1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("n", "m"), [(50, 50), (20, 50), (6, 50)])
@pytest.mark.parametrize("rank", [1, 3, 6])
def test_rank_is_that_of_the_logits(dtype, n, m, rank):
    rng = RNG(8)
    mix = rng.standard_normal((rank, 10))
    Q = (rng.standard_normal((2, n, rank)) @ mix).astype(dtype)
    K = (rng.standard_normal((m, rank)) @ mix).astype(dtype)
    table = hf.describe(Q, K)
    assert table.rank.tolist() == [rank, rank]
    S = Q.astype(np.float64) @ K.T.astype(np.float64)
    for h in range(2):
        values = np.linalg.svd(S[h] - S[h].mean(axis=1, keepdims=True), compute_uv=False)
        held = np.cumsum(values**2) / (values**2).sum()
        assert table.rank_99[h] == (held < 0.99).sum() + 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("n", "m", "d"), [(1, 1, 1), (50, 70, 5), (3, 40, 8), (400, 300, 6)])
@pytest.mark.parametrize("at_once", [1, 3, 8])
def test_spectrum_is_that_of_the_products(dtype, n, m, d, at_once, monkeypatch):
    monkeypatch.setattr("headfit._attention.describe.MOST_NUMBERS", at_once * d**2)
    rng = RNG(n)
    Q = rng.standard_normal((4, n, d)).astype(dtype)
    K = rng.standard_normal((2, m, d)).astype(dtype)
    lengths = np.array([m, m // 2, m, 0])
    values, centred = product_spectrum(hf.Attention(Q, K, key_lengths=lengths).core, 4, d, 2)
    for h, count in enumerate(lengths):
        S = Q[h].astype(np.float64) @ K[h // 2, :count].astype(np.float64).T
        for found, matrix in (
            (values, S),
            (centred, S - S.sum(axis=1, keepdims=True) / max(count, 1)),
        ):
            expected = np.zeros(d)
            exact = np.linalg.svd(matrix, compute_uv=False)[:d]
            expected[: len(exact)] = exact
            size = exact[0] if len(exact) else 0.0
            assert np.abs(found[h] - expected).max() < 1e-11 * (1 + size)


def test_spectrum_of_numbers_whose_squares_overflow_or_vanish():
    Q, K = RNG(4).standard_normal((2, 30, 4))
    plain, _ = product_spectrum(hf.Attention(Q, K).core, 1, 4, 1)
    values, _ = product_spectrum(hf.Attention(1e250 * Q, 1e-250 * K).core, 1, 4, 1)
    np.testing.assert_allclose(values, plain, rtol=1e-12)


def test_logits_that_softmax_does_not_see_have_rank_99_of_zero():
    K = np.ones((5, 2))
    table = hf.describe(RNG(9).standard_normal((5, 2)), K)
    assert table.rank == 1
    assert table.rank_99 == 0


@pytest.mark.parametrize("size", [1e-200, 1e-100, 1e150])
def test_units_of_the_logits_do_not_change_ranks(size):
    Q, K = RNG(10).standard_normal((2, 9, 4))
    plain, other = hf.describe(Q, K), hf.describe(Q * size, K)
    assert (other.rank, other.rank_99) == (plain.rank, plain.rank_99)


def test_rows_without_keys_count_nowhere():
    mask = np.ones((4, 4), bool)
    mask[1] = False
    table = hf.describe(np.zeros((4, 2)), np.zeros((4, 2)), mask=mask, per_row=4)
    assert table.entropy == pytest.approx(np.log(4))
    assert table.keys_max.tolist() == [4, 4, 4]
    assert table.load.tolist() == [3, 3, 3, 3]
    assert table.diagonal == pytest.approx(0.25)
    nothing = hf.describe(np.zeros((2, 4, 2)), np.zeros((2, 4, 2)), mask=np.zeros((4, 4), bool))
    assert np.isnan(nothing.entropy).all()
    assert not nothing.sparse.any()
    assert nothing.statement(1) == "no attention: every row is empty"
    assert "-" in repr(nothing)


def test_induction_without_tokens_or_repetitions_is_nan():
    X = RNG(10).standard_normal((6, 2))
    assert np.isnan(hf.describe(X, X).induction)
    assert np.isnan(hf.describe(X, X, tokens=np.arange(6)).induction)
    # The previous token is equal, but the key that follows it is the row's own token.
    assert np.isnan(hf.describe(X[:2], X[:2], tokens=[1, 1]).induction)


def test_what_it_shows():
    Q, K = RNG(11).standard_normal((2, 3, 5, 16, 4))
    table = hf.describe(Q, K)
    text = repr(table)
    assert text.startswith("HeadTable(15 heads of 16 x 16;")
    assert len(text.splitlines()) == 17
    assert "2,4" in text
    big = repr(hf.describe(*RNG(12).standard_normal((2, 40, 4, 2))))
    assert big.endswith("... and 28 heads more")
    columns = table.columns()
    assert all(values.shape == (3, 5) for values in columns.values())
    np.testing.assert_array_equal(columns["keys95_median"], table.keys_median[..., 1])
    with pytest.raises(InputError, match="2 indices"):
        table.statement(1)


def test_pandas():
    pytest.importorskip("pandas")
    Q, K = RNG(13).standard_normal((2, 2, 3, 8, 4))
    table = hf.describe(Q, K)
    frame = table.to_pandas()
    assert frame.shape[0] == 6
    assert frame.index.names == ["batch", "head"]
    np.testing.assert_array_equal(frame["entropy"], table.entropy.ravel())
    deep = hf.describe(Q[None, None], K[None, None]).to_pandas()
    assert deep.index.names == ["axis0", "axis1", "batch", "head"]
    assert hf.describe(Q[0], K[0]).to_pandas().index.names == ["head"]
    assert frame.loc[(1, 2), "rank"] == 4
    assert hf.describe(Q[0, 0], K[0, 0]).to_pandas().shape[0] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"per_row": 0}, "per_row"),
        ({"per_column": 0}, "per_column"),
        ({"share": 0.0}, "share"),
        ({"share": "most"}, r"share must lie in \(0, 1\]; got 'most'"),
        ({"share": [0.5]}, r"share must lie"),
        ({"shares": (0.5, 1.5)}, r"shares must lie in \(0, 1\]; got 1.5"),
        ({"shares": (0.5, "all")}, "shares must lie"),
        ({"tokens": [1.0, 2.0, 3.0]}, "tokens must be integers"),
        ({"tokens": [1]}, "tokens must be integers of shape"),
        ({"tokens": [1, 2]}, "tokens"),
        ({"tokens": np.zeros((2, 3), int)}, "tokens must broadcast"),
        ({"mask": "bidirectional"}, "mask"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    X = np.ones((3, 2))
    with pytest.raises(InputError, match=message):
        hf.describe(X, X, **arguments)


def test_attention_brings_its_settings():
    rng = np.random.default_rng(8)
    Q, K = rng.standard_normal((2, 2, 30, 6))
    table = hf.describe(hf.Attention(Q, K, scale=0.7, mask="causal"), per_row=3)
    same = hf.describe(Q, K, scale=0.7, mask="causal", per_row=3)
    for name, values in table.columns().items():
        np.testing.assert_array_equal(values, same.columns()[name])
    with pytest.raises(InputError, match="an Attention with another"):
        hf.describe(hf.Attention(Q, K), mask="causal")
    with pytest.raises(InputError, match="give Q and K, or an Attention"):
        hf.describe(Q)


def test_one_share_needs_no_sequence():
    X = np.eye(5)
    assert hf.describe(X, X, shares=0.5).keys.shape == (5, 1)
    assert hf.attention_stats(X, X, shares=0.5).keys_for_share.shape == (5, 1)


def test_bad_arrays_are_named():
    X = np.ones((3, 2))
    with pytest.raises(NonFiniteError, match="K must be finite; got nan at row 0, column 0"):
        hf.describe(X, np.where(np.eye(3, 2) > 0, np.nan, 1))
    with pytest.raises(InputError, match="as many queries as keys"):
        hf.describe(X, X[:2], tokens=[1, 2, 3])
    with pytest.raises(InputError, match="must have rows"):
        hf.describe(X[:0], X)


def test_padding_keys_have_no_rank():
    rng = RNG(14)
    Q, K = rng.standard_normal((2, 2, 4, 30, 8))
    K = K[:, :2].copy()
    lengths = np.array([30, 3])
    K[1, :, 3:] = np.nan  # these keys must never be read
    table = hf.describe(Q, K, key_lengths=lengths)
    assert table.rank.tolist() == [[8] * 4, [3] * 4]
    alone = hf.describe(Q[1], K[1, :, :3])
    np.testing.assert_array_equal(table.rank_99[1], alone.rank_99)
    np.testing.assert_allclose(table.entropy[1], alone.entropy)


def test_the_rank_leaves_out_keys_that_are_masked():
    """Padding on either side counts as no keys, as with key_lengths."""
    rng = RNG(9)
    Q, K = rng.standard_normal((2, 2, 30, 6))
    keys = np.zeros((2, 30), int)
    keys[0, 26:] = keys[1, [2, 7, 8, 20]] = 1
    table = hf.describe(Q, K, key_mask=keys)
    for h in range(2):
        alone = hf.describe(Q[h], K[h, keys[h] == 1])
        assert table.rank[h] == alone.rank == 4
        assert table.rank_99[h] == alone.rank_99
        np.testing.assert_allclose(table.entropy[h], alone.entropy)


def test_the_table_shows_what_sinks_leave_to_the_keys():
    Q, K = RNG(10).standard_normal((2, 2, 20, 4))
    assert "key_mass" not in hf.describe(Q, K).columns()
    with_sinks = hf.describe(Q, K, sinks=[1.0, -np.inf])
    assert "key_mass" in str(with_sinks)
    assert with_sinks.key_mass[0] < 1
    assert with_sinks.key_mass[1] == 1


def test_leading_axes_have_names():
    Q, K = RNG(11).standard_normal((2, 2, 1, 3, 8, 4))
    usual = hf.describe(Q, K)
    assert usual.axes == ("axis0", "batch", "head")
    assert str(usual).splitlines()[1].split()[0] == "head"
    assert hf.describe(Q[0, 0], K[0, 0]).axes == ("head",)
    assert hf.describe(Q[0, 0, 0], K[0, 0, 0]).axes == ()


def test_pandas_takes_the_names_of_the_table():
    pd = pytest.importorskip("pandas")
    Q, K = RNG(11).standard_normal((2, 2, 1, 3, 8, 4))
    frame = hf.describe(Q, K).to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert list(frame.index.names) == ["axis0", "batch", "head"]


def test_a_missing_pandas_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    Q = RNG(11).standard_normal((8, 4))
    with pytest.raises(ImportError, match=r"pip install 'headfit\[pandas\]'"):
        hf.describe(Q, Q).to_pandas()
