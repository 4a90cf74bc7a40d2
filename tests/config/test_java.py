"""The Java client's settings: each is honoured, has no effect for a reason, or is refused."""

from __future__ import annotations

import logging
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pykaproducer._config.tls_context import tls_context
from pykaproducer.config import Config, read_settings, resolve, resolve_options
from pykaproducer.errors import ConfigurationError, UnsupportedFeatureError
from pykaproducer.testing import ClusterError
from pykaproducer.testing._jars import java, kafka_jars

_OAUTH = "org.apache.kafka.common.security.oauthbearer"
_ASSERTION = "sasl_oauthbearer_assertion"
_STRINGS = "org.apache.kafka.common.serialization.StringSerializer"

#: Every name of Java's ProducerConfig 4.3; a usual value, which is its default if it has one; and
#: our setting, or why it has no effect.
TABLE = f"""
acks | all | acks
batch.size | 16384 | batch_size
bootstrap.servers | localhost:9092 | bootstrap_servers
buffer.memory | 33554432 | buffer_memory
client.dns.lookup | use_all_dns_ips | no effect: all addresses of a host name are tried
client.id | me | client_id
compression.gzip.level | -1 | no effect: compression.type is not gzip
compression.lz4.level | 9 | no effect: compression.type is not lz4
compression.type | none | compression_type
compression.zstd.level | 3 | no effect: compression.type is not zstd
config.providers | | no effect: there are none
connections.max.idle.ms | 540000 | connections_max_idle_ms
delivery.timeout.ms | 120000 | delivery_timeout_ms
enable.idempotence | true | enable_idempotence
enable.metrics.push | true | no effect: metrics are not pushed to the brokers
interceptor.classes | | no effect: there are none
key.serializer | {_STRINGS} | no effect: keys and values are bytes
linger.ms | 5 | linger_ms
max.block.ms | 60000 | max_block_ms
max.in.flight.requests.per.connection | 5 | max_in_flight_requests_per_connection
max.request.size | 1048576 | max_request_size
metadata.max.age.ms | 300000 | metadata_max_age_ms
metadata.max.idle.ms | 300000 | metadata_max_idle_ms
metadata.recovery.rebootstrap.trigger.ms | 300000 | no effect: known brokers are tried first
metadata.recovery.strategy | rebootstrap | no effect: known brokers are tried first
metric.reporters | org.apache.kafka.common.metrics.JmxReporter | no effect: there is no JMX
metrics.num.samples | 2 | metrics_num_samples
metrics.recording.level | INFO | no effect: there is only one level
metrics.sample.window.ms | 30000 | metrics_sample_window_ms
partitioner.adaptive.partitioning.enable | true | partitioner_adaptive_partitioning_enable
partitioner.availability.timeout.ms | 0 | no effect: partitioner_adaptive_partitioning_enable avoids
partitioner.class | | no effect: the default is Java's
partitioner.ignore.keys | false | no effect: keys are not ignored
receive.buffer.bytes | -1 | receive_buffer_bytes
reconnect.backoff.max.ms | 1000 | reconnect_backoff_max_ms
reconnect.backoff.ms | 50 | reconnect_backoff_ms
request.timeout.ms | 30000 | request_timeout_ms
retries | 2147483647 | retries
retry.backoff.max.ms | 1000 | retry_backoff_max_ms
retry.backoff.ms | 100 | retry_backoff_ms
sasl.client.callback.handler.class | | no effect: sasl.mechanism implies it
sasl.jaas.config | a.PlainLoginModule required username="u" password="p"; | sasl_jaas_config
sasl.kerberos.kinit.cmd | /usr/bin/kinit | no effect: the Kerberos library requests tickets
sasl.kerberos.min.time.before.relogin | 60000 | no effect: the Kerberos library requests tickets
sasl.kerberos.service.name | kafka | sasl_kerberos_service_name
sasl.kerberos.ticket.renew.jitter | 0.05 | no effect: the Kerberos library requests tickets
sasl.kerberos.ticket.renew.window.factor | 0.8 | no effect: the Kerberos library requests tickets
sasl.login.callback.handler.class | | no effect: tokens come from sasl.oauthbearer.token
sasl.login.class | | no effect: there is none
sasl.login.connect.timeout.ms | 10000 | sasl_login_connect_timeout_ms
sasl.login.read.timeout.ms | 10000 | sasl_login_read_timeout_ms
sasl.login.refresh.buffer.seconds | 300 | no effect: tokens are renewed after 80 to 85 %
sasl.login.refresh.min.period.seconds | 60 | no effect: tokens are renewed after 80 to 85 %
sasl.login.refresh.window.factor | 0.8 | no effect: tokens are renewed after 80 to 85 %
sasl.login.refresh.window.jitter | 0.05 | no effect: tokens are renewed after 80 to 85 %
sasl.login.retry.backoff.max.ms | 10000 | sasl_login_retry_backoff_max_ms
sasl.login.retry.backoff.ms | 100 | sasl_login_retry_backoff_ms
sasl.mechanism | GSSAPI | sasl_mechanism
sasl.oauthbearer.assertion.algorithm | RS256 | sasl_oauthbearer_assertion_algorithm
sasl.oauthbearer.assertion.claim.aud | a | sasl_oauthbearer_assertion_claim_aud
sasl.oauthbearer.assertion.claim.exp.seconds | 300 | sasl_oauthbearer_assertion_claim_exp_seconds
sasl.oauthbearer.assertion.claim.iss | a | sasl_oauthbearer_assertion_claim_iss
sasl.oauthbearer.assertion.claim.jti.include | false | sasl_oauthbearer_assertion_claim_jti_include
sasl.oauthbearer.assertion.claim.nbf.seconds | 60 | sasl_oauthbearer_assertion_claim_nbf_seconds
sasl.oauthbearer.assertion.claim.sub | a | sasl_oauthbearer_assertion_claim_sub
sasl.oauthbearer.assertion.file | /a | sasl_oauthbearer_assertion_file
sasl.oauthbearer.assertion.private.key.file | /a | sasl_oauthbearer_assertion_private_key_file
sasl.oauthbearer.assertion.private.key.passphrase | a | {_ASSERTION}_private_key_passphrase
sasl.oauthbearer.assertion.template.file | /a | sasl_oauthbearer_assertion_template_file
sasl.oauthbearer.client.credentials.client.id | a | sasl_oauthbearer_client_id
sasl.oauthbearer.client.credentials.client.secret | a | sasl_oauthbearer_client_secret
sasl.oauthbearer.clock.skew.seconds | 30 | no effect: brokers validate
sasl.oauthbearer.expected.audience | | no effect: brokers validate
sasl.oauthbearer.expected.issuer | a | no effect: brokers validate
sasl.oauthbearer.header.urlencode | false | sasl_oauthbearer_header_urlencode
sasl.oauthbearer.jwks.endpoint.refresh.ms | 3600000 | no effect: brokers validate
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms | 10000 | no effect: brokers validate
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms | 100 | no effect: brokers validate
sasl.oauthbearer.jwks.endpoint.url | https://a/b | no effect: brokers validate
sasl.oauthbearer.jwt.retriever.class | {_OAUTH}.DefaultJwtRetriever | sasl_oauthbearer_grant_type
sasl.oauthbearer.jwt.validator.class | {_OAUTH}.DefaultJwtValidator | no effect: brokers validate
sasl.oauthbearer.scope | a | sasl_oauthbearer_scope
sasl.oauthbearer.scope.claim.name | scope | no effect: brokers validate
sasl.oauthbearer.sub.claim.name | sub | no effect: brokers validate
sasl.oauthbearer.token.endpoint.url | https://a/b | sasl_oauthbearer_token_endpoint_url
security.protocol | PLAINTEXT | security_protocol
security.providers | | no effect: Python's ssl and its OpenSSL are used
send.buffer.bytes | 131072 | send_buffer_bytes
socket.connection.setup.timeout.max.ms | 30000 | socket_connection_setup_timeout_max_ms
socket.connection.setup.timeout.ms | 10000 | socket_connection_setup_timeout_ms
ssl.cipher.suites | | ssl_ciphers
ssl.enabled.protocols | TLSv1.2,TLSv1.3 | ssl_enabled_protocols
ssl.endpoint.identification.algorithm | https | ssl_check_hostname
ssl.engine.factory.class | | no effect: Python's ssl and its OpenSSL are used
ssl.key.password | a | ssl_password
ssl.keymanager.algorithm | SunX509 | no effect: Python's ssl and its OpenSSL are used
ssl.keystore.certificate.chain | -----BEGIN A-----\t | ssl_certificate_pem
ssl.keystore.key | -----BEGIN A-----\t | ssl_key_pem
ssl.keystore.location | /a | ssl_keystore_location
ssl.keystore.password | a | ssl_keystore_password
ssl.keystore.type | JKS | ssl_keystore_type
ssl.protocol | TLSv1.3 | no effect: TLS 1.2 and 1.3 are enabled by default
ssl.provider | SunJSSE | no effect: Python's ssl and its OpenSSL are used
ssl.secure.random.implementation | SHA1PRNG | no effect: Python's ssl and its OpenSSL are used
ssl.trustmanager.algorithm | PKIX | no effect: Python's ssl and its OpenSSL are used
ssl.truststore.certificates | -----BEGIN A-----\t | ssl_ca_pem
ssl.truststore.location | /a | ssl_truststore_location
ssl.truststore.password | a | ssl_truststore_password
ssl.truststore.type | JKS | ssl_truststore_type
transaction.timeout.ms | 60000 | transaction_timeout_ms
transaction.two.phase.commit.enable | false | no effect: it is not used
transactional.id | a | transactional_id
value.serializer | {_STRINGS} | no effect: keys and values are bytes
"""
ROWS = [[each.strip(" ") for each in line.split("|")] for line in TABLE.strip().splitlines()]
_NO_EFFECT = "no effect: "


@pytest.mark.parametrize(("name", "text", "expected"), ROWS, ids=[row[0] for row in ROWS])
def test_each_setting_of_java_is_known(name: str, text: str, expected: str) -> None:
    found = resolve_options({name: text.replace("\t", "\n")})
    if expected.startswith(_NO_EFFECT):
        assert list(found.without_effect) == [name]
        assert found.without_effect[name].startswith(expected.removeprefix(_NO_EFFECT))
        assert found.values == {}
    else:
        assert list(found.values) == [expected]
        assert found.without_effect == {}


@pytest.mark.kafka
def test_the_table_has_all_of_them() -> None:
    """``ProducerConfig`` prints its documentation, which has the names."""
    try:
        program, jars = java(), kafka_jars()
    except ClusterError as error:
        pytest.skip(f"no Kafka to compare with: {error}")
    words = [
        program,
        "-cp",
        ":".join(map(str, jars)),
        "org.apache.kafka.clients.producer.ProducerConfig",
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    assert {*re.findall(r'<a id="([a-z0-9.]+)">', done.stdout)} == {row[0] for row in ROWS}


def test_they_are_all_listed_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pykaproducer")
    config = Config.from_kwargs({"client_id": "me", **{row[0]: row[1] for row in _harmless()}})
    assert config == Config(client_id="me")
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("me: settings without effect: compression.gzip.level (compression.type")
    assert (
        "ssl.provider, ssl.secure.random.implementation, ssl.trustmanager.algorithm (Pyth" in line
    )
    assert all(row[0] in line for row in _harmless())


def _harmless() -> list[list[str]]:
    return [row for row in ROWS if row[2].startswith(_NO_EFFECT)]


def test_values_need_not_be_strings() -> None:
    settings: dict[str, Any] = {
        "enable.metrics.push": False,
        "metric.reporters": [],
        "sasl.oauthbearer.clock.skew.seconds": 30,
        "partitioner.class": None,
        "send.buffer.bytes": -1,
    }
    assert Config.from_kwargs({"client_id": "me", **settings}) == Config(client_id="me")


# Translated ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codec", "level", "expected"),
    [
        ("gzip", "9", 9),
        ("gzip", "-1", None),
        ("lz4", "9", 9),
        ("lz4", "17", 12),
        ("zstd", "19", 19),
        ("zstd", "-5", -5),
    ],
)
def test_levels_of_compression(codec: str, level: str, expected: int | None) -> None:
    texts = {f"compression.{each}.level": "1" for each in ("gzip", "lz4", "zstd")}
    found = resolve({**texts, "compression.type": codec, f"compression.{codec}.level": level})
    assert found.get("compression_level") == expected
    assert resolve({"compression_type": codec, f"compression.{codec}.level": level}) == found


def test_a_level_that_does_not_exist_names_java_s_setting() -> None:
    text = refusal({"compression.type": "zstd", "compression.zstd.level": "many"})
    assert text.startswith("setting compression.zstd.level: 'many' was given; allowed: ")
    text = refusal(
        {"compression.type": "zstd", "compression.zstd.level": "3", "compression_level": 4}
    )
    assert text.startswith("settings compression.zstd.level and compression_level are the same")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("org.apache.kafka.clients.producer.RoundRobinPartitioner", "round_robin"),
        ("kafkashaded.org.apache.kafka.clients.producer.RoundRobinPartitioner", "round_robin"),
        ("org.apache.kafka.clients.producer.UniformStickyPartitioner", "sticky"),
        ("org.apache.kafka.clients.producer.internals.DefaultPartitioner", "murmur2"),
    ],
)
def test_partitioners(given: str, expected: str) -> None:
    assert resolve({"partitioner.class": given}) == {"partitioner": expected}
    both = {"partitioner.class": given, "partitioner.ignore.keys": "true"}
    assert resolve(both) == {"partitioner": expected}


def test_keys_that_are_ignored() -> None:
    assert resolve({"partitioner.ignore.keys": "true"}) == {"partitioner": "sticky"}
    assert resolve({"partitioner.ignore.keys": True}) == {"partitioner": "sticky"}


@pytest.mark.parametrize(
    ("enabled", "protocol", "expected"),
    [
        ("TLSv1.2,TLSv1.3", None, None),
        ("TLSv1.3 , TLSv1.2", None, None),
        ("TLSv1.2", None, ("TLSv1.2",)),
        ("TLSv1.2,TLSv1.1,TLSv1", None, ("TLSv1.2",)),
        ("TLSv1.3", "TLSv1.3", ("TLSv1.3",)),
        ("TLSv1.2,TLSv1.3", "TLSv1.2", ("TLSv1.2",)),
        (None, "TLSv1.2", ("TLSv1.2",)),
        (None, "TLS", None),
        ("", "SSL", None),
    ],
)
def test_versions_of_tls(
    enabled: str | None, protocol: str | None, expected: tuple[str, ...] | None
) -> None:
    given = {"ssl.enabled.protocols": enabled, "ssl.protocol": protocol}
    found = resolve({name: text for name, text in given.items() if text is not None})
    assert found.get("ssl_enabled_protocols") == expected


@pytest.mark.parametrize(
    ("suite", "expected"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
        ("TLS_DHE_RSA_WITH_AES_256_CBC_SHA256", "DHE-RSA-AES256-SHA256"),
        ("TLS_RSA_WITH_AES_128_CBC_SHA", "AES128-SHA"),
        ("ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
    ],
)
def test_names_of_ciphers(suite: str, expected: str) -> None:
    for separator in (", ", ":"):
        given = f"TLS_AES_256_GCM_SHA384{separator}{suite}"
        config = Config.from_strings({"security.protocol": "SSL", "ssl.cipher.suites": given})
        assert config.ssl_ciphers == expected
        used = [each["name"] for each in tls_context(config).get_ciphers()]
        assert [each for each in used if not each.startswith("TLS_")] == [expected]


def test_ciphers_of_the_newest_version_alone() -> None:
    text = refusal({"ssl.cipher.suites": "TLS_AES_256_GCM_SHA384"})
    assert text.endswith("set ssl.enabled.protocols=TLSv1.3")
    text = refusal({"security.protocol": "SSL", "ssl.cipher.suites": "TLS_A_WITH_B"}, Config)
    assert text.startswith("setting ssl_ciphers: 'A-B' selects no cipher")


# Shaded classes and callback handlers -------------------------------------------------------------

ENTRA = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.token.endpoint.url": "https://login.example.org/tenant/oauth2/v2.0/token",
    "sasl.login.callback.handler.class": f"kafkashaded.{_OAUTH}.secured."
    "OAuthBearerLoginCallbackHandler",
    "sasl.jaas.config": f"kafkashaded.{_OAUTH}.OAuthBearerLoginModule required "
    'clientId="me" clientSecret="hunter2" scope="https://a.example.org/.default" '
    'ssl.protocol="SSL";',
}
MSK = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "AWS_MSK_IAM",
    "sasl.jaas.config": "shadedmskiam.software.amazon.msk.auth.iam.IAMLoginModule required "
    "awsDebugCreds=true;",
    "sasl.client.callback.handler.class": "shadedmskiam.software.amazon.msk.auth.iam."
    "IAMClientCallbackHandler",
}


def test_entra_id_as_databricks_documents_it() -> None:
    config = Config.from_strings(ENTRA)
    assert config.sasl_oauthbearer_client_id == "me"
    assert config.sasl_oauthbearer_client_secret == "hunter2"
    assert config.sasl_oauthbearer_scope == "https://a.example.org/.default"


def test_msk_as_databricks_documents_it() -> None:
    pytest.importorskip("botocore")
    assert Config.from_strings(MSK).sasl_mechanism == "AWS_MSK_IAM"


def test_the_other_handler_of_msk_names_the_mechanism_that_works() -> None:
    handler = "software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler"
    text = refusal({**ENTRA, "sasl.login.callback.handler.class": handler})
    assert "set sasl.mechanism=AWS_MSK_IAM" in text


# Refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "what_to_do"),
    [
        ("partitioner.class", "com.example.Mine", "give each message its partition"),
        ("interceptor.classes", "com.example.Mine", "Java classes cannot be run; remove it"),
        ("metric.reporters", "com.example.Mine", "use metrics() or stats()"),
        ("config.providers", "file", "give the values themselves"),
        ("security.providers", "com.example.Mine", "OpenSSL are used; remove it"),
        ("ssl.engine.factory.class", "com.example.Mine", "set the ssl.* settings"),
        ("sasl.login.class", "com.example.Mine", "set sasl.jaas.config"),
        ("sasl.client.callback.handler.class", "com.example.Mine", "set sasl.mechanism"),
        ("sasl.login.callback.handler.class", "com.example.Mine", "token.endpoint.url, with"),
        ("sasl.oauthbearer.jwt.validator.class", "com.example.Mine", "brokers validate"),
        ("key.serializer", "io.example.KafkaAvroSerializer", "convert keys and values to bytes"),
        ("value.serializer", "io.example.KafkaAvroSerializer", "convert keys and values"),
        ("transaction.two.phase.commit.enable", "true", "set it to false"),
        ("ssl.protocol", "TLSv1.1", "only TLSv1.2 and TLSv1.3 are supported"),
    ],
)
def test_what_cannot_be_honoured_is_refused(
    name: str, value: str, what_to_do: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = refusal({name: value})
    assert text.startswith(f"setting {name} cannot be {value!r} here: ")
    assert what_to_do in text
    assert refusal({name: f"a.{value}"}).startswith(f"setting {name} cannot be 'a.{value}' here")
    path = tmp_path / "client.properties"
    path.write_text(f"{name}={value}\n")
    assert read_settings(path) == {}
    assert caplog.records[0].getMessage() == f"ignored: {text}"


def test_versions_of_tls_that_are_too_old() -> None:
    text = refusal({"ssl.enabled.protocols": "TLSv1.1,TLSv1"})
    assert "older versions are not supported, because they are not secure" in text
    assert "allowed: 'TLSv1.2', 'TLSv1.3'" in refusal({"ssl.enabled.protocols": "TLSv1.4"})
    assert "allowed: 'TLSv1.2', 'TLSv1.3'" in refusal({"ssl_enabled_protocols": [1]})
    text = refusal({"ssl.enabled.protocols": "TLSv1.3", "ssl.protocol": "TLSv1.2"})
    assert text.startswith("settings ssl.enabled.protocols and ssl.protocol are the same setting")


def refusal(settings: dict[str, Any], kind: type[Config] | None = None) -> str:
    """Return the text of the error, which is one line without secrets."""
    with pytest.raises((ConfigurationError, UnsupportedFeatureError)) as caught:
        resolve(settings) if kind is None else kind.from_kwargs(settings)
    text = str(caught.value)
    assert "\n" not in text
    assert "hunter2" not in text
    return text
