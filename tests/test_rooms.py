"""The C++ rooms (folders of cpp/headfit) include each other in one direction only."""

import re
from pathlib import Path

import pytest

CPP = Path(__file__).parents[1] / "cpp"
SOURCES = CPP / "headfit"

# From the ground up: a room includes itself and rooms that stand before it in this list.
FLOORS = (
    "base",  # types, errors, threads
    "simd",  # vectors: the only room with intrinsics
    "random",  # counter-based random numbers
    "logits",  # the stream of logit tiles
    "attention",  # plain folds over the stream
    "pattern",  # sparse targets
    "certify",
    "projection",
    "row_qp",  # one row of max-margin queries
    "max_margin",
    "learned",
    "soft",  # heads for dense targets
    "sparsify",
    "analysis",
)


def includes(path: Path) -> list[str]:
    return re.findall(r'^#include "(?:headfit/)?([^"]+)"', path.read_text(), re.MULTILINE)


def test_every_folder_is_a_room() -> None:
    assert {p.parent.name for p in SOURCES.rglob("*.?pp")} == set(FLOORS)


@pytest.mark.parametrize("room", FLOORS)
def test_includes_point_down(room: str) -> None:
    below = FLOORS[: FLOORS.index(room) + 1]
    for path in (SOURCES / room).iterdir():
        for include in includes(path):
            assert (SOURCES / include).is_file(), f"{path.name} includes {include}"
            assert include.split("/")[0] in below, f"{path.name} of {room} includes {include}"


def test_intrinsics_are_in_simd() -> None:
    users = {p for p in SOURCES.rglob("*.?pp") if "<immintrin.h>" in p.read_text()}
    # Which also sets the rounding mode of the vector unit.
    rounding_mode = SOURCES / "base" / "standard_arithmetic.hpp"
    assert {p.parent.name for p in users - {rounding_mode}} == {"simd"}


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
