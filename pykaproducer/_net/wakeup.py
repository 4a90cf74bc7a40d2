"""Waking a thread that waits for I/O."""

from __future__ import annotations

import socket

import pykaproducer._kernel as _kernel
from pykaproducer._net.transport import mapped


class Wakeup:
    """A pair of sockets: :meth:`poke` from any thread makes :meth:`fileno` readable.

    Guarantees: after a ``poke`` the owner's next wait ends at once, however the calls interleave
    with ``drain``. Any number of pokes before one ``drain`` cost one system call.

    Relies on: one owner calling ``drain``, and doing so *before* it looks for work. ``drain``
    empties the socket first and clears the flag second (``_kernel.Poker``), because:

    1. a thread puts work into the owner's inbox and calls ``poke``, which sets the flag and sends a
       byte;
    2. the owner wakes and empties the socket;
    3. a second thread puts work into the inbox and calls ``poke``, which finds the flag set and
       returns;
    4. the owner clears the flag, looks into the inbox and finds the work of both.

    In the opposite order, a poke between the two steps would set the flag, and its byte would be
    discarded. The flag would stay set with nothing to read, and no later poke would wake the owner.
    In this order a set flag always has an unread byte. At worst there is one byte too many, which
    ends one wait without need.
    """

    def __init__(self) -> None:
        """Create the sockets. Raises ConnectionFailed if the system has no file descriptors."""
        with mapped():
            self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._poker = _kernel.Poker(self._writer.fileno())

    def fileno(self) -> int:
        """Return the descriptor that becomes readable."""
        return self._reader.fileno()

    def writer(self) -> int:
        """Return a descriptor; a byte written to it has the effect of ``poke(surely=True)``."""
        return self._writer.fileno()

    def poke(self, *, surely: bool = False) -> None:
        """Wake the owner. May be called from any thread, also after :meth:`close`.

        *surely*: ignore the flag and do not set it. For a user thread, which may be interrupted
        between setting the flag and sending the byte, while others rely on the flag. The interrupt
        may be a KeyboardInterrupt, or a signal handler that waits for the owner.
        """
        # No effect if the socket is full of pokes that were not drained, because then it is
        # readable, or if it is closed, because then no thread waits for it.
        self._poker.poke(surely=surely)

    def drain(self) -> None:
        """Reset after waking up. Called by the owner."""
        _kernel.drain(self._reader.fileno())
        self._poker.reset()

    def close(self) -> None:
        """Close both sockets, because the owner does not wait any more."""
        self._poker.close()
        self._reader.close()
        self._writer.close()
