"""Separate programs, for tests that examine a process as a whole, its exit, its forks."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
from typing import Any

#: How long a program may take before the test fails (seconds).
PATIENCE = 180.0


#: Start of a script that forks. A child is ended by an alarm if it does not end by itself, and by
#: ``os._exit``, so that only the effect of the fork is tested.
FORKS = textwrap.dedent(
    """
    import logging, os, signal, sys, threading, traceback, warnings

    # Newer Pythons warn of a fork while threads are running.
    warnings.simplefilter("ignore", DeprecationWarning)

    def fork(work, *arguments):
        "Do the work in a child; return the child."
        sys.stdout.flush()
        return os.fork() or leave(work, *arguments)

    def leave(work, *arguments):
        code = 1
        try:
            signal.alarm(50)
            work(*arguments)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def join(child):
        status = os.waitpid(child, 0)[1]
        assert status == 0, f"a child ended with {status}"
    """
)

#: Start of a script whose main thread forks in a signal handler while a server waits to answer:
#: give ``answer`` to the server. ``children`` is then the return value of the fork.
FORKING_HANDLER = textwrap.dedent(
    """
    import os, signal, threading
    from pykaproducer.testing.scripted import Hold

    children, hold, asked, main = [], Hold(), [], threading.main_thread().ident

    def fork(*_):
        if asked:
            return
        asked.append(True)
        children.append(os.fork())
        if children[0]:
            code = os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1])
            print("child:", code, flush=True)
            hold.release()

    def answer(exchange):
        # A signal that comes just before the main thread blocks does not wake it.
        while not asked:
            signal.pthread_kill(main, signal.SIGUSR1)
            hold._released.wait(0.1)
        return hold(exchange)

    signal.signal(signal.SIGUSR1, fork)
    """
)

#: Start of a script whose main thread is interrupted at random moments. The last argument of the
#: script is a seed.
INTERRUPTS = textwrap.dedent(
    """
    import random, signal, sys

    chance, armed, struck = random.Random(int(sys.argv[-1])), False, 0

    def strike(number, frame):
        global struck
        if armed:
            struck += 1
            raise KeyboardInterrupt

    def interrupt(operation, *arguments, within=2e-3):
        "Make a call, and return whether it has ended before the interrupt."
        global armed
        try:
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, within))
                operation(*arguments)
            finally:
                armed = False
        except KeyboardInterrupt:
            return False
        return True

    signal.signal(signal.SIGALRM, strike)
    """
)


def run(
    script: str, *arguments: str, timeout: float = PATIENCE, code: int = 0, **options: Any
) -> str:
    """Return the output of the script, which must end by itself, with the exit *code*.

    *options* are those of ``subprocess.run()``.
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        **options,
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout


def run_module(directory: pathlib.Path, script: str, *arguments: str) -> str:
    """Run a script that other interpreters can import; return what it writes to standard error.

    It must end by itself, successfully. What it has started ends with it.
    """
    file = directory / "program.py"
    file.write_text(textwrap.dedent(script))
    with subprocess.Popen(
        [sys.executable, str(file), *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)},
        start_new_session=True,
    ) as program:
        try:
            _, err = program.communicate(timeout=2 * PATIENCE)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
    assert program.returncode == 0, err
    return err


def exists(pid: int) -> bool:
    """Return whether a process runs; a zombie does not count."""
    if sys.platform == "linux":
        try:
            status = pathlib.Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return False
        return status.rpartition(")")[2].split()[0] not in "ZX"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
