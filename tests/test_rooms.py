"""Rooms (folders of one topic) include and import each other in one direction only."""

import ast
import re
from pathlib import Path

import pytest

CPP = Path(__file__).parents[1] / "cpp"
SOURCES = CPP / "headfit"

# The rooms in the order of their dependencies: a room includes only itself and rooms before it.
FLOORS = (
    "base",  # types, errors, threads
    "simd",  # vectors: the only room with intrinsics
    "random",  # counter-based random numbers
    "logits",  # the stream of logit tiles
    "attention",  # plain folds over the stream
    "pattern",  # sparse targets
    "lower",  # searches for lower bounds
    "certify",
    "projection",
    "row_qp",  # one row of max-margin queries
    "max_margin",
    "descent",  # what descents of a divergence share
    "learned",
    "soft",  # heads for dense targets
    "compress",  # smaller heads for every input
    "cache",  # keys of a layer in few bytes
    "index",  # the smallest head that finds the keys
    "sparsify",
    "analysis",
)


def includes(path: Path) -> list[str]:
    return re.findall(r'^#include "(?:headfit/)?([^"]+)"', path.read_text(), re.MULTILINE)


def test_every_folder_is_a_room() -> None:
    assert {p.parent.name for p in SOURCES.glob("*/*.?pp")} == set(FLOORS)
    # The way in for C++ programs stands above all rooms.
    assert {p.name for p in SOURCES.glob("*.?pp")} == {"headfit.hpp", "headfit.cpp"}


@pytest.mark.parametrize("room", FLOORS)
def test_includes_point_down(room: str) -> None:
    below = FLOORS[: FLOORS.index(room) + 1]
    for path in (SOURCES / room).iterdir():
        for include in includes(path):
            assert (SOURCES / include).is_file(), f"{path.name} includes {include}"
            assert include.split("/")[0] in below, f"{path.name} of {room} includes {include}"


def test_intrinsics_are_in_simd() -> None:
    users = {p for p in SOURCES.rglob("*.?pp") if "<immintrin.h>" in p.read_text()}
    # This file includes the intrinsics too, to set the rounding mode of the vector unit.
    rounding_mode = SOURCES / "base" / "standard_arithmetic.hpp"
    assert {p.parent.name for p in users - {rounding_mode}} == {"simd"}


def test_one_file_names_internals_of_eigen() -> None:
    users = {p for p in CPP.rglob("*.?pp") if "Eigen::internal" in p.read_text()}
    assert users == {SOURCES / "simd" / "packet.hpp"}


def test_headers_include_no_circle() -> None:
    below: dict[Path, list[Path]] = {
        p: [SOURCES / i for i in includes(p)] for p in SOURCES.rglob("*.hpp")
    }
    open_files: list[Path] = []
    done: set[Path] = set()

    def visit(path: Path) -> None:
        assert path not in open_files, f"a circle through {path.relative_to(SOURCES)}"
        if path in done:
            return
        open_files.append(path)
        for include in below[path]:
            visit(include)
        done.add(open_files.pop())

    for path in below:
        visit(path)


PYTHON = CPP.parent / "python" / "headfit"

# The same for Python: a room imports only itself and rooms before it.
PYTHON_FLOORS = (
    "_base",
    "_cluster",
    "_attention",
    "_target",
    "_selection",
    "_lower",
    "_filter",
    "_fit",
    "_plan",
    "_shrink",
    "_compress",
    "_cache",
    "_index",
    "patterns",
    "_sweep",
    "plot",
    "torch",
    "_cli",
)

# The modules beside the rooms, and the room of each.
IN_ROOM = {
    "_core": "_base",
    "_core_": "_base",  # and the level of the CPU
    "_cpu": "_base",
    "_build": "_base",
    "_configuration": "_base",
    "_public": "_base",
    "errors": "_base",
    "methods": "_fit",
    "rope": "_filter",
    "results": "_sweep",
    "sweep": "_sweep",
    "bounds": "_lower",
    "cli": "_cli",
}


def room_of(module: str) -> str:
    """Return the room of a module by its name without the package's."""
    room = module.split(".")[0]
    return IN_ROOM.get(room, room)


BY_NAME = r"^(importlib\.)?(import_module|__import__|optional)$"
# The modules that import what others name: public names, and optional packages.
BY_ANY_NAME = ("_public", "display")


def imports(path: Path) -> list[str]:
    """Return what a module imports from the package when it runs, not for type checkers.

    Imports inside functions count, and so do imports by name, and those of a stub by which the
    names of a module are imported when they are used. The package itself, which imports every room,
    is the empty name.
    """
    found: list[str] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "headfit":
            base = (node.module or "").partition(".")[2]
            names = [name.name for name in node.names]
            found.extend([base, *(f"{base}.{name}" for name in names)] if base else names)
        if isinstance(node, ast.Import):
            named = [name.name for name in node.names]
            found.extend(n.partition(".")[2] for n in named if n.split(".")[0] == "headfit")
        is_by_name = isinstance(node, ast.Call) and re.search(BY_NAME, ast.unparse(node.func))
        if isinstance(node, ast.Call) and is_by_name and path.stem not in BY_ANY_NAME:
            name = ast.unparse(node.args[0])
            text = re.fullmatch(r"f?'(?:headfit\.(\w+))?.*'", name)
            assert text is not None, f"{path.name} imports {name}, whose name only a run tells"
            found.extend(text.groups()[: text[1] is not None])
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    if "headfit._public" in path.read_text():
        visit(ast.parse(path.with_suffix(".pyi").read_text()))
    return found


def modules() -> dict[str, Path]:
    return {
        ".".join(p.relative_to(PYTHON).with_suffix("").parts).removesuffix(".__init__"): p
        for p in PYTHON.rglob("*.py")
        if p != PYTHON / "__init__.py"
    }


def test_every_python_module_is_in_a_room() -> None:
    assert {room_of(name) for name in modules()} == set(PYTHON_FLOORS)


def test_python_imports_point_down() -> None:
    for name, path in modules().items():
        below = PYTHON_FLOORS[: PYTHON_FLOORS.index(room_of(name)) + 1]
        for used in imports(path):
            is_client = not used and room_of(name) == PYTHON_FLOORS[-1]  # of the public names
            assert is_client or room_of(used) in below, f"{name} imports {used}"


def test_python_modules_import_no_circle() -> None:
    known = modules()
    below = {name: [u for u in imports(path) if u in known] for name, path in known.items()}
    done: list[str] = []

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " imports ".join([*above, name])
        if name in done:
            return
        for used in below[name]:
            if used != name:
                visit(used, (*above, name))
        done.append(name)

    for name in known:
        visit(name, ())
