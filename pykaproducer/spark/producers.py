"""One producer for each configuration in a Python worker, kept from task to task.

A worker runs one task at a time. Spark ends it from outside (``os._exit``, SIGKILL), which closes
its sockets; so nothing is left to the end of the process, and a task has flushed what it sent.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from pykaproducer.producer import Producer

#: How many are kept; of more the one that was not used for longest is closed.
_KEPT = 4

#: By their settings, the last used behind.
_idle: collections.OrderedDict[object, Producer] = collections.OrderedDict()


@contextmanager
def producer_for(settings: object, make: Callable[[], Producer]) -> Iterator[Producer]:
    """The producer of *settings*, for one task.

    One whose task failed is given up with all that it still held: the task's rows will be sent
    again by its next attempt, which begins with a producer that knows of no trouble.
    """
    producer = _idle.pop(settings, None) or make()
    with ExitStack() as failed:
        failed.callback(producer.close, timeout=0)
        yield producer
        failed.pop_all()
    _idle[settings] = producer
    if len(_idle) > _KEPT:
        _idle.popitem(last=False)[1].close()
