"""What `sweeping` needs until its commands are declared as the others are."""

from __future__ import annotations

from typing import Any

from headfit._cli.command import COMMON, FORCE


def add_force(parser: Any) -> None:
    """Add --force."""
    parser.add_argument(*FORCE.words, **FORCE.settings)


def add_running(parser: Any, *, threads: bool = True) -> None:
    """Add --progress."""
    parser.add_argument(*COMMON[1].words, **COMMON[1].settings)
