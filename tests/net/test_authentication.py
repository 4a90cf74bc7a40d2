"""A connection that authenticates and re-authenticates with a small broker on a socket pair."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pykaproducer._machines.authentication import Authentication, Credentials
from pykaproducer._machines.session import SessionState
from pykaproducer._net.connection import Answered, Lost, Ready
from pykaproducer._net.transport import Endpoint, Network, PlainTransport, Transport
from pykaproducer._wire.mechanisms import OAuthBearer
from pykaproducer.config import Config
from pykaproducer.testing import FakeClock
from pykaproducer.testing._messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tests.net.helper import Talk

KINDS = {
    kind.API_KEY: kind
    for kind in (ApiVersionsRequest, MetadataRequest, SaslHandshakeRequest, SaslAuthenticateRequest)
}


class SaslBroker(Network):
    """A network with one broker that accepts any token but "expired", for *lifetime_ms*."""

    protocol = "SASL_PLAINTEXT"

    def __init__(
        self, provider: Callable[[], str], *, lifetime_ms: int = 0, old: bool = False
    ) -> None:
        super().__init__(Config())
        self.provider = provider
        self.lifetime_ms = lifetime_ms
        self.old = old
        self.sasl = True
        self.hangs_up_at: type | None = None
        self.challenge = b""
        self.came: list[str] = []
        self.held = threading.Event()
        self.held.set()
        self._threads: list[threading.Thread] = []

    def resolve(self, host: str, port: int) -> list[Endpoint]:
        return [Endpoint(socket.AF_UNIX, (host, port))]

    def connect(self, endpoint: Endpoint) -> Transport:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        self._threads.append(threading.Thread(target=self._serve, args=(ours,)))
        self._threads[-1].start()
        return PlainTransport(theirs)

    def authenticator(self, host: str) -> Callable[[], Authentication] | None:
        if not self.sasl:
            return None
        credentials = Credentials("OAUTHBEARER", lambda: OAuthBearer(self.provider), self.protocol)
        return lambda: Authentication(credentials, "tester")

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _serve(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(EOFError, OSError):
            bare = False
            while True:
                (length,) = struct.unpack(">i", self._read(sock, 4))
                frame = self._read(sock, length)
                if bare:
                    bare = False
                    self.came.append("token")
                    sock.sendall(struct.pack(">i", 0))
                    continue
                key, version = struct.unpack_from(">hh", frame)
                request = KINDS[key].decode(frame, version=version, header=True)
                self.came.append(KINDS[key].__name__.removesuffix("Request"))
                if self.hangs_up_at is KINDS[key]:
                    return
                answer = getattr(self, f"_{self.came[-1].lower()}")(request)
                bare = self.old and key == SaslHandshakeRequest.API_KEY
                answer.API_VERSION = version
                answer.with_header(correlation_id=request.header.correlation_id)
                sock.sendall(bytes(answer.encode(header=True, framed=True)))

    def _read(self, sock: socket.socket, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = sock.recv(count - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    def _apiversions(self, request: Any) -> Any:
        ranges = {3: (0, 12), 17: (0, 0 if self.old else 1), 36: (0, 2)}
        keys = [
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=first, max_version=last)
            for key, (first, last) in ranges.items()
        ]
        return ApiVersionsResponse(error_code=0, api_keys=keys, throttle_time_ms=0)

    def _saslhandshake(self, request: Any) -> Any:
        return SaslHandshakeResponse(error_code=0, mechanisms=["OAUTHBEARER"])

    def _saslauthenticate(self, request: Any) -> Any:
        refused = b"expired" in request.auth_bytes
        return SaslAuthenticateResponse(
            error_code=58 if refused else 0,
            error_message="the token is bad" if refused else None,
            auth_bytes=self.challenge,
            session_lifetime_ms=self.lifetime_ms,
        )

    def _metadata(self, request: Any) -> Any:
        self.held.wait()
        return MetadataResponse(
            throttle_time_ms=0, brokers=[], cluster_id="c", controller_id=0, topics=[]
        )


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@contextlib.contextmanager
def talking(broker: SaslBroker, clock: FakeClock) -> Iterator[Talk]:
    talk = Talk(broker, clock=clock)
    try:
        yield talk
    finally:
        broker.held.set()
        talk.close()
        broker.join()


def poll_once(talk: Talk) -> list[Any]:
    """Return the events until now."""
    return talk.connection.poll(talk.clock.monotonic())


IN = ["ApiVersions", "SaslHandshake", "SaslAuthenticate"]


def test_it_authenticates_before_it_is_ready(clock: FakeClock) -> None:
    broker = SaslBroker(lambda: "good")
    with talking(broker, clock) as talk:
        talk.ask_metadata()
        talk.open()
        talk.until(Answered)
    assert broker.came == [*IN, "Metadata"]


def test_an_old_broker_takes_a_bare_token(clock: FakeClock) -> None:
    broker = SaslBroker(lambda: "good", old=True)
    with talking(broker, clock) as talk:
        talk.ask_metadata()
        talk.open()
        talk.until(Answered)
        assert talk.connection._frames.least == 4
    assert broker.came == ["ApiVersions", "SaslHandshake", "token", "Metadata"]


def test_a_refusal_loses_the_connection_and_no_request(clock: FakeClock) -> None:
    broker = SaslBroker(lambda: "expired")
    with talking(broker, clock) as talk:
        request = talk.ask_metadata()
        talk.connection.open()
        lost = talk.until(Lost)
    assert lost == Lost("authentication failed with OAUTHBEARER: the token is bad", [request], [])
    assert broker.came == IN


def test_a_provider_that_takes_its_time_is_waited_for(clock: FakeClock) -> None:
    def slow() -> str:
        clock.jump(3600)
        return "good"

    with talking(SaslBroker(slow), clock) as talk:
        assert isinstance(talk.open(), Ready)


def test_a_broker_that_hangs_up_meanwhile(clock: FakeClock) -> None:
    broker = SaslBroker(lambda: "good")
    broker.hangs_up_at = SaslAuthenticateRequest
    with talking(broker, clock) as talk:
        talk.connection.open()
        assert "during authentication of this client" in talk.until(Lost).reason


def test_it_authenticates_again_when_it_is_time(clock: FakeClock) -> None:
    tokens = []

    def provider() -> str:
        tokens.append("good")
        return "good"

    broker = SaslBroker(provider, lifetime_ms=100_000)
    with talking(broker, clock) as talk:
        talk.open()
        deadline = talk.connection.next_deadline
        assert deadline is not None
        assert 85 <= deadline - clock.monotonic() <= 95
        clock.jump(96)
        assert poll_once(talk) == []
        talk.ask_metadata()
        talk.until(Answered)
        assert len(tokens) == 2
        assert talk.connection.next_deadline != deadline
    assert broker.came == [*IN, "SaslHandshake", "SaslAuthenticate", "Metadata"]


class SlowToAnswerBroker(SaslBroker):
    """Answers the first ApiVersions request at once, and others when it is not held."""

    def _apiversions(self, request: Any) -> Any:
        if "SaslAuthenticate" in self.came:
            self.held.wait()
        return super()._apiversions(request)


def test_it_authenticates_before_requests_that_waited_for_a_check(clock: FakeClock) -> None:
    """The session would have ended before they are written."""
    broker = SlowToAnswerBroker(lambda: "good", lifetime_ms=7_000)
    with talking(broker, clock) as talk:
        talk.open()
        broker.held.clear()
        clock.jump(5.5)
        talk.ask_metadata()
        assert poll_once(talk) == []
        assert talk.connection.state is SessionState.CHECKING
        clock.jump(1.8)
        broker.held.set()
        talk.until(Answered)
    expected = ["ApiVersions", "SaslHandshake", "SaslAuthenticate", "Metadata"]
    assert broker.came[-4:] == expected


def test_what_is_unanswered_is_answered_before_it_authenticates_again(clock: FakeClock) -> None:
    broker = SaslBroker(lambda: "good", lifetime_ms=100_000)
    with talking(broker, clock) as talk:
        talk.open()
        broker.held.clear()
        first = talk.ask_metadata()
        assert poll_once(talk) == []
        clock.jump(96)
        assert poll_once(talk) == []
        # Another thread does not write it either.
        assert talk.connection.has_to_go_on
        second = talk.ask_metadata()
        assert poll_once(talk) == []
        assert talk.connection.state is SessionState.READY
        broker.held.set()
        assert talk.until(Answered).request is first
        assert talk.until(Answered).request is second
        assert not talk.connection.has_to_go_on
    assert broker.came == [*IN, "Metadata", "SaslHandshake", "SaslAuthenticate", "Metadata"]


def test_a_refusal_the_second_time_gives_the_requests_back(clock: FakeClock) -> None:
    tokens = iter(["good", "expired"])
    broker = SaslBroker(lambda: next(tokens), lifetime_ms=100_000)
    with talking(broker, clock) as talk:
        talk.open()
        clock.jump(96)
        poll_once(talk)
        request = talk.ask_metadata()
        lost = talk.until(Lost)
    assert "the token is bad" in lost.reason
    assert (lost.unwritten, lost.unanswered) == ([request], [])


@pytest.mark.parametrize("again", [False, True])
def test_an_answer_of_more_than_a_mebibyte_while_it_authenticates(
    clock: FakeClock, again: bool
) -> None:
    broker = SaslBroker(lambda: "good", lifetime_ms=100_000)
    with talking(broker, clock) as talk:
        if again:
            talk.open()
            clock.jump(99)
        broker.challenge = bytes(1 << 20)
        if not again:
            talk.connection.open()
        assert "more than the 1048576 that are accepted before" in talk.until(Lost).reason


def test_a_client_without_sasl_is_asked_whether_it_is_needed(clock: FakeClock) -> None:
    broker = SaslBroker(lambda: "good")
    broker.sasl = False
    broker.protocol = "PLAINTEXT"
    broker.hangs_up_at = MetadataRequest
    with talking(broker, clock) as talk:
        talk.open()
        talk.ask_metadata()
        reason = talk.until(Lost).reason
        assert "does this listener require SASL? security_protocol is PLAINTEXT" in reason
        # Not if the broker has served this client before.
        broker.hangs_up_at = None
        talk.open()
        talk.ask_metadata()
        talk.until(Answered)
        broker.hangs_up_at = MetadataRequest
        talk.ask_metadata()
        assert "SASL" not in talk.until(Lost).reason
