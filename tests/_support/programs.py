"""Separate programs, for tests that examine a process as a whole, its exit, its forks."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap

#: How long a program may take before the test fails (seconds).
PATIENCE = 60.0


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


def run(script: str, *arguments: str, timeout: float = PATIENCE, code: int = 0) -> str:
    """Return the output of the script, which must end by itself, with the exit *code*."""
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert ended.returncode == code, ended.stderr
    return ended.stdout


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
