"""The server for ``stats.read_stats()``: a Unix socket at which a producer returns its stats().

One small thread, started with the pipeline. Each connection receives one line of JSON and is
closed. Only the same user may connect (the socket's mode is 0600). Errors here must not affect the
producer: they are logged, and it continues without the server.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import socket
import stat
from collections.abc import Callable
from typing import Any

from pykaproducer._net.transport import ConnectionFailed, is_shortage
from pykaproducer._net.wakeup import Wakeup
from pykaproducer._pipeline.background_task import BackgroundTask, spawn_later
from pykaproducer._util.clock import Clock, WakeEvent
from pykaproducer._util.guarded_log import GuardedLogger

log = GuardedLogger("pykaproducer.stats")

#: How long a client may take to read the answer (seconds).
_PATIENCE = 5.0
#: How long stop() waits for the thread, which needs milliseconds (seconds).
_END_TIME = 0.2
#: The pause after the system has run out of file descriptors (seconds).
_ACCEPT_PAUSE = 1.0
#: The maximum number of connections that wait to be accepted.
_BACKLOG = 16


class _Reader:
    """A client, and the unsent rest of its answer."""

    def __init__(self, connection: socket.socket, answer: bytes, deadline: float) -> None:
        self.connection = connection
        self.left = memoryview(answer)
        self.deadline = deadline

    def send_more(self) -> bool:
        """Send what the socket accepts now; return True when there is nothing left to do."""
        try:
            while self.left:
                self.left = self.left[self.connection.send(self.left) :]
        except BlockingIOError:
            return False
        except OSError:
            pass  # the client has disconnected
        return True

    def end(self) -> None:
        """Shut the connection down.

        close() alone is not sufficient: (1) the client is answered; (2) another thread forks;
        (3) the child has a duplicate, and the stream would only end with that process.
        """
        with contextlib.suppress(OSError):  # the client has disconnected
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


class StatsServer:
    """A server at *path* until :meth:`stop`; ``%p`` in it is replaced by the process id."""

    def __init__(
        self, path: str, name: str, clock: Clock, stats: Callable[[], dict[str, Any]]
    ) -> None:
        self.path = path.replace("%p", str(os.getpid()))
        self._clock = clock
        self._stats = stats
        self._name = name
        self._thread: BackgroundTask | None = None
        # Created by the thread. `_wake_event` replaces it while no descriptors are available.
        self._wakeup: Wakeup | None = None
        self._wake_event = WakeEvent()
        self._listener: socket.socket | None = None
        self._stopping = False
        # No connection is accepted before this time (monotonic seconds); None: no restriction.
        self._paused_until: float | None = None
        # Identifies our file, because another one may be put in its place.
        self._ours: tuple[int, int] | None = None

    def start(self) -> None:
        """Start listening; a failure is logged."""
        self._thread = spawn_later(f"{self._name}-stats", self._run)

    def stop(self) -> None:
        """Stop the server and remove its path, unless the thread is creating it and removes it."""
        # The thread publishes the wake-up and then checks `_stopping`; this does the reverse.
        self._stopping = True
        self._unlink()
        self._wake_event.set()
        if self._wakeup is not None:
            self._wakeup.poke(surely=True)
        if self._thread is not None:
            self._thread.join(_END_TIME)

    def close_inherited(self) -> None:
        """Close the parent's socket in the child of a fork."""
        self._ours = None
        self._close()

    # Creating the socket --------------------------------------------------------------------------

    def _listen(self) -> socket.socket:
        """Return a socket that listens at the path.

        It is created under a temporary name, so that no client ever finds one that does not listen
        yet or has another mode. If two processes start at the same time, both may find a socket
        that is not served; the later one replaces it, and the other one's is lost.
        """
        if not hasattr(socket, "AF_UNIX"):
            raise OSError("this system has no Unix sockets")
        self._check_free()
        made = socket.socket(socket.AF_UNIX)
        new = f"{self.path}.{os.getpid()}"
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new)
            made.bind(new)
            os.chmod(new, 0o600)
            made.listen(_BACKLOG)
            made.setblocking(False)
            os.rename(new, self.path)
            found = os.stat(self.path)
            self._ours = (found.st_dev, found.st_ino)
        except BaseException:
            made.close()
            with contextlib.suppress(OSError):
                os.unlink(new)
            raise
        return made

    def _check_free(self) -> None:
        """Raise unless there is nothing at the path, or the socket of a process that has ended."""
        try:
            found = os.lstat(self.path)
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(found.st_mode):
            raise OSError(errno.EEXIST, "there is a file that is not a socket")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            with contextlib.suppress(BlockingIOError):  # it listens, and its backlog is full
                try:
                    probe.connect(self.path)
                except (ConnectionRefusedError, FileNotFoundError):
                    return
        raise OSError(
            errno.EADDRINUSE, "another producer listens there; %p in the path is the process id"
        )

    # Serving --------------------------------------------------------------------------------------

    def _run(self) -> None:
        short = False
        while not self._stopping:
            try:
                self._wakeup = Wakeup()
                self._listener = self._listen()
                self._serve(self._listener, self._wakeup)
            except (OSError, ConnectionFailed) as error:
                if not is_shortage(error):
                    log.warning("stats_socket %s: %s; continuing without it", self.path, error)
                    return
                if not short:
                    log.warning("stats_socket %s: %s; trying again", self.path, error)
                short = True
            finally:
                # In any case, so that no client waits at a socket that is not served.
                self._unlink()
                self._close()
            if not self._stopping:
                self._clock.wait(self._wake_event, self._clock.monotonic() + _ACCEPT_PAUSE)

    def _serve(self, listener: socket.socket, wakeup: Wakeup) -> None:
        readers: set[_Reader] = set()
        self._paused_until = None
        with selectors.PollSelector() as selector:  # has no descriptor that a fork duplicates
            selector.register(listener, selectors.EVENT_READ)
            selector.register(wakeup, selectors.EVENT_READ)
            while not self._stopping:
                deadlines = [reader.deadline for reader in readers]
                if self._paused_until is not None:
                    deadlines.append(self._paused_until)
                deadline = min(deadlines, default=None)
                for key, _ in self._clock.select(selector, deadline, wakeup.poke):
                    if key.fileobj is listener:
                        self._accept(listener, selector, readers)
                    elif key.fileobj is wakeup:
                        wakeup.drain()
                    elif key.data.send_more():
                        self._end(key.data, selector, readers)
                now = self._clock.monotonic()
                for late in [reader for reader in readers if reader.deadline <= now]:
                    self._end(late, selector, readers)
                if self._paused_until is not None and self._paused_until <= now:
                    self._paused_until = None
                    selector.register(listener, selectors.EVENT_READ)
            for reader in list(readers):
                self._end(reader, selector, readers)

    def _accept(
        self,
        listener: socket.socket,
        selector: selectors.BaseSelector,
        readers: set[_Reader],
    ) -> None:
        try:
            connection, _ = listener.accept()
        except (BlockingIOError, ConnectionError, InterruptedError):
            return  # it has disconnected in the meantime
        except OSError:
            # Usually too many open files: it remains in the queue, and the listener readable.
            selector.unregister(listener)
            self._paused_until = self._clock.monotonic() + _ACCEPT_PAUSE
            return
        connection.setblocking(False)
        answer = json.dumps(self._stats()).encode() + b"\n"
        reader = _Reader(connection, answer, self._clock.monotonic() + _PATIENCE)
        if reader.send_more():
            reader.end()
            return
        readers.add(reader)
        selector.register(connection, selectors.EVENT_WRITE, reader)

    def _end(
        self, reader: _Reader, selector: selectors.BaseSelector, readers: set[_Reader]
    ) -> None:
        readers.discard(reader)
        selector.unregister(reader.connection)
        reader.end()

    # Cleanup --------------------------------------------------------------------------------------

    def _unlink(self) -> None:
        ours, self._ours = self._ours, None
        with contextlib.suppress(OSError):
            found = os.stat(self.path)
            if ours == (found.st_dev, found.st_ino):
                os.unlink(self.path)

    def _close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        if self._wakeup is not None:
            self._wakeup.close()
