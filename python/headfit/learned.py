"""Rung three: keys and queries found together.

What was tried to reach smaller heads, and did not help (random 4-regular patterns of 512 and
1,024 tokens unless said; "left" are the rows outside the tolerances):

- Adam per coordinate reaches the same sizes in two to three times the steps.
- Newton steps of the rows' own length fall fast, then freeze with every row left: the step
  must have a set length, whether a row is quiet or not. Set lengths without the row's curvature
  leave 86 to 309 rows where curvature leaves none; with 16 nonzeros a row the two are alike.
- A dead zone around the log-ratios, keys three to eight times larger at the start, scans that
  are rarer than every second step while steps are hot, the largest violators instead of an even
  sample of them, lists twice as long: no smaller size, most of them slower.
- Scans of every s-th column, the same for all rows: keys that no row sees drift, so that 24 hits
  had to be found for each place of a list. Where each class of rows looks at another class of
  columns one does, and 10,000 x 4 in d = 9 takes 0.6 times as long.
- A first hold as short as half of the quench it ends in, at lengths of 0.06 or 0.1: where few
  columns are over their rows' limits after 100 steps it is all that a fit needs (100,000 x 4 in
  d = 16), where many are it is in vain; waiting for them to become few takes as long as a hold.
- Steps no longer than Newton's own at the end of a quench: 8% fewer steps where there is ample
  room, five times more at 2,048 x 4 in d = 7. A quench of 60 or 80 steps instead of 100 where
  there is ample room leaves rows in every other fit; lists of 12 or 16, or scans of every third
  step, take a third more steps where room is less.
- Pulling harder on the keys for failing rows from the start leaves all rows; doing so after a
  quench, once a quarter of the rows are no longer far off, frees the others.
- Steps whose length falls exponentially all the way, and a longer anneal from the start when
  one leaves many rows: 2.5 times the steps at 2,048 x 8 in d = 14, three times at 10,000 x 4 in
  d = 9. Keys find their places while steps are between 0.2 and 0.02 or so, and the rest of an
  anneal is waiting. At a held length the mean deficit falls to a level proportional to the
  length once they have; 200 shrinking steps then end the fit.
- First steps twice as long: as good up to d = 9, keys fly apart from d = 12 on. Half as long:
  twice the steps at the smallest sizes.
- Momentum of 0.95 or 0.98 instead of 0.9 with shorter steps, or 0.5 and 0 with longer ones; held
  lengths that fall as the third or the 0.7th power of time instead of its root; reheats three
  times as hot.
- d = 10 at 512 x 8 and d = 5 at 512 x 4: the mean deficit settles at 6 and 8 after 2,000 of
  25,000 steps of held length, whatever the length.
- Starts from singular vectors of the pattern, for bands of 400 tokens at d = 6 and 8: rows are
  left after 8,000 steps, as from random starts.

What was not tried: a homotopy in the tolerances, stochastic rows, orthogonalised (Muon) momentum.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._arrays import FloatArray, as_contiguous, as_float_array, effort_steps
from headfit._deadline import calls_until
from headfit._endings import Ending
from headfit._masks import core_mask
from headfit._memory import require_memory
from headfit.errors import InputError
from headfit.methods import Head, tightened
from headfit.targets import Target

# Steps before the first quench, unless a brief hold has done; where it comes too early others
# follow at 1.4 times the steps.
EFFORTS = {"low": 300, "medium": 1000, "high": 5000}
# Steps in all, in these: when one size was asked for; for a size of a search of 512 tokens or
# more (fewer tokens take less time, and in the smallest sizes as many steps); and where a larger
# size is tried next.
PATIENCE = 200.0
SEARCH_PATIENCE = 24.0
HASTE = 4.0
# With more rows left than this, keys are nowhere near done, and exact queries are in vain.
POLISHED_SHARE = 0.1
# What exact queries for them may take after a time limit.
POLISH_SECONDS = 0.5

# What the core's words for the end of a fit mean for one that does not certify.
ENDED: dict[str, Ending] = {
    "met": "stalled",
    "step limit": "steps",
    "time limit": "time limit",
    "stopped": "callback",
}

Callback = Callable[[int, int, float], Any]


def search_patience(n: int) -> float:
    """Return in how many first holds a search gives up a size."""
    return SEARCH_PATIENCE * math.sqrt(max(1.0, 512 / max(n, 1)))


def check_effort(effort: str | int) -> int:
    """Return the steps before the first quench."""
    return effort_steps(effort, EFFORTS)


def _start(init: Any, n: int, dim: int) -> tuple[FloatArray | None, FloatArray | None]:
    if init is None:
        return None, None
    try:
        q, k = (as_contiguous(as_float_array(x, "init", ndim=0), dtype=np.float32) for x in init)
    except (TypeError, ValueError) as error:
        raise InputError(f"init must be a pair (Q, K) of matrices: {error}") from error
    for name, x in (("Q", q), ("K", k)):
        if x.ndim != 2 or x.shape[0] != n or not 1 <= x.shape[1] <= dim or x.shape != q.shape:
            raise InputError(
                f"init must be Q and K of equal shape, {n} rows and 1 to {dim} columns; "
                f"got {name} of shape {x.shape}"
            )
        if not np.isfinite(x).all():
            raise InputError(f"init must be finite; {name} is not, as float32")
    return q, k


def _polish(
    target: Target,
    mask: _core.Mask,
    q: FloatArray,
    k: FloatArray,
    rows: NDArray[np.intp],
    tolerances: tuple[float, float],
    max_query: float,
    threads: int,
) -> NDArray[np.intp]:
    """Give the rows that are left exact queries, where these keys have any: the rows still left."""
    offsets, columns, weights = target.parts
    sizes = np.zeros(target.n, dtype=np.int64)
    sizes[rows] = np.diff(offsets)[rows]  # the other rows ask for nothing
    asked = np.repeat(sizes > 0, np.diff(offsets))
    exact, status, _, _, _ = _core.max_margin_queries(
        np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)]),
        columns[asked],
        weights[asked],
        k.astype(np.float64),
        mask,
        *tolerances,
        False,
        max_query,
        threads,
    )
    freed = np.array([status[i] == "optimal" for i in rows], dtype=bool)
    q[rows[freed]] = exact[rows[freed]]
    left: NDArray[np.intp] = rows[~freed]
    return left


def learned(
    target: Target,
    dim: int,
    *,
    leak: float,
    distortion: float,
    seed: int,
    threads: int,
    effort: str | int = "low",
    max_norm: float = 0.0,
    max_logit: float = math.inf,
    logit_step: float = 0.0,
    storage: str = "",
    query_unit: float = 1.0,
    time_limit: float = math.inf,
    patience: float = PATIENCE,
    init: Any = None,
    callback: Callback | None = None,
) -> Head:
    """Return the keys and queries that an annealed descent finds, and the rows it leaves.

    Per row, with c the mean of S - log A over the support and b = c + min log A - tau, the loss
    is half the sum of (S - log A - c)^2 there plus half the sum of max(0, S - b)^2 elsewhere.
    Every query and every key takes steps of one set length, along its momentum preconditioned
    by its own curvature. The length is a temperature: it falls slowly, as the root of the
    steps, and is quenched now and then; a quench that leaves many rows is undone. Scans
    of the logits list the few columns that matter, and an exact one ends the fit as soon as
    every row is within the tolerances.

    Parameters
    ----------
    effort : "low", "medium", "high" or int
        The steps before the first quench: less time for a large head, a small head sooner.
    max_norm : float
        A bound on max ||q|| max ||k||, kept by projection; 0 is none.
    max_logit : float
        A bound on every |logit|: what goes beyond it is pushed back by the loss.
    logit_step : float
        By how much the rounding of logits may move them against each other.
    storage : "bfloat16", "float16" or ""
        Round keys and queries / `query_unit` to this format, keys first: queries then make up
        for what the rounding of the keys did, and a search among the neighbouring grid points
        of every query lets its own errors cancel. "" rounds nothing.
    patience : float
        After how many times these steps to give up.
    init : (Q, K), optional
        A start, of `dim` columns or fewer; logits are Q @ K.T.
    callback : callable, optional
        Called after every scan with (step, rows left, worst deficit in logit units); returning
        False ends the fit.
    """
    require_memory(
        target.n * (24 * (5 * math.ceil(target.mean_per_row) + 24) + 8 * dim * (dim + 16)),
        f"learning a head of size dim = {dim}",
    )
    start, steps = time.perf_counter(), check_effort(effort)
    init_q, init_k = _start(init, target.n, dim)
    mask = core_mask(target.mask, (), (target.n, target.n))
    tolerances = tightened(leak, distortion, logit_step)
    q, k, report = _core.fit_learned(
        *target.parts,
        mask,
        dim,
        *tolerances,
        seed,
        steps,
        math.ceil(patience * steps),
        time_limit,
        max_norm,
        max_logit * (1 - 1e-5),
        storage,
        query_unit,
        init_q,
        init_k,
        None if callback is None else lambda *scan: callback(*scan) is not False,
        threads,
    )
    failed = report.pop("rows_left")
    report["rows_left"] = int(failed.size)
    polish = not storage and math.isinf(max_logit) and report["status"] != "stopped"
    if polish and 0 < failed.size <= POLISHED_SHARE * target.n:
        longest = float(np.linalg.norm(k.astype(np.float64), axis=1).max())
        max_query = max_norm / longest if max_norm > 0 and longest > 0 else math.inf
        end = max(start + time_limit, time.perf_counter() + POLISH_SECONDS)
        with suppress(TimeoutError), calls_until(end):
            failed = _polish(target, mask, q, k, failed, tolerances, max_query, threads)
    report["rows_polished"] = report["rows_left"] - int(failed.size)
    settings = {"effort": effort, "learned": report}
    return Head(q, k, failed_rows=failed, settings=settings, ended=ENDED[report["status"]])
