"""Times over the project's history, by airspeed velocity: `asv run`, from the repository's root.

The tasks are those of `growth.py`, at one size each.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import growth

THREADS = 2

TASKS = {
    "attention matrix": lambda: growth.attention(2048, 64, THREADS),
    "top-8": lambda: growth.topk(4096, 64, THREADS),
    "attention x V": lambda: growth.apply(2048, 64, THREADS),
    "certificate": lambda: growth.certificate(8192, 16, THREADS),
    "certificate with mass": lambda: growth.certificate(8192, 16, THREADS, True),
    "projection": lambda: growth.projection(16384, 512, THREADS),
    "max-margin": lambda: growth.max_margin(1024, 8, THREADS),
    "learned": lambda: growth.learned_steps(2048, 4, THREADS),
}


class Speed:
    """Seconds of each task."""

    params = tuple(TASKS)
    param_names = ("task",)

    def setup(self, task):
        self.work = TASKS[task]()

    def time_task(self, task):
        self.work()
