"""The broker's end of a scripted cluster's connections."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from collections.abc import Callable

from pykaproducer._net.transport import PlainTransport, Transport
from pykaproducer.testing._scripted_actions import Disconnect

#: Timeout for joining one of the cluster's threads (seconds).
_JOIN_TIMEOUT = 30.0


class BrokerEnd:
    """The broker's end of a connection, and the thread that serves it."""

    def __init__(
        self, broker: int, number: int, handle: Callable[[BrokerEnd, bytes], None]
    ) -> None:
        self.broker = broker
        self.number = number
        self._handle = handle
        self._muted = False
        self._theirs, self._ours = socket.socketpair()
        self._thread = threading.Thread(
            target=self._serve, name=f"scripted-broker-{broker}-connection-{number}", daemon=True
        )

    def start(self) -> Transport:
        """Start the thread and return the client's end."""
        self._theirs.setblocking(False)
        self._thread.start()
        return PlainTransport(self._theirs)

    def send(self, data: bytes) -> None:
        """Send *data* to the client, unless the connection is muted."""
        if not self._muted:
            self._ours.sendall(data)

    def mute(self) -> None:
        """Stop sending and handling requests, without closing the connection."""
        self._muted = True

    def hang_up(self) -> None:
        """Close the connection; called from another thread."""
        with contextlib.suppress(OSError):  # already closed
            self._ours.shutdown(socket.SHUT_RDWR)

    def join(self) -> None:
        """Wait for the thread to end."""
        self._thread.join(_JOIN_TIMEOUT)
        if self._thread.is_alive():
            raise RuntimeError(f"thread {self._thread.name} has not ended")

    def _serve(self) -> None:
        try:
            while True:
                (length,) = struct.unpack(">i", self._receive(4))
                frame = self._receive(length)
                if not self._muted:
                    self._handle(self, frame)
        except (Disconnect, OSError):
            pass  # closed by the script or by the client
        finally:
            self._ours.close()

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._ours.recv(size - len(data))
            if not piece:
                raise Disconnect
            data += piece
        return bytes(data)


class NeverConnected(PlainTransport):
    """A connection to a host that does not answer."""

    def __init__(self) -> None:
        ours, self._far_end = socket.socketpair()
        ours.setblocking(False)
        super().__init__(ours)
        try:
            while True:  # fill the buffer, so that the socket never becomes writable
                ours.send(b"\0" * 65536)
        except BlockingIOError:
            pass

    def finish_connect(self) -> int:
        return selectors.EVENT_WRITE

    def close(self) -> None:
        super().close()
        self._far_end.close()
