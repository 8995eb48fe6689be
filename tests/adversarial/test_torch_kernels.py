"""The results of PyTorch's kernels on the CPU lie within the bounds of certificates for float32."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.adversarial import generators, oracle
from tests.adversarial.flushing import can_flush, flushing

import headfit as hf
from headfit.errors import HeadfitError

torch = pytest.importorskip("torch")
torch_kernels = pytest.importorskip("tests.adversarial.torch_kernels")

SIZES = [(0, 0), (0, 0), (5, 1), (9, 2), (17, 3), (20, 33), (40, 64)]
FAMILIES = [f for f in generators.FAMILIES if f not in ("edges", "poisoned_masks", "masks")]


def scaled_query(q, k, s):
    return (q * s) @ k.T


def scaled_key(q, k, s):
    return q @ (k * s).T


def scaled_product(q, k, s):
    return (q @ k.T) * s


def scaled_by_roots(q, k, s):
    root = math.sqrt(abs(s))
    return (q * math.copysign(root, s)) @ (k * root).T


def scaled_in_place(q, k, s):
    return torch.einsum("id,jd->ij", q, k).mul_(s)


def scaled_by_gemm(q, k, s):
    return torch.addmm(torch.zeros(len(q), len(k)), q, k.T, beta=0, alpha=s)


EAGER = [
    scaled_query, scaled_key, scaled_product, scaled_by_roots, scaled_in_place, scaled_by_gemm,
]  # fmt: skip
SDPA = {"math": torch.nn.attention.SDPBackend.MATH, "flash": "FLASH_ATTENTION"}
SDPA["flash"] = getattr(torch.nn.attention.SDPBackend, SDPA["flash"])


def heads(family: str, count: int = 12):
    """Yield heads without a mask, with their queries, keys and certificates for float32."""
    rng = np.random.default_rng([3, FAMILIES.index(family)])
    made = judged = 0
    while made < count:
        n, d = SIZES[made % len(SIZES)]
        dtype = "bfloat16" if rng.random() < 0.2 else "float32"
        head, _, _ = generators.head(rng, family, dtype, "accumulate", n, d)
        if head.mask is not None:
            continue
        made += 1
        q, k = np.float32(head.Q), np.float32(head.K)
        try:
            c = hf.certify(
                head.A, q, k, scale=head.scale, leak=0.3, distortion=0.1, kernel="float32"
            )
        except HeadfitError:
            continue
        judged += 1
        yield head, torch.from_numpy(q), torch.from_numpy(k), c
    assert judged


def check_logits(c, A: np.ndarray, logits: np.ndarray, what: str) -> None:
    """Check that the exact softmax of the computed logits keeps to the bounds of every row."""
    pattern = oracle.Pattern(A, np.ones(A.shape, bool))
    x = logits.astype(np.float64).tolist()
    for i in range(len(A)):
        row = oracle.narrow_row(pattern, i, x[i], x[i])
        if row.undefined:
            assert c.row_status[i] != 0, f"{what}: row {i} is NaN"
            continue
        assert not row.leak_exceeds(float(c.row_leak[i])), f"{what}: leak of row {i}"
        assert not row.distortion_exceeds(float(c.row_distortion[i])), f"{what}: row {i}"
        assert not row.size_exceeds(c.max_logit), f"{what}: a logit of row {i}"


@pytest.mark.parametrize("family", FAMILIES)
def test_eager_logits_keep_to_the_bounds(family):
    for head, q, k, c in heads(family):
        for flush in (False, True) if can_flush() else (False,):
            for kernel in EAGER:
                with flushing(flush):
                    logits = kernel(q, k, float(head.scale)).numpy()
                check_logits(c, head.A, logits, f"{kernel.__name__}, flush={flush}, {head}")


def attention_of(q, k, scale, backend) -> np.ndarray:
    """Return the weights of scaled_dot_product_attention, which unit vectors as values reveal.

    The flash kernel needs values as wide as the queries, so d keys are read at a time.
    """
    n, d = q.shape
    parts = []
    for first in range(0, n, d):
        units = torch.eye(n)[:, first : first + d]
        values = torch.nn.functional.pad(units, (0, d - units.shape[1]))
        with torch.nn.attention.sdpa_kernel([backend]):
            found = torch.nn.functional.scaled_dot_product_attention(
                q[None, None], k[None, None], values[None, None], scale=float(scale)
            )
        parts.append(found[0, 0, :, : units.shape[1]].numpy())
    return np.concatenate(parts, axis=1).astype(np.float64)


@pytest.mark.parametrize("backend", SDPA)
@pytest.mark.parametrize("family", FAMILIES)
def test_fused_attention_keeps_to_the_bounds(family, backend):
    slack = 1 + 2e-5  # the kernel's own exponentials and sums
    least = 2e-38  # smaller weights underflow
    judged = 0
    for head, q, k, c in heads(family):
        for flush in (False, True) if can_flush() else (False,):
            with flushing(flush):
                P = attention_of(q, k, head.scale, SDPA[backend])
            for i, (p, w) in enumerate(zip(P, head.A, strict=True)):
                on, off = p[w > 0], p[w == 0]
                if np.isnan(p).any():
                    assert c.row_status[i] != 0, (head, flush, i)
                    continue
                if on.min() < least:
                    continue
                if off.size and off.max() > least:
                    assert off.max() / on.min() <= c.row_leak[i] * slack, (head, flush, i)
                terms = np.log(on) - np.log(w[w > 0])
                bound = math.log1p(c.row_distortion[i]) + math.log(slack)
                assert terms.max() - terms.min() <= bound, (head, flush, i)
                judged += 1
    assert judged or family.startswith(("overflowing", "scales"))  # whose weights are NaN or 0


# flex_attention says that it is meant to be compiled.
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("path", torch_kernels.PATHS)
def test_what_a_kernel_computes_keeps_to_the_bounds_about_it(path):
    table = torch_kernels.run(200, 3, {path: torch_kernels.PATHS[path]})
    assert len(table) == 2 * len(torch_kernels.DTYPES)
    for cell, counts in table.items():
        assert counts["outside"] == 0, cell
        assert counts["hold"] > 0, cell


def test_bounds_that_leave_out_a_rounding_are_found():
    path = torch_kernels.PATHS["eager"]._replace(
        kernel=lambda dtype: hf.Kernel.named("float32", weights=True)
    )
    table = torch_kernels.run(60, 3, {"eager": path})
    outside = {dtype: sum(c["outside"] for (_, x, _), c in table.items() if x == dtype)
               for dtype in torch_kernels.DTYPES}  # fmt: skip
    assert outside["float32"] == 0
    assert min(outside["bfloat16"], outside["float16"]) > 0
