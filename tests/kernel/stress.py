"""Threads that use a producer, and its handles, at once: ``python -m tests.kernel.stress``.

Users send, wait, read their handles and drop them, and brokers refuse, lose or delay requests,
while the pipeline takes the messages, seals them, lets them expire and reports them; others read
statistics. It checks that each message has exactly one outcome, which is true, and that all memory
is given back. A second of it is part of the tests. It is meant for ThreadSanitizer in a
free-threaded build (``tox -e threads``), where any two of these meet.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pykaproducer._kernel as _kernel
from pykaproducer import (
    BlockDelivery,
    BufferFullError,
    DeliveryError,
    DeliveryFailures,
    FlushTimeoutError,
    OutcomeTimeoutError,
)
from pykaproducer.delivery import Delivery
from pykaproducer.testing import ScriptedCluster
from pykaproducer.testing.scripted import Drop, Refuse
from tests.confluent.helper import on

TOPICS = ("one", "two", "three")
PARTITIONS = 8
#: So little that senders wait for space.
LIMIT = 1 << 20
#: Errors with which brokers refuse a request: retriable, and not.
CODES = (6, 7, 19, 29)
SETTINGS = {
    "buffer_memory": LIMIT,
    "max_block_ms": 10,
    "retry_backoff_ms": 1,
    "reconnect_backoff_ms": 1,
    "reconnect_backoff_max_ms": 5,
}


class Stress:
    """One run: the objects that the threads share."""

    def __init__(self, seed: int, seconds: float) -> None:
        self._seed = seed
        self._end = time.monotonic() + seconds
        self._cluster = ScriptedCluster(2, dict.fromkeys(TOPICS, PARTITIONS))
        self._producer = self._cluster.producer(**SETTINGS)
        self._polling = on(self._cluster, message__timeout__ms=1000)
        self._failures: list[BaseException] = []
        # Callbacks that were asked for, and that have run; and what they said.
        self._asked: collections.deque[None] = collections.deque()
        self._called: collections.deque[None] = collections.deque()
        self._delivered: collections.deque[tuple[str, int, int, bytes]] = collections.deque()
        self._finished = threading.Event()

    def run(self) -> int:
        """Run all threads; return the number of messages. Raises the first failure."""
        users = [self._user, self._user, self._sender, self._block_user, self._poller]
        threads = [self._thread(each, number) for number, each in enumerate(users)]
        others = [self._thread(each, 10 + n) for n, each in enumerate((self._reader, self._faults))]
        for thread in threads:
            thread.join()
        self._finished.set()
        for thread in others:
            thread.join()
        with contextlib.suppress(DeliveryFailures):
            self._producer.flush()
        self._polling.flush()
        if self._failures:
            raise self._failures[0]
        used = self._producer.stats()["buffer"]["used"]
        accepted: int = self._producer.accepted
        self._producer.close()
        self._polling.close()
        assert used == 0, used
        assert len(self._called) == len(self._asked), (len(self._called), len(self._asked))
        logs = {(name, n): self._cluster.log(name, n) for name in TOPICS for n in range(PARTITIONS)}
        for topic, partition, offset, value in self._delivered:
            assert logs[topic, partition][offset].value == value
        assert len({place[:3] for place in self._delivered}) == len(self._delivered)
        self._cluster.close()
        return accepted

    def _thread(self, target: Callable[[random.Random], None], number: int) -> threading.Thread:
        def run() -> None:
            try:
                target(random.Random(self._seed * 100 + number))
            except BaseException as failure:
                self._failures.append(failure)

        thread = threading.Thread(target=run, name=target.__name__)
        thread.start()
        return thread

    def _is_over(self) -> bool:
        return time.monotonic() >= self._end or bool(self._failures)

    def _check(self, check: Callable[[], object]) -> None:
        """Call a function in a callback, whose exceptions would only be logged."""
        self._called.append(None)
        try:
            check()
        except BaseException as failure:
            self._failures.append(failure)

    # Users ----------------------------------------------------------------------------------------

    def _send(self, chance: random.Random) -> Delivery | None:
        value = b"%d" % chance.randrange(1 << 60) + b"v" * chance.choice([0, 1, 100, 100, 20_000])

        def report(error: BaseException | None, delivery: Delivery) -> None:
            assert delivery.done()
            assert delivery.failed() == (error is not None)
            if error is None:
                found = delivery.result(0)
                self._delivered.append((found.topic, found.partition, found.offset, value))

        options: dict[str, Any] = {}
        if chance.random() < 0.3:
            options["on_delivery"] = lambda error, it: self._check(lambda: report(error, it))
        if chance.random() < 0.1:
            options["delivery_timeout_ms"] = chance.choice([1, 5, 50])
        try:
            delivery: Delivery = self._producer.send(
                chance.choice(TOPICS),
                value,
                chance.choice([None, b"", b"key%d" % chance.randrange(50)]),
                [("name", b"header")] if chance.random() < 0.1 else None,
                **options,
            )
        except BufferFullError:
            return None
        if "on_delivery" in options:
            self._asked.append(None)
        return delivery

    def _sender(self, chance: random.Random) -> None:
        """Only send, and drop each handle at once."""
        while not self._is_over():
            self._send(chance)

    def _user(self, chance: random.Random) -> None:
        handles: list[Delivery] = []
        while not self._is_over():
            for _ in range(chance.choice([1, 20])):
                if (handle := self._send(chance)) is not None:
                    handles.append(handle)
            if handles:
                self._use(chance, chance.choice(handles))
            if len(handles) > 200:
                del handles[: chance.randrange(200)]

    def _use(self, chance: random.Random, handle: Delivery) -> None:
        what = chance.randrange(5)
        if what == 0:
            with contextlib.suppress(OutcomeTimeoutError, DeliveryError):
                handle.result(chance.choice([0.0, 0.005]))
        elif what == 1:
            self._asked.append(None)
            handle.add_done_callback(lambda it: self._check(it.done))
        elif what == 2:
            value, key = handle.value, handle.key  # both may be gone at the next look
            assert value is None or len(value) == handle.serialized_value_size
            assert key is None or key[:3] in (b"", b"key")
        elif what == 3 and handle.failed():
            assert isinstance(handle.exception(0), DeliveryError)
        else:
            assert handle.topic in TOPICS
            assert handle.offset is None or handle.partition is not None
            assert handle.timestamp > 0

    def _block_user(self, chance: random.Random) -> None:
        while not self._is_over():
            count = chance.choice([1, 10, 500])
            values = [b"b" * chance.choice([5, 400]) for _ in range(count)]
            watch = None
            if chance.random() < 0.5:

                def watch(_error: BaseException | None, block: BlockDelivery) -> None:
                    self._check(block.done)

            try:
                block = self._producer.send_many(
                    chance.choice(TOPICS),
                    values,
                    [b"k%d" % n for n in range(count)],
                    on_delivery=watch,
                )
            except BufferFullError:
                continue
            if watch is not None:
                self._asked.append(None)
            for _ in range(chance.choice([0, 3])):
                block.done(), repr(block)
            if chance.random() < 0.3:
                with contextlib.suppress(OutcomeTimeoutError):
                    found = block.outcome(0.005)
                    rows = sum(each.rows for each in found.delivered.values())
                    assert rows + len(found.failed) == count

    def _poller(self, chance: random.Random) -> None:
        """Send as a program of confluent-kafka does, and poll."""

        def report(error: object, message: Any) -> None:
            assert message.value() == b"polled"
            assert (message.offset() is not None) == (error is None)

        while not self._is_over():
            with contextlib.suppress(BufferError):
                self._polling.produce(
                    chance.choice(TOPICS),
                    b"polled",
                    on_delivery=lambda error, it: self._check(lambda: report(error, it)),
                )
                self._asked.append(None)
            if chance.random() < 0.1:
                self._polling.poll(0)

    # Others ---------------------------------------------------------------------------------------

    def _reader(self, chance: random.Random) -> None:
        """Read statistics, and flush without waiting."""
        while not self._finished.is_set():
            buffer = self._producer.stats()["buffer"]
            assert 0 <= buffer["used"] <= LIMIT
            assert buffer["waiting_senders"] >= 0
            assert min(self._producer.accepted, self._producer.accepted_bytes) >= 0
            if chance.random() < 0.1:
                _kernel.pool_use()
                with contextlib.suppress(FlushTimeoutError, DeliveryFailures):
                    self._producer.flush(0)

    def _faults(self, chance: random.Random) -> None:
        """Let brokers refuse a request, or lose one before or after it is appended."""
        while not self._finished.wait(0.05):
            fault = chance.choice([Refuse(chance.choice(CODES)), Drop(appended=True), Drop()])
            self._cluster.next("produce", fault)
            if chance.random() < 0.1:
                where = chance.choice(TOPICS), chance.randrange(PARTITIONS)
                self._cluster.move_leader(*where, chance.randrange(2))


def main() -> int:
    """Run for the time asked for; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.kernel.stress", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="%(default)s")
    parser.add_argument("--seed", type=int, help="default: a new one each time")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 30) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    logging.disable()
    print(f"{Stress(seed, arguments.seconds).run():,} messages: one outcome each")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
