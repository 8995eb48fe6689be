"""A share of the table of bad inputs; ``python -m tests.adversarial.bad_inputs`` runs all of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EVERY = os.environ.get("HEADFIT_BAD_INPUTS_EVERY", "24")


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are read in /proc")
def test_bad_inputs_are_refused_with_the_name_of_the_argument() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.adversarial.bad_inputs"]
    # The table runs in a separate process, since it forks, which a process with threads should not.
    done = subprocess.run(
        [*command, "--every", EVERY],
        cwd=ROOT,
        env={**os.environ, "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " 0 failures" in done.stdout
