"""A Sphinx extension: the reference has every public name, and reads docstrings as they are."""

from __future__ import annotations

import re
from importlib import import_module
from types import ModuleType
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.util import logging

MODULES = (
    "headfit.errors",
    "headfit",
    "headfit.results",
    "headfit.methods",
    "headfit.patterns",
    "headfit.sweep",
    "headfit.bounds",
    "headfit.plot",
    "headfit.rope",
    "headfit.torch",
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
    """Lead `Fit` to `headfit.results.Fit`; words such as n, attributes of several, to nowhere."""
    for node in list(doctree.findall(pending_xref)):
        if node.get("refdomain") == "py":
            target = node["reftarget"].removeprefix("headfit.")
            first = target.split(".")[0]
            module = next((m for m in MODULES if first in import_module(m).__all__), None)
            if module is None:
                node.replace_self(node.children)
            else:
                node["reftarget"] = f"{module}.{target}"


def check(app: Sphinx, env: Any) -> None:
    """Warn of every public name that no page of the reference describes."""
    described = set(env.get_domain("py").objects)
    for module in MODULES:
        for name in set(import_module(module).__all__) - {"__version__"}:
            item = getattr(import_module(module), name)
            # HeadfitError has two names.
            names = {f"{module}.{name}", f"headfit.errors.{name}"}
            if not isinstance(item, ModuleType) and not names & described:
                logger = logging.getLogger(__name__)
                logger.warning("no page of the reference has %s.%s", module, name)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect what stands above to the steps of a build; napoleon's priority is 500."""
    app.connect("autodoc-process-docstring", hide_colons, priority=400)
    app.connect("autodoc-process-docstring", escape_bars, priority=600)
    app.connect("autodoc-skip-member", skip_numbered_fields)
    app.connect("doctree-read", link_public_names_only)
    app.connect("env-check-consistency", check)
    return {"parallel_read_safe": True}
