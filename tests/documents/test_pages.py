"""The pages of docs/: their Python and their commands run, their links lead somewhere."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from headfit import cli

ROOT = Path(__file__).parents[2]
# These pages have tests of their own in this folder.
WITH_THEIR_OWN = {"patterns", "planning", "rope", "bounds", "sweeps", "cluster"}
PAGES = sorted(
    path
    for path in (ROOT / "docs").glob("*.md")
    if path.stem not in WITH_THEIR_OWN
    and re.search(r"^```(python$|sh\nheadfit )", path.read_text(encoding="utf-8"), re.MULTILINE)
)
EXPERIMENTS = sorted((ROOT / "experiments").glob("*.md"))
TEXTS = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md"),
    *sorted((ROOT / "docs").glob("*.md")),
    *EXPERIMENTS,
]


def anchors(page: Path) -> set[str]:
    """Return the anchors that a code host, and the site, make of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def needs_torch(text: str) -> bool:
    return re.search(r"^\s*import (headfit\.)?torch$", text, re.MULTILINE) is not None


@pytest.mark.full
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page, id=page.stem + ("-torch" if needs_torch(page.read_text("utf-8")) else "")
        )
        for page in PAGES
    ],
)
def test_a_page_runs(blocks, page, tmp_path, monkeypatch, capsys):
    """Run the Python of a page from top to bottom, and what it says of the command line.

    A block of output is what the block before it prints, up to the places with three dots.
    """
    plt = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": page.stem}
    for language, text in blocks(page):
        if language == "python":
            if needs_torch(text):
                pytest.importorskip("torch")
            capsys.readouterr()
            exec(compile(text, str(page), "exec"), namespace)
        elif language == "output":
            printed = capsys.readouterr().out
            flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            assert doctest.OutputChecker().check_output(text, printed, flags), printed
        elif language == "sh":
            for line in text.splitlines():
                # `headfit demo` has a test of its own.
                if line.startswith("headfit "):
                    assert cli.main(shlex.split(line)[1:]) == 0, line
    plt.close("all")


@pytest.mark.pages
def test_there_are_pages():
    assert {"tutorial", "fit", "numpy", "shrink", "by-hand", "teach"} <= {p.stem for p in PAGES}


@pytest.mark.pages
@pytest.mark.parametrize("page", EXPERIMENTS, ids=lambda page: page.stem)
def test_the_site_includes_what_experiments_found(page):
    name = "index" if page.stem == "README" else page.stem
    stub = ROOT / "docs" / "experiments" / f"{name}.md"
    assert f"{{include}} ../../experiments/{page.name}\n" in stub.read_text(encoding="utf-8")
    assert f"<experiments/{name}>\n" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")


@pytest.mark.pages
@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    """Relative links lead to files of the repository; others are at least well formed."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    targets = re.findall(r"!?\[[^\]]*\]\(([^)\s]+)\)", text)
    for target in targets:
        parts = urlsplit(target)
        if parts.scheme:
            assert parts.scheme in ("http", "https"), target
            assert "." in parts.netloc, target
        elif parts.path:
            file = page.parent / parts.path
            assert file.exists(), f"{page.name}: {target}"
            if parts.fragment and file.suffix == ".md":
                assert parts.fragment in anchors(file), f"{page.name}: {target}"


@pytest.mark.pages
def test_pictures_have_alternative_text():
    for page in TEXTS:
        for words in re.findall(r"!\[([^\]]*)\]\(", page.read_text(encoding="utf-8")):
            assert len(words.split()) >= 3, f"{page.name}: {words!r}"
