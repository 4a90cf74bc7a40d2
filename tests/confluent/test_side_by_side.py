"""The same calls to confluent-kafka and to the drop-in."""

from __future__ import annotations

from typing import Any

import confluent_kafka
import pytest

from pykaproducer import confluent
from pykaproducer.confluent.errors import text_of
from pykaproducer.testing import KafkaCluster

from .helper import SOON, Calls
from .play import LIBRARIES, outcome

#: Refuses connections.
NOWHERE: dict[str, Any] = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}


def make(kind: type[Any], *arguments: Any) -> None:
    kind(*arguments).close()


def test_the_codes_and_their_names() -> None:
    theirs = confluent_kafka.KafkaError
    for name, code in vars(theirs).items():
        if isinstance(code, int):
            assert getattr(confluent.KafkaError, name) == code
            assert confluent.KafkaError(code).name() == theirs(code).name()
    for code in (-192, -184, -195, -187, -152, -186, 3, 10, 17, 0, -1, 99999):
        if code != theirs._UNSUPPORTED_FEATURE:
            assert text_of(code) == theirs(code).str()
            assert repr(confluent.KafkaError(code)) == repr(theirs(code))
    made = confluent.KafkaError(-192, "why", fatal=True)
    assert str(made) == str(theirs(-192, "why", fatal=True))
    assert (made == -192, made < 0, made == confluent.KafkaError(-192)) == (True, True, True)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (1,),
        ({}, {}),
        ({"nope": 1},),
        ({1: 1},),
        ({"linger.ms": "x"},),
        ({"linger.ms": -5},),
        ({"linger.ms": 0.5},),
        ({"linger.ms": "7"},),
        ({"enable.idempotence": "T"},),
        ({"enable.idempotence": "yes"},),
        ({"enable.idempotence": True, "acks": 1},),
        ({"enable.idempotence": True, "max.in.flight": 10},),
        ({"linger.ms": 500, "message.timeout.ms": 10},),
        ({"message.timeout.ms": 1},),
        ({"error_cb": 5},),
        ({"error_cb": None},),
        ({"stats_cb": 5},),
        ({"throttle_cb": 5},),
        ({"oauth_cb": 5},),
        ({"on_delivery": 5},),
        ({"dr_cb": print},),
        ({"log_cb": print},),
        ({"delivery.report.only.error": 1},),
        ({"default.topic.config": {"acks": 1}},),
        ({"default.topic.config": {"foo": 1}},),
        ({"default.topic.config": "x"},),
        ({"acks": "all"},),
        ({"acks": "x"},),
        ({"acks": -2},),
        ({"compression.type": "foo"},),
        ({"partitioner": "x"},),
        ({"security.protocol": "x"},),
        ({"plugin.library.paths": "x"},),
        ({"queue.buffering.max.kbytes": 0},),
        ({"queue.buffering.max.messages": 0},),
        ({"group.id": "x", "auto.offset.reset": "earliest"},),
        ({"client.id": ""},),
        ({"bootstrap_servers": "x"},),
        ({"compression.type": "gzip", "compression.level": 12},),
    ],
    ids=repr,
)
def test_constructors(arguments: tuple[Any, ...]) -> None:
    given = tuple({**NOWHERE, **one} if isinstance(one, dict) else one for one in arguments)
    theirs, ours = (outcome(make, library.Producer, *given) for library in LIBRARIES)
    assert ours == theirs


PRODUCE: list[dict[str, Any]] = [
    {"topic": None},
    {"topic": 5},
    {"topic": b"t"},
    {"topic": ""},
    {"topic": "a" * 300},
    {"topic": "a" * 600},
    {"topic": "a b!"},
    {"value": 5},
    {"value": [1]},
    {"value": "\ud800"},
    {"value": bytes(5000)},
    {"key": 5},
    {"partition": "x"},
    {"partition": -2},
    {"partition": 2**31},
    {"partition": None},
    {"partition": 1.5},
    {"timestamp": "x"},
    {"timestamp": 1.5},
    {"timestamp": None},
    {"headers": 5},
    {"headers": ("a", "b")},
    {"headers": ["x"]},
    {"headers": [["a", "b"]]},
    {"headers": {"a": 1}},
    {"headers": {1: "a"}},
    {"headers": [(b"a", "b")]},
    {"headers": []},
    {"headers": [("a", bytearray(b"x"))]},
    {"callback": print, "on_delivery": print},
    {"nope": 1},
]


@pytest.mark.parametrize("arguments", PRODUCE, ids=lambda one: repr(one)[:40])
def test_produce(arguments: dict[str, Any]) -> None:
    settings = {**NOWHERE, "message.timeout.ms": 10, "message.max.bytes": 2000}
    found = []
    for library in LIBRARIES:
        producer = library.Producer(settings)
        found.append(outcome(producer.produce, **{"topic": "t", **arguments}))
        producer.purge()
        producer.close()
    assert found[1] == found[0]


CALLS: list[tuple[str, tuple[Any, ...]]] = [
    ("poll", ("x",)),
    ("poll", (None,)),
    ("flush", ("x",)),
    ("purge", (1, 2, 3, 4)),
    ("list_topics", (5,)),
    ("list_topics", (None, 0.01)),
    ("set_sasl_credentials", ("a",)),
    ("set_sasl_credentials", (1, 2)),
    ("set_sasl_credentials", ("a", "b")),
    ("produce", ("t",)),
    ("poll", (0,)),
    ("flush", (0,)),
    ("purge", ()),
    ("produce_batch", ("t", [{}])),
    ("produce_batch", ("t", "x")),
    ("produce_batch", ("t", [{"value": 5}])),
    ("produce_batch", (5, [{}])),
    ("__len__", ()),
    ("close", ()),
]


@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
@pytest.mark.parametrize("call", CALLS, ids=repr)
def test_methods(call: tuple[str, tuple[Any, ...]], closed: bool) -> None:
    name, arguments = call
    found = []
    for library in LIBRARIES:
        producer = library.Producer({**NOWHERE, "message.timeout.ms": 10})
        if closed:
            producer.close()
        found.append(outcome(getattr(producer, name), *arguments))
        producer.close()
    assert found[1] == found[0]


def test_lengths_and_returns() -> None:
    found = []
    for library in LIBRARIES:
        producer = library.Producer(
            {**NOWHERE, "queue.buffering.max.messages": 10, "message.timeout.ms": 60_000}
        )
        for _ in range(10):
            producer.produce("t", b"v", on_delivery=Calls())
        with pytest.raises(BufferError, match="Local: Queue full"):
            producer.produce("t", b"v")
        said = [producer.flush(0.01)]
        producer.purge()
        said += [producer.flush(SOON), len(producer), bool(producer), producer.close()]
        found.append([*said, len(producer)])
    assert found[1] == found[0] == [10, 0, 0, True, True, 0]


def test_reports_of_what_failed() -> None:
    found = []
    for library in LIBRARIES:
        reports = Calls()
        producer = library.Producer({**NOWHERE, "message.timeout.ms": 50})
        producer.produce("t", "v", "k", headers={"a": "b"}, on_delivery=reports)
        producer.flush()
        ((error, message),) = reports
        found.append(
            (
                (error.code(), error.name(), error.fatal(), error.retriable()),
                (message.topic(), message.partition(), message.offset(), message.key()),
                (message.value(), message.headers(), message.timestamp()),
                (message.leader_epoch(), message.error().code(), len(message)),
            )
        )
        producer.close()
    assert found[1] == found[0]


KEYS = [
    None,
    b"",
    *(b"key-%d" % number for number in range(300)),
    *map("schlüssel{}".format, range(9)),
]


@pytest.mark.parametrize(
    "partitioner",
    [None, "consistent", "murmur2", "murmur2_random", "fnv1a", "fnv1a_random"],
)
def test_keys_keep_their_partitions(
    cluster: KafkaCluster, topic: str, partitioner: str | None
) -> None:
    cluster.create_topic(topic, partitions=12)
    settings: dict[str, Any] = {"bootstrap.servers": cluster.bootstrap_servers}
    if partitioner is not None:
        settings["partitioner"] = partitioner
    random = (
        {None, b""} if partitioner is None else {None} if partitioner.endswith("random") else set()
    )
    found: list[dict[Any, int]] = []
    for library in LIBRARIES:
        places: dict[Any, int] = {}
        producer = library.Producer(settings)
        for key in KEYS:
            producer.produce(
                topic,
                b"v",
                key,
                on_delivery=lambda _e, message: places.update({message.key(): message.partition()}),  # noqa: B023
            )
        assert producer.flush(SOON) == 0
        producer.close()
        found.append({key: place for key, place in places.items() if key not in random})
    assert len(found[0]) == len(KEYS) - len(random)
    assert found[1] == found[0]
