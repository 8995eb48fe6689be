"""What `sweeping` needs until its commands are declared as the others are."""

from __future__ import annotations

import json
from typing import Any

from headfit._base.plain import plain
from headfit._cli.streams import progress as progress


def emit(figures: dict[str, Any]) -> None:
    """Print one JSON object."""
    print(json.dumps(plain(figures), allow_nan=False))
