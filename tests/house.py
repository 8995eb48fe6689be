"""How much Python there is, and what public names lack: ``python -m tests.house`` prints both."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "python" / "headfit"

LINES, CODE, STATEMENTS = 27_997, 16_021, 14_173
"""The most that all of `python/` may have."""

ROOM_LINES = {
    "_sweep": 890, "_cli": 1300, "_shrink": 935, "_compress": 1350, "_base": 2025,
    "_cache": 1080, "_index": 1258, "_plan": 1020, "_lower": 2250, "_attention": 2950, "_fit": 3150,
    "plot": 1850, "torch": 2600, "patterns": 1350, "_filter": 1300, "_target": 1460,
    "_selection": 300,
}  # fmt: skip
"""The most lines of a room."""

NOT_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    tokenize.ENDMARKER,
}


def measure(text: str) -> Counter[str]:
    """Return the lines of a module, those of its code (no docstring, comment, blank), and its
    statements."""
    nodes = list(ast.walk(ast.parse(text)))
    docstrings: set[int] = set()
    for node in nodes:
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                docstrings |= set(range(first.lineno, (first.end_lineno or 0) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NOT_CODE:
            code |= set(range(token.start[0], token.end[0] + 1))
    statements = sum(isinstance(node, ast.stmt) for node in nodes)
    return Counter(
        lines=text.count("\n"), code=len(code - docstrings), statements=statements, files=1
    )


def rooms() -> dict[str, Counter[str]]:
    """Return what each room has; modules beside the rooms are one, `top`."""
    found: dict[str, Counter[str]] = {}
    for path in sorted(PACKAGE.parent.rglob("*.py")):
        parts = path.relative_to(PACKAGE).parts
        name = parts[0] if len(parts) > 1 else "top"
        found.setdefault(name, Counter()).update(measure(path.read_text(encoding="utf-8")))
    return found


def excesses() -> list[str]:
    """Return a sentence for each budget that is exceeded."""
    found = rooms()
    total = sum(found.values(), Counter())
    budgets = [
        ("all of python/", "lines", total["lines"], LINES),
        ("all of python/", "lines of code", total["code"], CODE),
        ("all of python/", "statements", total["statements"], STATEMENTS),
        *((room, "lines", found[room]["lines"], most) for room, most in ROOM_LINES.items()),
    ]  # fmt: skip
    return [
        f"{where} has {has} {what}; {most} at most" for where, what, has, most in budgets
        if has > most
    ]  # fmt: skip


def public_names() -> dict[str, Any]:
    """Return what the pages of reference describe, each once, by its full name."""
    tree = ast.parse((ROOT / "docs" / "_site" / "public_names.py").read_text(encoding="utf-8"))
    (modules,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MODULES"
    )
    named: dict[int, tuple[str, Any]] = {}
    for module in modules:
        with contextlib.suppress(ImportError):  # headfit.torch without PyTorch
            for name in importlib.import_module(module).__all__:
                thing = getattr(sys.modules[module], name)
                if not inspect.ismodule(thing) and name != "__version__":
                    named.setdefault(id(thing), (f"{module}.{name}", thing))
    return dict(named.values())


def with_members(things: Iterator[Any]) -> Iterator[Any]:
    """Return functions and classes, and the methods and properties of these that are public."""
    for thing in things:
        yield thing
        for name, member in vars(thing).items() if inspect.isclass(thing) else ():
            if not name.startswith("_"):
                yield getattr(member, "fget", None) or getattr(member, "__func__", member)


def returns(thing: Any) -> str:
    """Return what a function returns, in the words of its annotation and its docstring."""
    section = re.search(r"^Returns\n-+\n(.*)", inspect.getdoc(thing) or "", re.MULTILINE)
    return f"{getattr(thing, '__annotations__', {}).get('return')} {section and section[1]}"


def lacks() -> list[str]:
    """Return a sentence for each public name without a docstring, an example or its errors.

    The example of a class may stand in a member, or in a function that returns an instance.
    Exceptions need none. Functions, and classes with parameters, have a section Raises, or say
    that they raise no error.
    """
    names = public_names()
    shown = [item for item in with_members(iter(names.values())) if ">>>" in str(item.__doc__)]
    returned = " ".join(map(returns, shown))
    said = []
    for name, thing in names.items():
        text = inspect.getdoc(thing) or ""
        if not text:
            said.append(f"{name} has no docstring")
        if inspect.isclass(thing) and issubclass(thing, Exception):
            continue
        by_another = inspect.isclass(thing) and re.search(rf"\b{thing.__name__}\b", returned)
        if not by_another and not any(item in shown for item in with_members(iter([thing]))):
            said.append(f"{name} has no example")
        made_by_users = inspect.isfunction(thing) or re.search("^Parameters$", text, re.M)
        if made_by_users and not re.search("^Raises$|raises no error", text, re.M):
            said.append(f"{name} does not say which errors it raises")
    return said


def main() -> None:
    found = rooms()
    columns = ("lines", "code", "statements", "files")
    print(f"{'room':16}", *(f"{column:>10}" for column in columns), "    most lines")
    total = sum(found.values(), Counter())
    for room, has in [*sorted(found.items(), key=lambda item: -item[1]["lines"]), ("all", total)]:
        most = {**ROOM_LINES, "all": LINES}.get(room, "")
        print(f"{room:16}", *(f"{has[column]:10}" for column in columns), f"{most:14}")
    print(f"code {CODE} and statements {STATEMENTS} at most")
    print(*excesses(), *lacks(), sep="\n")


if __name__ == "__main__":
    main()
