"""One producer for each configuration in a Python worker, kept from task to task.

A worker runs one task at a time. Spark ends it from outside (``os._exit``, SIGKILL), which closes
its sockets; so nothing is left to the end of the process, and a task has flushed what it sent.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pykaproducer.producer import Producer

#: How many are kept; of more the one that was not used for longest is closed.
_KEPT = 4

_lock = threading.Lock()
_idle: collections.OrderedDict[object, Producer] = collections.OrderedDict()


@contextmanager
def producer_for(settings: object, make: Callable[[], Producer]) -> Iterator[Producer]:
    """The producer of *settings*, for one task.

    One whose task failed is given up with all that it still held: the task's rows will be sent
    again by its next attempt, which begins with a producer that knows of no trouble.
    """
    with _lock:
        producer = _idle.pop(settings, None)
    if producer is None:
        producer = make()
    try:
        yield producer
    except BaseException:
        producer.close(timeout=0)
        raise
    _keep(settings, producer)


def _keep(settings: object, producer: Producer) -> None:
    with _lock:
        surplus = [_idle.pop(settings)] if settings in _idle else []
        _idle[settings] = producer
        if len(_idle) > _KEPT:
            surplus.append(_idle.popitem(last=False)[1])
    for each in surplus:
        each.close()
