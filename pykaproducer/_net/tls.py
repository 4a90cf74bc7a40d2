"""TLS over a non-blocking socket.

OpenSSL works on memory buffers here and never touches the socket. This has three effects:

- A whole piece is encrypted in one call, without the GIL, and written in another (``write.pxi``).
- An OpenSSL write is never incomplete. With its own socket it could be, and would then have to be
  repeated with exactly the same bytes.
- Only :meth:`TlsTransport.send` and :meth:`~.receive` send anything to the broker. Closing the
  connection sends nothing, so a forked child that closes its copy of the socket cannot end the
  parent's session. Truncation is detected without a TLS shutdown, as Kafka's frames have lengths.

**Threads.** Two threads must not use an OpenSSL connection at once, not even one to read and one to
write. This is ensured as follows:

1. a stage's own thread releases the stage (``_running``) only to wait in the selector, which uses
   only the descriptor;
2. another thread acquires the stage, and encrypts and writes a small request in place;
3. when a response arrives, the stage's thread wakes and acquires the stage again before it reads.

A violation would corrupt memory, so a lock, which is always free, enforces the rule.

**Bytes sent.** The broker can decrypt a record (16 KiB) only when all of it has arrived. A byte
therefore counts as taken when its entire record has been given to the socket.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pykaproducer._kernel as _kernel
from pykaproducer._net.tls_errors import Peer, handshake_text, later_text
from pykaproducer._net.transport import (
    CLOSED,
    PATIENCE_MS,
    ConnectionFailed,
    HandshakeFailed,
    HungUp,
    PlainTransport,
    failure,
)

#: Maximum bytes in a record.
RECORD: Final = 16384
#: Maximum bytes encrypted at a time. One call of send() encrypts at most _PIECES such pieces.
PIECE: Final = 512 * 1024
_PIECES: Final = 4
_ROOM: Final = 64 * 1024


class _Encrypted:
    """An encrypted piece, and how much of it has been given to the socket."""

    __slots__ = ("data", "plain", "reported", "written")

    def __init__(self, data: bytes, plain: int) -> None:
        self.data = data
        self.plain = plain
        self.written = 0
        self.reported = 0

    def readable(self) -> int:
        """Return how many bytes of the piece the broker can read: those of complete records."""
        if self.written == len(self.data):
            return self.plain
        plain = at = 0
        while (end := at + 5 + int.from_bytes(self.data[at + 3 : at + 5], "big")) <= self.written:
            at = end
            plain += RECORD
        # The last record is shorter, and another TLS message may precede it.
        return min(plain, max(0, self.plain - 1))


class TlsTransport:
    """A connection with TLS, over a non-blocking socket that has begun to connect."""

    encrypts = True

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        peer: Peer,
        below: PlainTransport | None = None,
    ) -> None:
        self._socket = sock
        self._peer = peer
        # Connects; another one than this asks a proxy first.
        self._below = PlainTransport(sock) if below is None else below
        self._connected = False
        self._one_thread = threading.Lock()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        try:
            #: The OpenSSL object; public for ``SecureNetwork.close_inherited``.
            self.tls = context.wrap_bio(
                self._incoming, self._outgoing, server_hostname=peer.certified_name
            )
        except (ssl.SSLError, ValueError) as error:  # an invalid host name
            raise ConnectionFailed(
                f"TLS is impossible with the host name {peer.host!r}: {error}"
            ) from error
        self._room = memoryview(bytearray(_ROOM))
        self._encrypted: deque[_Encrypted] = deque()
        # Bytes of the caller of send() that were encrypted, and are not among the pieces yet.
        self._plain = 0
        self._taken = 0  # bytes taken that have not been reported to the caller of send() yet
        self._answered = False  # the broker has sent something, if only a TLS message
        self._heard = False  # it has sent application data
        self._failed: ConnectionFailed | None = None

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def doing(self) -> str:
        if not self._connected:
            return self._below.doing
        return (
            "the TLS handshake (does this listener use TLS? security_protocol is "
            f"{self._peer.protocol})"
        )

    @property
    def reached(self) -> bool:
        return self._below.reached

    def unacknowledged(self) -> float | None:
        return self._below.unacknowledged()

    def close(self) -> None:
        self._socket.close()

    # Connecting --------------------------------------------------------------------------------

    def finish_connect(self) -> int:
        if not self._connected:
            wanted = self._below.finish_connect()
            if wanted:
                return wanted
            self._connected = True
        with self._one_thread:
            return self._shake_hands()

    def _shake_hands(self) -> int:
        while True:
            done = self._go_on()
            self._take_encrypted()
            try:
                self._write(0)
                if self._encrypted:
                    return selectors.EVENT_WRITE
                if done:
                    return 0
                if not self._fill():
                    return selectors.EVENT_READ
            except HungUp as error:
                text = self._peer.hung_up_in_handshake(str(error), heard=self._answered)
                raise HandshakeFailed(text) from error
            self._answered = True

    def _go_on(self) -> bool:
        """Perform one step of the handshake. Return whether it was the last."""
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            self._take_encrypted()
            self._write_tls_messages()
            raise HandshakeFailed(handshake_text(error, self._peer)) from error
        return True

    def _write_tls_messages(self) -> None:
        """Send TLS's own messages, such as an alert, to the broker; ignore failures."""
        try:
            self._write(0)
        except ConnectionFailed:
            self._encrypted.clear()

    # Sending -----------------------------------------------------------------------------------

    def send(self, buffers: Sequence[memoryview], *, patient: bool = True) -> int:
        """See ``Transport.send``.

        Bytes that were not taken must be at the start of the next call, because they may have been
        encrypted already.
        """
        with self._one_thread:
            if self._failed is not None:
                raise self._failed
            try:
                self._send(buffers, PATIENCE_MS if patient else 0)
            except ConnectionFailed as error:
                self._failed = self._why_ended(error)
                if not self._taken:
                    raise self._failed from error
                # Report the bytes taken first, and the error in the next call.
            taken, self._taken = self._taken, 0
            return taken

    def _send(self, buffers: Sequence[memoryview], patience: int) -> None:
        ahead = self._taken
        if self._encrypted:
            ahead += sum(piece.plain - piece.reported for piece in self._encrypted)
            self._write(patience)
        pieces = _pieces(buffers, ahead)
        while not self._encrypted:  # otherwise the socket is full
            piece = next(pieces, None)
            if piece is None:
                return
            self._encrypt(piece)
            self._write(patience)

    def _encrypt(self, piece: memoryview | bytes) -> None:
        # Set first. If there is then no memory to read the encrypted bytes, receive() reads them
        # later. Marked as the caller's data, they are not written there: the connection is lost,
        # and the request will be retried.
        self._plain = len(piece)
        try:
            # OpenSSL releases the GIL, as for a write.
            self.tls.write(piece)
        except ssl.SSLError as error:
            raise ConnectionFailed(later_text(error, self._peer)) from error
        self._take_encrypted()

    def _take_encrypted(self) -> None:
        if self._outgoing.pending:
            self._encrypted.append(_Encrypted(self._outgoing.read(), self._plain))
            self._plain = 0

    def _write(self, patience: int) -> None:
        """Write encrypted bytes until the socket is full."""
        while self._encrypted:
            first = self._encrypted[0]
            left = memoryview(first.data)[first.written :]
            try:
                first.written += _kernel.write_buffers(self._socket.fileno(), [left], patience)
            except OSError as error:
                raise failure(error) from error
            readable = first.readable()
            self._taken += readable - first.reported
            first.reported = readable
            if first.written < len(first.data):
                return
            self._encrypted.popleft()

    # Receiving ---------------------------------------------------------------------------------

    def receive(self, into: memoryview) -> int:
        # Read everything that OpenSSL has, because the selector does not know about its buffers.
        with self._one_thread:
            if self._failed is not None:
                raise self._failed
            got = 0
            try:
                filled = _ROOM
                while got < len(into):
                    # Where a record is incomplete, OpenSSL would raise an error.
                    if self._incoming.pending or self.tls.pending():
                        count = self._decrypt(into[got:])
                        if count is not None:
                            got += count
                            self._heard = True
                            continue
                    if filled < _ROOM:
                        break  # the socket has no more for now
                    filled = self._fill()
            except ConnectionFailed as error:
                self._failed = self._ended(error)
                if not got:
                    raise self._failed from error
                # Return the data received before the error first.
            if self._outgoing.pending:
                self._take_encrypted()
            # Write only TLS's own messages here, never a piece of the caller's data:
            #
            # 1. a piece with the requests A and B is partially written, beginning with A;
            # 2. a response arrives, and the rest of the piece is written here without being
            #    reported;
            # 3. the connection is lost in the same call, and B would count as never written.
            ours = self._failed is None and not any(piece.plain for piece in self._encrypted)
            if self._encrypted and ours:
                self._write_tls_messages()
            return got

    def _decrypt(self, into: memoryview) -> int | None:
        """Decrypt into *into*. Return the number of bytes, or None if no record is complete."""
        try:
            # According to the stubs it returns bytes. With a buffer it returns their number.
            count: Any = self.tls.read(len(into), into)
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLError as error:
            raise ConnectionFailed(later_text(error, self._peer)) from error
        if count == 0:
            raise HungUp(CLOSED)
        return int(count)

    def _fill(self) -> int:
        """Pass received bytes to OpenSSL. Return their number; 0 if there are none."""
        try:
            count = _kernel.read_into(self._socket.fileno(), self._room)
        except OSError as error:
            raise failure(error) from error
        if count is None:
            return 0
        if count == 0:
            raise HungUp(CLOSED)
        try:
            self._incoming.write(self._room[:count])
        except ssl.SSLError as error:  # OpenSSL has no memory
            raise ConnectionFailed(later_text(error, self._peer)) from error
        return count

    # The end -----------------------------------------------------------------------------------

    def _ended(self, error: ConnectionFailed) -> ConnectionFailed:
        """Return *error* with a hint if the broker may have rejected the client certificate.

        With TLS 1.3 a broker checks the client certificate after the handshake is over for the
        client, and may close the connection before its alert is sent.
        """
        if self._heard or self.tls.version() != "TLSv1.3" or not isinstance(error, HungUp):
            return error
        return ConnectionFailed(self._peer.hung_up_after_handshake(str(error)))

    def _why_ended(self, error: ConnectionFailed) -> ConnectionFailed:
        """Return the reason for a failed write: the broker's last message is more informative."""
        if not isinstance(error, HungUp):
            return error
        try:
            while self._fill():
                while self._decrypt(self._room) is not None:
                    pass
        except ConnectionFailed as received:
            return self._ended(received)
        return self._ended(error)


def _pieces(buffers: Sequence[memoryview], skip: int) -> Iterator[memoryview | bytes]:
    """Yield the bytes of *buffers* after the first *skip*, in pieces to be encrypted.

    Yields a limited number of pieces, so that responses are read in between.
    """
    parts: list[memoryview] = []
    room = PIECE
    pieces = 0
    for buffer in buffers:
        if skip >= len(buffer):
            skip -= len(buffer)
            continue
        view, skip = buffer[skip:], 0
        while view:
            part, view = view[:room], view[room:]
            parts.append(part)
            room -= len(part)
            if room == 0:
                yield _joined(parts)
                parts, room = [], PIECE
                pieces += 1
                if pieces == _PIECES:
                    return
    if parts:
        yield _joined(parts)


def _joined(parts: list[memoryview]) -> memoryview | bytes:
    return parts[0] if len(parts) == 1 else b"".join(parts)
