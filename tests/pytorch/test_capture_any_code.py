"""`capture` reads any PyTorch code that computes attention by the functions of PyTorch."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

import headfit as hf
from headfit.errors import CaptureError, InputError

torch = pytest.importorskip("torch")
ht = pytest.importorskip("headfit.torch")
F = torch.nn.functional

N, E, H = 9, 16, 2


def encoder(norm_first=False, batch_first=True, layers=2):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(
        E, H, 32, dropout=0.0, batch_first=batch_first, norm_first=norm_first
    )
    return torch.nn.TransformerEncoder(
        layer, layers, enable_nested_tensor=batch_first and not norm_first
    ).eval()


def padding_of(side, batch=3):
    padding = torch.zeros(batch, N, dtype=torch.bool)
    if side == "left":
        padding[0, :3] = padding[2, :1] = True
    elif side == "right":
        padding[0, -3:] = padding[2, -1:] = True
    return padding


class Asked:
    """The weights of MultiheadAttention modules, from the arguments that they are called with."""

    def __init__(self, model):
        self.modules = {
            name: m
            for name, m in model.named_modules()
            if isinstance(m, torch.nn.MultiheadAttention)
        }
        self.calls = {}
        self.removed = [
            m.register_forward_pre_hook(self.remember(name), with_kwargs=True)
            for name, m in self.modules.items()
        ]

    def remember(self, name):
        def hook(module, args, kwargs):
            self.calls[name] = (args, dict(kwargs))

        return hook

    def weights(self, name):
        for handle in self.removed:
            handle.remove()
        args, kwargs = self.calls[name]
        kwargs |= {"need_weights": True, "average_attn_weights": False, "is_causal": False}
        return self.modules[name](*args, **kwargs)[1].detach().numpy()


@pytest.mark.parametrize("side", ["none", "left", "right"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.filterwarnings("ignore:.*nested tensors:UserWarning")
def test_a_transformer_encoder(norm_first, batch_first, causal, side):
    model, padding = encoder(norm_first, batch_first), padding_of(side)
    x = torch.randn(3, N, E)
    x = x if batch_first else x.transpose(0, 1)
    given = {"src_key_padding_mask": None if side == "none" else padding}
    if causal:
        given["mask"] = torch.triu(torch.ones(N, N, dtype=torch.bool), 1)
    with torch.no_grad():
        expected = model(x, **given)
    asked = Asked(model)
    with torch.no_grad(), hf.torch.capture(model, check=True) as heads:
        found = model(x, **given)
    real = (~padding).numpy()
    both = [(y if batch_first else y.transpose(0, 1)).numpy()[real] for y in (found, expected)]
    sound = np.isfinite(both[1]).all(axis=-1)  # the fused path gives NaN for rows without a key
    assert sound.all() or (causal and side == "left")
    # The fused path rounds in another way.
    np.testing.assert_allclose(*(y[sound] for y in both), atol=2e-6)
    assert [layer.name for layer in heads.layers] == ["layers.0.self_attn", "layers.1.self_attn"]
    for layer in heads.layers:
        assert layer.kind == "self"
        assert layer.deviation < 1e-6
        ours = heads[layer.name].matrix().transpose(0, 2, 1, 3)[real]
        theirs = asked.weights(layer.name).transpose(0, 2, 1, 3)[real]
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert set(heads.table().numbers["rows"].tolist()) == {int(real.sum())}
    assert heads.table().distances["layers.0.self_attn"].shape == (H, N)


@pytest.mark.filterwarnings("ignore:.*nested tensors:UserWarning")
def test_an_encoder_without_a_fused_path_has_the_same_output():
    model, x = encoder(), torch.randn(3, N, E, requires_grad=True)
    expected = model(x)
    with hf.torch.capture(model):
        assert torch.equal(model(x), expected)
    model.train()
    expected = model(x)
    with hf.torch.capture(model):
        found = model(x)
    assert torch.equal(found, expected)
    found.sum().backward()  # the graph is as it was


def test_a_whole_transformer_has_self_and_cross_attention():
    torch.manual_seed(0)
    model = torch.nn.Transformer(E, H, 1, 1, 32, dropout=0.0, batch_first=True).eval()
    source, target = torch.randn(2, 7, E), torch.randn(2, N, E)
    padding = torch.zeros(2, 7, dtype=torch.bool)
    padding[0, 5:] = True
    lower = torch.nn.Transformer.generate_square_subsequent_mask(N)
    given = {"memory_key_padding_mask": padding, "tgt_mask": lower, "tgt_is_causal": True}
    expected = model(source, target, **given)
    with hf.torch.capture(model, check=True) as heads:
        found = model(source, target, **given)
    assert torch.allclose(found, expected, atol=1e-6)
    assert {layer.name: layer.kind for layer in heads.layers} == {
        "encoder.layers.0.self_attn": "self",
        "decoder.layers.0.self_attn": "self",
        "decoder.layers.0.multihead_attn": "cross",
    }
    assert heads["decoder.layers.0.self_attn"].mask == "causal"
    cross = heads["decoder.layers.0.multihead_attn"]
    assert (cross.n, cross.m) == (N, 7)
    assert (cross.matrix()[0, :, :, 5:] == 0).all()
    assert heads.table().numbers["rows"].tolist() == [14, 14, 18, 18, 18, 18]


def test_the_mask_of_cross_attention_with_padding_is_that_of_the_batch():
    torch.manual_seed(0)
    model, x = torch.nn.MultiheadAttention(E, H, batch_first=True).eval(), torch.randn(2, 6, E)
    padding = torch.tensor([[0, 0, 0, 0, 1, 1]] * 2).bool()
    holes = torch.ones(6, 6).triu(1).bool()
    holes[4, 1] = holes[5, 2] = True
    for batch, masked in ((2, torch.ones(6, 6).triu(1).bool()), (2, holes), (1, holes)):
        y = x[:batch]
        given = {"key_padding_mask": padding[:batch], "attn_mask": masked}
        with hf.torch.capture(model, check=True) as heads:
            _, weights = model(y, y.clone(), y, **given, average_attn_weights=False)
        found = heads[0].matrix().reshape(weights.shape)
        np.testing.assert_allclose(found, weights.detach(), atol=1e-6)


def test_functions_of_transformers_that_are_looked_up_as_items():
    functions = pytest.importorskip("transformers").modeling_utils.ALL_ATTENTION_FUNCTIONS
    before = functions["sdpa"]

    class Layer(torch.nn.Module):
        num_key_value_groups, is_causal = 2, True

        def __init__(self):
            super().__init__()
            self.function = None

        def forward(self, q, k, mask):
            self.function = self.function or functions["sdpa"]
            return self.function(self, q, k, k, mask, dropout=0.0, scaling=0.5)[0]

    model, generator = Layer().eval(), torch.Generator().manual_seed(0)
    with hf.torch.capture(model, check=True) as heads:
        for n, m in ((6, 6), (1, 7)):
            q, k = (torch.randn(1, h, t, 4, generator=generator) for h, t in ((4, n), (2, m)))
            model(q, k, torch.ones(n, m, dtype=torch.bool).tril(m - n)[None, None])
    assert [heads[0, :, call].stored[0].shape for call in (0, 1)] == [(4, 6, 4), (4, 1, 4)]
    assert heads.layers[0].key_heads == 2
    assert functions["sdpa"] is before
    model(q, k, None)
    assert heads.layers[0].calls == 2


def test_masks_of_many_layers_are_not_all_kept():
    seen = []

    class Layer(torch.nn.Module):
        def forward(self, x):
            mask = torch.ones(20, 20, dtype=torch.bool).tril()
            seen.append(weakref.ref(mask))
            return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    model = torch.nn.Sequential(*(Layer() for _ in range(9)))
    held = []
    model[-1].register_forward_hook(lambda *_: held.append(sum(m() is not None for m in seen)))
    with hf.torch.capture(model):
        model(torch.randn(2, 2, 20, 4))
    assert held == [5]


class Attend(torch.nn.Module):
    """A module written by hand, which computes attention with some options."""

    def __init__(self, **options):
        super().__init__()
        self.options = options
        self.eval()

    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, **self.options)


class Outer(torch.nn.Module):
    def __init__(self, *parts):
        super().__init__()
        self.parts = torch.nn.ModuleList(parts)
        self.eval()

    def forward(self, q, k, v):
        return [part(q, k, v) for part in self.parts]


SHAPES = {
    "plain": ({}, (2, 3, 5, 4), (2, 3, 5, 4)),
    "one": ({}, (1, 1, 5, 4), (1, 1, 5, 4)),
    "causal": ({"is_causal": True}, (2, 3, 5, 4), (2, 3, 5, 4)),
    "causal, more keys": ({"is_causal": True}, (2, 3, 3, 4), (2, 3, 6, 4)),
    "causal, fewer keys": ({"is_causal": True}, (2, 3, 6, 4), (2, 3, 4, 4)),
    "scale": ({"scale": 0.9}, (2, 3, 5, 4), (2, 3, 6, 4)),
    "grouped": ({"enable_gqa": True}, (2, 6, 5, 4), (2, 2, 5, 4)),
    "matrices": ({}, (5, 4), (6, 4)),
    "a batch of single heads": ({"is_causal": True}, (3, 5, 4), (3, 5, 4)),
    "two batch axes": ({}, (2, 2, 3, 5, 4), (2, 2, 3, 5, 4)),
    "boolean mask": ({"attn_mask": torch.rand(5, 6) < 0.7}, (2, 3, 5, 4), (2, 3, 6, 4)),
    "mask of each batch entry": (
        {"attn_mask": torch.rand(2, 1, 5, 6) < 0.7},
        (2, 3, 5, 4),
        (2, 3, 6, 4),
    ),
    "mask of each head": ({"attn_mask": torch.rand(3, 5, 6) < 0.7}, (2, 3, 5, 4), (2, 3, 6, 4)),
    "mask of each single head": (
        {"attn_mask": torch.rand(3, 5, 6) < 0.7},
        (3, 5, 4),
        (3, 6, 4),
    ),
    "bias": ({"attn_mask": torch.randn(1, 3, 5, 6)}, (2, 3, 5, 4), (2, 3, 6, 4)),
    "bias and mask": (
        {"attn_mask": torch.randn(2, 3, 5, 6).masked_fill(torch.rand(2, 3, 5, 6) < 0.3, -np.inf)},
        (2, 3, 5, 4),
        (2, 3, 6, 4),
    ),
    "bias for each key": ({"attn_mask": torch.randn(2, 1, 1, 6)}, (2, 3, 5, 4), (2, 3, 6, 4)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_module_written_by_hand(name):
    options, q, k = SHAPES[name]
    if "attn_mask" in options and options["attn_mask"].dtype == torch.bool:
        options["attn_mask"][..., 0] = True  # every query sees a key
    torch.manual_seed(2)
    Q, K, V = torch.randn(q), torch.randn(k), torch.randn(*k[:-1], 3)
    model = Outer(Attend(**options), Attend())
    if name == "grouped":
        model = Outer(Attend(**options))
    expected = model(Q, K, V)
    with hf.torch.capture(model, check=True) as heads:
        found = model(Q, K, V)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert heads.layers[0].name == "parts.0"
    whole = heads[0]
    kept = V[..., : whole.m, :]
    ours = whole.apply(kept.reshape(*whole.stored[1].shape[:-1], 3).numpy())
    np.testing.assert_allclose(ours, expected[0].reshape(ours.shape), atol=1e-6)
    for head in range(heads.layers[0].heads):
        one = heads[0, head].matrix()
        every = whole.matrix()
        np.testing.assert_array_equal(one, every[..., head, :, :])


def test_several_attentions_of_a_module_are_layers_of_their_own():
    class Twice(torch.nn.Module):
        def forward(self, x):
            y = F.scaled_dot_product_attention(x, x, x)
            return F.scaled_dot_product_attention(y, y, y, is_causal=True)

    model, x = Twice(), torch.randn(2, 3, 5, 4)
    with hf.torch.capture(model) as heads:
        model(x)
        model(x)
    assert [(layer.name, layer.calls) for layer in heads.layers] == [("model", 2), ("model#2", 2)]
    assert [*heads] == ["model", "model#2"]
    assert heads["model#2", 0, 1].mask == "causal"
    with pytest.raises(InputError, match=r"was called 2 times: ask for heads\[layer, head, call\]"):
        heads["model", 0]


def test_only_the_model_is_captured():
    model, other = Attend(), Attend()
    x = torch.randn(1, 1, 4, 2)
    with hf.torch.capture(model) as heads:
        other(x, x, x)
        F.scaled_dot_product_attention(x, x, x)
        with pytest.raises(CaptureError, match="nothing was captured yet"):
            heads.table()
        with pytest.raises(CaptureError, match="nothing was captured yet"):
            heads[0]
        with pytest.raises(CaptureError, match="nothing was captured yet"):
            heads.passages()
    assert heads.layers == ()
    assert "model" not in heads


def hooks(model):
    return [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules()]


def test_exceptions_leave_the_model_as_it_was():
    model, x = Outer(Attend(), Attend(attn_mask=torch.ones(3, 3))), torch.randn(1, 1, 4, 2)
    before = hooks(model)

    def captured():
        with hf.torch.capture(model):
            assert hooks(model) != before
            model(x, x, x)

    with pytest.raises(CaptureError, match=r"parts.1: the mask must broadcast to .* \(3, 3\)"):
        captured()
    assert hooks(model) == before
    fine = Outer(Attend())
    with hf.torch.capture(fine) as heads:
        with pytest.raises(CaptureError, match="head size"):
            fine(x, x[..., :1], x)
        fine(x, x, x)  # the place in the model is known again
    assert [layer.name for layer in heads.layers] == ["parts.0"]


def test_captures_are_nested_and_repeated():
    model, x = encoder(), torch.randn(2, N, E, requires_grad=True)
    with hf.torch.capture(model) as outer:
        with hf.torch.capture(model.layers[1], keep=0) as inner:
            model(x)
        with hf.torch.capture(model) as again:
            model(x)
    assert [(layer.name, layer.calls) for layer in outer.layers] == [
        ("layers.0.self_attn", 2),
        ("layers.1.self_attn", 2),
    ]
    assert [(layer.name, layer.kept) for layer in inner.layers] == [("self_attn", 0)]
    np.testing.assert_array_equal(again[1].matrix(), outer[1, :, 1].matrix())
    assert inner.table().numbers["entropy"] == pytest.approx(again.table().numbers["entropy"][2:])


def test_what_is_kept():
    model = Outer(*(Attend() for _ in range(3)))
    x, y = torch.randn(2, 4, 5, 3), torch.randn(2, 4, 7, 3)
    with hf.torch.capture(model, keep=11, keep_layers=["parts.0", 2]) as heads:
        model(x, x, x)
        with pytest.warns(UserWarning, match="a call of 14 tokens is not kept"):
            model(y, y, y)
        model(x, x, x)
    assert [layer.kept for layer in heads.layers] == [1, 0, 1]
    one = heads[2, 3, 0]
    np.testing.assert_array_equal(one.Q, x[:, 3])
    assert one.lead == (2,)
    x.zero_()  # what is kept is a copy
    assert (one.Q != 0).all()
    with pytest.raises(CaptureError, match=r"call 1 of parts.0 was not kept: .* keep=11 tokens"):
        heads[0, 1, 1]
    with pytest.raises(CaptureError, match=r"call 0 of parts.1 was not kept"):
        heads[1, 1, 0]
    assert heads[0, :, 0].lead == (2, 4)
    for wrong in (5, -1, "x", 1.5):
        with pytest.raises(InputError, match=r"layer|heads"):
            heads[wrong, 0, 0]
    with pytest.raises(InputError, match=r"head must lie in 0 \.\.\. 3"):
        heads[0, 4, 0]
    with pytest.raises(InputError, match=r"call must lie in 0 \.\.\. 2"):
        heads[0, 0, 3]
    assert heads.table().numbers["rows"].tolist() == [34] * 12
    with (
        pytest.raises(CaptureError, match=r"keep_layers has 'parts\.7'"),
        hf.torch.capture(model, keep_layers=["parts.7"]),
    ):
        model(x, x, x)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"keep": "all"}, "keep must be an integer of at least 0; got 'all'"),
        ({"keep": -1}, "keep must be an integer of at least 0; got -1"),
        ({"keep": None}, "keep must be an integer of at least 0; got None"),
        ({"keep_layers": 1}, "keep_layers must be a sequence; got 1"),
        ({"keep_layers": "a"}, "keep_layers must be a sequence; got 'a'"),
        ({"keep_layers": []}, r"keep_layers must name at least one; got \[\]"),
        ({"keep_layers": [-1]}, "keep_layers must be an integer of at least 0; got -1"),
        ({"statistics": 1}, "statistics must be True or False"),
        ({"share": 2}, "share must lie in"),
        ({"num_threads": 0}, "num_threads must"),
        ({"check": None}, "check must be True or False"),
    ],
)
def test_arguments_are_checked(wrong, message):
    model = Attend()
    with pytest.raises(InputError, match=message), hf.torch.capture(model, **wrong):
        pytest.fail("the context was entered")
    assert hooks(model) == [0]


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_what_cannot_be_captured_is_refused():
    x = torch.randn(2, 4, E)
    with pytest.raises(InputError, match=r"model must be a torch.nn.Module; got function"):
        hf.torch.capture(lambda x: x).__enter__()
    with pytest.raises(CaptureError, match="ScriptModule"):
        hf.torch.capture(torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2))).__enter__()
    with pytest.raises(CaptureError, match="compiled"):
        hf.torch.capture(torch.compile(encoder())).__enter__()
    with pytest.raises(CaptureError, match="evaluation mode"):
        hf.torch.capture(encoder().train(), check=True).__enter__()
    for option in ("add_bias_kv", "add_zero_attn"):
        model = torch.nn.MultiheadAttention(E, H, batch_first=True, **{option: True})
        with (
            hf.torch.capture(model),
            pytest.raises(CaptureError, match=r"model: .* with (bias_k|add)"),
        ):
            model(x, x, x)
    with (
        pytest.raises(CaptureError, match="the model ran, but computed no attention"),
        hf.torch.capture(torch.nn.Linear(E, 2)) as heads,
    ):
        heads._model(x)
    model = Attend()
    bad = x.clone()
    bad[0, 1, 2] = torch.nan
    with hf.torch.capture(model), pytest.raises(CaptureError, match=r"model: .*finite"):
        model(bad, x, x)


def test_a_check_finds_what_was_read_wrongly(monkeypatch):
    from headfit.torch import observed

    model, x = Attend(), torch.randn(1, 2, 5, 4)
    seen = observed.ObservedCall
    monkeypatch.setattr(observed, "ObservedCall", lambda *a: seen(*a[:5], 0.123, *a[6:]))
    message = "does not give the layer's output"
    with hf.torch.capture(model, check=True), pytest.raises(CaptureError, match=message):
        model(x, x, x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_stay(dtype):
    model, x = Attend(is_causal=True), torch.randn(2, 3, 20, 4).to(dtype)
    expected = model(x, x, x)
    with hf.torch.capture(model, check=True) as heads:
        assert torch.equal(model(x, x, x), expected)
    stored = heads[0].stored[0]
    assert stored.dtype.itemsize == x.element_size()
    wide = heads[0].matrix()
    exact = hf.attention_matrix(x.double(), x.double(), mask="causal")
    np.testing.assert_allclose(wide, exact, atol=1e-6)


def test_statistics_are_those_of_describe():
    model = Attend(is_causal=True)
    xs = [torch.randn(2, 3, 11, 4) * 2 for _ in range(3)]
    with hf.torch.capture(model, per_row=2, share=0.7, shares=(0.5,)) as heads:
        heads.run([(x, x, x) for x in xs])
    every = torch.cat(xs)
    whole = hf.describe(every, every, mask="causal", per_row=2, share=0.7, shares=(0.5,)).columns()
    table = heads.table().numbers
    for name in ("keys50_mean", "top2_mean", "entropy", "sink_mass", "distance", "diagonal"):
        np.testing.assert_allclose(table[name], whole[name].mean(axis=0), rtol=1e-6)
    for name in ("keys50_max", "max_load", "gamma"):
        np.testing.assert_array_equal(table[name], whole[name].max(axis=0))


def test_run_takes_batches_of_all_kinds():
    class Named(torch.nn.Module):
        def forward(self, x, y=None):
            return F.scaled_dot_product_attention(x, x, x if y is None else y)

    steps = []
    x = torch.randn(1, 2, 5, 4)
    model = Named()
    with hf.torch.capture(model, keep=0) as heads:
        heads.run([x, (x, x), {"x": x, "y": x}])
        heads.run(iter([x]), call=lambda x: steps.append(model(x)))
    assert heads.layers[0].calls == 4
    assert len(steps) == 1
    with pytest.raises(CaptureError, match="inside the with statement"):
        heads.run([x])


def test_heads_are_drawn():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    model = encoder()
    given = {"src_key_padding_mask": padding_of("left")}
    with torch.no_grad(), hf.torch.capture(model, keep=100) as heads:
        model(torch.randn(3, N, E), **given)
        model(torch.randn(3, N, E))
    images = hf.plot.heads_grid(heads)
    assert images.shape == (2, H)
    first = heads.first_passages()[1][1]
    assert first.lead == ()
    assert first.n == N - 3  # without padding
    np.testing.assert_array_equal(images[1, 1].get_array(), first.matrix())
    pyplot.close("all")
    with hf.torch.capture(model, keep=0) as nothing:
        model(torch.randn(3, N, E))
    with pytest.raises(CaptureError, match="no queries and keys were kept"):
        hf.plot.heads_grid(nothing)


@pytest.mark.parametrize("keep", [0, 1000])
def test_a_report_is_one_page(keep, tmp_path):
    pytest.importorskip("matplotlib")

    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module("<b>&", Attend(is_causal=True))

        def forward(self, x):
            return self.get_submodule("<b>&")(x, x, x)

    model = Odd().eval()
    with hf.torch.capture(model, keep=keep) as heads:
        model(torch.randn(2, 3, 20, 4))
    page = heads.report(tmp_path / "x.html", title="A <model>").read_text()
    assert "<h1>A &lt;model&gt;</h1>" in page
    assert "<b>" not in page
    assert "&lt;b&gt;&amp; head 2" in page
    assert page.count("data:image/png;base64,") == (2 if keep else 1)
    assert page.count("<tr>") == 4
    assert "http" not in page
    with pytest.raises(InputError, match=r"path must end in \.html"):
        heads.report(tmp_path / "x.npz")


def test_statistics_can_be_left_out():
    model, x = Attend(), torch.randn(1, 2, 5, 4)
    with hf.torch.capture(model, statistics=False) as heads:
        model(x, x, x)
    with pytest.raises(CaptureError, match="statistics=True"):
        heads.table()
    assert heads[0, 1].matrix().shape == (5, 5)


def test_the_first_passage_has_no_padding():
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x, padding = torch.randn(2, 6, 8), torch.zeros(2, 6, dtype=torch.bool)
    padding[0, 4:] = True
    with hf.torch.capture(layer) as heads:
        layer(x, x, x, key_padding_mask=padding)
    found = heads.first_passages()[0][1].matrix()
    np.testing.assert_allclose(found, heads["model", 1].matrix()[0, :4, :4], rtol=1e-5)
