"""Producers kept from task to task in a Python worker, one for each configuration.

A worker runs one task at a time. Spark kills workers (``os._exit``, SIGKILL), which closes their
sockets but flushes nothing. Each task therefore flushes before it ends.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from pykaproducer.producer import Producer

#: Number of producers kept; beyond it the least recently used one is closed.
_KEPT = 4

#: Producers by settings, the most recently used last.
_idle: collections.OrderedDict[object, Producer] = collections.OrderedDict()


@contextmanager
def producer_for(settings: object, make: Callable[[], Producer]) -> Iterator[Producer]:
    """Yield the producer for *settings*, for one task.

    If the task fails, its producer is closed without flushing. Spark's next attempt sends the rows
    again, with a new producer.
    """
    producer = _idle.pop(settings, None) or make()
    with ExitStack() as failed:
        failed.callback(producer.close, timeout=0)
        yield producer
        failed.pop_all()
    _idle[settings] = producer
    if len(_idle) > _KEPT:
        _idle.popitem(last=False)[1].close()
