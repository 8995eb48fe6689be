"""What PyTorch's kernels on the CPU compute, against the bounds of certificates about them.

    python -m tests.adversarial.torch_kernels --heads 20000

makes so many random heads and so many of the families that attack certificates, and prints for
every kernel, dtype and path how many there were, how many rows hold, and how many leave their
bounds. The exit status is 1 when any does.

``--compiled`` adds flex_attention as `torch.compile` makes it, which takes a minute to compile.

Weights are read as the output for unit vectors as values, with Q and K padded by zeros to their
width; where only that output can be seen, it is rounded once more, which is allowed for.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from tests.adversarial import generators, oracle
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

import headfit as hf
from headfit.errors import HeadfitError

DTYPES = ("float32", "bfloat16", "float16")
UNIT = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
# Below these an output is subnormal, and no ratio of it is known.
LEAST = {"float32": 2.0**-125, "bfloat16": 2.0**-125, "float16": 2.0**-13}
HALF_LEAST = {"float32": 2.0**-150, "bfloat16": 2.0**-134, "float16": 2.0**-25}
FAMILIES = list(generators.FAMILIES)
SIZES = ((4, 2), (7, 3), (17, 8), (33, 16))


@dataclass(frozen=True)
class Case:
    """A head as tensors of a dtype, and as the arrays that a certificate reads."""

    A: np.ndarray
    q: torch.Tensor
    k: torch.Tensor
    scale: float
    allowed: torch.Tensor
    softcap: float | None = None
    bias: torch.Tensor | None = None

    @property
    def dtype(self) -> str:
        return str(self.q.dtype).removeprefix("torch.")

    def certificate(self, kernel: hf.Kernel) -> Any:
        bias = None if self.bias is None else self.bias.double().numpy()
        head = hf.Attention(
            self.q, self.k, scale=self.scale, mask=self.allowed.numpy(), softcap=self.softcap,
            bias=bias,
        )  # fmt: skip
        return hf.certify(self.A, head, leak=0.3, distortion=0.1, kernel=kernel)


# Heads -------------------------------------------------------------------------------------


def target_of(rng: Any, logits: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Return a target of each row's heaviest keys, with weights near those of the softmax."""
    A = np.zeros_like(logits)
    for i, row in enumerate(np.where(allowed, logits, -np.inf)):
        on = np.argsort(-row)[: min(int(rng.integers(1, 5)), int(allowed[i].sum()))]
        w = np.exp(np.maximum(row[on] - row[on].max(), -60) + 0.02 * rng.standard_normal(on.size))
        A[i, on] = w / w.sum()
    return A


def with_options(rng: Any, case: Case, wide: float) -> Case:
    """Return the case with nothing more, a soft-cap, or a bias."""
    kind = rng.integers(3)
    if kind == 0:
        return case
    if kind == 1:
        return replace(case, softcap=wide * rng.uniform(0.3, 3))
    bias = torch.from_numpy(wide * rng.standard_normal(case.A.shape)).to(case.q.dtype)
    return replace(case, bias=bias)


def random_case(rng: Any, dtype: str) -> Case:
    """Return a head with logits of ordinary size, and a scale that is seldom a power of two."""
    n, d = SIZES[rng.integers(len(SIZES))]
    size = 2.0 ** rng.uniform(0, 5)
    scale = 1 / math.sqrt(d) if rng.random() < 0.3 else rng.uniform(0.05, 3)
    norm = math.sqrt(size / (scale * math.sqrt(d)))
    q, k = (torch.from_numpy(norm * rng.standard_normal((n, d))).to(getattr(torch, dtype))
            for _ in range(2))  # fmt: skip
    allowed = np.tril(np.ones((n, n), bool)) if rng.random() < 0.3 else rng.random((n, n)) < 0.9
    allowed |= np.eye(n, dtype=bool)
    logits = scale * (q.double() @ k.double().T).numpy()
    case = Case(np.zeros((n, n)), q, k, scale, torch.from_numpy(allowed))
    case = with_options(rng, case, size)
    if case.softcap is not None:
        logits = case.softcap * np.tanh(logits / case.softcap)
    if case.bias is not None:
        logits = logits + case.bias.double().numpy()
    return replace(case, A=target_of(rng, logits, allowed))


def adversarial_case(rng: Any, dtype: str) -> Case:
    """Return a head of a family that attacks certificates, with a mask that leaves no row empty."""
    family = FAMILIES[rng.integers(len(FAMILIES))]
    head, _, _ = generators.head(rng, family, dtype, "accumulate")
    allowed = np.array(oracle.allowed_matrix(head.mask, len(head.A)))
    if not allowed.any(axis=1).all():
        return adversarial_case(rng, dtype)
    q, k = (torch.from_numpy(x).to(getattr(torch, dtype)) for x in (head.Q, head.K))
    case = Case(head.A, q, k, float(head.scale), torch.from_numpy(allowed))
    return with_options(rng, case, 2.0 ** rng.uniform(-2, 8))


# Paths -------------------------------------------------------------------------------------


def eager_logits(case: Case, products: torch.Tensor) -> torch.Tensor:
    """Return logits from scaled products, with an operation for every step."""
    x = products
    if case.softcap is not None:
        x = torch.tanh(x / case.softcap) * case.softcap
    return x if case.bias is None else x + case.bias


def masked(x: torch.Tensor, allowed: torch.Tensor, additive: bool) -> torch.Tensor:
    """Return logits under a mask: those that are masked replaced, or lowered by a term."""
    if not additive:
        return x.masked_fill(~allowed, -torch.inf)
    return x + torch.zeros_like(x).masked_fill(~allowed, torch.finfo(x.dtype).min)


def product_scaled(case: Case) -> torch.Tensor:
    return eager_logits(case, (case.q @ case.k.T) * case.scale)


def product_divided(case: Case) -> torch.Tensor:
    return eager_logits(case, (case.q @ case.k.T) / (1 / case.scale))


def product_scaled_by_tensor(case: Case) -> torch.Tensor:
    return eager_logits(case, (case.q @ case.k.T) * torch.tensor(case.scale, dtype=case.q.dtype))


def query_scaled(case: Case) -> torch.Tensor:
    return eager_logits(case, (case.q * case.scale) @ case.k.T)


def scaled_by_roots(case: Case) -> torch.Tensor:
    root = math.sqrt(abs(case.scale))
    return eager_logits(case, (case.q * math.copysign(root, case.scale)) @ (case.k * root).T)


def padded(case: Case) -> tuple[torch.Tensor, ...]:
    """Return Q, K and unit vectors, all of one width, with axes for the batch and the head."""
    n, d = case.q.shape
    width = 1 << (max(n, d, 16) - 1).bit_length()  # PyTorch 2.6 takes powers of two alone
    q, k = (torch.nn.functional.pad(x, (0, width - d)) for x in (case.q, case.k))
    return tuple(x[None, None] for x in (q, k, torch.eye(n, width, dtype=q.dtype)))


def by_sdpa(case: Case, backend: SDPBackend) -> torch.Tensor | None:
    if case.softcap is not None:
        return None
    mask = case.allowed
    if case.bias is not None:
        mask = case.bias.masked_fill(~case.allowed, -torch.inf)
    with sdpa_kernel([backend]):
        q, k, v = padded(case)
        found = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=case.scale)
    return found[0, 0, :, : len(case.A)]


def by_flex(case: Case) -> torch.Tensor:
    allowed, bias, cap = case.allowed, case.bias, case.softcap

    def score_mod(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        if cap is not None:
            score = cap * torch.tanh(score / cap)
        if bias is not None:
            score = score + bias[i, j]
        return torch.where(allowed[i, j], score, -torch.inf)

    return flex_attention(*padded(case), score_mod=score_mod, scale=case.scale)[
        0, 0, :, : len(case.A)
    ]


SIDE, FIXED_SCALE = 16, 0.7  # what is compiled once, for all heads


def fixed_scale(case: Case) -> Case | None:
    """Return the case with the scale that is compiled; None where it is too large."""
    n, d = case.q.shape
    return replace(case, scale=FIXED_SCALE) if max(n, d) <= SIDE else None


@functools.cache
def compiled(has_cap: bool, dtype: torch.dtype) -> Callable[..., torch.Tensor]:
    """Return compiled flex_attention of SIDE tokens with a bias, and perhaps a soft-cap."""

    def attend(q: Any, k: Any, v: Any, allowed: Any, bias: Any, cap: Any) -> Any:
        def score_mod(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            if has_cap:
                score = cap * torch.tanh(score / cap)
            return torch.where(allowed[i, j], score + bias[i, j], -torch.inf)

        return flex_attention(q, k, v, score_mod=score_mod, scale=FIXED_SCALE)

    return torch.compile(attend)


def by_compiled_flex(case: Case) -> torch.Tensor:
    n, d = case.q.shape
    q, k = (torch.nn.functional.pad(x, (0, SIDE - d, 0, SIDE - n)) for x in (case.q, case.k))
    allowed = torch.nn.functional.pad(case.allowed, (0, SIDE - n, 0, SIDE - n))
    bias = torch.zeros(n, n, dtype=q.dtype) if case.bias is None else case.bias
    bias = torch.nn.functional.pad(bias, (0, SIDE - n, 0, SIDE - n)).contiguous()
    attend = compiled(case.softcap is not None, case.q.dtype)
    v = torch.eye(SIDE, dtype=q.dtype)
    q, k, v = (x[None, None].contiguous() for x in (q, k, v))
    found = attend(q, k, v, allowed.contiguous(), bias, torch.tensor(case.softcap or 1.0))
    return found[0, 0, :n, :n]


class Path(NamedTuple):
    """A way to compute attention: the kernel that describes it, and how its results are seen."""

    kernel: Callable[[str], hf.Kernel]
    logits: Callable[[Case], torch.Tensor] | None = None
    weights: Callable[[Case], torch.Tensor | None] | None = None
    prepare: Callable[[Case], Case | None] = lambda case: case


def eager(**options: Any) -> Callable[[str], hf.Kernel]:
    """Return the kernel of eager code for each dtype, with other options than usual."""

    def of(dtype: str) -> hf.Kernel:
        names = dict.fromkeys(("operands", "product", "logits", "bias", "weights"), dtype)
        return hf.Kernel(**{"accumulate": "float32", **names, **options})

    return of


def named(path: str) -> Callable[[str], hf.Kernel]:
    """Return the kernel of a name for each dtype, its weights included."""
    return lambda dtype: hf.Kernel.named(
        "float32" if dtype == "float32" else f"{path}-{dtype}", weights=True
    )


@functools.cache
def flex_rounds_products() -> bool:
    """Return whether flex_attention, not compiled, multiplies in 16 bits, as that of 2.6 does."""
    q, k = torch.ones(1, 1, 2, 2), torch.tensor([[[[256.0, 1.0], [256.0, 0.0]]]])  # 257 is a tie
    x = (q.bfloat16(), k.bfloat16(), torch.eye(2)[None, None].bfloat16())
    found = flex_attention(*x, scale=1.0)[0, 0, 0]
    return bool(found[0] == found[1])


def uncompiled_flex(dtype: str) -> hf.Kernel:
    """Return the kernel of flex_attention, not compiled, in this release of PyTorch."""
    if dtype == "float32" or not flex_rounds_products():
        return named("flex")(dtype)
    return hf.Kernel("float32", operands=dtype, product=dtype, weights=dtype)


PATHS = {
    "eager": Path(named("eager"), product_scaled),
    "eager, divided": Path(named("eager"), product_divided),
    "eager, a tensor's scale": Path(lambda x: eager(scale_dtype=x)(x), product_scaled_by_tensor),
    "eager, scaled queries": Path(eager(scale="before"), query_scaled),
    "eager, scaled by roots": Path(eager(scale="root"), scaled_by_roots),
    "sdpa, math": Path(
        named("sdpa-math"), weights=functools.partial(by_sdpa, backend=SDPBackend.MATH)
    ),
    "sdpa, flash": Path(
        named("flash"), weights=functools.partial(by_sdpa, backend=SDPBackend.FLASH_ATTENTION)
    ),
    "flex": Path(uncompiled_flex, weights=by_flex),
}
COMPILED = {
    "flex, compiled": Path(named("flex"), weights=by_compiled_flex, prepare=fixed_scale),
}


# Judgement ---------------------------------------------------------------------------------


def excess(A: np.ndarray, logs: np.ndarray, bounds: Any) -> np.ndarray:
    """Return by how much the logarithms of leak and distortion exceed a certificate's, by row."""
    on = A > 0
    with np.errstate(all="ignore"):
        least = np.where(on, logs, np.inf).min(axis=1)
        leak = np.where(on, -np.inf, logs).max(axis=1) - least
        shift = logs - np.log(A)
        spread = np.where(on, shift, -np.inf).max(axis=1) - np.where(on, shift, np.inf).min(axis=1)
        over = np.maximum(leak - np.log(bounds.row_leak), spread - np.log1p(bounds.row_distortion))
    over[~on.any(axis=1)] = -np.inf
    return over


def judged(path: Path, case: Case, additive: bool, counts: Counter[str]) -> None:
    """Compare what a path computes for a head with its certificates, and count what comes out."""
    kernel = path.kernel(case.dtype)
    try:
        of_weights = case.certificate(kernel)
        of_logits = case.certificate(replace(kernel, weights=None))
    except HeadfitError:
        counts["refused"] += 1
        return
    A, allowed = case.A, case.allowed.numpy()
    if path.logits is not None:
        x = masked(path.logits(case), case.allowed, additive)
        logits = np.where(allowed, x.double().numpy(), -np.inf)
        weights = torch.softmax(x, -1, dtype=torch.float32).to(x.dtype).double().numpy()
        slack, least = 1e-9, 0.0
        usable = ~np.isnan(weights).any(axis=1)
        over = excess(A, logits, of_logits)
        counts["outside"] += np.count_nonzero(over[usable] > slack)
        size = np.abs(np.where(allowed & usable[:, np.newaxis], logits, 0)).max()
        counts["outside"] += bool(size > of_logits.max_logit)
        counts["outside"] += np.count_nonzero(of_logits.row_status[~usable] == 0)
    else:
        assert path.weights is not None
        found = path.weights(case)
        if found is None:
            return
        weights = found.double().numpy()
        usable = ~np.isnan(weights).any(axis=1)
        slack, least = 2.1 * UNIT[case.dtype], LEAST[case.dtype]
        # The output may round a small weight off the support up, by half of the least number.
        weights = np.where(A > 0, weights, np.maximum(weights - HALF_LEAST[case.dtype], 0))
    counts["heads"] += 1
    counts["rows"] += len(A)
    counts["hold"] += np.count_nonzero(of_weights.row_status == 0)
    counts["outside"] += np.count_nonzero(of_weights.row_status[~usable] == 0)
    on_least = np.where(A > 0, weights, np.inf).min(axis=1)
    with np.errstate(all="ignore"):
        over = excess(A, np.log(weights), of_weights)
    # What vanishes on the support has no ratio: then a bound must be infinite.
    unbounded = np.isinf(of_weights.row_leak) | np.isinf(of_weights.row_distortion)
    over = np.where(on_least > 0, over, np.where(unbounded, -np.inf, np.inf))
    over[(A == 0).all(axis=1) | ((on_least < least) & (least > 0))] = -np.inf
    counts["outside"] += np.count_nonzero(over[usable] > slack)


def run(heads: int, seed: int, paths: dict[str, Path] = PATHS) -> dict[tuple[str, ...], Counter]:
    """Judge so many heads of each kind at every path, the dtypes in turn."""
    table: dict[tuple[str, ...], Counter] = {}
    for kind, make in (("random", random_case), ("adversarial", adversarial_case)):
        rng = np.random.default_rng([seed, len(kind)])
        for index in range(heads):
            case = make(rng, DTYPES[index % len(DTYPES)])
            additive = bool(rng.random() < 0.3)
            for name, path in paths.items():
                counts = table.setdefault((name, case.dtype, kind), Counter())
                taken = path.prepare(case)
                if taken is not None:
                    with np.errstate(all="ignore"):
                        judged(path, taken, additive, counts)
    return table


def lines(table: dict[tuple[str, ...], Counter]) -> Iterator[str]:
    columns = ("heads", "rows", "hold", "refused", "outside")
    yield f"{'path':<26}{'dtype':<10}{'heads':<12}" + "".join(f"{c:>10}" for c in columns)
    for (name, dtype, kind), counts in sorted(table.items()):
        numbers = "".join(f"{counts[c]:>10}" for c in columns)
        yield f"{name:<26}{dtype:<10}{kind:<12}{numbers}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heads", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compiled", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    paths = PATHS | COMPILED if arguments.compiled else PATHS
    table = run(arguments.heads, arguments.seed, paths)
    print("\n".join(lines(table)))
    outside = sum(counts["outside"] for counts in table.values())
    print(f"{outside} outside")
    return int(outside > 0)


if __name__ == "__main__":
    sys.exit(main())
