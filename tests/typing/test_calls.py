"""What type checkers and editors know of users' calls."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import headfit as hf
from headfit._attention import sparsify as sparsify_module
from headfit._shrink import shrink as shrink_module

CALLS = Path(__file__).parent / "calls.py"


@pytest.mark.full
def test_calls_have_the_types_that_editors_show(tmp_path):
    api = pytest.importorskip("mypy.api")
    package = Path(hf.__file__).parents[1]
    # mypy finds installed packages by itself, and refuses to be told where they are.
    path = "" if package.name == "site-packages" else f"mypy_path = {package}\n"
    config = tmp_path / "mypy.ini"
    config.write_text(
        f"[mypy]\nstrict = true\n{path}"
        "[mypy-torch.*,transformers.*]\nfollow_imports = skip\nignore_missing_imports = true\n"
    )
    said, problems, status = api.run(
        ["--config-file", str(config), "--cache-dir", str(tmp_path), str(CALLS)]
    )
    assert (status, problems) == (0, ""), said


@pytest.mark.parametrize("module", [shrink_module, sparsify_module], ids=lambda m: m.__name__)
def test_options_for_type_checkers_are_those_of_the_function(module):
    name = module.__name__.rpartition(".")[2]
    parameters = inspect.signature(getattr(hf, name)).parameters
    assert set(module._Options.__annotations__) == set(list(parameters)[2:])
    for option, kind in module._Options.__annotations__.items():
        stated = getattr(kind, "__forward_arg__", kind)
        assert stated == parameters[option].annotation, option


def test_every_public_function_has_annotations_that_can_be_read():
    for name in hf.__all__:
        item = getattr(hf, name)
        if inspect.isfunction(item):
            assert "return" in inspect.get_annotations(item), name
