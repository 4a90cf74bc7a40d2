"""Integration with application servers that run Python in special ways.

Each was tested (``tests/web``); ``docs/web.rst`` describes how to configure them.

- gevent and eventlet, if they have patched threads: a stage would be a greenlet that blocks all
  others while it waits for its socket. Not supported.
- uWSGI without threads: only the thread that serves a request runs, and the stages never do. Not
  supported.
- uWSGI forks its workers without running the hooks of ``os.register_at_fork``.
- Celery's process pool ends its processes with ``os._exit``, without running exit hooks.
"""

from __future__ import annotations

import _thread
import importlib
import os
import sys
import types
from collections.abc import Callable
from typing import Any

from pykaproducer._util.guarded_log import GuardedLogger
from pykaproducer.errors import UnsupportedFeatureError

log = GuardedLogger("pykaproducer.producer")

#: How to patch everything except threads, for each patching library.
_WITHOUT_THREADS = {
    "gevent": "gevent.monkey.patch_all(thread=False)",
    "eventlet": "eventlet.monkey_patch(thread=False)",
}

#: Whether the hook for uWSGI's forks is registered.
_uwsgi_hooked = False


def check_threads() -> None:
    """Raise if new threads would never run in parallel with the others."""
    start = _thread.start_new_thread
    if not isinstance(start, types.BuiltinFunctionType):
        patched_by = (getattr(start, "__module__", None) or "something").partition(".")[0]
        without = _WITHOUT_THREADS.get(patched_by, "patch everything except threads")
        raise UnsupportedFeatureError(
            f"{patched_by} has patched Python's threads, but a producer needs real ones. Under "
            f"gunicorn use --worker-class gthread, in Celery --pool prefork or threads, in your "
            f"own program {without}"
        )
    if (uwsgi := sys.modules.get("uwsgi")) is None:
        return
    if not getattr(uwsgi, "has_threads", True):
        raise UnsupportedFeatureError(
            "uWSGI runs without Python threads, which a producer needs: start it with "
            "--enable-threads or --threads"
        )
    options = getattr(uwsgi, "opt", {})
    if "die-on-term" in options and "hook-master-start" not in options:
        log.warning(
            "uWSGI with die-on-term kills busy workers, and their undelivered messages are lost; "
            "set hook-master-start = unix_signal:15 gracefully_kill_them_all instead"
        )


def register_fork_hook(forked: Callable[[], None]) -> None:
    """Register *forked* to be called in each worker that uWSGI forks from this process."""
    global _uwsgi_hooked
    uwsgi: Any = sys.modules.get("uwsgi")
    if uwsgi is None or _uwsgi_hooked or not hasattr(uwsgi, "opt"):
        return
    _uwsgi_hooked = True
    here = os.getpid()
    before = None

    def hook() -> None:
        if before is not None:
            before()
        # Without a master process, the first worker is this process.
        if os.getpid() != here:
            forked()

    if uwsgi.masterpid():
        # uWSGI calls a single function. Importing this module sets it to one that calls a list.
        try:
            decorators = importlib.import_module("uwsgidecorators")
        except ImportError:
            pass
        else:
            decorators.postfork(hook)
            return
    before = getattr(uwsgi, "post_fork_hook", None)
    uwsgi.post_fork_hook = hook


def register_worker_exit_hook(flush: Callable[[], None]) -> None:
    """Register *flush* with Celery, if it is imported, to run before a pool process ends."""
    signals = sys.modules.get("celery.signals")
    if signals is not None:

        def end(**_: object) -> None:
            flush()

        signals.worker_process_shutdown.connect(end, weak=False, dispatch_uid="pykaproducer")
