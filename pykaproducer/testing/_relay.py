"""One connection through a :class:`~pykaproducer.testing.FaultProxy`: frames in, frames out.

Everything here runs in the proxy's thread; sockets never block. Data is split into Kafka's frames
(a length of four bytes, followed by as many bytes). Each frame is forwarded when it is complete and
due. So the proxy always knows which Produce requests are unanswered, and can end a connection
before the first byte of a request is forwarded.
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

#: Maximum length of a frame: Kafka's brokers accept no request of more than 100 MiB.
_MAX_FRAME = 104_857_600
#: Number of queued bytes in a direction above which reading pauses.
_ENOUGH = 4 * 1024 * 1024
_READ = 256 * 1024
#: A throttled direction sends what the rate allows in this time (seconds).
_SLICE = 0.02

#: The number of Produce requests.
PRODUCE = 0
#: First version of Produce requests with tagged fields and compact strings.
_FLEXIBLE = 9


class Cut(enum.Enum):
    """The point in the processing of a request at which its connection is cut."""

    #: The broker receives nothing of the request.
    BEFORE = "before"
    #: The broker receives the first half of it.
    WITHIN = "within"
    #: The broker receives it and responds, but the client never gets the response.
    AFTER = "after"


@dataclass(eq=False)
class ProxiedRequest:
    """A watched request that the proxy has received completely and that requires a response."""

    correlation_id: int
    #: Its size, including the length field.
    nbytes: int
    #: True once the last byte of the response was passed to the client's socket.
    answered: bool = False
    #: Its number in Kafka's protocol.
    api_key: int = PRODUCE


class Weather(NamedTuple):
    """Network conditions for all connections of the proxy."""

    #: Delay of each frame, in each direction (seconds).
    delay: float = 0.0
    #: Bytes per second for each connection and direction; None means no limit.
    rate: float | None = None
    #: Whether no data is forwarded in either direction.
    black_hole: bool = False


class Desk(Protocol):
    """The proxy as seen by its connections: it receives their events and decides about cuts."""

    weather: Weather
    #: The numbers of the requests that are told.
    watched: frozenset[int]

    def seen(self, request: ProxiedRequest) -> Cut | None:
        """Record a new watched request, and return where to cut it."""

    def cut_of(self, api_key: int) -> Cut | None:
        """Return where to cut another request."""

    def answered(self, request: ProxiedRequest) -> None: ...

    def altered(self, api_key: int, version: int, response: bytes) -> bytes:
        """Return what is forwarded instead of *response*, without its length."""

    def forget(self, requests: Iterator[ProxiedRequest]) -> None:
        """Drop requests that will not be answered because their connection has ended."""

    def was_cut(self, count: int) -> None:
        """Record that a connection was cut, with *count* requests for which :meth:`seen` asked."""


class _Piece(NamedTuple):
    """Data queued in a direction."""

    due: float
    data: bytes
    #: The request that this data answers.
    answers: ProxiedRequest | None = None
    #: Whether to cut the connection after the last byte is sent.
    then_cut: bool = False


@dataclass(eq=False)
class _Direction:
    """One direction of a connection, from *source* to *sink*."""

    source: socket.socket
    sink: socket.socket
    received: bytearray = field(default_factory=bytearray)
    waiting: deque[_Piece] = field(default_factory=deque)
    #: Number of bytes in *waiting*.
    queued: int = 0
    #: Number of bytes sent of the first piece.
    sent: int = 0
    #: The time from which a throttled direction may send again.
    free_at: float = 0.0
    #: The source has closed its sending side.
    ended: bool = False
    #: The sink is closed: received data is discarded.
    dead: bool = False

    def frames(self) -> Iterator[bytes]:
        """Yield complete frames; raise :class:`ValueError` for an invalid length."""
        while len(self.received) >= 4:
            (length,) = struct.unpack_from(">i", self.received)
            if not 4 <= length <= _MAX_FRAME:
                raise ValueError(f"invalid frame length: {length} bytes")
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
        """Return when the first piece may be sent, or None if there is none."""
        return max(self.waiting[0].due, self.free_at) if self.waiting else None


class ConnectionIsOver(Exception):
    """The connection has ended and can be removed."""

    def __init__(self, *, reset: bool) -> None:
        super().__init__()
        #: Whether to reset both sides instead of closing them in an orderly way.
        self.reset = reset


class Relay:
    """The two sides of a proxied connection: the client's, and the proxy's to the broker."""

    def __init__(self, desk: Desk, client: socket.socket, target: tuple[str, int]) -> None:
        self._desk = desk
        self._client = client
        self._broker = socket.socket(client.family)
        self._connected = False
        self._up = _Direction(client, self._broker)
        self._down = _Direction(self._broker, client)
        #: Unanswered watched requests by correlation id, and where to cut each. Others if they are
        #: to be cut.
        self._open: dict[int, tuple[ProxiedRequest, Cut | None]] = {}
        #: API and version of each request that is to be answered, by correlation id.
        self._apis: dict[int, tuple[int, int]] = {}
        for each in (client, self._broker):
            each.setblocking(False)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._refused = self._broker.connect_ex(target) not in (0, errno.EINPROGRESS)
        self._dropped = False

    def drop_silently(self) -> None:
        """Forward nothing any more, in either direction, without closing anything."""
        self._dropped = True
        self._forget_all()

    # Called by the loop ------------------------------------------------------------------------

    def interest(self, now: float) -> tuple[dict[socket.socket, int], float | None]:
        """Return the events to wait for on each socket, and when to call again without one."""
        events = {self._client: 0, self._broker: 0}
        if self._dropped:
            return {**events, self._client: selectors.EVENT_READ}, None
        if self._desk.weather.black_hole:
            return events, None
        if not self._connected:
            events[self._broker] = selectors.EVENT_WRITE
            return events, now if self._refused else None
        wake = None
        for direction in (self._up, self._down):
            if direction.wants_to_read():
                events[direction.source] |= selectors.EVENT_READ
            time = direction.next_time()
            if time is not None and time <= now:
                events[direction.sink] |= selectors.EVENT_WRITE
            elif time is not None:
                wake = time if wake is None else min(wake, time)
        return events, wake

    def work(self, ready: dict[socket.socket, int], now: float) -> None:
        """Process ready sockets; raise :class:`ConnectionIsOver` at the end of the connection."""
        if self._dropped:
            if ready.get(self._client):
                self._discard()
            return
        if self._desk.weather.black_hole:
            return
        if not self._connected:
            self._finish_connect(ready)
            return
        for direction in (self._up, self._down):
            if ready.get(direction.source, 0) & selectors.EVENT_READ:
                self._read(direction, now)
        for direction in (self._up, self._down):
            if ready.get(direction.sink, 0) & selectors.EVENT_WRITE:
                self._write(direction, now)
            if direction.ended and not direction.waiting:
                self._pass_on_the_end(direction)

    def close(self, *, reset: bool) -> None:
        """Close both sides immediately."""
        # First: a client that has seen the reset must not find its request unanswered.
        self._forget_all()
        for each in (self._client, self._broker):
            if reset:
                # With a linger time of 0 close() sends a reset.
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            each.close()

    # Internal steps ----------------------------------------------------------------------------

    def _forget_all(self) -> None:
        waiting = (piece.answers for piece in self._down.waiting if piece.answers is not None)
        self._desk.forget(waiting)
        self._desk.forget(request for request, _ in self._open.values())
        self._open.clear()

    def _discard(self) -> None:
        try:
            data = self._client.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            raise ConnectionIsOver(reset=False)

    def _finish_connect(self, ready: dict[socket.socket, int]) -> None:
        if self._refused or (
            ready.get(self._broker) and self._broker.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        ):
            raise ConnectionIsOver(reset=True)
        self._connected = bool(ready.get(self._broker))

    def _read(self, direction: _Direction, now: float) -> None:
        try:
            data = direction.source.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        direction.ended = not data
        direction.received += data
        if direction.ended and direction is self._up:
            # The client has closed its side. Its data is still forwarded.
            self._forget_all()
        take = self._request if direction is self._up else self._response
        try:
            for frame in direction.frames():
                take(frame, now + self._desk.weather.delay)
        except ValueError as error:
            # After an invalid frame the stream cannot be parsed any further.
            raise ConnectionIsOver(reset=True) from error

    def _request(self, frame: bytes, due: float) -> None:
        key, version, correlation_id = struct.unpack_from(">hhi", frame.ljust(12, b"\0"), 4)
        cut = None
        request = ProxiedRequest(correlation_id, len(frame), api_key=key)
        if key == PRODUCE and _acks(frame, version) == 0:
            self._up.put(_Piece(due, frame))  # it is not answered
            return
        self._apis[correlation_id] = key, version
        if key in self._desk.watched:
            cut = self._desk.seen(request)
            self._open[correlation_id] = request, cut
        else:
            cut = self._desk.cut_of(key)
            if cut is not None:
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
        if correlation_id in self._apis:
            changed = self._desk.altered(*self._apis.pop(correlation_id), frame[4:])
            frame = struct.pack(">i", len(changed)) + changed
        self._down.put(_Piece(due, frame, answers=request))

    def _write(self, direction: _Direction, now: float) -> None:
        rate = self._desk.weather.rate
        while (time := direction.next_time()) is not None and time <= now:
            piece = direction.waiting[0]
            end = len(piece.data) if rate is None else direction.sent + max(1, int(rate * _SLICE))
            try:
                count = direction.sink.send(memoryview(piece.data)[direction.sent : end])
            except BlockingIOError:
                return
            except OSError:
                if direction is self._down:
                    self._forget_all()
                direction.die()
                return
            direction.sent += count
            if rate is not None:
                direction.free_at = now + count / rate
            if direction.sent == len(piece.data):
                self._finished(direction, direction.waiting.popleft())

    def _finished(self, direction: _Direction, piece: _Piece) -> None:
        direction.queued -= len(piece.data)
        direction.sent = 0
        if piece.answers is not None:
            self._desk.answered(piece.answers)
        if piece.then_cut:
            self._cut()

    def _cut(self) -> NoReturn:
        """Cut the connection, and count the requests on it that were to be cut."""
        self._desk.was_cut(sum(cut is not None for _, cut in self._open.values()))
        raise ConnectionIsOver(reset=True)

    def _pass_on_the_end(self, direction: _Direction) -> None:
        """Forward the end of a direction; the end of the broker's ends the connection."""
        if direction is self._down:
            raise ConnectionIsOver(reset=False)
        if direction.dead:
            return
        direction.die()
        try:
            self._broker.shutdown(socket.SHUT_WR)
        except OSError:
            raise ConnectionIsOver(reset=False) from None


def _acks(frame: bytes, version: int) -> int:
    """Return the acks of a Produce request; raise :class:`ValueError` if it is malformed."""
    try:
        # The client id follows the length, key, version and correlation id.
        position = _skip_string(frame, 12)
        if version >= _FLEXIBLE:
            position = _skip_tags(frame, position)
            length, position = _varint(frame, position)
            position += max(0, length - 1)
        elif version >= 3:
            position = _skip_string(frame, position)
        (acks,) = struct.unpack_from(">h", frame, position)
    except (struct.error, IndexError) as error:
        raise ValueError("truncated Produce request") from error
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
    """Return an unsigned varint and the position after it."""
    value = shift = 0
    while True:
        byte = frame[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
