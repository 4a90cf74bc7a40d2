"""Producers without a cluster, for the unit tests of programs that send messages.

A :class:`MockProducer` is a :class:`~pykaproducer.Producer` whose messages end in a list instead of
a pipeline: it has no threads and no connections. Everything before and after the pipeline is the
real code: settings, serializers, interceptors, checks of arguments, ``buffer_memory``,
partitioners, handles, blocks, callbacks. The test decides the outcomes, in its own thread.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args

from pykaproducer import partitioners
from pykaproducer._errors.formatting import counted, format_partition
from pykaproducer._kernel import Chunk, Partitioner, Slice, TopicSlot, Turn
from pykaproducer._machines.cluster import ClusterView, TopicView
from pykaproducer._pipeline.custom_partitioner import (
    assign_partitions,
    error_maker,
    no_such_partition,
)
from pykaproducer._process import closing
from pykaproducer._util.clock import in_seconds
from pykaproducer.block import RefusedRows
from pykaproducer.errors import (
    AbortedError,
    DeliveryError,
    DeliveryTimeoutError,
    FlushTimeoutError,
    MetadataTimeoutError,
    ProducerClosedError,
    Status,
)
from pykaproducer.kafka_python.producer import KafkaProducer
from pykaproducer.producer import Producer
from pykaproducer.testing._mock_arguments import checked_partitions, error_maker_for
from pykaproducer.testing._mock_clock import ExpiringClock
from pykaproducer.testing._mock_outcomes import MakeError, MockOutcomes, SentRecord
from pykaproducer.testing._mock_transactions import MockTransactions

if TYPE_CHECKING:
    from pykaproducer.partitioners import PartitionerFunction
    from pykaproducer.settings import ProducerSettings

__all__ = ["MockKafkaProducer", "MockProducer", "SentRecord"]

#: The methods that can be made to raise.
Call = Literal[
    "send",
    "flush",
    "close",
    "partitions_for",
    "init_transactions",
    "begin_transaction",
    "send_offsets_to_transaction",
    "commit_transaction",
    "abort_transaction",
    "prepare_transaction",
]
_CALLS = get_args(Call)


class MockProducer(MockTransactions, Producer):
    """A :class:`~pykaproducer.Producer` without a cluster, whose outcomes the test decides.

    ``MockProducer(**settings)`` takes the producer's settings and two more. It starts no thread and
    opens no socket. ``send()``, ``send_many()`` and ``send_arrow()`` check, serialize, intercept,
    partition and account messages as the real producer does, and return its handles.

    >>> producer = MockProducer(partitions={"events": 3})
    >>> producer.send("events", b"value", key=b"key").result().offset
    0
    >>> [record.value for record in producer.history()]
    [b'value']

    Args:
        auto_complete (bool): deliver each message within ``send()``. If False, messages are pending
            until :meth:`complete_next`, :meth:`fail_next`, :meth:`complete_all`, ``flush()`` or
            ``close()``.
        partitions: number of partitions of each topic, by name. A topic that is not named has one;
            with ``allow_auto_create_topics=False`` it does not exist, and its messages fail. An
            int is the number of partitions of every topic.

    Callbacks run in the thread that decides the outcome: with *auto_complete* within ``send()``.
    They run one at a time. As in the real producer, ``flush()``, ``close()`` with a wait and
    ``result()`` of a pending handle raise ``CallbackThreadError`` there. A pending message fails at
    its deadline if a thread waits for it in ``result()``.

    Raises:
        ConfigurationError: as :class:`~pykaproducer.Producer`.
        UnsupportedFeatureError: as :class:`~pykaproducer.Producer`.
        TypeError, ValueError: an invalid *auto_complete* or *partitions*.
    """

    def __init__(
        self,
        *arguments: Any,
        auto_complete: bool = True,
        partitions: Mapping[str, int] | int | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        if not isinstance(auto_complete, bool):
            raise TypeError(f"auto_complete must be a bool, not {type(auto_complete).__name__}")
        self._auto_complete = auto_complete
        self._counts, self._default_count = checked_partitions(partitions)
        super().__init__(*arguments, **settings)

    def _reset(self) -> None:
        super()._reset()
        self._outcomes = MockOutcomes(self._metrics, self._clock)
        self._partitioners: dict[str, Partitioner | PartitionerFunction] = {}
        # The thread that runs a user's partitioner.
        self._partitioning: int | None = None
        # Errors to raise, by method; errors of the next messages, with auto_complete.
        self._to_raise: dict[str, deque[BaseException]] = {name: deque() for name in _CALLS}
        self._to_fail: deque[MakeError] = deque()
        self._ref.in_own_thread = self._in_own_thread
        self._ref.clock = ExpiringClock(self)
        self._join_transactions()
        # From now on each message calls _start(), which can refuse it.
        self._begin_to_close()

    # Decisions of the test -----------------------------------------------------------------------

    def history(self) -> list[SentRecord]:
        """Return the accepted messages in the order of their ``send()``, whatever their outcome.

        With ``transactional_id``: those of committed transactions, in the order of the commits.
        Messages that failed before they had a partition are missing: no broker would have seen
        them.
        """
        with self._outcomes.lock:
            return list(self._outcomes.history)

    @property
    def pending(self) -> int:
        """The number of messages without an outcome."""
        return len(self._outcomes)

    def complete_next(self) -> bool:
        """Deliver the oldest pending message, and run its callbacks in this thread.

        Returns:
            bool: False if no message is pending.
        """
        found = self._deliver_next()
        self._outcomes.run_callbacks()
        return found

    def complete_all(self) -> int:
        """Deliver the pending messages, and return how many they were.

        Messages that callbacks send in the meantime remain pending.
        """
        count = 0
        for _ in range(self.pending):
            count += self.complete_next()
        return count

    def fail_next(
        self,
        error: BaseException | type[BaseException] | int | None = None,
        *,
        status: Status | None = None,
    ) -> bool:
        """Fail the oldest pending message, and run its callbacks in this thread.

        With *auto_complete* no message is ever pending: then the next one that is sent fails.

        Args:
            error: a :class:`~pykaproducer.DeliveryError`, which becomes the outcome as it is; an
                error code of Kafka, such as 29, or the error of :mod:`kafka.errors` for it: the
                outcome is what the producer makes of a broker that always answers with that code,
                a DeliveryTimeoutError if it sends the message again until its deadline; any other
                exception, which becomes the cause of a DeliveryError. None: a DeliveryTimeoutError.
            status: whether the message may be in the log, unless *error* is a DeliveryError. None:
                as the code says, else ``NOT_PERSISTED``.

        Returns:
            bool: False if no message is pending and none will fail, as with Java's ``errorNext``.

        Raises:
            TypeError, ValueError: *error* is something else, or not a failure.
        """
        make_error = error_maker_for(error, status, self.config)
        if self._auto_complete:
            self._to_fail.append(make_error)
            return True
        found = self._outcomes.fail_next(make_error)
        self._outcomes.run_callbacks()
        return found

    def raise_next(self, call: Call, error: BaseException) -> None:
        """Let the next call of a method raise *error*, before it does anything.

        Args:
            call: ``"send"`` (also ``send_many()`` and ``send_arrow()``), ``"flush"``, ``"close"``,
                ``"partitions_for"``, or a call of transactions such as ``"commit_transaction"``.
            error: for example ``BufferFullError("the buffer is full")``.

        Raises:
            TypeError, ValueError: *error* is not an exception; *call* is another method.
        """
        if call not in self._to_raise:
            raise ValueError(f"call must be one of {', '.join(map(repr, _CALLS))}, not {call!r}")
        if not isinstance(error, BaseException):
            raise TypeError(f"error must be an exception, not {type(error).__name__}")
        self._to_raise[call].append(error)

    def clear(self) -> None:
        """Reset: forget the history, the offsets, and unreported failures.

        Pending messages fail with AbortedError first. Errors of :meth:`raise_next` and
        :meth:`fail_next` that have not occurred yet are dropped.
        """
        self._give_up("clear() was called")
        self._refused = type(self)._refused
        self._join_transactions()
        self._outcomes.forget()
        self._to_fail.clear()
        for errors in self._to_raise.values():
            errors.clear()

    # The producer's methods ----------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Deliver all pending messages, and raise the unreported failures.

        Raises:
            FlushTimeoutError: callbacks still run in another thread after *timeout* seconds.
            DeliveryFailures, CallbackThreadError: as :meth:`Producer.flush`.
        """
        self._check_may_wait("flush()")
        timeout = in_seconds(timeout)  # raises if it is not a number
        self._raise_if_wanted("flush")
        self._announce_missed_slots()
        self.complete_all()
        self._outcomes.run_callbacks()
        if not self._outcomes.wait_for_callbacks(timeout):
            raise FlushTimeoutError(
                f"callbacks did not return within {timeout:.3g} s, in another thread"
            )
        self._flushed(self._outcomes.unreported.take())

    def close(self, timeout: float | None = None) -> None:
        """Deliver all pending messages and accept no more; 0 fails them instead.

        From a callback, the callbacks of these messages run after it.
        """
        timeout = in_seconds(timeout)  # raises if it is not a number
        if self._closed:
            return
        self._raise_if_wanted("close")
        self._end_admission()
        self._finish(timeout)

    def _finish(self, timeout: float | None) -> None:
        if timeout == 0 or self._in_own_thread():
            self._shut()
        self._announce_missed_slots()
        if self._coordinator is not None:
            closing.end_transaction(self, self._outcomes, self._coordinator, timeout)
        if timeout == 0:
            self._give_up(closing.GIVEN_UP)
        rounds = 0
        while self.complete_all() and rounds < closing.ROUNDS:
            rounds += 1  # a callback has sent, and may do so
        self._shut()
        if self.pending:
            self._give_up("close() ended, while callbacks continued to send")
        self._outcomes.run_callbacks()
        taken = self._outcomes.unreported.try_take()
        if self._handover is None or not self._handover.give(taken):
            closing.report(taken, "close()")
        self._stop_observing()

    def partitions_for(self, topic: str) -> set[int]:
        """Return the partition numbers of *topic*.

        Raises:
            MetadataTimeoutError: at once, if the topic does not exist.
        """
        self._check_topic(topic)
        self._check_may_wait("partitions_for()")
        if self._closed:
            raise ProducerClosedError("the producer is closed")
        self._raise_if_wanted("partitions_for")
        count = self._count(topic)
        if not count:
            raise MetadataTimeoutError(
                f"no metadata for topic {topic!r} within max_block_ms "
                f"({self.config.max_block_ms} ms): {_UNKNOWN_TOPIC}"
            )
        return set(range(count))

    def connect(self) -> None:
        """Do nothing: there is no cluster."""
        self._check_not_closed()

    def bootstrap_connected(self) -> bool:
        """Return True until the producer is closed."""
        return not self._closed

    def __repr__(self) -> str:
        if "_outcomes" not in self.__dict__:  # as in Producer.__repr__
            return f"<{type(self).__name__} without settings>"
        return f"<{type(self).__name__} {self._name} {counted(self.pending, 'pending message')}>"

    # What the compiled send() calls --------------------------------------------------------------

    def _start(self) -> None:
        """Refuse a message if the producer is closed, or if the test wants that."""
        self._check_not_closed()
        if self._coordinator is not None:
            self._check_transaction()
        self._raise_if_wanted("send")

    def _may_still_send(self) -> bool:
        return self._closing and self._outcomes.reporter == threading.get_ident()

    def _announce(self, slots: TopicSlot | list[TopicSlot]) -> bool:
        """Take the messages of *slots*, give them their partitions, and perhaps their outcome."""
        outcomes = self._outcomes
        with outcomes.lock:
            for slot in slots if isinstance(slots, list) else [slots]:
                for chunk in self._take(slot):
                    self._partition(chunk)
            while self._auto_complete and len(outcomes):
                if self._to_fail:
                    outcomes.fail_next(self._to_fail.popleft())
                else:
                    self._deliver_next()
        outcomes.run_callbacks()
        return True

    def _rows_refused(self, rows: RefusedRows) -> None:
        self._outcomes.unreported.enter(rows, rows)

    def _wait_for_space(self, turn: Turn) -> None:
        self._space.wait(turn, lambda: not self._closed, lambda _: None)

    def _in_own_thread(self) -> bool:
        return threading.get_ident() in (self._outcomes.reporter, self._partitioning)

    def _is_running(self) -> bool:
        return False  # it has nothing to flush at exit

    def _state(self) -> str:
        return "closed" if self._closed else "running"

    # Partitions and outcomes ---------------------------------------------------------------------

    def _count(self, topic: str) -> int:
        """Return the number of partitions of *topic*; 0 if it does not exist."""
        default = self._default_count if self.config.allow_auto_create_topics else 0
        return self._counts.get(topic, default)

    def _no_topic(self, topic: str) -> Callable[[Status], DeliveryError]:
        def make_error(status: Status) -> DeliveryError:
            waited = self.config.delivery_timeout_ms / 1000
            return DeliveryTimeoutError(
                topic=topic, waited=waited, status=status, reason=_UNKNOWN_TOPIC
            )

        return make_error

    def _partition(self, chunk: Chunk) -> None:
        """Give each row of *chunk* its partition, and enter it as pending."""
        topic = chunk.topic
        count = self._count(topic)
        if not count:
            self._outcomes.fail(chunk.whole(), self._no_topic(topic))
            return
        available = struct.pack(f"{count}i", *range(count))
        partitioner = self._partitioners.get(topic)
        if partitioner is None:
            chosen = self.config.partitioner
            partitioner = self._partitioners[topic] = (
                partitioners.named(chosen, sticky_bytes=self.config.batch_size)
                if isinstance(chosen, str)
                else chosen
            )
        if isinstance(partitioner, Partitioner):
            parts, unknown = chunk.split(partitioner, count, available)
        else:
            self._ask(partitioner, chunk, count)
            parts, unknown = chunk.split(None, count, available)
        self._outcomes.add(chunk, parts)
        if unknown is not None:
            self._fail_unknown(chunk, unknown, count)

    def _ask(self, function: PartitionerFunction, chunk: Chunk, count: int) -> None:
        def fail(row: int, make_error: Callable[[Status], DeliveryError]) -> None:
            self._outcomes.fail(chunk.pick([row]), make_error)

        self._partitioning = threading.get_ident()
        try:
            assign_partitions(function, chunk, count, range(count), fail)
        finally:
            self._partitioning = None

    def _fail_unknown(self, chunk: Chunk, unknown: Slice, count: int) -> None:
        for row in unknown.row_numbers():
            text = no_such_partition(chunk.partition_of(row), count)
            self._outcomes.fail(chunk.pick([row]), error_maker(chunk.topic, text))

    def _deliver_next(self) -> bool:
        return self._outcomes.deliver_next(unconfirmed=self.config.acks == 0)

    def _give_up(self, reason: str) -> None:
        def make_error(topic: str, partition: int | None, status: Status) -> AbortedError:
            return AbortedError(
                f"{format_partition(topic, partition)}: {reason}",
                status=status,
                topic=topic,
                partition=partition,
            )

        while self._outcomes.fail_next(make_error):
            pass
        self._outcomes.run_callbacks()

    def _next_deadline(self) -> float | None:
        return self._outcomes.next_deadline()

    def _expire(self) -> None:
        self._outcomes.expire()
        self._outcomes.run_callbacks()

    def _raise_if_wanted(self, call: str) -> None:
        if errors := self._to_raise[call]:
            raise errors.popleft()


class MockKafkaProducer(MockProducer, KafkaProducer):
    """A :class:`MockProducer` for code written for kafka-python: see ``KafkaProducer``."""

    def close(self, timeout: float | None = None, null_logger: bool = False) -> None:
        """Close like :meth:`MockProducer.close`."""
        super().close(timeout)

    def _view(self) -> ClusterView:
        with self._outcomes.lock:
            known = {*self._counts, *(record.topic for record in self._outcomes.history)}
        return ClusterView(topics={topic: self._topic_view(topic) for topic in sorted(known)})

    def _topic_view(self, topic: str) -> TopicView:
        count = self._count(topic)
        leaders = dict.fromkeys(range(count), 0)
        return TopicView(topic, 0, count, leaders, struct.pack(f"{count}i", *leaders))


_UNKNOWN_TOPIC = (
    "MockProducer was created without this topic in partitions, and allow_auto_create_topics is off"
)
