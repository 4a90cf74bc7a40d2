"""Tokens that the producer gets by itself, from a real endpoint, verified by a real broker."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pykaproducer import Producer, confluent
from pykaproducer._net.inspect import list_cluster
from pykaproducer.config import Config, read_settings
from pykaproducer.testing import KafkaCluster, TokenReply, TokenRequest, TokenServer
from tests._support import programs
from tests._support.keys import ec_key, pem_of, public_pem, rsa_key
from tests._support.logs import told_by_log
from tests.cli.helper import run
from tests.cluster.readback import read_log
from tests.cluster.stream import PATIENCE

from .listeners import PASSWORD, On
from .test_delivery import debug_log, undisturbed

SOON = 30.0
#: Deadline of messages that cannot be delivered (milliseconds).
DEADLINE_MS = 4000
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"


def settings(secured: KafkaCluster, **changes: Any) -> dict[str, Any]:
    given = secured.settings(listener=On.SIGNED_TOKENS, **changes)
    return {name: value for name, value in given.items() if value is not None}


@pytest.fixture
def deliver(secured: KafkaCluster, secured_topic: str) -> Callable[..., None]:
    """Return a function that delivers a message with changed settings."""

    def deliver_one(**changes: Any) -> None:
        with Producer(**settings(secured, **changes)) as producer:
            producer.send(secured_topic, b"there").result(SOON)
        assert read_log(secured, secured_topic).values[-1] == b"there"

    return deliver_one


def test_one_token_is_shared_by_all_connections(
    deliver: Callable[..., None], token_server: TokenServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "pykaproducer"):
        deliver(sasl_oauthbearer_scope="events")
    (request,) = token_server.requests
    assert request.form["scope"] == "events"
    assert PASSWORD not in caplog.text
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("grant", [None, JWT_BEARER])
@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_signed_assertions(
    deliver: Callable[..., None],
    token_server: TokenServer,
    tmp_path: Path,
    algorithm: str,
    grant: str | None,
) -> None:
    key = rsa_key() if algorithm == "RS256" else ec_key()
    path = tmp_path / "key.pem"
    path.write_bytes(pem_of(key, PASSWORD))
    token_server.public_keys["alice"] = public_pem(key)
    deliver(
        sasl_oauthbearer_client_secret=None,
        sasl_oauthbearer_grant_type=grant,
        sasl_oauthbearer_assertion_algorithm=algorithm,
        sasl_oauthbearer_assertion_private_key_file=path,
        sasl_oauthbearer_assertion_private_key_passphrase=PASSWORD,
    )


def test_a_managed_identity(deliver: Callable[..., None], token_server: TokenServer) -> None:
    deliver(
        sasl_oauthbearer_client_id=None,
        sasl_oauthbearer_client_secret=None,
        sasl_oauthbearer_metadata_authentication_type="azure_imds",
        sasl_oauthbearer_token_endpoint_url=token_server.azure_url,
        sasl_oauthbearer_config="query=api-version=2018-02-01&resource=api://events",
    )


def test_a_token_in_a_file(
    deliver: Callable[..., None], token_server: TokenServer, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text(token_server.token("alice"))
    deliver(
        sasl_oauthbearer_client_id=None,
        sasl_oauthbearer_client_secret=None,
        sasl_oauthbearer_token_endpoint_url=f"file://{path}",
    )


def test_the_names_of_java_and_librdkafka(
    secured: KafkaCluster, token_server: TokenServer, secured_topic: str, tmp_path: Path
) -> None:
    ours = settings(secured)
    path = tmp_path / "client.properties"
    path.write_text(
        f"bootstrap.servers={ours['bootstrap_servers']}\n"
        "security.protocol=SASL_SSL\n"
        f"ssl.truststore.certificates={_one_line(ours['ssl_cafile'])}\n"
        "ssl.truststore.type=PEM\n"
        "sasl.mechanism=OAUTHBEARER\n"
        f"sasl.oauthbearer.token.endpoint.url={token_server.url}\n"
        "sasl.login.callback.handler.class=org.apache.kafka.common.security.oauthbearer."
        "OAuthBearerLoginCallbackHandler\n"
        "sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule "
        f'required clientId="alice" clientSecret="{PASSWORD}";\n'
    )
    with Producer(**read_settings(path)) as producer:
        producer.send(secured_topic, b"java").result(SOON)
    other = confluent.Producer(
        {
            "bootstrap.servers": ours["bootstrap_servers"],
            "security.protocol": "sasl_ssl",
            "ssl.ca.pem": Path(ours["ssl_cafile"]).read_text(),
            "sasl.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": token_server.url,
            "sasl.oauthbearer.client.id": "alice",
            "sasl.oauthbearer.client.secret": PASSWORD,
        }
    )
    other.produce(secured_topic, b"librdkafka")
    assert other.flush(SOON) == 0
    assert read_log(secured, secured_topic).values == [b"java", b"librdkafka"]


def _one_line(path: str) -> str:
    """Return a file as a value of Java's properties."""
    return Path(path).read_text().replace("\n", "\\n\\\n")


@pytest.mark.full
def test_the_command_line(secured: KafkaCluster, token_server: TokenServer) -> None:
    """A command that only describes the cluster has no pipeline, and fetches the token itself."""
    config = Config.from_kwargs(settings(secured))
    assert len(list_cluster(config, SOON).brokers) == 1
    wrong = settings(secured, sasl_oauthbearer_client_secret="wrong")
    given = [f"-X{name}={value}" for name, value in wrong.items()]
    done = run("topics", "list", *given)
    assert done.returncode == 1
    assert b"HTTP 401 Unauthorized: invalid_client: Unknown client" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_fork_gets_its_own_token(
    secured: KafkaCluster, token_server: TokenServer, secured_topic: str
) -> None:
    script = f"""
        import os
        from pykaproducer import Producer
        producer = Producer(**{settings(secured)!r})
        producer.send({secured_topic!r}, b"parent").result({SOON})
        child = os.fork()
        producer.send({secured_topic!r}, b"both").result({SOON})
        if child:
            assert os.waitpid(child, 0)[1] == 0
    """
    programs.run(script, timeout=120)
    assert sorted(map(bytes, read_log(secured, secured_topic).values)) == [
        b"both",
        b"both",
        b"parent",
    ]
    assert len(token_server.requests) == 2


def test_a_fork_while_a_token_is_fetched(
    secured: KafkaCluster, token_server: TokenServer, secured_topic: str, tmp_path: Path
) -> None:
    """The first request is answered after the second one, which is that of the child."""
    asked, both = tmp_path / "asked", threading.Event()
    os.mkfifo(asked)

    def first_waits(request: TokenRequest) -> None:
        if len(token_server.requests) > 1:
            both.set()
        else:
            asked.write_bytes(b"!")  # waits until the script reads it
        both.wait(SOON)

    token_server.answer = first_waits
    script = f"""
        import os, pathlib
        from pykaproducer import Producer
        producer = Producer(**{settings(secured, sasl_login_read_timeout_ms=30_000)!r})
        first = producer.send({secured_topic!r}, b"parent")
        assert pathlib.Path({str(asked)!r}).read_bytes()  # waits until it is written
        child = os.fork()
        if child:
            first.result({SOON})
            assert os.waitpid(child, 0)[1] == 0
        else:
            producer.send({secured_topic!r}, b"child").result({SOON})
    """
    programs.run(script, timeout=120)
    assert sorted(map(bytes, read_log(secured, secured_topic).values)) == [b"child", b"parent"]


# Renewal ----------------------------------------------------------------------------------------


def answer(
    server: TokenServer, lifetime: float, expires_in: float
) -> Callable[[TokenRequest], TokenReply]:
    """Return an answer with a token that is renewed long before it expires."""
    return lambda request: TokenReply.of(
        200, access_token=server.token("alice", lifetime=lifetime), expires_in=expires_in
    )


@pytest.mark.full
def test_tokens_are_renewed_in_time_under_load(
    secured: KafkaCluster, token_server: TokenServer, topic: str
) -> None:
    """The broker ends a session with its token; each connection authenticates again before that."""
    token_server.answer = answer(token_server, 4, 2)
    assert undisturbed(secured, f"renewed-{topic}", settings(secured), times=5) == []
    assert len(token_server.requests) >= 3


def test_a_renewal_that_fails_is_logged_while_messages_are_delivered(
    secured: KafkaCluster, token_server: TokenServer, secured_topic: str
) -> None:
    token_server.answer = answer(token_server, 600, 4)
    with (
        debug_log(),
        Producer(**settings(secured)) as producer,
        told_by_log("trying again, the current one is valid for") as told,
        told_by_log("gives tokens again") as over,
    ):
        producer.send(secured_topic, b"one").result(SOON)
        token_server.answer = lambda request: TokenReply.of(503)
        assert told.wait(SOON)
        producer.send(secured_topic, b"two").result(SOON)
        token_server.answer = None
        assert over.wait(SOON)
    assert read_log(secured, secured_topic).values == [b"one", b"two"]


# Failures ---------------------------------------------------------------------------------------


@pytest.fixture
def undelivered(
    secured: KafkaCluster, secured_topic: str, caplog: pytest.LogCaptureFixture
) -> Callable[..., str]:
    """Return a function that returns the error of a message, after it has checked the log."""

    def error_of(**changes: Any) -> str:
        wanted = settings(secured, **{"delivery_timeout_ms": DEADLINE_MS, **changes})
        caplog.clear()
        with caplog.at_level(logging.DEBUG, "pykaproducer"), Producer(**wanted) as producer:
            error = producer.send(secured_topic, b"not there").exception(SOON)
        warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
        assert len(warnings) == len(set(warnings))
        text = str(error)
        assert "DeliveryTimeoutError" in [kind.__name__ for kind in type(error).__mro__]
        assert secured_topic in text
        assert "\n" not in text
        assert PASSWORD not in text + caplog.text
        return text

    return error_of


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (
            TokenReply.of(401, error="invalid_client", error_description="Unknown client"),
            "HTTP 401 Unauthorized: invalid_client: Unknown client",
        ),
        (TokenReply(503, b"<html>busy</html>"), "HTTP 503 Service Unavailable"),
        (TokenReply(200, b"\x00\xff"), "the answer is not a JSON object"),
        (TokenReply(200, b"<html>", {"Content-Type": "text/html"}), "object but text/html; is"),
        (TokenReply.of(200, token="x"), "the answer has no access_token; it has: token"),
        (TokenReply.of(200, access_token="x", expires_in=-9), "the token has expired 9 s ago"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_an_endpoint_that_gives_no_token(
    token_server: TokenServer,
    undelivered: Callable[..., str],
    caplog: pytest.LogCaptureFixture,
    reply: TokenReply,
    text: str,
) -> None:
    token_server.answer = lambda request: reply
    error = undelivered()
    assert f"no token from {token_server.url}: " in error
    assert text in error
    assert f"no token from {token_server.url}: " in caplog.text


def test_an_endpoint_that_is_down_and_comes_back(
    secured: KafkaCluster,
    token_server: TokenServer,
    secured_topic: str,
    undelivered: Callable[..., str],
) -> None:
    down = "http://127.0.0.1:1/token"
    error = undelivered(sasl_oauthbearer_token_endpoint_url=down)
    assert f"no token from {down}: 127.0.0.1:1 cannot be reached: connection refused" in error
    token_server.answer = lambda request: TokenReply.of(503)
    with (
        Producer(**settings(secured)) as producer,
        told_by_log("HTTP 503 Service Unavailable; trying again") as told,
    ):
        delivery = producer.send(secured_topic, b"there")
        assert told.wait(SOON)
        assert not delivery.done()
        token_server.answer = None
        delivery.result(SOON)


@pytest.mark.full
def test_an_endpoint_that_is_slow(
    secured: KafkaCluster,
    token_server: TokenServer,
    secured_topic: str,
    undelivered: Callable[..., str],
) -> None:
    """Messages have their outcome in time, and the producer is closed without the answer."""
    go_on = threading.Event()

    def slow(request: TokenRequest) -> None:
        go_on.wait(SOON)

    token_server.answer = slow
    error = undelivered()
    assert f"waiting for a token from {token_server.url}" in error
    error = undelivered(sasl_login_read_timeout_ms=300)
    assert "it did not answer within 0.3 s (sasl_login_read_timeout_ms)" in error
    with Producer(**settings(secured)) as producer:
        delivery = producer.send(secured_topic, b"there")
        go_on.set()
        delivery.result(SOON)


def test_a_token_that_the_broker_refuses_is_replaced(
    secured: KafkaCluster,
    token_server: TokenServer,
    secured_topic: str,
    undelivered: Callable[..., str],
) -> None:
    token_server.answer = lambda request: TokenReply.of(
        200, access_token=token_server.token("alice")[:-8] + "AAAAAAAA", expires_in=3600
    )
    error = undelivered()
    assert "authentication failed with OAUTHBEARER: " in error
    with (
        Producer(**settings(secured, sasl_login_retry_backoff_max_ms=100)) as producer,
        told_by_log("authentication failed with OAUTHBEARER") as told,
    ):
        delivery = producer.send(secured_topic, b"there")
        assert told.wait(SOON)
        token_server.answer = None
        delivery.result(SOON)


def test_a_producer_is_closed_while_it_waits_for_a_token(
    secured: KafkaCluster, token_server: TokenServer, secured_topic: str
) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def slow(request: TokenRequest) -> None:
        asked.set()
        go_on.wait(PATIENCE)

    token_server.answer = slow
    producer = Producer(**settings(secured))
    delivery = producer.send(secured_topic, b"not there")
    assert asked.wait(SOON)
    began = time.monotonic()
    producer.close(0)
    assert time.monotonic() - began < PATIENCE / 2
    assert delivery.exception(SOON) is not None
    go_on.set()
