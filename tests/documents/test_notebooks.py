"""The committed notebooks: they run from top to bottom, are small, and name no machine."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
pytestmark = pytest.mark.pages
PATHS = re.compile(r"/(home|root|tmp|work|usr|opt|Users)/|[A-Z]:\\\\|site-packages")


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request):
    return json.loads(request.param.read_text(encoding="utf-8"))


def test_there_are_notebooks():
    assert len(NOTEBOOKS) == 9


def test_every_cell_ran_once_in_order(notebook):
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    for output in (output for cell in code for output in cell["outputs"]):
        assert output["output_type"] != "error"
        assert output.get("name") != "stderr", output["text"]


def test_pictures_are_sharp_and_small_and_nothing_names_a_machine(notebook):
    pictures = 0
    for cell in notebook["cells"]:
        assert not PATHS.search("".join(cell["source"]))
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                pictures += 1
                picture = base64.b64decode("".join(data["image/png"]))
                assert len(picture) < 200_000
                density = picture.index(b"pHYs") + 4  # dots per metre
                assert int.from_bytes(picture[density : density + 4]) * 0.0254 > 143
            texts = [part for kind, part in data.items() if kind.startswith("text/")]
            for text in (*texts, output.get("text", "")):
                assert not PATHS.search("".join(text))
    assert pictures >= 2


def test_each_opens_with_a_question_and_closes_with_what_was_measured(notebook):
    first, last = ("".join(notebook["cells"][i]["source"]) for i in (0, -1))
    assert re.search(r"^# .*\*\*[^*]*\?\*\*", first, re.S)
    assert "**Measured here:**" in last
