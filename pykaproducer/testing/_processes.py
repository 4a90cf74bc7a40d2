"""The owner's side of the guard (see ``_guard.py``): start it, send commands, end it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from pykaproducer._kernel import monotonic
from pykaproducer.testing._errors import ClusterError

#: Timeout for the guard's answers (seconds), which normally take milliseconds.
_ANSWER_TIMEOUT = 30.0
#: Timeout for killing the processes and removing their data (seconds).
_END_TIMEOUT = 30.0
#: Interval between checks for the end of a process (seconds).
_POLL = 0.02


def tick() -> None:
    """Pause between checks of something outside this process."""
    threading.Event().wait(_POLL)


class GuardedProcesses:
    """Processes that end when this process ends, with a directory for their files.

    Guarantees: a call returns, or raises :class:`ClusterError`, within a time limit; concurrent
    calls do not interfere; a forked child can neither use nor end the parent's processes.
    """

    def __init__(self) -> None:
        if os.name != "posix":
            raise ClusterError("the test cluster needs a POSIX system (Linux, macOS)")
        self._owner = os.getpid()
        self._ended = False
        self._lock = threading.Lock()
        # Guarded by the lock: the socket to the guard, partially read answers, request numbers.
        self._received = b""
        self._numbers = itertools.count(1)
        self._channel, theirs = socket.socketpair()
        self._channel.settimeout(_ANSWER_TIMEOUT)
        script = Path(__file__).with_name("_guard.py")
        with theirs:
            self._guard = subprocess.Popen(
                # Isolated and without site: the guard needs only the standard library.
                [sys.executable, "-I", "-S", str(script), str(self._owner)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                # Ctrl-C in the terminal signals the whole foreground process group. The brokers
                # must survive it until the owner has finished with them.
                start_new_session=True,
            )
        started = False
        try:
            #: Removed at the end, with its contents.
            self.directory = Path(cast(str, self._ask("directory")))
            started = True
        finally:
            if not started:
                self._stop_guard()

    def __enter__(self) -> GuardedProcesses:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()

    @property
    def owned(self) -> bool:
        """Whether this process is the owner, and not a forked child of it."""
        return os.getpid() == self._owner

    def reserve(self, count: int, wanted: Sequence[int] = ()) -> list[int]:
        """Reserve *count* ports on loopback for the processes, until the end; *wanted* ones first.

        Raises :class:`ClusterError` if a wanted port is in use.
        """
        return cast("list[int]", self._ask("reserve", count=count, wanted=list(wanted)))

    def spawn(self, argv: Sequence[str], env: Mapping[str, str], log: Path) -> int:
        """Start a process whose output is appended to *log*. Return its process id."""
        return cast(int, self._ask("spawn", argv=list(argv), env=dict(env), log=str(log)))

    def make(
        self, argv: Sequence[str], env: Mapping[str, str], path: Path, log: Path
    ) -> int | None:
        """Start a Java that makes the class-data archive *path*.

        Returns None if another process is making it, or if the directory cannot be written.
        """
        return cast(
            "int | None",
            self._ask("make", argv=list(argv), env=dict(env), path=str(path), log=str(log)),
        )

    def signal(self, pid: int, number: int) -> bool:
        """Send a signal. Return false if the process has already ended."""
        return not self._ended and cast(bool, self._ask("signal", pid=pid, number=int(number)))

    def poll(self, pid: int) -> int | None:
        """Return the exit status of a process, or None while it runs."""
        if self._ended:
            return -signal.SIGKILL
        return cast("int | None", self._ask("poll", pid=pid))

    def stop(self, pid: int, timeout: float) -> bool:
        """Stop a process with SIGSTOP. Return false if it has already ended.

        1. SIGSTOP is sent. 2. The call returns. 3. Threads on other processors finish their current
        work, such as answering a request. So wait until the last thread has stopped.
        """
        deadline = monotonic() + timeout
        if not self.signal(pid, signal.SIGSTOP):
            return False
        while not self._ask("stopped", pid=pid):
            if self.poll(pid) is not None:
                return False
            if monotonic() > deadline:
                raise ClusterError(f"process {pid} has not stopped within {timeout:g} s")
            tick()
        return True

    def wait(self, pid: int, timeout: float) -> int | None:
        """Wait for the end of a process. Return its exit status, or None on timeout."""
        deadline = monotonic() + timeout
        while (status := self.poll(pid)) is None and monotonic() < deadline:
            tick()
        return status

    def end(self) -> None:
        """Kill all processes, remove the directory, and wait until this is done."""
        if not self.owned or self._ended:
            return
        self._ended = True
        self._stop_guard()
        # Already removed by the guard, unless it was killed.
        shutil.rmtree(self.directory, ignore_errors=True)

    def _stop_guard(self) -> None:
        # close() alone would not end the connection while a forked child has a copy of it.
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)
        self._channel.close()
        try:
            self._guard.wait(_END_TIMEOUT)
        except subprocess.TimeoutExpired:
            # The processes are killed with the guard.
            self._guard.kill()
            self._guard.wait()

    def _ask(self, command: str, **arguments: Any) -> Any:
        if not self.owned:
            raise ClusterError(
                f"this cluster belongs to process {self._owner}; a forked child can use its "
                "bootstrap_servers, but not control it"
            )
        with self._lock:
            number = next(self._numbers)
            request = {"number": number, "command": command, "arguments": arguments}
            try:
                self._channel.sendall(json.dumps(request).encode() + b"\n")
                reply = self._answer_to(number)
            except OSError as error:
                raise ClusterError(
                    f"the guard process of the brokers has ended ({error}), and the brokers "
                    "with it; start a new cluster"
                ) from error
        if "error" in reply:
            raise ClusterError(f"could not {command}: {reply['error']}")
        return reply["value"]

    def _answer_to(self, number: int) -> dict[str, Any]:
        """Read answers up to the one with *number*.

        1. Ctrl-C interrupts a call after its request was sent. 2. The answer stays in the socket.
        3. The next call must not take it for its own answer, and compares the numbers.
        """
        while True:
            while b"\n" not in self._received:
                data = self._channel.recv(65536)
                if not data:
                    raise ConnectionResetError("its socket was closed")
                self._received += data
            line, _, self._received = self._received.partition(b"\n")
            reply = cast("dict[str, Any]", json.loads(line))
            if reply["number"] == number:
                return reply
