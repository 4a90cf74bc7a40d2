"""The installed kafka-python: the package supports several, which differ in what they offer."""

from __future__ import annotations

import pytest
from kafka.version import __version__

KAFKA_PYTHON = tuple(int(part) for part in __version__.split(".")[:2])

#: For what kafka-python has only since version 3.
needs_kafka_python_3 = pytest.mark.skipif(
    KAFKA_PYTHON < (3, 0), reason="compares with what only kafka-python 3 has"
)
