"""The faults of transactions, beside those of ``chaos/faults.py``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle, islice
from typing import Any

from chaos.faults import Faults
from chaos.stage import Stage, wait_for
from chaos.transactions.audit import Stop, Window
from chaos.transactions.instances import Line, Running
from chaos.transactions.points import init_points, points
from chaos.transactions.readback import GROUP, TRANSACTIONAL_ID, coordinator
from chaos.transactions.watch import APIS
from pykaproducer.testing import ClusterError, Cut

#: How long a fault waits for what it is to interrupt (seconds).
_WAIT = 10.0
#: How long a transaction may take to be committed after a fault (seconds).
_RECOVERY = 30.0
#: How long nothing happens before a fault, on average, so that there are transactions (seconds).
_CALM = 0.3
#: The partitions of Kafka's internal topics, with the settings of KafkaCluster.
_INTERNAL = {TRANSACTIONAL_ID: "__transaction_state", GROUP: "__consumer_offsets"}
_INTERNAL_PARTITIONS = 4

#: Faults of one broker, or of its process. They take long: brokers must start again.
_BROKERS = ("kill -9", "SIGTERM", "SIGSTOP", "all paused", "disk failure")
#: Faults that need several brokers.
_SEVERAL = (
    *("rolling restart", "leader election", "isolated broker"),
    *("old metadata", "metadata holes"),
)
#: Faults in which each EndTxn that was written is answered, so that no outcome may be unknown.
_ANSWERED = (
    *("quota", "small batches", "leader election"),
    *("client sleeps", "client kill -9", "successor killed", "second instance"),
)

COORDINATOR_KINDS = tuple(
    f"{whose} {what}"
    for whose in ("coordinator", "group coordinator")
    for what in ("kill -9", "SIGSTOP", "moved")
)


class _Progress:
    """The counters of the processes under load that :class:`Faults` reads, and one process."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines
        self.process = 0

    def choose(self, line: Line) -> None:
        self.process = line.current.pid

    @property
    def sent(self) -> list[int]:
        return [line.board.sent for line in self._lines]

    @property
    def settled(self) -> list[int]:
        return [line.board.settled for line in self._lines]

    @property
    def delivered(self) -> list[int]:
        return [line.board.delivered for line in self._lines]


class TransactionFaults(Faults):
    """The faults of one act, from one seed."""

    def __init__(
        self,
        stage: Stage,
        lines: Sequence[Line],
        seed: int,
        *,
        client: str,
        tv1: bool,
        group: str | None,
        timeout: float,
    ) -> None:
        self._progress = _Progress(lines)
        super().__init__(stage, self._progress, seed)  # type: ignore[arg-type]
        self._lines, self._line = lines, lines[0]
        self._group, self._timeout = group, timeout
        found = points(client, tv1=tv1, group=group is not None)
        #: How often a round kills the client: the rounds of two seeds in turn pass all points.
        self._kills = -(-len(found) // 2)
        self._points = islice(cycle(found), seed * self._kills % len(found), None)
        self._init_points = init_points(client)
        self.stops: list[Stop] = []
        #: All faults, and when they were over.
        self.windows: list[Window] = []
        #: The points at which the client was killed.
        self.deaths: list[str] = []
        self._internal = {
            kind: Stage(stage.cluster, stage.proxies, topic, _INTERNAL_PARTITIONS)
            for kind, topic in _INTERNAL.items()
        }

    def kinds_in_turn(self, kinds: Sequence[str]) -> Iterator[str]:
        """Yield every kind, the quick ones three times as often as those of brokers."""
        times = dict.fromkeys((*_BROKERS, *_SEVERAL, *COORDINATOR_KINDS), 1)
        times["client kill -9"] = self._kills
        while True:
            turn = [kind for kind in kinds for _ in range(times.get(kind, 3))]
            self._random.shuffle(turn)
            yield from turn

    def strike(self, kind: str) -> int:
        self._hold(0.0, 2 * _CALM)
        self._line = self._random.choice(self._lines)
        self._line.tend()
        self._progress.choose(self._line)
        begin = time.monotonic()
        struck = self.KINDS[kind](self)
        self.windows.append(Window(kind, begin, time.monotonic()))
        return struck

    def stuck(self, kind: str) -> list[Any]:
        """Wait until all replicas are in sync and every id commits a transaction.

        Return the ids that do not; all of them, if the brokers did not recover.
        """
        if kind in {*_BROKERS, *_SEVERAL, *COORDINATOR_KINDS}:
            # The internal topics exist once they are used.
            stages = [self._stage, *(each for each in self._internal.values() if each.leaders())]
            if not all(stage.wait_until_in_sync() for stage in stages):
                return [line.transactional_id for line in self._lines]
            if self._stage.size > 1:
                self._stage.spread_leaders()
        return [line.transactional_id for line in self._lines if not line.commits(_RECOVERY)]

    @property
    def silent(self) -> list[Window]:
        """Return when an answer to EndTxn may have been lost."""
        cuts = {f"{api} {where.value}" for api in APIS if api != "EndTxn" for where in Cut}
        return [each for each in self.windows if each.kind not in {*_ANSWERED, *cuts}]

    # The coordinators --------------------------------------------------------------------------

    def _coordinator(self, kind: int) -> int:
        """Return the broker that coordinates the id, or the group."""
        key = self._line.transactional_id if kind == TRANSACTIONAL_ID else self._group
        assert key is not None, "there is a group"
        ports = [broker.port for broker in self._stage.cluster.brokers if broker.running]
        found: list[int] = []

        def find() -> bool:
            broker = coordinator(ports, kind, key)
            if broker is not None:
                found.append(broker)
            return bool(found)

        if not wait_for(find, _RECOVERY):
            raise ClusterError(f"{key} has no coordinator")
        return found[-1]

    def _kill_coordinator(self, kind: int) -> int:
        broker = self._coordinator(kind)
        requests = self._unanswered([broker])
        self._stage.cluster.kill(broker)
        self._hold(0.2, 2.0)
        self._stage.cluster.restart(broker)
        return len(requests)

    def _pause_coordinator(self, kind: int) -> int:
        return self._pause_brokers([self._coordinator(kind)])

    def _move_coordinator(self, kind: int) -> int:
        requests = self._unanswered(range(self._stage.size))
        moved = self._internal[kind].elect(self._random.randrange(1, self._stage.size))
        return len(requests) if moved else 0

    # Requests of transactions ------------------------------------------------------------------

    def _cut_api(self, where: Cut, api_key: int) -> int:
        proxies = self._stage.proxies
        count = self._random.choice((1, 1, 2, 4))
        before = sum(proxy.cuts for proxy in proxies)

        def struck() -> int:
            return sum(proxy.cuts for proxy in proxies) - before

        try:
            for proxy in proxies:
                proxy.cut(where, count, api_key=api_key)
            if api_key in (APIS["InitProducerId"], APIS["FindCoordinator"]):
                self._line.current.kill()
                self._line.succeed()
            wait_for(lambda: struck() > 0, _WAIT)
            if count > 1:
                self._hold(0.1, 0.5)
            return struck()
        finally:
            self._restore(proxies)

    def _long_black_hole(self) -> int:
        """Hold everything back until the transaction has timed out."""
        requests = self._requests(self._stage.proxies)
        try:
            for proxy in self._stage.proxies:
                proxy.black_hole()
            self._hold_past_the_timeout()
        finally:
            self._restore(self._stage.proxies)
        return len(requests)

    # The processes under load ------------------------------------------------------------------

    def _hold_past_the_timeout(self) -> None:
        self._hold(self._timeout + 0.3, self._timeout + 2.0)

    def _stop_past_the_timeout(self) -> int:
        """Stop a process, mostly until its transaction has timed out."""
        requests = self._requests(self._stage.proxies)
        with self._stopped(self._line.current):
            if self._random.random() < 0.3:
                self._hold(0.1, 1.0)
            else:
                self._hold_past_the_timeout()
        return len(requests)

    @contextmanager
    def _stopped(self, running: Running) -> Iterator[None]:
        begin = time.monotonic()
        running.stop()
        try:
            yield
        finally:
            running.resume()
            self.stops.append(Stop(begin, time.monotonic(), running.pid))

    def _sleep(self) -> int:
        """Have the program sleep in a transaction until that has timed out."""
        seconds = self._random.uniform(self._timeout + 0.3, self._timeout + 1.5)
        begun = self._line.board.begun
        self._line.current.command(do="sleep", seconds=seconds)
        wait_for(lambda: self._line.board.begun > begun + 1, seconds + _WAIT)
        return 1

    def _kill_client(self) -> int:
        """Kill a process at a point of a transaction; a successor takes over."""
        point = next(self._points)
        running = self._line.current
        running.command(do="die", at=point)
        died = running.dies(_WAIT)
        if died:
            self.deaths.append(point)
        else:
            running.kill()
        if self._random.random() < 0.3:
            self._hold_past_the_timeout()
        self._line.succeed()
        return int(died)

    def _kill_successor(self) -> int:
        """Kill a process at any time, and its successor while that initializes."""
        self._line.current.kill()
        point = self._random.choice(self._init_points or [None])  # type: ignore[list-item]
        successor = self._line.succeed(die_at=point)
        died = successor.dies(_WAIT if point else self._random.uniform(0.2, 1.0))
        if died and point:
            self.deaths.append(point)
        elif not died:
            successor.kill()
        self._line.succeed()
        return 1 if died or not point else 0

    def _zombie(self) -> int:
        """Stop a process, have a successor take over, and continue the first one."""
        requests, first = self._requests(self._stage.proxies), self._line.current
        taken_over = self._take_over(first)
        self._leave(first)
        return len(requests) if taken_over else 0

    def _zombie_in_doubt(self) -> int:
        """The same after its EndTxn was cut: the process may or may not learn the outcome."""
        proxies, first = self._stage.proxies, self._line.current
        before = sum(proxy.cuts for proxy in proxies)
        try:
            where = self._random.choice(list(Cut))
            for proxy in proxies:
                proxy.cut(where, api_key=APIS["EndTxn"])
            wait_for(lambda: sum(proxy.cuts for proxy in proxies) > before, _WAIT)
        finally:
            self._restore(proxies)
        struck = sum(proxy.cuts for proxy in proxies) - before
        taken_over = self._take_over(first)
        self._leave(first)
        return struck if taken_over else 0

    def _take_over(self, first: Running) -> bool:
        """Stop a process while a successor commits something; return whether it has."""
        with self._stopped(first):
            self._line.succeed()
            taken_over = self._line.commits(_WAIT)
            if self._random.random() < 0.3:
                self._hold_past_the_timeout()
        return taken_over

    def _second_instance(self) -> int:
        """Start a second process with the same id."""
        first = self._line.current
        self._line.succeed()
        committed = self._line.commits(_WAIT)
        self._leave(first)
        return int(committed)

    def _leave(self, first: Running) -> None:
        """Wait until the process that was superseded has ended by itself."""
        wait_for(lambda: first.ended, _WAIT)

    #: In the order of the table in the documentation.
    KINDS = {
        **Faults.KINDS,
        "client SIGSTOP": _stop_past_the_timeout,
        "client sleeps": _sleep,
        "client kill -9": _kill_client,
        "successor killed": _kill_successor,
        "zombie": _zombie,
        "zombie in doubt": _zombie_in_doubt,
        "second instance": _second_instance,
        "long black hole": _long_black_hole,
        "coordinator kill -9": partial(_kill_coordinator, kind=TRANSACTIONAL_ID),
        "coordinator SIGSTOP": partial(_pause_coordinator, kind=TRANSACTIONAL_ID),
        "coordinator moved": partial(_move_coordinator, kind=TRANSACTIONAL_ID),
        "group coordinator kill -9": partial(_kill_coordinator, kind=GROUP),
        "group coordinator SIGSTOP": partial(_pause_coordinator, kind=GROUP),
        "group coordinator moved": partial(_move_coordinator, kind=GROUP),
    }
    for _name, _number in APIS.items():
        for _where in Cut:
            KINDS[f"{_name} {_where.value}"] = partial(_cut_api, where=_where, api_key=_number)


TRANSACTION_KINDS = tuple(TransactionFaults.KINDS)


def kinds_for(client: str, *, brokers: int, tv1: bool, group: bool) -> list[str]:
    """Return the kinds of faults that can happen to *client*."""
    absent = {
        "no memory",
        "renewed files",
        *(() if brokers > 1 else (*_SEVERAL, "coordinator moved", "group coordinator moved")),
        # A broker alone cannot continue without a disk.
        *(() if brokers > 1 else ("disk failure",)),
    }
    for api in ("AddPartitionsToTxn", "AddOffsetsToTxn"):
        if not tv1 or (api == "AddOffsetsToTxn" and not group):
            absent |= {f"{api} {where.value}" for where in Cut}
    if client != "pykaproducer" or tv1 or brokers == 1:
        # One broker ends a transaction at once, so that it need not be asked.
        absent |= {f"DescribeTransactions {where.value}" for where in Cut}
    if not group:
        absent |= {f"TxnOffsetCommit {where.value}" for where in Cut}
        absent |= {kind for kind in COORDINATOR_KINDS if kind.startswith("group")}
    return [kind for kind in TRANSACTION_KINDS if kind not in absent]
