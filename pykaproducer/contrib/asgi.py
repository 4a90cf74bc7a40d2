"""ASGI: close producers before the server shuts down (uvicorn, hypercorn, daphne).

::

    application = close_at_shutdown(get_asgi_application(), producer)

uvicorn ends itself with the signal that stopped it, and Python then runs no exit hook: accepted but
undelivered messages would be lost. ASGI servers announce their shutdown before that (the protocol's
"lifespan"), and the producers are closed then.
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
    """Return *application*, extended to close the producers when the server shuts down.

    The application may handle the lifespan itself, as Starlette and FastAPI do, or reject it, as
    Django does.

    Args:
        timeout (float): seconds for delivering accepted messages; None uses each producer's
            ``exit_flush_timeout_ms``.
    """

    async def close() -> None:
        for producer in producers:
            seconds = producer.config.exit_flush_timeout_ms / 1000 if timeout is None else timeout
            # On a thread, so that the loop continues to run, with callbacks that need it.
            await asyncio.to_thread(producer.close, seconds)

    async def wrapped(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await application(scope, receive, send)
            return
        await _Lifespan(receive, send, close).run(application, scope)

    return wrapped


class _Lifespan:
    """One lifespan, passed on to the application, or handled without it if it raises."""

    def __init__(self, receive: Receive, send: Send, close: Callable[[], Awaitable[None]]) -> None:
        self._receive = receive
        self._send = send
        self._close = close
        #: Whether the application has received a message from the server, and answered one.
        self._received = self._answered = False

    async def run(self, application: Application, scope: Message) -> None:
        """Handle the lifespan from the first message to the last."""
        try:
            await application(scope, self._take, self._answer)
        except Exception:
            # As in servers, raising before an answer means that lifespans are not supported.
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
