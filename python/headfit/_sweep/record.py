"""The file of one point: what was asked, what came of it, and how it was made."""

from __future__ import annotations

import json
from typing import Any

from headfit._sweep.canonical import digest, point_key
from headfit._sweep.measure import Outcome, finite_or_tagged, untagged
from headfit._sweep.work import Task

FORMAT = 1

Record = dict[str, Any]

_CONTENT = {"done": "result", "failed": "error"}


def make_record(task: Task, outcome: Outcome) -> Record:
    """Return the record of a task; `made` holds what may differ when it is computed again."""
    return {
        "format": FORMAT,
        "key": task.key,
        "work": task.work,
        "version": task.version,
        "point": task.point,
        **({} if task.code is None else {"code": task.code}),
        **outcome,
    }


def to_bytes(record: Record) -> bytes:
    """Return the text of a record's file, with a hash that tells a damaged file."""
    stored = dict(record)
    if "result" in stored:
        stored["result"] = {k: finite_or_tagged(v) for k, v in stored["result"].items()}
    stored["made"] = {k: finite_or_tagged(v) for k, v in stored["made"].items()}
    stored["check"] = digest({k: v for k, v in stored.items() if k != "made"})
    return (json.dumps(stored, indent=1, allow_nan=False) + "\n").encode("ascii")


def from_bytes(text: bytes, key: str) -> Record:
    """Return the record in a file's text.

    Raises
    ------
    ValueError
        For a text that is no such record, or not the one of this key; the message says why.
    """
    try:
        stored = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError("it is cut short or no JSON") from error
    if not isinstance(stored, dict) or stored.get("format") != FORMAT:
        raise ValueError(f"it is no record of format {FORMAT}")
    check = stored.pop("check", None)
    try:
        content = {k: v for k, v in stored.items() if k != "made"}
        found = point_key(stored["work"], stored["version"], stored["point"])
        if check != digest(content):
            raise ValueError("its content was changed")
        if found != key or stored["key"] != key:
            raise ValueError("it belongs to another point")
        part = _CONTENT[stored["status"]]
        if not isinstance(stored["made"], dict) or not isinstance(stored[part], dict):
            raise ValueError("parts of it are missing")
        stored["made"] = {k: untagged(v) for k, v in stored["made"].items()}
        if part == "result":
            stored["result"] = {k: untagged(v) for k, v in stored["result"].items()}
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError("parts of it are missing") from error
    return stored
