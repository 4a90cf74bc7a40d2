"""A WSGI application with a producer at module level, made before a server forks its workers.

Nothing is delivered before a flush, unless LINGER_MS is set: messages in the log were delivered at
the exit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from pykaproducer import Producer, PykaproducerError

TOPIC = os.environ["TOPIC"]

producer = Producer(
    bootstrap_servers=os.environ["KAFKA_SERVERS"],
    linger_ms=int(os.environ.get("LINGER_MS", "3600000")),
    delivery_timeout_ms=7_200_000,
    exit_flush_timeout_ms=120_000,
)

if os.environ.get("USE_BEFORE_FORK"):
    producer.send(TOPIC, b"before the fork")
    producer.flush(30)


def application(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    """Accept the path as a message, and answer with the worker's process id."""
    try:
        producer.send(TOPIC, environ["PATH_INFO"].removeprefix("/").encode())
    except PykaproducerError as error:
        start("503 Service Unavailable", [("Content-Type", "text/plain")])
        return [str(error).encode()]
    start("200 OK", [("Content-Type", "text/plain")])
    return [b"%d" % os.getpid()]
