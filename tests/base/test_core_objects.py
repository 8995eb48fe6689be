"""The objects that the core takes: made once, checked, and refused when they do not fit."""

from __future__ import annotations

import ast
import copy
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from tests.references import core_arrays

import headfit as hf
from headfit import _core
from headfit._base.masks import core_mask
from headfit.errors import InputError, TargetError

STUBS = Path(hf.__file__).parent / "_core.pyi"
MOST_ARGUMENTS = 6
N = 24
A = hf.patterns.random_regular(N, 3, gamma=2.0, rng=0)
TARGET = hf.Target(A)
X = np.random.default_rng(1).standard_normal((N, 4)).astype(np.float32)
LOGITS = _core.Logits(X[None], X[None])


def core_target(**changes):
    offsets, columns, weights = core_arrays(TARGET)
    parts = {"offsets": offsets, "columns": columns, "weights": weights, **changes}
    return _core.Target(**parts)


def every_entry(target, tolerances):
    """Return a call, by name, of each function of the core that takes a target."""
    q, k = np.empty((2, N, 8), np.float32)
    keys = X.astype(np.float64)
    matrix = np.full((1, N, N), 1 / N)
    learned = _core.LearnedOptions(dim=3, max_steps=2)
    narrow = _core.NarrowOptions(
        stored=tolerances, rounded=tolerances, less=[tolerances], more=[],
        storage=_core.Storage("bfloat16"),
    )  # fmt: skip
    return {
        "certify_logits": lambda: _core.certify_logits(
            target, LOGITS, tolerances, _core.CertifyOptions(), 1
        ),
        "certify_matrix": lambda: _core.certify_matrix(target, matrix, tolerances, 1),
        "TraceSearch": lambda: _core.TraceSearch(target, True, 1000),
        "columns_apart": lambda: _core.columns_apart(target, 0, N),
        "target_logits": lambda: _core.target_logits(target, tolerances),
        "project_identity": lambda: _core.project_identity(
            target, tolerances, _core.ProjectionOptions(), q, k, 1
        ),
        "max_margin_queries": lambda: _core.max_margin_queries(
            target, keys, tolerances, _core.MaxMarginOptions(), 1
        ),
        "face_reports": lambda: _core.face_reports(target, keys, np.arange(1), 1),
        "fit_learned": lambda: _core.fit_learned(target, tolerances, learned, 1),
        "round_queries": lambda: _core.round_queries(
            target, X, X, tolerances, _core.Storage("bfloat16"), 1
        ),
        "narrow_queries": lambda: _core.narrow_queries(target, X, X, narrow, 1),
    }


def test_no_function_takes_more_than_six_arguments():
    found = {}
    for node in ast.walk(ast.parse(STUBS.read_text())):
        if isinstance(node, ast.FunctionDef):
            positional = [a.arg for a in node.args.args if a.arg != "self"]
            # The keyword arguments of a class of options are its fields, and are not counted.
            fields = node.args.kwonlyargs if node.name != "__init__" else []
            found[node.name] = max(found.get(node.name, 0), len(positional) + len(fields))
    assert len(found) > 20
    assert {name: n for name, n in found.items() if n > MOST_ARGUMENTS} == {}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((0, 0.1), "leak must lie strictly between 0 and 1; got 0"),
        ((1, 0.1), "leak must lie strictly between 0 and 1; got 1"),
        ((math.nan, 0.1), "leak must lie"),
        ((0.05, -1e-9), "distortion must be finite and at least 0; got -1e-09"),
        ((0.05, math.inf), "distortion must be finite"),
        ((0.05, 0.1, 0), "max_logit must be positive; got 0"),
        ((0.05, 0.1, math.nan), "max_logit must be positive; got nan"),
    ],
)
def test_tolerances_are_checked_when_they_are_made(values, message):
    with pytest.raises(InputError, match=message):
        _core.Tolerances(*values)


def test_tolerances_show_what_they_are():
    given = _core.Tolerances(0.25, 0.5, 3)
    assert (given.leak, given.distortion, given.max_logit) == (0.25, 0.5, 3.0)
    usual = _core.Tolerances()
    assert (usual.leak, usual.distortion, usual.max_logit) == (0.05, 0.1, math.inf)


def test_a_target_keeps_its_core():
    target = hf.Target(A)
    core = target.core
    assert target.core is core
    for a, b in zip(
        (core.offsets, core.columns), (target.matrix.indptr, target.matrix.indices), strict=True
    ):
        assert np.array_equal(a, b)
    assert core.weights is target.matrix.data


def test_a_target_makes_its_core_once_in_a_fit(monkeypatch):
    made = []
    target = hf.Target(A)
    hf.fit(target, 8, leak=0.1, distortion=0.2)  # loads the modules that name the type
    monkeypatch.setattr(_core, "Target", lambda *parts: made.append(parts))
    hf.fit(target, 8, leak=0.1, distortion=0.2)
    assert made == []


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))]
)
def test_the_core_of_a_target_is_left_out_of_copies(again):
    target = hf.Target(A)
    other = again(target)
    assert "_core" not in target.__getstate__()
    assert other.core is not target.core
    assert all(
        np.array_equal(getattr(other.core, part), getattr(target.core, part))
        for part in ("offsets", "columns", "weights")
    )
    assert hf.certify(other, X, X).nonzeros == target.nonzeros


def test_a_core_of_other_numbers_is_made_anew():
    target = hf.Target(A)
    core = target.core
    target.matrix.data = target.matrix.data.copy()
    assert target.core is not core
    core = target.core
    target.matrix.indptr.flags.writeable = True
    target.matrix.indptr[1] += 1
    assert target.core is not core


def test_arrays_of_a_target_that_do_not_fit():
    offsets, columns, weights = core_arrays(TARGET)
    for changes, message in (
        ({"offsets": offsets.astype(np.int32)}, "offsets must be a contiguous vector of int64"),
        ({"columns": columns.astype(np.int64)}, "columns must be a contiguous vector of int32"),
        ({"weights": weights.astype(np.float32)}, "weights must be a contiguous vector of float64"),
        ({"weights": np.repeat(weights, 2)[::2]}, "weights must be a contiguous vector"),
        ({"weights": weights[None]}, "weights must be a contiguous vector"),
    ):
        with pytest.raises(InputError, match=message):
            core_target(**changes)
    for changes in (
        {"weights": weights[:-1]},
        {"columns": columns[:-1]},
        {"offsets": offsets[:-1]},
        {"offsets": offsets[:0]},
    ):
        with pytest.raises(TargetError, match="row offsets that end"):
            core_target(**changes)


def bad_targets():
    offsets, columns, weights = (x.copy() for x in core_arrays(TARGET))
    columns[-1] = N
    yield core_target(columns=columns), "column 24 in row 23"
    columns[-1] = -1
    yield core_target(columns=columns.copy()), "column -1 in row 23"
    offsets[1], offsets[2] = 10**9, 3
    yield core_target(offsets=offsets), "decreasing row offsets at row 1"
    weights[0] = math.nan
    yield core_target(weights=weights), "got nan at row 0"
    weights = TARGET.core.weights.copy()
    weights[0] = 0.0
    yield core_target(weights=weights), "got 0 at row 0"
    yield core_target(mask=_core.Mask(right=0)), "masked position"


def test_every_function_refuses_a_target_that_it_cannot_read():
    for target, message in bad_targets():
        for name, call in every_entry(target, _core.Tolerances()).items():
            if name == "certify_logits" and message == "masked position":
                continue  # it uses the mask of the logits
            with pytest.raises(TargetError, match=message):
                call()


def test_tolerances_that_a_function_cannot_keep_are_refused():
    limited = every_entry(TARGET.core, _core.Tolerances(0.05, 0.1, 5.0))
    with pytest.raises(InputError, match="max_logit must not be given for a matrix"):
        limited["certify_matrix"]()
    with pytest.raises(InputError, match="max_logit must be infinite here"):
        limited["max_margin_queries"]()
    exact = every_entry(TARGET.core, _core.Tolerances(0.05, 0.0))
    for name in ("fit_learned", "round_queries", "narrow_queries"):
        with pytest.raises(InputError, match="distortion must be positive to learn"):
            exact[name]()


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ({"dense": np.ones((1, N, N - 1), bool)}, "a dense mask must have the shape"),
        ({"dense": np.ones((N, N), bool)}, "a dense mask must have the shape"),
        ({"key_lengths": np.array([N + 1])}, "key_lengths must lie in 0 ... 24; got 25"),
        ({"key_lengths": np.array([-1])}, "key_lengths must lie"),
        ({"key_lengths": np.array([1, 2])}, "one for each of the 1 heads; got 2"),
        ({"keys": np.ones((1, N + 1), bool)}, "a mask of keys must have a row of all keys"),
        ({"keys": np.ones((2, N), bool)}, "a mask of keys must have a row of all keys"),
        ({"keys": np.ones(N, bool)}, "a mask of keys must have a row of all keys"),
        ({"left": -1}, "sides of a window"),
        (
            {"sparse_offsets": np.array([0, 1]), "sparse_columns": np.zeros(1, np.int32)},
            "must have the rows of the logits",
        ),
        (
            {"sparse_offsets": np.arange(N + 1), "sparse_columns": np.full(N, N, np.int32)},
            "sorted columns in 0 ... 23; row 0 has column 24",
        ),
        (
            {
                "sparse_offsets": np.concatenate([[0, 10**9], np.full(N - 1, 3)]),
                "sparse_columns": np.arange(3, dtype=np.int32),
            },
            "decreasing row offsets at row 1",
        ),
    ],
)
def test_masks_of_another_shape_are_refused(mask, message):
    made = _core.Mask(**mask)
    with pytest.raises(InputError, match=message):
        _core.Logits(X[None], X[None], _core.LogitOptions(mask=made))
    with pytest.raises(InputError, match=message):
        _core.validate_target(core_target(mask=made), 1e-6, 1)


def test_half_a_sparse_mask_is_refused():
    with pytest.raises(InputError, match="needs both"):
        _core.Mask(sparse_offsets=np.zeros(2, np.int64))


def test_rows_of_logits_share_all_else():
    options = _core.LogitOptions(scale=0.5, mask=core_mask("causal", (), (N, N)))
    logits = _core.Logits(X[None], X[None], options)
    whole, some = np.empty((1, N, N), np.float32), np.empty((1, 3, N), np.float32)
    rows = np.array([7, 2, 7])
    _core.attention_matrix(logits, whole, True, 1)
    _core.attention_matrix(logits.of_rows(rows), some, True, 1)
    assert np.array_equal(some, whole[:, rows])
    again = np.empty_like(whole)
    _core.attention_matrix(logits.of_rows(rows).of_rows(None), again, True, 1)
    assert np.array_equal(again, whole)
    for bad in (np.array([N]), np.array([-1])):
        with pytest.raises(InputError, match="rows must lie in"):
            logits.of_rows(bad)
    with pytest.raises(InputError, match="rows must be a contiguous vector of int64"):
        logits.of_rows(np.array([0.5]))


def test_logits_that_do_not_fit_are_refused_when_they_are_made():
    for options, message in (
        ({"group": 2}, "must divide"),
        ({"scale": math.nan}, "scale must be"),
        ({"softcap": -1.0}, "softcap must be"),
        ({"sinks": np.zeros(2)}, "sinks must be one for each of the 1 heads; got 2"),
        ({"sinks": np.full(1, math.nan)}, "sinks must be finite"),
        ({"sinks": np.full(1, 1e39)}, "sinks must be finite in the arrays' dtype"),
        ({"sinks": np.zeros(1, np.float32)}, "sinks must be a contiguous vector of float64"),
        ({"bias": np.zeros((1, N, N - 1), np.float32)}, "bias must have the shape"),
        ({"rotary": np.zeros((N - 1, 4), np.float32)}, "rotary must be"),
    ):
        with pytest.raises(InputError, match=message):
            _core.Logits(X[None], X[None], _core.LogitOptions(**options))
    with pytest.raises(InputError, match="same head size"):
        _core.Logits(X[None], X[None, :, :3].copy())


def test_a_soft_target_has_no_sinks():
    logits = _core.Logits(X[None], X[None], _core.LogitOptions(sinks=np.zeros(1)))
    with pytest.raises(InputError, match="takes no target with sinks"):
        _core.soft_loss(_core.SoftTarget(attention=logits), _core.Mask(), X, X, 1)


def test_compressed_rows_that_do_not_fit():
    options = _core.SparsifyOptions(2, 0.0, 0, np.empty(0, np.int32), False, False)
    csr = sp.csr_array(A)
    offsets, columns = csr.indptr.astype(np.int64), csr.indices.astype(np.int32)

    def sparsify(offsets, columns, weights):
        rows = _core.CompressedRows(offsets, columns, weights, N)
        return _core.sparsify_compressed(rows, _core.Mask(), options, 1)

    assert sparsify(offsets, columns, csr.data)[0][-1] == 2 * N
    wrong = columns.copy()
    wrong[4] = N
    with pytest.raises(InputError, match="column 24 in row 1"):
        sparsify(offsets, wrong, csr.data)
    with pytest.raises(InputError, match="end at its number of entries"):
        sparsify(offsets, columns, csr.data[:-1])
    jump = offsets.copy()
    jump[1] = 10**9
    with pytest.raises(InputError, match="decreasing row offsets at row 1"):
        sparsify(jump, columns, csr.data)
