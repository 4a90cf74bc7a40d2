"""Refusing one of the interpreter's allocations."""

from __future__ import annotations

import gc
import sys
import sysconfig
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

#: Without the GIL, the hook of CPython 3.13 corrupts the interpreter's own memory. A loop over it
#: and a few lists crashes; 3.14 passes.
_can_refuse = pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")) and sys.version_info < (3, 14),
    reason="set_nomemory() crashes free-threaded CPython 3.13",
)

Test = TypeVar("Test", bound=Callable[..., object])


def needs_hook(test: Test) -> Test:
    """Mark a test that refuses allocations."""
    return _can_refuse(pytest.mark.untraced(test))


def call_without_memory(
    number: int, function: Callable[..., object], *arguments: object, count: int = 1
) -> None:
    """Call *function* while *count* allocations of the interpreter fail, from *number* (from 0) on.

    Suppresses the MemoryError. Not a context manager, whose own allocations could fail. A test that
    calls it needs the mark :data:`needs_hook`, so that it is skipped before it starts anything.
    """
    testcapi: Any = pytest.importorskip("_testcapi")
    # A MemoryError inside the garbage collector would be printed, not raised.
    gc.disable()
    testcapi.set_nomemory(number, number + count)
    try:
        function(*arguments)
    except MemoryError:
        pass
    finally:
        testcapi.remove_mem_hooks()
        gc.enable()
