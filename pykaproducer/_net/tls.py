"""TLS over a non-blocking socket.

OpenSSL works on memory here and never touches the socket, so that

- a whole piece is encrypted in one call, without the GIL, and written in another (``write.pxi``);
- no write of OpenSSL's is ever half done. With its own socket it could be, and would then have to
  be offered the very same bytes again;
- nothing is said to the broker but in :meth:`TlsTransport.send` and :meth:`~.receive`: not when the
  connection is closed either, so that a forked child which closes its copy of the socket cannot
  end the parent's session. Kafka's frames have lengths: an end without a farewell is noticed.

**Threads.** An OpenSSL connection must not be used by two threads at once, not even to read and to
write. It never is:

1. a stage's own thread lets go of the stage (``_running``) only to wait in the selector, which
   looks at the descriptor alone;
2. another thread takes the stage, encrypts and writes a small request in place;
3. an answer comes: the stage's thread wakes, and takes the stage again, before it reads.

What breaks that rule would corrupt memory, so a lock that is always free makes sure of it.

**What was sent.** The broker can read a record (16 KiB) when all of it has come, and nothing of it
before. So a byte counts as taken when the whole of its record has been given to the socket.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pykaproducer import _kernel
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

#: The most bytes in a record.
RECORD: Final = 16384
#: So much is encrypted at a time, and so much at most is given to the socket in one call of send().
PIECE: Final = 512 * 1024
_PIECES: Final = 4
_ROOM: Final = 64 * 1024


class _Encrypted:
    """What one piece has become, and how much of it has been given to the socket."""

    __slots__ = ("data", "plain", "reported", "written")

    def __init__(self, data: bytes, plain: int) -> None:
        self.data = data
        self.plain = plain
        self.written = 0
        self.reported = 0

    def readable(self) -> int:
        """How many bytes of the piece the broker can read: those of whole records."""
        if self.written == len(self.data):
            return self.plain
        plain = at = 0
        while (end := at + 5 + int.from_bytes(self.data[at + 3 : at + 5], "big")) <= self.written:
            at = end
            plain += RECORD
        # The last record is shorter, and another message of TLS may have slipped in before.
        return min(plain, max(0, self.plain - 1))


class TlsTransport:
    """A connection with TLS, over a non-blocking socket that has begun to connect."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, peer: Peer) -> None:
        self._socket = sock
        self._peer = peer
        self._below = PlainTransport(sock)
        self._connected = False
        self._one_thread = threading.Lock()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        try:
            #: OpenSSL's side of it; public for ``Network.forsake``.
            self.tls = context.wrap_bio(
                self._incoming, self._outgoing, server_hostname=peer.certified_name
            )
        except (ssl.SSLError, ValueError) as error:  # what is no host name
            raise ConnectionFailed(f"no TLS with the host name {peer.host!r}: {error}") from error
        self._room = memoryview(bytearray(_ROOM))
        self._encrypted: deque[_Encrypted] = deque()
        self._taken = 0  # what the caller of send() has not been told yet
        self._answered = False  # the broker has said something, if only of TLS
        self._heard = False  # it has said something that is not TLS's own
        self._failed: ConnectionFailed | None = None

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def doing(self) -> str:
        if not self._connected:
            return self._below.doing
        return f"the TLS handshake (does it speak TLS? security_protocol is {self._peer.protocol})"

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
            self._take_encrypted(0)
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
        """One step of the handshake; whether it was the last."""
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            self._take_encrypted(0)
            self._say_why()
            raise HandshakeFailed(handshake_text(error, self._peer)) from error
        return True

    def _say_why(self) -> None:
        """What TLS itself has to say to the broker; if it does not take it, so be it."""
        try:
            self._write(0)
        except ConnectionFailed:
            self._encrypted.clear()

    # Sending -----------------------------------------------------------------------------------

    def send(self, buffers: Sequence[memoryview], *, patient: bool = True) -> int:
        """See ``Transport.send``. What was not taken must come again at the beginning of the next
        call: it may have been encrypted already."""
        with self._one_thread:
            if self._failed is not None:
                raise self._failed
            try:
                self._send(buffers, PATIENCE_MS if patient else 0)
            except ConnectionFailed as error:
                self._failed = self._why_ended(error)
                if not self._taken:
                    raise self._failed from error
                # What was taken must be known first.
            taken, self._taken = self._taken, 0
            return taken

    def _send(self, buffers: Sequence[memoryview], patience: int) -> None:
        ahead = self._taken + sum(piece.plain - piece.reported for piece in self._encrypted)
        self._write(patience)
        pieces = _pieces(buffers, ahead)
        while not self._encrypted:  # else the socket is full
            piece = next(pieces, None)
            if piece is None:
                return
            self._encrypt(piece)
            self._write(patience)

    def _encrypt(self, piece: memoryview | bytes) -> None:
        try:
            # OpenSSL lets the GIL go, as for a write.
            self.tls.write(piece)
        except ssl.SSLError as error:
            raise ConnectionFailed(later_text(error, self._peer)) from error
        self._take_encrypted(len(piece))

    def _take_encrypted(self, plain: int) -> None:
        if self._outgoing.pending:
            self._encrypted.append(_Encrypted(self._outgoing.read(), plain))

    def _write(self, patience: int) -> None:
        """Give the socket what it takes."""
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
        # All that OpenSSL has is taken: of what it keeps the selector does not know.
        with self._one_thread:
            if self._failed is not None:
                raise self._failed
            got = 0
            try:
                while got < len(into):
                    count = self._decrypt(into[got:])
                    if count is not None:
                        got += count
                        self._heard = True
                    elif not self._fill():
                        break
            except ConnectionFailed as error:
                self._failed = self._ended(error)
                if not got:
                    raise self._failed from error
                # First what came before.
            self._take_encrypted(0)
            # Only words of TLS's own, never a piece of the caller's:
            #
            # 1. a piece with the requests A and B is written in part; A has been begun;
            # 2. an answer comes, the rest of the piece is written here, and nobody is told yet;
            # 3. the connection is lost in the same turn: B would count as never written.
            if self._failed is None and not any(piece.plain for piece in self._encrypted):
                self._say_why()
            return got

    def _decrypt(self, into: memoryview) -> int | None:
        """None: a record is not complete yet."""
        try:
            # The stubs know only that it returns bytes; into a buffer it returns their number.
            count: Any = self.tls.read(len(into), into)
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLError as error:
            raise ConnectionFailed(later_text(error, self._peer)) from error
        if count == 0:
            raise HungUp(CLOSED)
        return int(count)

    def _fill(self) -> bool:
        """Give OpenSSL what has come; false if nothing has."""
        try:
            count = _kernel.read_into(self._socket.fileno(), self._room)
        except OSError as error:
            raise failure(error) from error
        if count is None:
            return False
        if count == 0:
            raise HungUp(CLOSED)
        self._incoming.write(self._room[:count])
        return True

    # The end -----------------------------------------------------------------------------------

    def _ended(self, error: ConnectionFailed) -> ConnectionFailed:
        """With TLS 1.3 a broker looks at a client's certificate when for the client the handshake
        is over, and may hang up before its complaint has gone out."""
        if self._heard or self.tls.version() != "TLSv1.3" or not isinstance(error, HungUp):
            return error
        return ConnectionFailed(self._peer.hung_up_behind_handshake(str(error)))

    def _why_ended(self, error: ConnectionFailed) -> ConnectionFailed:
        """A write has failed: what the broker said last tells more."""
        if not isinstance(error, HungUp):
            return error
        try:
            while self._fill():
                while self._decrypt(self._room) is not None:
                    pass
        except ConnectionFailed as said:
            return self._ended(said)
        return self._ended(error)


def _pieces(buffers: Sequence[memoryview], skip: int) -> Iterator[memoryview | bytes]:
    """The bytes of *buffers* behind the first *skip*, in pieces to be encrypted: not all of them,
    so that answers are read in between."""
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
