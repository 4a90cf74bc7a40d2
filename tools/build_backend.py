"""The build backend: setuptools, and Cython only where the kernel's C code must be generated.

The source distribution contains ``_kernel.c``. Building a wheel from it needs a C compiler, and no
Cython. A checkout has no such file.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

CYTHON = "cython>=3.1,<4"
#: Every source distribution has it, and no checkout.
PKG_INFO = pathlib.Path(__file__).parents[1] / "PKG-INFO"

Settings = Mapping[str, Any] | None


def _with_cython(requirements: list[str]) -> list[str]:
    return requirements if PKG_INFO.exists() else [*requirements, CYTHON]


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Return what a wheel requires in addition to setuptools."""
    return _with_cython(build_meta.get_requires_for_build_wheel(config_settings))


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """Return what an editable install requires in addition to setuptools."""
    return _with_cython(build_meta.get_requires_for_build_editable(config_settings))


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    """Return what a source distribution requires in addition to setuptools."""
    return _with_cython(build_meta.get_requires_for_build_sdist(config_settings))
