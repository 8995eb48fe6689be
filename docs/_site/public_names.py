"""A Sphinx extension: the reference has every public name, and reads docstrings as they are."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.util import logging

import headfit

DOCS = Path(__file__).parents[1]
MODULES = (
    "headfit",
    "headfit.patterns",
    "headfit.bounds",
    "headfit.plot",
    "headfit.torch",
    "headfit.errors",
    "headfit.cli",
)
COLON = "\ue000"  # stands for a colon while napoleon reads a docstring
LITERAL_OR_BAR = re.compile(r"(``.*?``|^ *>>>.*?(?=\n *\n|\Z))|\|", re.MULTILINE | re.DOTALL)


def hide_colons(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Keep "The leading axes: batch and heads" from being read as a type and its description."""
    if what in ("attribute", "property") and lines:
        lines[0] = re.sub(r":(?= )", COLON, lines[0])


def escape_bars(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Keep absolute values such as |logit| from being read as substitutions."""
    text = LITERAL_OR_BAR.sub(lambda found: found[1] or r"\|", "\n".join(lines))
    lines[:] = text.replace(COLON, ":").split("\n")


def skip_numbered_fields(
    app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any
) -> bool | None:
    """Leave out fields of named tuples that say nothing but their number."""
    says = getattr(obj, "__doc__", None) or ""
    return True if says.startswith("Alias for field number") else None


def link_public_names_only(app: Sphinx, doctree: nodes.document) -> None:
    """Take back links of words such as n or dim, which are attributes of several classes."""
    for node in list(doctree.findall(pending_xref)):
        if node.get("refdomain") == "py":
            first, *_ = node["reftarget"].removeprefix("headfit.").split(".")
            if not any(first in import_module(module).__all__ for module in MODULES):
                node.replace_self(node.children)


def add_names_without_a_page(app: Sphinx, docname: str, source: list[str]) -> None:
    """Describe public names that nobody has put onto a page yet at the end of the reference."""
    if docname != "reference":
        return
    pages = "\n".join(page.read_text(encoding="utf-8") for page in DOCS.glob("reference-*.md"))
    placed = set(re.findall(r"^\.\. auto\w+:: (?:headfit\.)?(\w+)$", pages, re.MULTILINE))
    directives = ""
    for name in sorted(set(headfit.__all__) - placed - set(headfit.errors.__all__)):
        item = getattr(headfit, name)
        if isinstance(item, type):
            directives += f".. autoclass:: headfit.{name}\n   :members:\n\n"
        elif callable(item):
            directives += f".. autofunction:: headfit.{name}\n\n"
    if directives:
        source[0] += f"\n## More\n\n```{{eval-rst}}\n{directives}```\n"


def check(app: Sphinx, env: Any) -> None:
    """Warn of every public name that no page of the reference describes."""
    described = set(env.get_domain("py").objects)
    for module in MODULES:
        for name in set(import_module(module).__all__) - {"__version__"}:
            # The classes of errors have two names, headfit.X and headfit.errors.X.
            if not {f"{module}.{name}", f"headfit.errors.{name}"} & described:
                logger = logging.getLogger(__name__)
                logger.warning("no page of the reference has %s.%s", module, name)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect what stands above to the steps of a build; napoleon's priority is 500."""
    app.connect("autodoc-process-docstring", hide_colons, priority=400)
    app.connect("autodoc-process-docstring", escape_bars, priority=600)
    app.connect("autodoc-skip-member", skip_numbered_fields)
    app.connect("source-read", add_names_without_a_page)
    app.connect("doctree-read", link_public_names_only)
    app.connect("env-check-consistency", check)
    return {"parallel_read_safe": True}
