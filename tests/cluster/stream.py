"""A stream of numbered messages that is in flight while a fault happens."""

from __future__ import annotations

import threading
from typing import Any

from pykaproducer import Delivery, Producer
from pykaproducer.testing import KafkaCluster

from .readback import read_log

#: How long the whole stream may take, including a broker's restart (seconds). A leader waits for up
#: to 45 s until it no longer counts a silent replica as in sync.
PATIENCE = 150


class Stream:
    """A sender of numbers to all partitions of a topic, in a separate thread.

    At first it keeps a limited number of messages in flight, for as long as it runs. After
    :meth:`go_on` it sends the rest, up to *count*, without waiting for any.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        topic: str,
        partitions: int,
        count: int,
        window: int = 500,
        **settings: Any,
    ) -> None:
        self.cluster = cluster
        self.topic = topic
        self.partitions = partitions
        self.count = count
        self.errors: list[BaseException] = []
        #: Offsets by partition, in the order of the reports.
        self.offsets: list[list[int]] = [[] for _ in range(partitions)]
        settings.setdefault("bootstrap_servers", cluster.bootstrap_servers)
        self.producer = Producer(
            delivery_timeout_ms=PATIENCE * 1000,
            # Many small batches, so that several are in flight.
            batch_max_messages=20,
            **settings,
        )
        self.sent = 0
        self.reported = 0
        self._window = threading.Semaphore(window)
        self._progress = threading.Condition()
        self._freely = threading.Event()
        self._thread = threading.Thread(target=self._send, name="stream")

    def __enter__(self) -> Stream:
        self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self.go_on()
        self._thread.join(PATIENCE)
        self.producer.close(PATIENCE)
        assert not self._thread.is_alive()

    def wait_for_more(self, messages: int) -> None:
        """Wait until *messages* more have been reported."""
        goal = self.reported + messages
        with self._progress:
            assert self._progress.wait_for(lambda: self.reported >= goal, PATIENCE)

    def go_on(self) -> None:
        """Send the rest, whether the cluster answers or not."""
        self._freely.set()
        self._window.release()

    def finish(self) -> None:
        """Wait until everything has its outcome."""
        self.go_on()
        self._thread.join(PATIENCE)
        self.producer.flush(PATIENCE)
        assert self.reported == self.sent >= self.count

    def _send(self) -> None:
        while self.sent < self.count or not self._freely.is_set():
            if not self._freely.is_set():
                self._window.acquire()
            self.producer.send(
                self.topic,
                b"%d" % self.sent,
                partition=self.sent % self.partitions,
                on_delivery=self._told,
            )
            self.sent += 1

    def _told(self, error: BaseException | None, delivery: Delivery) -> None:
        self.reported += 1
        if error is not None:
            self.errors.append(error)
        elif delivery.partition is not None and delivery.offset is not None:
            self.offsets[delivery.partition].append(delivery.offset)
        self._window.release()
        if self.reported % 100 == 0:
            with self._progress:
                self._progress.notify_all()

    # The contents of the log -------------------------------------------------------------------

    def in_log(self) -> list[list[int]]:
        """Return the numbers in each partition, up to the last that was delivered."""
        return [
            [
                int(value or b"")
                for value in read_log(
                    self.cluster, self.topic, partition, through=max(self.offsets[partition])
                ).values
            ]
            for partition in range(self.partitions)
        ]

    def expected(self) -> list[list[int]]:
        """Return the numbers sent to each partition."""
        return [[*range(p, self.sent, self.partitions)] for p in range(self.partitions)]

    def assert_exactly_once(self) -> None:
        """Check that everything was delivered once, in order, and at the reported offsets."""
        assert self.errors == []
        assert self.in_log() == self.expected()
        for offsets, numbers in zip(self.offsets, self.expected(), strict=True):
            # The broker does not always return the offset of a duplicate batch.
            known = {*offsets}
            assert [o for o in offsets if o >= 0] == [o for o in range(len(numbers)) if o in known]
            assert len(offsets) == len(numbers)

    def assert_in_order(self) -> None:
        """Check that everything was delivered in order, except for late retries."""
        assert self.errors == []
        for numbers, expected in zip(self.in_log(), self.expected(), strict=True):
            assert list(dict.fromkeys(numbers)) == expected
