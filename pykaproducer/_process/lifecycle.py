"""Producers at the exit of the process and after a fork.

At exit, each producer delivers its accepted messages within a time limit. In a forked child, each
is empty.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import weakref
from typing import Protocol

from pykaproducer._pipeline.current_thread import forget_stages
from pykaproducer._pipeline.worker import spawn
from pykaproducer._process import app_servers
from pykaproducer._util.guarded_log import GuardedLogger
from pykaproducer._util.memory import NO_THREAD

log = GuardedLogger("pykaproducer.producer")

#: Priority among multiprocessing's finalizers: before its queues, which a callback may still use.
_EXIT_PRIORITY = 100
#: Having this many running producers is rarely intended.
_MANY = 20
#: How long to wait for user threads before the other finalizers run (seconds).
_PATIENCE = 2.0


class LiveProducer(Protocol):
    """The parts of a producer that this module uses."""

    def _begin_exit(self) -> float:
        """Stop accepting messages, and send those that linger.

        Returns the deadline for closing (monotonic seconds).
        """

    def _close_by(self, end: float) -> None:
        """Close by that deadline."""

    def _is_running(self) -> bool:
        """Return whether it has threads."""

    def _forked(self) -> None:
        """Become empty in the child of a fork; accepted messages are the parent's (P8)."""


#: Every producer that is not garbage-collected.
_producers: weakref.WeakSet[LiveProducer] = weakref.WeakSet()

#: Whether :func:`warn_of_many` has warned and there are still that many.
_warned = False

#: The process in which :func:`_flush_at_exit_of_a_child` has registered the flush.
_registered_in = 0


def live_producers() -> list[LiveProducer]:
    """Return every live producer, even while other threads create some."""
    while True:
        try:
            return list(_producers)
        except RuntimeError:  # "Set changed size during iteration"
            continue


def register(producer: LiveProducer) -> None:
    """Register a new producer."""
    _producers.add(producer)
    app_servers.register_fork_hook(_after_fork_in_child)


def before_first_start() -> None:
    """Prepare the process for the threads of a producer.

    Raises:
        UnsupportedFeatureError: threads cannot run in this process.
    """
    app_servers.check_threads()
    app_servers.register_worker_exit_hook(_at_exit)
    _flush_at_exit_of_a_child()


def warn_of_many() -> None:
    """Warn once if many producers have threads. Called when one has started its threads."""
    global _warned
    running = sum(producer._is_running() for producer in live_producers())
    if running >= _MANY and not _warned:
        log.warning(
            "%d producers are open in this process, each with its threads: create one and "
            "share it, or close each (garbage collection does not close them)",
            running,
        )
    _warned = running >= _MANY


def _flush_at_exit_of_a_child() -> None:
    """Register the flush with multiprocessing, whose forked children run no atexit hooks.

    Registered on first use and not on import, because a child drops what its parent registered
    when it starts. A process that is ended from outside or by ``os._exit`` (also by an unhandled
    SIGTERM) loses unflushed messages.
    """
    global _registered_in
    # A child of multiprocessing has imported it; other processes do not need it.
    util, process = (sys.modules.get(f"multiprocessing.{name}") for name in ("util", "process"))
    if util is None or process is None or _registered_in == os.getpid():
        return
    if process.parent_process() is not None:
        util.Finalize(None, _at_exit_of_a_child, exitpriority=_EXIT_PRIORITY)
        _registered_in = os.getpid()


def _at_exit() -> None:
    """Deliver accepted but unflushed messages, within a time limit.

    All producers' limits start together, and no producer accepts messages while others flush.
    """
    producers = live_producers()
    ends = [producer._begin_exit() for producer in producers]
    with contextlib.ExitStack() as closing:  # continues if one of them cannot be closed
        for producer, end in zip(producers, ends, strict=True):
            closing.callback(producer._close_by, end)


def _at_exit_of_a_child() -> None:
    """Do the same as :func:`_at_exit` after the user's threads have ended.

    Python waits for these threads anyway. The flush runs on a thread that Python also waits for,
    and not here without a time limit:

    1. An executor's idle threads end when Python notifies them, which happens after this hook.
    2. If this hook waited for them, they would never be notified, and the child would never end.
    """
    try:
        spawn("pykaproducer-exit", _flush_after_threads, daemon=False).join(_PATIENCE)
    except NO_THREAD:  # no thread can be started
        _at_exit()


def _flush_after_threads() -> None:
    for thread in threading.enumerate():
        mine = thread in (threading.current_thread(), threading.main_thread())
        if not (thread.daemon or mine):
            thread.join()
    _at_exit()


def _after_fork_in_child() -> None:
    forget_stages()
    with contextlib.ExitStack() as forking:  # continues if one of them raises
        for producer in list(_producers):
            forking.callback(producer._forked)


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
