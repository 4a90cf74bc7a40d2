"""Ends what a run of the tests has started, if the run cannot do it itself.

The processes of a run inherit ``PYKAPRODUCER_RUN`` in their environment, with the name of the run,
and those that a worker process starts also ``PYTEST_XDIST_WORKER``.

This file is also a program, which is started with the run and outlives it. It reads its standard
input until the controller of the run ends, by whatever cause (SIGKILL as well). Then it kills every
process of the run, and removes the directories in its arguments.

The guards of clusters (``pykaproducer/testing/_guard.py``) are not killed: they end by themselves,
and remove the directories of their brokers first. What a guard may still do:

1. It starts a broker. 2. The run is killed, and the directories are removed. 3. The broker makes a
file in its directory, with every missing parent. 4. The guard kills the broker.

The directories are therefore removed again until the guards have ended.
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
import time

RUN = "PYKAPRODUCER_RUN"

#: How long the guards may take to end (seconds).
_PATIENCE = 30.0


def processes_of(*, guards: bool = False, **environment: str) -> list[int]:
    """Return the processes with these variables in their environment, except this one.

    Either the *guards* of clusters, or all others. Empty where there is no ``/proc``.
    """
    wanted = {f"{name}={value}".encode() for name, value in environment.items()}
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted <= set((entry / "environ").read_bytes().split(b"\0")):
                arguments = (entry / "cmdline").read_bytes()
                is_guard = b"testing/_guard.py" in arguments
                if int(entry.name) != os.getpid() and is_guard == guards:
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
    """Start the program for the run of this name; it ends when it gets a byte, or with us."""
    command = [sys.executable, "-I", "-S", __file__, run, *directories]
    # Ctrl-C in the terminal is for the run, which may need seconds to end.
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def main(run: str, *directories: str) -> None:
    """Wait for the end of the run, and remove what is left of it."""
    controller, ready = os.getppid(), []
    # A forked child of a test may hold a copy of the pipe's other end.
    while os.getppid() == controller and not (ready := select.select([0], [], [], 1.0)[0]):
        pass
    # At the end of the pipe the controller is ending, but may be our parent for a moment still.
    is_told = bool(ready) and os.read(0, 1) != b""
    kill(**{RUN: run})
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        # A guard does not end before its owner, which may be the controller.
        has_ended = not is_told or os.getppid() != controller
        ending = has_ended and processes_of(guards=True, **{RUN: run})
        for directory in directories:
            shutil.rmtree(directory, ignore_errors=True)
        if not ending and not any(map(os.path.lexists, directories)):
            return
        select.select([], [], [], 0.1)


if __name__ == "__main__":
    main(*sys.argv[1:])
