"""What one producer counts and measures: for ``stats()`` and ``metrics()``.

Counted once a batch, a request or a slice, never once a message: of messages the kernel counts
while it settles them. Any stage adds, any thread reads; neither ever waits (``Series``).

Outlives its pipeline: after ``close()`` the totals can still be read. A forked child has a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from pykaproducer._kernel import Series

if TYPE_CHECKING:
    from pykaproducer._machines.lane import Batch
    from pykaproducer._pipeline.trace import Recorder
    from pykaproducer.config import Config

T = TypeVar("T")

#: How durations are sorted that are counted since the start (seconds).
BOUNDS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0),
)

#: A series that is asked for its totals alone needs one sample, of any length.
_FOR_EVER = 1e12


class Merged:
    """Several series of the same kind as one, for whoever reads: counting is for one only."""

    def __init__(self, parts: Iterable[Series]) -> None:
        self._parts = list(parts)

    @property
    def count(self) -> int:
        """Since the start."""
        return sum(part.count for part in self._parts)

    @property
    def sum(self) -> float:
        """Since the start."""
        return sum(part.sum for part in self._parts)

    def lately(self, now: float) -> tuple[int, float, float, float]:
        """As :meth:`Series.lately`."""
        found = [part.lately(now) for part in self._parts]
        return (
            sum(each[0] for each in found),
            sum(each[1] for each in found),
            max((each[2] for each in found), default=0.0),
            max((each[3] for each in found), default=0.0),
        )


class TopicCounts:
    """What is counted of one topic."""

    def __init__(self, window: float, samples: int) -> None:
        def series() -> Series:
            return Series(window, samples)

        #: One a batch: its messages.
        self.records = series()
        #: One a batch: its bytes as they go over the wire.
        self.batches = series()
        #: One a batch: those bytes, as a part of what they were before compression.
        self.compression = series()
        #: One a batch that goes again, or a slice that failed: its messages.
        self.retries = series()
        self.errors = series()


class Link:
    """What is counted of the connections to one broker."""

    def __init__(self, window: float, samples: int) -> None:
        def series() -> Series:
            return Series(window, samples)

        #: One a request, or an answer: its bytes.
        self.outgoing = series()
        self.incoming = series()
        #: One an answer: seconds since its request was given to the connection.
        self.latency = series()
        #: One an answer: for how long the broker wants to be left alone (seconds).
        self.throttle = series()
        #: One a connection that was made, and one that was lost.
        self.made = series()
        self.lost = series()


class Meter:
    """All series of one producer."""

    def __init__(self, window: float, samples: int) -> None:
        self._window, self._samples = window, samples

        def spread() -> Series:
            return Series(window, samples, True)

        def total() -> Series:
            return Series(_FOR_EVER, 1)

        # Durations, in seconds. Of delivered messages: from send() until the outcome was there.
        self.delivery = spread()
        # Of Produce requests: from the connection's getting it until its answer.
        self.request = spread()
        # Of messages: from the opening of the oldest chunk in their batch until that was sealed.
        self.queue = spread()

        self.failed = total()  # messages, each with its bytes
        self.lost = total()  # Produce requests
        self.retried = total()  # batches that go again
        self.requests = Series(window, samples)  # one a request: its messages
        self.largest = Series(window, samples)  # one a batch: its largest record
        # By topic; by broker, and of the connection for metadata.
        self.topics: dict[str, TopicCounts] = {}
        self.links: dict[int, Link] = {}
        self.metadata = Link(window, samples)
        # By topic-partition, of its delivered messages: their bytes.
        self.partitions: dict[tuple[str, int], Series] = {}
        #: Who wants to know what becomes of each chunk; None: nobody.
        self.trace: Recorder | None = None

    @classmethod
    def of(cls, config: Config) -> Meter:
        """As the settings of the metrics want it."""
        return cls(config.metrics_sample_window_ms / 1000, config.metrics_num_samples)

    # The tables grow by setdefault(), so that two stages that meet count in the same series. ------

    def topic(self, name: str) -> TopicCounts:
        """What is counted of one topic."""
        found = self.topics.get(name)
        if found is None:
            found = self.topics.setdefault(name, TopicCounts(self._window, self._samples))
        return found

    def link(self, broker_id: int) -> Link:
        """What is counted of the connections to one broker."""
        found = self.links.get(broker_id)
        if found is None:
            found = self.links.setdefault(broker_id, Link(self._window, self._samples))
        return found

    # What happens ---------------------------------------------------------------------------------

    def slice_delivered(
        self, topic: str, partition: int, now: float, rows: int, nbytes: int
    ) -> None:
        """Messages of one partition are in the log."""
        place = (topic, partition)
        series = self.partitions.get(place)
        if series is None:
            series = self.partitions.setdefault(place, Series(_FOR_EVER, 1))
        series.add(now, nbytes / rows, rows)

    def slice_failed(self, topic: str, now: float, rows: int, nbytes: int) -> None:
        """Messages of one topic have failed."""
        self.failed.add(now, nbytes / rows, rows)
        self.topic(topic).errors.add(now, rows)

    def batch_sealed(self, batch: Batch, now: float) -> None:
        """A batch is ready to be sent, for the first time or once more."""
        size, rows = len(batch.payload), batch.count
        plain = batch.payload.plain_size
        topic = self.topic(batch.topic)
        topic.records.add(now, rows)
        topic.batches.add(now, size)
        topic.compression.add(now, size / plain if plain else 1.0)
        self.largest.add(now, batch.payload.largest_record)
        if not batch.level:
            self.queue.add(now, now - batch.parts[0].chunk.opened, rows)

    def batch_again(self, batch: Batch, now: float) -> None:
        """A batch goes round again."""
        self.retried.add(now, batch.count)
        self.topic(batch.topic).retries.add(now, batch.count)

    # What is asked for ----------------------------------------------------------------------------

    def of_topics(self, which: Callable[[TopicCounts], Series]) -> Merged:
        """Of all topics together."""
        return Merged(which(topic) for topic in copied(lambda: list(self.topics.values())))

    def of_brokers(self, which: Callable[[Link], Series]) -> Merged:
        """Of the connections to all brokers together: of Produce requests."""
        return Merged(which(link) for link in copied(lambda: list(self.links.values())))

    def of_links(self, which: Callable[[Link], Series]) -> Merged:
        """Of all connections together."""
        links = copied(lambda: list(self.links.values()))
        return Merged(which(link) for link in (*links, self.metadata))

    def delivered_bytes(self) -> int:
        """Of all messages that were delivered: of their keys, values and headers."""
        return round(sum(each.sum for each in copied(lambda: list(self.partitions.values()))))


def copied(copy: Callable[[], list[T]]) -> list[T]:
    """What *copy* returns; it goes over a table that other threads change.

    That takes one step of the interpreter, unless the garbage collector strikes in the middle.
    """
    while True:
        try:
            return copy()
        except RuntimeError:  # "changed size during iteration"
            continue
