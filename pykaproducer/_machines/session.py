"""The protocol state of one connection to a broker.

The machine is pure: it takes bytes and ``now``, and returns bytes and events. The socket is in
``_net.connection``. All transitions are in :data:`TRANSITIONS`; any other one raises and changes
nothing.

A broker answers requests in order. So each response belongs to the oldest unanswered request, or
the connection is broken; correlation ids are only compared, never looked up.

A SASL authentication may be valid for a limited time (KIP-368). Before that ends: (1) the session
takes no more requests, (2) those in flight are answered, (3) it authenticates again over the same
connection, (4) it takes requests again. So no request is lost or reordered.

A connection that was unused for a while may be dead, because a firewall or a load balancer drops
such connections silently. So before it is used again the session checks it with an ApiVersions
request, and takes other requests only after the answer. Nothing that matters is written to a dead
connection, and whether it was delivered is never in doubt.
"""

from __future__ import annotations

import enum
import math
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._machines.authentication import Authenticated, Authentication, SaslRequest
from pykaproducer._wire import WireError
from pykaproducer._wire.messages import (
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


#: The last version that any request can have.
LAST_VERSION: Final = 2**15 - 1
#: Re-authentication begins within this range of fractions of the lifetime. Each connection has a
#: different point in it, so that not all begin at once.
_REAUTH_RANGE: Final = (0.85, 0.95)
#: It begins at least this long before the end, or at half of the lifetime if that is later, so that
#: requests in flight are answered before the end (seconds).
_REAUTH_MARGIN: Final = 1.0
#: Brokers reject a re-authentication within a second (Kafka's KafkaChannel).
_REAUTH_LEAST: Final = 1.1
#: Connections that are lost without an answer before an older version of ApiVersions is tried.
_FAILURES: Final = 2
#: How long after the success of an older version the newest one is tried again (seconds).
_RETURN: Final = 600.0
_NONE_FAILED: Final = (0, math.inf)


class SessionState(enum.Enum):
    """The state of a connection."""

    #: There is no connection and no attempt to connect.
    CLOSED = enum.auto()
    #: The transport is being set up.
    CONNECTING = enum.auto()
    #: An ApiVersions request is in flight.
    NEGOTIATING = enum.auto()
    #: SASL, between NEGOTIATING and READY, and again before its lifetime ends.
    AUTHENTICATING = enum.auto()
    #: Requests may be sent.
    READY = enum.auto()
    #: The connection was unused, and an ApiVersions request that checks it is in flight.
    CHECKING = enum.auto()


class Move(enum.Enum):
    """The events that change the state of a connection."""

    OPEN = enum.auto()
    CONNECTED = enum.auto()
    NEGOTIATED = enum.auto()
    AUTHENTICATE = enum.auto()
    AUTHENTICATED = enum.auto()
    CHECK = enum.auto()
    CHECKED = enum.auto()
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
    _S.READY: {
        _M.AUTHENTICATE: _S.AUTHENTICATING,
        _M.CHECK: _S.CHECKING,
        _M.LOSE: _S.CLOSED,
    },
    _S.CHECKING: {_M.CHECKED: _S.READY, _M.LOSE: _S.CLOSED},
}


class IllegalMove(AssertionError):
    """A move that is not in :data:`TRANSITIONS`, which indicates a bug in the caller."""


class NoCommonVersion(WireError):
    """The broker does not support a request in any version in which it may be sent."""


@dataclass(eq=False, slots=True)
class Request:
    """A request, from being queued to being answered."""

    api_key: int
    #: (version, correlation id) -> the framed request. Called just before it is written.
    encode: Callable[[int, int], Sequence[Buffer]]
    #: When the connection is considered lost unless the request has been answered (or written, if
    #: no response is expected). It is later if other requests precede this one on the connection.
    deadline: float
    #: False for Produce with ``acks=0``.
    expects_answer: bool = True
    #: An object of the owner's choice, to identify the request in events.
    tag: Any = None
    #: The version in which it was encoded; -1: not encoded yet.
    version: int = -1
    correlation_id: int = -1
    #: How long it may take after the requests before it (seconds). Set when it is submitted.
    timeout: float = 0.0
    #: When its last byte was given to the socket; None: not yet.
    written: float | None = None
    #: The first and last version in which it may be sent, within those that this client supports. A
    #: version may mean more than another layout: from version 12 on, Produce adds its partitions to
    #: the open transaction (KIP-890).
    at_least: int = 0
    at_most: int = LAST_VERSION


class Ready(NamedTuple):
    """The connection may be used."""

    #: The versions that both sides support, by api key.
    versions: dict[int, int]
    #: The finalized features of the cluster, see :attr:`Session.features`.
    features: Mapping[str, int] = MappingProxyType({})


class Checked:
    """The broker has answered the check of the unused connection, which may be used again."""


class Answered(NamedTuple):
    """The response to *request*."""

    request: Request
    #: The version of the request and the response.
    version: int
    #: The bytes after the correlation id.
    payload: bytes


_Handler = Callable[[bytes, float], bytes | Ready | Checked | None]


class Session:
    """The protocol state of a single connection.

    *authenticator* makes an authentication; None: SASL is not used. *random* (0 to 1) determines
    when to authenticate again, within the last part of the lifetime. *ladder*: the versions of
    ApiVersions to try, see :class:`VersionLadders`.
    """

    def __init__(
        self,
        client_id: str | None,
        authenticator: Callable[[], Authentication] | None = None,
        random: float = 0.0,
        ladder: Sequence[int] = API_VERSIONS_LADDER,
    ) -> None:
        self.client_id = client_id
        self.state = SessionState.CLOSED
        self.versions: dict[int, int] = {}
        #: The finalized level of each feature of the cluster (KIP-584), as of the negotiation of
        #: this connection; empty if the broker does not know them (before Kafka 2.7, for example).
        self.features: Mapping[str, int] = {}
        #: Of these; -1: unknown.
        self.finalized_features_epoch = -1
        #: The owner's requests that were encoded and not answered, oldest first.
        self.unanswered: deque[Request] = deque()
        self._correlation_id = -1
        # A request that expects no answer was encoded.
        self._one_way = False
        #: No requests are taken, because a re-authentication is due or in progress.
        self.reauth_pending = False
        #: When that is due (monotonic seconds); None: never.
        self.reauth_at: float | None = None
        #: The next frame has no correlation id.
        self.raw = False
        self._authenticator = authenticator
        self._random = random
        self._authentication: Authentication | None = None
        # The session's own request in flight: its correlation id, and the handler of its response.
        self._asked: tuple[int, _Handler] | None = None
        self._ranges: dict[int, tuple[int, int]] = {}
        #: The versions of ApiVersions that it tries.
        self.ladder = tuple(ladder)
        # Those that are still to be tried, and the last one tried.
        self._ladder = list(ladder)
        self._tried = 0

    def move(self, move: Move) -> None:
        """Go to the next state; raise :class:`IllegalMove`, without effect, if there is none."""
        try:
            self.state = TRANSITIONS[self.state][move]
        except KeyError:
            raise IllegalMove(f"{move.name} in state {self.state.name}") from None

    # Negotiation of versions ---------------------------------------------------------------------

    def connected(self) -> bytes:
        """Return the bytes to send first, after the transport was established."""
        self.move(Move.CONNECTED)
        return self._ask_for_versions()

    @property
    def tried(self) -> str:
        """The versions of ApiVersions that were tried at this address, the last one last."""
        versions = API_VERSIONS_LADDER[: API_VERSIONS_LADDER.index(self._tried) + 1]
        return ", ".join(map(str, versions))

    def _ask_for_versions(self) -> bytes:
        version = self._tried = self._ladder.pop(0)
        correlation_id = self._next_correlation_id()
        self._asked = correlation_id, lambda payload, _: self._negotiate(version, payload)
        return api_versions_request(version, correlation_id, self.client_id)

    def _negotiate(self, version: int, payload: bytes) -> bytes | Ready:
        answer = self._final_answer(version, payload)
        if answer is None:
            return self._ask_for_versions()
        if answer.error_code != ErrorCode.NONE:
            raise WireError(f"it answered ApiVersions with error code {answer.error_code}")
        self.versions = common_versions(answer.ranges)
        self._ranges = answer.ranges
        self.features = answer.features
        self.finalized_features_epoch = answer.finalized_features_epoch
        if self._authenticator is not None:
            return self._authenticate(self._authenticator)
        self.move(Move.NEGOTIATED)
        return Ready(self.versions, self.features)

    def _final_answer(self, version: int, payload: bytes) -> ApiVersionsAnswer | None:
        """Return the decoded response, None if the next version is to be tried.

        Brokers reject an unknown version in different ways (an error code, or bytes that cannot be
        decoded). So a bad response is final only for the last version tried.
        """
        try:
            answer = decode_api_versions(version, payload)
        except WireError:
            if self._ladder:
                return None
            raise
        return None if self._ladder and answer.error_code != ErrorCode.NONE else answer

    # Connection check ----------------------------------------------------------------------------

    def check(self) -> bytes:
        """Return the request that checks the connection; no other request may be in flight."""
        if not self.takes_requests or self.unanswered:
            raise IllegalMove("a connection check with requests in flight")
        self.move(Move.CHECK)
        correlation_id = self._next_correlation_id()
        self._asked = correlation_id, self._checked
        return api_versions_request(self._tried, correlation_id, self.client_id)

    def _checked(self, payload: bytes, now: float) -> Checked:
        # Any answer will do.
        self.move(Move.CHECKED)
        return Checked()

    # Authentication ------------------------------------------------------------------------------

    @property
    def takes_requests(self) -> bool:
        """Whether :meth:`encode` may be called."""
        return self.state is SessionState.READY and not self.reauth_pending

    @property
    def reauth_due(self) -> float:
        """When to call :meth:`rest`; infinity: never."""
        return math.inf if self.reauth_at is None or self.reauth_pending else self.reauth_at

    def rest(self) -> None:
        """Take no more requests, because a re-authentication is due."""
        self.reauth_pending = True

    def authenticate_again(self) -> bytes:
        """Begin the re-authentication, with no request in flight; return the bytes to send."""
        if not self.reauth_pending or self.unanswered or self._authenticator is None:
            raise IllegalMove("re-authentication with requests in flight")
        return self._authenticate(self._authenticator)

    def _authenticate(self, authenticator: Callable[[], Authentication]) -> bytes:
        self.move(Move.AUTHENTICATE)
        self._authentication = authenticator()
        return self._encode_sasl(self._authentication.begin(self._ranges))

    def _encode_sasl(self, request: SaslRequest) -> bytes:
        self.raw = request.raw
        number = -1 if request.raw else self._next_correlation_id()
        self._asked = number, self._authentication_answered
        return request.encode(number)

    def _authentication_answered(self, payload: bytes, now: float) -> bytes | Ready | None:
        assert self._authentication is not None
        next_step = self._authentication.answered(payload)
        if isinstance(next_step, SaslRequest):
            return self._encode_sasl(next_step)
        self._authentication = None
        self.raw = False
        self.reauth_at = self._time_of_reauth(next_step, now)
        self.move(Move.AUTHENTICATED)
        if self.reauth_pending:
            self.reauth_pending = False
            return None
        return Ready(self.versions, self.features)

    def _time_of_reauth(self, done: Authenticated, now: float) -> float | None:
        if not done.lifetime_ms:
            return None
        lifetime = done.lifetime_ms / 1000
        first, last = _REAUTH_RANGE
        fraction = first + (last - first) * self._random
        begins = min(fraction * lifetime, max(lifetime / 2, lifetime - _REAUTH_MARGIN))
        return now + max(begins, _REAUTH_LEAST)

    # Requests and responses ----------------------------------------------------------------------

    def encode(self, request: Request) -> Sequence[Buffer]:
        """Return the bytes of *request*, which counts as sent from now on."""
        if not self.takes_requests:
            reauth_pending = ", re-authentication pending" if self.reauth_pending else ""
            raise IllegalMove(f"a request in state {self.state.name}{reauth_pending}")
        version = self._version(request.api_key, request.at_least, request.at_most)
        if version is None:
            raise NoCommonVersion(
                self._no_common_version(request.api_key, request.at_least, request.at_most)
            )
        request.version = version
        request.correlation_id = self._next_correlation_id()
        buffers = request.encode(version, request.correlation_id)
        if request.expects_answer:
            self.unanswered.append(request)
        else:
            self._one_way = True
        return buffers

    def withdraw(self, request: Request) -> None:
        """Undo the last :meth:`encode`, of *request*, as its bytes will not be sent."""
        if request.expects_answer:
            last = self.unanswered.pop()
            assert last is request

    def refuses(self, api_key: int, at_least: int = 0, at_most: int = LAST_VERSION) -> str | None:
        """Return why there is no common version of these requests, None if there is one.

        *at_least*, *at_most*: the versions in which they may be sent.
        """
        if self._version(api_key, at_least, at_most) is not None:
            return None
        return self._no_common_version(api_key, at_least, at_most)

    def _version(self, api_key: int, at_least: int, at_most: int) -> int | None:
        """Return the highest common version within the bounds, None if there is none."""
        version = self.versions.get(api_key)
        if version is None or at_least <= version <= at_most:
            return version
        first = max(at_least, VERSIONS[api_key][0], self._ranges[api_key][0])
        return at_most if first <= at_most < version else None

    def received(self, frame: bytes, now: float) -> bytes | Ready | Checked | Answered | None:
        """Handle a response; return bytes to send, an event, or None.

        The request of an ``Answered`` is still the first of :attr:`unanswered`. The owner removes
        it when nothing can prevent that the event is reported, so that it cannot be lost.

        Raises:
            WireError: the response is malformed or unexpected.
            AuthenticationFailed: the broker rejected the authentication.
        """
        if self._one_way and not self.raw and self._is_unwanted(_number(frame)):
            return None
        if self._asked is not None:
            due, handler = self._asked
            if self.raw:
                self._asked = None
                return handler(frame, now)
            _check(_number(frame), due)
            self._asked = None
            return handler(frame[4:], now)
        correlation_id = _number(frame)
        if not self.unanswered:
            raise WireError(f"unexpected response (to request {correlation_id}), without a request")
        request = self.unanswered[0]
        _check(correlation_id, request.correlation_id)
        return Answered(request, request.version, frame[4:])

    def _is_unwanted(self, correlation_id: int) -> bool:
        """Return whether it is of a request that expects no answer, but gets one all the same.

        Azure Event Hubs, for example, answers Produce requests with ``acks=0``.
        """
        due = -1
        if self._asked is not None:
            due = self._asked[0]
        elif self.unanswered:
            due = self.unanswered[0].correlation_id
        return correlation_id != due and 0 <= correlation_id <= self._correlation_id

    def _next_correlation_id(self) -> int:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFF_FFFF
        return self._correlation_id

    def _no_common_version(self, api_key: int, at_least: int, at_most: int) -> str:
        first, last = VERSIONS[api_key]
        name = ApiKey(api_key).name
        if api_key not in self._ranges:
            # Every broker supports Metadata requests.
            hint = "; is it a KRaft controller? Name a broker's listener instead"
            is_broker = ApiKey.METADATA in self._ranges
            return f"it does not support {name} requests{'' if is_broker else hint}"
        theirs = _span(*self._ranges[api_key])
        ours = _span(max(first, at_least), min(last, at_most))
        bounded = first < at_least or at_most < last
        who = "this request requires" if bounded else "this client sends"
        return f"it supports {name} requests of {theirs}, {who} {ours}"


class VersionLadders:
    """The versions of ApiVersions that connections try, by address of the broker.

    Azure Event Hubs, for example, resets a connection that asks in a version it does not know, so
    its answer never says which ones it knows. Therefore, after the second connection that was lost
    without an answer, the next one begins with the next version. The losses may have had another
    cause, so some time after a success the newest version is tried again. One more failure is then
    sufficient.

    Connections of several threads share it without a lock. At worst, a failure is not counted.
    """

    def __init__(self) -> None:
        # Failures, and when to try the newest version again (monotonic seconds). Addresses at which
        # nothing has failed since the newest version was answered are not in it.
        self._failures: dict[tuple[str, int], tuple[int, float]] = {}

    def versions(self, address: tuple[str, int], now: float) -> tuple[int, ...]:
        """Return the versions that the next connection to *address* tries in turn."""
        failures, until = self._failures.get(address, _NONE_FAILED)
        if now >= until:
            failures = _FAILURES - 1
            self._failures[address] = failures, math.inf
        return API_VERSIONS_LADDER[min(failures // _FAILURES, len(API_VERSIONS_LADDER) - 1) :]

    def failed(self, address: tuple[str, int], versions: tuple[int, ...]) -> None:
        """Record that a connection that tried *versions* was lost without an answer."""
        # Connections that begin at the same time must not skip a version together.
        if versions == self.versions(address, -math.inf):
            failures, until = self._failures.get(address, _NONE_FAILED)
            self._failures[address] = failures + 1, until

    def succeeded(self, address: tuple[str, int], now: float) -> None:
        """Record that a connection to *address* was answered."""
        failures, until = self._failures.get(address, _NONE_FAILED)
        if failures < _FAILURES:
            self._failures.pop(address, None)
        else:
            failures -= failures % _FAILURES
            self._failures[address] = failures, min(until, now + _RETURN)


def _span(first: int, last: int) -> str:
    return f"version {first}" if first == last else f"versions {first} to {last}"


_correlation_id = struct.Struct(">i").unpack_from


def _number(frame: bytes) -> int:
    (correlation_id,) = _correlation_id(frame)
    return int(correlation_id)


def _check(correlation_id: int, due: int) -> None:
    if correlation_id != due:
        raise WireError(f"a response to request {correlation_id} when {due} was due")
