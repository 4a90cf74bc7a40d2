"""Metrics and tracing of producers for Prometheus and OpenTelemetry.

Neither library is imported before it is used::

    from pykaproducer.metrics import ProducerCollector    # the extra prometheus
    from pykaproducer.metrics import TracingInterceptor   # the extra opentelemetry
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pykaproducer.metrics.opentelemetry import TracingInterceptor, observe
    from pykaproducer.metrics.prometheus import ProducerCollector, SocketCollector

__all__ = ["ProducerCollector", "SocketCollector", "TracingInterceptor", "observe"]

_MODULES = {
    "ProducerCollector": "prometheus",
    "SocketCollector": "prometheus",
    "TracingInterceptor": "opentelemetry",
    "observe": "opentelemetry",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
