"""Waking a thread that waits for I/O."""

from __future__ import annotations

import socket

from pykaproducer import _kernel
from pykaproducer._net.transport import mapped


class Wakeup:
    """A pair of sockets: :meth:`poke` from any thread makes :meth:`fileno` readable.

    Guarantees: after a ``poke`` the owner's next wait ends at once, however the calls interleave
    with ``drain``; many pokes before one ``drain`` cost one system call.

    Relies on: one owner calling ``drain``, and doing so *before* it looks at what it was woken
    for. Why ``drain`` empties the socket first and lowers the flag then:

    1. a thread puts work into the owner's inbox and calls ``poke``: the flag is up, a byte sent;
    2. the owner wakes and empties the socket;
    3. a second thread puts work into the inbox and calls ``poke``: the flag is up, it leaves;
    4. the owner lowers the flag, looks into the inbox and finds the work of both.

    The other way round a poke between the two would raise the flag and have its byte emptied
    along: the flag would stay up with nothing to read, and no later poke would wake anybody. As
    it is, a flag that is up is always followed by a byte that has not been read; the worst that
    can happen is a byte too many, which ends one wait for nothing.
    """

    def __init__(self) -> None:
        """Raises ConnectionFailed if the system refuses the two file descriptors."""
        with mapped():
            self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._poked = False

    def fileno(self) -> int:
        """What the owner waits for to become readable."""
        return self._reader.fileno()

    def poke(self, *, surely: bool = False) -> None:
        """Wake the owner. From any thread; also after :meth:`close`.

        *surely*: whatever the flag says, and without raising it. For a user's thread, which may be
        interrupted between the flag and the byte: by a KeyboardInterrupt, or by a signal handler
        that waits for what the owner does, while others rely on the flag.
        """
        if not surely:
            if self._poked:
                return
            self._poked = True
        # Nothing happens if it is full of pokes that nobody has drained: then it is readable. Or
        # if it is closed: nobody waits any more.
        _kernel.poke(self._writer)
        _kernel.stage_wanted()

    def drain(self) -> None:
        """The owner is awake."""
        _kernel.drain(self._reader.fileno())
        self._poked = False

    def close(self) -> None:
        """Nobody waits any more."""
        self._reader.close()
        self._writer.close()
