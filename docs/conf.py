"""How Sphinx makes the documentation: ``sphinx-build -W docs docs/_build/html``."""

from __future__ import annotations

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from pykaproducer._config.java import java_table
from pykaproducer._config.schema import settings_table
from pykaproducer._version import VERSION
from pykaproducer.config import SETTINGS

project = "pykaproducer"
version = release = VERSION
project_copyright = "the authors of pykaproducer"

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_title = f"pykaproducer {VERSION}"

# Users import a class from another module than the one that defines it.
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"
# The packages of the integrations: large, and not needed to read the docstrings.
autodoc_mock_imports = ["celery", "click", "django", "flask", "pyarrow", "pyspark"]
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
# Names in single backticks, as in the sources' docstrings, are code.
default_role = "code"


class SettingsTable(SphinxDirective):
    """``.. settings-table::``: every setting, from the table that the code reads."""

    def run(self) -> list[nodes.Node]:
        """The table's nodes."""
        return self.parsed(settings_table(SETTINGS))

    def parsed(self, text: str) -> list[nodes.Node]:
        """The nodes of a text that the code has made."""
        container = nodes.container()
        lines = StringList(text.splitlines(), source="config.py")
        self.state.nested_parse(lines, self.content_offset, container)
        return container.children


class JavaTable(SettingsTable):
    """``.. java-table::``: the Java client's settings that are not in the other table."""

    def run(self) -> list[nodes.Node]:
        """The table's nodes."""
        return self.parsed(java_table())


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("settings-table", SettingsTable)
    app.add_directive("java-table", JavaTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
