"""Speeds now and then: what moved beyond the noise of the measurements, and by how much."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

LEAST = 0.1
"""Differences of a tenth are never called a change: layouts of memory and code alone make such."""

ALONE = 0.3
"""What a single measurement may be off by, where nothing was repeated."""

STATED = (
    f"A change counts where it exceeds {LEAST:.0%} and the spread, (max - min) / median, of the "
    f"repeats in either file; {ALONE:.0%} for what was measured once."
)


def noise(*items: dict[str, Any]) -> float:
    """Return by which share of a time the measurements of some rows may differ by chance."""
    return max(LEAST, *(ALONE if x.get("spread") is None else x["spread"] for x in items))


def compared(
    old: dict[str, Any], new: dict[str, Any]
) -> tuple[list[list[str]], list[str], list[str]]:
    """Compare the results of `all.py --json`, then and now.

    Returns
    -------
    rows : list of list of str
        A table with one row for each work in both files; the first row is its header.
    moved : list of str
        What became faster or slower beyond the noise.
    remarks : list of str
        What makes the comparison weak, and what stands in one file only.
    """
    before = {item["work"]: item for item in old["summary"]}
    after = {item["work"]: item for item in new["summary"]}
    rows, moved = [["work", "then", "now", "now / then", "noise", ""]], []
    for work, now in after.items():
        then = before.get(work)
        if then is None:
            continue
        ratio, chance = now["seconds"] / then["seconds"], noise(then, now)
        word = ""
        if abs(math.log(ratio)) > math.log1p(chance):
            word = "SLOWER" if ratio > 1 else "faster"
            moved.append(f"{work}: {word}, {ratio:.2f} times (noise {chance:.0%})")
        rows.append([work, f"{then['seconds']:.3g} s", f"{now['seconds']:.3g} s", f"{ratio:.2f}",
                     f"{chance:.0%}", word])  # fmt: skip
    remarks = [
        f"{what} differ: {old.get(what)} then, {new.get(what)} now"
        for what in ("machine", "threads")
        if old.get(what) != new.get(what)
    ]
    remarks += [f"only then: {work}" for work in before if work not in after]
    remarks += [f"only now: {work}" for work in after if work not in before]
    return rows, moved, remarks


def read(path: Path) -> dict[str, Any]:
    """Return the results in a file of `all.py --json`."""
    found = json.loads(path.read_text())
    if not isinstance(found, dict) or "summary" not in found:
        raise SystemExit(f"{path} is no file of all.py --json: it lacks a summary")
    return found
