"""Models that attend to what indexes find alone, against masks that are computed here."""

import dataclasses

import numpy as np
import pytest

import headfit as hf
from headfit.errors import CaptureError, InputError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

OPTIONS = {"dim": 4, "keys": 20, "window": 8, "first": 2, "effort": 20}


class Layer(torch.nn.Module):
    """Four query heads, two key heads, causal."""

    def forward(self, x):
        q = x.unflatten(-1, (4, 8)).transpose(1, 2)
        return torch.nn.functional.scaled_dot_product_attention(
            q, q[:, :2], q[:, 2:], is_causal=True, enable_gqa=True
        )


def batch(count, n=60):
    return 2 * torch.randn(count, n, 32, generator=torch.Generator().manual_seed(0))


def found_in(model, inputs, **options):
    with torch.no_grad(), hf.torch.capture(model, keep=10**6, statistics=False) as heads:
        heads.run(inputs)
    return hf.index(heads.passages(), **OPTIONS, **options)


def llama(implementation="sdpa", kind="Llama", **options):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256, **options,
    )  # fmt: skip
    whole = getattr(transformers, f"{kind}ForCausalLM")
    return whole._from_config(config, attn_implementation=implementation).eval()


def tokens(count, n=60):
    return torch.randint(0, 50, (count, n), generator=torch.Generator().manual_seed(1))


def of_llama(model):
    inputs = [{"input_ids": x[None]} for x in tokens(5)]
    return found_in(model, inputs, rotated=hf.torch.rotary_position(model))


def test_a_layer_attends_to_what_is_selected():
    model, x = Layer(), batch(6)
    found = found_in(model, [x])
    assert set(found.heads) == {("model", 0), ("model", 1)}
    with hf.torch.indexed(model, found, keys=16) as calls:
        out = model(x[:2])
    assert calls == {"model": 1}
    heads = x[:2].unflatten(-1, (4, 8)).transpose(1, 2)
    for b in range(2):
        for head in range(4):
            key = head // 2
            q, k, v = heads[b, 2 * key : 2 * key + 2], heads[b, key], heads[b, 2 + key]
            columns = found["model", key].select(q.numpy(), k.numpy(), mask="causal", keys=16)
            allowed = np.zeros((60, 60), bool)
            for i, row in enumerate(columns):
                allowed[i, row[row >= 0]] = True
            assert allowed.sum(axis=1).max() == 16
            expected = hf.attention_apply(
                heads[b, head].numpy(), k.numpy(), v.numpy(), mask=allowed
            )
            np.testing.assert_allclose(out[b, head].numpy(), expected, atol=1e-5)


def test_all_heads_of_a_layer_attend_to_what_its_index_selects():
    model, x = Layer(), batch(6)
    with torch.no_grad(), hf.torch.capture(model, keep=10**6, statistics=False) as heads:
        heads.run([x])
    found = hf.index(heads.layer_passages(), **OPTIONS)
    assert found["model"].P_k.shape == (2, 8, 4)
    with hf.torch.indexed(model, found, keys=16) as calls:
        out = model(x[:1])
    assert calls == {"model": 1}
    q = x[0].unflatten(-1, (4, 8)).transpose(0, 1)
    selected = found["model"].apply(q.numpy(), q[:2].numpy(), mask="causal", keys=16)
    expected = selected.apply(q[2:].numpy())
    np.testing.assert_allclose(out[0].numpy(), expected, atol=1e-5)
    both = {**found.heads, ("model", 1): found["model"]}
    with (
        pytest.raises(InputError, match="key heads of model beside all of it"),
        hf.torch.indexed(model, both),
    ):
        pass


class FewerKeys(Layer):
    def forward(self, x):
        q = x.unflatten(-1, (4, 8)).transpose(1, 2)
        k, v = q[:, :2, :40], q[:, 2:, :40]
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=True
        )


@pytest.mark.parametrize("model", [Layer(), FewerKeys()])
def test_heads_without_an_index_attend_to_all(model):
    x = batch(6)
    found = found_in(model, [x])
    with hf.torch.indexed(model, {("model", 1): found["model", 1]}):
        out = model(x)
    whole = model(x)
    assert torch.equal(out[:, :2], whole[:, :2])
    assert not torch.equal(out[:, 2:], whole[:, 2:])


@torch.no_grad()
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_prefill_and_decoding_agree_and_padding_is_left_out(implementation):
    model = llama(implementation)
    found, x = of_llama(model), tokens(3)
    mask = torch.ones_like(x)
    mask[0, :25] = 0
    given = {"input_ids": x, "attention_mask": mask}
    whole = model(**given).logits
    with hf.torch.indexed(model, found, keys=100):
        every = model(**given).logits
    torch.testing.assert_close(every[mask.bool()], whole[mask.bool()])
    with hf.torch.indexed(model, found) as calls:
        at_once = model(**given).logits
        cache = transformers.DynamicCache(config=model.config)
        steps = [model(input_ids=x[1:2, :50], cache=cache).logits]
        steps += [model(input_ids=x[1:2, i : i + 1], cache=cache).logits for i in range(50, 60)]
        written = model.generate(x[1:2, :50], max_new_tokens=3, do_sample=False)
    assert set(calls.values()) == {1 + 11 + 3}
    assert (at_once - whole)[mask.bool()].abs().max() > 1e-3  # it does select
    torch.testing.assert_close(torch.cat(steps, 1)[0], at_once[1], atol=1e-5, rtol=1e-5)
    assert written.shape == (1, 53)
    torch.testing.assert_close(model(**given).logits, whole)  # the context is over


@torch.no_grad()
def test_a_sliding_window_is_the_mask():
    model = llama(kind="Mistral", sliding_window=24)
    found, x = of_llama(model), tokens(1)
    with hf.torch.indexed(model, found, keys=24 + 1):
        every = model(input_ids=x).logits
    torch.testing.assert_close(every, model(input_ids=x).logits)


def test_bad_input():
    model, x = Layer(), batch(4)
    found = found_in(model, [x])
    index = found["model", 0]
    for heads, message in [
        ({}, "heads must be what index returns"),
        ({("model", 0): 3}, "to Index; got"),
        ({"model": 3}, "or layers, to Index; got 'model': int"),
        ({("model", -1): index}, "heads must map"),
        ({"model": index, ("model", -1): index}, "heads must map"),
    ]:
        with pytest.raises(InputError, match=message), hf.torch.indexed(model, heads):
            pass
    with pytest.raises(InputError, match="keys must be"), hf.torch.indexed(model, found, keys=10):
        pass
    with (
        pytest.raises(CaptureError, match="no layer 'other'"),
        hf.torch.indexed(model, {("other", 0): index}),
    ):
        pass
    with (
        pytest.raises(InputError, match="of size 8, and K 1; got 4 heads of size 8, and K 2"),
        hf.torch.indexed(model, {"model": index}),
    ):
        model(x)
    with (
        pytest.raises(InputError, match="model has 2 key heads, not 3"),
        hf.torch.indexed(model, {("model", 2): index}),
    ):
        model(x)
    other = dataclasses.replace(index, P_q=index.P_q[:1])
    with (
        pytest.raises(InputError, match="model: Q must have"),
        hf.torch.indexed(model, {("model", 0): other}),
    ):
        model(x)
    both = torch.nn.ModuleDict({"used": model, "unused": Layer()})
    both.forward = lambda y: both["used"](y)
    with (
        pytest.raises(CaptureError, match="never called unused"),
        hf.torch.indexed(both, {("used", 0): index, ("unused", 0): index}),
    ):
        both(x)
    layer = torch.nn.MultiheadAttention(32, 2, batch_first=True)
    with (
        pytest.raises(CaptureError, match="makes its mask itself"),
        hf.torch.indexed(layer, {("model", 0): index}),
    ):
        layer(x, x, x)


@pytest.mark.parametrize("size", [16, 32, 128])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_a_block_mask_is_made_of_the_mask_of_apply(size: int) -> None:
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(2, 120, 16)), rng.normal(size=(120, 16))) for _ in range(4)]
    given = [hf.Attention(*pair, mask="causal") for pair in pairs]
    small = hf.index(given, dim=4, keys=24, window=8, first=2, effort=0).apply(given[0])
    chosen = torch.from_numpy(small.mask.toarray())
    blocks = flex.create_block_mask(
        lambda b, h, i, j: chosen[i, j], None, None, *chosen.shape, device="cpu", BLOCK_SIZE=size
    )
    padded = np.zeros((128, 128), bool)
    padded[:120, :120] = chosen
    of_blocks = padded.reshape(128 // size, size, 128 // size, size).any(axis=(1, 3))
    np.testing.assert_array_equal(blocks.kv_num_blocks[0, 0], of_blocks.sum(axis=1))
    q, k = (torch.tensor(x, dtype=torch.float32)[None] for x in (pairs[0][0], pairs[0][1][None]))
    values = torch.eye(120)[None, None]
    weights = flex.flex_attention(q, k, values, block_mask=blocks, enable_gqa=True)
    np.testing.assert_allclose(weights[0], small.matrix(), atol=1e-5)


def test_queries_that_serve_a_whole_batch_of_keys():
    class Shared(torch.nn.Module):
        def forward(self, q, k, v):
            return torch.nn.functional.scaled_dot_product_attention(self.shared(q), k, v)

        shared = staticmethod(lambda q: q[:1])

    model = Shared().eval()
    q, k, v = torch.randn(3, 4, 2, 40, 8, generator=torch.Generator().manual_seed(0))
    with hf.torch.capture(model, check=True) as heads:
        model(q, k, v)
    found = hf.index(heads.passages(), dim=2, keys=8, window=1, first=0, effort=0)
    with hf.torch.indexed(model, found):
        shared = model(q, k, v)
        model.shared = lambda q: q[:1].expand_as(q)
        torch.testing.assert_close(model(q, k, v), shared)
    assert (shared - model(q, k, v)).abs().max() > 0.1
