"""No call of the kernel, valid or invalid, leaks memory or a reference. See ``references.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests._support.pairs import partly

from .references import CASES, check


@pytest.mark.parametrize("case", partly(CASES, CASES[:3]))
def test_memory_does_not_grow_with_calls(case: Callable[[Any], None]) -> None:
    check(case, 400)
