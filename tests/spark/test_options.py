"""The options of the sink, checked as when a write is planned, without a running Spark."""

from __future__ import annotations

import logging
import os
import pathlib
import pickle
import re
import shutil
import textwrap
import types
from typing import Any

import pytest

from pykaproducer._config.tls_context import tls_context
from pykaproducer.config import Config
from pykaproducer.spark.options import SinkError, SinkOptions
from tests._support.stores import key_store, trust_store
from tests.config.test_java import ENTRA, MSK, ROWS

pytest.importorskip("trustme")

from pykaproducer.testing._certificates import CertificateAuthority, Issued

ROOT = pathlib.Path(__file__).parents[2]
PASSWORD = "hunter2"
BASIC = {"kafka.bootstrap.servers": "localhost:9092", "topic": "t"}


def planned(options: dict[str, Any]) -> SinkOptions:
    """Return the options as tasks receive them."""
    found = SinkOptions.of({**BASIC, **options})
    assert PASSWORD not in repr(found)
    assert "-----BEGIN" not in repr(found)
    received: SinkOptions = pickle.loads(pickle.dumps(found))
    assert received == found
    assert hash(received) == hash(found)
    return received


def config(options: dict[str, Any]) -> Config:
    """Return the configuration of a task's producer."""
    return Config(**planned(options).producer_settings())


def refusal(options: dict[str, Any]) -> str:
    with pytest.raises(SinkError) as caught:
        SinkOptions.of({**BASIC, **options})
    text = str(caught.value)
    assert "\n" not in text
    assert PASSWORD not in text
    return text


def prefixed(settings: dict[str, str]) -> dict[str, str]:
    return {f"kafka.{name}": text for name, text in settings.items()}


# The Java client's settings -----------------------------------------------------------------------


def test_java_s_settings_without_effect_are_listed_in_one_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "pykaproducer")
    monkeypatch.setattr("pykaproducer.spark.options._logged", set())
    given = {row[0]: row[1] for row in ROWS if row[2].startswith("no effect: ")}
    options = planned(prefixed(given))
    assert [name for name, _ in options.settings] == ["bootstrap_servers"]
    for _ in range(2):
        options.log_without_effect()
    (record,) = caplog.records
    assert record.name == "pykaproducer.spark"
    assert record.getMessage().startswith("options without effect: kafka.compression.gzip.level (")
    assert all(f"kafka.{name}" in record.getMessage() for name in given)


def test_nothing_is_logged_without_such_options(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pykaproducer")
    planned({"kafka.acks": "all"}).log_without_effect()
    assert not caplog.records


def test_translated_settings_reach_the_tasks() -> None:
    found = config(
        {
            "kafka.compression.type": "gzip",
            "kafka.compression.gzip.level": "7",
            "kafka.compression.zstd.level": "7",
            "KAFKA.Partitioner.Class": "kafkashaded.org.apache.kafka.clients.producer."
            "RoundRobinPartitioner",
            "kafka.send.buffer.bytes": "-1",
            "kafka.security.protocol": "SSL",
            "kafka.ssl.enabled.protocols": "TLSv1.2,TLSv1.3",
            "kafka.ssl.protocol": "TLSv1.2",
        }
    )
    assert found.compression_level == 7
    assert found.partitioner == "round_robin"
    assert found.send_buffer_bytes is None
    assert found.ssl_enabled_protocols == ("TLSv1.2",)


def test_entra_id_as_databricks_documents_it() -> None:
    found = config(prefixed(ENTRA))
    assert found.sasl_oauthbearer_client_secret == PASSWORD
    assert found.fetches_tokens


def test_msk_as_databricks_documents_it() -> None:
    pytest.importorskip("botocore")
    assert config(prefixed(MSK)).sasl_mechanism == "AWS_MSK_IAM"


@pytest.mark.parametrize("name", ["entra", "msk"])
def test_the_options_in_the_guide_to_databricks(name: str) -> None:
    if name == "msk":
        pytest.importorskip("botocore")
    text = (ROOT / "docs" / "databricks.rst").read_text()
    blocks = re.findall(r"\.\. code-block:: python\n\n((?: {4}.*\n|\n)+)", text)
    (block,) = [each for each in blocks if f"{name} = {{" in each]
    secrets = types.SimpleNamespace(get=lambda scope, key: PASSWORD)
    found: dict[str, Any] = {"dbutils": types.SimpleNamespace(secrets=secrets)}
    exec(textwrap.dedent(block), found)
    assert config(found[name]).uses_sasl


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("kafka.partitioner.class", "a.Mine", "cannot be 'a.Mine' here: Java classes cannot be"),
        ("kafka.value.serializer", "a.AvroSerializer", "convert keys and values to bytes"),
        ("kafka.group.id", "readers", "is not a producer setting: it is a consumer setting"),
        ("kafka.ssl.protocol", "TLSv1.1", "only TLSv1.2 and TLSv1.3 are supported"),
        ("partitioner.class", "", "is a producer setting; write it as kafka.partitioner.class"),
        ("startingOffsets", "earliest", "is for Spark's Kafka source; a sink does not read"),
        ("kafkaConsumer.pollTimeoutMs", "1", "is for Spark's Kafka source; a sink does not"),
        ("databricks.serviceCredential", "c", "works in Databricks' own connector only; set"),
    ],
)
def test_what_cannot_be_honoured_is_refused(name: str, value: str, said: str) -> None:
    text = refusal({name: value})
    assert text.startswith(f"option {name} ")
    assert said in text


def test_an_option_given_twice_with_different_values() -> None:
    text = refusal({"kafka.linger.ms": "5", "kafka.linger_ms": "6"})
    assert text.startswith("settings linger.ms and linger_ms are the same setting")


# Files that only the driver has -------------------------------------------------------------------

TLS = {"kafka.security.protocol": "SSL"}


@pytest.fixture(scope="module")
def authority() -> CertificateAuthority:
    return CertificateAuthority("an authority")


@pytest.fixture(scope="module")
def issued(authority: CertificateAuthority) -> Issued:
    return authority.issue("alice")


@pytest.fixture
def files(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "driver"
    path.mkdir()
    return path


def on_executors(options: dict[str, Any], files: pathlib.Path) -> Config:
    """Plan with *files*, and return the configuration of a producer where there are none."""
    found = planned({**TLS, **options})
    shutil.rmtree(files)
    assert str(files) not in str(found.settings)
    made = Config(**found.producer_settings())
    tls_context(made)
    return made


@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
def test_stores_of_java(
    authority: CertificateAuthority, issued: Issued, files: pathlib.Path, kind: str
) -> None:
    ca = [authority.certificate, CertificateAuthority("another").certificate]
    trusted = trust_store(files / "trusted", ca, kind, PASSWORD)
    mine = key_store(files / "mine", issued.certificate, issued.key, kind, PASSWORD)
    made = on_executors(
        {
            "kafka.ssl.truststore.location": str(trusted),
            "kafka.ssl.truststore.password": PASSWORD,
            "kafka.ssl.truststore.type": kind,
            "kafka.ssl.keystore.location": str(mine),
            "kafka.ssl.keystore.password": PASSWORD,
            "kafka.ssl.key.password": PASSWORD,
        },
        files,
    )
    assert len(tls_context(made).get_ca_certs()) == 2
    assert made.ssl_ca_pem is not None
    assert made.ssl_certificate_pem is not None
    assert made.ssl_password is None


def test_stores_of_pem(authority: CertificateAuthority, files: pathlib.Path) -> None:
    locked = authority.issue("locked", key_password=PASSWORD)
    trusted, mine = files / "ca.pem", files / "me.pem"
    # Bundles of authorities have comments.
    trusted.write_text(f"# Autorità di prova\r\n{authority.certificate}\n")
    mine.write_text(locked.certificate + locked.key)
    made = on_executors(
        {
            "kafka.ssl.truststore.location": str(trusted),
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.keystore.location": str(mine),
            "kafka.ssl.key.password": PASSWORD,
        },
        files,
    )
    assert len(tls_context(made).get_ca_certs()) == 1


def test_files_of_pem(authority: CertificateAuthority, files: pathlib.Path) -> None:
    locked = authority.issue("locked", key_password=PASSWORD)
    for name, text in (
        ("ca.pem", authority.certificate),
        ("me.pem", locked.certificate),
        ("key.pem", locked.key),
    ):
        (files / name).write_text(text)
    made = on_executors(
        {
            "kafka.ssl.ca.location": str(files / "ca.pem"),
            "kafka.ssl.certificate.location": str(files / "me.pem"),
            "kafka.ssl.key.location": str(files / "key.pem"),
            "kafka.ssl.key.password": PASSWORD,
        },
        files,
    )
    assert made.ssl_password == PASSWORD


def test_a_directory_of_authorities(authority: CertificateAuthority, files: pathlib.Path) -> None:
    (files / "0a0a0a0a.0").write_text(authority.certificate)
    (files / "0b0b0b0b.0").write_text(CertificateAuthority("another").certificate)
    (files / "README").write_text("not a certificate")
    made = on_executors({"kafka.ssl.ca.location": str(files)}, files)
    assert len(tls_context(made).get_ca_certs()) == 2


def test_files_of_the_token_endpoint(authority: CertificateAuthority, files: pathlib.Path) -> None:
    key = authority.issue("assertions").key
    (files / "ca.pem").write_text(authority.certificate)
    (files / "key.pem").write_text(key)
    made = on_executors(
        {
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "OAUTHBEARER",
            "kafka.sasl.oauthbearer.token.endpoint.url": "https://localhost/token",
            "kafka.sasl.oauthbearer.client.id": "me",
            "kafka.sasl.oauthbearer.ca.file": str(files / "ca.pem"),
            "kafka.sasl.oauthbearer.assertion.private.key.file": str(files / "key.pem"),
            "kafka.sasl.oauthbearer.assertion.algorithm": "ES256",
        },
        files,
    )
    assert made.sasl_oauthbearer_ca_pem == authority.certificate.strip()
    assert made.sasl_oauthbearer_assertion_private_key_pem == key


def test_a_store_that_cannot_be_read_is_named(files: pathlib.Path) -> None:
    missing = str(files / "missing.jks")
    text = refusal({**TLS, "kafka.ssl.truststore.location": missing})
    assert text == (
        f"option kafka.ssl.truststore.location: {missing!r} cannot be read: "
        "No such file or directory"
    )


def test_a_write_that_is_exactly_once(authority: CertificateAuthority, files: pathlib.Path) -> None:
    (files / "ca.pem").write_text(authority.certificate)
    made = on_executors(
        {
            "exactlyOnce": "true",
            "transactionalIdPrefix": "shop.orders",
            "kafka.ssl.truststore.location": str(files / "ca.pem"),
            "kafka.transaction.two.phase.commit.enable": "false",
        },
        files,
    )
    assert made.transactional_id is not None
    assert made.transaction_timeout_ms == 900_000


def test_a_renewed_store_is_another_configuration(
    authority: CertificateAuthority, files: pathlib.Path
) -> None:
    """A stream is planned for each micro-batch; its next one has another producer."""
    path = files / "ca.pem"
    path.write_text(authority.certificate)
    options = {**TLS, "kafka.ssl.truststore.location": str(path)}
    first = planned(options)
    assert planned(options) == first
    path.write_text(CertificateAuthority("a new one").certificate)
    assert planned(options) != first


def test_a_revocation_list_remains_a_path(
    authority: CertificateAuthority, files: pathlib.Path
) -> None:
    (files / "ca.pem").write_text(authority.certificate)
    (files / "crl.pem").write_text(authority.revocation_list([]))
    made = config(
        {
            **TLS,
            "kafka.ssl.ca.location": str(files / "ca.pem"),
            "kafka.ssl.crl.location": str(files / "crl.pem"),
        }
    )
    assert made.ssl_crlfile == os.fspath(files / "crl.pem")
