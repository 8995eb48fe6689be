"""The command line, ``headfit COMMAND``: one call of a command, and its exit status."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from headfit._build import VERSION
from headfit._cli.streams import Streams
from headfit.errors import HeadfitError

__all__ = ["main"]

BAD_INPUT, INTERRUPTED, CLOSED_PIPE = 2, 130, 141

# An ImportError names an optional package that a file format needs.
_BAD = (HeadfitError, OSError, MemoryError, ImportError)

# The commands, each with the module of `headfit._cli` that has it, and what it does.
COMMANDS = {
    "demo": ("demo", "one fixed module attends in five patterns, each certified"),
    "pattern": ("fitting", "write a target pattern to a file"),
    "plan": ("fitting", "say within a minute whether a head is enough for a pattern"),
    "fit": ("fitting", "find a head that produces a pattern"),
    "certify": ("fitting", "judge the arrays of a head anew, whatever the file says of them"),
    "bounds": ("fitting", "prove a lower bound on the head size of a pattern"),
    "info": ("fitting", "say what a target or a head is, or what this installation is"),
    "describe": ("heads", "show how sparse heads are, where they attend, and their rank"),
    "sparsify": ("heads", "keep the heaviest entries of a head, as a pattern"),
    "shrink": ("heads", "find a smaller head that attends as a given one does, for this input"),
    "compress": ("heads", "find maps that make a head smaller for every input"),
    "index": ("heads", "find a small head that finds the keys of a head, for every input"),
    "selection": ("heads", "prove what rows keep with the keys that an index selects"),
    "plot": ("heads", "draw a target, a saved head, or the attention of queries and keys"),
    "sweep": ("sweeping", "fit a head for every point of a file, and keep every result"),
}

_EXAMPLES = """\
examples:
  headfit demo
  headfit pattern random_regular 512 4 -o A.npz
  headfit plan causal_band --n 2048 --arg neighbors=4 --mask causal
  headfit fit A.npz --dim 2048 --leak 0.3 --distortion 2 -o head.npz
  headfit certify A.npz head.npz
  headfit pattern band 64 2 -o - | headfit info -

- stands for standard input or output. Files are replaced with --force only; the
table of a sweep grows.
exit status: 0 the certificate holds (a plan says yes; no point of a sweep failed), 1 it does
not, 2 bad input
"""


class Parser(argparse.ArgumentParser):
    """A parser whose error messages are one line, and whose examples keep their line breaks.

    Options that are not there have no value among the arguments: functions have the defaults.
    """

    def __init__(self, **settings: Any) -> None:
        usual: dict[str, Any] = {
            "formatter_class": argparse.RawDescriptionHelpFormatter,
            "allow_abbrev": False,
            "argument_default": argparse.SUPPRESS,
        }
        super().__init__(**usual | settings)

    def error(self, message: str) -> NoReturn:
        """Name the problem on one line of stderr and exit with status 2."""
        self.exit(2, f"{self.prog}: {' '.join(message.split())} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments; those of the process when None.

    Returns
    -------
    int
        0: done, and the certificate (if one was asked for) holds. 1: it does not hold. 2: bad
        input, with one line on stderr that names the problem. 130: interrupted. 141: the reader of
        the output ended before all was written. It raises no error.

    Examples
    --------
    >>> main(["certify", "no-such-file.npz", "head.npz"])
    2
    """
    words = list(sys.argv[1:] if argv is None else argv)
    files = Streams()
    try:
        arguments = vars(parser(*words[:1]).parse_args(words))
        return int(arguments.pop("command").run(arguments, files))
    except BrokenPipeError:
        # The reader of our output has ended: the interpreter's flush at exit shall not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    except SystemExit as stop:  # --help, --version, arguments that do not parse
        return stop.code if isinstance(stop.code, int) else BAD_INPUT
    except KeyboardInterrupt:
        print("headfit: interrupted", file=sys.stderr)
        return INTERRUPTED
    except _BAD as error:
        print(f"headfit: {files.named(_one_line(error))}", file=sys.stderr)
        return BAD_INPUT


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        named = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        return named + error.strerror
    if isinstance(error, MemoryError) and not str(error):
        return "out of memory"
    return " ".join(str(error).split()) or type(error).__name__


def parser(*names: str) -> Parser:
    """Return the parser of the command line, complete for the commands of these names.

    The other commands have their names and what they do, so that their modules, and all that these
    import, are not needed.
    """
    whole = Parser(
        prog="headfit",
        description="Small self-attention heads for sparse attention patterns, with a "
        "certificate for every entry.",
        epilog=_EXAMPLES,
    )
    whole.add_argument("--version", action="version", version=f"headfit {VERSION}")
    commands = whole.add_subparsers(metavar="COMMAND", required=True)
    for name, (module, about) in COMMANDS.items():
        one = commands.add_parser(name, help=about, description=about)
        if name in names:
            getattr(import_module(f"headfit._cli.{module}"), name).fill(one)
    return whole


if __name__ == "__main__":
    sys.exit(main())
