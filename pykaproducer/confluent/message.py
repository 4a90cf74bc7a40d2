"""``Message``, ``TopicPartition``, ``ThrottleEvent``: the arguments of callbacks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from pykaproducer._kernel import DeliveryReport
from pykaproducer.confluent.errors import KafkaError

TIMESTAMP_NOT_AVAILABLE = 0
TIMESTAMP_CREATE_TIME = 1
TIMESTAMP_LOG_APPEND_TIME = 2

OFFSET_BEGINNING = -2
OFFSET_END = -1
OFFSET_STORED = -1000
OFFSET_INVALID = -1001


def _writer(at: int, name: str) -> Callable[[Message, Any], None]:
    """Return a method that replaces the field number *at*."""

    def write(self: Message, value: Any) -> None:
        fields = _fields_of(self)
        self._fields = (*fields[:at], value, *fields[at + 1 :])

    write.__doc__ = f"Replace the {name}."
    return write


class Message(DeliveryReport):
    """A produced message. Its methods return None for unknown fields.

    Programs create instances in tests only; all arguments are optional.
    """

    __hash__ = None  # type: ignore[assignment]

    __slots__ = ()

    def __init__(
        self,
        topic: Any = None,
        partition: int = -1,
        offset: int = OFFSET_INVALID,
        key: Any = None,
        value: Any = None,
        headers: Any = None,
        error: Any = None,
        timestamp: tuple[int, int] | None = None,
        latency: float = -1.0,
        leader_epoch: int = -1,
        delivery_count: int = -1,
    ) -> None:
        if not isinstance(self, Message):
            raise TypeError(f"a Message is needed, not {type(self).__name__}")
        if not -(2**15) <= delivery_count < 2**15:
            raise OverflowError("delivery_count does not fit into 16 bits")
        self._fields = (
            topic,
            _if_known(partition),
            _if_known(offset),
            key,
            value,
            headers,
            error,
            timestamp or (TIMESTAMP_NOT_AVAILABLE, 0),
            _if_known(latency),
            _if_known(leader_epoch),
            delivery_count if delivery_count > 0 else None,
        )

    def deserialized_key(self) -> Any:
        """Return the key."""
        return self.key()

    def deserialized_value(self) -> Any:
        """Return the value."""
        return self.value()

    set_topic = _writer(0, "topic")
    set_key = _writer(3, "key")
    set_value = _writer(4, "value")
    set_headers = _writer(5, "headers")
    set_error = _writer(6, "error")

    def __len__(self) -> int:
        """Return the bytes of the value."""
        value = _fields_of(self)[4]
        return 0 if value is None else len(value)

    def __bool__(self) -> bool:
        return True  # even without a value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return _fields_of(self) == _fields_of(other)

    def __reduce__(self) -> tuple[Any, ...]:
        found = _fields_of(self)
        numbers = {1: -1, 2: OFFSET_INVALID, 8: -1.0, 9: -1, 10: -1}
        given = (numbers.get(at) if field is None else field for at, field in enumerate(found))
        return (Message, tuple(given))


def _fields_of(message: Message) -> tuple[Any, ...]:
    if not isinstance(message, Message):
        raise TypeError(f"a Message is needed, not {type(message).__name__}")
    return message._fields


def _if_known(number: Any) -> Any:
    return None if number is None or number < 0 else number


@functools.total_ordering
class TopicPartition:
    """A partition of a topic with additional data. Compares by topic and partition."""

    def __init__(
        self,
        topic: str,
        partition: int = -1,
        offset: int = OFFSET_INVALID,
        metadata: str | None = None,
        leader_epoch: int | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.metadata = metadata
        self.leader_epoch = leader_epoch
        self.error: KafkaError | None = None

    def _place(self) -> tuple[str, int]:
        return self.topic, self.partition

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TopicPartition):
            return NotImplemented
        return self._place() == other._place()

    def __lt__(self, other: TopicPartition) -> bool:
        return self._place() < other._place()

    def __hash__(self) -> int:
        return hash(self._place())

    def __repr__(self) -> str:
        return (
            f"TopicPartition{{topic={self.topic},partition={self.partition},offset={self.offset},"
            f"leader_epoch={self.leader_epoch},error={self.error}}}"
        )


class ThrottleEvent:
    """A broker's throttling, passed to ``throttle_cb``."""

    def __init__(self, broker_name: str, broker_id: int, throttle_time: float) -> None:
        self.broker_name = broker_name
        self.broker_id = broker_id
        #: Seconds.
        self.throttle_time = throttle_time

    def __str__(self) -> str:
        milliseconds = int(self.throttle_time * 1000)
        return f"{self.broker_name}/{self.broker_id} throttled for {milliseconds} ms"
