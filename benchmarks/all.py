"""Run all benchmarks of speed one after the other, and make a table and a picture of them.

python benchmarks/all.py --quick          # a short test that everything runs
python benchmarks/all.py --out benchmarks/results   # takes an hour on two cores
python benchmarks/all.py --json now.json --against then.json   # and what moved beyond noise
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import against
import measure

HERE = Path(__file__).parent
RUNS = {
    "attention": [],
    "sparse_masks": ["--keys", "64"],
    "certificate": ["--million"],
    "projection": [],
    "max_margin": [],
    "small_heads": ["--only", "--large", "--largest", "--seeds", "1", "--peers"],
    "growth": [],
}


def duration(seconds):
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def row(item):
    peer, ours, limit = item["peer_seconds"], item["seconds"], item["limit_seconds"]
    return [
        item["work"],
        duration(ours),
        item["peer"],
        "-" if peer is None else duration(peer),
        "-" if peer is None else f"{peer / ours:.3g}x",
        "-" if limit is None else f"{ours / limit:.2f}x",
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("headfit-benchmarks"), help="a folder")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=RUNS, help="some of them; others are kept")
    parser.add_argument("--kept", action="store_true", help="run nothing: take what --out holds")
    parser.add_argument("--json", type=Path, help="write the figures of all here, in one file")
    parser.add_argument("--against", type=Path, help="compare with a file that --json wrote")
    options = parser.parse_args()
    old = None if options.against is None else against.read(options.against)
    options.out.mkdir(parents=True, exist_ok=True)
    for name, extra in RUNS.items():
        if options.kept or (options.only and name not in options.only):
            continue
        command = [sys.executable, str(HERE / f"{name}.py"), "--threads", str(options.threads),
                   "--json", str(options.out / f"{name}.json"), *extra]  # fmt: skip
        if options.quick:
            command += ["--quick"]
        if name == "growth":
            command += ["--plot", str(options.out / "growth.svg")]
        print(f"\n## {name}\n", flush=True)
        subprocess.run(command, check=True)
    summary = []
    rows = [["work", "headfit", "peer", "takes", "times ours", "ours / limit"]]
    for name in RUNS:
        path = options.out / f"{name}.json"
        if path.exists():
            summary += json.loads(path.read_text())["summary"]
    rows += [row(item) for item in summary]
    print(f"\n{measure.machine()}; {options.threads} threads")
    measure.table("speed", rows)
    new = {"machine": measure.machine(), "threads": options.threads, "summary": summary}
    if options.json is not None:
        options.json.write_text(json.dumps(new, indent=1) + "\n")
    if old is not None:
        show(*against.compared(old, new))


def show(rows, moved, remarks):
    measure.table("now against then", rows)
    print(f"\n{against.STATED}\n")
    for line in remarks:
        print(line)
    print("\n".join(moved) if moved else "Nothing moved beyond noise.")


if __name__ == "__main__":
    main()
