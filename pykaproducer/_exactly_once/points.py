"""Named points of the protocol, at which a test makes a process fail.

In the order of a batch:

* of a task: ``read``, ``initialized``, ``rows`` (after each Arrow batch), ``sent``, ``marked``,
  ``prepared``;
* of the driver: ``driver-initialized``, ``driver-read``, ``written``, ``checked``, ``decided``,
  ``ended`` (after each group of transactions), ``completed``, ``swept``.

``PYKA_FAULT=point:task:attempt:how`` does *how* when this attempt of this task reaches the point;
``*`` means any. The driver's points have task 0 and attempt 0, but the task of ``ended`` is the
number of transactions that were ended. *how* is one of:

* ``exit``, ``kill``: end the process, with ``os._exit()`` or SIGKILL;
* ``raise``: raise :class:`InjectedFault`;
* ``wait:PATH``: create the file PATH and wait forever, so that a test can end this process, or
  another one, from outside;
* ``pause:PATH``: write the process id into the named pipe PATH, and continue when something is
  written into the pipe ``PATH-done``; without the pipe PATH, continue immediately.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading

_VARIABLE = "PYKA_FAULT"


class InjectedFault(Exception):
    """Raised at a point of the protocol because a test has asked for it."""


def reached(point: str, task: int = 0, attempt: int = 0) -> None:
    """Fail or pause here if ``PYKA_FAULT`` names this point."""
    wanted = os.environ.get(_VARIABLE)
    if wanted is None:
        return
    name, of_task, of_attempt, how, *path = wanted.split(":", 4)
    if name != point or of_task not in ("*", str(task)) or of_attempt not in ("*", str(attempt)):
        return
    if how == "exit":
        os._exit(1)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "wait":
        with open(path[0], "x"):
            pass
        threading.Event().wait()
    if how == "pause":
        _pause(path[0])
        return
    raise InjectedFault(f"at {point}, task {task}, attempt {attempt}")


def _pause(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        arrivals = os.open(path, os.O_WRONLY)
        os.write(arrivals, str(os.getpid()).encode())
        os.close(arrivals)
        with open(f"{path}-done") as departures:
            departures.read()
