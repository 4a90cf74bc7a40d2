"""The token that the connections of a producer share, when a broker rejects it."""

from __future__ import annotations

import threading

from pykaproducer._net.token_source import Token, TokenSource
from pykaproducer._net.tokens import Tokens
from pykaproducer._pipeline.token_fetcher import TokenFetcher
from pykaproducer.config import Config
from pykaproducer.testing import FakeClock
from tests.pipeline.helper import SOON, stage_context

HOUR = 3600.0
REJECTED = b'{"status":"invalid_token"}'


class Endpoint(TokenSource):
    """A token endpoint whose tokens are numbered, and valid for an hour."""

    def __init__(self, settings: Config) -> None:
        super().__init__(settings)
        self.requests = 0
        self.asked = threading.Semaphore(0)

    def fetch(self, now: float) -> Token:
        self.requests += 1
        self.asked.release()
        return Token(f"token-{self.requests}", HOUR)


def made() -> tuple[Tokens, Endpoint]:
    config = Config.from_kwargs(
        {
            "bootstrap_servers": "b:1",
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauthbearer_token_endpoint_url": "https://login.invalid/token",
            "sasl_oauthbearer_client_id": "me",
            "sasl_oauthbearer_client_secret": "hunter2",
        }
    )
    endpoint = Endpoint(config)
    return Tokens(config, endpoint), endpoint


def authenticate(tokens: Tokens, *, accepted: bool) -> bytes:
    """Return the token that a broker gets, and has it accepted or rejected."""
    mechanism = tokens.mechanism()
    sent = mechanism.first()
    assert mechanism.respond(b"" if accepted else REJECTED) == (None if accepted else b"\1")
    return sent


def test_a_broker_that_rejects_every_token_takes_it_from_no_other() -> None:
    """One broker has a wrong configuration, and connects again every second."""
    clock = FakeClock()
    tokens, endpoint = made()
    tokens.attend(clock, lambda item: None)
    tokens.fetch()
    for _ in range(600):
        clock.jump(1.0)
        if clock.monotonic() >= tokens.fetch_at:
            tokens.fetch()
        assert tokens.is_valid()
        authenticate(tokens, accepted=False)
        sent = authenticate(tokens, accepted=True)
        assert f"token-{endpoint.requests}".encode() in sent
    # At once, and after 10, 20, 40 ... seconds: sasl_login_retry_backoff_max_ms and its doubles.
    assert endpoint.requests == 6


def test_an_old_token_that_is_rejected_is_replaced_at_once() -> None:
    """All connections are ready, so none asks for a token. The fetcher is woken all the same."""
    clock = FakeClock()
    tokens, endpoint = made()
    fetcher = TokenFetcher(stage_context(clock), tokens)
    arrived = threading.Event()
    tokens.want(arrived.set, None)
    assert arrived.wait(SOON)
    assert endpoint.asked.acquire(timeout=SOON)
    clock.jump(60.0)
    authenticate(tokens, accepted=False)
    assert endpoint.asked.acquire(timeout=SOON)
    assert fetcher.stop_by(clock.monotonic() + SOON)
    assert b"token-2" in authenticate(tokens, accepted=True)


def test_a_rejection_of_a_token_that_was_replaced_is_ignored() -> None:
    clock = FakeClock()
    tokens, _ = made()
    tokens.attend(clock, lambda item: None)
    tokens.fetch()
    late = tokens.mechanism()
    late.first()
    tokens.fetch()
    due = tokens.fetch_at
    assert late.respond(REJECTED) == b"\1"
    assert tokens.fetch_at == due
