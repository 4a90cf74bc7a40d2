"""Settings of tokens: combinations, invalid keys and files, and secrets."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import pytest

from pykaproducer.config import Config, read_settings

pytest.importorskip("cryptography")

from tests._support.keys import ec_key, pem_of, rsa_key

from .helper import SECRET, config, refusal

URL = "https://login.example.com/token"
PROTOCOL = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}
CLIENT = {
    **PROTOCOL,
    "sasl_oauthbearer_token_endpoint_url": URL,
    "sasl_oauthbearer_client_id": "me",
}
BASIC = {**CLIENT, "sasl_oauthbearer_client_secret": SECRET}
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
KEY_FILE = "sasl_oauthbearer_assertion_private_key_file"
PASSPHRASE = "sasl_oauthbearer_assertion_private_key_passphrase"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {**PROTOCOL, "sasl_oauthbearer_method": "oidc"},
            "setting sasl_oauthbearer_token_endpoint_url: sasl_oauthbearer_method 'oidc' requires",
        ),
        (
            {**PROTOCOL, "sasl_oauthbearer_client_secret": SECRET},
            "sasl_oauthbearer_token_endpoint_url is not set",
        ),
        ({**BASIC, "sasl_oauth_token_provider": str}, "a value that is not shown was given"),
        (
            {**BASIC, "sasl_oauth_token_provider": lambda: "t"},
            "settings sasl_oauthbearer_token_endpoint_url and sasl_oauth_token_provider are both",
        ),
        ({**BASIC, "sasl_oauthbearer_method": "default"}, "set it to 'oidc'"),
        (CLIENT, "setting sasl_oauthbearer_client_secret: "),
        (
            {**CLIENT, "sasl_oauthbearer_assertion_algorithm": "RS256"},
            f"requires it, or an assertion: {KEY_FILE}, sasl_oauthbearer_assertion_private_key_pem",
        ),
        ({**BASIC, "sasl_oauthbearer_client_id": None}, "setting sasl_oauthbearer_client_id: "),
        ({**CLIENT, "sasl_oauthbearer_grant_type": JWT_BEARER}, f"setting {KEY_FILE}: "),
        ({**CLIENT, "sasl_oauthbearer_grant_type": "password"}, "'password' was given; allowed"),
        ({**BASIC, PASSPHRASE: SECRET}, f"{KEY_FILE} is not set; remove {PASSPHRASE}"),
        ({**BASIC, "sasl_oauthbearer_assertion_claim_aud": "x"}, "is not set; remove sasl_oauthb"),
        ({**BASIC, KEY_FILE: "nowhere.pem"}, "'nowhere.pem' cannot be read: No such file"),
        (
            {**BASIC, "sasl_oauthbearer_ca_file": "nowhere.pem"},
            "setting sasl_oauthbearer_ca_file: 'nowhere.pem' cannot be read: No such file",
        ),
        (
            {**BASIC, "sasl_oauthbearer_ca_pem": "-----BEGIN CERTIFICATE-----\nx"},
            "setting sasl_oauthbearer_ca_pem: it contains no valid certificate",
        ),
        ({**BASIC, "sasl_oauthbearer_extensions": "auth=x"}, "setting sasl_oauthbearer_extensions"),
        ({**BASIC, "sasl_oauthbearer_extensions": "a=b\1c=d"}, "setting sasl_oauthbearer_extens"),
        (
            {**BASIC, "sasl_oauthbearer_config": f"query={SECRET}=1"},
            "metadata_authentication_type ",
        ),
        (
            {**PROTOCOL, "sasl_oauthbearer_metadata_authentication_type": "azure_imds"},
            "setting sasl_oauthbearer_config: a value that is not shown was given",
        ),
        (
            {**BASIC, "sasl_oauthbearer_metadata_authentication_type": "azure_imds"},
            "setting sasl_oauthbearer_client_id: it was given, but ",
        ),
        ({**PROTOCOL, "sasl_oauthbearer_metadata_authentication_type": "gcp"}, "'gcp' was given"),
    ],
)
def test_what_does_not_go_together(settings: dict[str, Any], text: str) -> None:
    assert text in refusal(**settings)


@pytest.mark.parametrize(
    "query", ["query=a=\u00e9", "query=a=b c", "query=a=b\tc", "a=b", "query="]
)
def test_a_query_that_cannot_be_sent(query: str) -> None:
    azure = {**PROTOCOL, "sasl_oauthbearer_metadata_authentication_type": "azure_imds"}
    text = refusal(**azure, sasl_oauthbearer_config=f"{query}{SECRET}")
    assert "setting sasl_oauthbearer_config: a value that is not shown was given" in text
    assert "quoted, as %20 for a space" in text


@pytest.mark.parametrize(
    "url",
    [
        *("login.example.com", "ftp://login.example.com", "https://", "https://h:99999/", 5),
        *(
            "https://h:0/",
            "file:token",
            "file://host/token",
            "https://h/to ken",
            "https://h/\u00e9",
        ),
    ],
)
def test_what_is_no_url(url: Any) -> None:
    text = refusal(**{**BASIC, "sasl_oauthbearer_token_endpoint_url": url})
    assert "allowed: an https, http or file URL" in text


def test_a_password_in_the_url_is_not_shown() -> None:
    url = f"https://me:{SECRET}@login.example.com/token"
    text = refusal(**{**BASIC, "sasl_oauthbearer_token_endpoint_url": url})
    assert "it contains a user name; use sasl_oauthbearer_client_id" in text


def test_secrets_are_pickled_and_not_shown() -> None:
    made = config(**BASIC)
    assert pickle.loads(pickle.dumps(made)) == made
    assert SECRET not in repr(made)


def test_a_token_endpoint_without_encryption_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "pykaproducer"):
        config(**{**BASIC, "sasl_oauthbearer_token_endpoint_url": "http://127.0.0.1:80/token"})
        assert not caplog.records
        config(**{**BASIC, "sasl_oauthbearer_token_endpoint_url": "http://example.com/token"})
    (record,) = caplog.records
    assert "sends the client's credentials unencrypted" in record.getMessage()


# Keys -------------------------------------------------------------------------------------------


def key_file(tmp_path: Path, content: bytes) -> dict[str, Any]:
    path = tmp_path / "key.pem"
    path.write_bytes(content)
    return {**CLIENT, KEY_FILE: path}


def test_keys_that_can_sign(tmp_path: Path) -> None:
    config(**key_file(tmp_path, pem_of(rsa_key())))
    es256 = {"sasl_oauthbearer_assertion_algorithm": "es256"}
    config(**key_file(tmp_path, pem_of(ec_key())), **es256)
    made = config(**key_file(tmp_path, pem_of(rsa_key(), SECRET)), **{PASSPHRASE: SECRET})
    assert SECRET not in repr(made)
    pem = pem_of(rsa_key()).decode()
    made = config(**CLIENT, sasl_oauthbearer_assertion_private_key_pem=pem)
    assert "PRIVATE" not in repr(made)


def test_keys_that_cannot_sign(tmp_path: Path) -> None:
    path = str(tmp_path / "key.pem")
    wanted = key_file(tmp_path, pem_of(rsa_key(), SECRET))
    text = f"setting {KEY_FILE}: the key in {path!r} is encrypted; set {PASSPHRASE}"
    assert refusal(**wanted) == text
    text = f"setting {PASSPHRASE}: it does not decrypt the key in {path!r} ({KEY_FILE})"
    assert refusal(**wanted, **{PASSPHRASE: "wrong"}) == text
    wanted = key_file(tmp_path, pem_of(rsa_key()))
    assert "is not encrypted; remove the passphrase" in refusal(**wanted, **{PASSPHRASE: SECRET})
    text = refusal(**wanted, sasl_oauthbearer_assertion_algorithm="ES256")
    assert "requires a key on the curve P-256, which the key" in text
    assert "requires an RSA key" in refusal(**key_file(tmp_path, pem_of(ec_key())))
    assert "contains no private key in PEM format" in refusal(**key_file(tmp_path, b"garbage"))
    broken = pem_of(rsa_key()).replace(b"M", b"N")
    assert f"the private key in {path!r} is malformed" in refusal(**key_file(tmp_path, broken))


def test_half_a_character() -> None:
    text = refusal(**{**BASIC, "sasl_oauthbearer_client_id": "a\ud800"})
    assert "setting sasl_oauthbearer_client_id: " in text
    assert "it is not valid Unicode" in text
    text = refusal(**{**BASIC, "sasl_oauthbearer_client_secret": f"{SECRET}\ud800"})
    assert "setting sasl_oauthbearer_client_secret: a value that is not shown" in text


def test_two_keys_and_two_assertions(tmp_path: Path) -> None:
    wanted = key_file(tmp_path, pem_of(rsa_key()))
    pem = pem_of(rsa_key()).decode()
    text = refusal(**wanted, sasl_oauthbearer_assertion_private_key_pem=pem)
    assert "are both given; remove one of them" in text
    file = tmp_path / "assertion"
    file.write_text("a.b.c")
    text = refusal(**wanted, sasl_oauthbearer_assertion_file=file)
    assert "sasl_oauthbearer_assertion_file is given and replaces it" in text


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is empty; it must contain a token"),
        (b"two words", "contains no token"),
        (b"\xff\xfe", "contains no token"),
    ],
)
def test_files_without_a_token(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    assert text in refusal(**CLIENT, sasl_oauthbearer_assertion_file=path)
    assert text in refusal(**PROTOCOL, sasl_oauthbearer_token_endpoint_url=f"file://{path}")
    missing = tmp_path / "missing"
    url = f"file://{missing}"
    expected = (
        f"setting sasl_oauthbearer_token_endpoint_url: {str(missing)!r} cannot be read: No such "
        "file or directory"
    )
    assert refusal(**PROTOCOL, sasl_oauthbearer_token_endpoint_url=url) == expected


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "must be an object with header and payload only"),
        ('{"claims": {}}', "must be an object with header and payload only"),
        ('{"payload": 5}', "payload is not an object"),
    ],
)
def test_templates_that_cannot_be_used(tmp_path: Path, content: str, text: str) -> None:
    path = tmp_path / "template.json"
    path.write_text(content)
    wanted = key_file(tmp_path, pem_of(rsa_key()))
    assert text in refusal(**wanted, sasl_oauthbearer_assertion_template_file=path)


# As in Java -------------------------------------------------------------------------------------


def test_a_file_of_java_s(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\n"
        f"sasl.oauthbearer.token.endpoint.url={URL}\n"
        "sasl.login.callback.handler.class=org.apache.kafka.common.security.oauthbearer."
        "OAuthBearerLoginCallbackHandler\n"
        "sasl.login.connect.timeout.ms=15000\nsasl.login.refresh.window.factor=0.8\n"
        "sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule "
        f'required clientId="me" clientSecret="{SECRET}" scope="events" '
        'extension_logicalCluster="lkc-1";\n'
    )
    made = config(**read_settings(path))
    assert made.sasl_oauthbearer_client_id == "me"
    assert made.sasl_oauthbearer_client_secret == SECRET
    assert made.sasl_oauthbearer_scope == "events"
    assert made.sasl_oauthbearer_extensions == "logicalCluster=lkc-1"
    assert made.sasl_login_connect_timeout_ms == 15000


def test_names_of_java_s(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_bytes(pem_of(rsa_key()))
    prefix = "org.apache.kafka.common.security.oauthbearer."
    made = Config.from_strings(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": URL,
            "sasl.oauthbearer.jwt.retriever.class": f"{prefix}JwtBearerJwtRetriever",
            "sasl.oauthbearer.assertion.private.key.file": str(key),
            "sasl.oauthbearer.assertion.claim.exp.seconds": "600",
            "sasl.oauthbearer.assertion.claim.jti.include": "true",
            "sasl.oauthbearer.header.urlencode": "true",
        }
    )
    assert made.sasl_oauthbearer_grant_type == JWT_BEARER
    assert made.sasl_oauthbearer_assertion_claim_exp_seconds == 600
    assert made.sasl_oauthbearer_header_urlencode is True


def test_extensions_as_a_dict() -> None:
    made = config(**BASIC, sasl_oauthbearer_extensions={"a": "1", "b": "2"})
    assert made.sasl_oauthbearer_extensions == "a=1,b=2"
