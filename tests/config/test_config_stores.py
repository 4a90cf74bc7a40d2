"""Certificates and keys given as text, and Java's stores: reading them, and errors in them."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykaproducer._config import memory_file
from pykaproducer._config.jks import StoreError, read_jks
from pykaproducer._config.tls_context import tls_context
from pykaproducer.config import Config
from tests._support.stores import key_store, trust_store

pytest.importorskip("trustme")

from pykaproducer.testing._certificates import CertificateAuthority, Issued

from . import helper
from .helper import SECRET

OTHER = "another-secret"


@pytest.fixture(scope="module")
def authority() -> CertificateAuthority:
    return CertificateAuthority("an authority")


@pytest.fixture(scope="module")
def issued(authority: CertificateAuthority) -> Issued:
    return authority.issue("alice")


def config(**settings: Any) -> Config:
    return helper.config(**{"security_protocol": "SSL", **settings})


def refusal(**settings: Any) -> str:
    text = helper.refusal(**{"security_protocol": "SSL", **settings})
    assert OTHER not in text
    assert "PRIVATE" not in text
    return text


def trusted(**settings: Any) -> int:
    return len(tls_context(config(**settings)).get_ca_certs())


# Text -------------------------------------------------------------------------------------------


def test_certificates_and_keys_as_text(authority: CertificateAuthority, issued: Issued) -> None:
    two = authority.certificate + CertificateAuthority("another").certificate
    assert trusted(ssl_ca_pem=two) == 2
    made = config(ssl_ca_pem=two, ssl_certificate_pem=issued.certificate, ssl_key_pem=issued.key)
    tls_context(made)
    assert pickle.loads(pickle.dumps(made)) == made
    assert issued.key not in repr(made)
    assert "PRIVATE" not in repr(made)
    config(ssl_certificate_pem=issued.certificate + issued.key)


def test_the_names_of_java_and_librdkafka(authority: CertificateAuthority, issued: Issued) -> None:
    java = Config.from_strings(
        {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": authority.certificate,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": issued.certificate,
            "ssl.keystore.key": issued.key,
        }
    )
    other = Config.from_strings(
        {
            "security.protocol": "ssl",
            "ssl.ca.pem": authority.certificate,
            "ssl.certificate.pem": issued.certificate,
            "ssl.key.pem": issued.key,
        }
    )
    assert java.ssl_ca_pem == other.ssl_ca_pem == authority.certificate.strip()
    for made in (java, other):
        tls_context(made)


def test_the_password_of_a_key_as_text(authority: CertificateAuthority) -> None:
    locked = authority.issue("locked", key_password=SECRET)
    both = {"ssl_certificate_pem": locked.certificate, "ssl_key_pem": locked.key}
    config(**both, ssl_password=SECRET)
    assert refusal(**both) == "setting ssl_key_pem: the key is encrypted; set ssl_password"
    expected = "setting ssl_password: it does not decrypt the key (ssl_key_pem)"
    assert refusal(**both, ssl_password=OTHER) == expected


def test_text_that_cannot_be_used(authority: CertificateAuthority, issued: Issued) -> None:
    begun = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    text = refusal(ssl_ca_pem="garbage")
    assert text.startswith(
        "setting ssl_ca_pem: a value that is not shown was given (it contains no"
    )
    text = refusal(ssl_ca_pem=begun)
    assert "setting ssl_ca_pem: it contains no valid certificate: " in text
    assert "ssl.c" not in text
    text = refusal(ssl_certificate_pem=issued.certificate)
    assert text == "setting ssl_certificate_pem: it contains no private key in PEM format"
    text = refusal(ssl_certificate_pem=issued.key, ssl_key_pem=issued.key)
    assert text == "setting ssl_certificate_pem: it contains no certificate in PEM format"
    text = refusal(ssl_certificate_pem=begun, ssl_key_pem=issued.key)
    assert text.startswith("setting ssl_certificate_pem: the certificate or its key is malformed")
    other = authority.issue("other")
    text = refusal(ssl_certificate_pem=issued.certificate, ssl_key_pem=other.key)
    assert text.startswith("setting ssl_key_pem: the key does not belong to the certificate")
    assert "a value that is not shown" in refusal(ssl_key_pem=SECRET)
    assert "ssl_certificate_pem is not set" in refusal(ssl_key_pem=issued.key)


def test_one_of_several_forms(authority: CertificateAuthority, tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    path.write_text(authority.certificate)
    text = refusal(ssl_cafile=path, ssl_ca_pem=authority.certificate)
    assert text == "settings ssl_cafile and ssl_ca_pem are both given; remove one of them"
    text = refusal(ssl_truststore_location=path, ssl_ca_pem=authority.certificate)
    assert text.startswith("settings ssl_ca_pem and ssl_truststore_location are both given")
    assert config(ssl_truststore_location=path).ssl_cafile == str(path)
    text = refusal(ssl_truststore_location=path, ssl_truststore_password=SECRET)
    assert "setting ssl_truststore_password: ssl_truststore_location is in PEM format" in text
    assert "it requires ssl_truststore_location" in refusal(ssl_truststore_password=SECRET)
    assert "it requires ssl_keystore_location" in refusal(ssl_keystore_type="PEM")


@pytest.mark.parametrize("in_memory", [True, False])
def test_no_file_of_a_key_remains(
    issued: Issued, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if not in_memory:
        monkeypatch.setattr(memory_file, "_DESCRIPTORS", "/nowhere")
        with memory_file.path_of(b"secret") as path:
            assert os.stat(path).st_mode & 0o777 == 0o600
            assert path.startswith(str(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    config(ssl_certificate_pem=issued.certificate, ssl_key_pem=issued.key)
    assert os.listdir(tmp_path) == []
    assert len(os.listdir("/proc/self/fd")) == before


# Stores -----------------------------------------------------------------------------------------

KINDS = pytest.mark.parametrize("kind", ["JKS", "PKCS12"])


@KINDS
def test_trust_stores(authority: CertificateAuthority, tmp_path: Path, kind: str) -> None:
    certificates = [authority.certificate, CertificateAuthority("another").certificate]
    path = trust_store(tmp_path / "store", certificates, kind, SECRET)
    wanted = {"ssl_truststore_location": path, "ssl_truststore_password": SECRET}
    assert trusted(**wanted) == 2
    # Java opens either with any of the two types.
    for given_as in ("JKS", "PKCS12"):
        assert trusted(**wanted, ssl_truststore_type=given_as) == 2
    assert SECRET not in repr(config(**wanted))
    text = refusal(**{**wanted, "ssl_truststore_password": OTHER})
    assert text == (
        f"setting ssl_truststore_password: it does not open {str(path)!r} (ssl_truststore_location)"
    )
    if kind == "JKS":
        # Its certificates are not encrypted.
        assert trusted(ssl_truststore_location=path) == 2
    else:
        text = refusal(ssl_truststore_location=path)
        assert text.startswith(f"setting ssl_truststore_password: {str(path)!r} requires it")
    text = refusal(ssl_truststore_location=path, ssl_truststore_type="PEM")
    assert "but PEM is required" in text


@KINDS
def test_key_stores(
    authority: CertificateAuthority, issued: Issued, tmp_path: Path, kind: str
) -> None:
    path = key_store(tmp_path / "store", issued.certificate, issued.key, kind, SECRET)
    wanted = {"ssl_keystore_location": path, "ssl_keystore_password": SECRET}
    made = config(**wanted)
    tls_context(made)
    assert pickle.loads(pickle.dumps(made)) == made
    text = refusal(**{**wanted, "ssl_keystore_password": OTHER})
    expected = f"setting ssl_keystore_password: it does not open {str(path)!r}"
    assert text == f"{expected} (ssl_keystore_location)"
    assert text.startswith("setting ssl_keystore_password: ")
    assert "setting ssl_keystore_password: " in refusal(ssl_keystore_location=path)
    # A second key: which one would be sent?
    if kind == "JKS":
        key_store(path, issued.certificate, issued.key, kind, SECRET, alias="second")
        assert "contains 2 private keys; it must contain one" in refusal(**wanted)


def test_the_password_of_a_key_in_a_jks(issued: Issued, tmp_path: Path) -> None:
    path = key_store(
        tmp_path / "store", issued.certificate, issued.key, "JKS", SECRET, key_password=OTHER
    )
    wanted = {"ssl_keystore_location": path, "ssl_keystore_password": SECRET}
    config(**wanted, ssl_password=OTHER)
    expected = f"setting ssl_password: it does not open {str(path)!r} (ssl_keystore_location)"
    assert refusal(**wanted, ssl_password="wrong") == expected
    expected = (
        f"setting ssl_keystore_password: it does not open {str(path)!r} (ssl_keystore_location)"
    )
    assert refusal(**{**wanted, "ssl_keystore_password": "wrong"}, ssl_password=OTHER) == expected


@KINDS
def test_stores_that_contain_something_else(
    authority: CertificateAuthority, tmp_path: Path, kind: str
) -> None:
    path = trust_store(tmp_path / "store", [authority.certificate], kind, SECRET)
    text = refusal(ssl_keystore_location=path, ssl_keystore_password=SECRET)
    assert text == (
        f"setting ssl_keystore_location: {str(path)!r} contains no private keys; it must contain "
        "one"
    )


@KINDS
def test_stores_that_are_damaged(
    authority: CertificateAuthority, tmp_path: Path, kind: str
) -> None:
    path = trust_store(tmp_path / "store", [authority.certificate], kind, SECRET)
    content = path.read_bytes()
    for damaged in (content[:-40], content[:12], content[:100] + b"x" + content[101:]):
        path.write_bytes(damaged)
        text = refusal(ssl_truststore_location=path, ssl_truststore_password=SECRET)
        assert "is malformed: " in text or "it does not open" in text
    path.write_bytes(content[:60])
    assert "is malformed: " in refusal(ssl_truststore_location=path)


def test_stores_of_other_kinds(authority: CertificateAuthority, tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.write_bytes(b"\xce\xce\xce\xce\0\0\0\2")
    assert "is a JCEKS store; convert it" in refusal(ssl_truststore_location=path)
    path.write_bytes(b"garbage")
    text = f"setting ssl_truststore_location: {str(path)!r} is neither a PKCS12 nor a JKS store"
    assert refusal(ssl_truststore_location=path) == text
    path.write_text(authority.certificate)
    text = refusal(ssl_truststore_location=path, ssl_truststore_type="JKS")
    assert text.endswith(
        "is neither a PKCS12 nor a JKS store, but PEM; set ssl_truststore_type=PEM"
    )
    missing = tmp_path / "missing"
    text = refusal(ssl_keystore_location=missing, ssl_keystore_password=SECRET)
    expected = f"setting ssl_keystore_location: {str(missing)!r} cannot be read"
    assert text == f"{expected}: No such file or directory"


def test_a_missing_package_is_named(
    issued: Issued, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = key_store(tmp_path / "store", issued.certificate, issued.key, "PKCS12", SECRET)
    for name in list(sys.modules):
        if name.startswith("cryptography"):
            monkeypatch.setitem(sys.modules, name, None)
    text = refusal(ssl_keystore_location=path, ssl_keystore_password=SECRET)
    assert "setting ssl_keystore_location: PKCS12 needs the package cryptography" in text
    assert "pip install 'pykaproducer[pkcs12]'" in text
    text = refusal(
        security_protocol="SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauthbearer_token_endpoint_url="https://login.example.com/token",
        sasl_oauthbearer_client_id="me",
        sasl_oauthbearer_assertion_private_key_pem="-----BEGIN PRIVATE KEY-----",
    )
    assert "signing needs the package cryptography" in text
    assert "pip install 'pykaproducer[oauth]'" in text


def test_any_jks_is_read_or_an_error(tmp_path_factory: pytest.TempPathFactory) -> None:
    issued = CertificateAuthority("x").issue("alice")
    path = tmp_path_factory.mktemp("jks") / "store"
    content = key_store(path, issued.certificate, issued.key, "JKS", SECRET).read_bytes()

    @given(st.integers(0, len(content) - 1), st.integers(0, 255), st.booleans())
    def check(at: int, value: int, cut: bool) -> None:
        changed = content[:at] + bytes([value]) + (b"" if cut else content[at + 1 :])
        with contextlib.suppress(StoreError):
            read_jks(changed, None, SECRET)

    check()
