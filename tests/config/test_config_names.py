"""Unknown names, in code and in files; settings of disabled features; hidden secrets."""

from __future__ import annotations

import logging
import pathlib
from typing import Any

import pytest

from pykaproducer import KafkaProducer, Producer
from pykaproducer.config import Config, read_settings, resolve
from pykaproducer.errors import ConfigurationError, UnsupportedFeatureError

from .helper import refusal


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= level]


# In code ------------------------------------------------------------------------------------------


def test_all_unknown_names_are_told_at_once() -> None:
    text = refusal(**{"lingr_ms": 1, "xyzzy": 2, "kafka.acks": "all", "acks": 1})
    assert text == (
        "3 unknown producer settings: lingr_ms is unknown; the most similar setting is "
        "linger_ms; xyzzy is unknown, and no setting has a similar name; kafka.acks is unknown; "
        "without the prefix it is a setting: acks"
    )


@pytest.mark.parametrize("name", ["xyzzy", "colour", "a", "", "retention.ms.of.the.topic"])
def test_no_hint_if_nothing_is_near(name: str) -> None:
    assert "similar setting" not in refusal(**{name: 1})


@pytest.mark.parametrize("name", ["a\nb", "x" * 5000, "\0", "\x1b[31m"])
def test_a_strange_name_stays_on_its_line(name: str) -> None:
    text = refusal(**{name: 1})
    assert text.isprintable()
    assert len(text) < 300


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("group.id", "setting group.id is not a producer setting: it is a consumer setting"),
        ("group_id", "setting group_id is not a producer setting: it is a consumer setting"),
        ("auto.offset.reset", "setting auto.offset.reset is not a producer setting"),
        (
            "queue.buffering.backpressure.threshold",
            "is a librdkafka setting that is not needed here: ",
        ),
        ("sticky.partitioning.linger.ms", "is a librdkafka setting that is not needed here: "),
        ("socket.keepalive.enable", "is a librdkafka setting that is not needed here: "),
        ("enable.gapless.guarantee", "setting that is not supported: batches after a failed one"),
        ("ssl.sigalgs.list", "that is not supported: give an ssl_context"),
        ("statistics.interval.ms", "is supported by pykaproducer.confluent.Producer only"),
        ("debug", "is a librdkafka setting that is not needed here: "),
        ("schema.registry.url", "is not a producer setting: it is a serializer setting"),
    ],
)
def test_a_name_of_another_library_says_why_it_is_not_here(name: str, text: str) -> None:
    assert text in refusal(**{name: "1"})


@pytest.mark.parametrize("kind", [Producer, KafkaProducer])
@pytest.mark.parametrize("argument", ["host:9092", {"linger_ms": 1}, 3])
def test_settings_are_given_by_name(kind: Any, argument: object) -> None:
    with pytest.raises(TypeError, match=r"Producer\(\) takes settings by name, not a "):
        kind(argument)


def test_the_values_of_a_secret_that_differ_are_not_shown() -> None:
    text = refusal(**{"sasl_plain_password": "s3cret", "sasl.password": "pa55"})
    assert "sasl_plain_password and sasl.password are the same setting" in text
    assert "s3cret" not in text
    assert "pa55" not in text


@pytest.mark.parametrize(
    "servers",
    [
        "SASL_SSL://user:s3cret@host",
        "SASL_SSL://user:s3cret@host:9092",
        "user:s3cret@host:9092",
        ["ok:9092", "kafka://user:s3cret@host:9092"],
        "kafka://host:9092/?password=s3cret",
    ],
)
@pytest.mark.parametrize("name", ["bootstrap_servers", "metadata.broker.list"])
def test_a_secret_in_an_address_is_not_shown(name: str, servers: Any) -> None:
    text = refusal(**{name: servers})
    assert "s3cret" not in text
    assert "user:" not in text
    assert "sasl_plain_username and sasl_plain_password" in text


def test_a_comma_at_the_end_is_no_server() -> None:
    found = Config.from_kwargs({"bootstrap_servers": "a:1,b:2,"}).bootstrap_servers
    assert found == (("a", 1), ("b", 2))


def test_settings_of_what_is_off_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    Config.from_kwargs(
        {
            "client_id": "me",
            "transaction_timeout_ms": 5000,
            "metrics_enabled": False,
            "metrics_num_samples": 3,
        }
    )
    assert lines(caplog, logging.WARNING) == [
        "me: setting metrics_num_samples: no effect, because metrics_enabled is False",
        "me: setting transaction_timeout_ms: no effect, because transactional_id is None",
    ]


def test_what_is_as_by_default_is_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    Config.from_kwargs({"transaction_timeout_ms": 60000, "ssl_check_hostname": True})
    assert not lines(caplog, logging.WARNING)


# In files -----------------------------------------------------------------------------------------


SHARED = """\
bootstrap.servers=a.example.org:9092,b.example.org:9092
# of consumers
group.id=readers
auto.offset.reset=earliest
session.timeout.ms=45000
# of Java
key.serializer=org.apache.kafka.common.serialization.StringSerializer
client.dns.lookup=use_all_dns_ips
schema.registry.url=https://registry.example.org
lingr.ms=7
linger.ms=5
acks=all
"""


def test_a_file_that_other_programs_share(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "client.properties"
    path.write_text(SHARED)
    caplog.set_level(logging.INFO, "pykaproducer")
    assert read_settings(path) == {
        "bootstrap_servers": (("a.example.org", 9092), ("b.example.org", 9092)),
        "linger_ms": 5,
        "acks": -1,
    }
    assert lines(caplog, logging.INFO) == [
        "ignored consumer settings: group.id, auto.offset.reset, session.timeout.ms",
        "ignored: 2 unknown producer settings: schema.registry.url is not a producer setting: it "
        "is a serializer setting; configure the serializer itself; "
        "lingr.ms is unknown; the most similar setting is linger.ms (that is linger_ms)",
        "settings without effect: key.serializer (keys and values are bytes; Spark's strings are "
        "sent as UTF-8); client.dns.lookup (all addresses of a host name are tried)",
    ]


@pytest.mark.parametrize(
    ("line", "kind", "text"),
    [
        ("linger.ms=soon", ConfigurationError, "setting linger.ms: 'soon' was given; allowed: "),
        ("kafka.client=a", UnsupportedFeatureError, "setting kafka.client: "),
        (
            "enable.gapless.guarantee=true",
            ConfigurationError,
            "batches after a failed one are still sent",
        ),
        ("linger.ms=5\nqueue.buffering.max.ms=6", ConfigurationError, "different values, 5"),
        ("=5", ConfigurationError, "line 1: there is no name"),
    ],
)
def test_what_is_wrong_in_a_file_names_the_file(
    tmp_path: pathlib.Path, line: str, kind: type[Exception], text: str
) -> None:
    path = tmp_path / "client.properties"
    path.write_text(line)
    with pytest.raises(kind) as caught:
        read_settings(path)
    assert str(caught.value).startswith(str(path))
    assert text in str(caught.value)


def test_a_file_is_checked_as_a_command_line_is() -> None:
    texts = {"linger.ms": "5", "enable.idempotence": "true", "batch_size": "100"}
    assert resolve(texts, texts=True, file=True) == resolve(texts, texts=True)
