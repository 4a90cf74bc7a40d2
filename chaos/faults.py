"""The faults: their kinds, targets and durations, and whether anything was in flight.

A fault counts only if batches were in flight when it was injected: the process under load had
messages without outcome, and the proxy of an affected broker had seen a Produce request and no
answer. For faults that end or stop a broker or a connection at once, the request must have stayed
unanswered: if the broker answered before the signal arrived, nothing was interrupted.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial

from chaos.ledger import Counters
from chaos.stage import Stage, wait_for
from pykaproducer.testing import ClusterError, Cut, FaultProxy
from pykaproducer.testing.proxy import ProxiedRequest

KINDS = (
    "kill -9",
    "SIGTERM",
    "SIGSTOP",
    "all paused",
    "rolling restart",
    "leader election",
    "cut before",
    "cut within",
    "cut after",
    "reset",
    "delay",
    "throttle",
    "black hole",
    "refuse",
    "disk failure",
    "isolated broker",
    "quota",
    "small batches",
    "client SIGSTOP",
    "no descriptors",
)

#: How long to wait for a Produce request to interrupt (seconds).
_WAIT = 5.0
#: How long the producer may take to deliver again after the fault has ended (seconds).
_RECOVERY = 30.0
#: Standard input, output and error: with this limit a process cannot open anything else.
_STANDARD_FILES = 3
#: How often a fault that had no effect is repeated.
TRIES = 3


class Faults:
    """The faults of one act, from one seed.

    Each kind is a context manager: it injects the fault, yields the number of in-flight batches
    affected, and reverts the fault at the end.
    """

    def __init__(self, stage: Stage, counters: Counters, seed: int) -> None:
        self._stage = stage
        self._counters = counters
        self._random = random.Random(seed)
        #: When the process under load was stopped, and when it continued (monotonic seconds).
        self.stopped: list[tuple[float, float]] = []
        #: The largest number of in-flight Produce requests seen at one broker.
        self.deepest = 0
        self._kinds: dict[str, Callable[[], AbstractContextManager[int]]] = {
            "kill -9": self._kill,
            "SIGTERM": self._terminate,
            "SIGSTOP": self._pause,
            "all paused": self._pause_all,
            "rolling restart": self._roll,
            "leader election": self._elect,
            "cut before": lambda: self._cut(Cut.BEFORE),
            "cut within": lambda: self._cut(Cut.WITHIN),
            "cut after": lambda: self._cut(Cut.AFTER),
            "reset": self._reset,
            "delay": self._delay,
            "throttle": self._throttle,
            "black hole": self._black_hole,
            "refuse": self._refuse,
            "disk failure": self._fail_disk,
            "isolated broker": self._isolate,
            "quota": self._quota,
            "small batches": self._small_batches,
            "client SIGSTOP": self._stop_client,
            "no descriptors": self._no_descriptors,
        }
        assert tuple(self._kinds) == KINDS

    def kinds_in_turn(self, kinds: Sequence[str]) -> Iterator[str]:
        """Yield every kind once, in an order from the seed; then again in another order."""
        while True:
            yield from self._random.sample(kinds, len(kinds))

    @property
    def failed(self) -> int:
        """Return the number of messages that were not delivered."""
        return sum(self._counters.settled) - sum(self._counters.delivered)

    def strike(self, kind: str) -> int:
        """Inject one fault until its end; return the number of in-flight batches affected."""
        outstanding = sum(self._counters.sent) - sum(self._counters.settled)
        with self._kinds[kind]() as struck:
            pass
        return struck if outstanding > 0 else 0

    def stuck(self) -> list[int]:
        """Wait until all replicas are in sync and all partitions accept messages.

        Return the partitions that do not; all of them, if the brokers did not recover.
        """
        if not self._stage.wait_until_in_sync():
            return list(range(self._stage.partitions))
        self._stage.spread_leaders()
        sent, delivered = self._counters.sent, self._counters.delivered

        def left() -> list[int]:
            # As many outcomes as there were messages: the backlog is empty.
            settled, now = self._counters.settled, self._counters.delivered
            return [
                partition
                for partition in range(self._stage.partitions)
                if settled[partition] <= sent[partition] or now[partition] <= delivered[partition]
            ]

        wait_for(lambda: not left(), _RECOVERY)
        return left()

    # Brokers -----------------------------------------------------------------------------------

    @contextmanager
    def _kill(self) -> Iterator[int]:
        broker = self._random.randrange(self._stage.size)
        requests = self._unanswered([broker])
        self._stage.cluster.kill(broker)
        yield _still(requests)
        self._hold(0.2, 2.0)
        self._stage.cluster.restart(broker)

    @contextmanager
    def _terminate(self) -> Iterator[int]:
        broker = self._random.randrange(self._stage.size)
        requests = self._unanswered([broker])
        self._stage.cluster.terminate(broker)
        yield len(requests)
        self._hold(0.2, 2.0)
        self._stage.cluster.restart(broker)

    @contextmanager
    def _roll(self) -> Iterator[int]:
        """Restart every broker, one after the other."""
        struck = []
        for broker in self._random.sample(range(self._stage.size), self._stage.size):
            struck.append(len(self._unanswered([broker])))
            self._stage.cluster.restart(broker)
            self._stage.wait_until_in_sync()
            self._stage.spread_leaders()
        yield min(struck)

    @contextmanager
    def _pause(self) -> Iterator[int]:
        """Pause a broker, sometimes beyond its session timeout (another leads) and the deadline."""
        broker = self._random.randrange(self._stage.size)
        yield from self._paused([broker])

    @contextmanager
    def _pause_all(self) -> Iterator[int]:
        yield from self._paused(range(self._stage.size))

    def _paused(self, brokers: Sequence[int]) -> Iterator[int]:
        requests = self._unanswered(brokers)
        cluster = self._stage.cluster
        try:
            for broker in brokers:
                cluster.pause(broker)
            yield _still(requests)
            self._hold_short_or_long()
        finally:
            for broker in brokers:
                with suppress(ClusterError):
                    cluster.resume(broker)

    @contextmanager
    def _elect(self) -> Iterator[int]:
        requests = self._unanswered(range(self._stage.size))
        moved = self._stage.elect(self._random.randrange(1, self._stage.size))
        yield len(requests) if moved else 0

    # The network -------------------------------------------------------------------------------

    @contextmanager
    def _cut(self, where: Cut) -> Iterator[int]:
        proxies = self._some_proxies()
        count = self._random.choice((1, 1, 2, 5))
        before = [proxy.cuts for proxy in proxies]
        try:
            for proxy in proxies:
                proxy.cut(where, count)
            deadline = time.monotonic() + _WAIT
            for proxy, known in zip(proxies, before, strict=True):
                left = max(0.0, deadline - time.monotonic())
                proxy.wait_for(partial(_has_cut, proxy, known + count), left)
            yield sum(proxy.cuts for proxy in proxies) - sum(before)
        finally:
            self._restore(proxies)

    @contextmanager
    def _reset(self) -> Iterator[int]:
        proxies = self._some_proxies()
        requests = self._requests(proxies)
        for proxy in proxies:
            proxy.cut_all()
        yield _still(requests)

    @contextmanager
    def _delay(self) -> Iterator[int]:
        """Delay data, sometimes longer than the request timeout: requests given up still arrive."""
        proxies = self._some_proxies()
        seconds = self._random.choice((0.02, 0.1, 0.3, 1.0, 4.0))
        requests = self._requests(proxies)
        try:
            for proxy in proxies:
                proxy.delay(seconds)
            yield len(requests)
            self._hold(seconds, seconds + 3.0)
        finally:
            self._restore(proxies)

    @contextmanager
    def _throttle(self) -> Iterator[int]:
        proxies = self._some_proxies()
        rate = self._random.choice((1_000, 10_000, 100_000))
        requests = self._requests(proxies)
        try:
            for proxy in proxies:
                proxy.throttle(rate)
            yield len(requests)
            self._hold(0.5, 4.0)
        finally:
            self._restore(proxies)

    @contextmanager
    def _black_hole(self) -> Iterator[int]:
        proxies = self._some_proxies()
        requests = self._requests(proxies)
        try:
            for proxy in proxies:
                proxy.black_hole()
            yield _still(requests)
            self._hold_short_or_long()
        finally:
            self._restore(proxies)

    @contextmanager
    def _refuse(self) -> Iterator[int]:
        proxies = self._some_proxies()
        requests = self._requests(proxies)
        try:
            for proxy in proxies:
                proxy.refuse()
            yield _still(requests)
            self._hold(0.2, 3.0)
        finally:
            self._restore(proxies)

    # Rejections by a broker ----------------------------------------------------------------------

    @contextmanager
    def _fail_disk(self) -> Iterator[int]:
        """Fail one of a broker's two disks: its partitions move away, the others stay."""
        broker = self._random.randrange(self._stage.size)
        requests = self._unanswered([broker])
        self._stage.cluster.fail_disk(broker)
        yield len(requests)
        self._hold(3.0, 6.0)
        self._stage.cluster.restart(broker)

    @contextmanager
    def _isolate(self) -> Iterator[int]:
        """Isolate one broker from controllers and followers by stopping the two others."""
        left = self._random.randrange(self._stage.size)
        yield from self._paused([broker for broker in range(self._stage.size) if broker != left])

    @contextmanager
    def _quota(self) -> Iterator[int]:
        rate = self._random.choice((5_000.0, 20_000.0, 50_000.0))
        requests = self._requests(self._stage.proxies)
        try:
            self._stage.quota(rate)
            yield len(requests)
            self._hold(1.0, 5.0)
        finally:
            self._stage.quota(None)

    @contextmanager
    def _small_batches(self) -> Iterator[int]:
        """Limit the topic to batches of a few messages: larger ones are rejected and split."""
        requests = self._requests(self._stage.proxies)
        try:
            self._stage.largest_batch(self._random.choice((500, 1000, 3000)))
            yield len(requests)
            self._hold(0.5, 3.0)
        finally:
            self._stage.largest_batch(None)

    # The process under load ----------------------------------------------------------------------

    @contextmanager
    def _stop_client(self) -> Iterator[int]:
        """Stop the process, sometimes beyond every timeout: much of its backlog then expires."""
        requests = self._requests(self._stage.proxies)
        process = self._counters.process
        begin = time.monotonic()
        os.kill(process, signal.SIGSTOP)
        try:
            yield len(requests)
            self._hold(*self._random.choice(((0.1, 2.5), (4.0, 7.0), (9.0, 11.0))))
        finally:
            os.kill(process, signal.SIGCONT)
            self.stopped.append((begin, time.monotonic()))

    @contextmanager
    def _no_descriptors(self) -> Iterator[int]:
        """Reset every connection, and prevent the process from opening files or sockets."""
        process = self._counters.process
        requests = self._requests(self._stage.proxies)
        usual = resource.prlimit(process, resource.RLIMIT_NOFILE)
        resource.prlimit(process, resource.RLIMIT_NOFILE, (_STANDARD_FILES, usual[1]))
        try:
            for proxy in self._stage.proxies:
                proxy.cut_all()
            yield _still(requests)
            self._hold(0.2, 3.0)
        finally:
            resource.prlimit(process, resource.RLIMIT_NOFILE, usual)

    # Shared helpers ----------------------------------------------------------------------------

    def _some_proxies(self) -> list[FaultProxy]:
        """Return one of the proxies, or sometimes all."""
        proxies = self._stage.proxies
        return [self._random.choice(proxies)] if self._random.random() < 0.7 else proxies

    def _unanswered(self, brokers: Sequence[int]) -> list[ProxiedRequest]:
        return self._requests([self._stage.proxies[broker] for broker in brokers])

    def _requests(self, proxies: Sequence[FaultProxy]) -> list[ProxiedRequest]:
        """Wait until one of *proxies* has an unanswered request, and return all such requests."""
        first = self._random.choice(proxies)
        first.wait_for(lambda: first.unanswered, _WAIT)
        found = [proxy.unanswered for proxy in proxies]
        self.deepest = max(self.deepest, *map(len, found))
        return [request for requests in found for request in requests]

    def _restore(self, proxies: Sequence[FaultProxy]) -> None:
        for proxy in proxies:
            proxy.restore()

    def _hold(self, shortest: float, longest: float) -> None:
        time.sleep(self._random.uniform(shortest, longest))

    def _hold_short_or_long(self) -> None:
        """Wait, mostly for less than the request timeout, sometimes beyond every deadline."""
        self._hold(
            *self._random.choice(((0.1, 2.5), (0.1, 2.5), (0.1, 2.5), (4.0, 7.0), (9.0, 11.0)))
        )


def _has_cut(proxy: FaultProxy, count: int) -> bool:
    return proxy.cuts >= count


def _still(requests: Sequence[ProxiedRequest]) -> int:
    return sum(not request.answered for request in requests)
