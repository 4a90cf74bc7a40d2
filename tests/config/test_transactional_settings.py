"""The settings of a transactional producer: what is accepted, and what else they decide."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from kafka.errors import KafkaConfigurationError

from pykaproducer import KafkaProducer, Producer
from pykaproducer.config import Config, read_settings
from pykaproducer.confluent import KafkaError, KafkaException
from pykaproducer.confluent import Producer as ConfluentProducer
from pykaproducer.confluent.settings import translate
from pykaproducer.errors import ConfigurationError

INT32 = 2**31 - 1


@pytest.mark.parametrize(
    "name",
    ["a", "app-1", "none", "with space", "tab\tnewline\n", "Zürich/北京 \N{SNOWMAN}", "x" * 32_767],
)
def test_any_text_is_an_id(name: str) -> None:
    made = Config.from_kwargs({"transactional_id": name})
    assert made.transactional_id == name
    assert made.idempotent


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "'' was given; allowed: a non-empty string"),
        ("x" * 32_768, "(it has 32768 bytes)"),
        ("ü" * 16_384, "(it has 32768 bytes)"),
        ("half \ud800", "it is not valid Unicode"),
        ("a\0b", "it contains a NUL character"),
        (b"bytes", "allowed: a non-empty string"),
        (5, "5 was given; allowed: a non-empty string of at most 32767 bytes in UTF-8, or None"),
    ],
)
def test_what_is_no_id_is_refused_with_the_reason(value: Any, why: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Producer(transactional_id=value)
    assert str(raised.value).startswith("setting transactional_id: ")
    assert why in str(raised.value)
    assert len(str(raised.value)) < 250


@pytest.mark.parametrize("value", [0, -1, INT32 + 1, 2**63, float("inf"), float("nan"), "60000"])
def test_a_timeout_fits_the_protocol(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"milliseconds from 1 to {INT32}"):
        Producer(transactional_id="a", transaction_timeout_ms=value)
    made = Config.from_kwargs({"transactional_id": "a", "transaction_timeout_ms": INT32})
    assert made.transaction_timeout_ms == INT32


@pytest.mark.parametrize(
    ("conflict", "text"),
    [
        ({"enable_idempotence": False}, "transactional_id without enable_idempotence"),
        ({"enable_idempotence": False}, "conflicts with enable_idempotence=False"),
        ({"acks": 1}, "acks=1"),
        ({"acks": 0, "retries": 0}, "acks=0 and retries=0"),
        ({"retries": 0}, "retries=0"),
        ({"max_in_flight_requests_per_connection": 6}, "max_in_flight_requests_per_connection=6"),
    ],
)
@pytest.mark.parametrize("kind", [Producer, KafkaProducer])
def test_transactions_need_idempotence(
    kind: type[Producer], conflict: dict[str, Any], text: str
) -> None:
    with pytest.raises(KafkaConfigurationError) as raised:
        kind(transactional_id="a", **conflict)
    assert text in str(raised.value)


def test_kafka_python_s_api_version_is_heeded() -> None:
    with pytest.raises(KafkaConfigurationError, match=r"transactional_id .*version 0\.11 or later"):
        KafkaProducer(transactional_id="a", api_version=(0, 10))


def test_both_are_read_from_a_file_of_the_java_client(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "transactional.id=app-1\ntransaction.timeout.ms=5000\n"
        "transaction.two.phase.commit.enable=false\n"
    )
    assert read_settings(file) == {"transactional_id": "app-1", "transaction_timeout_ms": 5_000}
    assert not caplog.text
    file.write_text("transactional.id=app-1\ntransaction.two.phase.commit.enable=true\n")
    assert read_settings(file) == {"transactional_id": "app-1"}
    assert "two-phase commit (KIP-939) is not supported" in caplog.text


# confluent-kafka's names --------------------------------------------------------------------------


def ours(**settings: Any) -> dict[str, Any]:
    """Return our settings for librdkafka's, whose names have underscores here."""
    return translate({name.replace("_", "."): value for name, value in settings.items()}).ours


def test_an_id_of_librdkafka_implies_what_it_does_there() -> None:
    found = ours(transactional_id="app-1")
    assert found["transactional_id"] == "app-1"
    assert found["enable_idempotence"] is True
    assert found["delivery_timeout_ms"] == 60_000
    assert ours(transactional_id="a", transaction_timeout_ms=5_000)["delivery_timeout_ms"] == 5_000
    longer = ours(transactional_id="a", transaction_timeout_ms=900_000)
    assert (longer["delivery_timeout_ms"], longer["transaction_timeout_ms"]) == (300_000, 900_000)


@pytest.mark.parametrize("empty", ["", "  ", None])
def test_an_empty_id_of_librdkafka_is_none(empty: Any) -> None:
    found = ours(transactional_id=empty)
    assert "transactional_id" not in found
    assert found["delivery_timeout_ms"] == 300_000


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"enable.idempotence": False}, "`transactional.id` requires `enable.idempotence=true`"),
        (
            {"message.timeout.ms": 60_001},
            "`message.timeout.ms` must be set <= `transaction.timeout.ms`",
        ),
        (
            {"delivery.timeout.ms": 2_000, "transaction.timeout.ms": 1_999},
            "`message.timeout.ms` must be set <= `transaction.timeout.ms`",
        ),
        ({"transaction.timeout.ms": 999}, "outside allowed range 1000..2147483647"),
        ({"transaction.timeout.ms": INT32 + 1}, "outside allowed range 1000..2147483647"),
        ({"acks": 1}, "acks=1"),
        ({"retries": 0}, "retries=0"),
        ({"max.in.flight": 6}, "max_in_flight_requests_per_connection=6"),
    ],
)
def test_what_contradicts_it_is_an_invalid_argument(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(KafkaException) as raised:
        ConfluentProducer({"transactional.id": "a", **settings})
    assert raised.value.args[0] == KafkaError._INVALID_ARG
    assert text in raised.value.args[0].str()
