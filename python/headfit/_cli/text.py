"""What the commands print: lines for people, JSON for machines, progress for terminals."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from headfit._base.plain import plain
from headfit._base.shown import aligned
from headfit._base.text import mask_text, number
from headfit._cli.demo import Demo, DemoRow
from headfit._fit.result import Fit
from headfit._target.target import Target


def emit(figures: dict[str, Any]) -> None:
    """Print one JSON object, in strict JSON: no NaN, no infinity."""
    print(json.dumps(plain(figures), allow_nan=False))


@contextmanager
def progress(wanted: bool | None = None) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a line of progress on stderr.

    On a terminal each line takes the place of the last, and the end clears it; elsewhere lines
    are written below each other, if they are wanted. None: on terminals only.
    """
    terminal = sys.stderr.isatty()
    shows = terminal if wanted is None else wanted

    def say(line: str) -> None:
        if shows and terminal:
            print(f"\r\x1b[2K{line} ...", end="", file=sys.stderr, flush=True)
        elif shows:
            print(f"headfit: {line} ...", file=sys.stderr, flush=True)

    try:
        yield say
    finally:
        if shows and terminal:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


def target_line(target: Target) -> str:
    """Return the figures of a target as a line for people."""
    return (
        f"n = {target.n}, {target.nonzeros} nonzeros, at most {target.per_row} per row and "
        f"{target.per_column} per column, gamma = {target.gamma:.6g}"
    )


def head_line(head: Fit) -> str:
    """Return the figures of a head as a line for people."""
    searched = "" if head.search is None else f" ({head.search.stopped})"
    why = "" if head.stopped in (None, "certified") else f"not certified ({head.stopped}), "
    return (
        f"head of {head.Q.shape[0]} tokens, dim = {head.dim}{searched}, {why}{head.dtype}, "
        f"{head.method}, mask={mask_text(head.mask)}, {head.seconds:.3g} s"
    )


def _needs(head: Fit) -> str:
    return "-" if head.lower_bound is None else f"d >= {head.lower_bound.dim}"


def _random_keys(row: DemoRow) -> str:
    if row.given_keys is None:
        return "-"
    return str(row.given_keys.dim) if row.given_keys.certificate.holds else "no"


def demo_table(demo: Demo) -> str:
    """Return the table of the demonstration."""
    head = ("pattern", "n", "k row/col", "gamma", "learned d", "leak", "distortion", "seconds",
            "holds", "needs", "random keys", "projection")  # fmt: skip
    lines: list[Sequence[str]] = [head]
    for row in demo.rows:
        t, c = row.target, row.fit.certificate
        lines.append((
            row.name, str(t.n), f"{t.per_row}/{t.per_column}", f"{t.gamma:.3g}", str(row.dim),
            number(c.leak, 3), number(c.distortion, 3), f"{row.seconds:.1f}",
            "yes" if c.holds else "no", _needs(row.fit), _random_keys(row), str(row.proved_dim),
        ))  # fmt: skip
    table = "\n".join(aligned(lines, left=(0,)))
    asked, module = demo.rows[0].fit.tolerances, demo.module
    kept = "the same bytes" if demo.untouched else "CHANGED"
    return (
        f"One fixed module: W_Q and W_K dense and random, {module.width} x {module.dim}, "
        f"{module.dtype}.\n"
        f"For each pattern only the input X differs; asked for: leak <= {asked.leak:g}, "
        f"distortion <= {asked.distortion:g}.\n\n{table}\n\n"
        f"learned d: the smallest head found in a few seconds; zeros fill the module's.\n"
        f"leak, distortion: certified upper bounds over all n**2 entries of module(X).\n"
        f"needs: a proved lower bound. random keys: the smallest head found by max-margin "
        f"queries.\n"
        f"projection: the size that the paper's algorithm is proved to need at most.\n"
        f"weights: sha256 {demo.weights_before[:16]} before, {demo.weights_after[:16]} after: "
        f"{kept}\n"
        f"{demo.setup_seconds:.1f} s for the module, {demo.seconds:.1f} s in all"
    )
