"""Sphinx's settings. `python -m sphinx -W --keep-going docs build/docs` makes the pages.

Notebooks are shown with their saved outputs; `-D nb_execution_mode=force` runs them.
"""

import sys
from pathlib import Path

import headfit

sys.path.insert(0, str(Path(__file__).parent / "_site"))

project = "headfit"
author = "the authors of headfit"
copyright = f"2026, {author}"
version = release = headfit.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    # The two that stand in docs/_site.
    "pages",
    "public_names",
]
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
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True

autodoc_member_order = "bysource"
# Docstrings say the types; those of arguments that may be any array would fill a screen.
autodoc_typehints = "none"
maximum_signature_line_length = 88
napoleon_google_docstring = False
# Attributes are listed as parameters are: several names may share a line.
napoleon_custom_sections = [("Attributes", "params_style")]
napoleon_use_rtype = False

nb_execution_mode = "off"
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_merge_streams = True
