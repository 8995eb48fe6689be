"""The command that runs the attack; see the package's docstring."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.adversarial import generators
from tests.adversarial.attack import Tally, as_code, attack, reduce

CHUNK = 2000


def _jobs(arguments: argparse.Namespace) -> list[tuple]:
    cells = [(d, r) for r in arguments.reading for d in arguments.dtype]
    share = -(-arguments.cases // len(cells))
    jobs = []
    for part in range(-(-share // CHUNK)):
        size = min(CHUNK, share - part * CHUNK)
        seed = arguments.seed * 10**6 + part
        jobs += [(d, r, size, seed, arguments.family) for d, r in cells]
    return jobs


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.adversarial", description=__doc__)
    parser.add_argument("--cases", type=int, default=32000, help="calls of certify, in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    for name, choices in (
        ("dtype", generators.DTYPES),
        ("reading", generators.READINGS),
        ("family", tuple(generators.FAMILIES)),
    ):
        parser.add_argument(f"--{name}", choices=choices, action="append")
    parser.add_argument("--show", type=int, default=2, help="reproductions of each kind of lie")
    arguments = parser.parse_args()
    arguments.dtype = arguments.dtype or list(generators.DTYPES)
    arguments.reading = arguments.reading or list(generators.READINGS)
    start = time.monotonic()
    tally = Tally()
    jobs = _jobs(arguments)
    if arguments.processes > 1:
        # `attack` lies in another module, since new processes cannot import from __main__. A pool
        # of this kind raises an error if a process dies.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(arguments.processes, mp_context=context) as pool:
            for done in as_completed([pool.submit(attack, *job) for job in jobs]):
                tally.merge(done.result())
    else:
        for job in jobs:
            tally.merge(attack(*job))
    _report(tally, arguments.show, time.monotonic() - start)
    return 1 if tally.number_of_lies else 0


def _report(tally: Tally, show: int, seconds: float) -> None:
    order = {d: i for i, d in enumerate(generators.DTYPES)}
    cells = dict(sorted(tally.cells.items(), key=lambda cell: (cell[0][1], order[cell[0][0]])))
    print(tally.table(cells), tally.table(tally.families), sep="\n\n")
    cases = sum(n["cases"] for n in tally.cells.values())
    print(f"\n{cases} cases, {tally.number_of_lies} lies, {seconds:.0f} s")
    shown: dict[tuple[str, str], int] = {}
    for lie in tally.lies:
        place = lie.kind, lie.head.reading
        shown[place] = shown.get(place, 0) + 1
        if shown[place] <= show:
            print(f"\n{as_code(reduce(lie))}")


if __name__ == "__main__":
    sys.exit(main())
