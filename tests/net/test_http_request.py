"""The request to a token endpoint: the address and the header Host."""

from __future__ import annotations

import socket
import ssl

import pytest

from pykaproducer._net.http_request import HttpRequest
from pykaproducer.testing import TokenReply, TokenServer


@pytest.mark.parametrize(
    ("where", "host", "port", "header"),
    [
        ("[::1]", "::1", 80, "[::1]"),
        ("[::abcd]", "::abcd", 80, "[::abcd]"),
        ("[::1]:8080", "::1", 8080, "[::1]:8080"),
        ("login.example", "login.example", 80, "login.example"),
        ("login.example:80", "login.example", 80, "login.example"),
        ("login.example:443", "login.example", 443, "login.example:443"),
    ],
)
def test_the_host_and_the_port(
    monkeypatch: pytest.MonkeyPatch, where: str, host: str, port: int, header: str
) -> None:
    """Connects elsewhere, because not every system has IPv6, nor may a test listen on port 80."""
    opened: list[tuple[str, int]] = []

    def open_here(request: HttpRequest, host: str, port: int, deadline: float) -> socket.socket:
        opened.append((host, port))
        return socket.create_connection(address)

    monkeypatch.setattr(HttpRequest, "_open", open_here)
    with TokenServer({}) as server:
        address = ("127.0.0.1", int(server.url.rpartition(":")[2].partition("/")[0]))
        server.answer = lambda request: TokenReply.of(200)
        request = HttpRequest(
            f"http://{where}/token", ssl.create_default_context, 60.0, 60.0, ("a", "b", "c")
        )
        assert request.send("GET", {}, None).status == 200
        assert opened == [(host, port)]
        assert server.requests[-1].headers["host"] == header
