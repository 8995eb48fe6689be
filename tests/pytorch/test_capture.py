"""What `capture` reads of a running model is what the model's own attention computes."""

from __future__ import annotations

import numpy as np
import pytest

import headfit as hf

torch = pytest.importorskip("torch")
ht = pytest.importorskip("headfit.torch")
transformers = pytest.importorskip("transformers")

N = 12
SMALL = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = {**SMALL, "num_key_value_heads": 2, "intermediate_size": 32}
HEAD = {**GROUPED, "head_dim": 8}

MODELS = {
    "gpt2": lambda t: t.GPT2LMHeadModel(
        t.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    ),
    "bert": lambda t: t.BertModel(t.BertConfig(**SMALL, intermediate_size=32)),
    "llama": lambda t: t.LlamaForCausalLM(t.LlamaConfig(**GROUPED)),
    "mistral": lambda t: t.MistralForCausalLM(t.MistralConfig(**GROUPED, sliding_window=5)),
    "qwen3": lambda t: t.Qwen3ForCausalLM(t.Qwen3Config(**HEAD)),
    "gemma2": lambda t: t.Gemma2ForCausalLM(
        t.Gemma2Config(**HEAD, attn_logit_softcapping=2.0, sliding_window=5)
    ),
    "gpt_oss": lambda t: t.GptOssForCausalLM(
        t.GptOssConfig(**HEAD, sliding_window=5, num_local_experts=2, num_experts_per_tok=1)
    ),
    "t5": lambda t: t.T5ForConditionalGeneration(
        # With weights of the usual size outputs reach 7, where float32 is no nearer than 1e-5.
        t.T5Config(
            vocab_size=50,
            d_model=32,
            d_kv=8,
            d_ff=32,
            num_layers=2,
            num_heads=4,
            initializer_factor=0.8,
        )
    ),
}
# Which backends the library lets these models have.
CASES = [
    (name, backend)
    for name in MODELS
    for backend in ("eager", "sdpa")
    if (name, backend) not in {("gemma2", "sdpa"), ("gpt_oss", "sdpa")}
]
PADDING = ["none", "left", "right", "one"]


@pytest.fixture(autouse=True)
def quiet():
    transformers.logging.set_verbosity_error()


def model_of(name, backend, dtype=torch.float32):
    torch.manual_seed(0)
    model = MODELS[name](transformers).eval().to(dtype)
    with torch.no_grad():  # larger weights, so that attention is far from uniform
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
            else:
                parameter.add_(0.3 * torch.randn_like(parameter))
    model.set_attn_implementation(backend)
    return model


def inputs_of(name, padding, n=N):
    torch.manual_seed(1)
    batch = 1 if padding == "one" else 3
    ids = torch.randint(5, 50, (batch, n))
    mask = torch.ones(batch, n, dtype=torch.long)
    if padding == "left":
        mask[0, :4] = mask[2, :1] = 0
    elif padding == "right":
        mask[0, -4:] = mask[2, -1:] = 0
    given = {"input_ids": ids, "attention_mask": mask}
    if name == "t5":
        given["decoder_input_ids"] = torch.randint(5, 50, (batch, n - 3))
        given["decoder_attention_mask"] = mask[:, 3:] if padding == "left" else mask[:, :-3]
    return given


class Watch:
    """The values and the outputs of a model's attention layers, by hooks on their projections."""

    def __init__(self, model):
        self.values, self.outputs, self.removed = {}, {}, []
        for path, module in model.named_modules():
            layer, _, last = path.rpartition(".")
            if last in ("v_proj", "value", "v", "c_attn"):
                self.removed.append(module.register_forward_hook(self.value_of(layer)))
            if last in ("o_proj", "o") or path.endswith("attn.c_proj"):
                self.removed.append(module.register_forward_pre_hook(self.output_of(layer)))
            if path.endswith("attention.self"):
                self.removed.append(module.register_forward_hook(self.result_of(path)))

    def value_of(self, layer):
        def hook(module, args, out):
            self.values[layer] = out[..., -out.shape[-1] // 3 :] if "nf" in vars(module) else out

        return hook

    def output_of(self, layer):
        def hook(module, args):
            self.outputs[layer] = args[0]

        return hook

    def result_of(self, layer):
        def hook(module, args, out):
            self.outputs[layer] = out[0]

        return hook

    def heads(self, layer, count, key_heads):
        value, output = self.values[layer], self.outputs[layer]
        return (
            x.unflatten(-1, (h, -1)).transpose(1, 2).detach().float().numpy()
            for x, h in ((value, key_heads), (output, count))
        )


def real_rows(name, layer, given):
    decoder = name == "t5" and layer.startswith("decoder")
    return given["decoder_attention_mask" if decoder else "attention_mask"].numpy().astype(bool)


def deviation(name, model, heads, watch, given):
    """Return the largest difference between the layers' outputs and `attention_apply`."""
    worst = 0.0
    assert len(heads.layers) == (6 if name == "t5" else 2)
    for layer in heads.layers:
        value, output = watch.heads(layer.name, layer.heads, layer.key_heads)
        whole = heads[layer.name]
        ours = whole.apply(value[0] if len(value) == 1 else value)
        ours = ours.reshape(output.shape)
        rows = real_rows(name, layer.name, given)
        worst = max(worst, abs(ours - output).transpose(0, 2, 1, 3)[rows].max())
        for head in range(layer.heads):
            one = heads[layer.name, head]
            key_head = head // (layer.heads // layer.key_heads)
            v = value[:, key_head]
            mine = one.apply(v[0] if len(v) == 1 else v).reshape(output[:, head].shape)
            np.testing.assert_allclose(mine[rows], output[:, head][rows], atol=1e-5)
    return worst


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize(("name", "backend"), CASES)
def test_captured_heads_give_the_layers_own_output(name, backend, padding, record_property):
    model, given = model_of(name, backend), inputs_of(name, padding)
    with torch.no_grad():
        expected = model(**given).last_hidden_state if name == "bert" else model(**given).logits
        watch = Watch(model)
        with hf.torch.capture(model, check=True) as heads:
            out = model(**given)
        for handle in watch.removed:
            handle.remove()
    found = out.last_hidden_state if name == "bert" else out.logits
    assert torch.equal(found, expected)  # bit for bit
    assert model.config._attn_implementation == backend
    worst = deviation(name, model, heads, watch, given)
    record_property("deviation", float(worst))
    print(f"{name} {backend} {padding}: {worst:.1e}")
    assert worst <= 1e-5
    counted = [real_rows(name, layer.name, given).sum() for layer in heads.layers for _ in range(4)]
    assert heads.table().numbers["rows"].tolist() == counted
    kinds = {"self", "cross"} if name == "t5" else {"self"}
    assert {layer.kind for layer in heads.layers} == kinds
    assert all(layer.deviation < 1e-5 for layer in heads.layers)


OF_BART = {
    **{"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "decoder_start_token_id": 1},
    **{"encoder_attention_heads": 4, "decoder_attention_heads": 4, "pad_token_id": 0},
    **{"encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "vocab_size": 50},
}
LATENT = {
    **{"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4},
    **{"v_head_dim": 8, "n_routed_experts": 4, "n_group": 1, "topk_group": 1},
    **{"num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_key_value_heads": 4},
}
MORE_MODELS = {
    "BartForConditionalGeneration": (OF_BART, 3),
    "AlbertModel": ({**SMALL, "intermediate_size": 32, "embedding_size": 16}, 1),
    "ModernBertModel": (
        {
            **{**SMALL, "intermediate_size": 32, "local_attention": 4, "pad_token_id": 0},
            **{"global_attn_every_n_layers": 2, "cls_token_id": 1, "sep_token_id": 2},
        },
        2,
    ),
    "Gemma3ForCausalLM": ({**HEAD, "sliding_window": 5}, 2),
    "DeepseekV3ForCausalLM": ({**SMALL, **LATENT, "intermediate_size": 32}, 2),
    "ViTModel": (
        {**SMALL, "intermediate_size": 32, "image_size": 32, "patch_size": 8},
        2,
    ),
}


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("name", MORE_MODELS)
def test_more_models(name, backend):
    settings, layers = MORE_MODELS[name]
    settings = dict(settings)
    given = inputs_of("more", "left")
    if name == "ViTModel":
        del settings["vocab_size"]
        given = {"pixel_values": torch.randn(2, 3, 32, 32)}
    kind = getattr(transformers, name)
    torch.manual_seed(0)
    model = kind._from_config(kind.config_class(**settings), attn_implementation=backend).eval()
    with torch.no_grad():
        expected = model(**given)[0]
        with hf.torch.capture(model, check=True) as heads:
            assert torch.equal(model(**given)[0], expected)
    assert len(heads.layers) == layers
    assert all(layer.deviation < 1e-6 for layer in heads.layers)


@pytest.mark.parametrize(("name", "backend"), CASES)
def test_captured_matrices_are_the_models_weights(name, backend):
    given = inputs_of(name, "none")
    eager, model = model_of(name, "eager"), model_of(name, backend)
    with torch.no_grad():
        out = eager(**given, output_attentions=True)
        with hf.torch.capture(model) as heads:
            model(**given)
    if name == "t5":
        weights = [*out.encoder_attentions]
        for own, cross in zip(out.decoder_attentions, out.cross_attentions, strict=True):
            weights += [own, cross]
    else:
        weights = out.attentions
    for layer, expected in enumerate(weights):
        np.testing.assert_allclose(heads[layer].matrix(), expected, atol=1e-5)


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "t5"])
def test_generation_with_a_cache(name, backend):
    model, given = model_of(name, backend), inputs_of(name, "left")
    for option in ("decoder_input_ids", "decoder_attention_mask"):
        given.pop(option, None)
    settings = {"max_new_tokens": 4, "do_sample": False, "min_new_tokens": 4, "pad_token_id": 0}
    if name == "t5":
        settings["decoder_start_token_id"] = 0
    expected = model.generate(**given, **settings)
    with hf.torch.capture(model, check=True) as heads:
        found = model.generate(**given, **settings)
    assert torch.equal(found, expected)
    layer = next(x for x in heads.layers if "encoder" not in x.name and x.kind == "self")
    assert layer.calls == 4
    sizes = [(heads[layer.name, 0, c].n, heads[layer.name, 0, c].m) for c in range(4)]
    if name == "mistral":  # its cache holds no more keys than the window
        assert sizes[0] == (N, N)
        assert all(n == 1 and m <= 5 for n, m in sizes[1:])
    elif name == "t5":
        assert sizes == [(1, 1), (1, 2), (1, 3), (1, 4)]
    else:
        assert sizes == [(N, N), (1, N + 1), (1, N + 2), (1, N + 3)]
        last = heads[layer.name, 0, 3].matrix()
        assert (last[0, :, :4] == 0).all()  # padding
        np.testing.assert_allclose(last.sum(axis=-1), 1, atol=1e-6)


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_a_cache_of_fixed_size(backend):
    model, given = model_of("llama", backend), inputs_of("llama", "none")
    settings = {"max_new_tokens": 3, "do_sample": False, "cache_implementation": "static"}
    settings |= {"min_new_tokens": 3, "disable_compile": True, "pad_token_id": 0}
    expected = model.generate(**given, **settings)
    with hf.torch.capture(model, check=True) as heads:
        found = model.generate(**given, **settings)
    assert torch.equal(found, expected)
    assert heads.table().numbers["diagonal"] == pytest.approx(
        np.concatenate([diagonal_of(heads, layer.name) for layer in heads.layers]), abs=1e-6
    )


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
def test_induction_with_a_cache_of_fixed_size(backend):
    model, given = model_of("llama", backend), {"input_ids": torch.arange(10, 22).repeat(1, 2)}
    tables = []
    for cache in (None, transformers.StaticCache(config=model.config, max_cache_len=40)):
        with hf.torch.capture(model) as heads, torch.no_grad():
            model(**given, cache=cache)
        tables.append(heads.table().numbers["induction"])
    np.testing.assert_allclose(*tables, atol=1e-6)
    assert not np.isnan(tables).any()


@pytest.mark.parametrize("parts", [[(0, 12)], [(0, 5), (5, 12)], [(0, 2), (2, 11), (11, 12)]])
@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("size", [None, 40])
def test_a_mask_may_have_columns_for_later_tokens(size, backend, parts):
    model, x = model_of("llama", backend), torch.arange(1, 25).reshape(2, 12)
    mask = torch.ones_like(x)
    mask[0, :3] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    tables, logits = [], []
    for ahead in (0, 28):
        cache = transformers.DynamicCache(config=model.config)
        if size:
            cache = transformers.StaticCache(config=model.config, max_cache_len=size)
        with torch.no_grad(), hf.torch.capture(model) as heads:
            for begin, end in parts:
                known = torch.nn.functional.pad(mask, (0, ahead))[:, : end + ahead]
                given = {"position_ids": positions[:, begin:end], "cache": cache}
                logits.append(model(x[:, begin:end], attention_mask=known, **given).logits[1])
        tables.append(heads.table().numbers)
    torch.testing.assert_close(logits[: len(parts)], logits[len(parts) :])
    for name, column in tables[0].items():
        np.testing.assert_array_equal(tables[1][name], column, err_msg=name)


def test_an_attention_that_is_no_part_of_a_model():
    config = transformers.LlamaConfig(**GROUPED)
    layer = transformers.models.llama.modeling_llama.LlamaAttention(config, 0).eval()
    assert config._attn_implementation is None
    layer.scaling = 0.2  # not that of its size
    x, n = torch.randn(2, N, 32), torch.arange(N)
    turns = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)(x, n[None])
    mask = torch.zeros(2, 1, N, N).masked_fill(n > n[:, None], -torch.inf)
    with torch.no_grad(), hf.torch.capture(layer, check=True) as heads:
        layer(x, position_embeddings=turns, attention_mask=mask)
    assert heads["model", 0].scale == 0.2
    assert not np.triu(heads["model", :].matrix(), 1).any()


def diagonal_of(heads, layer):
    """Return the mean weight of each query's own key, if the last key seen is the last query's."""
    total = []
    for call in range(heads.layers[0].calls):
        matrix = heads[layer, :, call].matrix()
        keys = matrix.any(axis=(0, 1, 2)).nonzero()[0][-1] + 1
        rows = np.arange(matrix.shape[-2])
        total.append(matrix[..., rows, rows + keys - len(rows)])
    return np.concatenate(total, axis=-1).mean(axis=(0, -1))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["gpt2", "bert", "mistral"])
def test_padding_does_not_count(name, side):
    model, given = model_of(name, "sdpa"), inputs_of(name, side)
    ids, mask = given["input_ids"], given["attention_mask"].bool()
    with torch.no_grad(), hf.torch.capture(model) as padded:
        model(**given, position_ids=(mask.cumsum(1) - 1).clamp(min=0))
    with torch.no_grad(), hf.torch.capture(model) as alone:
        for row, there in zip(ids, mask, strict=True):
            model(input_ids=row[there][None])
    a, b = padded.table(), alone.table()
    for column, values in b.numbers.items():
        if column in ("layer", "kind"):
            assert (a.numbers[column] == values).all()
        else:
            np.testing.assert_allclose(a.numbers[column], values, atol=2e-5, err_msg=column)
    for layer, profile in b.distances.items():
        np.testing.assert_allclose(a.distances[layer], profile, atol=1e-6)
        np.testing.assert_allclose(a.column_mass[layer], b.column_mass[layer], atol=1e-6)
    assert not np.isnan(a.numbers["induction"]).any()


def test_statistics_are_those_of_describe():
    model, given = model_of("llama", "sdpa"), inputs_of("llama", "none")
    ids = given["input_ids"]
    with torch.no_grad(), hf.torch.capture(model) as heads:
        heads.run([ids[:2], ids[2:]])
    with torch.no_grad(), hf.torch.capture(model) as whole:
        model(**given)
    numbers = heads.table().numbers
    for layer in range(2):
        expected = hf.describe(whole[layer], tokens=ids).columns()
        of_layer = slice(4 * layer, 4 * layer + 4)
        for name in ("keys90_mean", "top8_mean", "entropy", "distance", "previous", "diagonal"):
            np.testing.assert_allclose(
                numbers[name][of_layer], expected[name].mean(axis=0), rtol=1e-6
            )
        for name in ("keys90_max", "max_load", "gamma"):
            np.testing.assert_allclose(
                numbers[name][of_layer], expected[name].max(axis=0), rtol=1e-6
            )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("name", "backend"), CASES)
def test_narrow_models(name, backend, dtype):
    model, given = model_of(name, backend, dtype), inputs_of(name, "right")
    with torch.no_grad(), hf.torch.capture(model, check=True) as heads:
        model(**given)
    assert all(x.dtype.itemsize == 2 for x in heads[0].stored)


def test_training_and_gradients_go_on():
    model, given = model_of("gpt2", "sdpa"), inputs_of("gpt2", "none")
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.1
    model.train()
    losses = []
    for captured in (False, True):
        torch.manual_seed(5)
        model.zero_grad()
        if captured:
            with hf.torch.capture(model) as heads:
                loss = model(**given, labels=given["input_ids"]).loss
                loss.backward()
        else:
            loss = model(**given, labels=given["input_ids"]).loss
            loss.backward()
        losses.append((loss.item(), model.transformer.wte.weight.grad.clone()))
    assert losses[0][0] == losses[1][0]
    assert torch.equal(losses[0][1], losses[1][1])
    assert heads.layers[0].calls == 1


def test_what_is_no_attention_of_ours_is_refused():
    model, given = model_of("llama", "sdpa"), inputs_of("llama", "none")
    interface = transformers.AttentionInterface
    before, config = interface.get_interface, dict(vars(model.config))
    with hf.torch.capture(model):
        with pytest.raises(
            hf.errors.CaptureError, match=r"layers.0.self_attn: its attention takes twist"
        ):
            model(**given, twist=2)
        model(**given, twist=None)
    model.model.gradient_checkpointing = True
    model.train()
    with pytest.raises(hf.errors.CaptureError, match="recomputes its layers"):
        hf.torch.capture(model).__enter__()
    model.model.gradient_checkpointing = False
    interface.register("own", interface()["sdpa"])
    transformers.AttentionMaskInterface.register(
        "own", transformers.AttentionMaskInterface()["sdpa"]
    )
    try:
        model.set_attn_implementation("own")
        with (
            hf.torch.capture(model),
            pytest.raises(hf.errors.CaptureError, match="implementation 'own' is not captured"),
        ):
            model(**given)
    finally:
        del interface._global_mapping["own"]
        del transformers.AttentionMaskInterface._global_mapping["own"]
    model.set_attn_implementation("sdpa")
    assert interface.get_interface is before
    assert dict(vars(model.config)) == config


def test_other_models_are_left_alone():
    model, other = model_of("llama", "sdpa"), model_of("gpt2", "eager")
    given = inputs_of("llama", "none")
    with hf.torch.capture(model) as heads, hf.torch.capture(other, keep=0) as others:
        model(**given)
        other(**given)
        with hf.torch.capture(model.model.layers[1], keep=0) as inner:
            model(**given)
    assert [layer.calls for layer in heads.layers] == [2, 2]
    assert [layer.name for layer in others.layers] == [
        "transformer.h.0.attn",
        "transformer.h.1.attn",
    ]
    assert [(layer.name, layer.calls, layer.kept) for layer in inner.layers] == [
        ("self_attn", 1, 0)
    ]
    np.testing.assert_array_equal(heads[1, 2, 0].matrix(), heads[1, 2, 1].matrix())


def test_captures_may_end_in_any_order():
    interface = transformers.AttentionInterface
    before = interface.get_interface
    model, given = model_of("llama", "sdpa"), inputs_of("llama", "none")
    from headfit.torch.capture import Recorder
    from headfit.torch.captured import CapturedHeads
    from headfit.torch.running import replaced_look_up

    captures = []
    for _ in range(2):
        found = CapturedHeads(model, 4096, None)
        context = replaced_look_up(Recorder(model, found, None, 1, False))
        context.__enter__()
        captures.append((context, found))
    captures[0][0].__exit__(None, None, None)
    model(**given)
    captures[1][0].__exit__(None, None, None)
    model(**given)
    assert [len(found.layers) for _, found in captures] == [0, 2]
    assert captures[1][1].layers[0].calls == 1
    assert interface.get_interface is before


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3"])
def test_values_of_passages_give_the_layers_own_output(name, padding):
    model, given = model_of(name, "sdpa"), inputs_of(name, padding)
    outputs = []
    own = torch.nn.functional.scaled_dot_product_attention

    def noted(*args, **kwargs):
        outputs.append(own(*args, **kwargs))
        return outputs[-1]

    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention", noted)
        model(**given)
    with torch.no_grad(), hf.torch.capture(model, statistics=False, values=True) as heads:
        model(**given)
    pairs = heads.layer_passages(values=True)
    alone = heads.layer_passages()
    for (layer, of), output in zip(pairs.items(), outputs, strict=True):
        rows = real_rows(name, layer, given)
        assert len(of) == len(alone[layer]) == sum(row.any() for row in rows)
        kept = [output[b].numpy()[:, row] for b, row in enumerate(rows) if row.any()]
        for (attention, v), plain, expected in zip(of, alone[layer], kept, strict=True):
            np.testing.assert_array_equal(attention.K, plain.K)
            assert v.shape[:2] == attention.stored[1].shape[:2]
            np.testing.assert_allclose(attention.apply(v), expected, atol=1e-5)
        assert hf.compress_values({layer: of}, bits=8)[layer].error < 0.05


def test_values_of_multihead_attention():
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(16, num_heads=2, batch_first=True).eval()
    x, y = torch.randn(3, 10, 16), torch.randn(3, 7, 16)
    with torch.no_grad(), hf.torch.capture(layer, values=True) as heads:
        out, _ = layer(x, y, y)
        # What the projection makes of attention times values is the output.
        (of,) = heads.layer_passages(values=True).values()
        for b, (attention, v) in enumerate(of):
            applied = torch.tensor(attention.apply(v)).transpose(0, 1).reshape(10, 16)
            torch.testing.assert_close(layer.out_proj(applied), out[b], atol=1e-5, rtol=1e-4)


def test_values_are_kept_where_they_are_asked_for():
    model = model_of("llama", "sdpa")
    with torch.no_grad(), hf.torch.capture(model, statistics=False) as heads:
        model(**inputs_of("llama", "none"))
    with pytest.raises(
        hf.errors.CaptureError, match=r"no values were kept: capture\(model, values"
    ):
        heads.layer_passages(values=True)
    with pytest.raises(hf.errors.InputError, match="values must be"):
        heads.layer_passages(values=1)


def test_heads_keep_their_sinks():
    model = MODELS["gpt_oss"](transformers).eval()
    model.set_attn_implementation("eager")
    with ht.capture(model) as heads:
        heads.run([{"input_ids": torch.randint(5, 50, (2, N))}])
    before = heads[0, 0].matrix()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.sinks.fill_(5.0)
    np.testing.assert_array_equal(heads[0, 0].matrix(), before)


def test_a_mask_of_samples_is_not_one_of_tokens():
    config = transformers.Wav2Vec2Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32,
        conv_dim=(8, 8), conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2,
        num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4, feat_extract_norm="layer",
        do_stable_layer_norm=True,
    )  # fmt: skip
    model, sound = transformers.Wav2Vec2Model(config).eval(), torch.randn(2, 400)
    mask = torch.ones(2, 400, dtype=torch.long)
    mask[1, 300:] = 0
    with ht.capture(model) as heads:
        heads.run([{"input_values": sound * mask, "attention_mask": mask}])
    lengths = [[p.m for p in own] for own in heads.layer_passages().values()]
    assert lengths == [[39, 29]] * 2


def test_what_is_compiled_or_no_list_of_batches_is_refused():
    model = MODELS["llama"](transformers).eval()
    batch = {"input_ids": torch.randint(5, 50, (2, N))}
    with ht.capture(model) as heads:
        for batches in (batch, 3, batch["input_ids"]):
            with pytest.raises(
                hf.errors.InputError, match="batches must be an iterable of batches"
            ):
                heads.run(batches)
        heads.run([batch])
    model.model.layers[1].compile(backend="eager")
    with pytest.raises(hf.errors.CaptureError, match=r"layers.1 is compiled"), ht.capture(model):
        pass


def test_autocast_rounds_what_a_layer_gives():
    class Plain(torch.nn.Module):
        def forward(self, q, k, v):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    q, k, v = torch.randn(3, 2, 2, 20, 8, generator=torch.Generator().manual_seed(0))
    model = Plain().eval()
    with torch.autocast("cpu", torch.bfloat16), hf.torch.capture(model, check=True) as heads:
        model(q, k, v)
    assert 1e-4 < heads.layers[0].deviation < 0.05
