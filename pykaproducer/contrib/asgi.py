"""ASGI: what was accepted is delivered before the server ends (uvicorn, hypercorn, daphne).

::

    application = close_at_shutdown(get_asgi_application(), producer)

uvicorn ends itself by the signal that it was told to stop by, and then Python runs no exit hook:
what was accepted and not yet delivered would be lost. ASGI servers say before that they shut down
(the protocol's "lifespan"), and then the producers are closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from pykaproducer.producer import Producer

__all__ = ["close_at_shutdown"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


def close_at_shutdown(
    application: Application, *producers: Producer, timeout: float | None = None
) -> Application:
    """*application*, and the producers are closed when the server shuts down.

    It may handle the lifespan itself, as Starlette and FastAPI do, or refuse it, as Django does.

    Args:
        timeout (float): seconds for the delivery of what was accepted; None: each producer's
            ``exit_flush_timeout_ms``.
    """

    async def close() -> None:
        for producer in producers:
            seconds = producer.config.exit_flush_timeout_ms / 1000 if timeout is None else timeout
            # In a thread: the loop goes on meanwhile, and callbacks that need it.
            await asyncio.to_thread(producer.close, seconds)

    async def wrapped(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await application(scope, receive, send)
            return
        await _Lifespan(receive, send, close).run(application, scope)

    return wrapped


class _Lifespan:
    """One lifespan: passed on to the application, or carried on without it if it refuses."""

    def __init__(self, receive: Receive, send: Send, close: Callable[[], Awaitable[None]]) -> None:
        self._receive = receive
        self._send = send
        self._close = close
        #: Whether the application has taken a message of the server, and answered one.
        self._received = self._answered = False

    async def run(self, application: Application, scope: Message) -> None:
        """From the first message to the last."""
        try:
            await application(scope, self._take, self._answer)
        except Exception:
            # As servers do: an application that raises before it has answered knows no lifespan.
            if self._answered:
                raise
        if self._answered:
            return
        if not self._received:
            await self._take()
        await self._answer({"type": "lifespan.startup.complete"})
        await self._take()
        await self._answer({"type": "lifespan.shutdown.complete"})

    async def _take(self) -> Message:
        self._received = True
        return await self._receive()

    async def _answer(self, message: Message) -> None:
        self._answered = True
        if message["type"].startswith("lifespan.shutdown."):
            await self._close()
        await self._send(message)
