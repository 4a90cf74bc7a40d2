"""One connection through a :class:`~pykaproducer.testing.FaultProxy`: frames in, frames out.

Everything here runs in the proxy's thread; sockets never block. A *lane* is one direction. What a
lane reads is cut into Kafka's frames (a length of four bytes, then so many bytes); a frame goes on
when it is whole and due. So the proxy knows at each moment which Produce requests it has seen and
not answered, and can end a connection before the first byte of a request has gone on.
"""

from __future__ import annotations

import enum
import errno
import selectors
import socket
import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn, Protocol

#: A longer frame is garbage: Kafka's brokers take no request of more than 100 MiB.
_MAX_FRAME = 104_857_600
#: While so many bytes wait in a lane, no more are read.
_ENOUGH = 4 * 1024 * 1024
_READ = 256 * 1024
#: How much a throttled lane sends at a time: what the rate allows in so many seconds.
_SLICE = 0.02

_PRODUCE = 0
#: From this version on a Produce request has tagged fields and compact strings.
_FLEXIBLE = 9


class Cut(enum.Enum):
    """Where in the life of a Produce request its connection is cut."""

    #: The broker reads nothing of the request.
    BEFORE = "before"
    #: The broker reads the first half of it.
    WITHIN = "within"
    #: The broker reads it and answers, and the client never gets the answer.
    AFTER = "after"


@dataclass(eq=False)
class ProxiedRequest:
    """A Produce request that has come to the proxy whole and that asks for an answer."""

    correlation_id: int
    #: With its length.
    nbytes: int
    #: True once the last byte of the answer was given to the client's socket.
    answered: bool = False


class Weather(NamedTuple):
    """What the proxy does to everything that goes through."""

    #: Seconds that each frame waits, in each direction.
    delay: float = 0.0
    #: Bytes a second for each connection and direction; None: as fast as it goes.
    rate: float | None = None
    #: Nothing goes in, nothing comes out.
    black_hole: bool = False


class Desk(Protocol):
    """Whom a connection tells what happens and asks what to do."""

    weather: Weather

    def seen(self, request: ProxiedRequest) -> Cut | None:
        """A Produce request has come; what is to be done to it."""

    def answered(self, request: ProxiedRequest) -> None: ...

    def forget(self, requests: Iterator[ProxiedRequest]) -> None:
        """Their connection has ended: they will not be answered any more."""

    def was_cut(self, count: int) -> None:
        """A connection was cut, and *count* requests as :meth:`seen` had asked for."""


class _Piece(NamedTuple):
    """What waits in a lane."""

    due: float
    data: bytes
    #: The request that this piece answers.
    answers: ProxiedRequest | None = None
    #: Whether the connection is cut when the last byte is out.
    then_cut: bool = False


@dataclass(eq=False)
class _Lane:
    """One direction: from *source* to *sink*."""

    source: socket.socket
    sink: socket.socket
    received: bytearray = field(default_factory=bytearray)
    waiting: deque[_Piece] = field(default_factory=deque)
    #: Bytes in *waiting*.
    queued: int = 0
    #: How much of the first piece is out.
    sent: int = 0
    #: When a throttled lane may send again.
    free_at: float = 0.0
    #: The source sends no more.
    ended: bool = False
    #: The sink takes no more: what comes is thrown away.
    dead: bool = False

    def frames(self) -> Iterator[bytes]:
        """The frames that are whole; :class:`ValueError` at what can be none."""
        while len(self.received) >= 4:
            (length,) = struct.unpack_from(">i", self.received)
            if not 4 <= length <= _MAX_FRAME:
                raise ValueError(f"a frame of {length} bytes")
            if len(self.received) < 4 + length:
                return
            frame = bytes(self.received[: 4 + length])
            del self.received[: 4 + length]
            yield frame

    def put(self, piece: _Piece) -> None:
        if not self.dead:
            self.waiting.append(piece)
            self.queued += len(piece.data)

    def die(self) -> None:
        self.dead = True
        self.waiting.clear()
        self.queued = self.sent = 0

    def wants_to_read(self) -> bool:
        return not self.ended and self.queued < _ENOUGH

    def next_time(self) -> float | None:
        """When the first piece may go, None if there is none."""
        return max(self.waiting[0].due, self.free_at) if self.waiting else None


class ConnectionIsOver(Exception):
    """There is nothing left to be done for this connection."""

    def __init__(self, *, reset: bool) -> None:
        super().__init__()
        #: Whether both sides are to see a reset and not an orderly end.
        self.reset = reset


class Relay:
    """One client's connection and ours to the broker."""

    def __init__(self, desk: Desk, client: socket.socket, target: tuple[str, int]) -> None:
        self._desk = desk
        self._client = client
        self._broker = socket.socket(client.family)
        self._connected = False
        self._up = _Lane(client, self._broker)
        self._down = _Lane(self._broker, client)
        #: Produce requests without an answer, by correlation id, and what is to be done to them.
        self._open: dict[int, tuple[ProxiedRequest, Cut | None]] = {}
        for each in (client, self._broker):
            each.setblocking(False)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._refused = self._broker.connect_ex(target) not in (0, errno.EINPROGRESS)

    # For the loop ------------------------------------------------------------------------------

    def interest(self, now: float) -> tuple[dict[socket.socket, int], float | None]:
        """The events to wait for on each socket, and when to look again without one."""
        events = {self._client: 0, self._broker: 0}
        if self._desk.weather.black_hole:
            return events, None
        if not self._connected:
            events[self._broker] = selectors.EVENT_WRITE
            return events, now if self._refused else None
        wake = None
        for lane in (self._up, self._down):
            if lane.wants_to_read():
                events[lane.source] |= selectors.EVENT_READ
            time = lane.next_time()
            if time is not None and time <= now:
                events[lane.sink] |= selectors.EVENT_WRITE
            elif time is not None:
                wake = time if wake is None else min(wake, time)
        return events, wake

    def work(self, ready: dict[socket.socket, int], now: float) -> None:
        """Do what is possible; raises :class:`ConnectionIsOver` at the end of the connection."""
        if self._desk.weather.black_hole:
            return
        if not self._connected:
            self._finish_connect(ready)
            return
        for lane in (self._up, self._down):
            if ready.get(lane.source, 0) & selectors.EVENT_READ:
                self._read(lane, now)
        for lane in (self._up, self._down):
            if ready.get(lane.sink, 0) & selectors.EVENT_WRITE:
                self._write(lane, now)
            if lane.ended and not lane.waiting:
                self._pass_on_the_end(lane)

    def close(self, *, reset: bool) -> None:
        """End both sides, at once."""
        for each in (self._client, self._broker):
            if reset:
                # No orderly end: the other side finds its connection reset.
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            each.close()
        self._forget_all()

    # The steps ---------------------------------------------------------------------------------

    def _forget_all(self) -> None:
        waiting = (piece.answers for piece in self._down.waiting if piece.answers is not None)
        self._desk.forget(waiting)
        self._desk.forget(request for request, _ in self._open.values())
        self._open.clear()

    def _finish_connect(self, ready: dict[socket.socket, int]) -> None:
        if self._refused or (
            ready.get(self._broker) and self._broker.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        ):
            raise ConnectionIsOver(reset=True)
        self._connected = bool(ready.get(self._broker))

    def _read(self, lane: _Lane, now: float) -> None:
        try:
            data = lane.source.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        lane.ended = not data
        lane.received += data
        if lane.ended and lane is self._up:
            # The client has gone; what it has sent still goes on.
            self._forget_all()
        take = self._request if lane is self._up else self._response
        try:
            for frame in lane.frames():
                take(frame, now + self._desk.weather.delay)
        except ValueError as error:
            # Whoever sends this is not to be reached any more by frames.
            raise ConnectionIsOver(reset=True) from error

    def _request(self, frame: bytes, due: float) -> None:
        key, version, correlation_id = struct.unpack_from(">hhi", frame.ljust(12, b"\0"), 4)
        cut = None
        if key == _PRODUCE and _acks(frame, version) != 0:
            request = ProxiedRequest(correlation_id, len(frame))
            cut = self._desk.seen(request)
            self._open[correlation_id] = request, cut
        if cut is Cut.BEFORE:
            self._cut()
        if cut is Cut.WITHIN:
            frame = frame[: len(frame) // 2]
        self._up.put(_Piece(due, frame, then_cut=cut is Cut.WITHIN))

    def _response(self, frame: bytes, due: float) -> None:
        (correlation_id,) = struct.unpack_from(">i", frame, 4)
        request, cut = self._open.get(correlation_id, (None, None))
        if cut is Cut.AFTER:
            self._cut()
        self._open.pop(correlation_id, None)
        self._down.put(_Piece(due, frame, answers=request))

    def _write(self, lane: _Lane, now: float) -> None:
        rate = self._desk.weather.rate
        while (time := lane.next_time()) is not None and time <= now:
            piece = lane.waiting[0]
            end = len(piece.data) if rate is None else lane.sent + max(1, int(rate * _SLICE))
            try:
                count = lane.sink.send(memoryview(piece.data)[lane.sent : end])
            except BlockingIOError:
                return
            except OSError:
                if lane is self._down:
                    self._forget_all()
                lane.die()
                return
            lane.sent += count
            if rate is not None:
                lane.free_at = now + count / rate
            if lane.sent == len(piece.data):
                self._finished(lane, lane.waiting.popleft())

    def _finished(self, lane: _Lane, piece: _Piece) -> None:
        lane.queued -= len(piece.data)
        lane.sent = 0
        if piece.answers is not None:
            self._desk.answered(piece.answers)
        if piece.then_cut:
            self._cut()

    def _cut(self) -> NoReturn:
        """The connection ends, for all requests on it that were to be cut."""
        self._desk.was_cut(sum(cut is not None for _, cut in self._open.values()))
        raise ConnectionIsOver(reset=True)

    def _pass_on_the_end(self, lane: _Lane) -> None:
        """The client has ended: the broker may still answer. The broker has: that is all."""
        if lane is self._down:
            raise ConnectionIsOver(reset=False)
        if lane.dead:
            return
        lane.die()
        try:
            self._broker.shutdown(socket.SHUT_WR)
        except OSError:
            raise ConnectionIsOver(reset=False) from None


def _acks(frame: bytes, version: int) -> int:
    """The acks of a Produce request; :class:`ValueError` if it is none."""
    try:
        # After length, key, version and correlation id comes the client's identifier.
        position = _skip_string(frame, 12)
        if version >= _FLEXIBLE:
            position = _skip_tags(frame, position)
            length, position = _varint(frame, position)
            position += max(0, length - 1)
        elif version >= 3:
            position = _skip_string(frame, position)
        (acks,) = struct.unpack_from(">h", frame, position)
    except (struct.error, IndexError) as error:
        raise ValueError("a Produce request that ends too early") from error
    return int(acks)


def _skip_string(frame: bytes, position: int) -> int:
    (length,) = struct.unpack_from(">h", frame, position)
    return position + 2 + max(0, int(length))


def _skip_tags(frame: bytes, position: int) -> int:
    count, position = _varint(frame, position)
    for _ in range(count):
        _, position = _varint(frame, position)
        size, position = _varint(frame, position)
        position += size
    return position


def _varint(frame: bytes, position: int) -> tuple[int, int]:
    """An unsigned varint, and where it ends."""
    value = shift = 0
    while True:
        byte = frame[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
