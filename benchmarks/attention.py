"""The attention matrix and its folds compared with PyTorch and NumPy, in float32."""

from __future__ import annotations

import os

import measure

OPTIONS = measure.arguments(__doc__)
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = str(OPTIONS.threads)

import numpy as np  # noqa: E402
import torch  # noqa: E402

import headfit as hf  # noqa: E402
import limits  # noqa: E402

RATES = limits.measured(OPTIONS.threads, 16, 64)


def in_numpy(Q, K, scale, out):
    np.matmul(Q, K.T, out=out)
    out *= scale
    out -= out.max(axis=1, keepdims=True)
    np.exp(out, out=out)
    out /= out.sum(axis=1, keepdims=True)
    return out


def full_matrix(n, d):
    rng = np.random.default_rng(0)
    Q, K = (rng.standard_normal((n, d)).astype(np.float32) for _ in range(2))
    q, k = torch.from_numpy(Q), torch.from_numpy(K)
    scale = d**-0.5
    ours, theirs = np.empty((n, n), np.float32), np.empty((n, n), np.float32)
    product = torch.empty((n, n))
    expected = torch.softmax(q @ k.T * scale, -1).numpy()
    hf.attention_matrix(Q, K, out=ours, num_threads=OPTIONS.threads)
    np.testing.assert_allclose(ours, expected, rtol=2e-4, atol=1e-9)
    np.testing.assert_allclose(in_numpy(Q, K, scale, theirs), expected, rtol=2e-4, atol=1e-9)
    causal = torch.full((n, n), -torch.inf).triu(1)
    np.testing.assert_allclose(
        hf.attention_matrix(Q, K, mask="causal", num_threads=OPTIONS.threads),
        torch.softmax(q @ k.T * scale + causal, -1).numpy(),
        rtol=2e-4,
        atol=1e-9,
    )
    threads = OPTIONS.threads
    seconds = measure.interleaved(
        {
            "headfit": lambda: hf.attention_matrix(Q, K, out=ours, num_threads=threads),
            "torch eager": lambda: torch.softmax(q @ k.T * scale, -1),
            "NumPy, in place": lambda: in_numpy(Q, K, scale, theirs),
            "torch matmul alone": lambda: torch.matmul(q, k.T, out=product),
            "headfit causal": lambda: hf.attention_matrix(
                Q, K, mask="causal", out=ours, num_threads=threads
            ),
            "torch eager causal": lambda: torch.softmax(q @ k.T * scale + causal, -1),
        },
        OPTIONS.repeat,
    )
    measure.ratios(f"attention matrix, n={n}, d={d}", seconds, "headfit")
    limit = RATES.attention_seconds(n, d)
    name = f"attention matrix, n={n:,}, d={d}"
    measure.summarise(name, seconds["headfit"], "torch eager", seconds["torch eager"], limit)
    measure.summarise(f"{name}, causal", seconds["headfit causal"], "torch eager with a mask",
                      seconds["torch eager causal"], limit / 2)  # fmt: skip
    return seconds


def values(n, d, what="", **given):
    """Compare attention times values, without or with a mask or a bias given as an array."""
    rng = np.random.default_rng(1)
    Q, K, V = (rng.standard_normal((n, d)).astype(np.float32) for _ in range(3))
    q, k, v = (torch.from_numpy(x)[None] for x in (Q, K, V))
    attn_mask = next(map(torch.from_numpy, given.values()), None)

    def ours():
        return hf.attention_apply(Q, K, V, **given, num_threads=OPTIONS.threads)

    def sdpa():
        with torch.no_grad():
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask)[0]

    np.testing.assert_allclose(ours(), sdpa().numpy(), rtol=1e-3, atol=1e-5)
    seconds = measure.interleaved({"headfit": ours, "torch SDPA": sdpa}, OPTIONS.repeat)
    title = f"attention times values{what}, n={n:,}, d={d}"
    measure.ratios(title, seconds, "headfit")
    limit = 2 * RATES.product_seconds(n, d) + n * n / RATES.exp
    measure.summarise(title, seconds["headfit"], "torch SDPA", seconds["torch SDPA"], limit)
    return seconds


def topk(n, d):
    rng = np.random.default_rng(2)
    Q, K = (rng.standard_normal((n, d)).astype(np.float32) for _ in range(2))
    q, k = torch.from_numpy(Q), torch.from_numpy(K)
    threads, scale = OPTIONS.threads, d**-0.5

    def blocked_topk():
        return torch.cat([torch.topk(q[i : i + 1024] @ k.T, 8).indices for i in range(0, n, 1024)])

    def blocked_softmax_topk():
        blocks = (torch.softmax(q[i : i + 1024] @ k.T * scale, 1) for i in range(0, n, 1024))
        return torch.cat([torch.topk(weights, 8).values for weights in blocks])

    top = hf.attention_topk(Q[None], K[None], 8, num_threads=threads)
    agree = (np.sort(top[0][0], 1) == np.sort(blocked_topk().numpy(), 1)).all(1).mean()
    assert agree > 0.999, agree  # equal logits in float32 may be ordered differently
    np.testing.assert_allclose(top[1][0], blocked_softmax_topk().numpy(), rtol=2e-4)
    scores = hf.attention_topk(Q[None], K[None], 8, values="logits", num_threads=threads)
    np.testing.assert_array_equal(scores[0], top[0])
    seconds = measure.interleaved(
        {
            "logits": lambda: hf.attention_topk(Q, K, 8, values="logits", num_threads=threads),
            "weights": lambda: hf.attention_topk(Q, K, 8, num_threads=threads),
            "torch blocked matmul + topk": blocked_topk,
            "torch blocked softmax + topk": blocked_softmax_topk,
        },
        max(1, OPTIONS.repeat // 2),
    )
    title = f"top-8, n={n:,}, d={d}"
    measure.ratios(title, seconds, "logits")
    product, exponentials = RATES.product_seconds(n, d), n * n / RATES.exp
    for values, work, limit in (
        ("logits", "matmul", product),
        ("weights", "softmax", product + exponentials),  # weights also need the sums of rows
    ):
        peer = f"torch blocked {work} + topk"
        measure.summarise(f"{title}, {values}", seconds[values], peer, seconds[peer], limit)
    return seconds


def main():
    torch.set_num_threads(OPTIONS.threads)
    print(f"{measure.machine()}; {OPTIONS.threads} threads; torch {torch.__version__}")
    sizes = [(512, 64)] if OPTIONS.quick else [(4096, 64), (4096, 16)]
    figures = {f"matrix n={n} d={d}": full_matrix(n, d) for n, d in sizes}
    n = 512 if OPTIONS.quick else 8192
    figures[f"values n={n} d=64"] = values(n, 64)
    n, rng = n // 2, np.random.default_rng(3)
    mask, bias = rng.random((n, n)) < 0.9, rng.standard_normal((n, n)).astype(np.float32)
    figures[f"values, mask n={n} d=64"] = values(n, 64, ", boolean mask", mask=mask)
    figures[f"values, bias n={n} d=64"] = values(n, 64, ", bias", bias=bias)
    for n in (1024,) if OPTIONS.quick else (8192, 32_768):
        figures[f"topk n={n} d=64"] = topk(n, 64)
    measure.finish(OPTIONS, figures)


if __name__ == "__main__":
    main()
