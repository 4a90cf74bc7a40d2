"""One connection to a broker: who said what, and what may be said next.

Pure: bytes and ``now`` come in, bytes and events go out; the socket is ``_net.connection``'s. All
transitions are in :data:`TRANSITIONS`; one that is not there raises and changes nothing.

A broker answers in the order of the requests, so a response belongs to the oldest unanswered
request or the connection is broken; nothing is looked up by correlation id.

What SASL has shown to the broker may be good for a while only (KIP-368). Before that has passed
the session rests: (1) no more requests are taken, (2) those under way are answered, (3) it
authenticates again over the same connection, (4) it takes requests again. So nothing is lost, and
nothing changes places.
"""

from __future__ import annotations

import enum
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pykaproducer._machines.authentication import Authenticated, Authentication, Say
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


#: What SASL has shown is shown again when this part of its time has passed (each connection has its
#: own point in it, so that they do not all come at once), and so many seconds before the end at the
#: least, if that is not more than half of it: what is under way must be answered before the end.
_AGAIN: Final = (0.85, 0.95)
_AHEAD: Final = 1.0
#: Brokers refuse whoever comes again within a second (Kafka's KafkaChannel).
_NOT_BEFORE: Final = 1.1


class SessionState(enum.Enum):
    """Where a connection stands."""

    #: Nothing is there, nothing is under way.
    CLOSED = enum.auto()
    #: The transport is being set up.
    CONNECTING = enum.auto()
    #: ApiVersions is asked for.
    NEGOTIATING = enum.auto()
    #: SASL: an exchange between NEGOTIATING and READY, and again when its time has passed.
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
    _S.READY: {_M.AUTHENTICATE: _S.AUTHENTICATING, _M.LOSE: _S.CLOSED},
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
    #: When the connection is considered lost unless the request has been answered (or written, if
    #: no answer is expected). It is later if other requests precede this one on the connection.
    deadline: float
    #: False for Produce with ``acks=0``.
    expects_answer: bool = True
    #: Whatever the owner wants to find again in the events.
    tag: Any = None
    #: The version it was encoded in, once it was.
    version: int = -1
    correlation_id: int = -1
    #: How long it may take (seconds), from when it is its turn. Set when it is submitted.
    timeout: float = 0.0
    #: When its last byte was given to the socket; None: not yet.
    written: float | None = None


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
    """What is known of one connection. Made anew for every connection.

    *sign_in* makes an authentication, if there is to be one; *random* (0 to 1) says when in the
    last part of its time it is done again.
    """

    def __init__(
        self,
        client_id: str | None,
        sign_in: Callable[[], Authentication] | None = None,
        random: float = 0.0,
    ) -> None:
        self.client_id = client_id
        self.state = SessionState.CLOSED
        self.versions: dict[int, int] = {}
        #: The owner's requests that were encoded and not answered, oldest first.
        self.unanswered: deque[Request] = deque()
        self._correlation_id = -1
        #: Requests are not taken for the moment: it authenticates again.
        self.resting = False
        #: When that is to begin; None: never.
        self.rests_at: float | None = None
        #: The next frame has no correlation id.
        self.bare = False
        self._sign_in = sign_in
        self._random = random
        self._authentication: Authentication | None = None
        # A request of our own: (its correlation id, what its answer is given to).
        self._asked: tuple[int, Callable[[bytes, float], bytes | Ready | None]] | None = None
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
        self._asked = correlation_id, lambda payload, _: self._negotiate(version, payload)
        return api_versions_request(version, correlation_id, self.client_id)

    def _negotiate(self, version: int, payload: bytes) -> bytes | Ready:
        answer = self._sensible(version, payload)
        if answer is None:
            return self._ask_for_versions()
        if answer.error_code != ErrorCode.NONE:
            raise WireError(f"it answered ApiVersions with error code {answer.error_code}")
        self.versions = common_versions(answer.ranges)
        self._ranges = answer.ranges
        if self._sign_in is not None:
            return self._authenticate(self._sign_in)
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

    # Authentication ------------------------------------------------------------------------

    @property
    def takes_requests(self) -> bool:
        """Whether :meth:`encode` may be called."""
        return self.state is SessionState.READY and not self.resting

    def rest(self) -> None:
        """Take no more requests: it is time to authenticate again."""
        self.resting = True

    def authenticate_again(self) -> bytes:
        """Nothing is under way any more: what to send."""
        if not self.resting or self.unanswered or self._sign_in is None:
            raise IllegalMove("authenticating again with requests under way")
        return self._authenticate(self._sign_in)

    def _authenticate(self, sign_in: Callable[[], Authentication]) -> bytes:
        self.move(Move.AUTHENTICATE)
        self._authentication = sign_in()
        return self._say(self._authentication.begin(self._ranges))

    def _say(self, say: Say) -> bytes:
        self.bare = say.bare
        number = -1 if say.bare else self._next_correlation_id()
        self._asked = number, self._authentication_answered
        return say.encode(number)

    def _authentication_answered(self, payload: bytes, now: float) -> bytes | Ready | None:
        assert self._authentication is not None
        next_step = self._authentication.answered(payload)
        if isinstance(next_step, Say):
            return self._say(next_step)
        self._authentication = None
        self.bare = False
        self.rests_at = self._time_of_rest(next_step, now)
        self.move(Move.AUTHENTICATED)
        if self.resting:
            self.resting = False
            return None
        return Ready(self.versions)

    def _time_of_rest(self, done: Authenticated, now: float) -> float | None:
        if not done.lifetime_ms:
            return None
        lifetime = done.lifetime_ms / 1000
        part = _AGAIN[0] + (_AGAIN[1] - _AGAIN[0]) * self._random
        begins = min(part * lifetime, max(lifetime / 2, lifetime - _AHEAD))
        return now + max(begins, _NOT_BEFORE)

    # Requests and responses ----------------------------------------------------------------

    def encode(self, request: Request) -> Sequence[Buffer]:
        """The bytes of *request*, which counts as sent from now on."""
        if not self.takes_requests:
            resting = ", resting" if self.resting else ""
            raise IllegalMove(f"a request in state {self.state.name}{resting}")
        version = self.versions.get(request.api_key)
        if version is None:
            raise NoCommonVersion(self._no_common_version(request.api_key))
        request.version = version
        request.correlation_id = self._next_correlation_id()
        buffers = request.encode(version, request.correlation_id)
        if request.expects_answer:
            self.unanswered.append(request)
        return buffers

    def refuses(self, api_key: int) -> str | None:
        """Return why both sides have no common version of these requests; None if they have."""
        return None if api_key in self.versions else self._no_common_version(api_key)

    def received(self, frame: bytes, now: float) -> bytes | Ready | Answered | None:
        """A response has come: bytes to send, an event, or neither.

        Raises:
            WireError: it is wrong.
            AuthenticationFailed: it is a refusal.
        """
        if self._asked is not None:
            due, go_on = self._asked
            if self.bare:
                self._asked = None
                return go_on(frame, now)
            _check(_number(frame), due)
            self._asked = None
            return go_on(frame[4:], now)
        correlation_id = _number(frame)
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


def _number(frame: bytes) -> int:
    (correlation_id,) = _correlation_id(frame)
    return int(correlation_id)


def _check(correlation_id: int, due: int) -> None:
    if correlation_id != due:
        raise WireError(f"a response to request {correlation_id} when {due} was due")
