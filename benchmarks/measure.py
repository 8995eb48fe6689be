"""Common parts of the benchmarks: the machine's name, medians of interleaved runs, tables."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import headfit as hf

FLAGS = {"v3": "avx2", "v4": "avx512f"}
"""The vector extension that each CPU level adds, by its name in `hf.show_config().supported`."""


def machine() -> str:
    """Return the processor, its vector extensions and the number of cores in a line."""
    found = hf.show_config()
    flags = ", ".join(flag for level, flag in FLAGS.items() if level in found.supported)
    return f"{found.processor} ({flags}), {os.cpu_count()} cores"


class Median(float):
    """The median seconds of some runs, with their number and their spread."""

    runs: int
    spread: float

    def __new__(cls, times: Sequence[float]) -> Median:
        self = super().__new__(cls, statistics.median(times))
        self.runs = len(times)
        self.spread = (max(times) - min(times)) / self
        return self


def interleaved(work: Mapping[str, Callable[[], Any]], repeat: int) -> dict[str, Median]:
    """Return the median seconds of each task; tasks run in turn, after one warm-up round.

    A processor that has rested takes milliseconds to reach its speed: short tasks run once more
    right before they are timed.
    """
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for round_ in range(repeat + 1):
        for name, run in work.items():
            time.sleep(0.1)  # until the threads of the previous task have stopped spinning
            start = time.perf_counter()
            run()
            if time.perf_counter() - start < 0.05:
                start = time.perf_counter()
                run()
            if round_:
                seconds[name].append(time.perf_counter() - start)
    return {name: Median(times) for name, times in seconds.items()}


def table(title: str, rows: Sequence[Sequence[str]]) -> None:
    """Print rows as a Markdown table; the first row is its header."""
    print(f"\n### {title}\n")
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    for r, row in enumerate(rows):
        print("| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |")
        if r == 0:
            print("|" + "|".join("-" * (w + 2) for w in widths) + "|")


def ratios(title: str, seconds: Mapping[str, float], ours: str) -> None:
    """Print the time of each task, and its ratio to that of `ours`."""
    rows = [["work", "ms", f"times {ours}"]]
    rows += [[n, f"{1e3 * s:.1f}", f"{s / seconds[ours]:.2f}"] for n, s in seconds.items()]
    table(title, rows)


SUMMARY: list[dict[str, Any]] = []


def summarise(
    work: str, ours: float, peer: str, theirs: float | None, limit: float | None = None
) -> None:
    """Record a row of the table of `all.py`: seconds of ours, of a peer, and of a limit.

    A `Median` has the number of its runs and their spread recorded as well; a time that was
    measured once has one run and no spread.
    """
    SUMMARY.append({"work": work, "seconds": ours, "runs": getattr(ours, "runs", 1),
                    "spread": _spread(ours), "peer": peer, "peer_seconds": theirs,
                    "limit_seconds": limit})  # fmt: skip
    if limit is not None:
        print(f"\n{work}: {1e3 * ours:.1f} ms; limit {1e3 * limit:.1f} ms ({ours / limit:.2f}x)")


def _spread(seconds: float) -> float | None:
    return seconds.spread if isinstance(seconds, Median) and seconds.runs > 1 else None


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark takes."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--threads", type=int, default=2)
    made.add_argument("--repeat", type=int, default=7)
    made.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    made.add_argument("--json", type=Path, help="write the figures here")
    return made


def arguments(description: str) -> argparse.Namespace:
    """Parse the options of the command line."""
    return parser(description).parse_args()


def finish(options: argparse.Namespace, figures: dict[str, Any]) -> None:
    """Write the recorded results to a file, if the options name one."""
    if options.json:
        options.json.write_text(
            json.dumps(
                {"machine": machine(), "threads": options.threads, "summary": SUMMARY, **figures},
                indent=1,
            )
            + "\n"
        )
