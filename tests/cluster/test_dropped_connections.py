"""Connections that a firewall or a load balancer drops silently."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from pykaproducer import Producer
from pykaproducer.testing import FaultProxy, KafkaCluster
from tests._support.pairs import partly

from .readback import read_log

#: Less than request_timeout_ms, which a dropped connection costs without the check (seconds).
SOON = 15.0
#: Every pause is long enough for a check.
CHECKED: dict[str, Any] = {"connections_check_idle_ms": 0.001}


@pytest.fixture(scope="module")
def proxy() -> Iterator[FaultProxy]:
    with FaultProxy() as made:
        yield made


@pytest.fixture(scope="module")
def proxied(proxy: FaultProxy) -> Iterator[KafkaCluster]:
    with KafkaCluster(proxies=[proxy], fast_start=True) as made:
        yield made


@pytest.mark.parametrize(
    "settings",
    partly([{}, {"enable_idempotence": False}, {"stage_threads": "own"}], [{}]),
    ids=["idempotent", "plain", "own"],
)
def test_the_first_message_after_a_silent_drop_is_soon_delivered(
    proxied: KafkaCluster,
    proxy: FaultProxy,
    topic: str,
    settings: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing was written to the dropped connection, so no message is lost or written twice."""
    with Producer(bootstrap_servers=proxied.proxied_servers, **{**CHECKED, **settings}) as producer:
        producer.send(topic, b"0").result(SOON)
        for number in (1, 2):
            assert proxy.drop_silently()
            producer.send(topic, b"%d" % number).result(SOON)
        producer.flush(SOON)
        with caplog.at_level(logging.DEBUG, "pykaproducer"):
            caplog.clear()
            producer.send(topic, b"3").result(SOON)
            producer.flush(SOON)
            # A connection that works is checked, too, and is kept.
            assert any("checking the connection" in text for text in caplog.messages)
            # (The connection for metadata was dropped as well, and may be made again now.)
            assert not any("bridge-0: connected to" in text for text in caplog.messages)
    assert read_log(proxied, topic).values == [b"0", b"1", b"2", b"3"]


def test_metadata_is_found_after_a_silent_drop(
    proxied: KafkaCluster, proxy: FaultProxy, topic: str
) -> None:
    with Producer(bootstrap_servers=proxied.proxied_servers, **CHECKED) as producer:
        producer.send(topic, b"0").result(SOON)
        proxy.drop_silently()
        producer.send(f"{topic}-new", b"1").result(SOON)


@pytest.mark.full
def test_the_cause_is_logged(
    proxied: KafkaCluster, proxy: FaultProxy, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Producer(bootstrap_servers=proxied.proxied_servers, **CHECKED) as producer:
        producer.send(topic, b"0").result(SOON)
        proxy.drop_silently()
        producer.send(topic, b"1").result(SOON)
        (line,) = [text for text in caplog.messages if "was unused" in text]
    assert f"no connection to {proxy.address}: the connection was unused" in line
    assert "connections_max_idle_ms" in line
