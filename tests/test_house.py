"""What a newcomer may rely on in every file."""

from __future__ import annotations

import ast
import pathlib
import re

import pytest

import pykaproducer
from pykaproducer._settings import settings_table
from pykaproducer.config import SETTINGS

ROOT = pathlib.Path(__file__).parent.parent
FILES = sorted((ROOT / "pykaproducer").rglob("*.py"))

#: What the package offers. A change here is a change of the public surface.
PUBLIC = [
    "AbortedError",
    "BrokerRejectedError",
    "BufferFullError",
    "CallbackThreadError",
    "ConfigurationError",
    "Delivery",
    "DeliveryError",
    "DeliveryFailures",
    "DeliveryTimeoutError",
    "FlushTimeoutError",
    "ForkedProducerError",
    "MessageTooLargeError",
    "MetadataTimeoutError",
    "PartitionerError",
    "Producer",
    "ProducerBrokenError",
    "ProducerClosedError",
    "PykaproducerError",
    "RecordMetadata",
    "RetriesExhaustedError",
    "Status",
    "TopicPartition",
    "UnsupportedFeatureError",
]


def test_the_public_surface() -> None:
    assert pykaproducer.__all__ == PUBLIC
    for name in PUBLIC:
        assert getattr(pykaproducer, name).__doc__


def _size(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines without the docstring."""
    first = function.body[0]
    said = ast.get_docstring(function, clean=False) is not None
    assert function.end_lineno is not None
    assert first.end_lineno is not None
    return function.end_lineno - function.lineno - (first.end_lineno - first.lineno if said else 0)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_module_says_what_it_is_and_is_readable(path: pathlib.Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), "no docstring"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert _size(node) <= 60, f"{node.name} is too long"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_nothing_sleeps(path: pathlib.Path) -> None:
    assert not re.search(r"\bsleep\(", path.read_text())


def test_the_version_is_the_same_everywhere() -> None:
    assert "version = attr: pykaproducer._version.VERSION" in (ROOT / "setup.cfg").read_text()
    newest = re.search(r"^(\d+\.\d+\.\d+) \(.*\)$", (ROOT / "CHANGES.rst").read_text(), re.M)
    assert newest is not None
    assert newest[1] == pykaproducer.__version__


def test_the_readme_has_the_settings_as_they_are() -> None:
    assert settings_table(SETTINGS).strip() in (ROOT / "README.rst").read_text()


def test_the_readme_has_the_command_that_ci_runs() -> None:
    command = (ROOT / ".ci" / "run").read_text().splitlines()[-1]
    assert command in (ROOT / "README.rst").read_text()
