"""What a wheel requires depends on the platform for which it is built (``setup.py``)."""

from __future__ import annotations

import ast
import configparser
import os
import pathlib
import sys
import sysconfig
from typing import Any

import pytest

SETUP = pathlib.Path(__file__).parents[2] / "setup.py"


def functions() -> dict[str, Any]:
    """Return the functions of setup.py, without building anything."""
    tree = ast.parse(SETUP.read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    found: dict[str, Any] = {
        "__file__": str(SETUP),
        "configparser": configparser,
        "os": os,
        "pathlib": pathlib,
        "sys": sys,
        "sysconfig": sysconfig,
    }
    exec(compile(tree, SETUP, "exec"), found)
    return found


def required() -> set[str]:
    """Return the names of the packages that a wheel built now would require."""
    return {line.split(">")[0] for line in functions()["requirements"]()}


def on(monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], **variables: object) -> set[str]:
    """Return what is required on another platform."""
    monkeypatch.delenv("PYKAPRODUCER_WITHOUT", raising=False)
    monkeypatch.setattr(sysconfig, "get_config_var", variables.get)
    monkeypatch.setattr(sys, "version_info", version)
    return required()


def test_lz4_and_snappy_are_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    found = on(monkeypatch, (3, 14), HOST_GNU_TYPE="x86_64-pc-linux-gnu")
    assert {"lz4", "python-snappy"} <= found
    assert "cramjam" not in found


def test_musl_gets_cramjam(monkeypatch: pytest.MonkeyPatch) -> None:
    found = on(monkeypatch, (3, 12), HOST_GNU_TYPE="aarch64-unknown-linux-musl")
    assert {"cramjam", "python-snappy"} <= found
    assert "lz4" not in found


def test_free_threaded_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    newer = on(monkeypatch, (3, 14), Py_GIL_DISABLED=1)
    assert "cramjam" in newer
    assert "lz4" not in newer
    older = on(monkeypatch, (3, 13), Py_GIL_DISABLED=1)
    assert "lz4" in older
    assert not {"cramjam", "python-snappy"} & older


@pytest.mark.parametrize(
    ("without", "missing"), [("lz4", {"lz4"}), ("", set()), ("lz4, python-snappy", {"lz4"})]
)
def test_a_build_for_another_platform_says_what_that_lacks(
    monkeypatch: pytest.MonkeyPatch, without: str, missing: set[str]
) -> None:
    monkeypatch.setenv("PYKAPRODUCER_WITHOUT", without)
    assert {"lz4"} - required() == missing
    assert ("cramjam" in required()) is bool(missing)


def test_a_build_for_another_platform_knows_its_own_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", {"Py_GIL_DISABLED": 1}.get)
    monkeypatch.setattr(sys, "version_info", (3, 13))
    monkeypatch.setenv("PYKAPRODUCER_WITHOUT", "lz4")
    assert not {"lz4", "python-snappy"} & required()
    monkeypatch.setenv("PYKAPRODUCER_WITHOUT", "")
    assert {"lz4", "python-snappy"} - required() == {"python-snappy"}


def test_the_extra_for_the_demonstration_includes_the_one_for_tests() -> None:
    parser = configparser.ConfigParser()
    parser.read(SETUP.with_name("setup.cfg"))
    extras = parser["options.extras_require"]
    assert set(extras["testing"].split()) <= set(extras["demo"].split())
