"""Client certificates as text and in Java's stores, with a broker that requires them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pykaproducer import Producer, confluent
from pykaproducer.config import read_settings
from pykaproducer.testing import KafkaCluster
from pykaproducer.testing._certificates import CertificateAuthority
from tests._support.keys import decrypted
from tests._support.logs import told_by_log
from tests._support.stores import key_store, trust_store
from tests.cluster.readback import read_log

from .listeners import PASSWORD, On

SOON = 30.0
USER = "bob"


class Files:
    """The client's files of the listener that requires a certificate."""

    def __init__(self, secured: KafkaCluster, directory: Path) -> None:
        given = secured.settings(USER, listener=On.CLIENT_CERTIFICATE)
        self.directory = directory
        self.servers: str = given["bootstrap_servers"]
        self.ca = Path(given["ssl_cafile"]).read_text()
        self.certificate = Path(given["ssl_certfile"]).read_text()
        #: Encrypted with PASSWORD.
        self.key = Path(given["ssl_keyfile"]).read_text()
        self.plain_key = decrypted(self.key, PASSWORD)

    def stores(self, kind: str) -> tuple[str, str]:
        """Return a trust store and a key store."""
        trust = trust_store(self.directory / "trust", [self.ca], kind, PASSWORD)
        keys = key_store(self.directory / "keys", self.certificate, self.plain_key, kind, PASSWORD)
        return str(trust), str(keys)


def text(files: Files) -> dict[str, Any]:
    return {
        "ssl_ca_pem": files.ca,
        "ssl_certificate_pem": files.certificate,
        "ssl_key_pem": files.key,
        "ssl_password": PASSWORD,
    }


def stores(kind: str) -> Callable[[Files], dict[str, Any]]:
    def made(files: Files) -> dict[str, Any]:
        trust, keys = files.stores(kind)
        return {
            "ssl_truststore_location": trust,
            "ssl_truststore_password": PASSWORD,
            "ssl_keystore_location": keys,
            "ssl_keystore_password": PASSWORD,
        }

    return made


@pytest.mark.parametrize(
    "made", [text, stores("JKS"), stores("PKCS12")], ids=["text", "JKS", "PKCS12"]
)
def test_a_client_certificate_of_every_form(
    secured: KafkaCluster,
    secured_topic: str,
    tmp_path: Path,
    made: Callable[[Files], dict[str, Any]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = Files(secured, tmp_path)
    given = {"bootstrap_servers": files.servers, "security_protocol": "SSL", **made(files)}
    with caplog.at_level(logging.DEBUG, "pykaproducer"), Producer(**given) as producer:
        producer.send(secured_topic, b"there").result(SOON)
        shown = repr(producer) + repr(producer.config)
    assert read_log(secured, secured_topic).values == [b"there"]
    for output in (shown, caplog.text):
        assert PASSWORD not in output
        assert "PRIVATE KEY" not in output
        assert "BEGIN CERTIFICATE" not in caplog.text


def failure(secured: KafkaCluster, topic: str, files: Files, **changes: Any) -> str:
    given = {"bootstrap_servers": files.servers, "security_protocol": "SSL", **text(files)}
    with Producer(**given | changes) as producer, told_by_log("trying again") as told:
        producer.send(topic, b"first", on_delivery=lambda *_: None)
        assert told.wait(SOON)
        error = producer.send(topic, b"not there", delivery_timeout_ms=50).exception(SOON)
        producer.close(0)
    return str(error)


def test_what_only_the_broker_can_tell(
    secured: KafkaCluster, secured_topic: str, tmp_path: Path
) -> None:
    files = Files(secured, tmp_path)
    assert secured._secured is not None
    old = secured._secured._authority.issue(USER, expired=True)
    expired = {
        "ssl_certificate_pem": old.certificate,
        "ssl_key_pem": old.key,
        "ssl_password": None,
    }
    found = failure(secured, secured_topic, files, **expired)
    assert "the broker rejected the client certificate (ssl_certificate_pem): " in found
    store = key_store(tmp_path / "expired", old.certificate, old.key, "PKCS12", PASSWORD)
    wanted = {"ssl_keystore_location": store, "ssl_keystore_password": PASSWORD}
    found = failure(secured, secured_topic, files, **dict.fromkeys(expired), **wanted)
    assert "the broker rejected the client certificate (ssl_keystore_location): " in found
    other = CertificateAuthority("another").certificate
    found = failure(secured, secured_topic, files, ssl_ca_pem=other)
    assert "signed by an unknown CA" in found
    assert "add the CA's certificate to ssl_ca_pem" in found
    trust = trust_store(tmp_path / "other", [other], "JKS", PASSWORD)
    found = failure(secured, secured_topic, files, ssl_ca_pem=None, ssl_truststore_location=trust)
    assert "add the CA's certificate to ssl_truststore_location" in found


def test_files_of_java_and_names_of_librdkafka(
    secured: KafkaCluster, secured_topic: str, tmp_path: Path
) -> None:
    files = Files(secured, tmp_path)
    trust, keys = files.stores("JKS")
    path = tmp_path / "client.properties"
    path.write_text(
        f"bootstrap.servers={files.servers}\nsecurity.protocol=SSL\n"
        f"ssl.truststore.location={trust}\nssl.truststore.password={PASSWORD}\n"
        f"ssl.keystore.location={keys}\nssl.keystore.password={PASSWORD}\n"
        f"ssl.key.password={PASSWORD}\n"
    )
    with Producer(**read_settings(path)) as producer:
        producer.send(secured_topic, b"stores").result(SOON)
    chain = files.certificate.replace("\n", "\\n")
    key = files.key.replace("\n", "\\n")
    ca = files.ca.replace("\n", "\\n")
    path.write_text(
        f"bootstrap.servers={files.servers}\nsecurity.protocol=SSL\n"
        f"ssl.truststore.type=PEM\nssl.truststore.certificates={ca}\n"
        f"ssl.keystore.type=PEM\nssl.keystore.certificate.chain={chain}\n"
        f"ssl.keystore.key={key}\nssl.key.password={PASSWORD}\n"
    )
    with Producer(**read_settings(path)) as producer:
        producer.send(secured_topic, b"text").result(SOON)
    other = confluent.Producer(
        {
            "bootstrap.servers": files.servers,
            "security.protocol": "ssl",
            "ssl.ca.pem": files.ca,
            "ssl.certificate.pem": files.certificate,
            "ssl.key.pem": files.key,
            "ssl.key.password": PASSWORD,
        }
    )
    other.produce(secured_topic, b"librdkafka")
    assert other.flush(SOON) == 0
    assert read_log(secured, secured_topic).values == [b"stores", b"text", b"librdkafka"]
