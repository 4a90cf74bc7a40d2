"""Counters and statistics of one producer, for ``stats()`` and ``metrics()``.

They are updated once per batch, request or slice, never once per message; per-message values are
collected by the kernel while it settles the messages. Any stage may update them, and any thread may
read them, without waiting (see ``SampledStat``).

The metrics outlive the pipeline: the totals can be read after ``close()``. A forked child gets new
metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pykaproducer._kernel import ConnectionMetrics, RequestMetrics, SampledStat, TopicMetrics

if TYPE_CHECKING:
    from pykaproducer._machines.batch import Batch
    from pykaproducer.config import Config

T = TypeVar("T")

#: Upper bounds of the buckets of the histograms of durations (seconds).
BOUNDS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0),
)

#: Window of a stat of which only the totals are read: one sample that never ends (seconds).
_FOREVER = 1e12


@dataclass(frozen=True, slots=True)
class ForgottenStat:
    """The sum of the totals of forgotten stats; may be a part of a :class:`MergedStat`."""

    count: int = 0
    sum: float = 0.0

    def __add__(self, other: SampledStat) -> ForgottenStat:
        return ForgottenStat(self.count + other.count, self.sum + other.sum)

    def recent(self, now: float) -> tuple[int, float, float, float]:
        """Return zeros: the last windows are empty."""
        return 0, 0.0, 0.0, 0.0


class MergedStat:
    """A read-only view of several stats of the same kind as one."""

    def __init__(self, parts: Iterable[SampledStat | ForgottenStat]) -> None:
        self._parts = list(parts)

    @property
    def count(self) -> int:
        """The number of values since the start."""
        return sum(part.count for part in self._parts)

    @property
    def sum(self) -> float:
        """The sum of the values since the start."""
        return sum(part.sum for part in self._parts)

    def recent(self, now: float) -> tuple[int, float, float, float]:
        """Return the same as :meth:`SampledStat.recent`, for all parts together."""
        found = [part.recent(now) for part in self._parts]
        return (
            sum(each[0] for each in found),
            sum(each[1] for each in found),
            max((each[2] for each in found), default=0.0),
            max((each[3] for each in found), default=0.0),
        )


@dataclass(frozen=True, slots=True)
class ForgottenTopics:
    """The totals of all forgotten topics, with the fields of :class:`TopicMetrics`."""

    records: ForgottenStat = ForgottenStat()
    batches: ForgottenStat = ForgottenStat()
    compression: ForgottenStat = ForgottenStat()
    retries: ForgottenStat = ForgottenStat()
    errors: ForgottenStat = ForgottenStat()

    def __add__(self, topic: TopicMetrics) -> ForgottenTopics:
        return ForgottenTopics(
            records=self.records + topic.records,
            batches=self.batches + topic.batches,
            compression=self.compression + topic.compression,
            retries=self.retries + topic.retries,
            errors=self.errors + topic.errors,
        )


class TransactionMetrics:
    """The statistics of the transactions: durations of what has succeeded (seconds)."""

    def __init__(self, window: float, samples: int) -> None:
        def histogram() -> SampledStat:
            return SampledStat(window, samples, True)

        #: Of each initialization, until the producer id and its epoch are known.
        self.init = histogram()
        #: Of each commit, from the call until the coordinator has confirmed it.
        self.commit = histogram()
        #: Of each abort, likewise.
        self.abort = histogram()
        #: One value for each time that another producer has taken over the transactional id.
        self.fenced = SampledStat(_FOREVER, 1)


class ProducerMetrics(RequestMetrics):
    """All statistics of one producer."""

    def __init__(self, window: float, samples: int) -> None:
        super().__init__(window, samples)
        self._window, self._samples = window, samples

        def total() -> SampledStat:
            return SampledStat(_FOREVER, 1)

        self.failed = total()  # bytes of each failed message
        self.lost = total()  # lost Produce requests
        self.retried = total()  # retried batches
        # By topic, by broker, and for the metadata connection.
        self.topics: dict[str, TopicMetrics] = {}
        self.links: dict[int, ConnectionMetrics] = {}
        self.metadata = ConnectionMetrics(window, samples)
        #: To the coordinator of transactions.
        self.coordinator = ConnectionMetrics(window, samples)
        self.transactions = TransactionMetrics(window, samples)
        # Totals of topics that are no longer in these tables.
        self._past_topics, self._past_partitions = ForgottenTopics(), ForgottenStat()
        # Twice the number of forget() calls; odd during one.
        self._changes = 0

    @classmethod
    def of(cls, config: Config) -> ProducerMetrics:
        """Return metrics with the windows that *config* specifies."""
        return cls(config.metrics_sample_window_ms / 1000, config.metrics_num_samples)

    # The tables grow by setdefault(), so that concurrent stages use the same stat. ---------------

    def topic(self, name: str) -> TopicMetrics:
        """Return the statistics of one topic."""
        found = self.topics.get(name)
        if found is None:
            found = self.topics.setdefault(name, TopicMetrics(self._window, self._samples))
        return found

    def link(self, broker_id: int) -> ConnectionMetrics:
        """Return the statistics of the connections to one broker."""
        found = self.links.get(broker_id)
        if found is None:
            found = self.links.setdefault(broker_id, ConnectionMetrics(self._window, self._samples))
        return found

    def partition(self, topic: str, partition: int) -> SampledStat:
        """Return the bytes of the delivered messages of one partition."""
        place = (topic, partition)
        found = self.partitions.get(place)
        if found is None:
            found = self.partitions.setdefault(place, SampledStat(_FOREVER, 1))
        return found

    def forget(self, name: str) -> None:
        """Keep only the totals of an idle topic. Called by the dispatcher only."""
        partitions = [each for each in copied(lambda: list(self.partitions)) if each[0] == name]
        self._changes += 1
        if (topic := self.topics.pop(name, None)) is not None:
            self._past_topics += topic
        for each in partitions:
            self._past_partitions += self.partitions.pop(each)
        self._changes += 1

    def _whole(self, read: Callable[[], T]) -> T:
        """Return the result of *read* outside of a :meth:`forget`, so that no total decreases."""
        while True:
            before = self._changes
            found = copied(read)
            if before == self._changes and before % 2 == 0:
                return found

    # Updates --------------------------------------------------------------------------------------

    def batch_delivered(
        self, topic: str, partition: int, now: float, rows: int, nbytes: int
    ) -> None:
        """Count delivered messages of one partition."""
        self.partition(topic, partition).add(now, nbytes / rows, rows)

    def slice_failed(self, topic: str, now: float, rows: int, nbytes: int) -> None:
        """Count failed messages of one topic."""
        self.failed.add(now, nbytes / rows, rows)
        self.topic(topic).errors.add(now, rows)

    def batch_retried(self, batch: Batch, now: float) -> None:
        """Count a batch that is being retried."""
        self.retried.add(now, batch.count)
        self.topic(batch.topic).retries.add(now, batch.count)

    # Sums -----------------------------------------------------------------------------------------

    def of_topics(
        self, which: Callable[[TopicMetrics | ForgottenTopics], SampledStat | ForgottenStat]
    ) -> MergedStat:
        """Return the sum of one of the statistics of all topics, including forgotten ones."""

        def read() -> list[TopicMetrics | ForgottenTopics]:
            return [*self.topics.values(), self._past_topics]

        return MergedStat(map(which, self._whole(read)))

    def of_brokers(self, which: Callable[[ConnectionMetrics], SampledStat]) -> MergedStat:
        """Return the sum of one of the statistics of all brokers' Produce connections."""
        return MergedStat(which(link) for link in copied(lambda: list(self.links.values())))

    def of_links(self, which: Callable[[ConnectionMetrics], SampledStat]) -> MergedStat:
        """Return the sum of one of the statistics of all connections."""
        links = copied(lambda: list(self.links.values()))
        return MergedStat(which(link) for link in (*links, self.metadata, self.coordinator))

    def delivered_bytes(self) -> int:
        """Return the bytes of keys, values and headers of all delivered messages."""

        def read() -> list[SampledStat | ForgottenStat]:
            return [*self.partitions.values(), self._past_partitions]

        return round(sum(each.sum for each in self._whole(read)))


def copied(copy: Callable[[], T]) -> T:
    """Return the result of *copy*, which iterates over a table that other threads change.

    The copy is normally a single step of the interpreter. If the garbage collector runs in the
    middle, it may raise RuntimeError, and is repeated.
    """
    while True:
        try:
            return copy()
        except RuntimeError:  # "changed size during iteration"
            continue
