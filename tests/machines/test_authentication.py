"""SASL on one connection, without sockets or a clock; a scripted broker answers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._machines.authentication import Authentication, AuthenticationFailed, Credentials
from pykaproducer._machines.session import (
    Answered,
    IllegalMove,
    Move,
    Ready,
    Request,
    Session,
    SessionState,
)
from pykaproducer._wire import WireError
from pykaproducer._wire.mechanism import Mechanism, MechanismError
from pykaproducer._wire.mechanisms import OAuthBearer, Plain, Scram
from pykaproducer._wire.messages import ApiKey
from pykaproducer._wire.token_bearer import TokenBearer
from pykaproducer.testing._messages import (
    ApiVersionsResponse,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

RANGES = {ApiKey.PRODUCE: (0, 12), 17: (0, 1), 36: (0, 2)}
USER = "alice"


class Talkative:
    """A mechanism that sends two messages and then accepts an empty challenge."""

    secrets: Sequence[str] = ("one",)

    def first(self) -> bytes:
        return b"one"

    def respond(self, challenge: bytes) -> bytes | None:
        return b"after " + challenge if challenge else None


class Broker:
    """The other end of a session."""

    def __init__(
        self,
        make: Callable[[], Mechanism] = Talkative,
        *,
        name: str = "SCRAM-SHA-512",
        ranges: dict[int, tuple[int, int]] = RANGES,
        random: float = 0.0,
    ) -> None:
        credentials = Credentials(name, make, "SASL_SSL", USER)
        self.session = Session("c", lambda: Authentication(credentials, "c"), random)
        self.session.move(Move.OPEN)
        self.ranges = ranges
        self.said: Any = self.session.connected()

    def asked(self, kind: Any) -> Any:
        """Return the request that the client sent last."""
        version = int.from_bytes(self.said[6:8], "big")
        request = kind.decode(self.said, version=version, header=True, framed=True)
        assert request.header.request_api_key == kind.API_KEY
        assert request.header.client_id == "c"
        return request

    def tell(self, response: Any, now: float = 0.0) -> Any:
        """Answer the last request and return the client's reaction."""
        number = int.from_bytes(self.said[8:12], "big")
        response.with_header(correlation_id=number)
        self.said = self.session.received(bytes(response.encode(header=True)), now)
        return self.said

    def versions(self) -> Any:
        keys = [
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=first, max_version=last)
            for key, (first, last) in self.ranges.items()
        ]
        return self.tell(
            ApiVersionsResponse(version=4, error_code=0, api_keys=keys, throttle_time_ms=0)
        )

    def handshake(self, code: int = 0, *mechanisms: str) -> Any:
        version = self.asked(SaslHandshakeRequest).API_VERSION
        return self.tell(
            SaslHandshakeResponse(version=version, error_code=code, mechanisms=list(mechanisms))
        )

    def authenticate(
        self,
        token: bytes = b"",
        *,
        code: int = 0,
        text: str | None = None,
        lifetime: int = 0,
        now=0.0,
    ) -> Any:
        version = self.asked(SaslAuthenticateRequest).API_VERSION
        return self.tell(
            SaslAuthenticateResponse(
                version=version,
                error_code=code,
                error_message=text,
                auth_bytes=token,
                session_lifetime_ms=lifetime,
            ),
            now,
        )

    def introduced(self) -> Broker:
        """Run the exchange up to the first message of the mechanism."""
        self.versions()
        self.handshake()
        return self

    def let_in(self, *, lifetime: int = 0, now: float = 0.0) -> Session:
        """Run the whole exchange until the connection is open."""
        self.introduced()
        self.authenticate(b"more")
        assert isinstance(self.authenticate(lifetime=lifetime, now=now), Ready)
        return self.session


def request() -> Request:
    return Request(ApiKey.PRODUCE, lambda version, number: [b"%d" % number], 0.0)


def refusal(answer: Callable[[], Any]) -> str:
    with pytest.raises(AuthenticationFailed) as caught:
        answer()
    return str(caught.value)


# The exchange -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2])
def test_it_is_ready_when_the_broker_is_content(version: int) -> None:
    broker = Broker(ranges={**RANGES, 36: (0, version)})
    broker.versions()
    assert broker.session.state is SessionState.AUTHENTICATING
    assert broker.asked(SaslHandshakeRequest).mechanism == "SCRAM-SHA-512"
    assert broker.asked(SaslHandshakeRequest).API_VERSION == 1
    broker.handshake(0, "SCRAM-SHA-512")
    assert broker.asked(SaslAuthenticateRequest).auth_bytes == b"one"
    assert version == broker.asked(SaslAuthenticateRequest).API_VERSION
    broker.authenticate(b"this")
    assert broker.asked(SaslAuthenticateRequest).auth_bytes == b"after this"
    with pytest.raises(IllegalMove):
        broker.session.encode(request())
    assert broker.authenticate() == Ready({ApiKey.PRODUCE: 12})
    assert broker.session.state is SessionState.READY
    broker.session.encode(request())


def test_an_old_broker_is_spoken_to_in_bare_frames() -> None:
    broker = Broker(
        lambda: Plain("u", "p"), name="PLAIN", ranges={**RANGES, 17: (0, 0), 36: (9, 9)}
    )
    broker.versions()
    assert broker.handshake() == b"\0\0\0\4\0u\0p"
    assert broker.session.raw
    assert isinstance(broker.session.received(b"", 0.0), Ready)
    assert not broker.session.raw
    assert broker.session.reauth_at is None
    sent = broker.session.encode(request())
    assert isinstance(broker.session.received(int(sent[0]).to_bytes(4, "big"), 0.0), Answered)


def test_an_old_broker_and_a_mechanism_that_it_speaks_otherwise() -> None:
    broker = Broker(name="GSSAPI", ranges={**RANGES, 17: (0, 0)})
    broker.versions()
    assert "the broker is too old for GSSAPI" in refusal(broker.handshake)


# Rejections -------------------------------------------------------------------------------------


def test_a_wrong_password() -> None:
    broker = Broker().introduced()
    code, text = ErrorCode.SASL_AUTHENTICATION_FAILED, "invalid credentials"
    assert refusal(lambda: broker.authenticate(code=code, text=text)) == (
        "authentication failed for user 'alice' with SCRAM-SHA-512: invalid credentials"
    )


def test_a_refusal_without_words_has_its_code() -> None:
    broker = Broker().introduced()
    text = refusal(lambda: broker.authenticate(code=ErrorCode.SASL_AUTHENTICATION_FAILED))
    assert text.endswith("SASL_AUTHENTICATION_FAILED (58)")


@pytest.mark.parametrize(
    ("code", "there", "text"),
    [
        (33, ("PLAIN", "GSSAPI"), "has not enabled SCRAM-SHA-512; it has: PLAIN, GSSAPI"),
        (33, ("x\nforged\x1b[31m",) * 99, "it has: x forged[31m, x forged[31m, x forged"),
        (33, (), "has not enabled SCRAM-SHA-512; it has: none"),
        (34, (), "does not ask for SASL; is security_protocol 'SASL_SSL' right?"),
        (31, (), "CLUSTER_AUTHORIZATION_FAILED (31)"),
    ],
)
def test_a_handshake_that_is_refused(code: int, there: tuple[str, ...], text: str) -> None:
    broker = Broker()
    broker.versions()
    found = refusal(lambda: broker.handshake(code, *there))
    assert text in found
    assert len(found) < 400


def test_a_refusal_whose_words_would_forge_the_log() -> None:
    broker = Broker().introduced()
    text = refusal(lambda: broker.authenticate(code=58, text="x\nforged\x1b[31m" + "y" * 32_000))
    assert ": x forged[31my" in text
    assert len(text) < 400


class Refused:
    """A token provider with a token that the broker does not accept."""

    def token(self) -> str:
        return "an-opaque-secret"


#: Mechanisms whose secret a broker, or what is between, may repeat in its text.
SECRETS: dict[str, tuple[Callable[[], Mechanism], str]] = {
    "PLAIN": (lambda: Plain("alice", "alice-secret"), "alice-secret"),
    "SCRAM-SHA-256": (lambda: Scram("SCRAM-SHA-256", "alice", "a secret", "n"), "a secret"),
    "OAUTHBEARER": (lambda: OAuthBearer(Refused()), "an-opaque-secret"),
    "fetched": (lambda: fetched_bearer("fetched-secret"), "fetched-secret"),
}


def fetched_bearer(token: str) -> TokenBearer:
    return TokenBearer(lambda: token, "", lambda _: None)


@pytest.mark.parametrize("kind", SECRETS)
def test_a_refusal_that_repeats_the_secret(kind: str) -> None:
    make, secret = SECRETS[kind]
    broker = Broker(make).introduced()
    text = refusal(lambda: broker.authenticate(code=58, text=f"invalid credentials alice/{secret}"))
    assert text.endswith("invalid credentials alice/<not shown>")


def test_a_broker_without_sasl() -> None:
    broker = Broker(ranges={ApiKey.PRODUCE: (0, 12)})
    assert "does not take SASL at all" in refusal(broker.versions)


def test_a_mechanism_that_gives_up() -> None:
    class Doubtful(Talkative):
        def respond(self, challenge: bytes) -> bytes | None:
            raise MechanismError("this is not the broker")

    broker = Broker(Doubtful).introduced()
    assert refusal(broker.authenticate).endswith("SCRAM-SHA-512: this is not the broker")


def test_a_mechanism_that_cannot_begin() -> None:
    class Failing(Talkative):
        def first(self) -> bytes:
            raise MechanismError("no ticket")

    def unmade() -> Any:
        raise MechanismError("no ticket")

    for make in (Failing, unmade):
        broker = Broker(make)
        broker.versions()
        assert refusal(broker.handshake).endswith(": no ticket")


def test_questions_without_end() -> None:
    broker = Broker().introduced()
    with pytest.raises(AuthenticationFailed, match="too many SASL round trips"):  # noqa: PT012
        for _ in range(1000):
            broker.authenticate(b"and now?")


@pytest.mark.parametrize("cut", range(1, 20))
def test_an_answer_that_is_cut_is_an_error(cut: int) -> None:
    for step in ("handshake", "authenticate"):
        broker = Broker()
        broker.versions()
        answer: Any = SaslHandshakeResponse(version=1, error_code=0, mechanisms=["PLAIN"])
        if step == "authenticate":
            broker.handshake()
            answer = SaslAuthenticateResponse(
                version=2, error_code=0, error_message="m", auth_bytes=b"t", session_lifetime_ms=9
            )
        answer.with_header(correlation_id=int.from_bytes(broker.said[8:12], "big"))
        whole = bytes(answer.encode(header=True))
        with pytest.raises(WireError):
            broker.session.received(whole[: max(4, len(whole) - cut)], 0.0)


def test_a_session_of_less_than_no_time_is_an_error() -> None:
    broker = Broker().introduced()
    with pytest.raises(WireError, match="a session has a lifetime of -1 ms"):
        broker.authenticate(lifetime=-1)


@given(st.binary(max_size=60), st.sampled_from(["handshake", "authenticate", "bare"]))
def test_whatever_a_broker_says_is_an_answer_or_an_error(said: bytes, step: str) -> None:
    old = {17: (0, 0)} if step == "bare" else {}
    broker = Broker(lambda: Scram("SCRAM-SHA-256", "u", "p", "n"), ranges={**RANGES, **old})
    broker.versions()
    if step != "handshake":
        broker.handshake()
    head = b"" if step == "bare" else broker.said[8:12]
    with contextlib.suppress(WireError, AuthenticationFailed):
        broker.session.received(head + said, 0.0)


# Re-authentication ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lifetime", "random", "rests_after"),
    [
        (3_600_000, 0.0, 3060.0),
        (3_600_000, 1.0, 3420.0),
        (100_000, 0.5, 90.0),
        (10_000, 1.0, 9.0),
        (4_000, 0.0, 3.0),
        (2_000, 0.0, 1.1),
        # A broker rejects re-authentication within one second.
        (1, 0.0, 1.1),
    ],
)
def test_it_is_done_again_before_its_time_has_passed(
    lifetime: int, random: float, rests_after: float
) -> None:
    session = Broker(random=random).let_in(lifetime=lifetime, now=500.0)
    assert session.reauth_at == pytest.approx(500.0 + rests_after)


def test_without_a_lifetime_it_is_never_done_again() -> None:
    assert Broker().let_in(now=500.0).reauth_at is None


def test_what_is_under_way_is_answered_first() -> None:
    broker = Broker()
    session = broker.let_in(lifetime=1000)
    first = request()
    (number,) = session.encode(first)
    session.rest()
    assert not session.takes_requests
    with pytest.raises(IllegalMove, match="READY, re-authentication pending"):
        session.encode(request())
    with pytest.raises(IllegalMove, match="in flight"):
        session.authenticate_again()
    answered = session.received(int(number).to_bytes(4, "big") + b"ok", 1.0)
    assert answered == Answered(first, 12, b"ok")
    session.unanswered.popleft()
    broker.said = session.authenticate_again()
    assert session.state is SessionState.AUTHENTICATING
    broker.handshake()
    broker.authenticate(b"more")
    assert broker.authenticate(lifetime=1000, now=7.0) is None
    assert session.takes_requests
    assert session.reauth_at == pytest.approx(8.1)
    session.encode(request())


def test_it_is_refused_the_second_time() -> None:
    broker = Broker()
    session = broker.let_in(lifetime=1000)
    session.rest()
    broker.said = session.authenticate_again()
    broker.handshake()
    text = refusal(lambda: broker.authenticate(code=58, text="the user is no more"))
    assert text.endswith("the user is no more")
    session.move(Move.LOSE)


def test_a_new_mechanism_is_made_each_time() -> None:
    made = []

    def make() -> Mechanism:
        made.append(Talkative())
        return made[-1]

    broker = Broker(make)
    session = broker.let_in(lifetime=1000)
    session.rest()
    broker.said = session.authenticate_again()
    broker.handshake()
    assert len(made) == 2


def test_it_cannot_be_done_again_unasked() -> None:
    session = Broker().let_in(lifetime=1000)
    with pytest.raises(IllegalMove):
        session.authenticate_again()
