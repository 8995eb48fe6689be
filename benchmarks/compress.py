"""Smaller heads for every input, compared with closed forms and with PyTorch.

The eight causal heads of the small trained model of notebook 03 (size 16) and random heads with
structure are compressed: maps are fitted to 24 passages of 128 tokens and judged on 16 others.
Beside them stand KQ-SVD (arXiv 2512.05916), the same with centred keys, and the SVD of the weights;
and, where PyTorch is installed, its L-BFGS on the same loss from the same start, until it reaches
the same divergence.
"""

from __future__ import annotations

import time
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np

import measure

TOKENS, WIDTH, HEADS, LAYERS = 128, 64, 4, 2
SIZE = WIDTH // HEADS
PASSAGES, HELD_OUT = 40, 0.4
WEIGHTS = Path(__file__).parents[1] / "notebooks" / "03-a-real-head.npz"
STRUCTURED = 32  # the size of the random heads


def norm(x, gain):
    x = x - x.mean(-1, keepdims=True)
    return gain * x * ((x * x).mean(-1, keepdims=True) + 1e-5) ** -0.5


def trained_heads(threads):
    """Return the heads of the notebook's model: name, passages, and W_Q and W_K."""
    import headfit as hf

    with np.load(WEIGHTS) as file:
        letters = str(file["letters"])
        w = {name: file[name].astype(np.float32) for name in file.files if name != "letters"}
    place = {letter: i for i, letter in enumerate(letters)}
    text = "\n".join(topics[name] for name in sorted(topics))
    data = np.array([place[letter] for letter in text if letter in place])
    starts = np.random.default_rng(1).integers(0, len(data) - TOKENS, PASSAGES)
    x = w["letter"][np.stack([data[s : s + TOKENS] for s in starts])] + w["place"]
    heads = []
    for i in range(LAYERS):
        q, k, v = (
            (norm(x, w[f"{i}.before"]) @ w[f"{i}.{part}"])
            .reshape(*x.shape[:2], HEADS, SIZE)
            .swapaxes(1, 2)
            for part in "qkv"
        )
        for h in range(HEADS):
            own = slice(h * SIZE, (h + 1) * SIZE)
            weights = (w[f"{i}.q"][:, own], w[f"{i}.k"][:, own])
            heads.append((f"trained {i}.{h}", q[:, h].copy(), k[:, h].copy(), weights))
        attended = hf.attention_apply(q, k, v, mask="causal", num_threads=threads)
        x = x + attended.swapaxes(1, 2).reshape(x.shape) @ w[f"{i}.out"]
        up = norm(x, w[f"{i}.between"]) @ w[f"{i}.up"]
        x = x + (up * (up > 0)) @ w[f"{i}.down"]
    return heads


def structured_heads():
    """Return random heads with structure, whose weights act on tokens of known parts."""
    rng = np.random.default_rng(0)
    at = np.arange(TOKENS)[:, np.newaxis]
    turn = np.geomspace(1.5, 0.05, STRUCTURED // 2)
    place = np.hstack([np.cos(at * turn), np.sin(at * turn)])
    before = np.hstack([np.cos((at - 1) * turn), np.sin((at - 1) * turn)])
    code = rng.normal(size=(64, STRUCTURED))  # of each letter
    spectrum = np.geomspace(1, 0.05, STRUCTURED)
    letters = rng.integers(0, 64, (PASSAGES, TOKENS))
    noise = rng.normal(size=(2, PASSAGES, TOKENS, STRUCTURED))
    previous = 5 * (before + 0.02 * noise[0]), place + 0.02 * noise[1]
    # Logits say how alike two tokens are in a few of many directions.
    content = 4 * (code * spectrum)[letters] + 0.1 * noise[0], code[letters] + 0.1 * noise[1]
    mixed = 2 * (before + (code * spectrum)[letters]), place + code[letters] * spectrum
    found = {"previous token": previous, "content": content, "place and content": mixed}
    return [
        (name, q.astype(np.float32) * 32**0.5 / 5, k.astype(np.float32), None)
        for name, (q, k) in found.items()
    ]


def weights_svd(weights, dim):
    """Return maps such that W_Q P_q and W_K P_k are the truncated SVD of W_Q W_K^T."""
    w_q, w_k = (x.astype(np.float64) for x in weights)
    left, size, right = np.linalg.svd(w_q @ w_k.T)
    root = np.sqrt(size[:dim])
    scale = w_q.shape[1] ** -0.5
    return (
        scale * np.linalg.pinv(w_q) @ left[:, :dim] * root,
        np.linalg.pinv(w_k) @ right[:dim].T * root,
    )


def distance(q, k, maps, which, threads):
    """Return the mean total variation of maps on some passages, row by row."""
    import headfit as hf

    return float(np.mean([
        hf.compare_attention(
            hf.Attention(q[i], k[i], mask="causal"),
            hf.Attention(q[i] @ maps[0], k[i] @ maps[1], scale=1.0, mask="causal"),
            num_threads=threads,
        ).tv_mean
        for i in which
    ]))  # fmt: skip


def torch_seconds(q, k, start, enough, threads, limit):
    """Return seconds, KL and evaluations of PyTorch's L-BFGS on its way to a mean KL."""
    import torch

    torch.set_num_threads(threads)
    Q, K = torch.from_numpy(q), torch.from_numpy(k)
    begun = time.perf_counter()
    closed = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).triu(1)
    logits = (q.shape[-1] ** -0.5 * Q @ K.mT).masked_fill(closed, -torch.inf)
    target = torch.softmax(logits, -1)
    entropy = -torch.xlogy(target, target).sum(-1).mean()
    maps = [torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32)).requires_grad_()
            for x in start]  # fmt: skip
    best, evaluations = np.inf, 0

    class Reached(Exception):
        pass

    def closure():
        nonlocal best, evaluations
        optimiser.zero_grad()
        s = (Q @ maps[0]) @ (K @ maps[1]).mT
        inner = (target * s).sum(-1)
        loss = (torch.logsumexp(s.masked_fill(closed, -torch.inf), -1) - inner).mean() - entropy
        loss.backward()
        best, evaluations = min(best, loss.item()), evaluations + 1
        if best <= enough or time.perf_counter() - begun > limit:
            raise Reached
        return loss

    try:
        while True:  # a line search that finds nothing ends a call: then its memory is dropped
            optimiser = torch.optim.LBFGS(
                maps, max_iter=10**4, max_eval=10**5, history_size=20,
                line_search_fn="strong_wolfe", tolerance_grad=0, tolerance_change=1e-12,
            )  # fmt: skip
            optimiser.step(closure)
    except Reached:
        return time.perf_counter() - begun, best, evaluations


def race(head, dim, threads, limit):
    """Return our seconds and PyTorch's to one mean KL divergence, from one start."""
    import headfit as hf
    from headfit import _core
    from headfit._compress.closed_forms import closed_forms
    from headfit._compress.passages import Passages

    name, q, k, _ = head
    q, k = q[:24], k[:24]
    passages = Passages.of(q, k, hf._attention.logits.LogitOptions(mask="causal"))

    def fitted(enough):
        begun = time.perf_counter()
        loss = _core.CompressLoss([a.core for a in passages.attentions], threads)
        forms = closed_forms(passages, loss, threads)
        starts = [
            form.maps([passages.scale * np.eye(passages.dim)], dim) for form in forms.values()
        ]
        start = min(starts, key=lambda maps: loss.value(maps, threads))
        _, _, history, report = loss.fit(
            None, start, _core.DescentLimits(max_steps=500, enough=enough), threads
        )
        return time.perf_counter() - begun, start, history, report["evaluations"]

    _, start, history, _ = fitted(0.0)
    # Both stop at a thousandth more than where our descent ends.
    enough = float(history[-1]) * (1 + 1e-3)
    runs = [fitted(enough) for _ in range(3)]
    ours = float(np.median([run[0] for run in runs]))
    size = passages.dim
    theirs, reached, steps = torch_seconds(
        q, k, (start[:size], start[size:]), enough, threads, limit
    )
    row = [name, str(dim), f"{history[0]:.4f}", f"{history[-1]:.4f}", f"{1e3 * ours:.0f}",
           str(runs[0][3]), f"{1e3 * theirs:.0f}" if reached <= enough else
           f"> {1e3 * theirs:.0f} ({reached:.4f})", str(steps), f"{theirs / ours:.1f}"]  # fmt: skip
    return row, ours, theirs


def model_seconds(heads, passages, tokens, threads):
    """Return the seconds that some heads of size 64 of a wide model take at size 16."""
    import headfit as hf

    rng = np.random.default_rng(0)
    x = rng.normal(size=(passages, tokens, 256)).astype(np.float32) / 16
    x[:, 1:] += 0.7 * x[:, :-1]
    found = {}
    for h in range(heads):
        w_q, w_k = rng.normal(size=(2, 256, 64)) * np.geomspace(1, rng.uniform(0.02, 0.3), 64)
        q, k = ((x @ w).astype(np.float32) for w in (4 * w_q, 2 * w_k))
        found[h] = list(zip(q, k, strict=True))
    result = hf.compress_heads(found, dim=16, mask="causal", num_threads=threads)
    assert result.total == 16 * heads
    return result.seconds


def main():
    given = measure.arguments(__doc__)
    import headfit as hf

    threads = given.threads
    print(f"{measure.machine()}; {threads} threads")
    heads = [*trained_heads(threads), *structured_heads()]
    if given.quick:
        heads = [heads[1], heads[-3]]
    rows = [["head", "d", "KQ-SVD", "centred", "weights' SVD", "attended", "then KL", "gain",
             "fitted / unseen KL"]]  # fmt: skip
    figures, seconds = [], []
    for name, q, k, weights in heads:
        size = q.shape[-1]
        dims = [size // 8, size // 4, size // 2]
        small = hf.compress(
            q, k, dim=size // 4, mask="causal", held_out=HELD_OUT, curve_dims=dims,
            num_threads=threads,
        )  # fmt: skip
        seconds.append(small.seconds)
        curve = small.curve
        for i, dim in enumerate(dims):
            tv = {form: values[i] for form, values in curve.tv_mean.items()}
            peers = [tv["kq-svd"], tv["centred"]]
            if weights is not None:
                peers.append(distance(q, k, weights_svd(weights, dim), small.held_out, threads))
            ours = tv["taken"]
            assert ours <= 1.005 * min(peers), f"{name}, d = {dim}: {ours} and {peers}"
            if name == "previous token" and dim == size // 4:
                assert ours <= 0.1 * min(peers), f"{name}: {ours} and {peers}"
            fitted = small.settings["descents"][dim]["kl"][1]
            rows.append(
                [name, str(dim), *(f"{x:.4f}" for x in [*peers, np.nan][:3]),
                 f"{tv['attended']:.4f}", f"{ours:.4f}", f"{100 * (1 - ours / min(peers)):.0f}%",
                 f"{fitted:.4f} / {curve.kl['descent'][i]:.4f}"]
            )  # fmt: skip
            figures.append({"head": name, "dim": dim, "peers": peers, "ours": ours})
        assert (np.diff(curve.tv_mean["taken"]) <= 0).all()
    measure.table(f"mean total variation on {int(HELD_OUT * PASSAGES)} unseen passages", rows)
    print(f"\n{len(heads)} heads, three sizes each: {np.median(seconds):.2f} s per head")
    few, passages, tokens = (1, 8, 128) if given.quick else (6, 64, 512)
    one = model_seconds(few, passages, tokens, threads) / few
    print(
        f"\nsize 64, {passages} passages of {tokens} tokens, one size: {one:.2f} s per head, "
        f"{144 * one:.0f} s for 12 layers of 12 heads (from {few})"
    )
    try:
        import torch  # noqa: F401
    except ImportError:
        print("\nwithout PyTorch: no race")
    else:
        table = [
            [
                "head",
                "d",
                "KL before",
                "after",
                "ms",
                "evaluations",
                "PyTorch, ms",
                "evaluations",
                "times",
            ]
        ]
        ratios = []
        for head in heads[:: 1 if given.quick else 2]:
            row, ours, theirs = race(
                head, head[1].shape[-1] // 4, threads, 5 if given.quick else 30
            )
            table.append(row)
            ratios.append(theirs / ours)
            measure.summarise(f"compress {head[0]}", ours, "torch.optim.LBFGS", theirs)
        measure.table("seconds to the same divergence from the same start", table)
        print(f"\nmedian: PyTorch takes {np.median(ratios):.1f} times as long")
    measure.finish(given, {"compress": figures})


if __name__ == "__main__":
    main()
