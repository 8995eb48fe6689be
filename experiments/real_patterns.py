"""Curve 6: patterns that were not drawn at random, and the size that each way needs.

Digits' nearest neighbours, graphs that come with networkx, the links from uses to definitions in a
file of Python's own library, and the heads of a small trained model, kept to the eight heaviest
keys of every row.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse as sp
from common import Row, Rows, Settings, Value, compute_and_draw, save
from fits import Search, changed, fitted, make_searches, proved, smallest, smallest_projection
from trained_heads import HEADS, LAYERS, layers

import headfit as hf

BASE: dict[str, Value] = {
    "pattern": "", "method": "learned", "leak": 0.05, "distortion": 0.1, "steps": 10_000,
    "dim": None, "seed": 0,
}  # fmt: skip
METHODS = ("learned", "random keys", "projection")
KEYS = 8  # of every row of a trained head
TRAINED = [f"trained head {layer}.{head}" for layer in range(LAYERS) for head in range(HEADS)]


complete = partial(changed, BASE)


def networkx_graph(name: str) -> Any:
    """Return a graph's adjacency matrix, with its weights, scaled to rows of sum 1."""
    import networkx

    graph = getattr(networkx, name)()
    matrix = sp.csr_array(networkx.to_scipy_sparse_array(graph, dtype=np.float64))
    return sp.csr_array(matrix / matrix.sum(axis=1)[:, np.newaxis])


def definitions(source: str) -> Any:
    """Return the pattern of a Python file in which each name attends to its definitions.

    The tokens are the names and arguments of the file in their order. A use attends to itself
    and to all places of its function (or of the module's level) that assign to the same name; a
    definition to itself alone. Names from elsewhere have no definition here.
    """
    tokens: list[tuple[tuple[int, int], tuple[int, str], bool]] = []

    def visit(node: ast.AST, scope: int) -> None:
        if isinstance(node, (ast.FunctionDef, ast.Lambda, ast.AsyncFunctionDef)):
            scope = id(node)
        if isinstance(node, ast.Name):
            is_use = isinstance(node.ctx, ast.Load)
            tokens.append(((node.lineno, node.col_offset), (scope, node.id), is_use))
        if isinstance(node, ast.arg):
            tokens.append(((node.lineno, node.col_offset), (scope, node.arg), False))
        for child in ast.iter_child_nodes(node):
            visit(child, scope)

    visit(ast.parse(source), 0)
    tokens.sort()
    places: dict[tuple[int, str], list[int]] = {}
    for i, (_, name, is_use) in enumerate(tokens):
        if not is_use:
            places.setdefault(name, []).append(i)
    rows, columns = list(range(len(tokens))), list(range(len(tokens)))
    for i, (_, name, is_use) in enumerate(tokens):
        for j in places.get(name, []) if is_use else []:
            rows.append(i)
            columns.append(j)
    edges = sp.csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(tokens),) * 2)
    return hf.patterns.from_graph(edges)


@cache
def trained_heads() -> dict[str, Any]:
    """Return the heads of notebook 03's model for its natural input, sparsified."""
    heads = [(q[head], k[head]) for _, q, k in layers() for head in range(HEADS)]
    kept = [hf.sparsify(q, k, mask="causal", per_row=KEYS).matrix for q, k in heads]
    return dict(zip(TRAINED, kept, strict=True))


PATTERNS: dict[str, Callable[[], Any]] = {
    "florentine families": lambda: networkx_graph("florentine_families_graph"),
    "davis southern women": lambda: networkx_graph("davis_southern_women_graph"),
    "karate club": lambda: networkx_graph("karate_club_graph"),
    "les miserables": lambda: networkx_graph("les_miserables_graph"),
    "def-use, textwrap.py": lambda: definitions(Path(textwrap.__file__).read_text("utf-8")),
    "digits, 8 neighbours": hf.patterns.digits_knn,
}
PATTERNS |= {name: lambda name=name: trained_heads()[name] for name in TRAINED}


def run(
    *, pattern: str, method: str, leak: float, distortion: float, steps: int, dim: int | None,
    seed: int,
) -> Row:  # fmt: skip
    """Fit a head of one size to a pattern, search the projection's size, or prove a lower bound."""
    A = PATTERNS[pattern]()
    mask = "causal" if pattern.startswith("trained head") else None
    target = hf.Target(A, mask=mask)
    about = {"n": target.n, "per_row": target.per_row, "per_column": target.per_column}
    asked: dict[str, Any] = {"leak": leak, "distortion": distortion}
    if method == "lower bound":
        return {**about, **proved(target, **asked)}
    if dim is None:
        return {**about, **smallest_projection(target, seed, **asked)}
    return {**about, **fitted(target, method, dim, steps, seed, **asked)}


FIRST = {
    # Where the searches start: for the learned method, and for random keys
    "florentine families": (3, 8), "davis southern women": (7, 20), "karate club": (9, 30),
    "les miserables": (13, 60), "def-use, textwrap.py": (8, 40), "digits, 8 neighbours": (9, 74),
    "trained head": (8, 40),
}  # fmt: skip


def first(name: str) -> tuple[int, int]:
    """Return where the searches for a pattern start."""
    return FIRST["trained head" if name.startswith("trained head") else name]


SETS = {
    "tiny": ["florentine families"],
    "quick": [*list(PATTERNS)[:4], "trained head 0.0", "trained head 1.0"],
    "full": list(PATTERNS),
}
LARGEST = 400  # tokens up to which the size of the projection, up to a million, is sought


def compute(chosen: Settings, rows: Rows) -> None:
    """Make the searches of all ways, for all patterns of the plan."""
    names = chosen.pick(**SETS)
    rows.of(complete(pattern=name, method="lower bound") for name in names)
    for i, method in enumerate(METHODS[:2]):
        make_searches(rows, [
            Search({"pattern": name, "method": method}, first(name)[i], (0,), further=200)
            for name in names
        ], complete)  # fmt: skip
    small = [n for n in names if PATTERNS[n]().shape[0] <= LARGEST]
    rows.of(complete(pattern=name, method="projection") for name in small)


def table(rows: list[Row]) -> list[Row]:
    """Return one row for each pattern: what is proved, and what each way needs."""
    found = []
    for name in PATTERNS:
        bound = next(
            (r for r in rows if (r["pattern"], r["method"]) == (name, "lower bound")), None
        )
        if bound is None:
            continue
        row: Row = {"pattern": name, **{key: bound[key] for key in ("n", "per_row", "per_column")},
                    "proved": bound["dim_found"], "proof": bound["stopped"]}  # fmt: skip
        for method in METHODS[:2]:
            best = smallest(rows, {"pattern": name, "method": method})
            row[method] = best["dim"] if best else None
        sizes = [r for r in rows if (r["pattern"], r["method"]) == (name, "projection")]
        row["projection"] = sizes[0]["dim_found"] if sizes else None
        found.append(row)
    return found


def draw(chosen: Settings, rows: list[Row]) -> None:
    """Draw what each way needs, for each pattern; print the table."""
    found = table(rows)
    names = ("pattern", "n", "per_row", "per_column", "proved", "proof", *METHODS)
    for row in [dict(zip(names, names, strict=True)), *found]:
        print("| " + " | ".join("-" if row[n] is None else str(row[n]) for n in names) + " |")
    figure, ax = plt.subplots(figsize=(9.6, 1.2 + 0.36 * len(found)), layout="constrained")
    places = np.arange(len(found))[::-1]
    kinds = (("proved", "proved necessary", "|", "#1b1b1b"), ("learned", "learned", "o", "#0072B2"),
             ("random keys", "random keys", "v", "#56B4E9"),
             ("projection", "projection", "s", "#D55E00"))  # fmt: skip
    for key, label, marker, color in kinds:
        have = [(row[key], y) for row, y in zip(found, places, strict=True) if row[key] is not None]
        if have:
            ax.plot(*zip(*have, strict=True), marker, color=color, label=label, markersize=8,
                    markeredgewidth=2 if marker == "|" else 1)  # fmt: skip
    ax.set_xscale("log")
    ax.set_yticks(places, [f"{r['pattern']} (n = {r['n']:,}, k = {r['per_row']})" for r in found])
    ax.set_xlabel("head size d")
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    ax.set_ylim(-0.6, len(found) - 0.4)
    ax.grid(alpha=0.25, linewidth=0.6)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, frameon=False, fontsize=9)
    note = "leak 0.05, distortion 0.1; the smallest found within 10,000 steps, one seed"
    save(figure, chosen, note, rows)


def main() -> None:
    """Run the experiment."""
    compute_and_draw("real_patterns", str(__doc__), run, compute, draw)


if __name__ == "__main__":
    import real_patterns  # a sweep's function is imported by its name

    real_patterns.main()
