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
        t.T5Config(vocab_size=50, d_model=32, d_kv=8, d_ff=32, num_layers=2, num_heads=4)
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
    record_property("deviation", worst)
    print(f"{name} {backend} {padding}: {worst:.1e}")
    assert worst <= 1e-5
    kinds = {"self", "cross"} if name == "t5" else {"self"}
    assert {layer.kind for layer in heads.layers} == kinds
    assert all(layer.deviation < 1e-5 for layer in heads.layers)
