"""Smaller heads for every input, compared with closed forms and with PyTorch.

The eight causal heads of the small trained model of notebook 03 (size 16) and random heads with
structure are compressed: maps are fitted to 24 passages of 128 tokens and judged on 16 others.
Beside them stand KQ-SVD (arXiv 2512.05916), the same with centred keys, and the SVD of the weights;
and, where PyTorch is installed, its L-BFGS on the same loss from the same start, until it reaches
the same divergence.

All heads of that model at once: its loss and perplexity on text that neither the model nor the maps
have seen, with the keys of all heads made smaller by each method to the same bytes. And the time of
a large model, from a sample of its heads.
"""

from __future__ import annotations

import time
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
from scipy.special import log_softmax

import measure

TOKENS, WIDTH, HEADS, LAYERS = 128, 64, 4, 2
SIZE = WIDTH // HEADS
PASSAGES, HELD_OUT = 40, 0.4
WEIGHTS = Path(__file__).parents[1] / "notebooks" / "03-a-real-head.npz"
STRUCTURED = 32  # the size of the random heads
BUDGET_DIMS = (1, 2, 3, 4, 6, 8, 12)  # sizes that heads may have with one budget


def norm(x, gain):
    x = x - x.mean(-1, keepdims=True)
    return gain * x * ((x * x).mean(-1, keepdims=True) + 1e-5) ** -0.5


class Model:
    """The trained model of notebook 03; its attention may be replaced."""

    def __init__(self):
        with np.load(WEIGHTS) as file:
            letters = str(file["letters"])
            self.w = {
                name: file[name].astype(np.float32) for name in file.files if name != "letters"
            }
        place = {letter: i for i, letter in enumerate(letters)}
        text = "\n".join(topics[name] for name in sorted(topics))
        self.data = np.array([place[letter] for letter in text if letter in place])
        self.cut = int(0.9 * len(self.data))  # the last tenth was not trained on

    def run(self, tokens, attend):
        """Return the logits of the next characters; `attend` is called with layer, q, k and v."""
        w = self.w
        x = w["letter"][tokens] + w["place"][: tokens.shape[1]]
        for i in range(LAYERS):
            q, k, v = (
                (norm(x, w[f"{i}.before"]) @ w[f"{i}.{part}"])
                .reshape(*x.shape[:2], HEADS, SIZE)
                .swapaxes(1, 2)
                for part in "qkv"
            )
            x = x + attend(i, q, k, v).swapaxes(1, 2).reshape(x.shape) @ w[f"{i}.out"]
            up = norm(x, w[f"{i}.between"]) @ w[f"{i}.up"]
            x = x + (up * (up > 0)) @ w[f"{i}.down"]
        return norm(x, w["after"]) @ w["last"]

    def weights(self, layer, head):
        """Return W_Q and W_K of a head."""
        own = slice(head * SIZE, (head + 1) * SIZE)
        return self.w[f"{layer}.q"][:, own], self.w[f"{layer}.k"][:, own]

    def heads(self, tokens, threads):
        """Return the queries and keys of every head in some passages, by layer and head."""
        import headfit as hf

        seen = {}

        def keep(layer, q, k, v):
            for h in range(HEADS):
                seen[layer, h] = q[:, h].copy(), k[:, h].copy()
            return hf.attention_apply(q, k, v, mask="causal", num_threads=threads)

        self.run(tokens, keep)
        return seen

    def loss(self, tokens, maps, threads):
        """Return nats per character with smaller heads; maps of None leave them as they are."""
        import headfit as hf

        def attend(layer, q, k, v):
            if maps is None:
                return hf.attention_apply(q, k, v, mask="causal", num_threads=threads)
            out = np.empty_like(v)
            for h in range(HEADS):
                p_q, p_k = (p.astype(np.float32) for p in maps[layer, h])
                small = q[:, h] @ p_q, k[:, h] @ p_k
                out[:, h] = hf.attention_apply(
                    *small, v[:, h], scale=1.0, mask="causal", num_threads=threads
                )
            return out

        guess = log_softmax(self.run(tokens[:, :-1], attend), axis=-1)
        return -float(np.take_along_axis(guess, tokens[:, 1:, np.newaxis], axis=-1).mean())


def trained_heads(threads):
    """Return the heads of the notebook's model: name, passages, and W_Q and W_K."""
    model = Model()
    starts = np.random.default_rng(1).integers(0, len(model.data) - TOKENS, PASSAGES)
    seen = model.heads(np.stack([model.data[s : s + TOKENS] for s in starts]), threads)
    return [(f"trained {i}.{h}", q, k, model.weights(i, h)) for (i, h), (q, k) in seen.items()]


def moments_maps(q, k, dim):
    """Return the maps of least error for the second moments of queries and keys (KQ-SVD)."""
    from headfit._compress.free_maps import ClosedForm, roots

    form = ClosedForm((roots(q.T @ q),), roots(k.T @ k))
    whole = form.maps([SIZE**-0.5 * np.eye(SIZE)], dim)
    return whole[:SIZE], whole[SIZE:]


def model_losses(quick, threads):
    """Print the loss of the trained model against the bytes of its key cache, for four methods."""
    import headfit as hf

    model = Model()
    few = 24 if quick else 64
    starts = np.random.default_rng(1).integers(0, model.cut - TOKENS - 1, few)
    seen = model.heads(np.stack([model.data[s : s + TOKENS] for s in starts]), threads)
    starts = np.random.default_rng(0).integers(model.cut, len(model.data) - TOKENS - 1, few)
    unseen = np.stack([model.data[s : s + TOKENS + 1] for s in starts])
    passages = {at: list(zip(q, k, strict=True)) for at, (q, k) in seen.items()}
    whole = model.loss(unseen, None, threads)
    rows = [["bytes per token", "d", "compress", "one budget", "KQ-SVD", "centred", "weights' SVD"]]
    options = {"mask": "causal", "held_out": 0.2, "num_threads": threads}
    figures = []
    of_sizes = {size: hf.compress(passages, dim=size, **options) for size in BUDGET_DIMS}
    for dim in (SIZE // 8, SIZE // 4, SIZE // 2):
        total = dim * LAYERS * HEADS
        found, shared = of_sizes[dim], hf.spend(list(of_sizes.values()), dim)
        assert shared.total <= total
        # The closed forms get all passages that are not held out, the validating ones as well.
        used = np.concatenate([found[0, 0].calibration, found[0, 0].validation])
        methods = {
            "compress": {at: (one.P_q, one.P_k) for at, one in found.heads.items()},
            "one budget": {at: (one.P_q, one.P_k) for at, one in shared.heads.items()},
            "KQ-SVD": {}, "centred": {}, "weights' SVD": {},
        }  # fmt: skip
        for at, (q, k) in seen.items():
            q, k = q[used].astype(np.float64), k[used].astype(np.float64)
            flat, mean = q.reshape(-1, SIZE), k.mean(axis=1, keepdims=True)
            methods["KQ-SVD"][at] = moments_maps(flat, k.reshape(-1, SIZE), dim)
            methods["centred"][at] = moments_maps(flat, (k - mean).reshape(-1, SIZE), dim)
            methods["weights' SVD"][at] = weights_svd(model.weights(*at), dim)
        losses = {name: model.loss(unseen, maps, threads) for name, maps in methods.items()}
        assert losses["compress"] < min(
            losses[name] for name in ("KQ-SVD", "centred", "weights' SVD")
        )
        rows.append(
            [str(2 * total), str(dim), *(f"{x:.3f} ({np.exp(x):.2f})" for x in losses.values())]
        )
        figures.append({"bytes": 2 * total, "losses": losses})
    measure.table(
        f"loss in nats per character (perplexity) on {few} unseen passages; {whole:.3f} "
        f"({np.exp(whole):.2f}) with {2 * SIZE * LAYERS * HEADS} bytes of keys per token",
        rows,
    )
    return figures


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
        hf.compare(
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
    from headfit._compress.free_maps import FreeMaps
    from headfit._compress.passages import Passages

    name, q, k, _ = head
    q, k = q[:24], k[:24]
    passages = Passages.of(q, k, hf._attention.logits.LogitOptions(mask="causal"))

    def fitted(enough):
        begun = time.perf_counter()
        loss = _core.CompressLoss([a.core for a in passages.attentions], threads)
        starts = FreeMaps(passages, loss).closed(dim).values()
        start = min(starts, key=lambda maps: loss.value(maps, threads))
        _, _, history, report = loss.fit(
            None, start, _core.DescentLimits(max_steps=500, enough=enough), threads
        )
        return time.perf_counter() - begun, start, history, report["evaluations"]

    _, start, history, _ = fitted(0.0)
    # Both stop at a thousandth more than where our descent ends.
    enough = float(history[-1]) * (1 + 1e-3)
    runs = [fitted(enough) for _ in range(3)]
    assert all(run[2][-1] <= enough for run in runs)
    ours = float(np.median([run[0] for run in runs]))
    start = start[: passages.dim], start[passages.dim :]
    torch_seconds(q, k, start, enough, threads, 0)  # the first call warms up, as ours did
    theirs, reached, steps = torch_seconds(q, k, start, enough, threads, limit)
    row = [name, str(dim), f"{history[0]:.4f}", f"{history[-1]:.4f}", f"{1e3 * ours:.0f}",
           str(runs[0][3]), f"{1e3 * theirs:.0f}" if reached <= enough else
           f"> {1e3 * theirs:.0f} ({reached:.4f})", str(steps), f"{theirs / ours:.1f}"]  # fmt: skip
    return row, ours, theirs


def model_seconds(heads, passages, tokens, threads):
    """Return the seconds that each of some heads of size 64 of a wide model takes at size 16."""
    import headfit as hf

    rng = np.random.default_rng(0)
    x = rng.normal(size=(passages, tokens, 256)).astype(np.float32) / 16
    x[:, 1:] += 0.7 * x[:, :-1]
    seconds = []
    for _ in range(heads):
        w_q, w_k = rng.normal(size=(2, 256, 64)) * np.geomspace(1, rng.uniform(0.02, 0.3), 64)
        q, k = ((x @ w).astype(np.float32) for w in (4 * w_q, 2 * w_k))
        head = list(zip(q, k, strict=True))
        result = hf.compress({0: head}, dim=16, mask="causal", num_threads=threads)
        assert result.total == 16
        seconds.append(result.seconds)
    return np.array(seconds)


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
            tv = {form: own.tv_mean[i] for form, own in small.curves.items()}
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
                 f"{fitted:.4f} / {small.curves['descent'].kl_mean[i]:.4f}"]
            )  # fmt: skip
            figures.append({"head": name, "dim": dim, "peers": peers, "ours": ours})
        assert (np.diff(curve.tv_mean) <= 0).all()
    measure.table(f"mean total variation on {int(HELD_OUT * PASSAGES)} unseen passages", rows)
    print(f"\n{len(heads)} heads, three sizes each: {np.median(seconds):.2f} s per head")
    losses = model_losses(given.quick, threads)
    few, passages, tokens = (2, 8, 128) if given.quick else (8, 64, 512)
    one = model_seconds(few, passages, tokens, threads)
    # The heads of a model differ; the error of their mean says how far 144 of them may be off.
    error = one.std(ddof=1) / few**0.5
    print(
        f"\nsize 64 to 16, {passages} passages of {tokens} tokens: {one.mean():.2f} s per head "
        f"({one.min():.2f} to {one.max():.2f}, {few} heads); 12 layers of 12 heads take "
        f"{144 * one.mean():.0f} s, give or take {144 * 2 * error:.0f}"
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
            there = None if row[6].startswith(">") else theirs
            measure.summarise(f"compress {head[0]}", ours, "torch.optim.LBFGS", there)
        measure.table("seconds to the same divergence from the same start", table)
        print(f"\nmedian: PyTorch takes {np.median(ratios):.1f} times as long, or more")
    measure.finish(given, {"compress": figures, "losses": losses, "seconds per head": one.tolist()})


if __name__ == "__main__":
    main()
