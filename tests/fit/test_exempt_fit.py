"""Fits with exempt columns: a coordinate each, and a certificate of the whole pattern."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from tests.references import leak_and_distortion, logits_of

import headfit as hf
from headfit import cli
from headfit.errors import InputError

P = hf.patterns
RNG = np.random.default_rng


def rows_to_one(A: np.ndarray) -> np.ndarray:
    return A / A.sum(axis=1, keepdims=True)


def with_globals(n: int, k: int, count: int) -> np.ndarray:
    """Return a random pattern in which every row also attends to the first `count` columns."""
    A = P.random_regular(n, k, gamma=2.0, rng=0).toarray()
    A[:, :count] += RNG(0).uniform(0.5, 1, size=(n, count)) / k
    return rows_to_one(A)


def star(n: int) -> np.ndarray:
    """Return a pattern in which tokens attend to token 0 and to one other, in ratios up to 20."""
    A = np.zeros((n, n))
    A[:, 0] = np.exp(RNG(0).uniform(0, np.log(20), n))
    A[np.arange(n), (np.arange(n) * 7 + 3) % n] += 1
    A[0] = np.eye(n)[0]
    return rows_to_one(A)


def bigbird(n: int, count: int) -> np.ndarray:
    """Return BigBird with random weights, without the full rows of its global tokens."""
    A = P.bigbird(n, 1, count, 2, gamma=2.0, rng=0).toarray()
    A[:count] = 1 / n
    return A


# Within 20 s the plain fit certifies none of these sizes; a fit with exempt columns takes 0.3 s.
HUBS = {
    "star": (star(512), 4, [0]),
    "two global tokens": (with_globals(512, 4, 2), 10, [0, 1]),
    "four global tokens": (with_globals(512, 4, 4), 12, [0, 1, 2, 3]),
    "bigbird": (bigbird(512, 4), 15, [0, 1, 2, 3]),
}


@pytest.mark.parametrize(("of_exempt", "of_other"), [(1.0, 5e-324), (5e-324, 1.0)])
def test_ratios_of_weights_that_overflow(of_exempt: float, of_other: float) -> None:
    A = of_other * np.eye(8)
    A[:, 0], A[0, 0] = of_exempt, 1.0
    found = hf.fit(A, 6, exempt_columns=[0])
    assert hf.Target(A).gamma == np.inf
    assert found.certificate.holds


@pytest.mark.parametrize("name", HUBS)
def test_global_tokens_fit_where_the_plain_fit_does_not(name: str) -> None:
    A, dim, columns = HUBS[name]
    plain = hf.fit(A, dim, time_limit=2)
    assert plain.stopped == "time limit"
    assert 'exempt_columns="auto"' in plain.advice
    head = hf.fit(A, dim, exempt_columns="auto")
    assert head.stopped == "certified"
    assert head.dim == head.Q.shape[1] == dim
    assert head.settings["exempt_columns"] == columns
    assert hf.certify(A, head.Q, head.K, leak=0.05, distortion=0.1).holds
    leak, distortion = leak_and_distortion(A, logits_of(head))
    assert leak.max() <= 0.05
    assert distortion.max() <= 0.1
    # Each exempt column has a coordinate that no other key has.
    own = head.K[:, dim - len(columns) :]
    assert (own != 0).sum() == len(columns)
    np.testing.assert_array_equal(own[columns], np.eye(len(columns)))


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("masked", [False, True])
def test_every_dtype_and_a_mask(dtype: str, masked: bool) -> None:
    n, mask = 96, "causal" if masked else None
    A = P.causal_band(n, 2, gamma=2.0, rng=1).toarray()
    A[:, 0] += RNG(2).uniform(0.2, 0.8, n)
    A = rows_to_one(A)
    head = hf.fit(A, 10, exempt_columns="auto", dtype=dtype, mask=mask)
    assert head.stopped == "certified"
    assert (head.dtype, head.dim, head.mask) == (dtype, 10, mask)
    # Two coordinates are used if one number of the format is too coarse for a logit.
    narrow = dtype in ("bfloat16", "float16")
    own = head.K[:, -2:] if narrow else head.K[:, -1:]
    assert (own[0] == 1).all()
    assert not own[1:].any()
    again = hf.certify(
        A, head.Q, head.K, leak=0.05, distortion=0.1, mask=mask, scale=head.scale,
        kernel="float32" if narrow else "exact",
    )  # fmt: skip
    assert again.holds


def test_with_a_module_and_zeros_up_to_its_size() -> None:
    A = with_globals(96, 3, 1)
    module = hf.SelfAttention.random(14, rng=0)
    head = hf.fit(A, module=module, exempt_columns=[0], time_limit=3)
    assert head.stopped == "certified"
    assert head.dim == 14
    assert head.search is not None
    assert head.search.dim is not None
    assert head.search.dim < 14
    assert hf.certify(A, module(head.X)).holds
    assert hf.fit(A, 14, module=module, exempt_columns=[0]).certificate.holds


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_search_and_a_file(suffix: str, dtype: str, tmp_path: Path) -> None:
    if suffix == "safetensors":
        pytest.importorskip("safetensors")
    A = with_globals(96, 3, 2)
    head = hf.fit(A, exempt_columns=(1, 0, 1), time_limit=3, dtype=dtype)
    assert head.stopped == "certified"
    assert head.search is not None
    assert head.search.dim == head.dim  # both are sizes of the whole head, as in the trials
    beside = 4 if dtype == "bfloat16" else 2
    assert all(t.dim > beside for t in head.search.trials)
    path = tmp_path / f"head.{suffix}"
    kept = hf.load(head.save(path))
    assert kept.settings["exempt_columns"] == [0, 1]
    assert (kept.stopped, kept.dim) == ("certified", head.dim)
    assert hf.certify(A, kept.attention, kernel=kept.certificate.kernel).holds


@pytest.mark.parametrize(
    "options",
    [
        {"method": "max-margin", "dim": 40},
        {"method": hf.methods.MaxMargin(keys=hf.methods.KeyTable.random(64, 36, rng=0))},
        {"method": hf.methods.MaxMargin(keys="cyclic"), "dim": 7, "dtype": "float64"},
        {"method": hf.methods.MaxMargin(keys="cyclic"), "dtype": "float64"},
        {"method": "max-margin"},
        {"method": "projection", "dim": 2500, "leak": 0.3, "distortion": 2.0},
        {"method": "projection", "leak": 0.3, "distortion": 2.0},
    ],
)
def test_every_method(options: dict[str, Any]) -> None:
    A = with_globals(64, 2, 1)
    head = hf.fit(A, exempt_columns=[0], **options)
    assert head.stopped == "certified"
    assert head.witnesses is None
    if "dim" in options:
        assert head.dim == options["dim"]
    if isinstance(getattr(options["method"], "keys", None), hf.methods.KeyTable):
        assert head.dim == 37


def test_bounded_logits_hold() -> None:
    A = with_globals(64, 2, 1)
    head = hf.fit(A, 10, exempt_columns=[0], max_logit=8.0)
    assert head.stopped == "certified"
    assert np.abs(head.scale * head.Q @ head.K.T).max() <= 8.0
    head = hf.fit(A, 10, exempt_columns=[0], kernel=hf.Kernel("float32", logits="bfloat16"))
    assert head.stopped == "certified"
    assert head.certificate.kernel.logits == "bfloat16"


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 12),
    causal=st.booleans(),
    count=st.integers(0, 3),
)
def test_any_columns_of_any_pattern(seed: int, n: int, causal: bool, count: int) -> None:
    """Exempt columns may have nonzeros in any of the rows, and rows may have no other nonzeros."""
    rng = RNG(seed)
    A = np.where(rng.random((n, n)) < 0.4, rng.uniform(0.2, 1, (n, n)), 0)
    A = np.tril(A) if causal else A
    A[np.arange(n), np.arange(n)] += A.sum(axis=1) == 0
    A = rows_to_one(A)
    columns = rng.choice(n, min(count, n), replace=False)
    mask = "causal" if causal else None
    dim = int(columns.size) + n
    head = hf.fit(
        A,
        dim,
        exempt_columns=columns,
        mask=mask,
        method=hf.methods.Learned(effort=100),
        time_limit=20,
    )
    assert head.certificate.holds
    assert hf.certify(A, head.Q, head.K, mask=mask).holds


def test_a_search_claims_no_proof_for_what_the_exempt_columns_take() -> None:
    A = np.zeros((32, 32))
    A[:, :2] = 0.5
    fit = hf.fit(A, exempt_columns=[0])
    assert fit.certificate.holds
    assert fit.dim == 2
    assert fit.lower_bound.dim == 1
    assert "2 is the size of the exempt columns and one dimension beside them" in repr(fit.search)


def test_nothing_exempt_is_the_plain_fit() -> None:
    A = P.random_regular(64, 3, rng=0)
    plain = hf.fit(A, 8)
    for columns in ((), "auto", np.empty(0, int)):
        head = hf.fit(A, 8, exempt_columns=columns)
        np.testing.assert_array_equal(head.Q, plain.Q)
        assert "exempt_columns" not in head.settings
    head = hf.fit(A, 8, exempt_columns=(), method=hf.methods.Learned(max_norm=99.0))
    np.testing.assert_array_equal(head.Q, hf.fit(A, 8, method=hf.methods.Learned(max_norm=99.0)).Q)


@pytest.mark.parametrize("columns", [None, (), [], np.empty(0, int)], ids=str)
def test_no_exempt_column_is_written_in_one_way_everywhere(columns: Any) -> None:
    rng = np.random.default_rng(0)
    Q, K = rng.standard_normal((2, 16, 4))
    K[0] = 4 * Q.sum(axis=0)
    kept = hf.sparsify(Q, K, per_row=2, per_column=4, exempt_columns=columns)
    assert kept.exempt.size == 0
    same = hf.sparsify(Q, K, per_row=2, per_column=4).matrix.toarray()
    np.testing.assert_array_equal(kept.matrix.toarray(), same)
    assert hf.fit(kept, 6, exempt_columns=columns).settings.get("exempt_columns") is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exempt_columns": "all"}, r'exempt_columns must be "auto", a sequence of column'),
        ({"exempt_columns": [64]}, r"exempt_columns must lie in 0 ... 63; got 64"),
        ({"exempt_columns": [-1]}, r"exempt_columns must lie in 0 ... 63; got -1"),
        ({"exempt_columns": [0.5]}, "exempt_columns must be a sequence of integers"),
        ({"exempt_columns": [[0]]}, "exempt_columns must be a sequence of integers"),
        ({"exempt_columns": [0, 1], "dim": 2}, "dim must be above 2.* got 2"),
        ({"exempt_columns": [0], "dim": 2, "dtype": "bfloat16"}, "dim must be above 2.* got 2"),
        (
            {"exempt_columns": [0], "module": hf.SelfAttention.canonical(1)},
            "dim must be above 1.* got 1",
        ),
        (
            {"exempt_columns": [0], "method": hf.methods.Learned(max_norm=9.0)},
            "max_norm must not be given beside exempt_col",
        ),
        (
            {"exempt_columns": [1], "method": hf.methods.MaxMargin(max_norm=9.0)},
            "max_norm must not be given beside exempt_col",
        ),
        (
            {"exempt_columns": [0], "method": hf.methods.Learned(init=(np.ones((64, 8)),) * 2)},
            "1 to 7 columns",
        ),
    ],
)
def test_bad_columns_are_refused(options: dict[str, Any], message: str) -> None:
    asked = {"dim": 8} | options
    if "module" in asked:
        del asked["dim"]
    with pytest.raises(InputError, match=message):
        hf.fit(P.random_regular(64, 3, rng=0), **asked)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    A_file, head_file = str(tmp_path / "A.npz"), str(tmp_path / "head.npz")
    sparse.save_npz(A_file, sparse.csr_array(with_globals(300, 2, 1)))
    fit = ["fit", A_file, "-o", head_file, "--dim", "7", "--force"]
    for columns in ("auto", "0"):
        assert cli.main([*fit, "--exempt-columns", columns]) == 0
        assert capsys.readouterr().err == ""  # no note, since no heavy column is left
        assert cli.main(["certify", A_file, head_file]) == 0
    assert cli.main([*fit, "--exempt-columns", "0,x"]) == 2
    assert 'exempt_columns must be "auto", a sequence of column numbers' in capsys.readouterr().err
