"""Functions that tests sweep; a module of its own, since worker processes import it."""

from __future__ import annotations

import asyncio
import enum
import os
import signal
import time
from pathlib import Path
from typing import Any


def note(log: str, word: str) -> None:
    """Append a word to a file; whole, even from several processes at once."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(handle, f"{word}\n".encode())
    os.close(handle)


def square(x: float, log: str = "") -> dict[str, Any]:
    if log:
        note(log, str(x))
    return {"square": x * x}


def anything(**point: Any) -> dict[str, Any]:
    return {}


def measured(n: int, leak: float, more: str = "", leak_found: int = 0) -> dict[str, Any]:
    return {"n": 8, "leak": 0.05, **({more: 1} if more else {})}


def number(text: str) -> dict[str, Any]:
    return {"value": float(text)}


def slow_square(x: float, log: str, seconds: float = 0.002) -> dict[str, Any]:
    note(log, str(x))
    time.sleep(seconds)
    return {"square": x * x, "third": x / 3}


def gated_square(x: float, log: str, gate: str) -> dict[str, Any]:
    """Begin, and go on while fewer points have begun, in all, than the file `gate` says."""
    note(log, str(x))
    while len(Path(log).read_text().split()) >= int(Path(gate).read_text()):
        time.sleep(0.002)
    return {"square": x * x, "third": x / 3}


def picky(x: float, log: str) -> dict[str, Any]:
    """Fail for odd numbers, in several ways."""
    note(log, str(x))
    if x == 1:
        raise ValueError("one is odd")
    if x == 3:
        raise SystemExit(3)
    return {"square": x * x} if x % 2 == 0 else [x]  # type: ignore[return-value]


class Unsayable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def odd(x: float) -> dict[str, Any]:
    """Fail, or return something unusual, each in a way that must not end the sweep."""
    if x == 1:
        raise Unsayable
    if x == 2:
        raise asyncio.CancelledError("gone")
    return {"text": "caf\udce9"} if x == 3 else {"whole": 2**63}


class Whole(enum.IntEnum):
    ONE = 1


def own_classes(kind: str) -> dict[str, Any]:
    """Return values of classes that no other process can load."""
    if kind == "interrupt":
        raise KeyboardInterrupt

    class Text(str):
        def __str__(self) -> str:
            return "something else"

    class Real(float):
        pass

    return {"value": {"text": Text("x"), "whole": Whole.ONE, "real": Real(0.5)}[kind]}


def goes_to(folder: str) -> dict[str, Any]:
    os.chdir(folder)
    return {"there": True}


def deadly(x: float, log: str, once: bool = True) -> dict[str, Any]:
    """Kill the worker process at x = 2: the first time, or every time."""
    before = Path(log).read_text().splitlines().count("2") if Path(log).exists() else 0
    note(log, str(x))
    if x == 2 and not (once and before):
        os.kill(os.getpid(), signal.SIGKILL)
    return {"square": x * x}


def facts(x: float, num_threads: int) -> dict[str, Any]:
    return {
        "threads_given": num_threads,
        "omp": os.environ.get("OMP_NUM_THREADS"),
        "pid": os.getpid(),
        "infinite": float("inf"),
        "nothing": None,
        "is_whole": isinstance(x, int),
    }


def versioned(x: float) -> dict[str, Any]:
    return {"one": 1}


versioned.version = "a"  # type: ignore[attr-defined]


def endless(x: float, log: str) -> dict[str, Any]:
    note(log, str(os.getpid()))
    time.sleep(600)
    return {}
