"""TLS over a non-blocking socket.

OpenSSL works on memory buffers here and never touches the socket. This has three effects:

- A whole piece is encrypted in one call, without the GIL, and written in another (``write.pxi``).
- An OpenSSL write is never incomplete. With its own socket it could be, and would then have to be
  repeated with exactly the same bytes.
- After the handshake, only ``TlsStream.send``, ``read`` and ``receive`` send anything to the
  broker. Closing the connection sends nothing, so a forked child that closes its copy of the socket
  cannot end the parent's session. Truncation is detected without a TLS shutdown, as Kafka's frames
  have lengths.

The handshake and the error texts are here. ``TlsStream`` (``_kernel_parts/tls.pxi``) does the rest,
also for callers.
"""

from __future__ import annotations

import selectors
import socket
import ssl
from collections.abc import Sequence
from typing import Any

from pykaproducer._kernel import TlsStream
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


class TlsTransport:
    """A connection with TLS, over a non-blocking socket that has begun to connect."""

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
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        try:
            #: The OpenSSL object; public for ``SecureNetwork.close_inherited``.
            self.tls = context.wrap_bio(incoming, outgoing, server_hostname=peer.certified_name)
        except (ssl.SSLError, ValueError) as error:  # an invalid host name
            raise ConnectionFailed(
                f"TLS is impossible with the host name {peer.host!r}: {error}"
            ) from error
        tls: Any = self.tls
        self.stream = TlsStream(
            tls._sslobj, incoming, outgoing, sock.fileno(), (ssl.SSLError, ssl.SSLWantReadError)
        )
        self._answered = False  # the broker has sent something, if only a TLS message
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
        self.stream.close()
        self._socket.close()

    # Connecting --------------------------------------------------------------------------------

    def finish_connect(self) -> int:
        if not self._connected:
            wanted = self._below.finish_connect()
            if wanted:
                return wanted
            self._connected = True
        return self._shake_hands()

    def _shake_hands(self) -> int:
        stream = self.stream
        while True:
            done = self._go_on()
            stream.take_encrypted()
            if stream.flush(0):
                if done:
                    return 0
                if stream.fill() == 0:
                    return selectors.EVENT_READ
            elif stream.failure is None:
                return selectors.EVENT_WRITE
            if (error := self._found()) is not None:
                if isinstance(error, HungUp):
                    text = self._peer.hung_up_in_handshake(str(error), heard=self._answered)
                    raise HandshakeFailed(text) from error
                raise error
            self._answered = True

    def _go_on(self) -> bool:
        """Perform one step of the handshake. Return whether it was the last."""
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            self.stream.take_encrypted()
            self.stream.write_own()
            raise HandshakeFailed(handshake_text(error, self._peer)) from error
        return True

    # Sending and receiving ---------------------------------------------------------------------

    def send(self, buffers: Sequence[memoryview], *, patient: bool = True) -> int:
        """See ``Transport.send``.

        Bytes that were not taken must be at the start of the next call, because they may have been
        encrypted already.
        """
        self._check()
        taken = self.stream.send(list(buffers), PATIENCE_MS if patient else 0)
        if not taken:
            self._check()
        return taken  # report these first, and a failure in the next call

    def receive(self, into: memoryview) -> int:
        self._check()
        got = self.stream.receive(into)
        if not got:
            self._check()
        return got

    def _check(self) -> None:
        """Raise the failure of the connection, if it has failed."""
        if self._failed is None and (error := self._found()) is not None:
            self._failed = self._why_ended(error)
        if self._failed is not None:
            raise self._failed

    # The end -----------------------------------------------------------------------------------

    def _found(self) -> ConnectionFailed | None:
        """Return the failure of the stream."""
        error = self.stream.failure
        if error is None:
            return None
        if isinstance(error, EOFError):
            found: ConnectionFailed = HungUp(CLOSED)
        elif isinstance(error, ssl.SSLError):
            found = ConnectionFailed(later_text(error, self._peer))
        else:
            found = failure(error)
        found.__cause__ = error
        return found

    def _why_ended(self, error: ConnectionFailed) -> ConnectionFailed:
        """Return the reason for a failure: the broker's last message is more informative."""
        if not isinstance(error, HungUp):
            return error
        first, self.stream.failure = self.stream.failure, None
        self.stream.discard()
        found = self._found() or error
        self.stream.failure = first
        return self._ended(found)

    def _ended(self, error: ConnectionFailed) -> ConnectionFailed:
        """Return *error* with a hint if the broker may have rejected the client certificate.

        With TLS 1.3 a broker checks the client certificate after the handshake is over for the
        client, and may close the connection before its alert is sent.
        """
        if self.stream.heard or self.tls.version() != "TLSv1.3" or not isinstance(error, HungUp):
            return error
        return ConnectionFailed(self._peer.hung_up_after_handshake(str(error)))
