"""A producer as a pickle: a handle that connects where it is unpickled."""

from __future__ import annotations

import copy
import pickle
import ssl
import sys
from typing import Any

import pytest

from pykaproducer import ConfigurationError, KafkaProducer, Producer
from pykaproducer._process import producer_pickle
from pykaproducer.testing import KafkaCluster

#: Far more than any operation here takes (seconds).
SOON = 30


def shout(value: str) -> bytes:
    """Serialize *value* in upper case; it is importable, so it can be pickled."""
    return value.upper().encode()


class Shop(Producer):
    """A subclass with another constructor."""

    def __init__(self, settings: dict[str, Any], *, name: str) -> None:
        super().__init__(**settings, client_id=f"shop-{name}")


def again(producer: Producer) -> Producer:
    """Return the producer as another process would unpickle it."""
    made: Producer = pickle.loads(pickle.dumps(producer))
    return made


def test_the_copy_has_the_same_settings_and_nothing_else(cluster: KafkaCluster, topic: str) -> None:
    settings = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "value_serializer": shout,
        "linger_ms": 60_000,
        "client_id": "mine",
    }
    with Producer(**settings) as producer:
        pending = producer.send(topic, "of the original")
        with again(producer) as remade:
            assert remade.config == producer.config
            assert remade.accepted == 0
            delivery = remade.send(topic, "of the copy")
            remade.flush(SOON)
            assert delivery.result(0).serialized_value_size == len("of the copy")
        assert not pending.done()


def test_a_closed_one_is_open_where_it_is_unpickled() -> None:
    producer = Producer(bootstrap_servers="nowhere:1")
    producer.close()
    assert not again(producer)._closed


def test_all_its_pickles_are_one_producer_until_that_is_closed() -> None:
    """A pool that receives it with each task has one producer, and not one for each task."""
    producer = Producer(bootstrap_servers="nowhere:1")
    first = again(producer)
    assert first is not producer
    assert again(producer) is again(first) is first
    first.close()
    second = again(producer)
    assert second is not first
    assert again(first) is second
    assert again(Producer(bootstrap_servers="nowhere:1")) is not second


def test_dotted_names_and_subclasses_are_kept() -> None:
    made = again(Shop({"bootstrap.servers": "nowhere:1", "linger.ms": "7"}, name="a"))
    assert type(made) is Shop
    assert (made.config.client_id, made.config.linger_ms) == ("shop-a", 7)


def test_the_drop_in_for_kafka_python_stays_one() -> None:
    made = again(KafkaProducer(bootstrap_servers="nowhere:1", value_serializer=shout, retries=3))
    assert type(made) is KafkaProducer
    assert made.config.retries == 3


def test_a_client_id_that_was_made_up_is_made_up_again() -> None:
    producer = Producer()
    assert again(producer).config.client_id != producer.config.client_id


def test_a_copy_is_made_as_a_pickle_is() -> None:
    producer = Producer(bootstrap_servers="nowhere:1")
    assert copy.copy(producer).config.bootstrap_servers == (("nowhere", 1),)
    assert copy.deepcopy(producer).config.bootstrap_servers == (("nowhere", 1),)


@pytest.mark.parametrize(
    ("producer", "named"),
    [
        (
            Producer(value_serializer=lambda value: value),
            "value_serializer has a value of type func",
        ),
        (Producer(partitioner=lambda key, every, live: 0), "partitioner has a value of type func"),
        (
            Producer(security_protocol="SSL", ssl_context=ssl.create_default_context()),
            "setting ssl_context has a value of type SSLContext",
        ),
        (
            Shop({"value_serializer": lambda value: value}, name="a"),
            "Shop cannot be pickled: setting value_serializer",
        ),
    ],
    ids=["serializer", "partitioner", "ssl_context", "in a dict"],
)
def test_what_cannot_be_pickled_is_named(
    monkeypatch: pytest.MonkeyPatch, producer: Producer, named: str
) -> None:
    for name in ("cloudpickle", "pyspark.cloudpickle", "dill"):
        monkeypatch.delitem(sys.modules, name, raising=False)  # other tests have used them
    with pytest.raises(pickle.PicklingError, match=named) as caught:
        pickle.dumps(producer)
    assert "\n" not in str(caught.value)


def test_a_pickler_that_takes_functions_is_let_do_it() -> None:
    """As Spark does, which sends functions to its workers."""
    cloudpickle = pytest.importorskip("pyspark.cloudpickle")
    producer = Producer(value_serializer=lambda value: value + b"!")
    made = pickle.loads(cloudpickle.dumps(producer))
    assert made.config.value_serializer("topic", None, b"a") == b"a!"


def test_a_pickle_of_another_version_works_if_its_settings_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pickled = pickle.dumps(Producer(linger_ms=3))
    monkeypatch.setattr(producer_pickle, "VERSION", "9.9.9")
    assert pickle.loads(pickled).config.linger_ms == 3


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"frobnicate_ms": 5, "linger_ms": 3, "defrobnicate": 1}, "frobnicate_ms, defrobnicate;"),
        ({"linger_ms": "five"}, "setting linger_ms: 'five' was given"),
    ],
)
def test_a_pickle_of_another_version_that_does_not_fit_is_told_in_one_line(
    settings: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigurationError, match="pickled by pykaproducer 9") as caught:
        producer_pickle.rebuild_producer("9.9.9", "some identity", Producer, (), settings)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_secret_travels_and_is_never_shown() -> None:
    secret = {"sasl_plain_username": "me", "sasl_plain_password": "hunter2"}
    producer = Producer(security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", **secret)
    assert b"hunter2" in pickle.dumps(producer)
    for made in (producer, again(producer)):
        assert "hunter2" not in repr(made) + repr(made.config)


def test_a_pickle_made_before_the_modules_were_renamed_is_rejected() -> None:
    old = b"cpykaproducer._remaking\nmake_again\n."
    with pytest.raises(pickle.UnpicklingError, match="earlier version of pykaproducer"):
        pickle.loads(old)
