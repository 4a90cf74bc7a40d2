"""Ends what a run of the tests has started, if the run cannot do it itself.

The processes of a run inherit ``PYKAPRODUCER_RUN`` in their environment, with the name of the run,
and those that a worker process starts also ``PYTEST_XDIST_WORKER``.

This file is also a program, which is started with the run and outlives it. It reads its standard
input until the controller of the run ends, by whatever cause (SIGKILL as well). Then it kills every
process of the run, and removes the directories in its arguments.

The guards of clusters (``pykaproducer/testing/_guard.py``) are not killed: they end by themselves,
and remove the directories of their brokers first.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys

RUN = "PYKAPRODUCER_RUN"


def processes_of(**environment: str) -> list[int]:
    """Return the processes with these variables in their environment, except guards and this one.

    Empty where there is no ``/proc``.
    """
    wanted = {f"{name}={value}".encode() for name, value in environment.items()}
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted <= set((entry / "environ").read_bytes().split(b"\0")):
                arguments = (entry / "cmdline").read_bytes()
                if int(entry.name) != os.getpid() and b"testing/_guard.py" not in arguments:
                    found.append(int(entry.name))
    return found


def kill(**environment: str) -> None:
    """Kill the processes with these variables in their environment, and what they start."""
    # A process that forks at this moment has a child that the first look did not show.
    while found := processes_of(**environment):
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def start(run: str, *directories: str) -> subprocess.Popen[bytes]:
    """Start the program for the run of this name; it ends when its standard input is closed."""
    command = [sys.executable, "-I", "-S", __file__, run, *directories]
    # Ctrl-C in the terminal is for the run, which may need seconds to end.
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def main(run: str, *directories: str) -> None:
    """Wait for the end of the run, and remove what is left of it."""
    controller = os.getppid()
    # A forked child of a test may hold a copy of the pipe's other end.
    while os.getppid() == controller and not select.select([sys.stdin], [], [], 1.0)[0]:
        pass
    kill(**{RUN: run})
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
