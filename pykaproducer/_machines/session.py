"""One connection to a broker: who said what, and what may be said next.

Pure: bytes and ``now`` come in, bytes and events go out; the socket is ``_net.connection``'s. All
transitions are in :data:`TRANSITIONS`; one that is not there raises and changes nothing.

A broker answers in the order of the requests, so a response belongs to the oldest unanswered
request or the connection is broken; nothing is looked up by correlation id.
"""

from __future__ import annotations

import enum
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pykaproducer._wire import WireError
from pykaproducer._wire.error_codes import ErrorCode
from pykaproducer._wire.kafka_python import (
    API_VERSIONS_LADDER,
    VERSIONS,
    ApiKey,
    ApiVersionsAnswer,
    api_versions_request,
    common_versions,
    decode_api_versions,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer


class SessionState(enum.Enum):
    """Where a connection stands."""

    #: Nothing is there, nothing is under way.
    CLOSED = enum.auto()
    #: The transport is being set up.
    CONNECTING = enum.auto()
    #: ApiVersions is asked for.
    NEGOTIATING = enum.auto()
    #: SASL: an exchange between NEGOTIATING and READY.
    AUTHENTICATING = enum.auto()
    #: Requests may be sent.
    READY = enum.auto()


class Move(enum.Enum):
    """What moves a connection from state to state."""

    OPEN = enum.auto()
    CONNECTED = enum.auto()
    NEGOTIATED = enum.auto()
    AUTHENTICATE = enum.auto()
    AUTHENTICATED = enum.auto()
    LOSE = enum.auto()


_S, _M = SessionState, Move

TRANSITIONS: dict[SessionState, dict[Move, SessionState]] = {
    _S.CLOSED: {_M.OPEN: _S.CONNECTING},
    _S.CONNECTING: {_M.CONNECTED: _S.NEGOTIATING, _M.LOSE: _S.CLOSED},
    _S.NEGOTIATING: {
        _M.NEGOTIATED: _S.READY,
        _M.AUTHENTICATE: _S.AUTHENTICATING,
        _M.LOSE: _S.CLOSED,
    },
    _S.AUTHENTICATING: {_M.AUTHENTICATED: _S.READY, _M.LOSE: _S.CLOSED},
    _S.READY: {_M.LOSE: _S.CLOSED},
}


class IllegalMove(AssertionError):
    """A move that :data:`TRANSITIONS` does not have: a bug of the caller."""


class NoCommonVersion(WireError):
    """The broker does not take a request in any version that this client sends."""


@dataclass(eq=False, slots=True)
class Request:
    """One request, from being queued to being answered."""

    api_key: int
    #: (version, correlation id) -> the framed request. Called just before it is written.
    encode: Callable[[int, int], Sequence[Buffer]]
    #: When it must be answered (or written, if no answer is expected), or the connection is lost.
    deadline: float
    #: False for Produce with ``acks=0``.
    expects_answer: bool = True
    #: Whatever the owner wants to find again in the events.
    tag: Any = None
    #: The version it was encoded in, once it was.
    version: int = -1
    correlation_id: int = -1


@dataclass(frozen=True, slots=True)
class Ready:
    """The connection may be used. The versions that both sides speak, by api key."""

    versions: dict[int, int]


@dataclass(frozen=True, slots=True)
class Answered:
    """The response to *request*."""

    request: Request
    #: The version that request and response are of.
    version: int
    #: What follows the correlation id.
    payload: bytes


class Session:
    """What is known of one connection. Made anew for every connection."""

    def __init__(self, client_id: str | None) -> None:
        self.client_id = client_id
        self.state = SessionState.CLOSED
        self.versions: dict[int, int] = {}
        #: The owner's requests that were encoded and not answered, oldest first.
        self.unanswered: deque[Request] = deque()
        self._correlation_id = -1
        # The handshake's own request: (its correlation id, its version).
        self._asked: tuple[int, int] | None = None
        self._ranges: dict[int, tuple[int, int]] = {}
        # What is left of the ladder of ApiVersions versions.
        self._ladder = list(API_VERSIONS_LADDER)

    def move(self, move: Move) -> None:
        """Go to the next state; :class:`IllegalMove`, and nothing happens, if there is none."""
        try:
            self.state = TRANSITIONS[self.state][move]
        except KeyError:
            raise IllegalMove(f"{move.name} in state {self.state.name}") from None

    # The handshake -------------------------------------------------------------------------

    def connected(self) -> bytes:
        """The transport stands: what to send first."""
        self.move(Move.CONNECTED)
        return self._ask_for_versions()

    def _ask_for_versions(self) -> bytes:
        version = self._ladder.pop(0)
        correlation_id = self._next_correlation_id()
        self._asked = correlation_id, version
        return api_versions_request(version, correlation_id, self.client_id)

    def _negotiate(self, version: int, payload: bytes) -> bytes | Ready:
        answer = self._sensible(version, payload)
        if answer is None:
            return self._ask_for_versions()
        if answer.error_code != ErrorCode.NONE:
            raise WireError(f"it answered ApiVersions with error code {answer.error_code}")
        self.versions = common_versions(answer.ranges)
        self._ranges = answer.ranges
        self.move(Move.NEGOTIATED)
        return Ready(self.versions)

    def _sensible(self, version: int, payload: bytes) -> ApiVersionsAnswer | None:
        """The answer; None if the next rung of the ladder is to be tried.

        A broker that does not know the version says so; some say it in bytes that cannot be
        decoded, or with a strange code. So whatever is no good answer is an answer only when it is
        the last.
        """
        try:
            answer = decode_api_versions(version, payload)
        except WireError:
            if self._ladder:
                return None
            raise
        return None if self._ladder and answer.error_code != ErrorCode.NONE else answer

    # Requests and responses ----------------------------------------------------------------

    def encode(self, request: Request) -> Sequence[Buffer]:
        """The bytes of *request*, which counts as sent from now on."""
        if self.state is not SessionState.READY:
            raise IllegalMove(f"a request in state {self.state.name}")
        version = self.versions.get(request.api_key)
        if version is None:
            raise NoCommonVersion(self._no_common_version(request.api_key))
        request.version = version
        request.correlation_id = self._next_correlation_id()
        buffers = request.encode(version, request.correlation_id)
        if request.expects_answer:
            self.unanswered.append(request)
        return buffers

    def received(self, frame: bytes) -> bytes | Ready | Answered:
        """A response has come: bytes to send, or an event. :class:`WireError` if it is wrong."""
        (correlation_id,) = _correlation_id(frame)
        if self._asked is not None:
            due, version = self._asked
            _check(correlation_id, due)
            self._asked = None
            return self._negotiate(version, frame[4:])
        if not self.unanswered:
            raise WireError(f"a response (to request {correlation_id}) that nobody asked for")
        request = self.unanswered[0]
        _check(correlation_id, request.correlation_id)
        self.unanswered.popleft()
        return Answered(request, request.version, frame[4:])

    def _next_correlation_id(self) -> int:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFF_FFFF
        return self._correlation_id

    def _no_common_version(self, api_key: int) -> str:
        ours = "{} to {}".format(*VERSIONS[api_key])
        name = ApiKey(api_key).name
        if api_key not in self._ranges:
            return f"it does not take {name} requests"
        theirs = "{} to {}".format(*self._ranges[api_key])
        return f"it takes {name} requests of versions {theirs}, this client sends {ours}"


_correlation_id = struct.Struct(">i").unpack_from


def _check(correlation_id: int, due: int) -> None:
    if correlation_id != due:
        raise WireError(f"a response to request {correlation_id} when {due} was due")
