"""A Sphinx extension: what the pages need that stands elsewhere in the repository.

Notebooks are copied to where Sphinx looks for pages, links to files beside docs/ lead to their
pages, those of experiments/ included, and the page of the command line gets the help of every
command.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

from headfit import cli

DOCS = Path(__file__).parents[1]


def copy_notebooks() -> None:
    """Copy the notebooks, the models that some of them read, and how they draw."""
    copies = DOCS / "notebooks"
    copies.mkdir(exist_ok=True)
    wanted = {
        path.name: path
        for path in (DOCS.parent / "notebooks").iterdir()
        if path.suffix in (".ipynb", ".npz", ".py") or path.name == "matplotlibrc"
    }
    for old in copies.iterdir():
        if old.is_file() and old.name not in wanted:
            old.unlink()
    for name, source in wanted.items():
        copy = copies / name
        if not copy.is_file() or copy.read_bytes() != source.read_bytes():
            shutil.copyfile(source, copy)


def complete(app: Sphinx, docname: str, source: list[str]) -> None:
    """Lead links that a code host needs to pages of the site, and add what is generated."""
    text = re.sub(r"\]\(\.\./notebooks/([\w.-]+\.ipynb)", r"](notebooks/\1", source[0])
    for name in ("CONTRIBUTING", "CHANGELOG"):
        text = text.replace(f"](../{name}.md", f"]({name.lower()}.md")
    text = text.replace("](../experiments/README.md", "](experiments/index.md")
    if docname == "index":
        # Lines of the table of contents whose page a branch does not have yet are left out.
        text = re.sub(r"^([\w-]+)\n", there, text, flags=re.MULTILINE)
    elif docname == "cli":
        text += usage()
    source[0] = text


def lead_links_of_experiments(app: Sphinx, file: Path, docname: str, content: list[str]) -> None:
    """Lead links of a file of experiments/, included by a page, to pages and results."""
    if file.parent.name == "experiments":
        text = content[0].replace("](../docs/", "](../")
        content[0] = text.replace("](results/", "](../../experiments/results/")


def there(line: re.Match[str]) -> str:
    """Return a line that names a page if there is such a page, and nothing otherwise."""
    return line[0] if (DOCS / f"{line[1]}.md").is_file() else ""


def usage() -> str:
    """Return the help of every command, as argparse prints it."""
    os.environ["COLUMNS"] = "84"
    commands = cli.parser(*cli.COMMANDS)._subparsers._group_actions[0].choices
    return "".join(
        f"\n### headfit {name}\n\n```text\n{parser.format_help()}```\n"
        for name, parser in commands.items()
    )


def describe_pictures(app: Sphinx, doctree: nodes.document) -> None:
    """Give the pictures of notebooks their size, and the text before them as alternative text."""
    said = ""
    for node in doctree.findall():
        if isinstance(node, nodes.title | nodes.paragraph):
            said = node.astext()
        elif isinstance(node, nodes.image) and not node.get("alt"):
            node["alt"] = " ".join(said.split())
            header = Path(app.srcdir, node["candidates"]["*"]).read_bytes()[:24]
            # They have 144 dots per inch, and a browser's inch has 96 pixels.
            node["width"] = f"{int.from_bytes(header[16:20]) * 96 // 144}px"


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect what stands above to the steps of a build."""
    copy_notebooks()
    app.connect("source-read", complete)
    app.connect("include-read", lead_links_of_experiments)
    app.connect("doctree-read", describe_pictures)
    return {"parallel_read_safe": True}
