"""A bare ASGI application without lifespan support, as Django's.

Nothing is delivered before a flush: messages in the log were delivered at the shutdown.
"""

from __future__ import annotations

import os
from typing import Any

from pykaproducer import Producer
from pykaproducer.contrib.asgi import close_at_shutdown

producer = Producer(
    bootstrap_servers=os.environ["KAFKA_SERVERS"],
    linger_ms=60_000,
    max_block_ms=0,
    exit_flush_timeout_ms=120_000,
)


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Accept the path as a message."""
    if scope["type"] != "http":
        raise ValueError(scope["type"])
    producer.send(os.environ["TOPIC"], scope["path"].removeprefix("/").encode())
    await send({"type": "http.response.start", "status": 202, "headers": []})
    await send({"type": "http.response.body"})


application = close_at_shutdown(answer, producer)
