"""The other side of ``stats.read_stats()``: a Unix socket at which a producer tells its stats().

One small thread, started with the pipeline. Whoever connects gets one line of JSON and the end of
the stream; only the same user may connect (the socket's mode is 0600). Nothing here may harm the
producer: what goes wrong is logged, and it goes on without.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import selectors
import socket
import stat
from collections.abc import Callable
from typing import Any

from pykaproducer._clock import Bell, Clock
from pykaproducer._net.transport import ConnectionFailed, is_shortage
from pykaproducer._net.wakeup import Wakeup
from pykaproducer._pipeline.worker import Errand, spawn_later

log = logging.getLogger("pykaproducer.stats")

#: How long somebody may take to read what was asked for (seconds).
_PATIENCE = 5.0
#: How long the end of the thread is waited for, which takes milliseconds (seconds).
_END_TIME = 0.2
#: The pause after the system has refused a file descriptor (seconds).
_DEAF = 1.0
#: So many may wait to be answered.
_BACKLOG = 16


class _Reader:
    """Somebody who has connected, and what of the answer is left."""

    def __init__(self, connection: socket.socket, answer: bytes, deadline: float) -> None:
        self.connection = connection
        self.left = memoryview(answer)
        self.deadline = deadline

    def go_on(self) -> bool:
        """Give it what it takes at the moment; true when there is nothing left to do."""
        try:
            while self.left:
                self.left = self.left[self.connection.send(self.left) :]
        except BlockingIOError:
            return False
        except OSError:
            pass  # it has gone away
        return True

    def end(self) -> None:
        """Nothing more comes.

        Not by close() alone: (1) it is answered; (2) another thread forks; (3) the child has a
        duplicate, and the stream would end only with that process.
        """
        with contextlib.suppress(OSError):  # it has gone away
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


class StatsServer:
    """Answers at *path* until :meth:`stop`; ``%p`` in it stands for the process id."""

    def __init__(
        self, path: str, name: str, clock: Clock, stats: Callable[[], dict[str, Any]]
    ) -> None:
        self.path = path.replace("%p", str(os.getpid()))
        self._clock = clock
        self._stats = stats
        self._name = name
        self._thread: Errand | None = None
        # Made by the thread; rung in its place while the system refuses its descriptors.
        self._wakeup: Wakeup | None = None
        self._bell = Bell()
        self._listener: socket.socket | None = None
        self._stopping = False
        # Nobody is let in before then (monotonic seconds); None: everybody is.
        self._deaf_until: float | None = None
        # Which file is ours: somebody may put another one in its place.
        self._ours: tuple[int, int] | None = None

    def start(self) -> None:
        """Listen, if that is possible; else the log says why not."""
        self._thread = spawn_later(f"{self._name}-stats", self._run)

    def stop(self) -> None:
        """End it. The path is free then, unless the thread has just made it, and frees it."""
        # The thread makes the wake-up known, then looks at `_stopping`; we the other way round.
        self._stopping = True
        self._unlink()
        self._bell.ring()
        if self._wakeup is not None:
            self._wakeup.poke(surely=True)
        if self._thread is not None:
            self._thread.join(_END_TIME)

    def forsake(self) -> None:
        """In the child of a fork: the socket is the parent's."""
        self._ours = None
        self._close()

    # Making it ------------------------------------------------------------------------------------

    def _listen(self) -> socket.socket:
        """A socket that listens at the path.

        Under a name of its own first, so that nobody ever meets one that is there and does not
        listen yet, or that has another mode. Two processes that start at the same moment: both
        may find a socket that nobody serves, and the later takes its place; the other is lost.
        """
        if not hasattr(socket, "AF_UNIX"):
            raise OSError("there are no Unix sockets here")
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
        """Raise unless there is nothing at the path, or the socket of somebody who is dead."""
        try:
            found = os.lstat(self.path)
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(found.st_mode):
            raise OSError(errno.EEXIST, "there is a file that is no socket")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            with contextlib.suppress(BlockingIOError):  # it listens, and many wait for it
                try:
                    probe.connect(self.path)
                except (ConnectionRefusedError, FileNotFoundError):
                    return
        raise OSError(
            errno.EADDRINUSE, "another producer listens there (%p in the path is the process id)"
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
                # In any case: no client may wait at a socket that is not served.
                self._unlink()
                self._close()
            if not self._stopping:
                self._clock.hear(self._bell, self._clock.monotonic() + _DEAF)

    def _serve(self, listener: socket.socket, wakeup: Wakeup) -> None:
        readers: set[_Reader] = set()
        self._deaf_until = None
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            selector.register(wakeup, selectors.EVENT_READ)
            while not self._stopping:
                deadlines = [reader.deadline for reader in readers]
                if self._deaf_until is not None:
                    deadlines.append(self._deaf_until)
                deadline = min(deadlines, default=None)
                for key, _ in self._clock.select(selector, deadline, wakeup.poke):
                    if key.fileobj is listener:
                        self._accept(listener, selector, readers)
                    elif key.fileobj is wakeup:
                        wakeup.drain()
                    elif key.data.go_on():
                        self._end(key.data, selector, readers)
                now = self._clock.monotonic()
                for late in [reader for reader in readers if reader.deadline <= now]:
                    self._end(late, selector, readers)
                if self._deaf_until is not None and self._deaf_until <= now:
                    self._deaf_until = None
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
            return  # it has gone away meanwhile
        except OSError:
            # Too many open files, mostly: it stays in the queue, and the listener readable.
            selector.unregister(listener)
            self._deaf_until = self._clock.monotonic() + _DEAF
            return
        connection.setblocking(False)
        answer = json.dumps(self._stats()).encode() + b"\n"
        reader = _Reader(connection, answer, self._clock.monotonic() + _PATIENCE)
        if reader.go_on():
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

    # The end --------------------------------------------------------------------------------------

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
