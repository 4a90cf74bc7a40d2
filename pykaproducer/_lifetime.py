"""What the end of the process, and a fork, mean for its producers.

At the end each delivers what it has accepted, within a bound. In a forked child each is empty.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import weakref
from typing import Protocol

from pykaproducer import _servers as servers
from pykaproducer._pipeline.worker import forget_stages, spawn

log = logging.getLogger("pykaproducer.producer")

#: Among multiprocessing's finalizers: before those of its queues, which a callback may still use.
_EXIT_PRIORITY = 100
#: Having this many producers at a time is rarely intended.
_MANY = 20
#: So long the user's threads are waited for before the other finalizers run (seconds).
_PATIENCE = 2.0


class Watched(Protocol):
    """What a producer is for this module."""

    def _begin_exit(self) -> float:
        """Take no more messages; the time by which it must have ended (monotonic seconds)."""

    def _close_by(self, end: float) -> None:
        """Close, within that time."""

    def _is_running(self) -> bool:
        """Return whether it has threads."""

    def _forked(self) -> None:
        """Be empty: this is the child of a fork, and what was accepted is the parent's (P8)."""


#: Every producer that is not garbage.
_producers: weakref.WeakSet[Watched] = weakref.WeakSet()

#: Whether :func:`warn_of_many` has warned, and there are still that many.
_warned = False

#: The process in which :func:`_flush_at_exit_of_a_child` has registered the flush.
_registered_in = 0


def watched() -> list[Watched]:
    """Every producer that is not garbage. Other threads make some meanwhile."""
    while True:
        try:
            return list(_producers)
        except RuntimeError:  # "Set changed size during iteration"
            continue


def watch(producer: Watched) -> None:
    """A producer has been made."""
    _producers.add(producer)
    servers.hear_of_forks(_after_fork_in_child)


def first_use() -> None:
    """A producer is about to start its threads: the process must be one in which they can run.

    Raises:
        UnsupportedFeatureError: they cannot.
    """
    servers.check_threads()
    servers.flush_at_end_of_a_worker(_at_exit)
    _flush_at_exit_of_a_child()


def warn_of_many() -> None:
    """Warn once if many producers have threads now. Called when one has started its own."""
    global _warned
    running = sum(producer._is_running() for producer in watched())
    if running >= _MANY and not _warned:
        log.warning(
            "%d producers are open in this process, each with its threads: create one and "
            "share it, or close each (garbage collection does not close them)",
            running,
        )
    _warned = running >= _MANY


def _flush_at_exit_of_a_child() -> None:
    """Register the flush with multiprocessing, whose forked children run no atexit hooks.

    At the first use and not at import: a child forgets at its start what its parent registered.
    What ends a process without its own doing (``os._exit``, an unhandled SIGTERM) loses what is
    not flushed.
    """
    global _registered_in
    # A child of multiprocessing has loaded it; nobody else needs it.
    util, process = (sys.modules.get(f"multiprocessing.{name}") for name in ("util", "process"))
    if util is None or process is None or _registered_in == os.getpid():
        return
    if process.parent_process() is not None:
        util.Finalize(None, _at_exit_of_a_child, exitpriority=_EXIT_PRIORITY)
        _registered_in = os.getpid()


def _at_exit() -> None:
    """Deliver, within a bound, what was accepted and never flushed.

    The producers' bounds begin together, and none takes messages while others still flush.
    """
    producers = watched()
    ends = [producer._begin_exit() for producer in producers]
    with contextlib.ExitStack() as closing:  # which goes on if one of them cannot be closed
        for producer, end in zip(producers, ends, strict=True):
            closing.callback(producer._close_by, end)


def _at_exit_of_a_child() -> None:
    """As :func:`_at_exit`, once the user's threads have ended: Python waits for these anyway.

    In a thread that Python waits for as well, and not here without bound:

    1. an executor's idle threads end when Python tells them to, which it does behind this hook;
    2. waited for here they would never be told, and the child would never end.
    """
    try:
        spawn("pykaproducer-exit", _flush_behind_threads, daemon=False).join(_PATIENCE)
    except (RuntimeError, MemoryError):  # no thread can be started
        _at_exit()


def _flush_behind_threads() -> None:
    for thread in threading.enumerate():
        mine = thread in (threading.current_thread(), threading.main_thread())
        if not (thread.daemon or mine):
            thread.join()
    _at_exit()


def _after_fork_in_child() -> None:
    forget_stages()
    with contextlib.ExitStack() as forking:  # it continues if one of them raises
        for producer in list(_producers):
            forking.callback(producer._forked)


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
