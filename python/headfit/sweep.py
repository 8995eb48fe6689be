"""Many points: something computed for each of them, with every result kept at once.

>>> import headfit as hf
>>> points = hf.sweep.grid(pattern="band", n=[16, 32], neighbors=1, dim=6)
>>> swept = hf.sweep.run(points, "results.jsonl", workers=0, num_threads=1)
>>> [(row["n"], row["certified"]) for row in hf.sweep.load("results.jsonl").rows]
[(16, True), (32, True)]
"""

from headfit._sweep.grid import grid
from headfit._sweep.result import Sweep, load
from headfit._sweep.run import run

__all__ = ["Sweep", "grid", "load", "run"]


def __dir__() -> list[str]:
    return sorted(__all__)
