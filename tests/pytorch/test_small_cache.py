"""A cache that stores latents: it reads what the results say, and is a cache in all else."""

from __future__ import annotations

import copy
import dataclasses
import gc
import pickle
import threading

import numpy as np
import pytest

import headfit as hf
from headfit import _core
from headfit._cache.packing import Packing, latents_per_step
from headfit.errors import CaptureError, InputError, NonFiniteError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
ht = pytest.importorskip("headfit.torch")

HEADS, KEY_HEADS, SIZE, LAYERS = 4, 2, 8, 2


def llama(**options):
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS, intermediate_size=32, **options
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():  # larger weights, so that attention is far from uniform
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    return model.eval()


def tokens(*shape, seed=1):
    return torch.randint(3, 50, shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def made():
    model = llama()
    with ht.capture(model, statistics=False) as heads:
        heads.run([{"input_ids": tokens(6, 40)}])
    return model, {
        sizes: hf.compress_keys(
            heads.layer_passages(), rotated=ht.rotary_position(model), effort=20, **dict(sizes)
        )
        for sizes in ((("bytes", 6),), (("rank", 10),))
    }


@pytest.fixture(params=[(("bytes", 6),), (("rank", 10),)], ids=["bits", "float16"])
def small(made, request):
    return made[0], made[1][request.param]


def run(model, x, cache, **options):
    with torch.no_grad():
        return model(x, cache=cache, **options).logits


def test_the_layer_attends_to_what_is_read(small):
    model, found = small
    x = tokens(2, 30, seed=2)
    cache = ht.SmallCache(model, found)
    with ht.capture(model, statistics=False) as heads:
        run(model, x, cache)
    with ht.capture(model, statistics=False) as whole:
        run(model, x, None)
    for number, name in enumerate(found.layers):
        for b in range(2):
            given = heads[number, :].K[b]
            if number == 0:  # later layers see what the first one has changed
                keys = found[name].read(found[name].store(whole[0, :].K[b]))
                # A latent halfway between two multiples may become either.
                differs = np.abs(given - keys).max(axis=(0, 2)) > 1e-3
                assert differs.mean() < 0.05
            np.testing.assert_array_equal(given, cache.layers[number].read()[b].numpy())
    bytes_of_keys = sum(layer.keys.nbytes for layer in cache.layers)
    assert bytes_of_keys == 2 * 30 * KEY_HEADS * sum(x.bytes for x in found.layers.values())
    assert cache.nbytes == bytes_of_keys + 2 * 30 * LAYERS * KEY_HEADS * SIZE * 4
    assert cache.get_seq_length() == 30


def test_maps_fold_into_the_weights(small):
    """The latents of a token are those of its hidden state, before rotary positions."""
    model, found = small
    inputs = []
    layer = model.model.layers[0]
    hook = layer.input_layernorm.register_forward_hook(lambda _m, _i, x: inputs.append(x))
    cache = ht.SmallCache(model, found)
    run(model, tokens(1, 20, seed=8), cache)
    hook.remove()
    of = found["model.layers.0.self_attn"]
    folded = of.tensors(layer.self_attn.k_proj.weight.detach().numpy().T)
    z = inputs[0][0].detach().numpy() @ folded["W_latent"] + folded["b_latent"]
    expected = cache.layers[0].read()[0].numpy()
    turned = dataclasses.replace(of, bits=None).read(z.astype(np.float16).view(np.uint8))
    # What is read differs from the unrounded latents by the rounding alone.
    error = np.abs(turned - expected).mean() / np.abs(expected).mean()
    assert error < (0.1 if of.bits else 2e-3)


@pytest.mark.parametrize("rank", [1, 3, 8, 9])
@pytest.mark.parametrize("most", [1, 3, 8])
@pytest.mark.parametrize("step", ["token", "latent", 1, 4])
def test_bytes_are_the_same_in_numpy_and_pytorch(rank, most, step, monkeypatch):
    rng = np.random.default_rng(rank)
    bits = tuple(sorted(rng.integers(1, most + 1, rank).tolist(), reverse=True))
    encode, decode = rng.normal(size=(8, rank)), rng.normal(size=(rank, 8))
    maps = [x.astype(np.float32) for x in (encode, decode, np.zeros((1, 8)))]
    together = latents_per_step(step)
    store = _core.TokenStore(maps, bits, together, KEY_HEADS)
    turned = np.array([1.0, 0.1]), True
    one = Packing(store, maps[1], maps[2][0], *turned, bits, together, KEY_HEADS)
    other = one.on(lambda x: torch.as_tensor(x, dtype=torch.float32))
    keys, places = rng.normal(size=(KEY_HEADS, 50, 4)).astype(np.float32), np.arange(50)
    table, of_torch = one.table(places), other.table(torch.tensor(places))
    stored = one.pack(keys, table)
    assert stored.shape == (50, store.token_bytes)
    steps = {"token": 1, "latent": 0, 1: rank, 4: -(-rank // 4)}[step]
    assert store.token_bytes == -(-sum(bits) // 8) + 2 * steps
    also = other.pack(torch.tensor(keys), of_torch).numpy()
    assert (also == stored).all(1).mean() > 0.9  # angles in float32 may round to the next
    read = one.unpack(stored, table)
    again = other.unpack(torch.tensor(stored), of_torch)
    np.testing.assert_allclose(again.numpy(), read, atol=1e-4)
    for block in (1024, 7):
        monkeypatch.setattr("headfit._cache.packing.BLOCK", block)
        for packing, x, own in ((one, stored, table), (other, torch.tensor(stored), of_torch)):
            np.testing.assert_allclose(packing.unpack_anywhere(x, own), read, atol=1e-4)


def test_parts_are_the_whole(small):
    model, found = small
    x = tokens(2, 30, seed=3)
    whole, cache = ht.SmallCache(model, found), ht.SmallCache(model, found)
    expected = run(model, x, whole)
    got = torch.cat([run(model, x[:, a:b], cache) for a, b in ((0, 11), (11, 12), (12, 30))], 1)
    same = (whole.layers[0].keys == cache.layers[0].keys).float().mean()
    assert same > 0.99  # rounding of another order of sums may move a latent to the next multiple
    assert (got - expected).abs().mean() < 0.02 * expected.abs().mean()
    cache.reset()
    assert cache.get_seq_length() == 0
    cache.early_initialization(2, KEY_HEADS, SIZE, torch.float32, torch.device("cpu"))
    torch.testing.assert_close(run(model, x, cache), expected)


def test_padding_on_the_left_changes_nothing(small):
    model, found = small
    x = tokens(1, 12, seed=4)
    pad = torch.cat([torch.zeros(1, 7, dtype=torch.long), x], 1)
    both = torch.cat([pad, tokens(1, 19, seed=5)])
    mask = torch.ones_like(both)
    mask[0, :7] = 0
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    alone = model.generate(x, cache=ht.SmallCache(model, found), **options)
    batch = model.generate(both, attention_mask=mask, cache=ht.SmallCache(model, found), **options)
    assert batch[0, 19:].tolist() == alone[0, 12:].tolist()


@pytest.mark.parametrize("fill", [0, 1])
@pytest.mark.parametrize(("padding", "size"), [(18, 30), *((7, size) for size in range(2, 9))])
def test_parts_may_be_padding_alone(small, padding, size, fill):
    model, found = small
    x = tokens(2, 19, seed=5)
    mask = torch.ones_like(x)
    mask[0, :padding] = 0
    positions = (mask.cumsum(1) - 1).masked_fill(mask == 0, fill)
    whole, parts = ht.SmallCache(model, found), ht.SmallCache(model, found)
    expected = run(model, x, whole, attention_mask=mask, position_ids=positions)
    for first in range(0, 19, size):
        part = slice(first, first + size)
        some = {"attention_mask": mask[:, : part.stop], "position_ids": positions[:, part]}
        logits = run(model, x[:, part], parts, **some)
    torch.testing.assert_close(logits[:, -1], expected[:, -1])
    step = {"attention_mask": torch.ones(2, 20), "position_ids": positions[:, -1:] + 1}
    step["attention_mask"][:, :19] = mask
    one, other = (run(model, x[:, :1], cache, **step) for cache in (whole, parts))
    torch.testing.assert_close(one, other)
    for some in (whole, parts):
        assert some.layers[0].starts.tolist() == [padding, 0]
    with pytest.raises(InputError, match="rise by one"):
        run(model, x[:, :1], parts, attention_mask=None, position_ids=positions[:, -1:])


def test_pickles_and_copies_are_not_watched(small):
    model, found = small
    cache = pickle.loads(pickle.dumps(ht.SmallCache(model, found)))
    with pytest.raises(CaptureError, match="positions of the keys are not known"):
        run(model, tokens(1, 4), cache)
    with ht.capture(model) as heads:
        copied = copy.deepcopy(model)
        run(copied, tokens(1, 12), None)
    assert not heads.layers


def test_beams_and_crops(small):
    model, found = small
    x = tokens(2, 20, seed=6)
    cache = ht.SmallCache(model, found)
    run(model, x, cache)
    before = [layer.read() for layer in cache.layers]
    cache.reorder_cache(torch.tensor([1, 0]))
    for layer, old in zip(cache.layers, before, strict=True):
        torch.testing.assert_close(layer.read(), old.flip(0))
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([0, 3]))
    cache.crop(-5)
    assert cache.get_seq_length() == 15
    for layer, old in zip(cache.layers, before, strict=True):
        torch.testing.assert_close(layer.read(), old.flip(0)[:, :, :15])
    again, fresh = run(model, x.flip(0)[:, 15:], cache), ht.SmallCache(model, found)
    whole = run(model, x.flip(0), fresh)[:, 15:]
    assert (again - whole).abs().mean() < 0.02 * whole.abs().mean()
    cache.crop(-20)
    assert cache.layers[0].read().shape == (2, KEY_HEADS, 0, SIZE)
    options = {"max_new_tokens": 5, "num_beams": 3, "do_sample": False, "pad_token_id": 0}
    assert model.generate(x, cache=ht.SmallCache(model, found), **options).shape == (2, 25)


def test_narrow_models(made):
    found = made[1]
    narrow, whole = llama().to(torch.bfloat16), llama()
    narrow.model.rotary_emb = whole.model.rotary_emb  # models are loaded with it in float32
    of_bits = found[("bytes", 6),]
    cache = ht.SmallCache(narrow, of_bits)
    logits = run(narrow, tokens(1, 20, seed=7), cache)
    assert logits.dtype == torch.bfloat16
    assert cache.layers[0].read().dtype == torch.bfloat16


def test_copies_and_gradients(small):
    """A copy of a cache goes on alone; what is read has no gradient."""
    model, found = small
    x = tokens(1, 20, seed=9)
    cache = ht.SmallCache(model, found)
    run(model, x, cache)
    other = copy.deepcopy(cache)
    expected = run(model, x[:, :3], cache)
    torch.testing.assert_close(run(model, x[:, :3], other), expected)
    loss = model(x, cache=ht.SmallCache(model, found)).logits.square().mean()
    loss.backward()
    assert model.model.layers[0].self_attn.q_proj.weight.grad is not None
    assert model.model.layers[0].self_attn.k_proj.weight.grad is None
    model.zero_grad()
    again = pickle.loads(pickle.dumps(found))
    assert again.bytes == found.bytes
    assert pickle.loads(pickle.dumps(model)) is not None


@pytest.mark.parametrize("ids", [[0, 1, 2, 0, 0], [0, 1, 2, 1, 1], [0, 1, 2, 0, 1, 2]])
def test_padding_on_the_right_is_refused(made, ids):
    before = ht.SmallCache(made[0], made[1][("bytes", 6),])  # padding on the left, and positions
    run(made[0], tokens(1, 6), before, position_ids=torch.tensor([[-3, -2, -1, 0, 1, 2]]))
    assert before.layers[0].starts.tolist() == [3]
    cache = ht.SmallCache(made[0], made[1][("bytes", 6),])
    with pytest.raises(InputError, match="must rise by one"):
        run(made[0], tokens(1, len(ids)), cache, position_ids=torch.tensor([ids]))


def test_a_layer_without_positions_beside_sliding_windows():
    torch.manual_seed(0)
    config = transformers.Cohere2Config(
        vocab_size=50, hidden_size=32, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=32, sliding_window=8, pad_token_id=0
    )  # fmt: skip
    model, x = transformers.Cohere2ForCausalLM(config).eval(), tokens(4, 20)
    with ht.capture(model, statistics=False) as heads:
        heads.run([{"input_ids": x}])
    layers = {
        name: passages
        for name, passages in heads.layer_passages().items()
        if name == "model.layers.3.self_attn"
    }
    found = hf.compress_keys(layers, rank=16, effort=0)
    cache = ht.SmallCache(model, found)
    np.testing.assert_allclose(run(model, x, cache), run(model, x, None), atol=1e-3)
    keys = [a.K for a in layers["model.layers.3.self_attn"]]
    np.testing.assert_allclose(cache.layers[3].read(), keys, atol=1e-2)
    turned = hf.compress_keys(layers, rank=16, effort=0, rotated=ht.rotary_position(model))
    assert ht.SmallCache(model, turned).layers[3].found["keys"].position


@pytest.mark.parametrize("kind", ["gpt2", "phi"])
def test_what_has_no_positions_needs_no_rotary_embedding(kind):
    """Values, and keys of a model without rotary positions."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        kind, vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=32, partial_rotary_factor=0.5, bos_token_id=1, eos_token_id=1
    )  # fmt: skip
    model, x = transformers.AutoModelForCausalLM.from_config(config).eval(), tokens(4, 20)
    with ht.capture(model, statistics=False, values=True) as heads:
        heads.run([x])
    values = hf.compress_values(heads.layer_passages(values=True), rank=32)
    cache = ht.SmallCache(model, {}, values)
    np.testing.assert_allclose(run(model, x, cache), run(model, x, None), atol=1e-2)
    keys = hf.compress_keys(heads.layer_passages(), rank=32, effort=0)
    if kind == "phi":
        with pytest.raises(CaptureError, match="turns a part of each head alone"):
            ht.SmallCache(model, keys)
        return
    caches = ht.SmallCache(model, keys), ht.SmallCache(model, keys, values)
    for cache in caches:
        run(model, x[:, :9], cache)
        got, expected = run(model, x[:, 9:], cache), run(model, x, None)[:, 9:]
        np.testing.assert_allclose(got, expected, atol=1e-2)
    rotated = hf.compress_keys(heads.layer_passages(), rank=32, effort=0, rotated="rope")
    with pytest.raises(InputError, match="fitted with rotated="):
        ht.SmallCache(model, rotated)


def test_what_is_refused(made):
    model, found = made
    of_bits = found[("bytes", 6),]
    for name in ("nowhere", "model.layers.0.mlp"):
        refused = f"must name attention layers of model that cache its own tokens; got '{name}'"
        with pytest.raises(InputError, match=refused):
            ht.SmallCache(model, {name: of_bits["model.layers.0.self_attn"]})
    with pytest.raises(InputError, match=r"a CompressedKeys for 'model\.layers.*'; got int"):
        ht.SmallCache(model, {"model.layers.0.self_attn": 3})
    other = llama(rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    with pytest.raises(InputError, match="fitted with rotated="):
        ht.SmallCache(other, of_bits)
    other.model.layers[0].self_attn.use_rope = False  # as SmolLM3 and Llama 4 say it
    with pytest.raises(InputError, match=r"positions; 'model\.layers\.0\.self_attn' was not"):
        ht.SmallCache(other, of_bits)
    rng = np.random.default_rng(0)
    layer = [(rng.normal(size=(4, 9, SIZE)), rng.normal(size=(2, 9, SIZE))) for _ in range(4)]
    ht.SmallCache(other, hf.compress_keys({"model.layers.0.self_attn": layer}, effort=0))
    windows = transformers.MistralForCausalLM(
        transformers.MistralConfig(
            vocab_size=50,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=32,
            sliding_window=8,
        )
    )
    with pytest.raises(InputError, match="drops keys"):
        ht.SmallCache(windows, of_bits)
    with pytest.raises(
        CaptureError, match="one rotary embedding, a module with inv_freq; it has 0"
    ):
        ht.rotary_position(torch.nn.Linear(2, 2))
    partly = transformers.GPTNeoXConfig(
        vocab_size=9, hidden_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    with pytest.raises(CaptureError, match=r"turns a part of each head alone: 0\.25"):
        ht.rotary_position(transformers.GPTNeoXForCausalLM(partly))
    cache = ht.SmallCache(model, of_bits)
    with pytest.raises(InputError, match="read needs tokens in the cache"):
        cache.layers[0].read()
    with pytest.raises(CaptureError, match="the model that it was made for"):
        cache.update(torch.ones(1, 2, 3, 8), torch.ones(1, 2, 3, 8), 0)
    run(model, tokens(1, 5), cache)
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        run(model, tokens(2, 1), cache)
    assert cache.layers[0].starts.tolist() == [0]
    for ids in ([[9, 10]], [[5, 7]], [[0, 0]]):
        with pytest.raises(InputError, match="must rise by one"):
            run(model, tokens(1, 2), cache, position_ids=torch.tensor(ids))
    q, k = np.random.default_rng(0).normal(size=(2, 1, 5, SIZE))
    few = hf.compress_keys(
        {"model.layers.0.self_attn": [(q, k)]}, rotated=ht.rotary_position(model), effort=0
    )
    with pytest.raises(InputError, match="found must be of 2 key heads"):
        ht.SmallCache(model, few)
    with pytest.raises(InputError, match="offloaded"):
        cache.layers[0].offload()


def test_a_cache_leaves_no_hook_behind(made):
    model, found = made
    rotary = model.model.rotary_emb
    before = len(rotary._forward_pre_hooks)
    cache = ht.SmallCache(model, found[("bytes", 6),])
    assert len(rotary._forward_pre_hooks) == before + 1
    del cache
    gc.collect()
    assert len(rotary._forward_pre_hooks) == before


@pytest.mark.parametrize(
    ("name", "kind"),
    [("Llama", "rope-half"), ("Qwen3", "rope-half"), ("GptOss", "rope-half"), ("Cohere", "rope"),
     ("Helium", "rope"), ("Ernie4_5", "rope"), ("NanoChat", "rope-half")],
)  # fmt: skip
def test_keys_of_models_are_turned_as_is_said(name, kind):
    """Keys of the same token differ by their positions alone."""
    config = getattr(transformers, f"{name}Config")(
        vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, head_dim=8,
        num_key_value_heads=2, intermediate_size=32, pad_token_id=0,
    )  # fmt: skip
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with ht.capture(model, statistics=False) as heads:
        position = ht.rotary_position(model)
        heads.run([torch.full((1, 9), 7)])
    keys = heads[0].K
    same = np.repeat(keys[:, :1], 9, axis=1)
    turned = hf.Attention(same, same, position=position).rotated().K
    assert position[0] == kind
    np.testing.assert_allclose(turned, keys, atol=1e-5 * np.abs(keys).max())


def test_keys_that_stay_turned(made):
    """Maps after the rotation need no positions; beyond the length for which they are they warn."""
    model, x = made[0], tokens(2, 40)
    with ht.capture(model, statistics=False) as heads:
        heads.run([{"input_ids": x}])
    layers = heads.layer_passages()
    found = hf.compress_keys(
        layers, rotated=ht.rotary_position(model), length=50, rank=16, effort=0
    )
    cache = ht.SmallCache(model, found)
    skipping = torch.arange(40).expand(2, 40) * 2  # what is turned back must rise by one
    np.testing.assert_allclose(
        run(model, x, cache, position_ids=skipping), run(model, x, None, position_ids=skipping),
        atol=0.02,
    )  # fmt: skip
    cache = ht.SmallCache(model, found)
    run(model, x, cache)
    for layer, own in zip(cache.layers, layers.values(), strict=True):
        np.testing.assert_allclose(layer.read(), [a.K for a in own], atol=0.02)
    run(model, x[:, :10], cache)
    with pytest.warns(UserWarning, match="more than the 50 tokens"):
        run(model, x[:, :1], cache)


def test_pairs_of_neighbours_and_changing_frequencies():
    config = transformers.CohereConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=32,
    )  # fmt: skip
    model = transformers.CohereForCausalLM(config).eval()
    assert ht.rotary_position(model)[0] == "rope"
    with ht.capture(model, statistics=False) as heads:
        heads.run([tokens(6, 40)])
    found = hf.compress_keys(
        heads.layer_passages(), rotated=ht.rotary_position(model), rank=16, effort=0
    )
    x = tokens(1, 30, seed=2)
    got, expected = run(model, x, ht.SmallCache(model, found)), run(model, x, None)
    assert (got - expected).abs().max() < 0.01 * expected.abs().max()
    changing = llama(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})
    with pytest.raises(CaptureError, match="change with the length: 'dynamic'"):
        ht.rotary_position(changing)


def test_calls_that_were_not_kept_are_said():
    model = llama()
    with ht.capture(model, keep=50, statistics=False) as heads:
        heads.run([{"input_ids": tokens(1, 40)}, {"input_ids": tokens(1, 40)}])
    with pytest.warns(UserWarning, match="2 of 4 calls of the layers were not kept") as seen:
        assert [len(x) for x in heads.layer_passages().values()] == [1, 1]
    assert [w.filename for w in seen] == [__file__]


def test_a_call_larger_than_keep_is_said_while_it_runs():
    model, last = llama(), f"model.layers.{LAYERS - 1}.self_attn"
    for layers, count in ((None, LAYERS), ([last], 1)):
        with ht.capture(model, keep=50, keep_layers=layers, statistics=False) as heads:
            heads.run([{"input_ids": tokens(2, 25)}])  # as many as are kept
            with pytest.warns(UserWarning, match="call of 52 tokens .* keep=50 of") as seen:
                heads.run([{"input_ids": tokens(2, 26)}])
            assert [w.filename for w in seen] == [__file__] * count
    with ht.capture(model, keep=0) as heads:
        heads.run([{"input_ids": tokens(2, 26)}])


def test_calls_that_share_keys_are_said():
    model, x = llama(), tokens(3, 20)
    with ht.capture(model, statistics=False, values=True) as heads:
        model.generate(x, max_new_tokens=2, do_sample=False, pad_token_id=0)
    for read in (heads.passages, heads.layer_passages, lambda: heads.layer_passages(values=True)):
        with pytest.warns(UserWarning, match="passages that share keys: those held out") as seen:
            assert {len(x) for x in read().values()} == {6}
        assert [w.filename for w in seen] == [__file__]
    with ht.capture(model, statistics=False) as heads:  # the same texts, each in one call
        heads.run([{"input_ids": x, "use_cache": True}])
    heads.layer_passages()


@pytest.fixture(scope="module")
def both(made):
    """A model, and its keys and values in few bytes."""
    model, found = made
    with ht.capture(model, statistics=False, values=True) as heads:
        heads.run([{"input_ids": tokens(6, 40)}])
    values = hf.compress_values(heads.layer_passages(values=True), bytes=5)
    return model, found[("bytes", 6),], values


def read_back(found, states):
    """Keys or values of a batch, from the bytes that are stored of them."""
    parts = [found.read(found.store(x.numpy())) for x in states]
    return torch.tensor(np.stack(parts))


def with_values_read_back(model, x, values):
    """The logits of the model with the values of some layers replaced, without a cache."""
    number = {name: model.get_submodule(name).layer_idx for name in values.layers}
    of = {number[name]: own for name, own in values.layers.items()}

    def attention(module, q, k, v, mask, scaling=None, **_):
        v = read_back(of[module.layer_idx], v) if module.layer_idx in of else v
        k, v = (y.repeat_interleave(HEADS // KEY_HEADS, 1) for y in (k, v))
        p = q @ k.transpose(2, 3) * scaling
        p = p.masked_fill(torch.ones(p.shape[-2:]).triu(1).bool(), -torch.inf).softmax(-1)
        return (p @ v).transpose(1, 2).contiguous(), None

    transformers.AttentionInterface.register("read_back", attention)
    transformers.AttentionMaskInterface.register("read_back", lambda *_, **__: None)
    model.set_attn_implementation("read_back")
    try:
        with torch.no_grad():
            return model(x, use_cache=False).logits
    finally:
        model.set_attn_implementation("sdpa")


@pytest.mark.parametrize("layers", [(0, 1), (1,)])
def test_values_are_read_from_what_is_stored(both, layers):
    """Values alone: the outputs are those of the model with the values read back."""
    model, _, values = both
    names = list(values.layers)
    some = {names[i]: values[names[i]] for i in layers}
    some = dataclasses.replace(values, layers=some)
    x = tokens(2, 30, seed=2)
    cache = ht.SmallCache(model, {}, some)
    got, expected = run(model, x, cache), with_values_read_back(model, x, some)
    # A latent halfway between two multiples may become either, and later tokens see that.
    assert (got - expected).abs().mean() < 0.01 * expected.abs().mean()
    whole = run(model, x, None)
    assert (got - whole).abs().mean() > 3 * (got - expected).abs().mean()
    for i in range(LAYERS):
        layer = cache.layers[i]
        if i in layers:
            assert layer.values.shape == (2, 1, 30, values[names[i]].bytes * KEY_HEADS)
            read = values[names[i]].read(layer.values[1, 0].numpy())
            # A product of two entries may round otherwise than that of one.
            one = copy.deepcopy(layer)
            one.batch_select_indices(torch.tensor([1]))
            np.testing.assert_array_equal(one.read("values")[0].numpy(), read)
            assert layer.read().shape == layer.keys.shape == (2, KEY_HEADS, 30, SIZE)
        else:
            assert layer.values.shape == (2, KEY_HEADS, 30, SIZE)


def test_keys_and_values_together(both):
    model, keys, values = both
    x = tokens(2, 30, seed=3)
    one, parts = (ht.SmallCache(model, keys, values) for _ in range(2))
    expected = run(model, x, one)
    assert one.nbytes == 2 * 30 * LAYERS * KEY_HEADS * (keys.bytes + values.bytes)
    got = torch.cat([run(model, x[:, a:b], parts) for a, b in ((0, 11), (11, 12), (12, 30))], 1)
    assert (got - expected).abs().mean() < 0.02 * expected.abs().mean()
    before = [(layer.read(), layer.read("values")) for layer in one.layers]
    one.reorder_cache(torch.tensor([1, 0]))
    one.batch_repeat_interleave(2)
    one.batch_select_indices(torch.tensor([0, 3]))
    one.crop(-5)
    for layer, old in zip(one.layers, before, strict=True):
        for part, states in zip(("keys", "values"), old, strict=True):
            torch.testing.assert_close(layer.read(part), states.flip(0)[:, :, :25])
    other = copy.deepcopy(one)
    after = run(model, x.flip(0)[:, 25:], one)
    torch.testing.assert_close(run(model, x.flip(0)[:, 25:], other), after)
    assert (after - expected.flip(0)[:, 25:]).abs().mean() < 0.02 * expected.abs().mean()
    one.reset()
    assert one.get_seq_length() == 0
    torch.testing.assert_close(run(model, x, one), expected)
    options = {"max_new_tokens": 5, "num_beams": 3, "do_sample": False, "pad_token_id": 0}
    assert model.generate(x, cache=ht.SmallCache(model, keys, values), **options).shape == (2, 35)
    narrow = llama().to(torch.bfloat16)
    narrow.model.rotary_emb = model.model.rotary_emb
    small = ht.SmallCache(narrow, keys, values)
    assert run(narrow, x, small).dtype == torch.bfloat16
    assert small.layers[1].read("values").dtype == torch.bfloat16


def test_devices_without_the_core_read_the_same(both, monkeypatch):
    """Other devices read by operations of PyTorch, in blocks."""
    model, keys, values = both
    x = tokens(2, 50, seed=4)
    expected = run(model, x, ht.SmallCache(model, keys, values))
    monkeypatch.setattr(Packing, "unpack", Packing.unpack_anywhere)
    monkeypatch.setattr("headfit._cache.packing.BLOCK", 7)
    cache = ht.SmallCache(model, keys, values)
    # A number on the edge between two codes may be read as the other one.
    assert (run(model, x, cache) - expected).abs().mean() < 0.02 * expected.abs().mean()
    assert cache.layers[0].read("values").shape == (2, KEY_HEADS, 50, SIZE)


def test_layers_share_the_angles_of_positions(small, monkeypatch):
    model, found = small
    counts, table = [], Packing.table

    def counted(packing, positions):
        counts.append(positions.shape[-1])
        return table(packing, positions)

    monkeypatch.setattr(Packing, "table", counted)
    cache = ht.SmallCache(model, found)
    for part in tokens(1, 30, seed=2).split([20, 1, 9], dim=-1):
        run(model, part, cache)
    assert counts == [20, 21, 30]
    # As many tokens of other texts, with padding on the left: the angles are other ones.
    padded = {"attention_mask": (torch.arange(30) >= torch.tensor([[4], [0]])).long()}
    padded["position_ids"] = (padded["attention_mask"].cumsum(-1) - 1).clamp_min(0)
    x = tokens(2, 30, seed=2)
    for own in (padded, {name: of.flip(0) for name, of in padded.items()}):
        cache = ht.SmallCache(model, found)
        run(model, x, cache, **own)
        keys = cache.layers[0].read()
        cache.reorder_cache(torch.tensor([1, 0]))
        torch.testing.assert_close(cache.layers[0].read(), keys.flip(0))
    assert counts[3:] == [30] * 4


def test_what_is_not_finite_is_seen(both, made):
    """A key or value that is NaN or infinite is not read as a plausible number."""
    _, keys, values = both
    name = next(iter(keys.layers))
    states = np.random.default_rng(0).normal(size=(KEY_HEADS, 6, SIZE)).astype(np.float32)
    for bad in (np.nan, np.inf):
        states[0, 2, 1] = bad
        for own in (keys[name], values[name]):
            packing = own.packing.on(lambda x: torch.as_tensor(x, dtype=torch.float32))
            table = packing.table(torch.arange(6))
            read = packing.unpack(packing.pack(torch.tensor(states), table), table)
            assert torch.isnan(read[:, 2]).any()
            assert torch.isfinite(read[:, [0, 1, 3, 4, 5]]).all()
        by_latents = dataclasses.replace(keys[name], step="latent").packing
        with pytest.raises(NonFiniteError, match="numbers to store in bits must be finite"):
            by_latents.pack(states, by_latents.table(np.arange(6)))
        packing = made[1][(("rank", 10),)][name].packing  # without bits, and not turned
        assert np.isnan(packing.unpack(packing.pack(states, None), None)[:, 2]).any()
    large = states.copy()
    large[0, 2] = 1e20  # whose squares float32 does not hold
    packing = values[name].packing
    assert np.abs(packing.unpack(packing.pack(large, None), None)[:, 2]).max() > 1e4


def test_values_that_do_not_fit_are_refused(both):
    model, keys, values = both
    name = next(iter(values.layers))
    with pytest.raises(InputError, match="values must be a mapping of layers; got list"):
        ht.SmallCache(model, {}, [values])
    with pytest.raises(InputError, match=r"values must have a CompressedValues .* CompressedKeys"):
        ht.SmallCache(model, keys, keys)
    with pytest.raises(InputError, match=r"found must have a CompressedKeys .* CompressedValues"):
        ht.SmallCache(model, values)
    refused = "values must name attention layers of model that cache its own tokens; got 'nowhere'"
    with pytest.raises(InputError, match=refused):
        ht.SmallCache(model, {}, {"nowhere": values[name]})
    rng = np.random.default_rng(0)
    q, v = rng.normal(size=(2, 1, 5, SIZE))
    of_one = hf.compress_values({name: [((q, q), v)]})
    with pytest.raises(InputError, match="values must be of 2 key heads"):
        ht.SmallCache(model, {}, of_one)
    q, v = rng.normal(size=(2, KEY_HEADS, 5, SIZE))
    of_others = hf.compress_values({name: [((q, q), v[..., :4])]})
    cache = ht.SmallCache(model, {}, of_others)
    for _ in range(2):  # a cache that did not fit does not store whole values then
        with pytest.raises(InputError, match=r"values must have heads and size \[2, 4\]; got"):
            run(model, tokens(1, 5), cache)


def test_threads_know_their_own_positions(small):
    model, found = small
    x, cache = tokens(1, 12, seed=6), ht.SmallCache(model, found)
    run(model, x, cache)
    other = torch.arange(12)[None] + 5
    call = threading.Thread(target=run, args=(model, x, None), kwargs={"position_ids": other})
    call.start()
    call.join()
    assert cache.layers[0]._noted.ids.tolist() == [list(range(12))]


def test_a_crop_to_padding_alone(made):
    """New tokens begin at position 0 where nothing real is left of an entry."""
    model, found = made[0], made[1][("rank", 10),]
    x, mask = tokens(2, 8), torch.ones(2, 8, dtype=int)
    mask[0, :5] = 0
    caches = transformers.DynamicCache(config=model.config), ht.SmallCache(model, found)
    for cache in caches:
        run(model, x, cache, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clip(0))
        cache.crop(-5)
    longer = torch.cat([mask[:, :3], torch.ones(2, 4, dtype=int)], 1)
    given = {"attention_mask": longer, "position_ids": (longer.cumsum(1) - 1).clip(0)[:, 3:]}
    whole, small = (run(model, x[:, :4], cache, **given)[:, -1] for cache in caches)
    assert (small - whole).abs().mean() < 0.1 * whole.abs().mean()


def test_an_encoder_and_cross_attention_have_no_small_cache():
    config = transformers.BartConfig(
        vocab_size=50, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, pad_token_id=0,
    )  # fmt: skip
    model = transformers.BartForConditionalGeneration(config)
    tokens = torch.arange(3, 33).reshape(2, 15)
    with ht.capture(model.eval(), values=True, statistics=False) as heads:
        heads.run([{"input_ids": tokens, "decoder_input_ids": tokens[:, :9]}])
    found = hf.compress_values(heads.layer_passages(values=True), bytes=8)
    own = "model.decoder.layers.0.self_attn"
    assert len(found.layers) == 3
    assert ht.SmallCache(model, {}, {own: found[own]}).layers[0].found["values"] is found[own]
    for name in found.layers.keys() - {own}:
        with pytest.raises(InputError, match=f"that cache its own tokens; got '{name}'"):
            ht.SmallCache(model, {}, {own: found[own], name: found[name]})


def test_a_rotary_embedding_that_a_model_does_not_use():
    config = transformers.FalconConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=1, ffn_hidden_size=32,
        num_attention_heads=4, alibi=True, multi_query=False, new_decoder_architecture=False,
    )  # fmt: skip
    model = transformers.FalconForCausalLM._from_config(config, attn_implementation="sdpa").eval()
    with pytest.raises(CaptureError, match="must have one rotary embedding"):
        ht.rotary_position(model)
    with ht.capture(model, statistics=False) as heads:
        heads.run([torch.arange(30)[None]])
    ht.SmallCache(model, hf.compress_keys(heads.layer_passages(), rank=4, effort=0))
