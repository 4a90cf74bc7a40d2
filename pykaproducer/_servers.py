"""Servers that run Python in their own way: what a producer must know of them.

Each was tried (``tests/web``); ``docs/web.rst`` says what to set.

- gevent and eventlet, when they have patched threads: a stage would be a greenlet, and wait for
  its socket in a way that lets no other greenlet run. Refused.
- uWSGI without threads: only the thread that serves a request runs, the stages never. Refused.
- uWSGI forks its workers without a word to Python: ``os.register_at_fork`` does not hear of it.
- Celery's pool of processes ends them by ``os._exit``: no exit hook of Python runs.
"""

from __future__ import annotations

import _thread
import importlib
import logging
import os
import sys
import types
from collections.abc import Callable
from typing import Any

from pykaproducer.errors import UnsupportedFeatureError

log = logging.getLogger("pykaproducer.producer")

#: What patches everything else, by who patches.
_WITHOUT_THREADS = {
    "gevent": "gevent.monkey.patch_all(thread=False)",
    "eventlet": "eventlet.monkey_patch(thread=False)",
}

#: Whether uWSGI has been asked already to tell of its forks.
_uwsgi_tells = False


def check_threads() -> None:
    """Raise if threads that are started here would never run beside the others."""
    start = _thread.start_new_thread
    if not isinstance(start, types.BuiltinFunctionType):
        patched_by = (getattr(start, "__module__", None) or "something").partition(".")[0]
        without = _WITHOUT_THREADS.get(patched_by, "patch all but threads")
        raise UnsupportedFeatureError(
            f"{patched_by} has patched Python's threads, and a producer needs real ones: it would "
            f"stand still. Under gunicorn use --worker-class gthread, in Celery --pool prefork or "
            f"threads; in a program of your own {without}"
        )
    if (uwsgi := sys.modules.get("uwsgi")) is None:
        return
    if not getattr(uwsgi, "has_threads", True):
        raise UnsupportedFeatureError(
            "uWSGI runs without Python threads, which a producer needs: start it with "
            "--enable-threads, or with --threads"
        )
    options = getattr(uwsgi, "opt", {})
    if "die-on-term" in options and "hook-master-start" not in options:
        log.warning(
            "uWSGI with die-on-term kills workers that are busy, and what they have not delivered "
            "is lost; instead of it set hook-master-start = unix_signal:15 gracefully_kill_them_all"
        )


def hear_of_forks(forked: Callable[[], None]) -> None:
    """Have uWSGI call *forked* in each worker that it forks from here."""
    global _uwsgi_tells
    uwsgi: Any = sys.modules.get("uwsgi")
    if uwsgi is None or _uwsgi_tells or not hasattr(uwsgi, "opt"):
        return
    _uwsgi_tells = True
    here = os.getpid()
    before = None

    def hook() -> None:
        if before is not None:
            before()
        # Without a master the first worker is this very process.
        if os.getpid() != here:
            forked()

    if uwsgi.masterpid():
        # uWSGI's hook is one function. Who imports this module sets it to one that calls a list.
        try:
            decorators = importlib.import_module("uwsgidecorators")
        except ImportError:
            pass
        else:
            decorators.postfork(hook)
            return
    before = getattr(uwsgi, "post_fork_hook", None)
    uwsgi.post_fork_hook = hook


def flush_at_end_of_a_worker(flush: Callable[[], None]) -> None:
    """Have Celery call *flush* before a process of its pool ends, if Celery is there."""
    signals = sys.modules.get("celery.signals")
    if signals is not None:

        def end(**_: object) -> None:
            flush()

        signals.worker_process_shutdown.connect(end, weak=False, dispatch_uid="pykaproducer")
