"""The experiments on one module, random keys and published figures, against slow references."""

import math
import sys
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import linprog
from scipy.stats import norm
from tests.references import leak_and_distortion

import headfit as hf

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))

import one_module
import phase_diagram
import published
import trained_heads

pytestmark = pytest.mark.full


def tiny(experiment: Any, folder: Path) -> Any:
    """Run an experiment at its smallest setting, in this process."""
    pytest.importorskip("matplotlib").use("agg")
    return experiment.main(["--tiny", "--out", str(folder), "--processes", "0"])


# ---------------------------------------------------------------------------- phase diagram


def is_served(keys: np.ndarray, support: np.ndarray, order: bool) -> bool:
    """Decide by one linear program whether a query separates a support from the other keys.

    Unknown are q, c and the gap t, at most 1: q.k <= c - t off the support, and on it q.k = c, or
    q.k >= c where only the order counts.
    """
    d = keys.shape[1]
    on, off = keys[support], np.delete(keys, support, axis=0)
    above = np.hstack([-on, np.ones((len(on), 1)), np.zeros((len(on), 1))])
    below = np.hstack([off, -np.ones((len(off), 1)), np.ones((len(off), 1))])
    result = linprog(
        np.r_[np.zeros(d + 1), -1.0],
        A_ub=np.vstack([above, below]) if order else below,
        b_ub=np.zeros(len(above) + len(below) if order else len(below)),
        A_eq=None if order else above,
        b_eq=None if order else np.zeros(len(above)),
        bounds=[(None, None)] * (d + 1) + [(None, 1)],
        method="highs",
    )
    return bool(-result.fun > 0.5)


def test_the_diagram_counts_what_linear_programs_count(tmp_path: Path) -> None:
    rows = [r for r in tiny(phase_diagram, tmp_path) if r["part"] == "diagram"]
    assert {0 < r["faces"] < 1 for r in rows} == {True, False}
    for row in rows:
        n, d, k, seed = (row[name] for name in ("n", "d", "k", "seed"))
        keys = phase_diagram.gaussian_keys(n, d, seed).keys
        A = hf.patterns.random_regular(n, k, rng=[seed, n, d, k])
        supports = A.indices.reshape(n, k)
        for name in ("faces", "order"):
            expected = np.mean([is_served(keys, s, name == "order") for s in supports])
            assert row[name] == pytest.approx(expected, abs=1e-3), row
    assert (tmp_path / "phase_diagram.svg").is_file()


def test_norms_are_those_of_the_queries() -> None:
    keys = hf.methods.KeyTable.cyclic(24, 12, dtype="float64")
    A = hf.patterns.random_regular(24, 2, rng=[0, 24, 2])
    head = hf.fit(A, method=hf.methods.MaxMargin(keys=keys), tolerances=phase_diagram.ASKED,
                  dtype="float64")  # fmt: skip
    product = np.linalg.norm(head.Q, axis=1).max() * np.linalg.norm(head.K, axis=1).max()
    expected = product / math.sqrt(12) / math.log(20)
    found = phase_diagram.norms(24, 12, 2, 0, "cyclic")
    assert found["norm"] == pytest.approx(expected, rel=1e-3)
    assert found == {"found": 1.0, "norm": found["norm"], "float64": True, "float32": True,
                     "bfloat16": True}  # fmt: skip


@pytest.mark.parametrize("t", [-2.0, 0.0, 0.7, 3.0])
def test_excess_is_the_integral(t: float) -> None:
    expected, _ = quad(lambda x: (x - t) ** 2 * norm.pdf(x), t, np.inf)
    assert phase_diagram.excess(t) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("t", [0.05, 0.5, 1.0, 2.0, 3.5])
def test_the_face_threshold_is_donoho_and_tanner_s(t: float) -> None:
    # The minimum over t is where its derivative vanishes, which gives the sparsity for each t.
    odds = (norm.pdf(t) - t * norm.sf(t)) / t
    sparsity = odds / (1 + odds)
    needed = sparsity * (1 + t * t) + (1 - sparsity) * phase_diagram.excess(t)
    assert phase_diagram.faces_need(sparsity) == pytest.approx(needed, rel=1e-9)
    found = phase_diagram.threshold(phase_diagram.faces_need, needed)
    assert found == pytest.approx(sparsity / needed, rel=1e-6)


def test_thresholds_have_the_known_values() -> None:
    faces, order = phase_diagram.faces_need, phase_diagram.order_needs
    # Donoho and Tanner (2005): with n = 2 d, "roughly half the number of equations".
    assert phase_diagram.threshold(faces, 0.5) == pytest.approx(0.5582, abs=1e-4)
    # Donoho and Tanner (2009): d = 2 k ln(n / d) to first order, where d is far below n.
    ratios = [
        phase_diagram.threshold(faces, share) * 2 * math.log(1 / share)
        for share in (1e-2, 1e-4, 1e-8)
    ]
    assert ratios == sorted(ratios, reverse=True)
    assert 1 < ratios[-1] < 1.08
    # Cover (1965): random halves are told apart from n = 2 d on.
    assert order(0.5) == pytest.approx(0.5)
    for sparsity in (0.01, 0.1, 0.3):
        assert order(sparsity) < faces(sparsity)
        assert order(sparsity) == pytest.approx(order(1 - sparsity))


# ---------------------------------------------------------------------------- one module


def test_patterns_on_one_module(tmp_path: Path) -> None:
    rows = tiny(one_module, tmp_path)
    assert {r["module"] for r in rows} == {"rotation", "L1H1"}
    assert all(r["free_holds"] for r in rows if r["part"] == "patterns")
    assert all(r["normed_holds"] for r in rows if r.get("normed_holds") is not None)
    row = next(r for r in rows if r["part"] == "patterns" and r["module"] == "L1H1")
    A = one_module.pattern_of("random", 0, 128, 4)
    module = one_module.module_of("L1H1")
    W_Q, W_K = module.W_Q.astype(float), module.W_K.astype(float)
    u, _ = one_module.descend(A, one_module.seen_weights("L1H1"), 800)
    X = one_module.normed_input("L1H1", u)
    plain = X / trained_heads.gain("L1H1")
    np.testing.assert_allclose(plain.mean(axis=1), 0, atol=1e-6)
    np.testing.assert_allclose(plain.var(axis=1), 1, rtol=1e-5)
    judged = leak_and_distortion(A.toarray(), X @ W_Q @ (X @ W_K).T / 4)
    leak, distortion = (of_rows.max() for of_rows in judged)
    assert row["normed_leak"] == pytest.approx(leak, rel=1e-3)
    assert row["normed_distortion"] == pytest.approx(distortion, rel=1e-2)
    assert leak <= 0.05
    assert distortion <= 0.1
    assert (tmp_path / "one_module.svg").is_file()


def test_an_input_behind_the_norm_exists_up_to_the_norm_needed() -> None:
    rng = np.random.default_rng(0)
    V = one_module.seen_weights("L0H2")
    D, two_d = V.shape
    wanted = rng.standard_normal((5, two_d))
    needed = one_module.norm_needed("L0H2", *np.split(wanted, 2, axis=1))
    # The ellipsoid's equation: y (V^T V)^-1 y^T = D.
    squares = np.einsum("ij,jk,ik->i", wanted, np.linalg.inv(V.T @ V), wanted)
    np.testing.assert_allclose(needed, np.sqrt(squares / D), rtol=1e-6)
    # On and inside it there is a row of mean 0 and variance 1: build it.
    for share, y in ((1.0, wanted[0]), (0.5, wanted[1])):
        y = share * y / one_module.norm_needed("L0H2", *np.split(y[np.newaxis], 2, axis=1))
        u = np.linalg.pinv(V.T) @ y
        kernel = np.linalg.svd(np.c_[V, np.ones(D)].T)[2][-1]
        u = u + math.sqrt(max(0.0, D - u @ u)) * kernel
        np.testing.assert_allclose(u @ V, y, atol=1e-9)
        assert u.mean() == pytest.approx(0, abs=1e-9)
        assert u.var() == pytest.approx(1)


@pytest.mark.parametrize("name", trained_heads.NAMES)
def test_natural_inputs_keep_to_the_limits_of_the_norm(name: str) -> None:
    X = trained_heads.natural_inputs()[int(name[1])]
    plain = X / trained_heads.gain(name)
    np.testing.assert_allclose(plain.mean(axis=1), 0, atol=1e-5)
    np.testing.assert_allclose(plain.var(axis=1), 1, rtol=1e-2)
    found = one_module.natural(name)
    assert 0 < found["needed_median"] <= found["needed_max"] <= 1
    q, k = (X @ w for w in (one_module.module_of(name).W_Q, one_module.module_of(name).W_K))
    product = np.linalg.norm(q, axis=1).max() * np.linalg.norm(k, axis=1).max() / 4
    assert found["product"] == pytest.approx(product, rel=1e-3)
    assert product <= found["limit"]


# ---------------------------------------------------------------------------- published


def test_the_table_of_limit_is_copied_without_an_error() -> None:
    d, n = np.array(list(published.LIMIT.items())).T
    fitted = np.polyfit(d, n, 3)[::-1]
    np.testing.assert_allclose(fitted, published.LIMIT_CUBIC, atol=6e-5)


@pytest.mark.parametrize("n", [3, 6, 9])
def test_targets_hold_every_pair(n: int) -> None:
    patterns = list(published.targets(n))
    pairs = {tuple(row) for A in patterns for row in A.indices.reshape(n, 2)}
    assert pairs == set(combinations(range(n), 2))
    for A in patterns:
        hf.Target(A)


@pytest.mark.parametrize("answer", [3, 4, 9, 12, 20])
@pytest.mark.parametrize("start", [3, 4, 10, 30])
def test_largest_finds_the_end(answer: int, start: int) -> None:
    assert published.largest(lambda n: n <= answer, start, 20) == answer


@pytest.mark.parametrize("method", ["free embeddings", "centroids"])
def test_trained_embeddings_are_right_where_it_is_said(method: str) -> None:
    sizes = {"free embeddings": 6, "centroids": 7}
    n, d = sizes[method], 5
    queries, documents, _ = published.TRAINED[method](n, d, 0)
    assert published.point(method, n, d, "float32", "order", 0)["solved"] is True
    for query, pair in zip(queries, published.all_pairs(n), strict=True):
        scores = {j: sum(float(a) * float(b) for a, b in zip(query, documents[j], strict=True))
                  for j in range(n)}  # fmt: skip
        best = sorted(scores, key=scores.__getitem__)[-2:]
        assert sorted(best) == pair.tolist()
    if method == "free embeddings":
        for x in (queries, documents):
            np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1, rtol=1e-6)
    else:
        pairs = published.all_pairs(n)
        np.testing.assert_allclose(queries, documents[pairs].mean(axis=1), rtol=1e-6)


def test_one_dimension_does_not_hold_every_pair() -> None:
    for method in published.TRAINED:
        found = published.point(method, 6, 1, "float32", "order", 0)
        assert found["solved"] is False
        assert found["right"] < 1


def test_queries_of_cyclic_keys_grow_like_the_fourth_power_of_n() -> None:
    def longest(n: int) -> float:
        keys = hf.methods.KeyTable.cyclic(n, 4, dtype="float64")
        some = islice(published.targets(n), 4)  # the closest pairs, which need the longest queries
        method = hf.methods.MaxMargin(keys=keys)
        return max(
            hf.fit(A, method=method, dtype="float64", num_threads=1).settings["largest_query"]
            for A in some
        )

    assert longest(48) / longest(24) == pytest.approx(16, rel=0.05)


def test_published_figures_beside_ours(tmp_path: Path) -> None:
    answers = tiny(published, tmp_path)

    def answer(**wanted: Any) -> int:
        (found,) = (a["answer"] for a in answers if wanted.items() <= a.items())
        return int(found)

    # Cyclic keys hold all pairs of any n at d = 4 in exact arithmetic.
    assert answer(method="cyclic", d=4, dtype="float64") == 12
    assert answer(method="cyclic", d=4, dtype="float32", asked="order") == 12
    assert answer(method="free embeddings", d=4) <= 12
    assert (tmp_path / "published.svg").is_file()
