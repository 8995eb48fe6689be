"""An `Attention` holds all logit options, and every function that takes one respects them."""

import copy
import pickle

import numpy as np
import pytest
import scipy.sparse as sp

import headfit as hf
from headfit._attention.heads import single_heads
from headfit.errors import InputError

RNG = np.random.default_rng
N, D = 24, 6
Q, K, V = RNG(0).standard_normal((3, N, D))
OPTIONS = {
    "plain": {},
    "scale": {"scale": 0.3},
    "causal": {"mask": "causal"},
    "window": {"mask": ("window", (3, 2))},
    "dense mask": {"mask": (RNG(1).random((N, N)) < 0.7) | np.eye(N, dtype=bool)},
    "sparse mask": {
        "mask": sp.csr_array(RNG(2).random((N, N)) < 0.4) + sp.eye_array(N).tocsr() > 0
    },
    "lengths": {"key_lengths": 17},
    "bias": {"bias": RNG(3).standard_normal((N, N))},
    "softcap": {"softcap": 1.5},
    "rope": {"position": "rope"},
    "rope-half": {"position": ("rope-half", 500.0)},
    "alibi": {"position": ("alibi", 0.2), "mask": "causal"},
    "keys": {"key_mask": RNG(5).integers(0, 2, N)},
    "sinks": {"sinks": 1.25},
    "all": {"scale": 2.0, "mask": "causal", "key_lengths": 20, "softcap": 3.0, "position": "rope"},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_methods_and_functions_are_one(options):
    head = hf.Attention(Q, K, **options)
    for rows in (None, slice(3, 9), [5, -1]):
        np.testing.assert_array_equal(
            head.matrix(rows=rows), hf.attention_matrix(Q, K, rows=rows, **options)
        )
        if "sinks" not in options:
            np.testing.assert_array_equal(
                head.logits(rows=rows), hf.attention_logits(Q, K, rows=rows, **options)
            )
        np.testing.assert_array_equal(
            head.apply(V, rows=rows), hf.attention_apply(Q, K, V, rows=rows, **options)
        )
    kept, same = head.topk(4), hf.attention_topk(Q, K, 4, **options)
    np.testing.assert_array_equal(kept.toarray(), same.toarray())
    np.testing.assert_array_equal(head.stats().entropy, hf.attention_stats(Q, K, **options).entropy)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_readers_take_an_attention_with_its_options(options):
    head = hf.Attention(Q, K, **options)
    matrix = head.matrix()
    for name, values in hf.describe(head).columns().items():
        np.testing.assert_array_equal(values, hf.describe(Q, K, **options).columns()[name])
    kept = hf.sparsify(head, per_row=3, per_column=6, on_empty="keep-max")
    same = hf.sparsify(Q, K, per_row=3, per_column=6, on_empty="keep-max", **options)
    np.testing.assert_array_equal(kept.matrix.toarray(), same.matrix.toarray())
    if "sinks" not in options:  # rows of a target that is a matrix sum to 1
        assert hf.compare(matrix, head).tv_worst < 1e-12
    assert hf.compare(head, hf.Attention(Q, K, **options)).tv_worst < 1e-12


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_shrink_aims_at_the_attention_with_its_options(options):
    """The reported distances of the smaller head are from the matrix with all options."""
    head = hf.Attention(Q, K, **options)
    if "sinks" in options:
        with pytest.raises(InputError, match="must have no sinks"):
            hf.shrink(head, dim=4)
        return
    rows = head.matrix()
    asks = rows.any(axis=1)
    small = hf.shrink(head, dim=4, curve_dims=(), effort="low")
    tv = 0.5 * np.abs(rows - small.attention.matrix()).sum(axis=1)
    assert small.tv_mean == pytest.approx(tv[asks].mean(), abs=1e-5)
    # Keys that may not be attended to stay so.
    assert not small.attention.matrix()[rows == 0].any()


def test_results_with_a_head_are_heads():
    head = hf.shrink(hf.Attention(Q, K, mask="causal"), dim=4, effort="low")
    small = hf.shrink(head, dim=3, effort="low", mask="causal")
    np.testing.assert_array_equal(small.Q, hf.shrink(head.attention, dim=3, effort="low").Q)


@pytest.mark.parametrize("name", ["bias", "softcap"])
def test_shrink_to_the_head_s_own_size_does_not_leave_options_out(name):
    head = hf.Attention(4 * Q, K, **OPTIONS[name])
    tv = [hf.shrink(head, dim=d, curve_dims=(), effort="low").tv_mean for d in (D - 1, D)]
    assert tv[1] <= tv[0]


def test_shrink_starts_from_rotated_queries():
    """A head with as many dimensions as the original reproduces it at once."""
    head = hf.Attention(Q, K, position="rope")
    assert hf.shrink(head, dim=D, effort="low", dtype="float64").tv_worst < 1e-6


@pytest.mark.parametrize("kind", ["rope", "rope-half"])
@pytest.mark.parametrize(("n", "m"), [(N, N), (5, N), (N, 5)])
def test_rotated_is_the_same_attention_without_positions(kind, n, m):
    head = hf.Attention(Q[:n], K[:m], position=(kind, 100.0), softcap=2.0, mask="causal")
    rotated = head.rotated()
    assert rotated.position is None
    assert rotated.softcap == 2.0
    np.testing.assert_allclose(rotated.matrix(), head.matrix(), atol=1e-14)


def test_rotated_leaves_what_has_no_rotary_positions():
    for head in (hf.Attention(Q, K), hf.Attention(Q, K, position=("alibi", 0.5))):
        assert head.rotated() is head


def test_rotated_heads_can_be_certified():
    A = np.eye(N)
    head = hf.Attention(40 * Q, Q, position="rope")
    with pytest.raises(InputError, match=r"has position too; attention.rotated\(\) applies"):
        hf.certify(A, head)
    rotated = head.rotated()
    certificate = hf.certify(A, head.rotated(), leak=0.5, distortion=0.1)
    assert certificate.max_logit >= np.abs(rotated.logits()).max()


@pytest.mark.parametrize("name", ["bias", "softcap", "lengths", "rope", "alibi", "keys", "sinks"])
def test_certify_says_what_it_cannot_speak_about(name):
    options = OPTIONS[name]
    what = next(key for key in options if key != "mask")
    if name not in ("bias", "softcap"):
        words = f"certify speaks about .* this attention has {what} too"
        with pytest.raises(InputError, match=words):
            hf.certify(np.eye(N), hf.Attention(Q, K, **options))
    with pytest.raises(InputError, match=f"append_dims speaks about .* has {what} too"):
        hf.methods.append_dims(np.eye(N), hf.Attention(Q, K, **options), [0])


def test_any_byte_but_0_is_true():
    rng = RNG(9)
    flags = rng.choice(np.array([0, 1, 2, 128, 255], np.uint8), size=(N, N))
    flags[:, 0] = 2
    flags, want = flags.view(bool), flags != 0
    rows, columns = np.indices((N, N))
    stored = sp.csr_array((flags.ravel(), (rows.ravel(), columns.ravel())), shape=(N, N))
    for mask in (flags, stored):
        got, expected = (hf.attention_matrix(Q, K, mask=m) for m in (mask, want))
        np.testing.assert_array_equal(got, expected)
    got, expected = (hf.attention_matrix(Q, K, key_mask=m[3]) for m in (flags, want))
    np.testing.assert_array_equal(got, expected)


def test_rotated_keeps_all_other_options():
    keys, sink = RNG(6).integers(0, 2, N), np.array(0.5)
    head = hf.Attention(Q, K, position="rope", key_mask=keys, sinks=sink)
    rotated = head.rotated()
    np.testing.assert_array_equal(rotated.key_mask, keys == 1)
    assert rotated.sinks == 0.5
    np.testing.assert_allclose(rotated.matrix(), head.matrix(), atol=1e-14)


def test_arrays_given_beside_an_attention_are_compared_by_value():
    keys = RNG(6).integers(0, 2, N)
    head = hf.Attention(Q, K, key_mask=keys, sinks=1, key_lengths=20)
    assert hf.describe(head, key_mask=keys, sinks=[1.0][0], key_lengths=20).n == N
    for other in ({"key_mask": 1 - keys}, {"sinks": 2.0}, {"key_lengths": 19}):
        (name,) = other
        for given in (head, hf.Attention(Q, K)):
            with pytest.raises(InputError, match=f"{name} must not be given beside"):
                hf.describe(given, **other)


def test_single_heads_have_the_options_of_their_stack():
    rng = RNG(7)
    q, k = rng.standard_normal((2, 4, N, D)), rng.standard_normal((2, 2, N, D))
    stacks = [
        {"mask": rng.random((2, 1, N, N)) < 0.7, "sinks": rng.standard_normal(4)},
        {"key_mask": rng.random((2, N)) < 0.7, "bias": rng.standard_normal((4, N, N))},
        {"key_lengths": [9, 20], "position": "alibi", "softcap": 2.0},
        {"mask": "causal", "position": ("alibi", [0.1, 0.2, 0.3, 0.4]), "sinks": 1.0},
        {"mask": sp.csr_array(rng.random((N, N)) < 0.5), "position": "rope", "scale": 0.3},
        {"mask": rng.random((1, N)) < 0.7, "key_mask": rng.random((2, 4, N)) < 0.7},
    ]
    for options in stacks:
        stack = hf.Attention(q, k, **options)
        heads = np.stack([head.matrix() for head in single_heads(stack)])
        np.testing.assert_array_equal(heads.reshape((2, 4, N, N)), stack.matrix())
    shared = hf.Attention(q[0], k[0, 0], sinks=rng.standard_normal(4))
    heads = np.stack([head.matrix() for head in single_heads(shared)])
    np.testing.assert_array_equal(heads, shared.matrix())


def test_compare_counts_what_a_sink_takes_as_one_more_key():
    rng = RNG(8)
    keys = rng.random(N) < 0.8
    for mine, theirs in ((0.5, 2.0), (-np.inf, 1.0), (3.0, -40.0), (60.0, 61.0)):
        one = hf.Attention(Q, K, sinks=mine, mask="causal")
        other = hf.Attention(V, K, sinks=theirs)
        a, m = (
            np.column_stack([w, 1 - w.sum(axis=1)])
            for w in (x.matrix().astype(np.float64) for x in (one, other))
        )
        a[:, -1], m[:, -1] = (
            np.exp(s - x.stats().log_sum) for s, x in ((mine, one), (theirs, other))
        )
        found = hf.compare(one, other)
        np.testing.assert_allclose(found.row_tv, np.abs(a - m).sum(axis=1) / 2, atol=1e-12)
        some = a > 0
        terms = np.where(some, a * (np.log(np.where(some, a, 1)) - np.log(m)), 0)
        np.testing.assert_allclose(found.row_kl, terms.sum(axis=1), rtol=1e-9, atol=1e-12)
    plain = hf.compare(one, hf.Attention(Q, K, key_mask=keys))
    assert np.isinf(plain.kl_worst)


def test_sparsify_does_not_depend_on_sinks():
    head = hf.Attention(Q, K, mask="causal")
    for sink in (-5.0, 0.0, 300.0):
        for bounds in ({"per_row": 2, "per_column": 3}, {"mass": 0.9}):
            for method in ("greedy", "exact")[: 2 if "per_row" in bounds else 1]:
                kept, same = (
                    hf.sparsify(x, method=method, on_empty="keep-max", **bounds)
                    for x in (head, hf.Attention(Q, K, mask="causal", sinks=sink))
                )
                np.testing.assert_array_equal(kept.matrix.toarray(), same.matrix.toarray())
                np.testing.assert_array_equal(kept.dropped_mass, same.dropped_mass)


@pytest.mark.parametrize(
    "options",
    [{"scale": 2.0}, {"mask": "causal"}, {"bias": np.zeros((N, N))}, {"softcap": 1.0}],
    ids=["scale", "mask", "bias", "softcap"],
)
@pytest.mark.parametrize("reader", [hf.describe, lambda *a, **o: hf.sparsify(*a, per_row=2, **o)])
def test_options_beside_an_attention_are_refused(reader, options):
    (name,) = options
    with pytest.raises(InputError, match=f"{name} must not be given beside an Attention"):
        reader(hf.Attention(Q, K), **options)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_same_options_again_are_fine(options):
    """They are compared by value, not as objects."""
    head = hf.Attention(Q, K, **options)
    assert hf.describe(head, **copy.deepcopy(options)).n == N
    for name, value in options.items():
        with pytest.raises(InputError, match=f"{name} must not be given beside an Attention"):
            hf.describe(hf.Attention(Q, K), **{name: value})


def test_a_bias_in_bfloat16_is_compared_by_value():
    torch = pytest.importorskip("torch")
    values = np.arange(N, dtype=np.float32)
    for head in (
        hf.Attention(Q, K, bias=torch.from_numpy(values).bfloat16()),
        hf.Attention(Q, K, bias=values),
    ):
        for same in (values, torch.from_numpy(values).bfloat16(), values.astype(np.float16)):
            assert hf.describe(head, bias=same).n == N
        for other in (values + 1, torch.from_numpy(values + 1).bfloat16()):
            with pytest.raises(InputError, match="bias must not be given beside an Attention"):
                hf.describe(head, bias=other)


@pytest.mark.parametrize(
    ("mine", "other"),
    [
        ({"softcap": 2.0}, 3.0),
        ({"bias": np.zeros(N)}, np.ones(N)),
        ({"position": "rope"}, "rope-half"),
        ({"position": ("rope", (1.0, 0.1, 0.01))}, ("rope", (1.0, 0.1, 0.02))),
        ({"position": ("alibi", 0.5)}, ("alibi", 0.25)),
    ],
    ids=str,
)
def test_other_values_beside_an_attention_are_refused(mine, other):
    (name,) = mine
    with pytest.raises(InputError, match=f"{name} must not be given beside an Attention"):
        hf.describe(hf.Attention(Q, K, **mine), **{name: other})


def test_an_attention_is_never_changed():
    head = hf.Attention(Q, K, mask="causal")
    for name in ("mask", "scale", "stored", "errors"):
        with pytest.raises(AttributeError, match=r"cannot (assign to|delete) field"):
            setattr(head, name, None)
        with pytest.raises(AttributeError, match=r"cannot (assign to|delete) field"):
            delattr(head, name)


def test_what_is_shown_is_what_is_computed_with():
    """After a user changes the arrays that were given, numbers and mask still belong together."""
    base = np.array(np.transpose(RNG(4).standard_normal((D, N))))  # its rows are not contiguous
    strided = np.asfortranarray(base)
    mask = sp.csr_array(np.tril(np.ones((N, N), dtype=bool)))
    lengths = np.array(20)
    head = hf.Attention(strided, K, mask=mask, key_lengths=lengths)
    before = head.matrix()
    strided[:] = 0
    mask.data[:] = False
    lengths[...] = 3
    np.testing.assert_array_equal(head.matrix(), before)
    again = hf.attention_matrix(head.Q, head.K, mask=head.mask, key_lengths=head.key_lengths)
    np.testing.assert_array_equal(again, before)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_copies_and_pickles_compute_the_same(options):
    head = hf.Attention(Q, K, **options)
    expected = head.matrix()
    for other in (copy.copy(head), copy.deepcopy(head), pickle.loads(pickle.dumps(head))):
        np.testing.assert_array_equal(other.matrix(), expected)
        assert repr(other) == repr(head)


def test_the_text_names_its_options():
    text = repr(hf.Attention(Q, K, bias=np.zeros((N, N)), softcap=2.0))
    assert text == (
        "Attention(Q (24, 6), K (24, 6), dtype float64, scale 0.408248, mask None, "
        "with bias, softcap)"
    )


def test_lengths_show_what_is_computed():
    head = hf.Attention(np.ones((2, 3, 3)), np.ones((2, 3, 3)), key_lengths=[2, 3])
    with pytest.raises(ValueError, match="read-only"):
        head.key_lengths[0] = 1


def test_one_number_is_the_length_of_a_single_head():
    Q, K = np.random.default_rng(0).normal(size=(2, 60, 8))
    M = hf.attention_matrix(Q, K, key_lengths=40)
    np.testing.assert_array_equal(M[:, :40], hf.attention_matrix(Q, K[:40]))
    assert not M[:, 40:].any()


@pytest.mark.parametrize("mask", [("window", 3, 4), ("window",), ("band", 3)])
def test_words_for_masks_are_named(mask):
    with pytest.raises(InputError, match=r"mask must be .*window.*got"):
        hf.attention_matrix(np.eye(5), np.eye(5), mask=mask)
