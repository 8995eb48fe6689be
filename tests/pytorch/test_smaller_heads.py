"""A model with smaller heads attends as its `Compressed` heads say, and is itself again later."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import numpy as np
import pytest

import headfit as hf
from headfit.errors import CaptureError, InputError

torch = pytest.importorskip("torch")
ht = pytest.importorskip("headfit.torch")

SIZE, HEADS, KEY_HEADS, N = 8, 4, 2, 14
SMALL = {
    "vocab_size": 50,
    "hidden_size": SIZE * HEADS,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
}


def transformer(name, backend):
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    if name == "llama":
        config = transformers.LlamaConfig(
            **SMALL, num_key_value_heads=KEY_HEADS, intermediate_size=32
        )
        model = transformers.LlamaForCausalLM(config)
    elif name == "gpt_oss":
        config = transformers.GptOssConfig(
            **SMALL, num_key_value_heads=KEY_HEADS, intermediate_size=32, head_dim=SIZE,
            sliding_window=5, num_local_experts=2, num_experts_per_tok=1,
        )  # fmt: skip
        model = transformers.GptOssForCausalLM(config)
    elif name == "bert":
        model = transformers.BertModel(transformers.BertConfig(**SMALL, intermediate_size=32))
    else:
        config = transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=HEADS)
        model = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():  # larger weights, so that attention is far from uniform
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    model.set_attn_implementation(backend)
    return model.eval()


class Plain(torch.nn.Module):
    """Two layers of causal attention by hand, with shared keys."""

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.q = torch.nn.Linear(32, 32)
            self.kv = torch.nn.Linear(32, 2 * KEY_HEADS * SIZE)

        def forward(self, x):
            q, kv = (
                y.unflatten(-1, (-1, SIZE)).transpose(1, 2) for y in (3 * self.q(x), self.kv(x))
            )
            k, v = kv.split(KEY_HEADS, dim=1)
            out = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=0.5, enable_gqa=True
            )
            return x + out.transpose(1, 2).flatten(2)

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = self.Layer(), self.Layer()

    def forward(self, x):
        return self.second(self.first(x))


def tokens(batch=8, padded=False):
    torch.manual_seed(1)
    mask = torch.ones(batch, N, dtype=torch.long)
    if padded:
        mask[0, :4] = mask[2, :1] = 0
    return {"input_ids": torch.randint(5, 50, (batch, N)), "attention_mask": mask}


CASES = [
    ("gpt_oss", "eager"),
    ("llama", "eager"),
    ("llama", "sdpa"),
    ("gpt2", "sdpa"),
    ("bert", "eager"),
]


@pytest.mark.parametrize(("name", "backend"), CASES)
def test_a_model_attends_as_its_smaller_heads_do(name, backend):
    model, given = transformer(name, backend), tokens(padded=True)
    key_heads = KEY_HEADS if name in ("llama", "gpt_oss") else HEADS
    with torch.no_grad():
        with ht.capture(model, statistics=False) as heads:
            whole = model(**given)[0]
        passages = heads.passages()
        layers = [layer.name for layer in heads.layers]
        assert list(passages) == [(layer, at) for layer in layers for at in range(key_heads)]
        found = hf.compress(passages, dim=3, effort="low")
        with ht.capture(model, statistics=False) as seen, ht.smaller_heads(model, found) as smaller:
            model(**given)
        again = model(**given)[0]
    assert torch.equal(whole, again)
    assert smaller.layers == dict.fromkeys(layers, 1)
    assert smaller.key_dims == (2 * key_heads * SIZE, 2 * key_heads * 3)
    # The first layer reads the same input as before; what it attends to is what the maps say.
    for at in range(key_heads):
        expected = [found[layers[0], at].apply(p) for p in passages[layers[0], at]]
        got = seen.passages()[layers[0], at]
        for one, other in zip(expected, got, strict=True):
            assert other.dim == 3
            assert other.scale == 1
            np.testing.assert_allclose(other.matrix(), one.matrix(), atol=2e-5)


@pytest.mark.parametrize(("name", "backend"), CASES)
def test_whole_heads_change_nothing(name, backend):
    model, given = transformer(name, backend), tokens()
    with torch.no_grad():
        with ht.capture(model, statistics=False) as heads:
            whole = model(**given)[0]
        found = hf.compress(heads.passages(), dim=SIZE)
        with ht.smaller_heads(model, found):
            torch.testing.assert_close(model(**given)[0], whole, atol=1e-4, rtol=1e-4)


def test_more_tokens_than_the_length_warn():
    model, given = transformer("llama", "sdpa"), tokens()
    with torch.no_grad():
        with ht.capture(model, statistics=False) as heads:
            model(**given)
        options = {"dim": 2, "effort": 0, "rotated": ht.rotary_position(model)}
        found = hf.compress(heads.passages(), length=N, **options)
        longer = torch.cat([given["input_ids"]] * 2, dim=1)
        with ht.smaller_heads(model, found):
            model(**given)
            with pytest.warns(UserWarning, match=f"more than the {N} tokens") as seen:
                model(longer)
            assert {w.filename for w in seen} == {__file__}


def test_gradients_after_inference():
    model, given = transformer("llama", "sdpa"), tokens(batch=4)
    with ht.capture(model, statistics=False) as heads:
        heads.run([given])
    with ht.smaller_heads(model, hf.compress(heads.passages(), dim=3, effort=0)):
        x = given["input_ids"][:1]
        with torch.inference_mode():
            model(x)
        model(x)[0].square().sum().backward()


def test_threads_run_one_model():
    model, given = transformer("llama", "sdpa"), tokens(batch=4)
    with ht.capture(model, statistics=False) as heads:
        heads.run([given])
    found = hf.compress(heads.passages(), dim=3, effort=0)

    def outputs(_):
        with torch.no_grad():
            return [model(**given)[0] for _ in range(20)]

    with ht.smaller_heads(model, found) as smaller, ThreadPoolExecutor(4) as pool:
        expected = outputs(0)[0]
        for out in chain(*pool.map(outputs, range(4))):
            torch.testing.assert_close(out, expected)
    assert set(smaller.layers.values()) == {100}


def test_some_heads_of_hand_written_attention():
    model, x = Plain(), torch.randn(6, N, 32, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        with ht.capture(model) as heads:
            whole = model(x)
        passages = heads.passages()
        some = {name: passages[name] for name in [("first", 1), ("second", 0)]}
        found = hf.compress(some, dim=2)
        with ht.capture(model) as seen, ht.smaller_heads(model, found) as smaller:
            model(x)
        # Heads of different sizes are padded with zeros, and heads without maps are whole.
        assert seen[0].Q.shape[-1] == SIZE
        assert smaller.key_dims == (2 * SIZE, 4)
        for b, passage in enumerate(passages["first", 1]):
            expected = found["first", 1].apply(passage).matrix()
            np.testing.assert_allclose(seen[0].matrix()[b, 2:], expected, atol=1e-5)
            untouched = passages["first", 0][b].matrix()
            np.testing.assert_allclose(seen[0].matrix()[b, :2], untouched, atol=1e-5)
        assert torch.equal(model(x), whole)


def test_a_batch_of_single_heads():
    class Layer(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    model, x = Layer(), torch.randn(6, 20, 8, generator=torch.Generator().manual_seed(2))
    with ht.capture(model) as heads:
        model(x)
    found = hf.compress(heads.passages(), dim=3, effort=0)
    with ht.smaller_heads(model, found):
        small = model(x)
    for b, passage in enumerate(heads.passages()["model", 0]):
        expected = found["model", 0].apply(passage).apply(x[b].numpy())
        np.testing.assert_allclose(small[b], expected.reshape(20, 8), atol=1e-5)


def test_settings_return_after_an_exception():
    model, given = transformer("llama", "sdpa"), tokens()
    with torch.no_grad():
        with ht.capture(model, statistics=False) as heads:
            whole = model(**given)[0]
        found = hf.compress(heads.passages(), dim=2, effort="low")
        with pytest.raises(ZeroDivisionError), ht.smaller_heads(model, found):
            raise ZeroDivisionError
        assert torch.equal(model(**given)[0], whole)


def maps(size=SIZE, dim=2, group=2, **options):
    rng = np.random.default_rng(0)
    q = rng.normal(size=(4, group, 9, size)) if group > 1 else rng.normal(size=(4, 9, size))
    options |= {"dim": dim, "curve_dims": (), "effort": "low"}
    return hf.compress(q, rng.normal(size=(4, 9, size)), **options)


@pytest.mark.parametrize(
    ("heads", "error", "message"),
    [
        ({}, InputError, "heads must be what compress returns"),
        ({"first": 1}, InputError, "got 'first': int"),
        ({("first", 0): "maps"}, InputError, "got .*: str"),
        ({("third", 0): maps()}, CaptureError, "no layer 'third'"),
        ({("first", 2): maps()}, InputError, "key head 2 of first must be for one of its 2"),
        ({("first", 0): maps(size=6)}, InputError, "of size 8, .* got maps for size 6"),
        ({("first", 0): maps(group=1)}, InputError, "with 2 query heads each; .* and 1 query"),
        (
            {("first", 0): maps(scale=0.1)},
            InputError,
            "passages, 0.1, .* got 0.5 in key head 0 of first",
        ),
        ({("first.q", 0): maps()}, CaptureError, "never called first.q"),
    ],
)
def test_bad_maps(heads, error, message):
    model = Plain()
    with pytest.raises(error, match=message), ht.smaller_heads(model, heads), torch.no_grad():
        model(torch.zeros(1, N, 32))


def test_layers_that_are_recomputed_in_the_backward_pass_are_refused():
    model = transformer("llama", "sdpa").train()
    model.model.gradient_checkpointing = True
    with pytest.raises(CaptureError, match="turn gradient checkpointing off"):
        ht.smaller_heads(model, {("model.layers.0.self_attn", 0): maps()}).__enter__()


def test_modules_that_make_their_own_queries_are_refused():
    layer = torch.nn.TransformerEncoderLayer(16, nhead=2, batch_first=True).eval()
    x = torch.randn(4, 9, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        with ht.capture(layer) as heads:
            layer(x)
        found = hf.compress(heads.passages(), dim=2)
        with (
            pytest.raises(CaptureError, match="MultiheadAttention makes its queries"),
            ht.smaller_heads(layer, found),
        ):
            layer(x)


def test_passages_need_kept_heads():
    model, x = Plain(), torch.zeros(1, N, 32)
    with torch.no_grad():
        with ht.capture(model, keep=0) as heads:
            model(x)
        with pytest.raises(CaptureError, match="no queries and keys were kept"):
            heads.passages()
