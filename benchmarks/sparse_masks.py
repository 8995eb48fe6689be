"""Attention within sparse masks, against NumPy and SciPy, and PyTorch where it fits, in float32.

python benchmarks/sparse_masks.py --quick
python benchmarks/sparse_masks.py --threads 1       # forty minutes
"""

from __future__ import annotations

import os
import time
from functools import partial

import measure

PARSER = measure.parser(__doc__)
PARSER.add_argument("--keys", type=int, nargs="+", default=[16, 64, 256, 1024], help="a row's")
OPTIONS = PARSER.parse_args()
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = str(OPTIONS.threads)

import numpy as np  # noqa: E402
import scipy  # noqa: E402
import scipy.sparse as sp  # noqa: E402
import torch  # noqa: E402
from torch.nn.attention.flex_attention import create_block_mask, flex_attention  # noqa: E402

import headfit as hf  # noqa: E402
from masks import KINDS, band_and_first, random  # noqa: E402

DIM = 64
MOST_ENTRIES = 2**27
DENSE_UP_TO = 16_384  # positions for which PyTorch gets the mask as n x n booleans


def in_numpy(Q, K, V, mask, at_once):
    """Return attention times values: gather, einsum, reduceat, and a sparse product.

    `at_once` entries are computed together: few stay in the caches, many call NumPy less often.
    """
    out = np.empty_like(V)
    n, k = len(Q), mask.indptr[1]
    scale = np.float32(Q.shape[1] ** -0.5)
    step = max(1, at_once // k)
    for first in range(0, n, step):
        last = min(first + step, n)
        columns = mask.indices[first * k : last * k]
        starts = np.arange(0, columns.size, k)
        rows = np.repeat(np.arange(first, last), k)
        s = np.einsum("ij,ij->i", Q[rows], K[columns]) * scale
        s = np.exp(s - np.repeat(np.maximum.reduceat(s, starts), k))
        s /= np.repeat(np.add.reduceat(s, starts), k)
        offsets = np.append(starts, columns.size)
        out[first:last] = sp.csr_array((s, columns, offsets), shape=(last - first, n)) @ V
    return out


def in_torch(Q, K, V, mask):
    """Return calls of compiled flex_attention and of SDPA, and what they compute."""
    q, k, v = (torch.from_numpy(x)[None, None] for x in (Q, K, V))
    n = len(Q)
    allowed = torch.from_numpy(mask.toarray())
    of_blocks = create_block_mask(lambda b, h, i, j: allowed[i, j], None, None, n, n, device="cpu")
    flex = torch.compile(flex_attention)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return {
        "flex": lambda: flex(q, k, v, block_mask=of_blocks)[0, 0].numpy(),
        "SDPA": lambda: sdpa(q, k, v, attn_mask=allowed)[0, 0].numpy(),
    }


def once(run):
    start = time.perf_counter()
    answer = run()
    return answer, time.perf_counter() - start


def heads(n):
    rng = np.random.default_rng(1)
    return tuple(rng.standard_normal((n, DIM), np.float32) for _ in range(3))


def values(kind, n, k):
    """Return the seconds of each way to compute attention times values."""
    Q, K, V = heads(n)
    mask = KINDS[kind](n, k)
    attention = hf.Attention(Q, K, mask=mask)
    by_chunks = [partial(in_numpy, Q, K, V, mask, 2**e) for e in (14, 16, 18)]
    expected = by_chunks[0]()  # arrays are touched before a size is chosen
    work = {
        "headfit": lambda: attention.apply(V, num_threads=OPTIONS.threads),
        "NumPy": min(by_chunks, key=lambda run: once(run)[1]),
    }
    if n <= DENSE_UP_TO:
        with torch.no_grad():
            work |= in_torch(Q, K, V, mask)
    with torch.no_grad():
        for name, run in work.items():
            np.testing.assert_allclose(run(), expected, rtol=2e-3, atol=2e-5, err_msg=name)
        return measure.interleaved(work, max(1, OPTIONS.repeat // (8 if n * k >= 2**24 else 2)))


def grid(sizes, keys):
    """Print a table of all kinds and sizes; return nanoseconds per entry of each."""
    rows = [["mask", "n", "keys a row", "headfit ms", "ns an entry", "NumPy", "flex", "SDPA"]]
    found = {}
    for kind in KINDS:
        for n in sizes:
            for k in keys:
                if n * k > MOST_ENTRIES or k > n // 4:
                    continue
                seconds = values(kind, n, k)
                ours = seconds["headfit"]
                found[f"{kind} n={n} k={k}"] = {**seconds, "ns": 1e9 * ours / (n * k)}
                rows.append([kind, f"{n:,}", str(k), f"{1e3 * ours:.1f}",
                             f"{1e9 * ours / (n * k):.1f}",
                             *(f"{seconds[x] / ours:.1f}x" if x in seconds else "-"
                               for x in ("NumPy", "flex", "SDPA"))])  # fmt: skip
                print(*rows[-1], flush=True)
                if k == 64:
                    measure.summarise(f"values, {kind} mask of 64 keys a row, n={n:,}", ours,
                                      "NumPy and SciPy", seconds["NumPy"])  # fmt: skip
    measure.table(f"attention times values, d = {DIM}", rows)
    return found


def crossover(n):
    """Print where tiles take over: the same random mask sparse and dense, by its density."""
    Q, K, V = heads(n)
    rows = [["density", "sparse, ms", "dense, ms", "none, ms"]]
    found = {}
    for density in (0.005, 0.01, 0.02, 0.05, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5):
        allowed = np.random.default_rng(2).random((n, n)) < density
        masks = {"sparse": sp.csr_array(allowed), "dense": allowed, "none": None}
        work = {
            name: partial(hf.attention_apply, Q, K, V, mask=mask, num_threads=OPTIONS.threads)
            for name, mask in masks.items()
        }
        np.testing.assert_allclose(work["sparse"](), work["dense"](), rtol=1e-3, atol=1e-5)
        seconds = measure.interleaved(work, max(1, OPTIONS.repeat // 2))
        found[str(density)] = seconds
        rows.append([f"{density:.1%}", *(f"{1e3 * s:.1f}" for s in seconds.values())])
    measure.table(f"attention times values by density, n = {n:,}, d = {DIM}", rows)
    return found


def questions(make, n, k):
    """Print what each question takes within one mask."""
    Q, K, V = heads(n)
    mask = make(n, k)
    attention, threads = hf.Attention(Q, K, mask=mask), OPTIONS.threads
    other = hf.Attention(Q, K, mask=mask, scale=0.1)
    target = hf.Target(some_keys(mask, 4), mask=mask)
    work = {
        "values": lambda: attention.apply(V, num_threads=threads),
        "matrix (sparse)": lambda: attention.matrix(sparse=True, num_threads=threads),
        "top-8": lambda: attention.topk(8, num_threads=threads),
        "statistics": lambda: attention.stats(num_threads=threads),
        "certificate": lambda: hf.certify(target, attention, num_threads=threads),
        "describe": lambda: hf.describe(attention, num_threads=threads),
        "compare": lambda: hf.compare(attention, other, num_threads=threads),
    }
    rows = [["question", "s", "ns an entry"]]
    answers, found = {}, {}
    for name, run in work.items():
        answers[name], found[name] = once(run)
        rows.append([name, f"{found[name]:.2f}", f"{1e9 * found[name] / (n * k):.1f}"])
    measure.table(f"n = {n:,}, {k} keys a row, {make.__name__}, d = {DIM}", rows)
    check(answers, Q, K, V, mask)
    return found


def check(answers, Q, K, V, mask):
    """Hold what some rows were answered against NumPy."""
    few = np.random.default_rng(3).integers(0, len(Q), 50)
    columns = np.stack([mask.indices[mask.indptr[row] : mask.indptr[row + 1]] for row in few])
    logits = np.einsum("id,ijd->ij", Q[few], K[columns], dtype=np.float64) / DIM**0.5
    p, other = (scipy.special.softmax(x, axis=1) for x in (logits, 0.1 * DIM**0.5 * logits))
    compared, topk = answers["compare"], answers["top-8"]
    for got, expected in (
        (answers["values"][few], np.einsum("ij,ijd->id", p, V[columns])),
        (answers["matrix (sparse)"][few].data.reshape(p.shape), p),
        (topk[few].max(axis=1).toarray().ravel(), p.max(axis=1)),
        (answers["statistics"].entropy[few], scipy.stats.entropy(p, axis=1)),
        (compared.row_kl[few], scipy.stats.entropy(p, other, axis=1)),
    ):
        np.testing.assert_allclose(got, expected, rtol=2e-3, atol=2e-5)
    assert not answers["certificate"].holds  # of random queries and keys
    np.testing.assert_allclose(
        answers["describe"].entropy, answers["statistics"].entropy.mean(), rtol=1e-3
    )


def fits(n, k):
    """Print how long a head is learned within a mask, of whose keys the content chooses four."""
    mask = random(n, k)
    target = hf.Target(some_keys(mask, 4), mask=mask)
    found, seconds = once(lambda: hf.fit(target, dim=8, num_threads=OPTIONS.threads))
    print(f"fit, n = {n:,}, 4 of {k} random keys a row, d = 8: {seconds:.1f} s", flush=True)
    assert found.certificate.holds
    return seconds


def some_keys(mask, count):
    """Return a target of equal weights on keys of each row of a mask, one of each of its parts."""
    n, k = mask.shape[0], mask.indptr[1]
    chosen = np.random.default_rng(4).integers(0, k // count, (n, count))
    chosen += np.arange(0, n * k, k)[:, np.newaxis] + np.arange(count) * (k // count)
    columns = mask.indices[chosen.ravel()]
    parts = np.full(n * count, 1 / count), columns, np.arange(0, (n + 1) * count, count)
    return sp.csr_array(parts, shape=mask.shape)


def main():
    torch.set_num_threads(OPTIONS.threads)
    print(f"{measure.machine()}; {OPTIONS.threads} threads; torch {torch.__version__}")
    quick = OPTIONS.quick
    sizes = (1024, 4096) if quick else tuple(2**e for e in (12, 14, 16, 18, 20))
    figures = {
        "questions": [
            questions(make, 8192 if quick else 2**20, 64) for make in (random, band_and_first)
        ],
        "fit": fits(1000 if quick else 100_000, 256),
        "crossover": crossover(1024 if quick else 8192),
        "values": grid(sizes, (16, 64) if quick else OPTIONS.keys),
    }
    measure.finish(OPTIONS, figures)


if __name__ == "__main__":
    main()
