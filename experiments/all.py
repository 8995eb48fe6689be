"""All experiments, one after the other, with the options of each (see `common.settings`).

python experiments/all.py --quick                # an hour on two cores
python experiments/all.py --full --draw          # compute nothing, draw the committed results
python experiments/all.py --full --scheduler tcp://127.0.0.1:8786   # on a cluster of Dask
python experiments/all.py --only growth precision --quick
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
NAMES = (
    "phase_diagram", "one_module", "real_patterns", "precision", "small_logits", "hardness",
    "growth", "published", "capacity", "near_the_end",
)  # fmt: skip


def main() -> int:
    """Run the experiments, and return how many of them failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="NAME")
    chosen, options = parser.parse_known_args()
    failed = []
    for name in chosen.only:
        print(f"\n{name} {' '.join(options)}", flush=True)
        if subprocess.run([sys.executable, HERE / f"{name}.py", *options], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
