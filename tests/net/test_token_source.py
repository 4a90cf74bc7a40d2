"""Requests for tokens, to a real HTTP server; what an endpoint may do wrong."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography")

from pykaproducer._net.http_request import LARGEST, HttpRequest
from pykaproducer._net.token_source import NoToken, Token, TokenSource
from pykaproducer.config import Config
from pykaproducer.errors import ConfigurationError
from pykaproducer.testing import TokenReply, TokenServer
from tests._support.keys import ec_key, pem_of, public_pem, rsa_key
from tests.net.tls_server import Files

SECRET = "hunter2"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
#: For a test that must not be slow, and one that must not fail on a slow machine (milliseconds).
SHORT, LONG = 300, 60_000


@pytest.fixture
def server() -> Iterator[TokenServer]:
    with TokenServer({"me": SECRET}) as made:
        yield made


def config(**settings: Any) -> Config:
    given = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER", **settings}
    return Config.from_kwargs({n: v for n, v in given.items() if v is not None})


def basic(url: str, **settings: Any) -> TokenSource:
    wanted: dict[str, Any] = {
        "sasl_oauthbearer_token_endpoint_url": url,
        "sasl_oauthbearer_client_id": "me",
        "sasl_oauthbearer_client_secret": SECRET,
    }
    return TokenSource(config(**wanted | settings))


def fetch(source: TokenSource) -> Token:
    return source.fetch(time.time())


def failure(source: TokenSource, *, permanent: bool = False) -> str:
    with pytest.raises(NoToken) as caught:
        fetch(source)
    text = str(caught.value)
    assert SECRET not in text
    assert "\n" not in text
    assert caught.value.permanent == permanent
    assert caught.value.__context__ is None  # which may contain a part of a token
    return text


# Grants -----------------------------------------------------------------------------------------


def test_client_credentials(server: TokenServer) -> None:
    made = fetch(basic(server.url, sasl_oauthbearer_scope="events other"))
    assert claims(made.text)["sub"] == "me"
    assert made.lifetime == 3600.0
    assert made.text not in repr(made)
    (request,) = server.requests
    assert request.basic == ("me", SECRET)
    assert request.form == {"grant_type": "client_credentials", "scope": "events other"}
    assert request.headers["content-type"] == "application/x-www-form-urlencoded"


def claims(token: str) -> dict[str, Any]:
    part = token.split(".")[1]
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return found


def test_the_encoding_of_the_header(server: TokenServer) -> None:
    server.clients = {"a:b c": SECRET, "a%3Ab+c": SECRET}
    source = basic(
        server.url, sasl_oauthbearer_client_id="a:b c", sasl_oauthbearer_header_urlencode=True
    )
    assert claims(fetch(source).text)["sub"] == "a%3Ab+c"
    assert server.requests[-1].basic == ("a%3Ab+c", SECRET)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
@pytest.mark.parametrize("grant", [None, JWT_BEARER])
def test_signed_assertions(
    server: TokenServer, tmp_path: Path, algorithm: str, grant: str | None
) -> None:
    key = rsa_key() if algorithm == "RS256" else ec_key()
    path = tmp_path / "key.pem"
    path.write_bytes(pem_of(key, SECRET))
    server.public_keys = {"me": public_pem(key)}
    template = tmp_path / "template.json"
    template.write_text('{"header": {"kid": "one"}, "payload": {"extra": 5, "aud": "other"}}')
    source = basic(
        server.url,
        # A secret is not used if there is an assertion (KIP-1258).
        sasl_oauthbearer_client_secret=None if grant else SECRET,
        sasl_oauthbearer_grant_type=grant,
        sasl_oauthbearer_assertion_algorithm=algorithm,
        sasl_oauthbearer_assertion_private_key_file=path,
        sasl_oauthbearer_assertion_private_key_passphrase=SECRET,
        sasl_oauthbearer_assertion_claim_aud=server.url,
        sasl_oauthbearer_assertion_claim_jti_include=True,
        sasl_oauthbearer_assertion_template_file=template,
    )
    assert claims(fetch(source).text)["sub"] == "me"
    fetch(source)
    names = ["assertion" if grant else "client_assertion"]
    first, second = (request.form[names[0]] for request in server.requests)
    assert all(request.basic is None for request in server.requests)
    content = claims(first)
    assert (content["iss"], content["sub"], content["aud"]) == ("me", "me", server.url)
    assert content["exp"] - content["iat"] == 300
    assert content["iat"] - content["nbf"] == 60
    assert content["extra"] == 5
    assert content["jti"] != claims(second)["jti"]
    header = json.loads(base64.urlsafe_b64decode(first.split(".")[0] + "=="))
    assert header == {"alg": algorithm, "typ": "JWT", "kid": "one"}


def test_an_assertion_in_a_file_is_read_again(server: TokenServer, tmp_path: Path) -> None:
    path = tmp_path / "assertion"
    path.write_text("first.a.b\n")
    server.answer = lambda request: TokenReply.of(200, access_token="t", expires_in=10)
    source = TokenSource(
        config(sasl_oauthbearer_token_endpoint_url=server.url, sasl_oauthbearer_assertion_file=path)
    )
    fetch(source)
    path.write_text("second.a.b\n")
    fetch(source)
    sent = [request.form["client_assertion"] for request in server.requests]
    assert sent == ["first.a.b", "second.a.b"]
    path.unlink()
    assert "cannot be read: No such file" in failure(source)


def test_a_token_in_a_file(server: TokenServer, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(server.token("me", lifetime=100) + "\n")
    source = TokenSource(config(sasl_oauthbearer_token_endpoint_url=f"file://{path}"))
    assert 90 < fetch(source).lifetime <= 101
    path.write_text(server.token("me", lifetime=-100))
    assert "the token has expired" in failure(source)
    assert "is the clock of this machine right?" in failure(source)


def test_a_managed_identity(server: TokenServer) -> None:
    wanted: dict[str, Any] = {
        "sasl_oauthbearer_metadata_authentication_type": "azure_imds",
        "sasl_oauthbearer_token_endpoint_url": server.azure_url,
    }
    query = "api-version=2018-02-01&resource=api://events&client_id=me"
    made = fetch(TokenSource(config(**wanted, sasl_oauthbearer_config=f"query={query}")))
    assert claims(made.text)["sub"] == "me"
    assert made.lifetime == 3600.0
    (request,) = server.requests
    assert request.method == "GET"
    assert request.headers["metadata"] == "true"
    assert request.form["resource"] == "api://events"
    wanted["sasl_oauthbearer_token_endpoint_url"] += f"?{query}"
    fetch(TokenSource(config(**wanted)))
    assert server.requests[-1].form == request.form
    source = TokenSource(config(**wanted | {"sasl_oauthbearer_config": "query=a=b"}))
    assert failure(source, permanent=True) == "HTTP 400 Bad Request: invalid_request"


def test_the_service_of_azure_is_the_default() -> None:
    made = config(
        sasl_oauthbearer_metadata_authentication_type="azure_imds",
        sasl_oauthbearer_config="query=resource=x",
    )
    assert TokenSource(made).origin == "http://169.254.169.254/metadata/identity/oauth2/token"


# Failures ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "text", "permanent"),
    [
        (
            TokenReply.of(401, error="invalid_client", error_description="Wrong"),
            "HTTP 401 Unauthorized: invalid_client: Wrong",
            True,
        ),
        (
            TokenReply.of(400, error="invalid_grant", error_description=f"not {SECRET}\n!"),
            "HTTP 400 Bad Request: invalid_grant: not <not shown> !",
            True,
        ),
        (
            TokenReply.of(
                400, error="bad", message="eyJhbGciOiJ9.eyJzdWIiOiJ9.c2ln and bWU6aHVudGVyMg=="
            ),
            "HTTP 400 Bad Request: bad: <not shown> and <not shown>",
            True,
        ),
        (TokenReply(200, b"{", {"Content-Length": "5"}), "the answer is incomplete", False),
        (TokenReply.of(403, errorCode="E1", errorSummary="no"), "HTTP 403 Forbidden: E1: no", True),
        (TokenReply.of(429, error="slow_down"), "HTTP 429 Too Many Requests: slow_down", False),
        (TokenReply(503, b"<html>busy</html>"), "HTTP 503 Service Unavailable", False),
        (
            TokenReply(302, b"", {"Location": "http://127.0.0.1:1/"}),
            "HTTP 302 Found; redirects are not followed, because they could leak the credentials",
            True,
        ),
        (
            TokenReply(200, b"<html>login</html>", {"Content-Type": "text/html; charset=utf-8"}),
            "the answer is not a JSON object but text/html; is the URL right?",
            False,
        ),
        (
            TokenReply(200, b"\xff\x00garbage", {}),
            "the answer is not a JSON object; is the URL right?",
            False,
        ),
        (TokenReply(200, b"[" * 100_000, {}), "the answer is not a JSON object; is the UR", False),
        (TokenReply(200, b"[5]", {}), "the answer is not a JSON object; is the URL right?", False),
        (TokenReply.of(200, id_token="x", a=1), "has no access_token; it has: a, id_token", False),
        (TokenReply.of(200, access_token=12), "in the answer is not a token, but a number", False),
        (TokenReply.of(200, access_token=""), "is not a token, but an empty string", False),
        (TokenReply.of(200, access_token=None), "is not a token, but null", False),
        (TokenReply.of(200, access_token={"a": 1}), "is not a token, but an object", False),
        (TokenReply.of(200), "the answer has no access_token; it has: nothing", False),
        (
            TokenReply.of(200, error="bad", error_description="very"),
            "the answer has no access_token, but an error: bad: very",
            False,
        ),
        (TokenReply.of(200, access_token="a b"), "characters that no token may have", False),
        (TokenReply.of(200, access_token="a\1b=c"), "characters that no token may have", False),
        (
            TokenReply.of(200, access_token="t", expires_in=-5),
            "the token has expired 5 s ago; expires_in is -5",
            False,
        ),
        (
            TokenReply.of(200, access_token="t", expires_in=0),
            "the token expires at once; expires_in is 0",
            False,
        ),
        (TokenReply(200, b"x" * (LARGEST + 1)), f"the answer has more than {LARGEST} bytes", False),
        # Not in a time that grows with the square of the text's length.
        (TokenReply.of(500, error="e" * 1_000_000), "HTTP 500 Internal Server Error: eee", False),
        (TokenReply.of(200, **{"n" * 99_999 + str(n): 1 for n in range(9)}), "it has: nnn", False),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_answers_without_a_token(
    server: TokenServer, reply: TokenReply, text: str, permanent: bool
) -> None:
    server.answer = lambda request: reply
    found = failure(basic(server.url), permanent=permanent)
    assert text in found
    assert len(found) < 300


@pytest.mark.parametrize("echoed", ["my  own secret", "my own secret", "my\n own secret"])
def test_a_secret_with_white_space_is_not_shown(server: TokenServer, echoed: str) -> None:
    source = basic(server.url, sasl_oauthbearer_client_secret="my  own secret")
    server.answer = lambda request: TokenReply.of(400, error=f"'{echoed}' is wrong")
    expected = "HTTP 400 Bad Request: '<not shown>' is wrong"
    assert failure(source, permanent=True) == expected


def test_an_assertion_in_a_file_is_not_shown(server: TokenServer, tmp_path: Path) -> None:
    path = tmp_path / "assertion"
    path.write_text("opaque+assertion")
    source = basic(
        server.url, sasl_oauthbearer_client_secret=None, sasl_oauthbearer_assertion_file=path
    )
    error = "opaque+assertion or opaque%2Bassertion"
    server.answer = lambda request: TokenReply.of(400, error=error)
    expected = "HTTP 400 Bad Request: <not shown> or <not shown>"
    assert failure(source, permanent=True) == expected


def test_a_content_type_is_shown_as_other_texts(server: TokenServer) -> None:
    kind = {"Content-Type": f"text/\x1b[31m{SECRET}"}
    server.answer = lambda request: TokenReply(200, b"<html>", kind)
    expected = "the answer is not a JSON object but text/[31m<not shown>; is the URL right?"
    assert failure(basic(server.url)) == expected


@pytest.mark.parametrize(
    ("content", "lifetime"),
    [
        ({"expires_in": 60}, 60.0),
        ({"expires_in": "60"}, 60.0),
        ({"expires_in": 60.5}, 60.5),
        ({}, 300.0),
        ({"expires_in": True}, 300.0),
        ({"expires_in": "soon"}, 300.0),
        ({"expires_in": float("nan")}, 300.0),
        ({"expires_in": 10**400}, 300.0),
    ],
)
def test_the_lifetime(server: TokenServer, content: dict[str, Any], lifetime: float) -> None:
    server.answer = lambda request: TokenReply.of(200, access_token="opaque", **content)
    assert fetch(basic(server.url)).lifetime == lifetime


def test_the_lifetime_in_the_token(server: TokenServer) -> None:
    token = server.token("me", lifetime=500)
    server.answer = lambda request: TokenReply.of(200, access_token=token)
    assert 490 < fetch(basic(server.url)).lifetime <= 501


def test_an_endpoint_that_is_down() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    text = failure(basic(f"http://127.0.0.1:{port}/token"))
    assert text == f"127.0.0.1:{port} cannot be reached: connection refused"


@pytest.mark.parametrize("host", [".example.com", "a..b", "x" * 70, "[::1"])
def test_a_host_name_that_cannot_be_one(host: str) -> None:
    try:
        source = basic(f"https://{host}/token")
    except ConfigurationError:
        return
    assert failure(source)


def test_a_host_that_does_not_exist() -> None:
    text = failure(basic("https://login.invalid/token"))
    assert text.startswith("the host name 'login.invalid' cannot be resolved: ")


def test_a_request_that_cannot_be_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration refuses such values; one that it overlooks must not break anything."""

    def form(source: TokenSource, now: float) -> tuple[dict[str, str], dict[str, str]]:
        return {"X-Header": f"{SECRET}\u20ac"}, {}

    monkeypatch.setattr(TokenSource, "_form", form)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        source = basic(f"http://127.0.0.1:{listener.getsockname()[1]}/token")
        assert failure(source) == "a setting contains characters that HTTP does not allow"


@contextlib.contextmanager
def raw_server(serve: Callable[[socket.socket], object]) -> Iterator[str]:
    """Yield the URL of a server that passes its only connection to *serve*."""

    def run() -> None:
        peer, _ = listener.accept()
        with peer, contextlib.suppress(OSError):
            serve(peer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=run)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/token"
        thread.join(LONG / 1000)


def test_an_endpoint_that_does_not_speak_http() -> None:
    def serve(peer: socket.socket) -> None:
        peer.sendall(b"220 mail.example.com ESMTP\r\n")
        peer.shutdown(socket.SHUT_WR)
        # All of the request, because closing with unread data would reset the connection.
        while peer.recv(1 << 16):
            pass

    with raw_server(serve) as url:
        assert failure(basic(url)) == "the answer is not HTTP; is the URL right?"


def test_an_endpoint_that_hangs_up() -> None:
    with raw_server(lambda peer: peer.recv(1 << 16)) as url:
        assert failure(basic(url)).startswith("the connection was lost: ")
    with raw_server(lambda peer: peer.recv(1 << 16)) as url:
        source = basic(url.replace("http:", "https:"))
        assert "the TLS handshake failed: " in failure(source)


def test_an_endpoint_that_does_not_answer() -> None:
    ended = threading.Event()

    def silent(peer: socket.socket) -> None:
        ended.wait(LONG / 1000)

    expected = "it did not answer within 0.3 s (sasl_login_read_timeout_ms)"
    with raw_server(silent) as url:
        assert failure(basic(url, sasl_login_read_timeout_ms=SHORT)) == expected
        ended.set()


def test_an_endpoint_that_answers_byte_by_byte() -> None:
    """The time is limited for the whole answer, not for each read."""

    def dripping(peer: socket.socket) -> None:
        peer.recv(1 << 16)
        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        peer.settimeout(SHORT / 10_000)
        while True:
            peer.sendall(b" ")
            with contextlib.suppress(TimeoutError):
                if not peer.recv(1):
                    return

    with raw_server(dripping) as url:
        text = failure(basic(url, sasl_login_read_timeout_ms=SHORT))
        assert text == "it did not answer within 0.3 s (sasl_login_read_timeout_ms)"


def test_an_endpoint_that_never_ends_its_interim_answers() -> None:
    def chattering(peer: socket.socket) -> None:
        peer.recv(1 << 16)
        with contextlib.suppress(OSError):
            while True:
                peer.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)

    with raw_server(chattering) as url:
        assert failure(basic(url)) == f"the answer has more than {LARGEST} bytes"


def test_an_endpoint_that_does_not_accept() -> None:
    """Only a TLS handshake can be delayed reliably on loopback; it counts as connecting."""
    ended = threading.Event()
    with raw_server(lambda peer: ended.wait(LONG / 1000)) as url:
        source = basic(url.replace("http:", "https:"), sasl_login_connect_timeout_ms=SHORT)
        expected = "it did not accept the connection within 0.3 s (sasl_login_connect_timeout_ms)"
        assert failure(source) == expected
        ended.set()


@pytest.mark.parametrize("scheme", ["http:", "https:"])
def test_a_request_can_be_cancelled(scheme: str) -> None:
    """With https, it is cancelled during the TLS handshake."""
    asked, ended = threading.Event(), threading.Event()

    def silent(peer: socket.socket) -> None:
        peer.recv(1 << 16)
        asked.set()
        ended.wait(LONG / 1000)

    with raw_server(silent) as url:
        source = basic(
            url.replace("http:", scheme),
            sasl_login_connect_timeout_ms=LONG,
            sasl_login_read_timeout_ms=LONG,
        )
        thread = threading.Thread(target=failure, args=[source])
        thread.start()
        assert asked.wait(LONG / 1000)
        source.cancel()
        thread.join(LONG / 2000)  # less than the timeouts
        is_late = thread.is_alive()
        ended.set()
        assert not is_late
    assert failure(source)


# The address and the header Host ---------------------------------------------------------------


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


# TLS --------------------------------------------------------------------------------------------


def test_an_endpoint_with_tls(tmp_path: Path) -> None:
    pytest.importorskip("trustme")
    from pykaproducer.testing._certificates import CertificateAuthority

    files = Files(tmp_path, CertificateAuthority("an authority"))
    pem = files.authority.certificate
    with TokenServer({"me": SECRET}, tls=files.issued("server", "127.0.0.1")) as server:
        fetch(basic(server.url, sasl_oauthbearer_ca_file=files.ca))
        fetch(basic(server.url, sasl_oauthbearer_ca_pem=pem))
        authorities = tmp_path / "authorities.pem"
        authorities.write_text(CertificateAuthority("a stranger").certificate)
        source = basic(server.url, sasl_oauthbearer_ca_file=authorities)
        assert failure(source).startswith("its certificate is not accepted: ")
        authorities.write_text(pem + "renewed")
        fetch(source)
        authorities.unlink()
        fetch(source)
        text = failure(basic(server.url))
        assert text.startswith("its certificate is not accepted: ")
        assert text.endswith("(trusted authorities: sasl_oauthbearer_ca_file)")
        with_http = server.url.replace("https:", "http:")
        assert failure(basic(with_http))
    with TokenServer({"me": SECRET}, tls=files.issued("other", "other.example")) as server:
        text = failure(basic(server.url, sasl_oauthbearer_ca_file=files.ca))
        assert "IP address mismatch" in text
    expired = files.issued("old", "127.0.0.1", expired=True)
    with TokenServer({"me": SECRET}, tls=expired) as server:
        text = failure(basic(server.url, sasl_oauthbearer_ca_file=files.ca))
        assert "certificate has expired" in text
