"""Contents of a file where its path belongs, and PEM text without its line breaks."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest

from pykaproducer import KafkaProducer, Producer
from pykaproducer.config import Config
from pykaproducer.errors import ConfigurationError
from pykaproducer.testing.mock import MockKafkaProducer, MockProducer

KEY = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0\n-----END PRIVATE KEY-----\n"
TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJhbGljZSJ9.c2lnbmF0dXJl"

TLS = {"security_protocol": "SSL"}
OAUTH = {
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "OAUTHBEARER",
    "sasl_oauthbearer_token_endpoint_url": "https://127.0.0.1:1/token",
    "sasl_oauthbearer_client_id": "alice",
}


def refusal(**settings: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        Producer(**settings)
    text = str(caught.value)
    assert "MIIE" not in text
    assert "eyJ" not in text
    assert "\n" not in text
    assert caught.value.__cause__ is None
    return text


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("ssl_cafile", "use ssl_ca_pem for it"),
        ("ssl_certfile", "use ssl_certificate_pem for it"),
        ("ssl_keyfile", "use ssl_key_pem for it"),
        ("ssl_crlfile", "write it to a file"),
        ("ssl_truststore_location", "use ssl_ca_pem for it"),
        ("ssl_keystore_location", "use ssl_certificate_pem for it"),
    ],
)
@pytest.mark.parametrize("text", [KEY, KEY.replace("\n", " "), KEY.replace("\n", "\\n")])
def test_pem_text_is_not_shown_if_a_path_was_expected(name: str, instead: str, text: str) -> None:
    assert refusal(**TLS, **{name: text}) == (
        f"setting {name}: a value that is not shown was given (this is PEM text, not a path; "
        f"{instead}); allowed: the path of a file, or None"
    )


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        (
            "sasl_oauthbearer_assertion_private_key_file",
            KEY,
            "PEM text, not a path; use sasl_oauthbearer_assertion_private_key_pem for it",
        ),
        ("sasl_oauthbearer_assertion_file", KEY, "PEM text, not a path; write it to a file"),
        ("sasl_oauthbearer_assertion_file", TOKEN, "a token, not a path; write it to a file"),
        ("sasl_oauthbearer_ca_file", "MIIE\nMIIE", "text with line breaks, not a path"),
    ],
)
def test_other_contents_are_not_shown(name: str, text: str, why: str) -> None:
    assert f"setting {name}: a value that is not shown was given (this is {why}" in refusal(
        **OAUTH, **{name: text}
    )


def test_under_all_names() -> None:
    with pytest.raises(ConfigurationError, match=r"ssl\.key\.location: a value that is not shown"):
        Config.from_strings({"security.protocol": "SSL", "ssl.key.location": KEY})
    with pytest.raises(ConfigurationError, match="ssl_keyfile: a value that is not shown"):
        KafkaProducer(security_protocol="SSL", ssl_keyfile=KEY)


def test_a_text_too_long_for_a_path_is_not_shown() -> None:
    text = "MIIE/" * 300
    assert refusal(**TLS, ssl_certfile=text) == (
        "setting ssl_certfile: a path of 1500 characters cannot be read: No such file or directory"
    )


@pytest.mark.parametrize("name", ["ssl_ca_pem", "ssl_certificate_pem", "ssl_key_pem"])
def test_pem_text_without_its_line_breaks(name: str) -> None:
    assert refusal(**TLS, **{name: KEY.replace("\n", "\\n")}) == (
        f"setting {name}: a value that is not shown was given (its lines end with the two "
        r"characters '\n', not with line breaks; replace them: text.replace('\\n', '\n')); "
        "allowed: text in PEM format, or None"
    )
    assert "it has no line break after '-----BEGIN ...-----'" in refusal(
        **TLS, **{name: KEY.replace("\n", " ")}
    )


def test_line_breaks_of_windows_are_accepted() -> None:
    # The text is accepted as PEM: the error is about the certificate that is not in it.
    text = KEY.replace("\n", "\r\n")
    assert refusal(**TLS, ssl_certificate_pem=text).endswith(
        "contains no certificate in PEM format"
    )


def test_a_directory_without_certificates(tmp_path: Path) -> None:
    assert refusal(**TLS, ssl_cafile=tmp_path) == (
        f"setting ssl_cafile: the directory {str(tmp_path)!r} contains no certificates in "
        "OpenSSL's layout; run 'openssl rehash' on it, or give a file"
    )
    (tmp_path / "5ed36f99.0").write_text("")
    Producer(**TLS, ssl_cafile=str(tmp_path)).close()


def test_the_query_of_a_url_is_not_shown() -> None:
    url = f"{OAUTH['sasl_oauthbearer_token_endpoint_url']}?code=hunter2"
    settings = {
        **OAUTH,
        "sasl_oauthbearer_client_secret": "secret",
        "sasl_oauthbearer_token_endpoint_url": url,
    }
    with Producer(**settings) as producer:
        assert producer.config.sasl_oauthbearer_token_endpoint_url == url
        assert "sasl_oauthbearer_token_endpoint_url='https://127.0.0.1:1/token?...'" in repr(
            producer.config
        )
        assert "hunter2" not in repr(producer.config)
    settings["sasl_oauthbearer_token_endpoint_url"] = url.replace("https", "ftp")
    assert "'ftp://127.0.0.1:1/token?...' was given (it is not a URL)" in refusal(**settings)


@pytest.mark.parametrize("kind", [Producer, KafkaProducer, MockProducer, MockKafkaProducer])
def test_the_locals_of_a_failed_constructor_can_be_shown(kind: type[Producer]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        kind(linger_ms="often")
    shown = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    found = [(frame.locals or {}).get("self", "") for frame in shown.stack]
    assert f"<{kind.__name__} without settings>" in found
