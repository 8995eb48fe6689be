"""The command line, ``headfit COMMAND``: one call of a command, and its exit status."""

from __future__ import annotations

import os
import sys
import zipfile
import zlib
from collections.abc import Sequence

from headfit._base.version import VERSION
from headfit._cli.arguments import Parser, add_certify, add_demo, add_fit, add_info
from headfit._cli.bounding import add_bounds
from headfit._cli.describing import add_describe
from headfit._cli.drawing import add_plot
from headfit._cli.kinds import add_pattern
from headfit._cli.planning import add_plan
from headfit._cli.shrinking import add_compress, add_shrink
from headfit._cli.streams import Streams
from headfit._cli.sweeping import add_report, add_sweep
from headfit.errors import HeadfitError

__all__ = ["main"]

HOLDS, FAILS, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

# A damaged .npz file shows in the archive itself or in its compressed parts.
# An ImportError names an optional package that a file format needs.
_BAD = (HeadfitError, OSError, MemoryError, ImportError, zipfile.BadZipFile, zlib.error)

_EXAMPLES = """\
examples:
  headfit demo
  headfit pattern random_regular 512 4 -o A.npz
  headfit plan causal_band --n 2048 --arg neighbors=4 --mask causal
  headfit fit A.npz --dim 2048 --leak 0.3 --distortion 2 -o head.npz
  headfit certify A.npz head.npz
  headfit pattern band 64 2 -o - | headfit info -

- stands for standard input or output. Files are replaced with --force only.
exit status: 0 the certificate holds (a plan says yes; no point of a sweep failed), 1 it does
not, 2 bad input
"""


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
        input, with one line on stderr that names the problem. 130: interrupted. It raises no error.

    Examples
    --------
    >>> main(["certify", "no-such-file.npz", "head.npz"])
    2
    """
    files = None
    try:
        arguments = _parser().parse_args(argv)
        with Streams(arguments) as files:
            arguments.streams = files
            status: int = arguments.run(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The process that read our output has ended. Print nothing, and point stdout to an open
        # file, so that the interpreter's flush at exit does not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILS
    except SystemExit as stop:  # --help, --version, arguments that do not parse
        return stop.code if isinstance(stop.code, int) else BAD_INPUT
    except KeyboardInterrupt:
        print("headfit: interrupted", file=sys.stderr)
        return INTERRUPTED
    except _BAD as error:
        line = _one_line(error)
        print(f"headfit: {line if files is None else files.named(line)}", file=sys.stderr)
        return BAD_INPUT


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        named = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        return named + error.strerror
    if isinstance(error, MemoryError) and not str(error):
        return "out of memory"
    return " ".join(str(error).split()) or type(error).__name__


def _parser() -> Parser:
    parser = Parser(
        prog="headfit",
        description="Small self-attention heads for sparse attention patterns, with a "
        "certificate for every entry.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"headfit {VERSION}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    add_demo(commands)
    add_pattern(commands)
    add_plan(commands)
    add_fit(commands)
    add_certify(commands)
    add_bounds(commands)
    add_info(commands)
    add_describe(commands)
    add_shrink(commands)
    add_compress(commands)
    add_plot(commands)
    add_sweep(commands)
    add_report(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
