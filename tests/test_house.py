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


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_module_says_what_it_is_and_is_readable(path: pathlib.Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), "no docstring"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno <= 70, f"{node.name} is too long"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_nothing_sleeps(path: pathlib.Path) -> None:
    assert not re.search(r"\bsleep\(", path.read_text())


def test_the_readme_has_the_settings_as_they_are() -> None:
    assert settings_table(SETTINGS).strip() in (ROOT / "README.rst").read_text()


def test_the_readme_has_the_command_that_ci_runs() -> None:
    command = (ROOT / ".ci" / "run").read_text().splitlines()[-1]
    assert command in (ROOT / "README.rst").read_text()
