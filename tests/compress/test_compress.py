"""Maps that make a head smaller for every input."""

import inspect
import warnings
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headfit as hf
from headfit import _core
from headfit._base.positions import as_rotary, rope_frequencies
from headfit._compress.free_maps import ClosedForm, roots
from headfit._compress.passages import Parts, Passages, common_rotary, cut, moved_by
from headfit.errors import InputError, NonFiniteError

RNG = np.random.default_rng
D = 8


@lru_cache
def passages(count: int = 12, heads: int = 0, seed: int = 0, dtype: str = "float32") -> Any:
    """Passages of different lengths whose queries and keys share a spectrum that falls."""
    rng = RNG(seed)
    mix = rng.normal(size=(2, 16, D)) * 1.6 ** -np.arange(D) * 0.9
    found = []
    for i in range(count):
        x = rng.normal(size=(24 + 5 * (i % 3), 16))
        q = x @ mix[0]
        if heads:
            q = np.stack([q @ np.diag(RNG(h).uniform(0.5, 1.5, D)) for h in range(heads)])
        found.append((q.astype(dtype), (x @ mix[1] + 1).astype(dtype)))
    return tuple(found)


def compressed(given: Any = None, **options: Any) -> hf.results.Compressed:
    settings = {"mask": "causal", "curve_dims": (), "num_threads": 2, **options}
    return hf.compress(list(passages() if given is None else given), **settings)


def distances(result: hf.results.Compressed, given: Any, which: Any, **options: Any) -> Any:
    """Return total variation and KL of every row, from matrices in float64."""
    tv, kl = [], []
    for i in which:
        q, k = (np.asarray(x, dtype=float) for x in given[i])
        A = hf.Attention(q, k, **options).matrix()
        small = result.apply(*given[i], **{n: v for n, v in options.items() if n != "scale"})
        M = hf.Attention(
            small.Q.astype(float), small.K.astype(float), **vars(small.options)
        ).matrix()
        tv.append(np.abs(A - M).sum(axis=-1).ravel() / 2)
        terms = np.where(A > 0, A * np.log(np.where(A > 0, A, 1) / np.where(A > 0, M, 1)), 0)
        kl.append(terms.sum(axis=-1).ravel())
    return np.concatenate(tv), np.concatenate(kl)


@pytest.mark.parametrize("heads", [0, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_reported_distances_are_those_of_the_stored_maps(dtype: str, heads: int) -> None:
    given = passages(heads=heads)
    result = compressed(given, dim=3, dtype=dtype)
    lead = (heads,) if heads else ()
    assert result.P_q.shape == (*lead, D, 3)
    assert result.P_k.shape == (D, 3)
    assert result.P_k.dtype == ("float64" if dtype == "float64" else "float32")
    if dtype in ("float16", "bfloat16"):
        bits = result.P_k.view(np.uint32)
        assert (bits & (0x1FFF if dtype == "float16" else 0xFFFF) == 0).all()
    tv, kl = distances(result, given, result.held_out, mask="causal")
    for found, expected in (
        (result.tv_mean, tv.mean()),
        (result.tv_95, np.quantile(tv, 0.95)),
        (result.tv_worst, tv.max()),
        (result.kl, kl.mean()),
    ):
        assert found == pytest.approx(expected, rel=1e-5)
    assert list(result.closed_forms) == ["kq-svd", "centred", "attended"]
    for name, (p_q, p_k) in result.closed_forms.items():
        closed = replace(result, P_q=p_q, P_k=p_k)
        tv, kl = distances(closed, given, result.held_out, mask="causal")
        curve = result.curves[name]
        assert curve.tv_mean == pytest.approx([tv.mean()], rel=1e-5)
        assert curve.kl_mean == pytest.approx([kl.mean()], rel=1e-5)
    assert "closed_forms" not in result.to_dict()


@pytest.mark.parametrize("heads", [0, 2])
def test_divergence_by_position(heads: int) -> None:
    """Rows of passages of different lengths stand at the ends of their keys."""
    given = [(q[..., 5 * i :, :], k) for i, (q, k) in enumerate(passages(4, heads))]
    result = compressed(given, dim=2, held_out=0.5)
    lengths = {i: len(given[i][1]) for i in result.held_out}
    assert len(set(lengths.values())) == 2
    eighths: list[list[float]] = [[] for _ in range(8)]
    for i, m in lengths.items():
        n = given[i][0].shape[-2]
        _, kl = distances(result, given, [i], mask="causal")
        for at, row in enumerate(kl.reshape(-1, n).T):
            eighths[8 * (m - n + at) // max(lengths.values())].extend(row)
    expected = [np.mean(x) if x else np.nan for x in eighths]
    np.testing.assert_allclose(result.kl_by_position, expected, rtol=1e-4)
    assert np.isnan(result.kl_by_position).any()


def test_parts_are_disjoint_and_as_large_as_asked() -> None:
    result = compressed(dim=2, held_out=0.5, validation=0.34)
    parts = (result.calibration, result.validation, result.held_out)
    assert [p.size for p in parts] == [4, 2, 6]
    assert sorted(np.concatenate(parts)) == list(range(12))
    assert not np.isnan(result.validation_kl)
    assert np.isnan(compressed(dim=2, validation=0).validation_kl)
    for count, sizes in ((2, [1, 0, 1]), (3, [1, 1, 1]), (4, [2, 1, 1])):
        parts = Parts.of(count, 0.25, 0.25, RNG(0))
        assert [parts.calibration.size, parts.validation.size, parts.held_out.size] == sizes


@pytest.mark.parametrize("asked", [{"dim": 3}, {"tv": 0.1}])
def test_held_out_passages_decide_nothing(asked: Any) -> None:
    given = list(passages())
    first = compressed(given, **asked)
    for i in first.held_out:
        given[i] = tuple(RNG(i).normal(size=x.shape).astype(x.dtype) for x in given[i])
    second = compressed(given, **asked)
    np.testing.assert_array_equal(first.held_out, second.held_out)
    np.testing.assert_array_equal(first.P_q, second.P_q)
    np.testing.assert_array_equal(first.P_k, second.P_k)
    assert (first.taken, first.dim) == (second.taken, second.dim)
    assert first.tv_mean != second.tv_mean


def test_results_do_not_depend_on_threads_and_repeat() -> None:
    results = [compressed(dim=3, num_threads=t, rng=5) for t in (1, 2, 3, 1)]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0].P_q, other.P_q)
        np.testing.assert_array_equal(results[0].P_k, other.P_k)
        assert results[0].tv_mean == other.tv_mean


@pytest.mark.parametrize("heads", [0, 2])
def test_curves(heads: int) -> None:
    given = passages(20, heads=heads, seed=3)
    result = compressed(given, dim=4, curve_dims=range(1, D + 1), validation=0)
    assert list(result.curve.dim) == list(range(1, D + 1))
    descents = result.settings["descents"]
    kl = [descents[d]["kl"][1] for d in range(1, D)]
    assert (np.diff(kl) <= 0).all()  # on the calibration passages
    assert list(result.curves) == ["kq-svd", "centred", "attended", "descent", "taken"]
    for name, curve in result.curves.items():
        assert (np.diff(curve.kl_mean) < 1e-3).all(), name
        assert curve.tv_mean[-1] < 1e-5  # at size D nothing changes
    assert result.curve.tv_mean[3] == result.tv_mean
    assert result.curve.tv_worst[3] == result.tv_worst
    assert result.baseline is result.curves["kq-svd"]


def previous_token_head(count: int, n: int, noise: float) -> Any:
    """Return passages of a head of size 16 whose logits are sums of 8 cosines of the offset."""
    angle = np.arange(n)[:, np.newaxis] * np.geomspace(1.5, 0.1, 8)
    keys = np.hstack([np.cos(angle), np.sin(angle)])
    turn = np.geomspace(1.5, 0.1, 8)
    queries = np.hstack([np.cos(angle - turn), np.sin(angle - turn)])
    rng = RNG(0)
    return [
        (12 * (queries + noise * rng.normal(size=(n, 16))), keys + noise * rng.normal(size=(n, 16)))
        for _ in range(count)
    ]


def test_a_sharp_positional_head_is_ten_times_closer_than_in_closed_form() -> None:
    result = compressed(previous_token_head(16, 96, 0.02), dim=4)
    tv = {name: curve.tv_mean[0] for name, curve in result.curves.items()}
    assert result.taken == "descent"
    assert tv["taken"] < 0.1 * min(tv["kq-svd"], tv["centred"])


def test_the_whole_size_changes_nothing() -> None:
    result = compressed(passages(dtype="float64"), dim=D, dtype="float64")
    assert result.tv_worst < 1e-12
    assert result.dim == result.original_dim == D
    assert compressed(dim=D).tv_worst < 1e-5


def test_never_worse_than_a_closed_form_where_it_is_chosen() -> None:
    for seed in range(4):
        given = passages(8, seed=seed)
        result = compressed(given, dim=2, validation=0.4, effort=seed * 5 + 1)
        chosen = distances(result, given, result.validation, mask="causal")[0].mean()
        cores = [hf.Attention(*given[i], mask="causal") for i in result.calibration]
        q = sum(a.Q.T.astype(float) @ a.Q for a in cores)
        k = sum(a.K.T.astype(float) @ a.K for a in cores)
        p_q, p_k = kq_svd(q, k, 2, D**-0.5)
        other = [
            hf.compare(
                hf.Attention(*given[i], mask="causal"),
                hf.Attention(given[i][0] @ p_q, given[i][1] @ p_k, scale=1, mask="causal"),
            ).row_tv
            for i in result.validation
        ]
        assert chosen <= np.concatenate(other).mean() + 1e-6


def kq_svd(q: Any, k: Any, dim: int, scale: float) -> tuple[Any, Any]:
    """Return KQ-SVD by its definition, with square roots from Cholesky factors."""
    a, b = np.linalg.cholesky(q), np.linalg.cholesky(k)
    left, size, right = np.linalg.svd(scale * a.T @ b)
    root = np.sqrt(size[:dim])
    return (
        np.linalg.solve(a.T, left[:, :dim] * root),
        np.linalg.solve(b.T, right[:dim].T * root),
    )


def test_a_closed_form_is_the_best_of_its_size() -> None:
    rng = RNG(0)
    x, y = rng.normal(size=(50, D)), rng.normal(size=(60, D)) @ rng.normal(size=(D, D))
    form = ClosedForm((roots(x.T @ x),), roots(y.T @ y))
    maps = form.maps([0.3 * np.eye(D)], 3)
    products = x @ maps[:D] @ (y @ maps[D:]).T
    u, s, vt = np.linalg.svd(0.3 * x @ y.T, full_matrices=False)  # Eckart and Young
    np.testing.assert_allclose(products, (u[:, :3] * s[:3]) @ vt[:3], atol=1e-10)
    p_q, p_k = kq_svd(x.T @ x, y.T @ y, 3, 0.3)
    np.testing.assert_allclose(maps[:D] @ maps[D:].T, p_q @ p_k.T, atol=1e-10)
    balanced = form.balanced(np.vstack([p_q * 7, p_k / 7]))
    np.testing.assert_allclose(np.abs(balanced), np.abs(maps), atol=1e-9)
    more = form.extended(maps[:, :2], [0.3 * np.eye(D)], 4)
    np.testing.assert_allclose(more[:D] @ more[D:].T, [*form.maps([0.3 * np.eye(D)], 4)[:D]]
                               @ form.maps([0.3 * np.eye(D)], 4)[D:].T, atol=1e-9)  # fmt: skip


def test_a_closed_form_of_few_passages() -> None:
    x = RNG(0).normal(size=(3, D))  # less than D directions are seen
    form = ClosedForm((roots(x.T @ x),), roots(x.T @ x))
    maps = form.maps([np.eye(D)], 4)
    np.testing.assert_allclose(x @ maps[:D] @ (x @ maps[D:]).T, x @ x.T, atol=1e-10)


def test_smallest_size_for_a_total_variation() -> None:
    result = compressed(passages(20), tv=0.05)
    assert result.reached
    assert "bisected" in result.stopped
    given = passages(20)
    tv = distances(result, given, result.validation, mask="causal")[0].mean()
    assert tv <= 0.05
    below = compressed(passages(20), dim=result.dim - 1)
    assert distances(below, given, below.validation, mask="causal")[0].mean() > 0.05
    none = compressed(passages(6), tv=1e-9)
    assert not none.reached
    assert none.dim == D
    assert "NOT" in repr(none)


def test_overfitting_is_said() -> None:
    rng = RNG(0)
    given = [tuple(3 * rng.normal(size=(2, 10, 16))) for _ in range(8)]
    result = compressed(given, dim=8, held_out=0.8, validation=0, effort="high")
    assert result.overfits
    assert result.kl > 2 * result.calibration_kl
    assert "OVERFITS" in repr(result)
    assert not compressed(passages(20), dim=3).overfits


def test_a_head_of_full_size_does_not_overfit_by_rounding() -> None:
    rng = RNG(0)
    given = [tuple(rng.normal(size=(2, 40, 8)) * 6) for _ in range(8)]
    result = hf.compress(given, dim=8, dtype="bfloat16", effort=0, curve_dims=())
    fitted = [hf.compare(hf.Attention(*given[i]), result.apply(*given[i])).kl_mean
              for i in result.calibration]  # fmt: skip
    assert result.calibration_kl == pytest.approx(np.mean(fitted))
    assert not result.overfits


FORMS: dict[str, Any] = {
    "pairs": lambda q, k: ([list(pair) for pair in zip(q, k, strict=True)], {"mask": "causal"}),
    "attentions": lambda q, k: (
        [hf.Attention(*pair, mask="causal") for pair in zip(q, k, strict=True)],
        {},
    ),
    "arrays": lambda q, k: ((q, k), {"mask": "causal"}),
    "one key head": lambda q, k: (
        [hf.Attention(a, b[np.newaxis], mask="causal") for a, b in zip(q[:, None], k, strict=True)],
        {},
    ),
    "a mask for each": lambda q, k: (
        (q, k),
        {"mask": np.tile(np.tril(np.ones((20, 20), bool)), (9, 1, 1))},
    ),
    "a bias for each": lambda q, k: (
        (q, k),
        {"bias": np.tile(np.where(np.tril(np.ones((20, 20))) > 0, 0, -np.inf), (9, 1, 1))},
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_passages(form: str) -> None:
    q, k = RNG(4).normal(size=(2, 9, 20, D)).astype(np.float32)
    given, options = FORMS[form](q, k)
    given = given if isinstance(given, tuple) else (given,)
    result = hf.compress(*given, dim=3, curve_dims=(), **options)
    plain = hf.compress(list(zip(q, k, strict=True)), dim=3, curve_dims=(), mask="causal")
    np.testing.assert_allclose(np.squeeze(result.P_q), plain.P_q, rtol=1e-3, atol=1e-4)
    assert result.tv_mean == pytest.approx(plain.tv_mean, rel=1e-3)


def test_lengths_of_each_passage() -> None:
    q, k = RNG(4).normal(size=(2, 6, 20, D))
    lengths = np.array([20, 5, 7, 9, 11, 13])
    result = hf.compress(q, k, dim=3, key_lengths=lengths, curve_dims=(), dtype="float64")
    cut = [(a, b[:n]) for a, b, n in zip(q, k, lengths, strict=True)]
    other = hf.compress(cut, dim=3, curve_dims=(), dtype="float64")
    np.testing.assert_allclose(result.P_k, other.P_k, rtol=1e-3, atol=1e-6)
    assert result.tv_mean == pytest.approx(other.tv_mean, rel=1e-4)


def test_soft_cap_scale_and_bias_stay_those_of_the_head() -> None:
    given = passages(20)
    options = {"mask": ("window", 9), "softcap": 3.0, "scale": 0.7}
    result = compressed(given, dim=5, **options)
    small = result.apply(*given[0], mask=("window", 9), softcap=3.0)
    assert (small.scale, small.softcap, small.mask) == (1.0, 3.0, ("window", 9))
    tv, _ = distances(result, given, result.held_out, **options)
    assert result.tv_mean == pytest.approx(tv.mean(), rel=1e-5)
    assert result.tv_mean < 0.05


def test_rotary_positions_are_applied_first() -> None:
    given = passages(18)[::3]  # of one length, up to which there is no room to move them
    turned = [hf.Attention(*pair, position="rope", mask="causal").rotated() for pair in given]
    still = compressed(given, dim=5, position="rope", length=len(given[0][1]))
    np.testing.assert_array_equal(still.P_k, compressed(turned, dim=5, mask=None).P_k)
    result = compressed(given, dim=5, position="rope")
    other = compressed(turned, dim=5, mask=None, rotated="rope")
    np.testing.assert_array_equal(result.P_k, other.P_k)
    small = result.apply(*given[0], position="rope", mask="causal")
    assert small.position is None
    np.testing.assert_array_equal(small.Q, other.apply(turned[0]).Q)
    same = ("rope", rope_frequencies(D, 10_000))
    np.testing.assert_array_equal(result.apply(*given[0], position=same, mask="causal").Q, small.Q)
    for kept, wrong in ((result, "rope-half"), (result, ("rope", 7.0)), (other, ("rope", 7.0))):
        with pytest.raises(InputError, match=r"position must be that of the result, \('rope', "):
            kept.apply(*given[0], position=wrong, mask="causal")


@pytest.mark.parametrize("position", [("rope", 50.0), ("rope-half", (0.3, 0.01, 0.003, 0.001))])
def test_passages_stand_at_positions_up_to_the_length(position: Any) -> None:
    heads = [hf.Attention(*pair, position=position) for pair in passages(12, dtype="float64")]
    found = Passages.of(heads, None, 400, (0.25, 0.25), 3)
    assert len(found.attentions) == 4 * len(heads)
    for i, head in enumerate(heads):
        copies = found.part(np.array([i]))
        assert len({copy.K.tobytes() for copy in copies}) == 4
        for copy in copies:
            np.testing.assert_allclose(copy.logits(), head.logits(), rtol=1e-10, atol=1e-10)
    q, k = (np.concatenate([np.zeros((70, D)), x]) for x in (heads[0].Q, heads[0].K))
    later = moved_by(70, heads[0].rotated(), found.rotary)
    np.testing.assert_allclose(
        later.K, hf.Attention(q, k, position=position).rotated().K[70:], atol=1e-12
    )


def test_maps_hold_up_to_the_length() -> None:
    position = ("rope-half", (0.3, 0.01, 0.003, 0.001))
    heads = [hf.Attention(*pair, position=position, mask="causal") for pair in passages(12)]
    rotary = common_rotary(heads, None)

    def worst(result: hf.results.Compressed) -> float:
        """Return the largest divergence of the held-out passages at any of some positions."""
        kl = []
        for by in (0, 50, 100, 200, 300):
            moved = [moved_by(by, heads[i].rotated(), rotary) for i in result.held_out]
            rows, _, _ = _core.compare_heads(
                [a.core for a in moved], [result.apply(a).core for a in moved], 1
            )
            kl.append(rows.mean())
        return float(max(kl))

    still, moving = (compressed(heads, dim=5, mask=None, length=n) for n in (34, 400))
    assert still.kl < 0.1 * worst(still)
    assert worst(moving) < 0.5 * worst(still)
    assert worst(moving) < 2 * moving.kl


def test_more_tokens_than_the_length_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    given = passages(18)[::3]
    q, k = np.random.default_rng(0).normal(size=(2, 41, D))
    with_rotary, without = (
        compressed(given, dim=2, effort=0, **options)
        for options in ({"position": "rope", "length": 40}, {})
    )
    assert with_rotary.length == 40
    with pytest.warns(UserWarning, match="more than the 40 tokens") as seen:
        with_rotary.apply(q, k, position="rope")
    assert [w.filename for w in seen] == [__file__]
    names = {frame.frame.f_globals["__name__"].split(".")[0] for frame in inspect.stack()}
    monkeypatch.setattr("headfit._compress.maps.INSIDE", names | {"headfit", "contextlib"})
    with pytest.warns(UserWarning, match="more than the 40 tokens"):  # nobody called the package
        with_rotary.apply(q, k, position="rope")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with_rotary.apply(q[:40], k[:40], position="rope")
        without.apply(q, k)


@pytest.mark.parametrize(
    "options",
    [{}, {"mask": "causal", "position": "alibi"}, {"position": "rope", "sinks": 0.3}],
)
@pytest.mark.parametrize(("n", "m", "heads"), [(8, 8, 0), (83, 83, 2), (20, 57, 0)])
def test_one_passage_is_cut_into_its_rows(
    n: int, m: int, heads: int, options: dict[str, Any]
) -> None:
    q = RNG(0).normal(size=(*(heads,) * (heads > 0), n, D))
    whole = hf.Attention(q, RNG(1).normal(size=(m, D)), **options)
    pieces = cut(whole)
    assert len(pieces) == 8
    rows = [np.pad(x, (*((0, 0),) * (x.ndim - 1), (0, m - x.shape[-1])))
            for x in (piece.matrix() for piece in pieces)]  # fmt: skip
    np.testing.assert_allclose(np.concatenate(rows, axis=-2), whole.matrix(), atol=1e-12)


def test_one_long_passage_is_enough() -> None:
    q, k = passages(1, heads=2)[0]
    result = compressed([(q, k)], dim=4)
    assert len(cut(hf.Attention(q, k[:5]))) == 8
    assert not cut(hf.Attention(q, k[:5], mask="causal"))
    assert [x.size for x in (result.calibration, result.validation, result.held_out)] == [4, 2, 2]
    for options in (
        {"mask": ("window", 3)},
        {"bias": np.zeros((24, 24))},
        {"mask": np.ones((24, 24), bool)},
        {"position": "alibi", "mask": None},
    ):
        with pytest.raises(InputError, match=r"at least 2, .* or one of at least 8"):
            compressed([(q, k)], dim=4, **options)
    with pytest.raises(InputError, match=r"at least 2, .* or one of at least 8"):
        compressed([(q[:, :7], k[:7])], dim=4)


def test_positions_that_do_not_fit() -> None:
    given = passages(4)
    both = [
        hf.Attention(*pair, position=x) for pair, x in zip(given, ["rope", None] * 2, strict=True)
    ]
    for refused, options in (
        ("length must go with rotary positions", {"length": 100}),
        ("length must be .* at least 29", {"length": 28, "position": "rope"}),
        ("rotated must not be given beside", {"rotated": "rope", "position": "rope"}),
        ("rotated must be a rotary position", {"rotated": "alibi"}),
    ):
        with pytest.raises(InputError, match=refused):
            compressed(given[:2], dim=3, **options)
    with pytest.raises(InputError, match="the same rotary positions"):
        compressed(both, dim=3, mask=None)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_exported_tensors(dtype: str, tmp_path: Path) -> None:
    torch_file = pytest.importorskip("safetensors")
    rng = RNG(0)
    w_q, w_k = rng.normal(size=(2, 20, D))
    texts = rng.normal(size=(6, 30, 20))
    result = compressed([(x @ w_q, x @ w_k) for x in texts], dim=3, dtype=dtype)
    tensors = result.tensors(w_q, w_k)
    assert set(tensors) == {"P_q", "P_k", "W_Q_P_q", "W_K_P_k"}
    rtol = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 1e-2}[dtype]
    np.testing.assert_allclose(tensors["W_K_P_k"], w_k @ result.P_k, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(tensors["W_Q_P_q"], w_q @ result.P_q, rtol=rtol, atol=rtol)
    result.save(tmp_path / "head.safetensors", w_q, w_k)
    stored = dict(torch_file.deserialize((tmp_path / "head.safetensors").read_bytes()))
    assert set(stored) == set(tensors)
    kinds = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
    assert {tensor["dtype"] for tensor in stored.values()} == {kinds[dtype]}
    result.save(tmp_path / "head.npz", w_q)
    with np.load(tmp_path / "head.npz") as made:
        assert set(made) == {"P_q", "P_k", "W_Q_P_q", "about"}
        np.testing.assert_array_equal(made["P_q"], result.P_q)
    with pytest.raises(InputError, match=r"path must end in \.npz or \.safetensors"):
        result.save(tmp_path / "head.txt")
    with pytest.raises(hf.errors.InputError, match="W_Q must have shape"):
        result.tensors(w_q[:, :4])
    with pytest.raises(InputError, match=f"W_K P must fit {dtype}; got numbers up to "):
        result.tensors(W_K=np.full_like(w_k, 1e300, dtype=float))
    with pytest.raises(NonFiniteError, match="W_K must be finite; got nan"):
        result.tensors(W_K=np.full_like(w_k, np.nan))
    with pytest.raises(InputError, match="position must be that of the result, None; got"):
        result.apply(texts[0] @ w_q, texts[0] @ w_k, position="rope")


def test_maps_after_rotation_do_not_fold_into_weights() -> None:
    result = compressed(passages(8), dim=3, position="rope")
    assert result.position == as_rotary("rope", D).position
    assert compressed(passages(8), dim=3, position="alibi").position is None
    with pytest.raises(hf.errors.InputError, match="W_K must not be given: maps act after rotary"):
        result.tensors(W_K=np.eye(D))


def test_16_bit_passages() -> None:
    given = [tuple(x.astype(np.float16) for x in pair) for pair in passages()]
    wide = [tuple(x.astype(np.float32) for x in pair) for pair in given]
    np.testing.assert_array_equal(compressed(given, dim=3).P_k, compressed(wide, dim=3).P_k)


def test_a_callback_and_a_time_limit_end_descents() -> None:
    steps: list[int] = []

    def stop(step: int, kl: float) -> bool:
        steps.append(step)
        return step < 2

    result = compressed(dim=3, callback=stop)
    assert steps == [0, 1, 2]
    assert result.settings["descents"][3]["status"] == "stopped"
    short = compressed(dim=3, time_limit=1e-6)
    assert short.settings["descents"][3]["status"] == "time limit"
    assert short.tv_mean < 1


BAD: dict[str, tuple[Any, str]] = {
    "one passage": (
        lambda p: ([(p[0][0][:7], p[0][1])], {"dim": 2}),
        "passages must be at least 2.*got 1",
    ),
    "none": (lambda p: ([], {"dim": 2}), "passages must be at least 2.*got 0"),
    "no pairs": (lambda p: ([1, 2], {"dim": 2}), "passages must be pairs .*passage 0 is 1"),
    "an attention": (lambda p: (hf.Attention(*p[0]), {}), "passages must be pairs"),
    "other sizes": (
        lambda p: ([p[0], (p[1][0][:, :4], p[1][1][:, :4])], {}),
        "passages must be of one head; passage 1 has head size 4, passage 0 has 8",
    ),
    "sizes of a pair": (lambda p: ([p[0], (p[1][0], p[1][1][:, :4])], {}), "passage 1: Q and K"),
    "other heads": (
        lambda p: ([p[0], (np.stack([p[1][0]] * 2), p[1][1])], {}),
        r"passage 1 has query heads \(2,\)",
    ),
    "key heads": (
        lambda p: ([(np.stack([q] * 2), np.stack([k] * 2)) for q, k in p], {}),
        "passages must be of one key head",
    ),
    "nan": (
        lambda p: ([*p[:3], (p[3][0], p[3][1] * np.nan)], {}),
        "K of passage 3 must be finite; got nan at row 0, column 0",
    ),
    "empty": (lambda p: ([p[0], (p[1][0][:0], p[1][1])], {}), "passages must not be empty"),
    "scales": (
        lambda p: ([hf.Attention(*pair, scale=0.1 * (i + 1)) for i, pair in enumerate(p)], {}),
        "passage 1 has scale 0.2",
    ),
    "dim": (lambda p: (p, {"dim": 9}), r"dim must lie in 1 \.\.\. 8; got 9"),
    "zero": (lambda p: (p, {"dim": 0}), r"dim must lie in 1 \.\.\. 8; got 0"),
    "both": (lambda p: (p, {"dim": 2, "tv": 0.1}), "tv must not be given beside dim"),
    "tv": (lambda p: (p, {"tv": 1.5}), "tv must lie strictly between 0 and 1"),
    "held_out": (lambda p: (p, {"held_out": 0}), "held_out must lie strictly between 0 and 1"),
    "validation": (lambda p: (p, {"validation": 1}), r"validation must lie in \[0, 1\)"),
    "dtype": (lambda p: (p, {"dtype": "int8"}), "dtype must be one of"),
    "effort": (lambda p: (p, {"effort": "much"}), "effort must be one of"),
    "curve": (lambda p: (p, {"curve_dims": [9]}), r"curve_dims must lie in 1 \.\.\. 8"),
    "K": (
        lambda p: (np.zeros((3, 5, 8)), {"K": np.zeros((2, 5, 8))}),
        r"passages and K must be arrays of as many passages",
    ),
    "mask": (lambda p: (p, {"mask": "casual"}), "passage 0: mask must be"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str) -> None:
    make, message = BAD[case]
    given, options = make(list(passages()))
    with pytest.raises(hf.errors.InputError, match=message):
        hf.compress(given, **options)


def test_bad_input_to_apply() -> None:
    result = compressed(dim=2)
    q, k = passages()[0]
    with pytest.raises(hf.errors.InputError, match="scale must not be given"):
        result.apply(q, k, scale=1.0)
    for scale in (0.5, 5.0):
        with pytest.raises(
            hf.errors.InputError, match=f"scale must be .* passages, .* got {scale:g}"
        ):
            result.apply(hf.Attention(q, k, scale=scale))
    given = result.apply(hf.Attention(q, k, scale=result.original_scale))
    np.testing.assert_array_equal(given.matrix(), result.apply(q, k).matrix())
    with pytest.raises(hf.errors.InputError, match=r"Q must have head size 8 .* got 4"):
        result.apply(q[:, :4], k[:, :4])
    q, k = np.stack([q] * 2), k[np.newaxis]
    shared = compressed([(q, k[0])] * 4, dim=2, effort=0)
    np.testing.assert_array_equal(shared.apply(q, k).logits(), shared.apply(q, k[0]).logits())
    with pytest.raises(InputError, match=r"K be of one key head; .* and K of shape \(2, "):
        shared.apply(q, np.concatenate([k, -k]))


def test_masked_keys_have_no_part_in_the_closed_forms():
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(2, 4, 12, 6))
    there = np.arange(12) < 9
    k[:, ~there] = 1e3
    masked = [hf.Attention(q[i], k[i], key_mask=there) for i in range(4)]
    shorter = [hf.Attention(q[i], k[i, :9]) for i in range(4)]
    a, b = (hf.compress(x, dim=2, curve_dims=(2,), effort=1) for x in (masked, shorter))
    for form in ("kq-svd", "centred"):
        np.testing.assert_allclose(a.curves[form].tv_mean, b.curves[form].tv_mean, rtol=1e-5)


def test_a_key_mask_of_each_passage():
    """A padding mask of (passages, keys), as a tokenizer makes it, is divided among passages."""
    q, k = RNG(4).normal(size=(2, 6, 20, D))
    there = np.arange(20) >= np.array([0, 5, 7, 9, 11, 13])[:, np.newaxis]  # padding on the left
    options = {"dim": 3, "curve_dims": (), "dtype": "float64", "mask": "causal"}
    result = hf.compress(q, k, key_mask=there.astype(int), **options)
    alone = [hf.Attention(q[i], k[i], mask="causal", key_mask=there[i]) for i in range(6)]
    other = hf.compress(alone, **{**options, "mask": None})
    np.testing.assert_array_equal(result.P_k, other.P_k)
    assert result.tv_mean == other.tv_mean
    # The rows that attend to nothing are those of the padding: they count nowhere.
    cut = [(q[i][there[i]], k[i][there[i]]) for i in range(6)]
    shorter = hf.compress(cut, **options)
    np.testing.assert_allclose(result.P_k, shorter.P_k, rtol=1e-3, atol=1e-6)
    assert result.tv_mean == pytest.approx(shorter.tv_mean, rel=1e-4)
    one = hf.compress(q, k, key_mask=there[1], **options)
    same = hf.compress(q, k, key_mask=np.tile(there[1], (6, 1)), **options)
    np.testing.assert_array_equal(one.P_k, same.P_k)
    heads = hf.compress({"a": list(zip(q, k, strict=True))}, key_mask=there, dim=3,
                              mask="causal", dtype="float64")  # fmt: skip
    np.testing.assert_array_equal(heads["a"].P_k, result.P_k)


@pytest.mark.parametrize("heads", [0, 2])
def test_sinks_are_one_more_class(heads):
    given = passages(20, heads=heads)
    sinks = np.array([0.5, 2.0]) if heads else 1.5
    result = compressed(given, dim=3, sinks=sinks, dtype="float64")
    assert result.P_q.shape == ((2, D, 3) if heads else (D, 3))
    tv, kl = [], []
    for i in result.held_out:
        whole, small = (
            np.concatenate([M, 1 - M.sum(axis=-1, keepdims=True)], axis=-1)
            for M in (
                hf.Attention(*(np.float64(x) for x in given[i]), mask="causal", sinks=sinks)
                .matrix(),
                result.apply(*given[i], mask="causal", sinks=sinks).matrix(),
            )
        )  # fmt: skip
        tv.append(np.abs(whole - small).sum(axis=-1).ravel() / 2)
        ratio = np.where(whole > 0, whole, 1) / np.where(whole > 0, small, 1)
        terms = whole * np.log(ratio)
        kl.append(terms.sum(axis=-1).ravel())
    assert result.tv_mean == pytest.approx(np.concatenate(tv).mean(), rel=1e-5)
    assert result.tv_worst == pytest.approx(np.concatenate(tv).max(), rel=1e-5)
    assert result.kl == pytest.approx(np.concatenate(kl).mean(), rel=1e-5)
    # The descent knows of the sink: maps fitted without it leave the attention with it further off.
    plain = compressed(given, dim=3, dtype="float64")
    core = [hf.Attention(*given[i], mask="causal", sinks=sinks).core for i in result.calibration]
    loss = _core.CompressLoss(core, 1)
    without, of_sinks = (
        loss.value(np.vstack([*x.P_q.reshape(-1, D, 3), x.P_k]), 1) for x in (plain, result)
    )
    assert of_sinks < without


def test_sinks_are_those_of_one_head():
    q, k = np.ones((2, 4, 3))
    sunk = [hf.Attention(q, k, sinks=0.5), hf.Attention(q, k, sinks=0.6), hf.Attention(q, k)]
    for pair, said in (((0, 1), "sinks 0.6, passage 0 has 0.5"), ((0, 2), "sinks -inf")):
        with pytest.raises(InputError, match=f"passage 1 has {said}"):
            hf.compress([sunk[i] for i in pair], dim=2)
    with pytest.raises(InputError, match="passage 0: sinks must broadcast"):
        hf.compress([(q, k)] * 3, dim=2, sinks=[0.5, 0.6])
