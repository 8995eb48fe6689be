"""What `sweeping` needs until its commands are declared as the others are."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from headfit._cli.command import COMMON
from headfit._cli.streams import Streams

Commands = Any


class _Arguments(argparse.Namespace):
    def __getattr__(self, name: str) -> None:
        return None


class _Earlier:
    """A command whose function takes arguments and returns its exit status."""

    def __init__(self, function: Callable[[Any], int]) -> None:
        self.function = function

    def run(self, arguments: dict[str, Any], files: Streams) -> int:
        """Run the command."""
        files.claim([], force=arguments.get("force", False))
        return self.function(_Arguments(**arguments, streams=files))


def command(
    parent: Commands, name: str, run: Callable[[Any], int], about: str, examples: str
) -> Any:
    """Add a command with its help, its examples and --json."""
    parser = parent.add_parser(
        name, help=about, description=about, epilog="examples:\n" + examples, argument_default=None
    )
    parser.set_defaults(command=_Earlier(run))
    parser.add_argument(*COMMON[0].words, **COMMON[0].settings)
    return parser
