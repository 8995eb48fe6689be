"""docs/pictures: what draw.py draws, and nothing else."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
QUICK = "tolerances", "teach-circle", "how-small", "a-real-head"


@pytest.fixture
def draw():
    pytest.importorskip("matplotlib")
    spec = importlib.util.spec_from_file_location("draw", FOLDER / "draw.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.pages
def test_every_picture_is_drawn_by_the_script_and_shown_on_a_page(draw):
    assert {path.stem for path in FOLDER.glob("*.svg")} == set(draw.PICTURES)
    shown = "".join(page.read_text(encoding="utf-8") for page in FOLDER.parent.glob("*.md"))
    for name in draw.PICTURES:
        assert f"(pictures/{name}.svg)" in shown, name


def test_pictures_of_given_numbers_are_drawn(draw, monkeypatch, tmp_path):
    monkeypatch.setattr(draw, "PICTURES", {name: draw.PICTURES[name] for name in QUICK})
    with draw.plt.rc_context():
        draw.main(tmp_path)
    assert sorted(path.stem for path in tmp_path.iterdir()) == sorted(QUICK)
