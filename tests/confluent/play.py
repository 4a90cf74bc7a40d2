"""Makes the same calls to confluent-kafka and to the drop-in, and compares what they do."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import confluent_kafka

from pykaproducer import confluent
from tests.transactions.doors import outcome_of
from tests.transactions.helper import Kafka

from .helper import SOON

_numbers = itertools.count(1)

LIBRARIES: tuple[Any, ...] = (confluent_kafka, confluent)
#: What a step did: "fine", the name of an exception, or the name of a code and the flags set.
Step = str
#: The steps of confluent-kafka, and of the drop-in.
Differences = dict[str, tuple[Step, Step]]


def outcome(call: Callable[..., object], *arguments: Any, **named: Any) -> Step:
    """Make a call, and return what it does."""
    try:
        call(*arguments, **named)
    except Exception as raised:
        return outcome_of(raised)
    return "fine"


class Play:
    """One library, and what its steps did."""

    def __init__(self, library: Any, kafka: Kafka, topic: str) -> None:
        self.library = library
        self.proxy = kafka.proxy
        self.topic = topic
        self.steps: dict[str, Step] = {}
        self._cluster = kafka.cluster
        self._made: list[Any] = []

    def producer(self, *, reachable: bool = True, **settings: Any) -> Any:
        """Return a producer with an id of its own, unless one is given."""
        given = {name.replace("__", "."): value for name, value in settings.items()}
        servers = self._cluster.proxied_servers if reachable else "127.0.0.1:1"
        if "transaction.timeout.ms" not in given:  # librdkafka relates it to this one
            # A request that a proxy has swallowed is sent again before a test's patience ends.
            given.setdefault("socket.timeout.ms", 5_000)
        made = self.library.Producer(
            {
                "bootstrap.servers": servers,
                "transactional.id": self.unique_name(),
                "log_level": 0,
                "error_cb": lambda error: None,
                **given,
            }
        )
        self._made.append(made)
        return made

    def begun(self, **settings: Any) -> Any:
        """Return a producer in a transaction."""
        producer = self.producer(**settings)
        producer.init_transactions(SOON)
        producer.begin_transaction()
        return producer

    def unique_name(self) -> str:
        return f"{self.library.__name__}-{next(_numbers)}"

    def metadata(self) -> Any:
        """Return the metadata of a consumer that is in no group."""
        consumer = confluent_kafka.Consumer({"group.id": self.unique_name()})
        try:
            return consumer.consumer_group_metadata()
        finally:
            consumer.close()

    def offsets(self, offset: int = 5, partition: int = 0, **more: Any) -> list[Any]:
        return [self.library.TopicPartition(self.topic, partition, offset, **more)]

    def step(self, name: str, call: Callable[..., object], *arguments: Any) -> None:
        """Make a call, and record what it does."""
        assert name not in self.steps
        self.steps[name] = outcome(call, *arguments)

    def end(self) -> None:
        """Close the producers, however they are."""
        for producer in self._made:
            with contextlib.suppress(RuntimeError, self.library.KafkaException):
                producer.purge()
                producer.close()


Scenario = Callable[[Play], None]


class Stage:
    """A broker behind a proxy, on which both libraries play."""

    def __init__(self, kafka: Kafka, topic: str) -> None:
        self._kafka, self._topic = kafka, topic

    def compare(
        self,
        scenario: Scenario,
        differs: Differences | None = None,
        also: Mapping[Step, Step] | None = None,
    ) -> None:
        """Play *scenario* with both; they must do the same except for what *differs*.

        *differs* has what both do, so that a difference that disappears is noticed, too. *also*
        has what a race in confluent-kafka lets it do at times, and what it stands for.
        """
        found = []
        for library in LIBRARIES:
            topic = f"{self._topic}-{library.__name__}"
            self._kafka.cluster.create_topic(topic, config={"max.message.bytes": "2000"})
            play = Play(library, self._kafka, topic)
            try:
                scenario(play)
            finally:
                self._kafka.proxy.restore()
                play.end()
                self._kafka.restore()
            found.append(play.steps)
        theirs, ours = found
        if also is not None:
            theirs = {step: also.get(did, did) for step, did in theirs.items()}
        assert theirs.keys() == ours.keys()
        expected = {step: (did, did) for step, did in theirs.items()} | (differs or {})
        found_now = {step: (did, ours[step]) for step, did in theirs.items()}
        wrong = {step: did for step, did in found_now.items() if did != expected[step]}
        assert not wrong, wrong
