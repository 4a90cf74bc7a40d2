"""The state of the current thread: whether it runs stages, and the wake-ups that it defers.

Used by :class:`~pykaproducer._pipeline.worker.Worker` and by stages that wake user threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import pykaproducer._kernel as _kernel
from pykaproducer._util import guarded_log, threads

if TYPE_CHECKING:
    from pykaproducer._pipeline.worker import Worker

CrashPolicy = Callable[["Worker", BaseException], None]


class _Here(threading.local):
    """State of the current thread."""

    is_stage = False
    #: Deferred wake-ups; None: they are not deferred.
    later: list[Callable[[], None]] | None = None
    #: The crash policy of the stage whose thread this is.
    on_crash: CrashPolicy | None = None


here = _Here()


def forget_stages() -> None:
    """Make the current thread a user thread, in the child of a fork made from a callback."""
    here.is_stage = False
    here.on_crash = None
    _kernel.this_thread_runs_stages(False)
    threads.forget_all()
    guarded_log.pass_lines_to(None)
    guarded_log.forget_threads()


class DeferredWakeups:
    """Context manager that defers the waking of user threads until the block exits.

    For a stage that will sleep soon. Woken earlier, a user thread would only contend for the GIL
    with the stage. The block must not take long and must not run user code (a callback, a
    partitioner): that might wait for the very thread that is to be woken.
    """

    def __enter__(self) -> None:
        here.later = []

    def __exit__(self, *_: object) -> None:
        later, here.later = here.later, None
        for function in later or ():
            function()


def wake(function: Callable[[], None]) -> None:
    """Call *function*, which wakes a user thread, now or at the end of ``DeferredWakeups``."""
    if here.later is None:
        function()
    else:
        here.later.append(function)


def in_a_stage() -> bool:
    """Return whether the calling thread belongs to a stage, of any producer."""
    return here.is_stage


def in_a_stage_with(on_crash: CrashPolicy) -> bool:
    """Return whether the calling thread belongs to a stage of the producer with this policy."""
    return here.on_crash == on_crash
