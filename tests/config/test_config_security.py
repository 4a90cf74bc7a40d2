"""Settings of TLS and SASL: combinations, invalid files, and secrets."""

from __future__ import annotations

import contextlib
import logging
import pickle
import socket
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykaproducer._config.jaas import parse
from pykaproducer._config.security_validation import login_settings
from pykaproducer._net.networks import network_for
from pykaproducer._net.transport import ConnectionFailed, Endpoint
from pykaproducer.config import Config, read_settings
from pykaproducer.errors import ConfigurationError
from tests._support.keys import ec_key, pem_of, rsa_key
from tests.net.tls_server import Files

pytest.importorskip("trustme")

from pykaproducer.testing._certificates import CertificateAuthority

from .helper import SECRET, config, refusal

SCRAM = {
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "SCRAM-SHA-256",
    "sasl_plain_username": "alice",
    "sasl_plain_password": SECRET,
}
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


# Combinations -----------------------------------------------------------------------------------


def test_names_in_any_case() -> None:
    assert config(**{**SCRAM, "security_protocol": "sasl_ssl"}).security_protocol == "SASL_SSL"
    assert config(**{**SCRAM, "sasl_mechanism": "scram-sha-512"}).sasl_mechanism == "SCRAM-SHA-512"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"sasl_mechanism": "PLAIN"}, "setting sasl_mechanism: it was given, but "),
        ({"sasl_plain_username": "u"}, "without SASL"),
        ({"security_protocol": "SSL", "sasl_plain_password": SECRET}, "without SASL"),
        ({"ssl_cafile": "x"}, "setting ssl_cafile: it was given, but security_protocol is 'PLAIN"),
        ({"ssl_check_hostname": False}, "without TLS"),
        ({"security_protocol": "SASL_PLAINTEXT", "ssl_password": SECRET}, "without TLS"),
        ({"security_protocol": "SASL_SSL"}, "setting sasl_mechanism: security_protocol 'SASL_"),
        (
            {**SCRAM, "sasl_plain_password": None},
            "setting sasl_plain_password: sasl_mechanism 'SCRAM",
        ),
        (
            {**SCRAM, "sasl_plain_username": None},
            "setting sasl_plain_username: sasl_mechanism 'SCRAM",
        ),
        ({**SCRAM, "sasl_mechanism": "OAUTHBEARER"}, "setting sasl_oauthbearer_token_endpoint_u"),
        ({**SCRAM, "sasl_kerberos_keytab": "k"}, "it belongs to GSSAPI, but sasl_mechanism"),
        ({**SCRAM, "sasl_login_read_timeout_ms": 1}, "it belongs to OAUTHBEARER, but sasl_mech"),
        ({**SCRAM, "sasl_mechanism": "CRAM-MD5"}, "setting sasl_mechanism: 'CRAM-MD5' was given"),
        ({**SCRAM, "sasl_kerberos_service_name": "k"}, "it belongs to GSSAPI, but sasl_mechanism"),
        ({**SCRAM, "sasl_oauth_token_provider": str}, "sasl_oauth_token_provider: a value that is"),
        ({**SCRAM, "sasl_plain_username": "a\0b"}, "it contains a NUL character"),
        ({"security_protocol": "SSL", "ssl_keyfile": "k"}, "ssl_certfile is not set"),
        ({"security_protocol": "SSL", "ssl_password": SECRET}, "ssl_certfile is not set"),
        ({"security_protocol": "SSL", "ssl_context": "x"}, "allowed: an ssl.SSLContext"),
    ],
)
def test_what_does_not_go_together(settings: dict[str, Any], text: str) -> None:
    assert text in refusal(**settings)


def test_a_token_provider_with_another_mechanism() -> None:
    text = refusal(**SCRAM, sasl_oauth_token_provider=lambda: SECRET)
    assert "setting sasl_oauth_token_provider: it belongs to OAUTHBEARER" in text


def test_a_password_with_a_token_provider() -> None:
    settings = {**SCRAM, "sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": lambda: "t"}
    assert "setting sasl_plain_password: it belongs to PLAIN and SCRAM" in refusal(**settings)


@pytest.mark.parametrize(
    ("mechanism", "package", "extra"),
    [("GSSAPI", "gssapi", "gssapi"), ("AWS_MSK_IAM", "botocore", "msk")],
)
def test_a_mechanism_whose_package_is_missing(
    monkeypatch: pytest.MonkeyPatch, mechanism: str, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    text = refusal(security_protocol="SASL_SSL", sasl_mechanism=mechanism)
    assert f"setting sasl_mechanism: {mechanism!r} needs the package {package}" in text
    assert f"pip install 'pykaproducer[{extra}]'" in text


def test_passwords_in_the_clear_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    settings = {**SCRAM, "security_protocol": "SASL_PLAINTEXT"}
    with caplog.at_level(logging.DEBUG, "pykaproducer"):
        config(**settings)
        assert not caplog.records
        config(**{**settings, "sasl_mechanism": "PLAIN"})
    (record,) = caplog.records
    assert "sends the password unencrypted" in record.getMessage()


# Files ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("pem"), CertificateAuthority("an authority"))


def tls(**settings: Any) -> str:
    return refusal(security_protocol="SSL", **settings)


def test_files_that_are_missing(files: Files) -> None:
    missing = str(files.directory / "missing.pem")
    for name in ("ssl_cafile", "ssl_certfile", "ssl_crlfile"):
        expected = f"setting {name}: {missing!r} cannot be read: No such file or directory"
        assert tls(**{name: missing}) == expected
    text = tls(ssl_certfile=files.issued("certified"), ssl_keyfile=missing)
    assert text.startswith(f"setting ssl_keyfile: {missing!r} cannot be read")
    assert "cannot be read: embedded null byte" in tls(ssl_cafile="a\0b")


@pytest.mark.parametrize("content", [b"", b"garbage", bytes(range(256)) * 10])
def test_files_without_pem(files: Files, content: bytes) -> None:
    path = files.directory / "garbage"
    path.write_bytes(content)
    assert "contains no certificate in PEM" in tls(ssl_cafile=path)
    assert "contains no certificate in PEM" in tls(ssl_certfile=path)
    assert "contains no revocation list in PEM" in tls(ssl_crlfile=path)
    text = tls(ssl_certfile=files.issued("certified"), ssl_keyfile=path)
    assert text == f"setting ssl_keyfile: {str(path)!r} contains no private key in PEM format"


def test_files_with_garbled_pem(files: Files) -> None:
    for what in ("CERTIFICATE", "X509 CRL"):
        path = files.put("bad", f"-----BEGIN {what}-----\nAAAA\n-----END {what}-----\n")
        name = "ssl_cafile" if what == "CERTIFICATE" else "ssl_crlfile"
        assert f"setting {name}: {path!r} is malformed" in tls(**{name: path})
    issued = files.authority.issue("x")
    bad = files.put("bad", issued.certificate + issued.key.replace("M", "N"))
    assert f"setting ssl_certfile: {bad!r} is malformed" in tls(ssl_certfile=bad)


@pytest.mark.parametrize(
    ("content", "text"), [(b"\xfe\xed\xfe\xed...", "a Java keystore"), (b"0\x82x", "binary (DER")]
)
def test_files_that_java_takes(files: Files, content: bytes, text: str) -> None:
    path = files.directory / "store.jks"
    path.write_bytes(content)
    assert f"is {text}" in tls(ssl_cafile=str(path))
    assert "set ssl_truststore_location" in tls(ssl_cafile=str(path))


def test_the_password_of_a_key(files: Files) -> None:
    issued = files.authority.issue("locked", key_password=SECRET)
    certificate, key = files.put("c", issued.certificate), files.put("k", issued.key)
    both = {"security_protocol": "SSL", "ssl_certfile": certificate, "ssl_keyfile": key}
    made = config(**both, ssl_password=SECRET)
    assert SECRET not in repr(made)
    text = f"setting ssl_keyfile: the key in {key!r} is encrypted; set ssl_password"
    assert text in refusal(**both)
    text = f"setting ssl_password: it does not decrypt the key in {key!r} (ssl_keyfile)"
    assert refusal(**both, ssl_password="guess") == text
    together = files.put("ck", issued.certificate + issued.key)
    assert "(ssl_certfile)" in tls(ssl_certfile=together, ssl_password="guess")


def test_a_key_of_another_certificate(files: Files) -> None:
    one, other = files.issued("one"), files.issued("other")
    text = tls(ssl_certfile=one, ssl_keyfile=other)
    assert text.startswith(f"setting ssl_keyfile: the key in {other!r} does not belong")
    kind = files.put("rsa.pem", pem_of(rsa_key()).decode())  # the certificate's is EC
    text = tls(ssl_certfile=one, ssl_keyfile=kind)
    assert text.startswith(f"setting ssl_keyfile: the key in {kind!r} does not belong")


@pytest.mark.parametrize(
    ("setting", "value", "why"),
    [
        ("sasl_plain_password", SECRET + "\ud800", ""),
        ("ssl_ca_pem", SECRET, "it contains no '-----BEGIN ...-----'"),
        ("ssl_ca_pem", SECRET.encode(), ""),
        ("ssl_key_pem", f"-----BEGIN PRIVATE KEY-----\n{SECRET}\ud800", ""),
        ("ssl_keyfile", SECRET.encode(), "a path is a string, not bytes"),
        ("sasl_oauthbearer_extensions", f"auth={SECRET}", "the extension auth is the token itself"),
        ("sasl_oauthbearer_extensions", {"auth": SECRET}, "the extension auth is the token itself"),
        ("sasl_oauthbearer_extensions", SECRET, ""),
        ("sasl_oauthbearer_token_endpoint_url", f"https://me:{SECRET}", "its host or port"),
        ("sasl_oauthbearer_token_endpoint_url", f"https://h:{SECRET}@h:x", "its host or port"),
        ("bootstrap_servers", [("host", 1), (f"me:{SECRET}@host", 1)], "an address has the form"),
        ("bootstrap_servers", ["", f"me:{SECRET}@host:1"], "an address has the form"),
    ],
)
def test_values_that_may_be_secrets_are_not_shown(setting: str, value: Any, why: str) -> None:
    text = refusal(**{setting: value})
    shown = f"setting {setting}: a value that is not shown was given{f' ({why}' if why else ''}"
    assert text.startswith(shown)


def test_secrets_in_the_place_of_paths(tmp_path: Path) -> None:
    assert "a path of 700 characters cannot be read" in tls(ssl_cafile=SECRET * 100)
    template = tmp_path / "template.json"
    template.write_text(SECRET)
    key = tmp_path / "key.pem"
    key.write_bytes(pem_of(ec_key()))
    text = refusal(
        security_protocol="SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauthbearer_token_endpoint_url="https://localhost/token",
        sasl_oauthbearer_client_id="me",
        sasl_oauthbearer_assertion_algorithm="ES256",
        sasl_oauthbearer_assertion_private_key_file=key,
        sasl_oauthbearer_assertion_template_file=template,
    )
    assert text.endswith("template.json' is not JSON")


def test_ciphers() -> None:
    config(security_protocol="SSL", ssl_ciphers="ECDHE+AESGCM")
    assert "setting ssl_ciphers: 'NONE-SUCH' selects no cipher" in tls(ssl_ciphers="NONE-SUCH")


def test_a_context_has_everything_itself() -> None:
    context = ssl.create_default_context()
    assert config(security_protocol="SSL", ssl_context=context).ssl_context is context
    text = tls(ssl_context=context, ssl_cafile="x")
    assert text.startswith("setting ssl_cafile: ssl_context is given")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    assert "setting ssl_context: it cannot be used by a client" in tls(ssl_context=server)


# Pickles and representations --------------------------------------------------------------------


def test_it_can_be_pickled(files: Files) -> None:
    made = config(**SCRAM, ssl_cafile=files.ca)
    assert pickle.loads(pickle.dumps(made)) == made
    assert SECRET not in repr(made)


def test_a_context_cannot_be_pickled() -> None:
    made = config(security_protocol="SSL", ssl_context=ssl.create_default_context())
    with pytest.raises(ConfigurationError, match="setting ssl_context: a context cannot be pick"):
        pickle.dumps(made)


# As in Java and librdkafka ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mechanism", "jaas", "user", "password"),
    [
        (
            "PLAIN",
            f'{PLAIN_MODULE} required username="alice" password="{SECRET}";',
            "alice",
            SECRET,
        ),
        (
            "SCRAM-SHA-512",
            f'{SCRAM_MODULE}  required\n  username="a=b;c"\tpassword="q\\"\\\\\\u00e9 ";',
            "a=b;c",
            'q"\\u00e9 ',
        ),
        (
            "SCRAM-SHA-512",
            rf'{SCRAM_MODULE} required username="\101\7x\478\400" password="\3778\n\q";',
            "A\ax'8 0",
            "\xff8\nq",
        ),
        ("SCRAM-SHA-256", "ScramLoginModule REQUIRED username='x' password=y ;", "x", "y"),
    ],
)
def test_user_and_password_in_java_s_form(
    mechanism: str, jaas: str, user: str, password: str
) -> None:
    made = Config.from_strings(
        {"security.protocol": "SASL_SSL", "sasl.mechanism": mechanism, "sasl.jaas.config": jaas}
    )
    assert (made.sasl_plain_username, made.sasl_plain_password) == (user, password)
    assert SECRET not in repr(made)


@pytest.mark.parametrize(
    ("jaas", "text"),
    [
        (SECRET, "(it is malformed)"),
        (f'{PLAIN_MODULE} required username="{SECRET}"', "(it is malformed)"),
        (f'{PLAIN_MODULE} perhaps username="{SECRET}";', "(it is malformed)"),
        (f'{PLAIN_MODULE} required username="{SECRET};', "is not closed"),
        (f"{PLAIN_MODULE} required {SECRET};", "option 1 is not name=value"),
        (f'{PLAIN_MODULE} required a="b" = "{SECRET}";', "option 2 is not name=value"),
        (f'{SECRET} required password="{SECRET}";', "its login module is unknown"),
        (f'{SCRAM_MODULE} required password="{SECRET}";', "is for SCRAM-SHA-256 and SCRAM-SHA-512"),
        (
            f'{PLAIN_MODULE} required user="{SECRET}";',
            "its option 'user' is not supported; allowed",
        ),
        (f'{PLAIN_MODULE} required username="u";', "setting sasl_plain_password: "),
    ],
)
def test_what_is_wrong_in_java_s_form(jaas: str, text: str) -> None:
    settings = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}
    assert text in refusal(**settings, sasl_jaas_config=jaas)


def test_java_s_form_and_ours_say_the_same_or_it_is_an_error() -> None:
    jaas = f'{SCRAM_MODULE} required username="alice" password="{SECRET}";'
    config(**SCRAM, sasl_jaas_config=jaas)
    text = refusal(**{**SCRAM, "sasl_plain_username": "bob"}, sasl_jaas_config=jaas)
    assert text.startswith("settings sasl_jaas_config and sasl_plain_username have conflicting")


@pytest.mark.parametrize(
    ("mechanism", "jaas", "text"),
    [
        ("OAUTHBEARER", 'OAuthBearerLoginModule required unsecured="x";', "allowed: clientId"),
        ("GSSAPI", 'Krb5LoginModule required useTicketCache="x";', "allowed: keyTab, principal"),
    ],
)
def test_what_other_login_modules_would_do(mechanism: str, jaas: str, text: str) -> None:
    settings = {"security_protocol": "SASL_SSL", "sasl_mechanism": mechanism}
    assert text in refusal(**settings, sasl_jaas_config=jaas)


def test_a_login_module_of_kerberos() -> None:
    jaas = (
        "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
        'keyTab="/etc/k.keytab" principal="alice@EXAMPLE.COM" serviceName="broker";'
    )
    assert login_settings(jaas, "GSSAPI") == {
        "sasl_kerberos_keytab": "/etc/k.keytab",
        "sasl_kerberos_principal": "alice@EXAMPLE.COM",
        "sasl_kerberos_service_name": "broker",
    }
    assert login_settings('Krb5LoginModule required useKeyTab=false keyTab="k";') == {}


def test_comments_in_java_s_form() -> None:
    module = parse("// z\na.b.Some /* x */ required // y\n one=1; // it ends here")
    assert (module.name, module.options) == ("Some", {"one": "1"})
    assert "1" not in repr(module)


@given(st.text("/*\\\"'=; \nab.", max_size=60))
def test_any_text_is_a_module_or_an_error(text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        parse(text)
        parse(f"{PLAIN_MODULE} required {text};")


def test_a_long_text_takes_no_long_time() -> None:
    for text in ("/" * 100_000, "//" + "/*" * 100_000, '"' + "\\" * 100_000):
        with pytest.raises(ConfigurationError):
            parse(text)


def test_a_store_of_pem(files: Files) -> None:
    pem = files.issued("certified")
    made = Config.from_strings(
        {
            "security.protocol": "SSL",
            "ssl.truststore.type": "pem",
            "ssl.truststore.location": files.ca,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": pem,
            "ssl.endpoint.identification.algorithm": "",
        }
    )
    assert (made.ssl_cafile, made.ssl_certfile) == (files.ca, pem)
    assert made.ssl_check_hostname is False


@pytest.mark.parametrize(
    ("text", "checked"), [("https", True), ("HTTPS", True), ("none", False), ("", False)]
)
def test_whether_the_host_name_is_checked(text: str, checked: bool) -> None:
    made = Config.from_strings(
        {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": text}
    )
    assert made.ssl_check_hostname is checked


def test_the_type_of_no_store() -> None:
    assert "it requires ssl_keystore_location" in tls(ssl_keystore_type="PEM")


def test_a_file_of_java_s(files: Files, tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={PLAIN_MODULE} required \\\n  username="alice" password="{SECRET}";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={files.ca}\n"
    )
    made = config(**read_settings(path))
    assert (made.sasl_plain_password, made.ssl_cafile) == (SECRET, files.ca)


def test_names_of_librdkafka_s(files: Files) -> None:
    made = Config.from_strings(
        {
            "security.protocol": "sasl_ssl",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": "alice",
            # Includes a value that would mean None elsewhere, and one that ends with a space.
            "sasl.password": "none ",
            "ssl.ca.location": files.ca,
        }
    )
    assert (made.sasl_plain_username, made.sasl_plain_password) == ("alice", "none ")
    assert (made.security_protocol, made.sasl_mechanism) == ("SASL_SSL", "PLAIN")


def test_a_file_that_has_gone_since_is_a_reason_and_no_crash(tmp_path: Path, files: Files) -> None:
    path = tmp_path / "ca.pem"
    path.write_text(files.authority.certificate)
    network = network_for(config(security_protocol="SSL", ssl_cafile=path))
    path.unlink()
    with pytest.raises(ConnectionFailed, match=r"setting ssl_cafile: .* cannot be read"):
        network.connect(Endpoint(socket.AF_INET, ("127.0.0.1", 1), "localhost"))
