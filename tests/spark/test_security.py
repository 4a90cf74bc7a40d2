"""Writes over TLS with SASL: the credentials reach the tasks, and no output contains them."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from pykaproducer.spark import register, write
from pykaproducer.spark.options import SinkOptions
from pykaproducer.testing import KafkaCluster, Security, TokenServer
from tests._support.stores import key_store, trust_store
from tests.security.listeners import PASSWORD

from .helper import SOON, application, values
from .secured_app import ROWS

pytestmark = pytest.mark.full


SCRAM, CERTIFICATE, TOKENS = range(3)


@pytest.fixture(scope="module")
def token_server() -> Iterator[TokenServer]:
    pytest.importorskip("cryptography")
    with TokenServer({"alice": PASSWORD}) as server:
        yield server


@pytest.fixture(scope="module")
def secured(token_server: TokenServer) -> Iterator[KafkaCluster]:
    """Yield a broker that requires TLS, and a password, a certificate or a token."""
    pytest.importorskip("trustme")
    security = [
        Security("SASL_SSL", "SCRAM-SHA-512", users={"alice": PASSWORD}),
        Security("SSL", users={"bob": ""}, client_auth="required", key_password=PASSWORD),
        Security("SASL_SSL", "OAUTHBEARER", users={"alice": PASSWORD}, token_server=token_server),
    ]
    with KafkaCluster(security=security, fast_start=True) as cluster:
        yield cluster


@pytest.fixture(autouse=True, scope="module")
def registered(spark: Any) -> None:
    register(spark)


def scram_options(secured: KafkaCluster, topic: str, password: str = PASSWORD) -> dict[str, str]:
    """Return the options that a user of the Java client would give."""
    settings = secured.settings(listener=SCRAM)
    return {
        "topic": topic,
        "kafka.bootstrap.servers": settings["bootstrap_servers"],
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": settings["ssl_cafile"],
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule "
        f'required username="alice" password="{password}";',
    }


def put_lines(directory: pathlib.Path, numbers: range) -> str:
    directory.mkdir()
    (directory / "lines").write_text("".join(f"{number}\n" for number in numbers))
    return str(directory)


def sorted_values(secured: KafkaCluster, topic: str) -> list[int]:
    return sorted(int(value or b"") for value in values(secured, topic, 2))


def test_a_batch_and_a_stream_with_a_password(
    spark: Any, secured: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    secured.create_topic(topic, partitions=2)
    options = scram_options(secured, topic)
    df = spark.range(1000, numPartitions=2).selectExpr("CAST(id AS STRING) AS value")
    df.write.format("pykaproducer").options(**options).mode("append").save()
    query = (
        spark.readStream.text(put_lines(tmp_path / "in", range(1000, 1500)))
        .writeStream.format("pykaproducer")
        .options(**options)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(SOON)
    assert sorted_values(secured, topic) == list(range(1500))


def test_a_batch_with_tokens_and_a_trust_store_of_java(
    spark: Any, secured: KafkaCluster, token_server: TokenServer, topic: str, tmp_path: pathlib.Path
) -> None:
    secured.create_topic(topic, partitions=2)
    settings = secured.settings(listener=TOKENS)
    ca = pathlib.Path(settings["ssl_cafile"]).read_text()
    options = {
        "topic": topic,
        "kafka.bootstrap.servers": settings["bootstrap_servers"],
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.location": str(trust_store(tmp_path / "ca", [ca], "JKS", PASSWORD)),
        "kafka.ssl.truststore.password": PASSWORD,
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.oauthbearer.token.endpoint.url": token_server.url,
        "kafka.sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer."
        "OAuthBearerLoginCallbackHandler",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer."
        f'OAuthBearerLoginModule required clientId="alice" clientSecret="{PASSWORD}";',
    }
    df = spark.range(100).selectExpr("CAST(id AS STRING) AS value")
    df.write.format("pykaproducer").options(**options).mode("append").save()
    assert sorted_values(secured, topic) == list(range(100))


def test_write_with_a_certificate(spark: Any, secured: KafkaCluster, topic: str) -> None:
    secured.create_topic(topic, partitions=2)
    df = spark.range(100).selectExpr("CAST(id AS STRING) AS value")
    summary = write(df, topic=topic, **secured.settings(listener=CERTIFICATE))
    assert summary.rows == 100
    assert sorted_values(secured, topic) == list(range(100))


def test_executors_get_the_credentials_and_no_log_has_them(
    secured: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    secured.create_topic(topic, partitions=2)
    arguments = {
        "options": json.dumps(scram_options(secured, topic)),
        "input": put_lines(tmp_path / "in", range(ROWS, 2 * ROWS)),
        "checkpoint": str(tmp_path / "checkpoint"),
        "local": str(tmp_path / "local"),
    }
    log = tmp_path / "log"
    with application("secured_app.py", arguments, log) as process:
        assert process.wait(SOON) == 0, log.read_text()
    assert sorted_values(secured, topic) == list(range(2 * ROWS))
    refuse_traces(tmp_path, log, PASSWORD)


def test_only_the_driver_has_the_stores(
    secured: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    """A batch with stores of Java, and a stream with a key store of PEM, at relative paths."""
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    secured.create_topic(topic, partitions=2)
    settings = secured.settings(listener=CERTIFICATE)
    ca, certificate = (
        pathlib.Path(settings[name]).read_text() for name in ("ssl_cafile", "ssl_certfile")
    )
    locked = pathlib.Path(settings["ssl_keyfile"]).read_text()
    key = (
        serialization.load_pem_private_key(locked.encode(), PASSWORD.encode())
        .private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        .decode()
    )
    stores = tmp_path / "driver" / "stores"
    stores.mkdir(parents=True)
    trust_store(stores / "ca.p12", [ca], "PKCS12", PASSWORD)
    key_store(stores / "me.jks", certificate, key, "JKS", PASSWORD)
    (stores / "me.pem").write_text(certificate + key)
    common = {
        "topic": topic,
        "kafka.bootstrap.servers": settings["bootstrap_servers"],
        "kafka.security.protocol": "SSL",
        "kafka.ssl.enabled.protocols": "TLSv1.2,TLSv1.3",
        "kafka.ssl.trustmanager.algorithm": "PKIX",
    }
    arguments = {
        "options": json.dumps(
            {
                **common,
                "kafka.ssl.truststore.location": "stores/ca.p12",
                "kafka.ssl.truststore.password": PASSWORD,
                "kafka.ssl.keystore.location": "stores/me.jks",
                "kafka.ssl.keystore.password": PASSWORD,
            }
        ),
        "stream_options": json.dumps(
            {
                **common,
                "kafka.ssl.truststore.type": "PEM",
                "kafka.ssl.truststore.certificates": ca,
                "kafka.ssl.keystore.type": "PEM",
                "kafka.ssl.keystore.location": "stores/me.pem",
            }
        ),
        "directory": str(tmp_path / "driver"),
        "absent": "stores/ca.p12",
        "input": put_lines(tmp_path / "in", range(ROWS, 2 * ROWS)),
        "checkpoint": str(tmp_path / "checkpoint"),
        "local": str(tmp_path / "local"),
    }
    log = tmp_path / "log"
    with application("secured_app.py", arguments, log) as process:
        assert process.wait(SOON) == 0, log.read_text()
    assert sorted_values(secured, topic) == list(range(2 * ROWS))
    assert log.read_text().count("options without effect: kafka.ssl.trustmanager.algorithm (") == 2
    refuse_traces(tmp_path, log, PASSWORD, *key.splitlines()[1:-1])


def refuse_traces(directory: pathlib.Path, log: pathlib.Path, *secrets: str) -> None:
    """Raise if a log or a file that Spark has written contains one of *secrets*."""
    written = [
        log,
        *(directory / "local" / "events").rglob("*"),
        *(directory / "checkpoint").rglob("*"),
    ]
    kept = [path for path in written if path.is_file()]
    assert len(kept) > 3
    for secret in secrets:
        assert [path for path in kept if secret.encode() in path.read_bytes()] == []


def test_a_wrong_password_fails_the_write_with_the_cause(
    spark: Any, secured: KafkaCluster, topic: str
) -> None:
    secured.create_topic(topic)
    options = scram_options(secured, topic, password="another-secret")
    options["kafka.delivery.timeout.ms"] = "10000"
    writer = spark.sql("SELECT 'v' AS value").write.format("pykaproducer").options(**options)
    with pytest.raises(Exception, match=r"row 0: .* for user 'alice' with SCRAM-SHA-512") as caught:
        writer.mode("append").save()
    assert "another-secret" not in str(caught.value)
    assert values(secured, topic) == []


def test_what_can_be_checked_is_refused_before_anything_is_written(
    spark: Any, secured: KafkaCluster, topic: str
) -> None:
    secured.create_topic(topic)
    options = scram_options(secured, topic)
    options["kafka.ssl.truststore.location"] = "/nowhere/ca.pem"
    writer = spark.sql("SELECT 'v' AS value").write.format("pykaproducer").options(**options)
    with pytest.raises(AnalysisException, match=r"option kafka\.ssl.*/nowhere/ca\.pem") as caught:
        writer.mode("append").save()
    assert PASSWORD not in str(caught.value)
    assert PASSWORD not in repr(SinkOptions.of(scram_options(secured, topic)))
