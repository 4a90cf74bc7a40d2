"""``pykaproducer.contrib.django`` in a project: settings, transactions, check, command."""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pykaproducer import MessageTooLargeError, Producer
from pykaproducer.testing import KafkaCluster
from tests.cluster.readback import read_log

django = pytest.importorskip("django", reason="django is not installed (extra test)")

from django.conf import settings  # noqa: E402

if not settings.configured:
    memory = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    settings.configure(
        INSTALLED_APPS=["pykaproducer.contrib.django"],
        DATABASES={"default": memory, "other": memory},
        USE_TZ=True,
        LOGGING_CONFIG=None,
    )
    django.setup()

from django.core.exceptions import ImproperlyConfigured  # noqa: E402
from django.core.management import CommandError, call_command  # noqa: E402
from django.db import connections, transaction  # noqa: E402
from django.test.utils import override_settings  # noqa: E402

from pykaproducer.contrib.django import get_producer, producer, send_on_commit  # noqa: E402
from pykaproducer.contrib.django.checks import check_settings  # noqa: E402

#: Far more than any operation here takes (seconds).
SOON = 30


@pytest.fixture
def site(cluster: KafkaCluster, topic: str) -> Iterator[str]:
    """Set up a site with one producer, and yield the name of a topic."""
    cluster.create_topic(topic)
    with override_settings(PYKAPRODUCER={"bootstrap_servers": cluster.bootstrap_servers}):
        yield topic
    connections.close_all()


def in_log(cluster: KafkaCluster, topic: str) -> list[bytes | None]:
    producer.flush(SOON)
    return read_log(cluster, topic).values


# Producers


def test_the_producer_is_made_when_it_is_used(cluster: KafkaCluster, site: str) -> None:
    assert repr(producer) == "<ProducerProxy 'default'>"
    metadata = producer.send(site, b"value", key=b"key").result(SOON)
    assert metadata.topic == site
    assert isinstance(get_producer(), Producer)
    assert in_log(cluster, site) == [b"value"]


def test_threads_that_come_first_at_once_have_the_same_one(site: str) -> None:
    barrier, found = threading.Barrier(8), []

    def look() -> None:
        barrier.wait(SOON)
        found.append(get_producer())

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    assert len(found) == 8
    assert len(set(map(id, found))) == 1


def test_changed_settings_close_it_and_make_another(cluster: KafkaCluster, site: str) -> None:
    first = get_producer()
    first.send(site, b"delivered as it is closed")
    with override_settings(PYKAPRODUCER={"bootstrap.servers": "nowhere:1", "client_id": "b"}):
        assert first._closed
        assert get_producer().config.client_id == "b"
    assert get_producer().config.client_id != "b"
    assert read_log(cluster, site).values == [b"delivered as it is closed"]


def test_several_producers_by_alias() -> None:
    both = {"default": {"client_id": "a"}, "audit": {"client_id": "b", "acks": "all"}}
    with override_settings(PYKAPRODUCER=both):
        assert producer.config.client_id == "a"
        assert get_producer("audit").config.client_id == "b"
        assert get_producer("audit") is get_producer("audit")
        with pytest.raises(ImproperlyConfigured, match=r"no producer 'x'; it has 'default', 'aud"):
            get_producer("x")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"linger_ms": "x"}, r"PYKAPRODUCER\['default'\]: setting linger_ms: 'x' was given"),
        ({"default": {}, "b": {"nope": 1}}, r"PYKAPRODUCER\['b'\]: .*nope"),
        ("localhost:9092", "must be a dict"),
        (None, "is missing"),
    ],
)
def test_wrong_settings_are_told_at_the_first_use_and_by_the_check(given: Any, text: str) -> None:
    alias = "b" if isinstance(given, dict) and "b" in given else "default"
    with override_settings(PYKAPRODUCER=given):
        with pytest.raises(ImproperlyConfigured, match=text):
            get_producer(alias)
        errors = [
            message for message in check_settings() if message.id.startswith("pykaproducer.E")
        ]
        assert len(errors) == 1
        assert errors[0].hint
        with pytest.raises(ImproperlyConfigured) as caught:
            get_producer(alias)
        assert errors[0].msg == str(caught.value)
        with pytest.raises(CommandError, match=r"pykaproducer\.E"):
            call_command("check")


def test_what_is_right_passes_the_check() -> None:
    with override_settings(PYKAPRODUCER={"bootstrap.servers": "kafka:9092"}):
        call_command("check", fail_level="WARNING")


def test_the_check_warns_of_what_is_probably_forgotten() -> None:
    with override_settings(PYKAPRODUCER={}):
        assert [message.id for message in check_settings()] == ["pykaproducer.W001"]
    with override_settings(PYKAPRODUCER={"audit": {"bootstrap_servers": "kafka"}}):
        assert [message.id for message in check_settings()] == ["pykaproducer.W002"]


# Transactions


def test_a_message_goes_with_the_commit(cluster: KafkaCluster, site: str) -> None:
    with transaction.atomic():
        send_on_commit(site, b"committed", key=b"k")
        with transaction.atomic():
            send_on_commit(site, b"committed, too")
        assert producer.accepted == 0
    assert in_log(cluster, site) == [b"committed", b"committed, too"]


class Undo(Exception):
    """Rolls a transaction back."""


def fail_after(topic: str) -> None:
    """Send in a transaction that is rolled back."""
    with transaction.atomic():
        send_on_commit(topic, b"never")
        raise Undo


def test_a_message_is_rolled_back_with_its_transaction(cluster: KafkaCluster, site: str) -> None:
    with pytest.raises(Undo):
        fail_after(site)
    with transaction.atomic():
        send_on_commit(site, b"of the outer one")
        with pytest.raises(Undo):
            fail_after(site)
    assert in_log(cluster, site) == [b"of the outer one"]


def test_outside_of_a_transaction_it_goes_at_once(cluster: KafkaCluster, site: str) -> None:
    send_on_commit(site, b"at once")
    assert producer.accepted == 1
    assert in_log(cluster, site) == [b"at once"]


def test_it_may_wait_for_another_database(cluster: KafkaCluster, site: str) -> None:
    with transaction.atomic(using="other"):
        with transaction.atomic():
            send_on_commit(site, b"of the other one", using="other")
        assert producer.accepted == 0
    assert in_log(cluster, site) == [b"of the other one"]


def test_an_error_of_send_does_not_harm_the_response(
    cluster: KafkaCluster, site: str, caplog: pytest.LogCaptureFixture
) -> None:
    with transaction.atomic():
        send_on_commit(site, b"x" * (2 << 20))
        send_on_commit(site, b"what else waits for the commit")
    assert "max_request_size" in caplog.text
    assert in_log(cluster, site) == [b"what else waits for the commit"]


def test_it_is_raised_if_that_is_asked_for(site: str) -> None:
    with pytest.raises(MessageTooLargeError), transaction.atomic():
        send_on_commit(site, b"x" * (2 << 20), robust=False)


def test_an_alias_that_is_wrong_is_told_before_the_commit(site: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="no producer 'x'"), transaction.atomic():
        send_on_commit(site, b"value", producer="x")


def test_a_message_that_is_not_delivered_is_logged(
    refusing: str, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"bootstrap_servers": refusing, "delivery_timeout_ms": 1}
    with override_settings(PYKAPRODUCER=given):
        send_on_commit("topic", b"value")
        producer.close(SOON)
    (told,) = [each for each in caplog.records if each.name == "pykaproducer.contrib"]
    assert told.levelno == logging.ERROR
    assert "topic 'topic': not delivered within" in told.getMessage()


# The command


def run_command(*arguments: str) -> str:
    out = io.StringIO()
    call_command("kafka_send", *arguments, stdout=out)
    return out.getvalue()


def test_the_command_sends_a_message(cluster: KafkaCluster, site: str) -> None:
    arguments = ("--key", "k", "--header", "a=1", "--header", "b=x=y")
    assert run_command(site, "hello", *arguments) == f"1 message delivered to {site}\n"
    (record,) = read_log(cluster, site).records
    assert (record.key, record.value) == (b"k", b"hello")
    assert record.headers == [("a", b"1"), ("b", b"x=y")]


def test_the_command_sends_lines(
    cluster: KafkaCluster, site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\n\ntwo\xff\r\nthree")))
    assert run_command(site, "-") == f"4 messages delivered to {site}\n"
    assert read_log(cluster, site).values == [b"one", b"", b"two\xff\r", b"three"]


def test_the_command_gives_text_to_a_serializer(cluster: KafkaCluster, site: str) -> None:
    given = {"bootstrap_servers": cluster.bootstrap_servers, "value_serializer": str.encode}
    with override_settings(PYKAPRODUCER=given):
        run_command(site, "grüße")
    assert read_log(cluster, site).values == ["grüße".encode()]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["no topic", "x"], "no topic"),
        (["topic", "x", "--header", "novalue"], "use the form NAME=VALUE"),
        (["topic", "x" * (2 << 20)], "max_request_size"),
        (["topic", "x", "--producer", "nobody"], "no producer 'nobody'"),
        (["topic", "x"], "1 of 1 messages were not delivered; first: topic 'topic': not deliv"),
    ],
)
def test_a_failure_of_the_command_is_one_line(
    refusing: str, arguments: list[str], text: str
) -> None:
    given = {"bootstrap_servers": refusing, "delivery_timeout_ms": 1}
    with override_settings(PYKAPRODUCER=given), pytest.raises(CommandError) as caught:
        run_command(*arguments)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
