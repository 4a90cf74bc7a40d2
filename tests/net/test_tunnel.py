"""Connections through a proxy, on real sockets."""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pykaproducer._net.connection import Lost
from pykaproducer._net.networks import network_for
from pykaproducer._net.secure import SecureNetwork
from pykaproducer._net.transport import ConnectionFailed, Network, Transport
from pykaproducer.config import Config
from pykaproducer.testing import FakeClock
from tests._support.proxies import Proxy, ScriptedProxy
from tests.net.helper import Talk, connect, wait
from tests.net.tls_server import Files, Server, echo, receive, send_all, server_context

pytest.importorskip("trustme")

from pykaproducer.testing._certificates import CertificateAuthority

ME = ("me", "p@ss/word")
QUOTED = "me:p%40ss%2Fword@"


def network(url: str, **settings: Any) -> Network:
    return network_for(Config.from_kwargs({"proxy_url": url, **settings}))


def reached(made: Network, host: str, port: int) -> Transport:
    """Return a connection to the first address that works."""
    error: ConnectionFailed | None = None
    for endpoint in made.resolve(host, port):
        try:
            return connect(made, endpoint)
        except ConnectionFailed as failed:
            error = failed
    assert error is not None
    raise error


def exchange(transport: Transport, data: bytes) -> bytes:
    send_all(transport, data)
    return receive(transport, len(data))


@pytest.fixture
def echoing() -> Iterator[Server]:
    with Server(None, echo) as server:
        yield server


@pytest.mark.parametrize("scheme", ["socks5", "socks5h", "http"])
@pytest.mark.parametrize("credentials", [None, ME], ids=["open", "password"])
def test_bytes_go_through(
    echoing: Server, scheme: str, credentials: tuple[str, str] | None
) -> None:
    with Proxy(credentials) as proxy:
        made = network(proxy.url(scheme, QUOTED if credentials else ""))
        with contextlib.closing(reached(made, "127.0.0.1", echoing.port)) as transport:
            assert exchange(transport, b"through the proxy") == b"through the proxy"
        assert proxy.asked == [("127.0.0.1", echoing.port)]


@pytest.mark.parametrize("scheme", ["socks5h", "http"])
def test_the_proxy_resolves_the_name(echoing: Server, scheme: str) -> None:
    """Nobody but the proxy knows the broker's name."""
    with Proxy(names={"broker.invalid": "127.0.0.1"}) as proxy:
        made = network(proxy.url(scheme))
        with contextlib.closing(reached(made, "broker.invalid", echoing.port)) as transport:
            assert exchange(transport, b"x") == b"x"
        assert proxy.asked == [("broker.invalid", echoing.port)]


def test_socks5_resolves_the_name_here(echoing: Server) -> None:
    with Proxy() as proxy:
        made = network(proxy.url("socks5"))
        assert {each.beyond[0] for each in made.resolve("localhost", 1) if each.beyond} <= {
            "127.0.0.1",
            "::1",
        }
        with contextlib.closing(reached(made, "localhost", echoing.port)):
            pass
        assert ("127.0.0.1", echoing.port) in proxy.asked
        with pytest.raises(ConnectionFailed, match=r"host name 'broker.invalid' cannot be resol"):
            made.resolve("broker.invalid", 9092)


@pytest.mark.parametrize("scheme", ["socks5", "http"])
def test_a_broker_and_a_proxy_with_ipv6(scheme: str) -> None:
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("the system has no IPv6 loopback address")
    with listener, Proxy(host="::1") as proxy:
        port = listener.getsockname()[1]
        with contextlib.closing(reached(network(proxy.url(scheme)), "::1", port)):
            far_end, _ = listener.accept()
            far_end.close()
        assert proxy.asked == [("::1", port)]


# TLS ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(Path(tmp_path_factory.mktemp("tls")), CertificateAuthority("an authority"))


@pytest.mark.parametrize("scheme", ["socks5h", "http"])
def test_tls_goes_to_the_broker_whose_name_is_checked(files: Files, scheme: str) -> None:
    context: ssl.SSLContext = server_context(files.issued("broker", "broker.invalid"))
    names = {"broker.invalid": "127.0.0.1", "other.invalid": "127.0.0.1"}
    with Server(context, echo) as server, Proxy(names=names) as proxy:
        settings = {"security_protocol": "SSL", "ssl_cafile": files.ca}
        made = network(proxy.url(scheme), **settings)
        assert isinstance(made, SecureNetwork)
        with contextlib.closing(reached(made, "broker.invalid", server.port)) as transport:
            assert exchange(transport, b"secret") == b"secret"
        with pytest.raises(ConnectionFailed, match=r"not valid for 'other.invalid'|other.invalid"):
            reached(made, "other.invalid", server.port)


# Failures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "answers", "text"),
    [
        ("socks5h", [b"\5\xff"], "it requires authentication; put user:password@ before its host"),
        ("socks5h", [b"\5\0", b"\5\2\0\1" + bytes(6)], "its rules do not allow this connection"),
        ("socks5h", [b"garbage"], "it does not speak SOCKS5: it sent 'garbage'"),
        ("socks5h", [b""], "closed the connection before it had answered"),
        ("http", [b"HTTP/1.1 403 Forbidden\r\n\r\n"], "it answered 403 Forbidden"),
        ("http", [b"SSH-2.0-OpenSSH_9.2\r\n"], "it does not speak HTTP: it sent 'SSH-2.0-OpenSSH"),
        ("http", [b"HTTP/1.1 200 OK\r\n"], "closed the connection before it had answered"),
    ],
)
def test_a_proxy_that_does_not_connect(scheme: str, answers: list[bytes], text: str) -> None:
    with ScriptedProxy(*answers) as proxy:
        url = f"{scheme}://127.0.0.1:{proxy.port}"
        with pytest.raises(ConnectionFailed) as caught:
            reached(network(url), "broker.invalid", 9092)
    assert str(caught.value).startswith(f"the proxy {url}")
    assert text in str(caught.value)


@pytest.mark.parametrize("scheme", ["socks5h", "http"])
def test_the_password_is_in_no_error(scheme: str) -> None:
    with Proxy(("me", "another")) as proxy:
        with pytest.raises(ConnectionFailed) as caught:
            reached(network(proxy.url(scheme, QUOTED)), "127.0.0.1", 9)
        assert str(caught.value) == (
            f"the proxy {proxy.url(scheme)}: it rejected the user name or password in proxy_url"
        )


def test_the_broker_refuses_the_proxy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with Proxy() as proxy:
        with pytest.raises(ConnectionFailed, match=r"the broker refused its connection$"):
            reached(network(proxy.url("socks5")), "127.0.0.1", port)
        with pytest.raises(ConnectionFailed, match=r"it answered 502 Bad Gateway$"):
            reached(network(proxy.url("http")), "127.0.0.1", port)


def test_there_is_no_proxy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"socks5://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(ConnectionFailed) as caught:
        reached(network(url), "127.0.0.1", 9092)
    assert str(caught.value) == f"the proxy {url}: connection refused: nothing listens there"
    with pytest.raises(ConnectionFailed) as caught:
        network("socks5://u:p@no-proxy.invalid").resolve("127.0.0.1", 9092)
    assert str(caught.value).startswith(
        "the host name of the proxy socks5://no-proxy.invalid:1080 cannot be resolved: "
    )


def test_a_proxy_that_never_ends_its_answer() -> None:
    """It sends faster than it is read, until the connection is given up."""

    def flood(client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)

    with Server(None, flood) as proxy:
        made = network(f"http://127.0.0.1:{proxy.port}")
        with pytest.raises(ConnectionFailed, match="its answer is longer than 16384 bytes"):
            reached(made, "127.0.0.1", 9092)


def test_a_proxy_is_read_once_at_a_time() -> None:
    """Whoever waits for it looks at the time between two reads."""
    answers = b"HTTP/1.1 100 Continue\r\n\r\n" * 400
    with ScriptedProxy(answers, then_close=False) as proxy:
        made = network(f"http://127.0.0.1:{proxy.port}")
        (endpoint,) = made.resolve("127.0.0.1", 9092)
        with contextlib.closing(made.connect(endpoint)) as transport:
            while transport.finish_connect() != selectors.EVENT_READ:
                wait(transport, selectors.EVENT_WRITE)
            with selectors.DefaultSelector() as selector:
                selector.register(transport, selectors.EVENT_READ)
                for _ in range(0, len(answers), 4096):
                    assert selector.select(30), "everything was read before"
                    assert transport.finish_connect() == selectors.EVENT_READ


def test_a_slow_proxy() -> None:
    clock = FakeClock()
    with ScriptedProxy(then_close=False) as proxy:
        url = f"http://127.0.0.1:{proxy.port}"
        talk = Talk(network(url), address=("broker.invalid", 9092), clock=clock)
        talk.connection.open()
        clock.jump(10)
        (lost,) = talk.connection.poll(clock.monotonic())
        assert isinstance(lost, Lost)
        assert lost.reason in (
            f"the answer of the proxy {url} (does it speak HTTP CONNECT?) took too long",
            f"connecting to the proxy {url} took too long",
        )
        talk.close()
