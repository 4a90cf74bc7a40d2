"""librdkafka's settings: how each is mapped, and that none is missing."""

from __future__ import annotations

import ctypes
import logging
import pathlib
import re
from typing import Any

import confluent_kafka
import numpy as np
import pytest

from pykaproducer._config.librdkafka import LIBRDKAFKA
from pykaproducer.config import Config, canonical_name
from pykaproducer.confluent import KafkaError, KafkaException, Producer
from pykaproducer.confluent.settings import TokenProvider, librdkafka_table, translate
from pykaproducer.errors import UnsupportedFeatureError

ROOT = pathlib.Path(__file__).parent.parent.parent


def names_of_the_library(into: pathlib.Path) -> set[str]:
    """Return every setting of the installed librdkafka, as it prints them."""
    package = pathlib.Path(confluent_kafka.__file__).parent
    (library,) = package.with_name("confluent_kafka.libs").glob("librdkafka*.so*")
    there, libc = ctypes.CDLL(str(library)), ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(libc.fopen(str(into).encode(), b"w"))
    there.rd_kafka_conf_properties_show(stream)
    libc.fclose(stream)
    return set(re.findall(r"^([a-z][a-z_.]+[a-z]) *\|", into.read_text(), re.M))


def test_no_setting_of_librdkafka_is_forgotten(tmp_path: pathlib.Path) -> None:
    names = names_of_the_library(tmp_path / "settings")
    assert len(names) > 150
    assert names - LIBRDKAFKA.keys() == set()


def test_the_table_names_settings_that_there_are() -> None:
    for row in LIBRDKAFKA.values():
        assert row.support
        assert not row.ours or canonical_name(row.ours) == row.ours


def test_the_page_has_the_table() -> None:
    page = (ROOT / "docs" / "migration-confluent.rst").read_text()
    assert librdkafka_table().strip() in page


def test_the_defaults_are_librdkafkas() -> None:
    config = Config.from_kwargs(translate({}).ours)
    assert config.linger_ms == 5
    assert config.delivery_timeout_ms == 300_000
    assert config.partitioner == "consistent_random"
    assert config.enable_idempotence is False
    assert config.max_request_size == 1_000_000
    assert config.buffer_memory == 1 << 30
    assert config.batch_max_messages == 10_000
    assert config.client_id == "rdkafka"
    assert config.acks == -1
    assert config.max_block_ms == 0


@pytest.mark.parametrize(
    ("name", "value", "ours"),
    [
        ("metadata.broker.list", "a:1,b:2", {"bootstrap_servers": (("a", 1), ("b", 2))}),
        ("bootstrap.servers", ["a:1"], {"bootstrap_servers": (("a", 1),)}),
        ("request.required.acks", "0", {"acks": 0}),
        ("queue.buffering.max.ms", "7.5", {"linger_ms": 7.5}),
        ("message.timeout.ms", 0, {"delivery_timeout_ms": 2**31 - 1}),
        ("message.timeout.ms", 1, {"delivery_timeout_ms": 1, "linger_ms": 1}),
        ("partitioner", "murmur2", {"partitioner": "murmur2_consistent"}),
        ("partitioner", "fnv1a_random", {"partitioner": "fnv1a"}),
        ("compression.codec", "none", {"compression_type": None}),
        ("queue.buffering.max.kbytes", 2, {"buffer_memory": 2048}),
        ("topic.metadata.refresh.interval.ms", -1, {"metadata_max_age_ms": 2**31 - 1}),
        ("socket.send.buffer.bytes", 0, {"send_buffer_bytes": None}),
        ("default.topic.config", {"acks": 1}, {"acks": 1}),
        ("request.timeout.ms", 5, {"request_timeout_ms": 30_000}),
        ("socket.timeout.ms", 10, {"request_timeout_ms": 1000}),
        ("socket.nagle.disable", True, {}),
        ("debug", "all", {}),
    ],
)
def test_what_settings_become(name: str, value: Any, ours: dict[str, Any]) -> None:
    config = Config.from_kwargs(translate({name: value}).ours)
    assert {name: getattr(config, name) for name in ours} == ours


def test_levels_beyond_what_the_codec_has() -> None:
    for codec, level, fits in (("gzip", 12, 9), ("lz4", 12, 12), ("snappy", 3, None)):
        ours = translate({"compression.type": codec, "compression.level": level}).ours
        assert ours.get("compression_level") == fits


def test_security() -> None:
    ours = translate(
        {
            "security.protocol": "sasl_ssl",
            "sasl.mechanisms": "scram-sha-256",
            "sasl.username": "me",
            "sasl.password": "secret",
            "ssl.endpoint.identification.algorithm": "none",
        }
    ).ours
    config = Config.from_kwargs(ours)
    assert (config.security_protocol, config.sasl_mechanism) == ("SASL_SSL", "SCRAM-SHA-256")
    assert (config.sasl_plain_username, config.sasl_plain_password) == ("me", "secret")
    assert config.ssl_check_hostname is False


def test_tokens_come_from_oauth_cb() -> None:
    def oauth_cb(config: str) -> tuple[Any, ...]:
        return f"token of {config}", 0.0, "principal", {"a": "b"}

    provider = translate({"oauth_cb": oauth_cb, "sasl.oauthbearer.config": "c"}).ours[
        "sasl_oauth_token_provider"
    ]
    assert isinstance(provider, TokenProvider)
    assert provider.token() == "token of c"
    assert provider.extensions() == {"a": "b"}


def test_tokens_come_from_a_token_endpoint() -> None:
    ours = translate(
        {
            "security.protocol": "sasl_ssl",
            "sasl.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.credentials.client.id": "me",
            "sasl.oauthbearer.client.secret": "secret",
            "sasl.oauthbearer.token.endpoint.url": "https://login.example.com/token",
            "sasl.oauthbearer.scope": "events",
            "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,identityPoolId=pool-1",
            "sasl.oauthbearer.metadata.authentication.type": "none",
        }
    ).ours
    config = Config.from_kwargs(ours)
    assert (config.sasl_oauthbearer_client_id, config.sasl_oauthbearer_client_secret) == (
        "me",
        "secret",
    )
    assert config.sasl_oauthbearer_extensions == "logicalCluster=lkc-1,identityPoolId=pool-1"
    assert "sasl_oauth_token_provider" not in ours


def test_tokens_of_a_managed_identity() -> None:
    ours = translate(
        {
            "security.protocol": "sasl_ssl",
            "sasl.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.metadata.authentication.type": "azure_imds",
            "sasl.oauthbearer.config": "query=api-version=2018-02-01&resource=api://events",
        }
    ).ours
    assert Config.from_kwargs(ours).sasl_oauthbearer_metadata_authentication_type == "azure_imds"


def test_new_credentials_are_used_from_then_on() -> None:
    settings = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": "old",
    }
    with Producer(settings) as producer:
        producer.set_sasl_credentials("you", "new")
        assert producer._core is not None
        config = producer._core.config
        assert (config.sasl_plain_username, config.sasl_plain_password) == ("you", "new")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"acks": 1, "request.required.acks": 0}, '"acks" and "request.required.acks".*differ'),
        ({"lingerms": 1}, 'did you mean "linger.ms"'),
        ({"bootstrap_servers": "a"}, 'did you mean "bootstrap.servers"'),
        ({"acks": 2}, "must be 0, 1 or all"),
        ({"queuing.strategy": "lifo"}, "is rejected: messages are sent in order"),
        ({"enable.ssl.certificate.verification": False}, "ssl_context"),
        ({"linger.ms": 1_000_000}, "outside allowed range 0..900000"),
        ({"bootstrap.servers": "a:b:c:x/"}, "bootstrap_servers"),
        ({"logger": np.array([1, 2])}, "logger requires"),
    ],
    ids=str,
)
def test_what_is_refused_says_why(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(KafkaException, match=words) as raised:
        Producer(settings)
    assert raised.value.args[0].code() == KafkaError._INVALID_ARG


def test_what_is_not_built_has_that_as_its_cause() -> None:
    with pytest.raises(KafkaException) as raised:
        Producer({"enable.sasl.oauthbearer.unsecure.jwt": True})
    assert isinstance(raised.value.__cause__, UnsupportedFeatureError)


def test_secrets_are_not_shown() -> None:
    with pytest.raises(KafkaException) as raised:
        Producer({"ssl.key.pem": "-----SECRET"})
    assert "SECRET" not in str(raised.value)


def test_settings_of_consumers_are_left_out_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "pykaproducer.confluent"):
        Producer({"group.id": "g"}).close()
    assert "group.id is a property of consumers" in caplog.text
