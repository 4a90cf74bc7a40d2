"""Producers kept from task to task in a Python worker, one for each configuration.

A worker runs one task at a time. Spark kills workers (``os._exit``, SIGKILL), which closes their
sockets but flushes nothing. Each task therefore flushes before it ends.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Generic, Protocol, TypeVar

from pykaproducer.producer import Producer

#: Number of clients of a kind that are kept; beyond it the least recently used one is closed.
_KEPT = 4


class _Closable(Protocol):
    def close(self) -> None: ...


Client = TypeVar("Client", bound=_Closable)


class KeptClients(Generic[Client]):
    """Clients of one kind that are idle, by their settings.

    A client that is in use is not among them, so no two users have the same one.
    """

    def __init__(self, discard: Callable[[Client], object]) -> None:
        """*discard* closes a client whose user failed."""
        self._discard = discard
        #: The most recently used last.
        self._idle: collections.OrderedDict[object, Client] = collections.OrderedDict()

    @contextmanager
    def used(self, settings: object, make: Callable[[], Client]) -> Iterator[Client]:
        """Yield the client for *settings*, or a new one, and keep it unless the block raises."""
        client = self._idle.pop(settings, None) or make()
        with ExitStack() as failed:
            failed.callback(self._discard, client)
            yield client
            failed.pop_all()
        replaced = self._idle.pop(settings, None)
        self._idle[settings] = client
        if replaced is not None:  # by one that another thread has used at the same time
            replaced.close()
        if len(self._idle) > _KEPT:
            self._idle.popitem(last=False)[1].close()


_producers = KeptClients[Producer](discard=lambda producer: producer.close(timeout=0))


def producer_for(
    settings: object, make: Callable[[], Producer]
) -> AbstractContextManager[Producer]:
    """Return a context manager with the producer for *settings*, for one task.

    If the task fails, its producer is closed without flushing. Spark's next attempt sends the rows
    again, with a new producer.
    """
    return _producers.used(settings, make)
