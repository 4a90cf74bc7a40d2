"""The producers of ``table`` behind one set of calls, their brokers, and the ways to the states."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any, ClassVar

import confluent_kafka
import kafka
import kafka.errors
import kafka.structs
import pytest

from pykaproducer import TopicPartition, confluent
from pykaproducer._errors.codes import ErrorCode
from pykaproducer.errors import (
    ProducerClosedError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionError,
    TransactionStateError,
)
from pykaproducer.testing import MockProducer, ScriptedCluster
from pykaproducer.testing.scripted import Refuse, proceed
from tests.confluent.helper import on
from tests.pipeline.helper import FAST

from .helper import PATIENCE, Kafka
from .table import CALLS, METHODS, TABLE, UNDER_WAY, text_of

#: The timeout of a call that is to remain under way (seconds).
BRIEFLY = 0.2
NOWHERE = 99

#: State -> the calls that lead to it. With "!" the time of a call passes, with "?" it fails.
WAYS = {
    "no_id": "",
    "new": "",
    "initializing": "stall init!",
    "ready": "init",
    "open": "init begin send flush",
    "sending_offsets": "init begin send flush stall offsets!",
    "flushing": "init begin send flush stall send commit!",
    "committing": "init begin send flush stall commit!",
    "aborting": "init begin send flush stall abort!",
    "preparing": "init begin send flush stall send prepare!",
    "failed": "init begin nowhere commit?",
    "prepared": "init begin send prepare",
    "fenced": "init begin send flush fence commit?",
    "closed": "init close",
}
#: Call that fits -> the calls that show that the producer goes on, up to a commit.
THEN = {
    **dict.fromkeys(("init", "other", "block", "commit", "abort"), "begin send commit"),
    **dict.fromkeys(("offsets", "send", "send_many"), "commit begin send commit"),
    "begin": "commit begin abort begin send commit",
    "prepare": "init begin send commit",
}

_numbers = itertools.count(1)


class Door:
    """A producer, and its calls by their names in the table."""

    #: Letter -> what such a call raises.
    raises: ClassVar[dict[str, Any]] = {
        **dict.fromkeys("SCN", TransactionStateError),
        "A": TransactionAbortableError,
        "F": ProducerFencedError,
        "X": ProducerClosedError,
    }
    #: A timeout that has passed, where a call has one. What does not fit is refused even so.
    passed = -1.0
    #: The calls that this producer has.
    calls = CALLS
    #: State and call -> the letter that differs from that of the table; "-" is without effect.
    differs: ClassVar[dict[tuple[str, str], str]] = {}

    def __init__(self, kind: type[Any], brokers: Any, state: str) -> None:
        self.name = f"{brokers.topic}-{next(_numbers)}"
        self.brokers = brokers
        settings = {} if state == "no_id" else {"transactional_id": self.name}
        self.producer = brokers.producer(kind, settings)
        #: How many messages readers have to see.
        self.visible = self._pending = 0
        self._state = state

    @classmethod
    def row(cls, state: str) -> dict[str, str]:
        return {call: cls.differs.get((state, call), TABLE[state][call]) for call in cls.calls}

    def do(self, step: str) -> None:
        """Take a step of a way."""
        call = step.rstrip("!?")
        try:
            getattr(self, call)(*[BRIEFLY] * step.endswith("!"))
        except Exception as error:
            if step == call or (step[-1] == "!" and not self.is_timeout(error)):
                raise
            return
        assert step == call, f"{call} has not failed"
        self._pending += call.startswith("send")
        ends = call in ("commit", "block") or self._state == "no_id"
        self.visible += self._pending * ends
        self._pending *= not (ends or call in ("abort", "prepare"))

    def walk(self, way: str) -> None:
        for step in way.split():
            self.do(step)

    def __enter__(self) -> Door:
        self.walk(WAYS[self._state])
        return self

    def __exit__(self, *_: object) -> None:
        """Leave no transaction open, also of another id."""
        if self._state == "prepared":
            self.fence()
        with contextlib.suppress(RuntimeError, confluent_kafka.KafkaException):
            self.close()

    def refuse(self, call: str) -> Exception:
        """Make a call that does not fit, and return its error."""
        timeout = [] if call in ("begin", "block", "send", "send_many") else [self.passed]
        with pytest.raises(Exception) as raised:  # noqa: PT011 - it is checked later
            getattr(self, call)(*timeout)
        return raised.value

    def is_timeout(self, error: Exception) -> bool:
        return isinstance(error, TimeoutError)

    def check(self, error: Any, state: str, call: str) -> None:
        """Check what the *call* raised that *state* does not allow."""
        letter, text = TABLE[state][call], text_of(state, call)
        assert isinstance(error, self.raises[letter])
        if not isinstance(error, TransactionError) or letter == "N":
            assert str(error) == text
            return
        assert str(error).startswith(f"transactional id {self.name!r}: {text}")
        assert letter in "AF" or str(error).endswith(text)
        assert error.transactional_id == self.name
        assert (error.abortable, error.fatal) == (letter == "A", letter == "F")
        assert not error.retriable
        if letter in "SC":
            assert error.under_way == (METHODS[UNDER_WAY[state]] if letter == "C" else None)

    # Steps of ways -------------------------------------------------------------------------------

    def stall(self) -> None:
        self.brokers.stall()

    def restore(self) -> None:
        self.brokers.restore()

    def fence(self) -> None:
        self.brokers.fence(self.name)

    def flush(self) -> None:
        self.producer.flush()

    def close(self) -> None:
        self.producer.close()

    def nowhere(self) -> None:
        self.producer.send(self.brokers.topic, b"nowhere", partition=NOWHERE)

    # Calls ---------------------------------------------------------------------------------------

    def control(self, method: str, timeout: float) -> None:
        getattr(self.producer, method)(timeout)

    def init(self, timeout: float = PATIENCE) -> None:
        self.control("init_transactions", timeout)

    def other(self, timeout: float = PATIENCE) -> None:
        self.producer.init_transactions(timeout, transactional_id=f"{self.name}-other")

    def begin(self) -> None:
        self.producer.begin_transaction()

    def block(self) -> None:
        with self.producer.transaction():
            self.do("send")

    def offsets(self, timeout: float = PATIENCE) -> None:
        offsets = {TopicPartition(self.brokers.topic, 1): 1}
        self.producer.send_offsets_to_transaction(offsets, self.name, timeout=timeout)

    def commit(self, timeout: float = PATIENCE) -> None:
        self.control("commit_transaction", timeout)

    def abort(self, timeout: float = PATIENCE) -> None:
        self.control("abort_transaction", timeout)

    def prepare(self, timeout: float = PATIENCE) -> None:
        self.control("prepare_transaction", timeout)

    def send(self) -> None:
        self.producer.send(self.brokers.topic, b"value", partition=0)

    def send_many(self) -> None:
        self.producer.send_many(self.brokers.topic, [b"value"], partitions=[0])


class KafkaPython(Door):
    """kafka-python's producer, or the drop-in for it. Its calls have no timeouts."""

    calls = ("init", "begin", "offsets", "commit", "abort", "send")
    #: It initializes a producer once.
    differs: ClassVar[dict[tuple[str, str], str]] = {
        (state, "init"): "-" for state in ("open", "failed", "fenced", "closed")
    }
    #: kafka-python itself raises the first one only in some of the states.
    theirs: ClassVar[dict[str, Any]] = {
        "N": kafka.errors.IllegalStateError,
        "S": kafka.errors.KafkaError,
    }

    def check(self, error: Any, state: str, call: str) -> None:
        if isinstance(self.producer, kafka.KafkaProducer):
            assert isinstance(error, self.theirs[TABLE[state][call]])
            return
        super().check(error, state, call)
        if TABLE[state][call] in "SCN":
            assert isinstance(error, kafka.errors.IllegalStateError)

    def control(self, method: str, timeout: float) -> None:
        getattr(self.producer, method)()

    def offsets(self, timeout: float = 0) -> None:
        place = kafka.TopicPartition(self.brokers.topic, 1)
        offsets = {place: kafka.structs.OffsetAndMetadata(1, "", -1)}
        self.producer.send_offsets_to_transaction(offsets, self.name)


class Confluent(Door):
    """confluent-kafka's producer, or the drop-in for it."""

    raises: ClassVar[dict[str, Any]] = {
        "N": "_NOT_CONFIGURED",
        "S": "_STATE",
        "C": "_CONFLICT retriable",
        "A": "_INCONSISTENT txn_requires_abort",
        "F": "_FENCED fatal",
        "X": "RuntimeError",
    }
    passed = PATIENCE
    calls = ("init", "begin", "offsets", "commit", "abort", "send", "send_many")
    differs: ClassVar[dict[tuple[str, str], str]] = {("ready", "init"): "S"}

    @property
    def is_ours(self) -> bool:
        return isinstance(self.producer, confluent.Producer)

    def is_timeout(self, error: Exception) -> bool:
        return outcome_of(error) == "_TIMED_OUT retriable"

    def check(self, error: Any, state: str, call: str) -> None:
        letter = self.row(state)[call]
        expected = self.raises[letter]
        if call.startswith("send") and letter in "AF":
            # produce() has the flags in the drop-in, so that a program can decide what to do.
            code, flag = {"A": ("_STATE", "txn_requires_abort"), "F": ("_FATAL", "fatal")}[letter]
            expected = f"{code} {flag}" if self.is_ours else code
        assert outcome_of(error) == expected

    def close(self) -> None:
        self.producer.purge()
        self.producer.close()

    def nowhere(self) -> None:
        self.producer.produce(self.brokers.topic, b"nowhere", partition=NOWHERE)

    def offsets(self, timeout: float = PATIENCE) -> None:
        library = confluent if self.is_ours else confluent_kafka
        offsets = [library.TopicPartition(self.brokers.topic, 1, 1)]
        consumer = confluent_kafka.Consumer({"group.id": self.name})
        metadata = consumer.consumer_group_metadata()
        consumer.close()
        self.producer.send_offsets_to_transaction(offsets, metadata, timeout)

    def send(self) -> None:
        self.producer.produce(self.brokers.topic, b"value", partition=0)

    def send_many(self) -> None:
        library = confluent if self.is_ours else confluent_kafka
        batch: list[dict[str, Any]] = [{"value": b"value"}]
        self.producer.produce_batch(self.brokers.topic, batch, partition=0)
        if "_error" in batch[0]:
            raise library.KafkaException(batch[0]["_error"])


def outcome_of(error: BaseException | None) -> str:
    """Return an error of confluent-kafka, or of the drop-in, as a text that can be compared.

    That is the name of its class, or of its code with the flags that are set; or "fine".
    """
    if not isinstance(error, confluent_kafka.KafkaException | confluent.KafkaException):
        return "fine" if error is None else type(error).__name__
    found = error.args[0]
    flags = ("fatal", "retriable", "txn_requires_abort")
    return " ".join([found.name(), *(flag for flag in flags if getattr(found, flag)())])


# Brokers ------------------------------------------------------------------------------------------


class RealBrokers:
    """A broker behind a proxy."""

    def __init__(self, broker: Kafka, topic: str) -> None:
        self._kafka, self.topic = broker, topic

    def producer(self, kind: type[Any], settings: dict[str, Any]) -> Any:
        servers = self._kafka.cluster.proxied_servers
        if kind in (confluent.Producer, confluent_kafka.Producer):
            more = {"log_level": 0, "error_cb": lambda error: None}
            given = {name.replace("_", "."): value for name, value in settings.items()}
            return kind({"bootstrap.servers": servers, **given, **more})
        return kind(bootstrap_servers=servers, **settings)

    def stall(self) -> None:
        self._kafka.proxy.black_hole()

    def restore(self) -> None:
        self._kafka.proxy.restore()
        self._kafka.proxy.cut_all()

    def fence(self, name: str) -> None:
        with self._kafka.producer(transactional_id=name) as other:
            other.init_transactions(PATIENCE)

    def committed(self) -> list[bytes]:
        return self._kafka.committed(self.topic)


class ScriptedBrokers:
    """Brokers in this process."""

    topic = "t"

    def __init__(self, scripted: ScriptedCluster) -> None:
        self._scripted = scripted

    def producer(self, kind: type[Any], settings: dict[str, Any]) -> Any:
        if kind is confluent.Producer:
            return on(self._scripted, **{n.replace("_", "__"): v for n, v in settings.items()})
        network = self._scripted.network

        class Scripted(kind):  # type: ignore[misc]
            _network_type = staticmethod(lambda config: network)

        return Scripted(bootstrap_servers=self._scripted.bootstrap_servers, **FAST, **settings)

    def stall(self) -> None:
        for api in ("init_producer_id", "txn_offset_commit", "end_txn"):
            self._scripted.always(api, Refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        self._scripted.always("produce", Refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def restore(self) -> None:
        for api in ("init_producer_id", "txn_offset_commit", "end_txn", "produce"):
            self._scripted.always(api, proceed)

    def fence(self, name: str) -> None:
        with self._scripted.producer(transactional_id=name) as other:
            other.init_transactions()

    def committed(self) -> list[bytes | None]:
        return [each.value for each in self._scripted.log("t", committed=True)]


class NoBrokers:
    """The histories of mocks."""

    topic = "t"

    def __init__(self) -> None:
        self._mocks: list[MockProducer] = []

    def producer(self, kind: type[Any], settings: dict[str, Any]) -> Any:
        self._mocks.append(MockProducer(partitions=3, **settings))
        return self._mocks[-1]

    def fence(self, name: str) -> None:
        self._mocks[-1].fence_producer()

    def committed(self) -> list[bytes | None]:
        return [record.value for mock in self._mocks for record in mock.history()]
