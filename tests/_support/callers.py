"""Tests of callers that send their messages themselves."""

from __future__ import annotations

import sysconfig

import pytest

needs_callers = pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    reason="in a free-threaded Python, callers leave all messages to the stages",
)
