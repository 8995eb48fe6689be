"""Shrink the heads of a small trained transformer, compared with the SVD of their logits.

A character model of two layers of four heads is trained for a minute on Python's own standard
library; its eight heads, on text that it has not seen, are fitted at several sizes and searched
for the smallest that stays within a mean total variation of 0.05, and for the smallest that
keeps 90% of every row in at most eight entries. Needs torch; under three minutes on two cores.
"""

from __future__ import annotations

import sysconfig
import time
from pathlib import Path

import numpy as np

import measure

LAYERS, HEADS, SIZE, TOKENS = 2, 4, 32, 128
DIMS = (4, 8, 16)
TV = 0.05


def text():
    """Return source code of the standard library as bytes below 128."""
    folder = Path(sysconfig.get_path("stdlib"))
    names = sorted(folder.glob("*.py"))
    joined = b"\n".join(name.read_bytes() for name in names)
    return np.frombuffer(joined, dtype=np.uint8) & 127


def trained(seconds, threads):
    """Return Q and K of every head on held-out text, and the model's loss there."""
    import torch
    from torch import nn
    from torch.nn import functional as f

    torch.manual_seed(0)
    torch.set_num_threads(threads)
    width = HEADS * SIZE

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )

        def forward(self, x, seen=None):
            q, k, v = (
                y.unflatten(-1, (HEADS, SIZE)).transpose(1, 2)
                for y in self.qkv(self.first(x)).chunk(3, dim=-1)
            )
            if seen is not None:
                seen.append((q[0].numpy(), k[0].numpy()))
            y = f.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).flatten(2))
            return x + self.mlp(self.second(x))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.byte, self.place = nn.Embedding(128, width), nn.Embedding(TOKENS, width)
            self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
            self.end, self.logits = nn.LayerNorm(width), nn.Linear(width, 128)

        def forward(self, tokens, seen=None):
            x = self.byte(tokens) + self.place.weight
            for block in self.blocks:
                x = block(x, seen)
            return self.logits(self.end(x))

    data = torch.from_numpy(text().astype(np.int64))
    train, held = data[: -(2**16)], data[-(2**16) :]
    model = Model()
    for embedding in (model.byte, model.place):
        nn.init.normal_(embedding.weight, std=0.1)  # small compared with what the blocks add
    optimizer = torch.optim.AdamW(model.parameters())
    start = time.perf_counter()
    while (part := (time.perf_counter() - start) / seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * (1 - part) + 1e-5
        at = torch.randint(len(train) - TOKENS - 1, (8, 1)) + torch.arange(TOKENS + 1)
        batch = train[at]
        loss = f.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        at = torch.arange(0, len(held) - TOKENS - 1, TOKENS)[:64, None] + torch.arange(TOKENS + 1)
        batch = held[at]
        loss = f.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        seen = []
        model(batch[:1, :-1], seen)
    heads = [(q[h], k[h]) for q, k in seen for h in range(HEADS)]
    return heads, float(loss)


def main():
    parser = measure.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="of training")
    given = parser.parse_args()
    import headfit as hf

    heads, loss = trained(2 if given.quick else given.seconds, given.threads)
    print(f"{measure.machine()}; {given.threads} threads; loss {loss:.3f} nats a byte, held out")
    measured = hf.describe(
        np.stack([q for q, _ in heads]), np.stack([k for _, k in heads]), mask="causal"
    )
    print(measured)
    close = [["head", *(f"d={d}: SVD / ours" for d in DIMS), "smallest for .05", "SVD", "s"]]
    kept = [["head", "certified", "dropped", "tv mean", "SVD there", "s"]]
    figures = []
    for h, (q, k) in enumerate(heads):
        name = f"{h // HEADS}.{h % HEADS}"
        small = hf.shrink(
            q, k, mask="causal", tv=TV, curve_dims=range(1, SIZE + 1), num_threads=given.threads
        )
        ours, svd = (dict(zip(c.dim.tolist(), c.tv_mean, strict=True))
                     for c in (small.curve, small.baseline))  # fmt: skip
        assert small.tv_mean <= TV
        assert all(ours[d] <= svd[d] for d in ours)
        svd_needs = min(d for d in svd if svd[d] <= TV)
        close.append(
            [name, *(f"{svd[d]:.3f} / {ours[d]:.3f}" for d in DIMS), str(small.dim),
             str(svd_needs), f"{small.seconds:.1f}"]
        )  # fmt: skip
        heaviest = hf.sparsify(q, k, mask="causal", per_row=8, mass=0.9, num_threads=given.threads)
        sparse = hf.fit(heaviest, num_threads=given.threads, time_limit=1 if given.quick else 8)
        away = hf.compare(hf.Attention(q, k, mask="causal"), sparse, num_threads=given.threads)
        certified = sparse.dim if sparse.certificate.holds else None
        kept.append([name, str(certified), f"{heaviest.tv_mean:.3f}", f"{away.tv_mean:.3f}",
                     f"{svd[min(sparse.dim, SIZE)]:.3f}", f"{sparse.seconds:.1f}"])  # fmt: skip
        figures.append({"head": name, "ours": ours, "svd": svd, "dim": small.dim,
                        "pattern": certified})  # fmt: skip
    measure.table(f"mean total variation, {TOKENS} tokens, size {SIZE}", close)
    measure.table("certified: 90% of a row in at most 8 entries", kept)
    measure.finish(given, {"shrink": figures})


if __name__ == "__main__":
    main()
