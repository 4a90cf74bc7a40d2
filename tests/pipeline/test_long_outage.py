"""An hour without brokers, in fake time: the cost does not grow with the length."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import Any

import pytest

from pykaproducer import DeliveryTimeoutError
from pykaproducer._errors.codes import ErrorCode
from pykaproducer.testing import FakeClock, ScriptedCluster
from pykaproducer.testing.scripted import Refuse
from tests._support.fixtures.log import wait_until_written
from tests._support.pairs import partly

from .helper import error_of, frozen, offsets, send, warm_up

HOUR = 3600.0
#: The code with which brokers refuse, by the fault.
CODES = {
    "no replicas": ErrorCode.NOT_ENOUGH_REPLICAS,
    "storage": ErrorCode.KAFKA_STORAGE_ERROR,
}
#: The limit of log lines in any minute.
LINES_A_MINUTE = 20


class Costs(logging.Handler):
    """Counts log lines, threads and connections by the minute of the fake clock."""

    def __init__(
        self, clock: FakeClock, cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        super().__init__(logging.INFO)
        self._clock = clock
        self.lines: Counter[int] = Counter()
        self.threads: Counter[int] = Counter()
        self.connections: Counter[int] = Counter()
        start, connect = threading.Thread.start, cluster._connect

        def started(thread: threading.Thread) -> None:
            if thread.name.startswith("pykaproducer"):
                self.threads[self._minute()] += 1
            start(thread)

        def connected(endpoint: Any) -> Any:
            self.connections[self._minute()] += 1
            return connect(endpoint)

        monkeypatch.setattr(threading.Thread, "start", started)
        monkeypatch.setattr(cluster, "_connect", connected)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines[self._minute()] += 1

    def _minute(self) -> int:
        return int(self._clock.monotonic() // 60)


def settle_down(clock: FakeClock) -> None:
    """Let the stages finish their due work, until all of them wait, before moving the clock."""
    with clock._changed:
        # The dispatcher, the metadata connection and the brokers' connections. A short timeout is
        # enough if one of them waits for something other than the clock.
        clock._changed.wait_for(lambda: len(clock._waiting) >= 4, 0.02)
    wait_until_written()  # each line in the minute in which it was logged


@pytest.mark.parametrize(
    "fault", partly(["refused", "silent", "no replicas", "storage"], ["silent"])
)
def test_an_hour_of_outage(
    fault: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "pykaproducer")
    logger = logging.getLogger("pykaproducer")
    with frozen(2, topics={"t": 4}, delivery_timeout_ms=30_000) as (cluster, clock, producer):
        warm_up(producer, partitions=4)
        costs = Costs(clock, cluster, monkeypatch)
        logger.addHandler(costs)
        try:
            if fault in ("refused", "silent"):
                for broker in range(2):
                    cluster.stop(broker, silently=fault == "silent")
            else:
                cluster.next("produce", *[Refuse(CODES[fault])] * 1_000_000)
            deliveries = []
            end = clock.monotonic() + HOUR
            next_send = 0.0
            while clock.monotonic() < end:
                if clock.monotonic() >= next_send:
                    next_send = clock.monotonic() + 15.0
                    deliveries += send(producer, [b"x"], partition=len(deliveries) % 4)
                settle_down(clock)
                clock.jump_to_next()
            failed = [error_of(each) for each in deliveries[:-8]]
            assert all(isinstance(error, DeliveryTimeoutError) for error in failed)
        finally:
            logger.removeHandler(costs)
        assert max(costs.lines.values(), default=0) <= LINES_A_MINUTE
        assert sum(costs.threads.values()) <= 10
        # Three connections over two servers, each retried once a second.
        assert max(costs.connections.values(), default=0) <= 3 * 2 * 60
        cluster._script["produce"].clear()
        for broker in range(2):
            cluster.start(broker)
        delivered = threading.Event()
        after = producer.send("t", b"after", partition=1, delivery_timeout_ms=600_000)
        after.add_done_callback(lambda _: delivered.set())
        while not delivered.wait(0.01):
            clock.jump(1.0)
        assert offsets([after])
