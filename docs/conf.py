"""Sphinx's settings. `python -m sphinx -W --keep-going docs build/docs` makes the pages.

Notebooks are shown with their saved outputs; `-D nb_execution_mode=force` runs them.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.util import logging

import headfit
from headfit import cli

HERE = Path(__file__).parent

project = "headfit"
author = "the authors of headfit"
copyright = f"2026, {author}"
version = release = headfit.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["**.ipynb_checkpoints"]
# A word in backquotes is a link where the reference has such a name, and code elsewhere.
default_role = "py:obj"

html_theme = "furo"
html_title = f"headfit {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist"]
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
maximum_signature_line_length = 88
napoleon_google_docstring = False
# Attributes are listed as parameters are: several names may share a line.
napoleon_custom_sections = [("Attributes", "params_style")]
napoleon_use_rtype = False

nb_execution_mode = "off"
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_merge_streams = True

# Modules whose public names the reference must have, every one.
PUBLIC = ("headfit", "headfit.patterns", "headfit.bounds", "headfit.plot", "headfit.torch",
          "headfit.errors", "headfit.cli")  # fmt: skip


def copy_notebooks() -> None:
    """Copy the notebooks, and the weights that one reads, to where Sphinx looks for pages."""
    copies = HERE / "notebooks"
    copies.mkdir(exist_ok=True)
    sources = {p.name: p for p in (HERE.parent / "notebooks").iterdir()}
    wanted = {name: p for name, p in sources.items() if p.suffix in (".ipynb", ".npz")}
    for old in copies.iterdir():
        if old.is_file() and old.name not in wanted:
            old.unlink()
    for name, source in wanted.items():
        copy = copies / name
        if not copy.is_file() or copy.read_bytes() != source.read_bytes():
            shutil.copyfile(source, copy)


def sharpen_pictures() -> None:
    """Let notebooks that the build runs draw at 144 dots per inch, whatever they set."""
    profile = Path(tempfile.mkdtemp()) / "profile_default"
    profile.mkdir()
    (profile / "ipython_kernel_config.py").write_text(
        "c.InlineBackend.print_figure_kwargs = {'dpi': 144, 'bbox_inches': 'tight'}\n"
    )
    os.environ["IPYTHONDIR"] = str(profile.parent)


def link_within_the_site(app: Sphinx, docname: str, source: list[str]) -> None:
    """Point links to files beside docs/, as a code host needs them, to their pages here."""
    text = re.sub(r"\]\(\.\./notebooks/([\w.-]+\.ipynb)", r"](notebooks/\1", source[0])
    for name in ("CONTRIBUTING", "CHANGELOG"):
        text = text.replace(f"](../{name}.md", f"]({name.lower()}.md")
    if docname == "index":  # a page that a branch does not have yet leaves its place empty
        text = re.sub(r"^[\w-]+$\n",
                      lambda line: line[0] if (HERE / f"{line[0].strip()}.md").is_file() else "",
                      text, flags=re.MULTILINE)  # fmt: skip
    if docname == "cli":
        text += usage()
    elif docname == "reference":
        text += names_without_a_page()
    source[0] = text


def names_without_a_page() -> str:
    """Return the descriptions of public names that nobody has put onto a page yet."""
    pages = "\n".join(page.read_text(encoding="utf-8") for page in HERE.glob("reference-*.md"))
    placed = set(re.findall(r"^\.\. auto\w+:: (?:headfit\.)?(\w+)$", pages, re.MULTILINE))
    named = {name: getattr(headfit, name) for name in sorted(set(headfit.__all__) - placed)}
    shown = [
        f".. auto{'class' if isinstance(item, type) else 'function'}:: headfit.{name}"
        + ("\n   :members:" if isinstance(item, type) else "")
        for name, item in named.items()
        if name not in headfit.errors.__all__ and callable(item)
    ]
    if not shown:
        return ""
    return "\n## More\n\n```{eval-rst}\n" + "\n\n".join(shown) + "\n```\n"


def usage() -> str:
    """Return the help of every command, as argparse prints it."""
    os.environ["COLUMNS"] = "84"
    commands = cli._parser()._subparsers._group_actions[0].choices
    return "".join(
        f"\n### headfit {name}\n\n```text\n{parser.format_help()}```\n"
        for name, parser in commands.items()
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


def link_public_names_only(app: Sphinx, doctree: nodes.document) -> None:
    """Take back links of words such as n or dim, which are attributes of several classes."""
    for node in list(doctree.findall(pending_xref)):
        if node.get("refdomain") == "py":
            first, *_ = node["reftarget"].removeprefix("headfit.").split(".")
            if not any(first in import_module(module).__all__ for module in PUBLIC):
                node.replace_self(node.children)


def describe_pictures(app: Sphinx, doctree: nodes.document) -> None:
    """Give the pictures of notebooks the text that stands before them as alternative text."""
    said = ""
    for node in doctree.findall():
        if isinstance(node, nodes.title | nodes.paragraph):
            said = node.astext()
        elif isinstance(node, nodes.image) and not node.get("alt"):
            node["alt"] = " ".join(said.split())


def check_the_reference(app: Sphinx, env: Any) -> None:
    """Warn of every public name that no page of the reference describes."""
    described = set(env.get_domain("py").objects)
    for module in PUBLIC:
        for name in set(import_module(module).__all__) - {"__version__"}:
            # The classes of errors have two names, headfit.X and headfit.errors.X.
            if not {f"{module}.{name}", f"headfit.errors.{name}"} & described:
                logging.getLogger(__name__).warning("no page of the reference has %s.%s",
                                                    module, name)  # fmt: skip


def setup(app: Sphinx) -> None:
    """Connect what stands above to the steps of a build."""
    copy_notebooks()
    sharpen_pictures()
    app.connect("source-read", link_within_the_site)
    app.connect("autodoc-process-docstring", hide_colons, priority=400)
    app.connect("autodoc-process-docstring", escape_bars, priority=600)
    app.connect("doctree-read", link_public_names_only)
    app.connect("doctree-read", describe_pictures)
    app.connect("env-check-consistency", check_the_reference)
