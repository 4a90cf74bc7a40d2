"""A real broker behind a proxy: ``proxy_url``."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pykaproducer import DeliveryTimeoutError, KafkaProducer, Producer, Status
from pykaproducer.testing import KafkaCluster
from tests._support.logs import told_by_log
from tests._support.proxies import Proxy, ScriptedProxy
from tests.cluster.readback import read_log

from .listeners import PASSWORD, On

SOON = 30.0
#: The password of the proxy must never appear in any output.
SECRET = "proxy-" + PASSWORD
#: One that tinyproxy's configuration can express.
WORD = "proxyword"
LISTENERS: list[On | None] = [None, On.TLS, On.CLIENT_CERTIFICATE, On.SCRAM_512]


def settings(secured: KafkaCluster, listener: On | None) -> dict[str, Any]:
    """Return the settings for *listener*; None: the one without TLS and SASL."""
    if listener is not None:
        return secured.settings(listener=listener)
    broker = secured.brokers[0]
    return {"bootstrap_servers": f"{broker.host}:{broker.port}"}


@pytest.mark.parametrize("scheme", ["socks5", "socks5h", "http"])
@pytest.mark.parametrize("listener", LISTENERS, ids=lambda one: one.name if one else "PLAINTEXT")
def test_messages_go_through_a_proxy(
    secured: KafkaCluster, secured_topic: str, scheme: str, listener: On | None
) -> None:
    with Proxy(("me", SECRET)) as proxy:
        url = proxy.url(scheme, f"me:{SECRET}@")
        given = {**settings(secured, listener), "proxy_url": url}
        with Producer(**given) as producer:
            for number in range(3):
                producer.send(secured_topic, b"%d" % number).result(SOON)
            assert SECRET not in repr(producer)
        ports = {int(one.rpartition(":")[2]) for one in given["bootstrap_servers"].split(",")}
        assert {port for _, port in proxy.asked} == ports
    assert read_log(secured, secured_topic).values == [b"0", b"1", b"2"]


def test_the_former_name_of_the_setting_in_kafka_python(
    secured: KafkaCluster, secured_topic: str
) -> None:
    servers = settings(secured, None)["bootstrap_servers"]
    with Proxy() as proxy:
        with KafkaProducer(
            bootstrap_servers=servers, socks5_proxy=proxy.url("socks5h")
        ) as producer:
            producer.send(secured_topic, b"k").get(SOON)
        assert proxy.asked
    assert read_log(secured, secured_topic).values == [b"k"]


def test_the_name_of_the_broker_is_checked_through_the_proxy(
    secured: KafkaCluster, secured_topic: str
) -> None:
    with Proxy() as proxy:
        text = failed(settings(secured, On.OTHER_HOST), secured_topic, proxy.url("http"))
    assert "the broker's certificate is not for '127.0.0.1'" in text


# Failures -----------------------------------------------------------------------------------------


def failed(given: dict[str, Any], topic: str, url: str) -> str:
    """Return the error of a message that waits for its deadline, after a failed attempt."""
    with Producer(**given, proxy_url=url) as producer, told_by_log("trying again") as told:
        producer.send(topic, b"first", on_delivery=lambda *_: None)
        assert told.wait(SOON)
        error = producer.send(topic, b"v", delivery_timeout_ms=50).exception(SOON)
        producer.close(0)
    assert isinstance(error, DeliveryTimeoutError)
    assert error.status is Status.NOT_PERSISTED
    assert "\n" not in str(error)
    return str(error)


@contextmanager
def refusing(answer: bytes) -> Iterator[str]:
    with ScriptedProxy(answer) as proxy:
        yield f"127.0.0.1:{proxy.port}"


@contextmanager
def nobody() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    yield f"127.0.0.1:{port}"


@contextmanager
def demanding() -> Iterator[str]:
    with Proxy(("somebody", "else")) as proxy:
        yield f"127.0.0.1:{proxy.port}"


@pytest.mark.parametrize(
    ("scheme", "kind", "reason"),
    [
        ("socks5", nobody(), "connection refused: nothing listens there"),
        ("socks5", demanding(), "it rejected the user name or password in proxy_url"),
        ("http", demanding(), "it rejected the user name or password in proxy_url"),
        ("socks5h", refusing(b"nonsense"), "it does not speak SOCKS5: it sent 'nonsense'"),
        ("http", refusing(b"HTTP/1.1 403 Forbidden\r\n\r\n"), "it answered 403 Forbidden"),
        ("http", refusing(b"\0\1\2"), r"it does not speak HTTP: it sent '\x00\x01\x02'"),
    ],
)
def test_the_error_names_the_proxy_and_the_reason(
    secured: KafkaCluster,
    secured_topic: str,
    caplog: pytest.LogCaptureFixture,
    scheme: str,
    kind: Any,
    reason: str,
) -> None:
    given = settings(secured, None)
    with kind as where:
        text = failed(given, secured_topic, f"{scheme}://me:{SECRET}@{where}")
    assert f"the proxy {scheme}://{where}: {reason}" in text
    lines = [line for line in caplog.messages if "the proxy " in line]
    assert lines
    assert not any(SECRET in line for line in [text, *caplog.messages])
    # Each kind of failure is logged once for each stage.
    assert len(lines) <= 2


# Other people's proxies ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "scheme"),
    [("microsocks", "socks5h"), ("microsocks", "socks5"), ("tinyproxy", "http")],
)
def test_a_proxy_of_somebody_else(
    secured: KafkaCluster, secured_topic: str, tmp_path: Any, program: str, scheme: str
) -> None:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [found, "-i", "127.0.0.1", "-p", str(port), "-u", "me", "-P", WORD]
    if program == "tinyproxy":
        path = tmp_path / "tinyproxy.conf"
        path.write_text(
            f"Port {port}\nListen 127.0.0.1\nTimeout 600\nMaxClients 20\nBasicAuth me {WORD}\n"
        )
        command = [found, "-d", "-c", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        # The producer tries again until the proxy listens.
        with Producer(
            **settings(secured, On.SCRAM_512),
            proxy_url=f"{scheme}://me:{WORD}@127.0.0.1:{port}",
        ) as producer:
            producer.send(secured_topic, b"v").result(SOON)
    finally:
        process.kill()
        process.wait()
    assert read_log(secured, secured_topic).values == [b"v"]
