"""The core on franz-go's kfake, which decodes each request with franz-go's kmsg.

kfake also behaves as brokers do that cannot be run here: Azure Event Hubs, and proxies.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pykaproducer import Status, TopicPartition, UnsupportedFeatureError

from .fake import Fake, build, running
from .kafka import PATIENCE, committed_offset, create_topic, read
from .releases import MissingError

#: The releases whose request versions it offers; "": all versions that it has.
RELEASES = ["v0.11.0", "v1.0", "v2.0", "v2.4", "v2.8", "v3.9", "v4.0", ""]
CODECS = [None, "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture(scope="module")
def binary() -> Path:
    try:
        return build()
    except MissingError as error:
        pytest.skip(str(error))


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def fake(binary: Path) -> Iterator[Fake]:
    """Yield a cluster of the newest release."""
    with running(binary) as made:
        yield made


def number(release: str) -> tuple[int, ...]:
    return tuple(map(int, release[1:].split("."))) if release else (99,)


def assert_understood(fake: Fake) -> list[dict[str, Any]]:
    """Check that kmsg has decoded each request, and has encoded it to the same bytes."""
    requests = fake.requests()
    # Versions that are too new are tried on purpose.
    others = [each for each in requests if each["Name"] != "ApiVersions"]
    assert [each for each in others if each["Wrong"]] == []
    return requests


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_messages_of_each_codec(binary: Path, release: str, acks: Any) -> None:
    values = [b"message %d, which repeats itself\n" % number * 5 for number in range(100)]
    headers: Any = [("one", b"1"), ("none", None), ("one", b"")]
    codecs = CODECS if number(release) >= (2, 1) else CODECS[:-1]
    with running(binary, "-release", release) as fake:
        create_topic(fake.servers, "t", 2, {})
        for codec in codecs:
            with fake.producer(
                acks=acks,
                enable_idempotence=acks == "all",
                compression_type=codec,
                batch_max_messages=20,
            ) as producer:
                for n, value in enumerate(values):
                    key = b"%d" % n
                    producer.send("t", value, key=key, partition=n % 2, headers=headers)
        found = read(fake.servers, "t", 2, count=len(codecs) * 100)
        assert [[r.value for r in records] for records in found] == [
            values[0::2] * len(codecs),
            values[1::2] * len(codecs),
        ]
        assert {(r.key, *r.headers) for r in found[1]} == {
            (b"%d" % n, *headers) for n in range(1, 100, 2)
        }
        assert {"Produce", "Metadata"} <= {each["Name"] for each in assert_understood(fake)}


def test_transactions(binary: Path, release: str) -> None:
    with running(binary, "-release", release) as fake:
        create_topic(fake.servers, "t", 1, {})
        with fake.producer(transactional_id="id") as producer:
            if number(release) < (2, 5):
                with pytest.raises(UnsupportedFeatureError, match=r"need Kafka 2\.5 or newer"):
                    producer.init_transactions(PATIENCE)
                return
            producer.init_transactions(PATIENCE)
            for n, keep in enumerate((True, False, True)):
                producer.begin_transaction()
                producer.send("t", b"%d" % n)
                producer.send_offsets_to_transaction({TopicPartition("t", 0): n}, "group")
                end = producer.commit_transaction if keep else producer.abort_transaction
                end(PATIENCE)
        assert [record.value for record in read(fake.servers, "t", 1)[0]] == [b"0", b"2"]
        assert committed_offset(fake.servers, "group", "t") == 2
        assert_understood(fake)


# Behaviour of other servers -----------------------------------------------------------------------


def test_a_broker_that_closes_at_a_new_version_of_api_versions(fake: Fake) -> None:
    fake.do("close-on-api-versions-4")
    with fake.producer(delivery_timeout_ms=10_000) as producer:
        assert producer.send("t", b"value").exception(PATIENCE) is None


def test_a_batch_too_large_with_base_offset_0(binary: Path) -> None:
    with running(binary, "-message-max-bytes", "2000") as fake, fake.producer(linger_ms=50) as it:
        deliveries = [it.send("t", b"%0100d" % n) for n in range(500)]
        assert [delivery.exception(PATIENCE) for delivery in deliveries] == [None] * 500
    assert [delivery.offset for delivery in deliveries] == [*range(500)]


def test_an_error_with_base_offset_0(fake: Fake) -> None:
    with fake.producer() as producer:
        producer.send("t", b"value").result(PATIENCE)
        fake.do("fail", Topic="t", Code=29)
        error = producer.send("t", b"value").exception(PATIENCE)
    assert error is not None
    assert "TOPIC_AUTHORIZATION_FAILED" in str(error)
    assert error.status is Status.NOT_PERSISTED


def test_the_second_protocol_behind_a_proxy_with_old_versions(binary: Path) -> None:
    """Kroxylicious 0.9, for example, passes the feature on and cuts Produce at version 11."""
    with running(binary, "-produce", "11") as fake:
        create_topic(fake.servers, "t", 1, {})
        with fake.producer(transactional_id="id", delivery_timeout_ms=3000) as producer:
            producer.init_transactions(PATIENCE)
            producer.begin_transaction()
            error = producer.send("t", b"value").exception(PATIENCE)
            if error is not None:
                producer.abort_transaction(PATIENCE)
            assert error is None
            producer.commit_transaction(PATIENCE)
        assert [record.value for record in read(fake.servers, "t", 1)[0]] == [b"value"]


def test_a_broker_that_answers_acks_0(fake: Fake) -> None:
    create_topic(fake.servers, "t", 1, {})
    fake.do("answer-acks-0")
    fake.requests()
    with fake.producer(acks=0, enable_idempotence=False) as producer:
        for n in range(20):
            producer.send("t", b"%d" % n).result(PATIENCE)
            read(fake.servers, "t", 1, count=n + 1)
    requests = assert_understood(fake)
    assert sum(each["Name"] == "ApiVersions" for each in requests) <= 4
