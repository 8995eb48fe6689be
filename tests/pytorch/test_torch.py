"""headfit.torch: PyTorch computes the fitted attention, and reading gives what it computes."""

from __future__ import annotations

import dataclasses
import inspect
import math

import numpy as np
import pytest
import scipy.sparse as sp

import headfit as hf
from headfit.errors import InputError

torch = pytest.importorskip("torch")
ht = pytest.importorskip("headfit.torch")

N = 24
CAUSAL = [hf.patterns.causal_band(N, 2), hf.patterns.previous_token(N)]
FREE = [hf.patterns.band(N, 1), hf.patterns.random_regular(N, 3, rng=0), hf.patterns.tree(N)]
LOWER = np.tri(N, dtype=bool)
MASKS = {
    "none": (None, FREE),
    "causal": ("causal", CAUSAL),
    "window": (("window", 5), CAUSAL),
    "dense": (LOWER, CAUSAL),
    "sparse": (sp.csr_array(LOWER), CAUSAL),
}


def fits_of(name, dtype="float32", dims=(4, 6, 5)):
    mask, targets = MASKS[name]
    fits = [
        hf.fit(A, dim, mask=mask, dtype=dtype, scale=None if dim == 4 else 0.7)
        for A, dim in zip(targets, dims, strict=False)
    ]
    assert all(fit.certificate.holds for fit in fits)
    return targets, fits


def rounding(fits, dtype):
    """Return the relative change of a weight that rounding of logits this large may make."""
    return 16 * float(np.finfo(dtype).eps) * max(fit.certificate.max_logit for fit in fits)


def in_proj(model):
    return model.module.in_proj_weight.detach().numpy()


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("rng", [None, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_weights_of_torch_certify(name, batch_first, rng, dtype):
    targets, fits = fits_of(name, dtype)
    mask = fits[0].mask
    model = ht.to_multihead_attention(fits, batch_first=batch_first, rng=rng)
    size = (1, N) if batch_first else (N, 1)
    assert model.X.shape == (*size, model.embed_dim)
    assert model.X.dtype == model.module.out_proj.weight.dtype == getattr(torch, dtype)
    assert model.head_dim % 8 == 0
    assert model.head_dim >= 2 * max(model.fitted_dims) > model.head_dim - 8
    assert model.embed_dim == len(fits) * model.head_dim >= 2 * sum(model.fitted_dims)
    with hf.torch.capture(model.module, statistics=False) as read:
        weights = model.weights()
    assert weights.shape == (len(fits), N, N)
    assert weights.dtype == dtype
    assert read["model"].Q.shape == (len(fits), N, model.head_dim)
    slack = rounding(fits, dtype)
    assert slack < 1e-2
    for h, fit in enumerate(fits):
        np.testing.assert_allclose(weights[h], fit.attention.matrix(), atol=slack)
        np.testing.assert_allclose(weights[h], read["model", h].matrix(), atol=slack)
    for h, (A, fit) in enumerate(zip(targets, fits, strict=True)):
        assert hf.certify(A, matrix=weights[h], mask=mask).holds
        assert hf.certify(A, read["model", h]).holds
        # The weights are not only within the tolerances, but as accurate as those of the fit.
        proved = fit.certificate
        tight = {
            "leak": proved.leak * (1 + slack),
            "distortion": (1 + proved.distortion) * (1 + slack) - 1,
        }
        assert hf.certify(A, matrix=weights[h], mask=mask, **tight).holds
        assert not hf.certify(targets[h - 1], matrix=weights[h], mask=mask).holds


def test_the_canonical_module_is_what_its_notes_say():
    _, fits = fits_of("none")
    model = ht.to_multihead_attention(fits, head_dim=24)
    assert (model.head_dim, model.embed_dim, model.fitted_dims) == (24, 72, (4, 6, 5))
    assert set(np.unique(in_proj(model))) == {0, 1}
    X = model.X[:, 0].numpy()
    for h, fit in enumerate(fits):
        own, d = X[:, 24 * h : 24 * (h + 1)], fit.dim
        q, k = own[:, :d], own[:, d : 2 * d]
        t = float(np.abs(k).max() / np.abs(fit.K).max())
        assert math.frexp(t)[0] == 0.5  # a power of two
        np.testing.assert_array_equal(k, t * fit.K)
        np.testing.assert_allclose(t * q / (fit.scale * math.sqrt(24)), fit.Q, rtol=1e-6)
        lengths = [float(np.linalg.norm(part, axis=1).max()) for part in (q, k)]
        assert max(lengths) <= 2.01 * min(lengths)
        assert not own[:, 2 * d :].any()
    # Data in the columns of zeros is moved by the head, and does not change its attention.
    content = torch.randn(N, 12)
    loaded = model.X.clone()
    loaded[:, 0, 24 + 12 : 48] = content
    with torch.no_grad():
        out, weights = model.module(loaded, loaded, loaded, average_attn_weights=False)
    np.testing.assert_array_equal(weights[0].numpy(), model.weights())
    want = model.weights()[1] @ content.numpy()
    np.testing.assert_allclose(out[:, 0, 36:48].numpy(), want, atol=1e-5)


def test_a_rotation_makes_weights_dense_and_turns_the_output():
    _, fits = fits_of("none", "float64")
    plain, mixed = (ht.to_multihead_attention(fits, rng=rng) for rng in (None, 1))
    again = ht.to_multihead_attention(fits, rng=1)
    assert torch.equal(again.X, mixed.X)
    assert torch.equal(again.module.in_proj_weight, mixed.module.in_proj_weight)
    assert (mixed.module.in_proj_weight.abs() > 1e-9).float().mean() > 0.99
    outputs = [model.module(*[model.X] * 3)[0].detach().numpy()[:, 0] for model in (plain, mixed)]
    np.testing.assert_allclose(outputs[0] @ mixed.rotation, outputs[1], atol=1e-9)


@pytest.mark.parametrize("rng", [None, 0])
def test_one_module_many_patterns(rng):
    _, fits = fits_of("none")
    model = ht.to_multihead_attention(fits, rng=rng)
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    mask = "causal"
    fewer = hf.patterns.previous_token(9), hf.patterns.causal_band(9, 1), sp.eye_array(9)
    small = [hf.fit(A, 3, mask=mask) for A in fewer]
    other = model.with_fits(small)
    assert other.module is model.module
    assert other.X.shape == (9, 1, model.embed_dim)
    for A, M in zip(fewer, other.weights(), strict=True):
        assert hf.certify(A, matrix=M, mask=mask, leak=0.051, distortion=0.101).holds
        assert not np.triu(M, 1).any()
    assert all(
        torch.equal(value, before[name]) for name, value in model.module.state_dict().items()
    )
    with pytest.raises(InputError, match="fits must be 3, one a head; got 2"):
        model.with_fits(small[:2])
    with pytest.raises(InputError, match=r"fits\[0\] must have a size of at most 4; got 6"):
        model.with_fits([fits[1], *fits[1:]])


def test_masks_are_turned_round():
    for name in MASKS:
        _, fits = fits_of(name)
        model = ht.to_multihead_attention(fits)
        if name == "none":
            assert model.attn_mask is None
            continue
        allowed = LOWER if name != "window" else LOWER & ~np.tri(N, k=-5, dtype=bool)
        assert model.attn_mask.dtype == torch.bool
        np.testing.assert_array_equal(model.attn_mask.numpy(), ~allowed)


def test_one_fit_narrow_fits_and_fits_of_a_module():
    A = FREE[0]
    narrow = hf.fit(A, 6, dtype="bfloat16")
    dense = hf.fit(A, module=hf.SelfAttention.random(6, rng=0))
    for fit in (narrow, dense):
        model = ht.to_multihead_attention(fit)
        assert (model.head_dim, len(model.fitted_dims)) == (16, 1)
        assert hf.certify(A, matrix=model.weights()[0], leak=0.051, distortion=0.101).holds
    both = ht.to_multihead_attention([narrow, hf.fit(A, 6, dtype="float64")])
    assert both.X.dtype == torch.float64


def test_long_queries_and_short_keys_survive_a_rotation():
    A = FREE[0]
    fit = hf.fit(A, 24, method="max-margin", leak=0.01)
    far = dataclasses.replace(fit, Q=fit.Q * np.float32(2**20), K=fit.K / np.float32(2**20))
    for head in (fit, far):
        M = ht.to_multihead_attention(head, rng=0).weights()[0]
        assert hf.certify(A, matrix=M, leak=0.0101, distortion=0.101).holds


def test_a_module_that_is_cast_takes_its_input_along():
    _, fits = fits_of("window")
    model = ht.to_multihead_attention(fits)
    want = model.weights()
    assert model.module.double() is model.module
    assert model.weights().dtype == np.float64
    np.testing.assert_allclose(model.weights(), want, atol=1e-4)
    model.module.bfloat16()
    assert model.weights().dtype == np.float32
    np.testing.assert_allclose(model.weights(), want, atol=0.3)


def test_a_head_of_zeros():
    fit = hf.fit(np.full((5, 5), 0.2), 2)
    for Q in (fit.Q, 0 * fit.Q):
        model = ht.to_multihead_attention(dataclasses.replace(fit, Q=Q, K=0 * fit.K))
        np.testing.assert_allclose(model.weights(), 0.2, rtol=1e-6)


def test_what_cannot_be_one_module_is_refused():
    _, fits = fits_of("none")
    _, causal = fits_of("causal")
    for wrong, message in (
        (3, "fits must be a Fit or a sequence of them; got int"),
        ([], "fits must hold at least one Fit"),
        ([fits[0], 3], r"fits\[1\] must be a Fit; got int"),
        ([fits[0], hf.fit(np.eye(5), 2)], r"fits\[1\] must have the 24 tokens of fits\[0\]; got 5"),
        ([fits[0], causal[0]], r"fits\[1\] must have the mask of fits\[0\], None.*'causal'"),
    ):
        with pytest.raises(InputError, match=message):
            ht.to_multihead_attention(wrong)
    with pytest.raises(InputError, match="head_dim must be a multiple of 8; got 17"):
        ht.to_multihead_attention(fits, head_dim=17)
    with pytest.raises(InputError, match="head_dim must be an integer of at least 16; got 8"):
        ht.to_multihead_attention(fits, head_dim=8)


# Reading ------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("batched", [False, True])
def test_what_is_read_is_what_torch_computes(batch_first, bias, apart, batched):
    torch.manual_seed(0)
    sizes = {"kdim": 20, "vdim": 12} if apart else {}
    mha = torch.nn.MultiheadAttention(48, 6, bias=bias, batch_first=batch_first, **sizes).eval()
    if bias:
        torch.nn.init.normal_(mha.in_proj_bias)
    lead = (3,) if batched else ()
    x, y, v = (3 * torch.randn(*lead, m, e) for m, e in ((10, 48), (7, 20), (7, 12)))
    if not apart:
        y = v = x
    turned = [t.transpose(0, 1) if batched and not batch_first else t for t in (x, y, v)]
    _, want = mha(*turned, average_attn_weights=False)
    with hf.torch.capture(mha, check=True) as heads:
        mha(*turned)
    head = heads["model"]
    assert head.Q.shape == (*lead, 6, 10, 8)
    assert head.K.shape == (*lead, 6, y.shape[-2], 8)
    assert head.scale == pytest.approx(1 / math.sqrt(8))
    np.testing.assert_allclose(head.matrix(), want.detach().numpy(), atol=1e-5)


def test_grouped_projections_and_biases_are_those_of_linear_layers():
    torch.manual_seed(1)
    query, key = torch.nn.Linear(32, 24, dtype=torch.float64), torch.nn.Linear(32, 8).double()
    X = torch.randn(2, 11, 32, dtype=torch.float64)
    parts = query.weight, key.weight, query.bias, key.bias
    head = ht.from_projections(X, *parts, num_heads=6, num_kv_heads=2, scale=0.3)
    assert (head.Q.shape, head.K.shape, head.scale) == ((2, 6, 11, 4), (2, 2, 11, 4), 0.3)
    q = query(X).reshape(2, 11, 6, 4).transpose(1, 2)
    k = key(X).reshape(2, 11, 2, 4).transpose(1, 2).repeat_interleave(3, dim=1)
    want = torch.softmax(0.3 * q @ k.transpose(2, 3), dim=-1).detach().numpy()
    np.testing.assert_allclose(head.matrix(), want, atol=1e-12)
    arrays = [part.detach().numpy() for part in (X, *parts)]
    options = {"position": "rope", "mask": "causal"}
    from_arrays = ht.from_projections(*arrays, num_heads=6, num_kv_heads=2, **options)
    np.testing.assert_array_equal(from_arrays.Q, head.Q)
    expected = hf.attention_matrix(head.Q, head.K, **options)
    np.testing.assert_array_equal(from_arrays.matrix(), expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_tensors_are_widened_and_not_rounded_back(dtype):
    torch.manual_seed(2)
    kind = getattr(torch, dtype)
    X, W_q, W_k, b = (
        torch.randn(*shape, dtype=kind, requires_grad=True)
        for shape in ((9, 16), (16, 16), (16, 16), (16,))
    )
    head = ht.from_projections(X, W_q, W_k, b, num_heads=2)
    assert [x.dtype for x in head.stored] == [np.float32] * 2
    want = (X.double() @ W_q.double().T + b.double()).reshape(9, 2, 8).transpose(0, 1)
    np.testing.assert_allclose(head.Q, want.detach().numpy(), atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_tensors_on_a_device_are_fetched():
    arrays = torch.randn(9, 16), torch.randn(16, 16), torch.randn(16, 16)
    want = ht.from_projections(*arrays, num_heads=2)
    got = ht.from_projections(*(x.cuda() for x in arrays), num_heads=2)
    np.testing.assert_array_equal(got.Q, want.Q)


def test_bad_layers_are_refused():
    rng = np.random.default_rng(0)
    X, W = rng.normal(size=(5, 8)), rng.normal(size=(8, 8))
    bad = W.copy()
    bad[2, 3] = np.nan
    for arguments, options, message in (
        ((X, W, W), {"num_heads": 3}, r"W_q must be a matrix.*for 3 heads; got \(8, 8\)"),
        ((X[:, :7], W, W), {"num_heads": 2}, "X must have 8 columns, as W_q has"),
        ((X, W, W[:, :7]), {"num_heads": 2}, "X must have 7 columns, as W_k has"),
        ((X, W, W, W[0, :7]), {"num_heads": 2}, r"b_q must have shape \(8,\); got \(7,\)"),
        ((X, W, W), {"num_heads": 4, "num_kv_heads": 3}, "num_kv_heads must divide num_heads, 4"),
        ((X, W, W), {"num_heads": 4, "num_kv_heads": 2}, "heads of one size; got 2 and 4"),
        ((X, W, bad), {"num_heads": 2}, "W_k must be finite; got nan at row 2, column 3"),
        ((X, W, W), {"num_heads": 2, "scale": 0}, "scale must be finite and nonzero"),
        ((X, W, W), {"num_heads": 0}, "num_heads must be an integer of at least 1"),
    ):
        with pytest.raises(InputError, match=message):
            ht.from_projections(*arguments, **options)


def test_public_names_have_examples():
    for name in ht.__all__:
        if inspect.isfunction(getattr(ht, name)):
            assert ">>>" in inspect.getdoc(getattr(ht, name)), name


# Files --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_torch_reads_a_head_from_safetensors(tmp_path, dtype):
    reader = pytest.importorskip("safetensors.torch")
    fit = hf.fit(FREE[0], 6, dtype=dtype)
    tensors = reader.load_file(fit.save(tmp_path / "head.safetensors"))
    assert tensors["Q"].dtype == tensors["K"].dtype == getattr(torch, dtype)
    np.testing.assert_array_equal(tensors["Q"].float().numpy(), fit.Q)
    np.testing.assert_array_equal(tensors["K"].float().numpy(), fit.K)
    kept = hf.load(tmp_path / "head.safetensors")
    model = ht.to_multihead_attention(dataclasses.replace(kept, settings={}))
    np.testing.assert_array_equal(model.weights(), ht.to_multihead_attention(fit).weights())
