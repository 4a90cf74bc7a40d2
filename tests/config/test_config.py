"""Settings: accepted values, their names, and the text of errors."""

from __future__ import annotations

import dataclasses
import decimal
import fractions
import json
import logging
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import KafkaProducer
from kafka.errors import KafkaConfigurationError, KafkaError

from pykaproducer.config import SETTINGS, Config, resolve
from pykaproducer.errors import ConfigurationError, UnsupportedFeatureError
from pykaproducer.settings import ProducerSettings
from tests._support.peers import KAFKA_PYTHON

from .helper import config


def refusal(settings: dict[Any, Any]) -> str:
    with pytest.raises((ConfigurationError, UnsupportedFeatureError)) as caught:
        Config.from_kwargs(settings)
    return str(caught.value)


def outcome(settings: dict[str, Any]) -> str:
    """Return the text of the error, or the names of the valid settings."""
    try:
        made = Config.from_kwargs(settings)
    except (ConfigurationError, UnsupportedFeatureError) as error:
        return str(error)
    # Validated settings pass the validation again.
    assert dataclasses.replace(made) == made
    return ", ".join(settings)


# Defaults and compatibility -------------------------------------------------------------------


def test_the_defaults() -> None:
    made = config()
    assert made.bootstrap_servers == (("localhost", 9092),)
    assert (made.acks, made.idempotent, made.retries) == (-1, True, 2**31 - 1)
    assert (made.delivery_timeout_ms, made.linger_ms, made.buffer_memory) == (120_000, 0, 64 << 20)
    assert (made.compression_type, made.partitioner) == (None, "murmur2")


def test_every_setting_of_kafka_python_is_known() -> None:
    assert set(KafkaProducer.DEFAULT_CONFIG) - {setting.name for setting in SETTINGS} == set()


@pytest.mark.parametrize("name", sorted(KafkaProducer.DEFAULT_CONFIG))
def test_what_kafka_python_has_by_default_can_be_given(name: str) -> None:
    # In version 2 they are a callable with the three arguments of ours, and a class.
    if name == "kafka_client" or (name == "partitioner" and KAFKA_PYTHON >= (3, 0)):
        with pytest.raises(KafkaError):
            config(**{name: KafkaProducer.DEFAULT_CONFIG[name]})
    else:
        config(**{name: KafkaProducer.DEFAULT_CONFIG[name]})


def test_the_type_has_every_setting_in_their_order() -> None:
    assert list(ProducerSettings.__annotations__) == [setting.name for setting in SETTINGS]
    assert not ProducerSettings.__required_keys__


def test_the_same_name_never_stands_for_two_settings() -> None:
    names = [name for setting in SETTINGS for name in {setting.name, *setting.dotted}]
    assert sorted(names) == sorted(set(names))


def test_each_setting_is_described_or_says_why_it_is_not_honoured() -> None:
    for setting in SETTINGS:
        assert setting.doc or setting.support != "honoured", setting.name
        assert setting.kind.allowed


def test_each_default_is_a_value_that_the_setting_takes() -> None:
    for setting in SETTINGS:
        setting.parse(setting.default)


def test_each_client_has_a_name_of_its_own() -> None:
    first, second = config().client_id, config().client_id
    assert first.startswith("pykaproducer-")
    assert first != second
    assert config(client_id="mine").client_id == "mine"
    assert config(client_id="").client_id.startswith("pykaproducer-")  # as in Java
    assert config(client_id="x" * (2**15 - 1)).client_id == "x" * (2**15 - 1)


@pytest.mark.parametrize("name", ["client_id", "transactional_id"])
@pytest.mark.parametrize("text", ["x" * 2**15, "\u20ac" * 12_000], ids=["ascii", "wide"])
def test_a_name_that_no_request_can_hold(name: str, text: str) -> None:
    assert f"(it has {len(text.encode())} bytes)" in refusal({name: text})


def test_it_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        config().linger_ms = 5  # type: ignore[misc]


# Servers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_as", "servers"),
    [
        ("broker", [("broker", 9092)]),
        ("broker:19092", [("broker", 19092)]),
        ("a:1, b:2 ,c", [("a", 1), ("b", 2), ("c", 9092)]),
        (["a:1", "b"], [("a", 1), ("b", 9092)]),
        ({"a"}, [("a", 9092)]),
        ("a,a:9092", [("a", 9092)]),
        ("[::1]:19092", [("::1", 19092)]),
        ("[::1]", [("::1", 9092)]),
        ("fe80::1", [("fe80::1", 9092)]),
        ("fe80::1%eth0", [("fe80::1%eth0", 9092)]),
        ("PLAINTEXT://broker:1", [("broker", 1)]),
        ([("broker", 1)], [("broker", 1)]),
    ],
)
def test_servers(given_as: Any, servers: list[tuple[str, int]]) -> None:
    assert config(bootstrap_servers=given_as).bootstrap_servers == tuple(servers)


@pytest.mark.parametrize(
    "wrong",
    [
        *("", [], ",", "a:", "a:x", "a:0", "a:65536", "[::1", "[::1]x", ":9092", 9092, None, b"a"),
        *("a b", "a:1:2", "a:9092:b:9092", "a:9092;b:9092", "a;b:9092", "a;b", ["a:1:2"]),
    ],
)
def test_servers_that_are_none(wrong: Any) -> None:
    text = refusal({"bootstrap_servers": wrong})
    assert text.startswith("setting bootstrap_servers: ")
    assert "allowed: 'host:port'" in text
    if ";" in str(wrong) or ":9092:" in str(wrong):
        assert "addresses are separated by commas" in text


# Wrong names ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("lingerms", "linger_ms"),
        ("linger", "linger_ms"),
        ("bootstrap_server", "bootstrap_servers"),
        ("Acks", "acks"),
        ("delivery.timeout", "delivery.timeout.ms (that is delivery_timeout_ms)"),
        ("queue.buffering.max.mss", "queue.buffering.max.ms (that is linger_ms)"),
    ],
)
def test_an_unknown_name_brings_the_nearest(wrong: str, near: str) -> None:
    text = refusal({wrong: 1})
    assert wrong in text
    assert text.endswith(f"the most similar setting is {near}")


def test_the_value_of_an_unknown_setting_is_not_shown() -> None:
    assert "hunter2" not in refusal({"sasl.jaas.config": "hunter2"})


def test_a_name_that_is_no_text() -> None:
    assert "setting 3 is unknown" in refusal({3: 1})


@pytest.mark.parametrize(
    ("first", "second", "own"),
    [
        ("linger_ms", "linger.ms", "linger_ms"),
        ("linger.ms", "queue.buffering.max.ms", "linger_ms"),
        ("queue.buffering.max.kbytes", "buffer_memory", "buffer_memory"),
    ],
)
def test_one_setting_under_two_names(first: str, second: str, own: str) -> None:
    text = refusal({first: 10, second: 20})
    assert f"{first} and {second} are the same setting, {own}" in text
    assert "different values" in text


def test_one_setting_under_two_names_that_agree() -> None:
    assert config(**{"linger_ms": 5, "linger.ms": "5"}).linger_ms == 5
    assert config(**{"queue.buffering.max.kbytes": 2, "buffer_memory": 2048}).buffer_memory == 2048


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.array([1, 2]), np.array([1, 2])),
        (decimal.Decimal("sNaN"), decimal.Decimal("sNaN")),
    ],
)
def test_one_setting_under_two_names_whose_values_cannot_be_compared(one: Any, other: Any) -> None:
    text = refusal({"api_version": one, "api.version": other})
    assert "api_version and api.version are the same setting" in text
    Config.from_kwargs({"api_version": one, "api.version": one})


# Wrong values ---------------------------------------------------------------------------------


NAN, INF = float("nan"), float("inf")
WRONG: dict[str, list[Any]] = {
    "linger_ms": ["5", True, -1, NAN, INF, None],
    "delivery_timeout_ms": [0],
    "batch_size": [1.5, 2**31],
    "buffer_memory": [0, None],
    "acks": [2, "most", True, None],
    "retries": [-1, "all"],
    "enable_idempotence": [1],
    "allow_auto_create_topics": ["true"],
    "client_id": [7],
    "compression_type": ["brotli", 4, []],
    "partitioner": ["modulo", 3],
    "key_serializer": ["utf-8"],
    "value_serializer": [3],
    "socket_options": [[(1, 2)], 5],
    "max_in_flight_requests_per_connection": [0],
    "send_buffer_bytes": [0],
    "receive_buffer_bytes": [decimal.Decimal("sNaN")],
    "security_protocol": ["TLS"],
    "interceptors": [3, [object()]],
}


@pytest.mark.parametrize(
    ("name", "wrong"), [(name, wrong) for name, values in WRONG.items() for wrong in values]
)
def test_a_wrong_value(name: str, wrong: Any) -> None:
    text = refusal({name: wrong})
    assert text.startswith(f"setting {name}: {wrong!r} was given")
    assert "; allowed: " in text


#: The settings that are numbers.
NUMBERS = [row.name for row in SETTINGS if type(row.default) in (int, float)]


@pytest.mark.parametrize(
    "odd",
    [
        decimal.Decimal("sNaN"),
        decimal.Decimal("NaN"),
        decimal.Decimal("Infinity"),
        decimal.Decimal(5),
        fractions.Fraction(5),
        np.float32("inf"),
        np.array([5]),
        np.array([[1, 2], [3, 4]]),
    ],
    ids=repr,
)
def test_a_number_of_another_type(odd: Any) -> None:
    assert "retries" in NUMBERS
    for name in NUMBERS:
        text = refusal({name: odd})
        assert text.startswith(f"setting {name}: ")
        assert "\n" not in text


@pytest.mark.parametrize("name", ["acks", "compression_type", "client_dns_lookup"])
def test_an_array_is_no_text(name: str) -> None:
    """Not even if it is equal to an allowed one."""
    refusal({name: np.array(["all", "gzip"])})
    refusal({name: np.array(["none"])})


def test_the_error_is_what_kafka_python_and_python_would_raise() -> None:
    for expected in (KafkaConfigurationError, ValueError):
        with pytest.raises(expected):
            config(linger_ms=-1)


def test_a_long_wrong_value_is_cut() -> None:
    assert len(refusal({"client_id": [*range(10_000)]})) < 300


@pytest.mark.parametrize("name", [setting.name for setting in SETTINGS if setting.secret])
def test_a_secret_is_in_no_error(name: str) -> None:
    for value in ({"hunter2": 1}, "hunter2"):
        assert "hunter2" not in outcome({name: value})


def test_passwords_and_tokens_are_secrets() -> None:
    for setting in SETTINGS:
        words = ("password", "passphrase", "client_secret", "_key_pem", "token_provider", "proxy")
        if any(word in setting.name for word in words):
            assert setting.secret, setting.name


@given(
    st.sampled_from([setting.name for setting in SETTINGS]),
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(),
        st.binary(),
        st.lists(st.text()),
        st.lists(st.tuples(st.integers(), st.integers(), st.integers())),
        st.dictionaries(st.text(), st.integers()),
    ),
)
def test_any_value_is_taken_or_refused_by_name(name: str, value: Any) -> None:
    assert name in outcome({name: value})


# Conflicting settings -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"acks": 1}, "acks=1"),
        ({"acks": 0, "retries": 0}, "acks=0 and retries=0"),
        ({"max_in_flight_requests_per_connection": 6}, "connection=6"),
    ],
)
def test_idempotence_gives_way_unless_it_was_asked_for(
    settings: dict[str, Any], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="pykaproducer"):
        assert not config(**settings).idempotent
        assert [named in record.getMessage() for record in caplog.records] == [True]
        caplog.clear()
        assert not config(**settings, enable_idempotence=False).idempotent
        assert not caplog.records
    text = refusal({**settings, "enable_idempotence": True})
    assert "enable_idempotence" in text
    assert named in text


def test_idempotence_without_a_conflict(caplog: pytest.LogCaptureFixture) -> None:
    assert config(acks="all").idempotent
    assert config(enable_idempotence=True).idempotent
    assert not config(enable_idempotence=False).idempotent
    assert not caplog.records


def test_a_deadline_before_the_end_of_lingering() -> None:
    text = refusal({"delivery_timeout_ms": 5, "linger_ms": 10})
    assert "delivery_timeout_ms: 5" in text
    assert "linger_ms, which is 10" in text
    # kafka-python would require 30 seconds more.
    assert config(delivery_timeout_ms=10, linger_ms=10).request_timeout_ms == 30_000


@pytest.mark.parametrize(
    ("compression", "level"),
    [("gzip", 0), ("gzip", 10), ("lz4", 13), ("zstd", 23), ("snappy", 1), (None, 1), ("none", 1)],
)
def test_a_level_that_the_compression_type_has_not(compression: str | None, level: int) -> None:
    text = refusal({"compression_type": compression, "compression_level": level})
    assert f"compression_level: {level} was given" in text


@pytest.mark.parametrize(
    ("compression", "level"), [("gzip", 9), ("lz4", 12), ("zstd", -7), ("zstd", 22)]
)
def test_a_level_that_it_has(compression: str, level: int) -> None:
    assert config(compression_type=compression, compression_level=level).compression_level == level


def test_zstd_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pykaproducer[zstd]" in refusal({"compression_type": "zstd"})


def test_the_longest_pause_is_at_least_the_first() -> None:
    made = config(retry_backoff_ms=5_000, reconnect_backoff_ms=7_000)
    assert (made.retry_backoff_max_ms, made.reconnect_backoff_max_ms) == (5_000, 7_000)


# Normalized values ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_as", "acks"), [("all", -1), (-1, -1), ("-1", -1), (1, 1), ("1", 1), (0, 0), ("0", 0)]
)
def test_acks(given_as: Any, acks: int) -> None:
    assert config(acks=given_as).acks == acks


def test_endless_retries_are_the_most_there_are() -> None:
    assert config(retries=float("inf")).retries == 2**31 - 1


def test_no_compression_has_two_names() -> None:
    assert config(compression_type="none").compression_type is None


def test_a_serializer_is_a_function_of_the_value_or_an_object() -> None:
    class Upper:
        def serialize(self, topic: str, headers: Any, data: str) -> bytes:
            return f"{topic}:{data.upper()}".encode()

    made = config(key_serializer=str.encode, value_serializer=Upper())
    assert made.key_serializer is not None
    assert made.value_serializer is not None
    assert made.key_serializer("topic", None, "key") == b"key"
    assert made.value_serializer("topic", None, "value") == b"topic:VALUE"


# Rejected and ignored settings ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kafka_client", object),
        ("kafka_client", np.array([1, 2])),
        ("metric_reporters", [object]),
    ],
)
def test_what_is_not_built_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(UnsupportedFeatureError, match=f"setting {name}: "):
        Config.from_kwargs({name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("api_version", (2, 6)),
        ("bootstrap_timeout_ms", 1),
        ("transactional_id", None),
        ("interceptors", []),
        ("client_dns_lookup", "use_all_dns_ips"),
    ],
)
def test_what_needs_no_doing_is_accepted(name: str, value: Any) -> None:
    assert config(client_id="mine", **{name: value}) == config(client_id="mine")


# Dotted names and texts -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dotted", "text", "name", "value"),
    [
        ("bootstrap.servers", "a:1,b:2", "bootstrap_servers", (("a", 1), ("b", 2))),
        ("metadata.broker.list", "a:1", "bootstrap_servers", (("a", 1),)),
        ("linger.ms", "5", "linger_ms", 5),
        ("linger.ms", "0.5", "linger_ms", 0.5),
        ("queue.buffering.max.ms", " 7 ", "linger_ms", 7),
        ("batch.num.messages", "100", "batch_max_messages", 100),
        ("message.timeout.ms", "9000", "delivery_timeout_ms", 9000),
        ("delivery.timeout.ms", "9000", "delivery_timeout_ms", 9000),
        ("queue.buffering.max.kbytes", "1024", "buffer_memory", 1 << 20),
        ("max.in.flight", "1", "max_in_flight_requests_per_connection", 1),
        ("enable.idempotence", "false", "enable_idempotence", False),
        ("enable.idempotence", "TRUE", "enable_idempotence", True),
        ("request.required.acks", "-1", "acks", -1),
        ("acks", "all", "acks", -1),
        ("compression.codec", "lz4", "compression_type", "lz4"),
        ("compression.type", "none", "compression_type", None),
        ("socket.send.buffer.bytes", "none", "send_buffer_bytes", None),
        ("partitioner", "consistent_random", "partitioner", "consistent_random"),
    ],
)
def test_dotted_names_and_texts(dotted: str, text: str, name: str, value: Any) -> None:
    assert getattr(Config.from_kwargs({dotted: text}), name) == value
    assert getattr(Config.from_strings({dotted: text}), name) == value


def test_a_dotted_name_takes_what_is_no_text_too() -> None:
    made = Config.from_kwargs({"linger.ms": 5, "queue.buffering.max.kbytes": 1})
    assert (made.linger_ms, made.buffer_memory) == (5, 1024)


def test_own_names_take_texts_only_where_all_are_texts() -> None:
    assert Config.from_strings({"linger_ms": "5"}).linger_ms == 5
    assert "'5' was given" in refusal({"linger_ms": "5"})


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("linger_ms", "soon", "setting linger_ms: 'soon' was given; allowed: a number"),
        ("linger.ms", "nan", "setting linger.ms: nan was given; allowed: a number"),
        ("batch_size", "1.5", "setting batch_size: '1.5' was given; allowed: an integer"),
        ("enable_idempotence", "ja", "as a string it must be true or false"),
        ("key_serializer", "str.encode", "cannot be given as a string; allowed: a callable"),
        ("queue.buffering.max.kbytes", "-1", "setting queue.buffering.max.kbytes: -1 was given"),
    ],
)
def test_a_wrong_text(name: str, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Config.from_strings({name: text})
    assert said in str(caught.value)


def test_resolving_gives_what_a_producer_takes() -> None:
    found = resolve({"queue.buffering.max.kbytes": "1", "api.version": "2.6"}, texts=True)
    assert found == {"buffer_memory": 1024}
    assert Config.from_kwargs(found).buffer_memory == 1024


# Copies ---------------------------------------------------------------------------------------


def test_it_travels_to_another_process() -> None:
    made = config(
        bootstrap_servers="[::1]:1", client_id="mine", acks=1, value_serializer=json.dumps
    )
    copy = pickle.loads(pickle.dumps(made))
    assert copy == made
    assert not copy.idempotent


def test_its_repr_is_what_differs_from_the_defaults() -> None:
    assert repr(config(client_id="mine", linger_ms=5)) == "Config(client_id='mine', linger_ms=5)"


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b"], ids=["NUL", "half a pair"])
@pytest.mark.parametrize("name", ["client_id", "stats_socket"])
def test_a_text_that_no_system_takes_is_refused(name: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"setting {name}"):
        Config.from_kwargs({name: text})


def test_a_password_that_cannot_be_encoded_is_not_shown() -> None:
    with pytest.raises(ConfigurationError, match="sasl_plain_password") as raised:
        Config.from_kwargs({"sasl_plain_password": "geheim\ud800"})
    assert "geheim" not in str(raised.value)


def test_socket_options_beyond_an_int_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="socket_options"):
        Config.from_kwargs({"socket_options": [(1, 2, 2**31)]})
