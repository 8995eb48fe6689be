"""Python holds no loop over rows: no line of the package runs as often as there are tokens."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import headfit as hf

PACKAGE = Path(hf.__file__).parent
N = 1500

EXCEPTIONS = {
    "_lower": "what a search proves is checked in integers and fractions, row by row, by code that "
    "shares nothing with the search",
}
"""The rooms in which lines may run once for each row, and why. Beside them, the proofs that a fit
returns for failed rows are objects, one for each row that has one."""


def lines_run_for_each_row(work: Callable[[], Any]) -> list[str]:
    """Return the lines of the package that run at least N times during some work."""
    runs: Counter[tuple[str, int]] = Counter()

    def count(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            runs[frame.f_code.co_filename, frame.f_lineno] += 1
        return count

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        return count if frame.f_code.co_filename.startswith(str(PACKAGE)) else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        work()
    finally:
        sys.settrace(before)
    places = [(Path(file).relative_to(PACKAGE), line) for (file, line), n in runs.items() if n >= N]
    return [f"{file}:{line}" for file, line in places if file.parts[0] not in EXCEPTIONS]


def pattern() -> hf.Target:
    return hf.Target(hf.patterns.random_regular(N, 2, rng=0))


def head() -> hf.Attention:
    rng = np.random.default_rng(0)
    Q, K = rng.normal(size=(2, N, 4))
    return hf.Attention(Q, K, mask="causal")


def fitted(method: Any, dim: int, **options: Any) -> Callable[[], Any]:
    return lambda: hf.fit(pattern(), dim=dim, method=method, rng=0, num_threads=1, **options)


def of_an_index(work: Callable[[hf.results.Index, hf.Attention], Any]) -> Callable[[], Any]:
    rng = np.random.default_rng(1)
    given = [tuple(pair) for pair in rng.normal(size=(4, 2, 60, 4))]
    found = hf.index(given, dim=2, keys=9, window=2, first=1, effort=0)
    return lambda: work(found, head())


def drawn() -> Any:
    pytest.importorskip("matplotlib")
    return hf.plot.attention(head())


def captured() -> Any:
    torch = pytest.importorskip("torch")
    import headfit.torch as ht

    layer = torch.nn.MultiheadAttention(8, num_heads=2, batch_first=True).eval()
    with ht.capture(layer) as heads, torch.no_grad():
        layer(*[torch.randn(1, N, 8, generator=torch.Generator().manual_seed(0))] * 3)
    return heads.table(), heads.passages()


def of_a_mask() -> Any:
    return hf.patterns.from_mask(hf.patterns.band(N, 2).astype(bool))


WORK: dict[str, Callable[[], Any]] = {
    "learned": fitted(hf.methods.Learned(), 12),
    "learned in bfloat16": fitted(hf.methods.Learned(), 16, dtype="bfloat16"),
    "max-margin": fitted(hf.methods.MaxMargin(), 64),
    "projection": fitted(hf.methods.Projection(), 64, leak=0.3, distortion=2.0),
    "filter": lambda: hf.fit(hf.patterns.circulant(N, [0]), dim=4, method=hf.methods.Toeplitz()),
    "certify a matrix": lambda: hf.certify(pattern(), matrix=np.full((N, N), 1 / N)),
    "describe": lambda: hf.describe(head(), tokens=np.arange(N) % 7),
    "sparsify": lambda: hf.sparsify(head(), per_row=3, per_column=9),
    "top-k": lambda: head().topk(4),
    "shrink": lambda: hf.shrink(head(), dim=2, effort="low"),
    "compress": lambda: hf.compress([head(), head()], dim=2),
    "compress keys": lambda: hf.compress_keys({0: [head(), head()]}, bits=4, effort=1),
    "compress values": lambda: hf.compress_values({0: [(head(), head().K)] * 2}, bits=4),
    "index": lambda: hf.index([head(), head()], dim=2, keys=9, window=2, first=1, effort=1),
    "select": of_an_index(lambda found, given: found.select(given)),
    "judge an index": of_an_index(lambda found, given: found.judge([given])),
    "certify an index": of_an_index(lambda found, given: found.certify(given)),
    "limits of an index": of_an_index(lambda found, given: found.limits(given, time_limit=5)),
    "a sparse matrix of lists": lambda: hf.Target(sp.lil_array(hf.patterns.band(N, 1))),
    "a picture": drawn,
    "capture": captured,
    "neighbours": lambda: hf.patterns.knn(np.random.default_rng(0).normal(size=(N, 3)), 4, rng=0),
    "window and global": lambda: hf.patterns.window_global(N, 3, 2),
    "tree": lambda: hf.patterns.tree(N),
    "a pattern of a mask": of_a_mask,
}


@pytest.mark.parametrize("name", WORK)
def test_no_line_runs_for_each_row(name: str) -> None:
    assert lines_run_for_each_row(WORK[name]) == []


def test_a_loop_over_rows_is_seen() -> None:
    # Bounds are an exception: their checks go row by row.
    seen: list[str] = []
    allowed = EXCEPTIONS.pop("_lower")
    try:
        seen = lines_run_for_each_row(lambda: hf.bounds.lower(pattern(), leak=0.05))
    finally:
        EXCEPTIONS["_lower"] = allowed
    assert seen
    assert all(place.startswith("_lower") for place in seen)
