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
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from chaos import altered, secured, shortage
from chaos.ledger import Counters
from chaos.stage import Stage, wait_for
from pykaproducer.testing import ClusterError, Cut, FaultProxy
from pykaproducer.testing.proxy import ProxiedRequest

#: How long to wait for a Produce request to interrupt (seconds).
_WAIT = 5.0
#: How long the producer may take to deliver again after the fault has ended (seconds).
_RECOVERY = 30.0
#: Standard input, output and error: with this limit a process cannot open anything else.
_STANDARD_FILES = 3


def _still(requests: Sequence[ProxiedRequest]) -> int:
    """Return how many of *requests* have no answer now."""
    return sum(not request.answered for request in requests)


class Faults:
    """The faults of one act, from one seed.

    Each kind is a method: it injects the fault, reverts it, and returns the number of in-flight
    batches affected.
    """

    def __init__(
        self, stage: Stage, counters: Counters, seed: int, directory: Path = Path()
    ) -> None:
        #: The directory of the process under load.
        self._directory = directory
        self._stage = stage
        self._counters = counters
        self._random = random.Random(seed)
        #: When the process under load was stopped, and when it continued (monotonic seconds).
        self.stopped: list[tuple[float, float]] = []
        #: The largest number of in-flight Produce requests seen at one broker.
        self.deepest = 0

    def kinds_in_turn(self, kinds: Sequence[str]) -> Iterator[str]:
        """Yield every kind once, in an order from the seed; then again in another order."""
        while True:
            yield from self._random.sample(kinds, len(kinds))

    def strike(self, kind: str) -> int:
        """Inject one fault until its end; return the number of in-flight batches affected."""
        # Without the topic that is always rejected.
        mine = slice(self._stage.partitions)
        outstanding = sum(self._counters.sent[mine]) - sum(self._counters.settled[mine])
        struck = self.KINDS[kind](self)
        return struck if outstanding > 0 else 0

    def stuck(self, kind: str) -> list[Any]:
        """Wait, after a fault, until replicas are in sync and all partitions accept messages.

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

    def _kill(self) -> int:
        broker = self._some_broker()
        requests = self._unanswered([broker])
        self._stage.cluster.kill(broker)
        struck = _still(requests)
        self._hold(0.2, 2.0)
        self._stage.cluster.restart(broker)
        return struck

    def _terminate(self) -> int:
        broker = self._some_broker()
        requests = self._unanswered([broker])
        self._stage.cluster.terminate(broker)
        self._hold(0.2, 2.0)
        self._stage.cluster.restart(broker)
        return len(requests)

    def _roll(self) -> int:
        """Restart every broker, one after the other."""
        struck = []
        for broker in self._random.sample(range(self._stage.size), self._stage.size):
            struck.append(len(self._unanswered([broker])))
            self._stage.cluster.restart(broker)
            self._stage.wait_until_in_sync()
            self._stage.spread_leaders()
        return min(struck)

    def _pause(self) -> int:
        """Pause a broker, sometimes beyond its session timeout (another leads) and the deadline."""
        return self._pause_brokers([self._some_broker()])

    def _pause_all(self) -> int:
        return self._pause_brokers(range(self._stage.size))

    def _isolate(self) -> int:
        """Isolate one broker from controllers and followers by stopping the two others."""
        left = self._some_broker()
        return self._pause_brokers([each for each in range(self._stage.size) if each != left])

    def _pause_brokers(self, brokers: Sequence[int]) -> int:
        requests = self._unanswered(brokers)
        cluster = self._stage.cluster
        try:
            for broker in brokers:
                cluster.pause(broker)
            struck = _still(requests)
            self._hold_short_or_long()
        finally:
            for broker in brokers:
                with suppress(ClusterError):
                    cluster.resume(broker)
        return struck

    def _elect(self) -> int:
        requests = self._unanswered(range(self._stage.size))
        moved = self._stage.elect(self._random.randrange(1, self._stage.size))
        return len(requests) if moved else 0

    def _fail_disk(self) -> int:
        """Fail one of a broker's two disks: its partitions move away, the others stay."""
        broker = self._some_broker()
        requests = self._unanswered([broker])
        self._stage.cluster.fail_disk(broker)
        self._hold(3.0, 6.0)
        self._stage.cluster.restart(broker)
        return len(requests)

    # The network -------------------------------------------------------------------------------

    def _cut(self, where: Cut) -> int:
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
            return sum(proxy.cuts for proxy in proxies) - sum(before)
        finally:
            self._restore(proxies)

    def _reset(self) -> int:
        proxies = self._some_proxies()
        requests = self._requests(proxies)
        for proxy in proxies:
            proxy.cut_all()
        return _still(requests)

    def _delay(self) -> int:
        """Delay data, sometimes longer than the request timeout: requests given up still arrive."""
        seconds = self._random.choice((0.02, 0.1, 0.3, 1.0, 4.0))
        hold = partial(self._hold, seconds, seconds + 3.0)
        return self._change(lambda proxy: proxy.delay(seconds), hold, len)

    def _throttle(self) -> int:
        rate = self._random.choice((1_000, 10_000, 100_000))
        return self._change(lambda proxy: proxy.throttle(rate), partial(self._hold, 0.5, 4.0), len)

    def _black_hole(self) -> int:
        return self._change(FaultProxy.black_hole, self._hold_short_or_long)

    def _refuse(self) -> int:
        return self._change(FaultProxy.refuse, partial(self._hold, 0.2, 3.0))

    def _lie(self, *, old: bool) -> int:
        """Elect leaders while some brokers name those from before, or answer with holes."""
        stage, proxies = self._stage, self._some_proxies()
        requests = self._requests(stage.proxies)
        change = altered.holes(stage.topic, self._random.randrange(2**32))
        if old:
            change = altered.old_view(stage.topic, stage.view())
        try:
            for proxy in proxies:
                proxy.alter(altered.METADATA, change)
            stage.elect(self._random.randrange(1, stage.size))
            self._hold(0.5, 4.0)
        finally:
            for proxy in proxies:
                proxy.alter(altered.METADATA, None)
        return len(requests)

    def _change(
        self,
        change: Callable[[FaultProxy], None],
        hold: Callable[[], None],
        count: Callable[[Sequence[ProxiedRequest]], int] = _still,
    ) -> int:
        """Let some proxies behave in another way while *hold* waits."""
        proxies = self._some_proxies()
        requests = self._requests(proxies)
        try:
            for proxy in proxies:
                change(proxy)
            struck = count(requests)
            hold()
        finally:
            self._restore(proxies)
        return struck

    # Rejections by a broker ----------------------------------------------------------------------

    def _quota(self) -> int:
        rate = self._random.choice((5_000.0, 20_000.0, 50_000.0))
        return self._limit(self._stage.quota, rate, 5.0)

    def _throttle_all(self) -> int:
        """Have the brokers throttle requests of every kind, by up to a second each."""
        limit = partial(self._stage.quota, key="request_percentage")
        return self._limit(limit, self._random.choice((0.01, 0.1, 1.0)), 5.0)

    def _small_batches(self) -> int:
        """Limit the topic to batches of a few messages: larger ones are rejected and split."""
        return self._limit(self._stage.largest_batch, self._random.choice((500, 1000, 3000)), 3.0)

    def _limit(self, limit: Callable[[Any], None], value: float, longest: float) -> int:
        requests = self._requests(self._stage.proxies)
        try:
            limit(value)
            self._hold(0.5, longest)
        finally:
            limit(None)
        return len(requests)

    # The process under load ----------------------------------------------------------------------

    def _stop_client(self) -> int:
        """Stop the process, sometimes beyond every timeout: much of its backlog then expires."""
        requests = self._requests(self._stage.proxies)
        process = self._counters.process
        begin = time.monotonic()
        os.kill(process, signal.SIGSTOP)
        try:
            self._hold(*self._random.choice(((0.1, 2.5), (4.0, 7.0), (9.0, 11.0))))
        finally:
            os.kill(process, signal.SIGCONT)
            self.stopped.append((begin, time.monotonic()))
        return len(requests)

    def _no_descriptors(self) -> int:
        """Reset every connection, and prevent the process from opening files or sockets."""
        process = self._counters.process
        requests = self._requests(self._stage.proxies)
        usual = resource.prlimit(process, resource.RLIMIT_NOFILE)
        resource.prlimit(process, resource.RLIMIT_NOFILE, (_STANDARD_FILES, usual[1]))
        try:
            for proxy in self._stage.proxies:
                proxy.cut_all()
            struck = _still(requests)
            self._hold(0.2, 3.0)
        finally:
            resource.prlimit(process, resource.RLIMIT_NOFILE, usual)
        return struck

    def _no_memory(self) -> int:
        """Refuse the process memory again and again."""
        requests = self._requests(self._stage.proxies)
        (self._directory / shortage.FILE).touch()
        self._hold(0.5, 3.0)
        (self._directory / shortage.FILE).unlink()
        return len(requests)

    def _renew(self) -> int:
        """Replace the authority, and all certificates, the client's before or after the brokers'.

        Sometimes a file of the client is incomplete for a while.
        """
        proxies: list[Any] = self._stage.proxies
        requests = self._requests(proxies)
        context, files = secured.issue(self._directory)
        half = {name: files[name][:500] for name in self._random.sample([*files], 1)}
        write = partial(secured.write, self._directory)
        steps = [partial(write, files), *(partial(proxy.secure, context) for proxy in proxies)]
        self._random.shuffle(steps)
        for step in [partial(write, half), *steps][self._random.randrange(2) :]:
            step()
            for proxy in self._some_proxies():
                proxy.cut_all()
            self._hold(0.0, 1.0)
        return len(requests)

    # Shared helpers ----------------------------------------------------------------------------

    def _some_broker(self) -> int:
        return self._random.randrange(self._stage.size)

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

    #: The methods, by kind.
    KINDS: ClassVar[dict[str, Callable[[Any], int]]] = {
        "kill -9": _kill,
        "SIGTERM": _terminate,
        "SIGSTOP": _pause,
        "all paused": _pause_all,
        "rolling restart": _roll,
        "leader election": _elect,
        "cut before": partial(_cut, where=Cut.BEFORE),
        "cut within": partial(_cut, where=Cut.WITHIN),
        "cut after": partial(_cut, where=Cut.AFTER),
        "reset": _reset,
        "delay": _delay,
        "throttle": _throttle,
        "black hole": _black_hole,
        "refuse": _refuse,
        "disk failure": _fail_disk,
        "isolated broker": _isolate,
        "quota": _quota,
        "small batches": _small_batches,
        "client SIGSTOP": _stop_client,
        "no descriptors": _no_descriptors,
        "no memory": _no_memory,
        "old metadata": partial(_lie, old=True),
        "metadata holes": partial(_lie, old=False),
        "all throttled": _throttle_all,
        "renewed files": _renew,
    }


KINDS = tuple(Faults.KINDS)


def _has_cut(proxy: FaultProxy, count: int) -> bool:
    return proxy.cuts >= count
