"""The state of the current thread: whether it runs stages, and the wake-ups that it defers.

Used by :class:`~pykaproducer._pipeline.worker.Worker` and by stages that wake user threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pykaproducer._kernel as _kernel
from pykaproducer._pipeline.shortage import Shortage
from pykaproducer._util import guarded_log, threads


class _CurrentThread(threading.local):
    """State of the current thread."""

    is_stage = False
    #: Deferred wake-ups; None: they are not deferred.
    deferred: list[Callable[[], None]] | None = None
    #: The crash policy of the stage whose thread this is.
    on_crash: object | None = None


this_thread = _CurrentThread()


def forget_stages() -> None:
    """Make the current thread a user thread, in the child of a fork made from a callback."""
    this_thread.is_stage = False
    this_thread.on_crash = None
    _kernel.this_thread_runs_stages(False)
    _kernel.count_fork()
    threads.forget_all()
    guarded_log.pass_lines_to(None)
    guarded_log.forget_threads()


class DeferredWakeups:
    """Context manager that defers the waking of user threads until the block exits.

    For a stage that will sleep soon. Woken earlier, a user thread would only contend for the GIL
    with the stage. The block must not take long and must not run user code (a callback, a
    partitioner): that might wait for the very thread that is to be woken.
    """

    def __init__(self, shortage: Shortage) -> None:
        self._shortage = shortage

    def __enter__(self) -> None:
        this_thread.deferred = []

    def __exit__(self, *_: object) -> None:
        deferred, this_thread.deferred = this_thread.deferred, None
        for function in deferred or ():
            self._shortage.repeat(function)  # no other code would wake these threads


def wake(function: Callable[[], None]) -> None:
    """Call *function*, which wakes a user thread, now or at the end of ``DeferredWakeups``."""
    if this_thread.deferred is None:
        function()
    else:
        this_thread.deferred.append(function)


def in_a_stage() -> bool:
    """Return whether the calling thread belongs to a stage, of any producer."""
    return this_thread.is_stage


def in_a_stage_with(on_crash: object) -> bool:
    """Return whether the calling thread belongs to a stage of the producer with this policy."""
    return this_thread.on_crash == on_crash
