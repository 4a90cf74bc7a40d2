"""Each call in each state: with scripted and real brokers, with the mock, and with the drop-ins.

The libraries that the drop-ins replace play on a real broker, and have to do the same.
"""

from __future__ import annotations

from typing import Any

import confluent_kafka
import kafka as kafka_python
import pytest

from pykaproducer import KafkaProducer, Producer, confluent
from pykaproducer.testing import ScriptedCluster
from tests._support.fixtures.cluster import FEATURES
from tests._support.pairs import pairwise
from tests._support.peers import needs_kafka_python_3

from .doors import THEN, Confluent, Door, KafkaPython, NoBrokers, RealBrokers, ScriptedBrokers
from .helper import Kafka
from .scripted_helper import producer_of
from .table import TABLE, UNDER_WAY

KINDS: dict[str, tuple[type[Any], type[Door]]] = {
    "Producer": (Producer, Door),
    "KafkaProducer": (KafkaProducer, KafkaPython),
    "confluent": (confluent.Producer, Confluent),
    "kafka-python": (kafka_python.KafkaProducer, KafkaPython),
    "confluent-kafka": (confluent_kafka.Producer, Confluent),
}
#: Those that the drop-ins replace. With kafka-python 2 there is nothing to compare.
THEIRS = {"kafka-python": needs_kafka_python_3, "confluent-kafka": ()}
PREPARED = {"preparing", "prepared"}
#: The states that each producer has. kafka-python's own one raises ValueError for a partition that
#: does not exist, and accepts calls after ``close()``. confluent-kafka's own one commits while
#: offsets are on their way, and cannot be used after that.
STATES = {
    "Producer": list(TABLE),
    "KafkaProducer": [state for state in TABLE if state not in UNDER_WAY],
    "confluent": [state for state in TABLE if state not in PREPARED],
    "kafka-python": ["no_id", "new", "ready", "open"],
    "confluent-kafka": [state for state in TABLE if state not in {*PREPARED, "sending_offsets"}],
}


def check(brokers: Any, name: str, state: str) -> None:
    """Check that the refused calls change nothing, and that then each call that fits works."""
    kind, door = KINDS[name]
    row = door.row(state)
    fits: list[Any] = [call for call, letter in row.items() if letter in ".+"]
    visible = 0
    for call in fits or [None]:
        with door(kind, brokers, state) as made:
            for refused, letter in row.items():
                if letter == "-":
                    made.do(refused)
                elif letter not in ".+":
                    made.check(made.refuse(refused), state, refused)
            if call is not None:
                made.walk(way_of(state, call, row[call]))
        visible += made.visible
    assert brokers.committed() == [b"value"] * visible


def way_of(state: str, call: str, letter: str) -> str:
    """Return a call that fits, and what shows that the producer goes on."""
    if state == "no_id":
        return f"{call} flush"
    if letter == "+":
        return f"{call}! restore {call} {THEN[call]}"
    way = [call, THEN[call]]
    if state in UNDER_WAY:  # messages are sent while it is
        way.insert(call.startswith("send"), f"restore {UNDER_WAY[state]}")
    return " ".join(way)


@pytest.mark.parametrize(
    ("protocol", "name", "state"),
    pairwise(
        (protocol, name, state)
        for protocol in FEATURES
        for name in ("Producer", "KafkaProducer", "confluent")
        for state in STATES[name]
    ),
    indirect=["protocol"],
)
def test_scripted_brokers(scripted: ScriptedCluster, name: str, state: str) -> None:
    check(ScriptedBrokers(scripted), name, state)


@pytest.mark.parametrize("state", STATES["KafkaProducer"])
def test_a_mock(state: str) -> None:
    check(NoBrokers(), "Producer", state)


@pytest.mark.parametrize("state", STATES["Producer"])
def test_real_brokers(kafka: Kafka, topic: str, state: str) -> None:
    check(RealBrokers(kafka, topic), "Producer", state)


@pytest.mark.parametrize("kafka", ["TV2"], indirect=True)
@pytest.mark.parametrize(
    ("name", "state"),
    [
        pytest.param(name, state, marks=THEIRS.get(name, pytest.mark.full))
        for name in ("KafkaProducer", "confluent", "kafka-python", "confluent-kafka")
        for state in STATES[name]
    ],
)
def test_drop_ins_and_the_libraries_that_they_replace(
    kafka: Kafka, topic: str, name: str, state: str
) -> None:
    check(RealBrokers(kafka, topic), name, state)


def test_init_transactions_that_has_no_effect_needs_no_time(scripted: ScriptedCluster) -> None:
    with producer_of(scripted) as producer:
        producer.init_transactions()
        for timeout in (0, -1):
            producer.init_transactions(timeout)
