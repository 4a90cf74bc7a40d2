"""The conversations with proxies, byte by byte."""

from __future__ import annotations

import base64

import pytest

from pykaproducer._machines.proxy_handshake import (
    HttpConnectHandshake,
    ProxyHandshake,
    ProxyRefused,
    Socks5Handshake,
)

GRANTED = bytes([5, 0, 0, 1, 10, 0, 0, 1, 0x23, 0x84])
OK = b"HTTP/1.1 200 Connection established\r\n\r\n"


def talk(handshake: ProxyHandshake, *answers: bytes) -> list[bytes]:
    """Return what the client sends; each answer arrives in pieces of one byte."""
    sent = [handshake.begin()]
    for answer in answers:
        sent += filter(None, [handshake.received(bytes([byte])) for byte in answer])
    return sent


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("broker.example", b"\3\x0ebroker.example"),
        ("10.1.2.3", b"\1\x0a\1\2\3"),
        ("::1", b"\4" + bytes(15) + b"\1"),
        ("bröker.example", b"\3\x15xn--brker-kua.example"),
    ],
)
def test_socks5_asks_for_a_name_or_an_address(host: str, address: bytes) -> None:
    handshake = Socks5Handshake(host, 9092)
    sent = talk(handshake, b"\5\0", GRANTED)
    assert sent == [b"\5\1\0", b"\5\1\0" + address + b"\x23\x84"]
    assert handshake.done


@pytest.mark.parametrize("bound", [b"\4" + bytes(18), b"\3\3abc\0\0"])
def test_socks5_may_be_bound_to_any_kind_of_address(bound: bytes) -> None:
    handshake = Socks5Handshake("b", 1)
    talk(handshake, b"\5\0", b"\5\0\0" + bound)
    assert handshake.done


def test_socks5_sends_the_password_if_it_is_asked_for_one() -> None:
    handshake = Socks5Handshake("b", 1, "me", "pässword")
    sent = talk(handshake, b"\5\2", b"\1\0", GRANTED)
    assert sent[:2] == [b"\5\2\0\2", b"\1\2me\x09" + "pässword".encode()]
    assert handshake.done
    handshake = Socks5Handshake("b", 1, "me", "password")
    assert b"password" not in b"".join(talk(handshake, b"\5\0", GRANTED))
    assert handshake.done


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        ([b"\5\xff"], "it requires authentication; put user:password@ before its host"),
        ([b"\5\2"], "it requires authentication"),
        ([b"\4\0"], r"it does not speak SOCKS5: it sent '\\x04\\x00'"),
        (
            [b"HTTP/1.1 400 Bad Request"],
            "it does not speak SOCKS5: it sent 'HTTP/1.1 400 Bad Request'",
        ),
        ([b"\5\0", b"\5\5\0\1" + bytes(6)], "the broker refused its connection"),
        ([b"\5\0", b"\5\2"], "its rules do not allow this connection"),
        ([b"\5\0", b"\5\x63"], "it failed with the unknown code 99"),
        ([b"\5\0", b"\6\0"], "its answer is not SOCKS5"),
        ([b"\5\0", b"\5\0\0\x09" + bytes(6)], "its answer is not SOCKS5"),
        ([b"\5\0", GRANTED[:-1], b"\1extra"], "it sent 5 bytes after its answer: 'extra'"),
    ],
)
def test_a_refusal_of_socks5(answers: list[bytes], text: str) -> None:
    handshake = Socks5Handshake("b", 1)
    *ordinary, last = answers
    for answer in ordinary:
        talk(handshake, answer)
    with pytest.raises(ProxyRefused, match=text):
        handshake.received(last)


def test_socks5_rejects_credentials() -> None:
    with pytest.raises(ProxyRefused, match="it rejected the user name or password in proxy_url"):
        talk(Socks5Handshake("b", 1, "me", "wrong"), b"\5\2", b"\1\1")
    with pytest.raises(ProxyRefused, match="it accepts neither a user name and password nor"):
        talk(Socks5Handshake("b", 1, "me", "wrong"), b"\5\xff")


@pytest.mark.parametrize("kind", [Socks5Handshake, HttpConnectHandshake])
def test_a_name_that_cannot_be_asked_for(kind: type[Socks5Handshake]) -> None:
    with pytest.raises(ProxyRefused, match="cannot express the host name"):
        kind("ö" * 300, 9092)


@pytest.mark.parametrize(
    ("host", "where"),
    [("broker", b"broker:9092"), ("::1", b"[::1]:9092"), ("bröker", b"xn--brker-kua:9092")],
)
def test_http_asks_for_a_host(host: str, where: bytes) -> None:
    handshake = HttpConnectHandshake(host, 9092)
    assert talk(handshake, b"HTTP/1.0 100 Continue\r\n\r\n" + OK) == [
        b"CONNECT " + where + b" HTTP/1.1\r\nHost: " + where + b"\r\n\r\n"
    ]
    assert handshake.done


def test_http_sends_the_password() -> None:
    (sent,) = talk(HttpConnectHandshake("b", 1, "me", "s3:cret"), OK)
    token = base64.b64encode(b"me:s3:cret")
    assert b"\r\nProxy-Authorization: Basic " + token + b"\r\n\r\n" in sent


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.1 407 No\r\n\r\n", "it requires authentication; put user:password@"),
        (b"HTTP/1.1 403 Forbidden\r\nX: y\r\n\r\n", "it answered 403 Forbidden$"),
        (b"HTTP/1.1 502\r\n\r\n", "it answered 502$"),
        (b"HTTP/1.1 503 \x1b[31mred\r\n\r\n", r"it answered 503 \[31mred$"),
        (b"\5\0", "it does not speak HTTP: it sent "),
        (b"HTTP/1.1 what\r\n\r\n", "its answer is not HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 3000, "its answer is longer than 16384 bytes"),
    ],
)
def test_a_refusal_of_http(answer: bytes, text: str) -> None:
    with pytest.raises(ProxyRefused, match=text):
        talk(HttpConnectHandshake("b", 1), answer)


def test_http_proxies_must_answer_some_day() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    with pytest.raises(ProxyRefused, match="its answer is longer than 16384 bytes"):
        talk(HttpConnectHandshake("b", 1), *[interim] * (16384 // len(interim) + 1))
    with pytest.raises(ProxyRefused, match="its answer is longer than 16384 bytes"):
        talk(HttpConnectHandshake("b", 1), *[interim] * 8, b"HTTP/1.1 100 " + b"C" * 16300)


def test_http_rejects_credentials_and_extra_bytes() -> None:
    with pytest.raises(ProxyRefused, match="it rejected the user name or password in proxy_url"):
        talk(HttpConnectHandshake("b", 1, "me", "wrong"), b"HTTP/1.1 407 No\r\n\r\n")
    with pytest.raises(ProxyRefused, match="it sent 5 bytes after its answer: 'extra'"):
        HttpConnectHandshake("b", 1).received(OK + b"extra")
