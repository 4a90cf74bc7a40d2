"""Every authentication method, and connections that live long."""

from __future__ import annotations

import logging
import shutil
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import ClusterAuthorizationFailedError, TopicAuthorizationFailedError

from pykaproducer import Delivery, KafkaProducer, Producer, confluent
from pykaproducer.testing import KafkaCluster, UnsecuredTokens
from pykaproducer.testing._certificates import CertificateAuthority
from tests._support import programs
from tests._support.logs import told_by_log
from tests.cluster.faults import down
from tests.cluster.readback import assert_in_log, read_log
from tests.cluster.stream import PATIENCE, Stream

from .listeners import PASSWORD, PLAIN_USER, STRANGE_USER, On

SOON = 30.0
#: Logged when a session is about to expire.
AGAIN = "re-authenticating"

EVERYBODY = [
    (On.PLAIN, "alice"),
    (On.PLAIN, PLAIN_USER),
    (On.SCRAM_256, "alice"),
    (On.SCRAM_256, STRANGE_USER),
    (On.SCRAM_512, "alice"),
    (On.SCRAM_512, STRANGE_USER),
    (On.OAUTHBEARER, "alice"),
    (On.TLS, "alice"),
    (On.CLIENT_CERTIFICATE, "bob"),
]


@pytest.mark.parametrize(("listener", "user"), EVERYBODY, ids=lambda value: str(value))
def test_everybody_who_may_come_in_delivers(
    secured: KafkaCluster,
    secured_topic: str,
    listener: On,
    user: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        caplog.at_level(logging.DEBUG, "pykaproducer"),
        Producer(**secured.settings(user, listener=listener)) as producer,
    ):
        # More than a TLS record holds, and more than a socket accepts at once.
        values = [b"%d" % i + bytes(1 << 16) for i in range(60)]
        deliveries = [producer.send(secured_topic, value) for value in values]
        producer.flush(SOON)
        assert PASSWORD not in repr(producer)
    assert_in_log(secured, deliveries, values)
    assert PASSWORD not in caplog.text
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_context_of_ones_own(secured: KafkaCluster, secured_topic: str) -> None:
    mine = secured.settings(listener=On.TLS)
    context = ssl.create_default_context(cafile=mine.pop("ssl_cafile"))
    with Producer(**mine, ssl_context=context) as producer:
        producer.send(secured_topic, b"there").result(SOON)


def test_files_are_corrected_while_the_producer_runs(
    secured: KafkaCluster, secured_topic: str, tmp_path: Path
) -> None:
    mine = secured.settings(listener=On.TLS)
    authorities = tmp_path / "ca.pem"
    authorities.write_text(CertificateAuthority("a stranger").certificate)
    with (
        told_by_log("signed by an unknown CA") as told,
        Producer(**mine | {"ssl_cafile": authorities}) as producer,
    ):
        delivery = producer.send(secured_topic, b"there")
        assert told.wait(SOON)
        shutil.copy(mine["ssl_cafile"], authorities)
        delivery.result(SOON)


def test_another_host_may_be_allowed(secured: KafkaCluster, secured_topic: str) -> None:
    mine = secured.settings(listener=On.OTHER_HOST, ssl_check_hostname=False)
    with Producer(**mine) as producer:
        producer.send(secured_topic, b"there").result(SOON)


def test_the_drop_ins_for_other_clients(secured: KafkaCluster, secured_topic: str) -> None:
    mine = secured.settings(listener=On.SCRAM_512)
    drop_in = KafkaProducer(**mine)
    drop_in.send(secured_topic, b"kafka-python").get(SOON)
    drop_in.close(SOON)
    names = {
        "bootstrap_servers": "bootstrap.servers",
        "security_protocol": "security.protocol",
        "ssl_cafile": "ssl.ca.location",
        "sasl_mechanism": "sasl.mechanisms",
        "sasl_plain_username": "sasl.username",
        "sasl_plain_password": "sasl.password",
    }
    other = confluent.Producer({names[name]: value for name, value in mine.items()})
    other.produce(secured_topic, b"confluent-kafka")
    assert other.flush(SOON) == 0
    assert read_log(secured, secured_topic).values == [b"kafka-python", b"confluent-kafka"]


def test_a_fork_does_no_harm_to_encrypted_connections(
    secured: KafkaCluster, secured_topic: str
) -> None:
    """Parent and child continue over separate connections, in the middle of a stream."""
    script = f"""
        import os
        from pykaproducer import Producer
        producer = Producer(**{secured.settings(listener=On.SCRAM_512)!r})
        def send(start):
            return [producer.send({secured_topic!r}, b"%d" % i) for i in range(start, start + 500)]
        send(0)[0].result({SOON})
        child = os.fork()
        sent = send(1000 if child else 2000)
        producer.flush({SOON})
        assert all(delivery.result(0) for delivery in sent)
        if child:
            assert os.waitpid(child, 0)[1] == 0
    """
    programs.run(script, timeout=120)
    values = [int(value or b"") for value in read_log(secured, secured_topic).values]
    assert sorted(values) == [*range(500), *range(1000, 1500), *range(2000, 2500)]


# ACLs


def test_a_right_that_is_given_later_is_noticed(secured: KafkaCluster, secured_topic: str) -> None:
    """Without any Write ACL there is no producer id; messages fail until it is granted."""
    secured.allow("waiting", secured_topic, "DESCRIBE")
    with Producer(**secured.settings("waiting", listener=On.RIGHTS)) as producer:
        with pytest.raises(ClusterAuthorizationFailedError, match=secured_topic):
            producer.send(secured_topic, b"not there").result(SOON)
        secured.allow("waiting", secured_topic, "WRITE")
        producer.send(secured_topic, b"there").result(SOON)
    assert read_log(secured, secured_topic).values == [b"there"]


def test_a_right_that_is_taken_away(secured: KafkaCluster, secured_topic: str) -> None:
    secured.allow("writer", secured_topic, "WRITE", "DESCRIBE")
    with Producer(**secured.settings("writer", listener=On.RIGHTS)) as producer:
        producer.send(secured_topic, b"there").result(SOON)
        secured.revoke("writer", secured_topic, "WRITE")
        with pytest.raises(TopicAuthorizationFailedError, match=secured_topic):
            producer.send(secured_topic, b"not there").result(SOON)
        secured.allow("writer", secured_topic, "WRITE")
        producer.send(secured_topic, b"there again").result(SOON)
        secured.revoke("writer", secured_topic, "WRITE", "DESCRIBE")
    assert read_log(secured, secured_topic).values == [b"there", b"there again"]


# Sessions that expire


@contextmanager
def debug_log() -> Iterator[None]:
    """Log everything."""
    log = logging.getLogger("pykaproducer")
    before = log.level
    log.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        log.setLevel(before)


class Count(logging.Handler):
    """Counts log records, and keeps the unexpected ones."""

    def __init__(self) -> None:
        super().__init__()
        self.again = 0
        self.unwanted: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self.again += AGAIN in text
        if record.levelno >= logging.WARNING or "connection lost" in text:
            self.unwanted.append(text)


def run_through(
    secured: KafkaCluster, topic: str, settings: dict[str, Any], times: int
) -> list[str]:
    """Send continuously until a connection has re-authenticated *times* times."""
    log, count = logging.getLogger("pykaproducer"), Count()
    log.addHandler(count)
    try:
        with debug_log(), Stream(secured, topic, 3, 1000, **settings) as stream:
            deadline = time.monotonic() + PATIENCE
            while count.again < times:
                assert time.monotonic() < deadline, f"{count.again} of {times} times"
                stream.wait_for_more(500)
            stream.finish()
            unwanted = list(count.unwanted)
            stream.assert_exactly_once()
    finally:
        log.removeHandler(count)
    return unwanted


def undisturbed(
    secured: KafkaCluster, topic: str, settings: dict[str, Any], times: int
) -> list[str]:
    """As :func:`run_through`. A pause of the machine ends a session, but hardly thrice in a row."""
    for attempt in range(3):
        name = f"{topic}-{attempt}"
        secured.create_topic(name, partitions=3)
        if not (unwanted := run_through(secured, name, settings, times)):
            break
    return unwanted


@pytest.mark.full
def test_authenticating_again_under_load_loses_nothing(secured: KafkaCluster, topic: str) -> None:
    settings = secured.settings(listener=On.SHORT_SESSIONS)
    # The metadata connection does so as well, so the other one did it more than once.
    assert undisturbed(secured, f"again-{topic}", settings, times=5) == []


@pytest.mark.full
def test_a_token_is_renewed_before_it_ends(secured: KafkaCluster, topic: str) -> None:
    tokens = UnsecuredTokens("alice", lifetime=2.0)
    settings = secured.settings(listener=On.SHORT_TOKENS, sasl_oauth_token_provider=tokens)
    assert undisturbed(secured, f"renewed-{topic}", settings, times=3) == []
    assert tokens.calls >= 4


def test_an_idle_producer_comes_back_after_its_session(
    secured: KafkaCluster, secured_topic: str
) -> None:
    with (
        Producer(**secured.settings(listener=On.SHORT_SESSIONS)) as producer,
        debug_log(),
        told_by_log(AGAIN) as again,
    ):
        producer.send(secured_topic, b"first").result(SOON)
        assert again.wait(PATIENCE)
        producer.send(secured_topic, b"second").result(SOON)
    assert read_log(secured, secured_topic).values == [b"first", b"second"]


@pytest.mark.full
def test_a_broker_that_dies_and_comes_back(secured: KafkaCluster, topic: str) -> None:
    """Everything is authenticated again, and users, sessions and sequences continue."""
    name = f"died-{topic}"
    secured.create_topic(name, partitions=3)
    settings = secured.settings(listener=On.SHORT_SESSIONS)
    with Stream(secured, name, 3, 1000, **settings) as stream:
        stream.wait_for_more(500)
        with down(secured):
            pass
        stream.wait_for_more(500)
        stream.finish()
        stream.assert_exactly_once()


# Token providers


class Provider(UnsecuredTokens):
    """A token provider that fails at first."""

    def __init__(self, failures: int) -> None:
        super().__init__("alice")
        self.failures = failures

    def token(self) -> str:
        made = super().token()
        if self.calls <= self.failures:
            raise RuntimeError("no route to the identity provider")
        return made


def test_a_provider_that_fails_is_told_of_and_asked_again(
    secured: KafkaCluster, secured_topic: str
) -> None:
    mine = secured.settings(listener=On.OAUTHBEARER, sasl_oauth_token_provider=Provider(2))
    with (
        Producer(**mine) as producer,
        told_by_log("no route to the identity provider") as told,
    ):
        delivery: Delivery = producer.send(secured_topic, b"there")
        assert told.wait(SOON)
        delivery.result(SOON)


def test_a_provider_that_hangs_is_named(secured: KafkaCluster, secured_topic: str) -> None:
    """It blocks only its connection: messages have their outcome in time."""
    asked, go_on = threading.Event(), threading.Event()

    def hanging() -> str:
        asked.set()
        assert go_on.wait(SOON)
        return UnsecuredTokens("alice").token()

    mine = secured.settings(
        listener=On.OAUTHBEARER, sasl_oauth_token_provider=hanging, delivery_timeout_ms=1000
    )
    with Producer(**mine) as producer:
        first = producer.send(secured_topic, b"first", delivery_timeout_ms=60_000)
        assert asked.wait(SOON)
        error = producer.send(secured_topic, b"not there").exception(SOON)
        assert "has sasl_oauth_token_provider returned?" in str(error)
        go_on.set()
        deadline = time.monotonic() + PATIENCE
        while producer.send(secured_topic, b"there").exception(SOON) is not None:
            assert time.monotonic() < deadline
        first.result(SOON)


def test_a_token_that_the_broker_refuses(
    secured: KafkaCluster, secured_topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    expired = UnsecuredTokens("alice", lifetime=-3600)
    mine = secured.settings(
        listener=On.OAUTHBEARER, sasl_oauth_token_provider=expired, delivery_timeout_ms=1000
    )
    with (
        caplog.at_level(logging.DEBUG, "pykaproducer"),
        told_by_log("authentication failed with OAUTHBEARER") as told,
        Producer(**mine) as producer,
    ):
        delivery = producer.send(secured_topic, b"not there")
        assert told.wait(SOON)
        error = delivery.exception(SOON)
    assert "authentication failed with OAUTHBEARER" in str(error)
    assert expired._token not in caplog.text + str(error)
