"""The guard process, which manages the brokers on behalf of the owner of a test cluster.

There is one guard for each :class:`~pykaproducer.testing.KafkaCluster`. It runs as a script, so it
imports only the standard library. The brokers are *its* children. The owner sends commands over a
socket (the guard's standard input): a line of JSON in, a line of JSON out.

Guarantees:

- When the owner ends, in whatever way, every broker is killed (even a stopped one) and the
  cluster's directory is removed, within about half a second.
- When the guard itself is killed, the kernel kills the brokers (Linux).
- A signal is never sent to a process id that was reused by another process: only the guard reaps
  the brokers, and it signals only processes that it has not reaped.

Relies on: the guard has one thread. The kernel sends the parent-death signal when the *thread* that
started the child ends. Only in a single-threaded process is this the end of the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

#: Interval of checks that the owner is still the guard's parent (seconds). The end of the socket is
#: noticed immediately, but not while a forked child of the dead owner holds a copy of it.
_PARENT_CHECK = 0.5

_PR_SET_PDEATHSIG = 1

#: After a power failure the file must not exist without its content.
_RENAME = """
import os, sys
with open(sys.argv[1], "rb") as file:
    os.fsync(file.fileno())
os.replace(sys.argv[1], sys.argv[2])
"""


def _die_with_the_guard(guard: int) -> None:
    """Run in a new child, before exec: request SIGKILL from the kernel when the guard ends.

    1. The guard forks. 2. The guard is killed. 3. The child makes the request, too late. The child
    therefore checks its parent afterwards, and exits if it has changed.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(1)


class _Making:
    """A child that makes a file under a temporary name, and the lock that other makers try.

    The temporary name is always the same. So if the guard is killed, the next maker replaces the
    incomplete file. The lock is released when the guard ends, in whatever way.

    If the child succeeds, a second one renames the file. It first waits for the disk, which may
    take longer than the owner waits for an answer of the guard.
    """

    def __init__(self, child: subprocess.Popen[bytes], path: str, lock: int) -> None:
        self._child = child
        self._path = path
        self._lock = lock
        self._renaming: subprocess.Popen[bytes] | None = None

    def advance(self, wait: bool) -> bool:
        """Return whether the file has been renamed, or removed because the child has failed."""
        if self._child.returncode is None:
            return False
        partial = _partial(self._path)
        with contextlib.suppress(OSError):
            if self._renaming is None and self._child.returncode == 0:
                self._renaming = self._rename(partial)
        if self._renaming is not None:
            if wait:
                self._renaming.wait()
            elif self._renaming.poll() is None:
                return False
        with contextlib.suppress(OSError):
            os.unlink(partial)
        os.close(self._lock)
        return True

    def _rename(self, partial: str) -> subprocess.Popen[bytes]:
        guard = os.getpid()
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _RENAME, partial, self._path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=lambda: _die_with_the_guard(guard),
        )


def _partial(path: str) -> str:
    return path + ".partial"


def _try_lock(path: str) -> int | None:
    """Return a file descriptor that holds a lock; None if it is held or cannot be created."""
    try:
        lock = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


class Guard:
    """The state of the guard: its children, and the ports reserved for them."""

    def __init__(self, owner: int, signals: Sequence[int]) -> None:
        self._owner = owner
        #: Those received that ask the guard to end.
        self._signals = signals
        self._directory = tempfile.mkdtemp(prefix="pykaproducer-kafka-")
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._making: _Making | None = None
        self._kept: list[socket.socket] = []
        self._commands: dict[str, Callable[..., Any]] = {
            "directory": lambda: self._directory,
            "reserve": self._reserve,
            "spawn": self._spawn,
            "make": self._make,
            "signal": self._signal,
            "poll": self._poll,
            "stopped": self._stopped,
        }

    def serve(self, channel: socket.socket) -> None:
        """Execute commands until the owner ends, then clean up."""
        try:
            pending = b""
            while os.getppid() == self._owner and not self._signals:
                if not select.select([channel], [], [], _PARENT_CHECK)[0]:
                    self._reap()
                    continue
                received = channel.recv(65536)
                if not received:
                    return
                *lines, pending = (pending + received).split(b"\n")
                for line in lines:
                    channel.sendall(self._answer(json.loads(line)))
        except ConnectionError:
            return
        finally:
            self._clean_up()

    def _answer(self, request: dict[str, Any]) -> bytes:
        reply = {"number": request["number"]}
        try:
            reply["value"] = self._commands[request["command"]](**request["arguments"])
        except OSError as error:
            reply["error"] = str(error)
        return json.dumps(reply).encode() + b"\n"

    def _reserve(self, count: int, wanted: list[int]) -> list[int]:
        """Reserve the ports *wanted*, and as many other free ports as make *count*.

        On Linux a socket that is bound but not listening reserves the port. The kernel assigns it
        neither to a search for a free port nor to an outgoing connection (which could otherwise
        connect to itself while the broker is down). A broker may still listen on it, because it
        binds with SO_REUSEADDR as this socket does.
        """
        self._release()
        for wish in [*wanted, *[0] * (count - len(wanted))]:
            port = socket.socket()
            self._kept.append(port)
            port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                port.bind(("127.0.0.1", wish))
            except OSError as error:
                raise OSError(f"port {wish} on 127.0.0.1: {error.strerror}") from None
        numbers = [port.getsockname()[1] for port in self._kept]
        if sys.platform != "linux":
            self._release()
        return numbers

    def _release(self) -> None:
        while self._kept:
            self._kept.pop().close()

    def _make(self, argv: list[str], env: dict[str, str], path: str, log: str) -> int | None:
        """Run a Java that makes the archive *path*; None if it exists or is locked."""
        lock = _try_lock(os.path.join(os.path.dirname(path), "archive.lock"))
        if lock is None:
            return None
        if os.path.exists(path):
            os.close(lock)
            return None
        output = f"-XX:SharedArchiveFile={_partial(path)}"
        pid = self._spawn([*argv, output], env, log)
        self._making = _Making(self._children[pid], path, lock)
        return pid

    def _spawn(self, argv: list[str], env: dict[str, str], log: str) -> int:
        guard = os.getpid()
        with open(log, "ab") as output:
            child = subprocess.Popen(
                argv,
                env=env,
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # preexec_fn is safe in a single-threaded process.
                preexec_fn=lambda: _die_with_the_guard(guard),
            )
        self._children[child.pid] = child
        return child.pid

    def _signal(self, pid: int, number: int) -> bool:
        """Send a signal. Return false if the process has already ended."""
        child = self._children[pid]
        child.send_signal(number)
        return child.returncode is None

    def _poll(self, pid: int) -> int | None:
        return self._children[pid].poll()

    def _stopped(self, pid: int) -> bool:
        """Return whether a stop signal has taken effect on all threads of a process."""
        if not hasattr(os, "waitid"):
            # Without waitid() the state cannot be checked; assume that the stop was immediate.
            return True
        # WNOWAIT leaves the state available for later calls.
        options = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, pid, options) is not None

    def _reap(self, wait: bool = False) -> None:
        for child in self._children.values():
            child.poll()
        if self._making is not None and self._making.advance(wait):
            self._making = None

    def _clean_up(self) -> None:
        for child in self._children.values():
            child.kill()
        for child in self._children.values():
            child.wait()
        self._reap(wait=True)
        shutil.rmtree(self._directory, ignore_errors=True)


def main() -> None:
    """Run ``_guard.py OWNER``; standard input is the socket to the owner."""
    # Clean up on signals that ask the guard to end. An exception could interrupt the clean-up.
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: signals.append(number))
    with contextlib.closing(socket.socket(fileno=0)) as channel:
        Guard(int(sys.argv[1]), signals).serve(channel)


if __name__ == "__main__":
    main()
