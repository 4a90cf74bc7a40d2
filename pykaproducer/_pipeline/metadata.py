"""Metadata: one per producer. Knows the cluster, and asks for the producer id.

Owns: its own connection to one server of the cluster, the view of the cluster (an immutable
snapshot: the other stages read the reference without a lock), and the producer id.

Guarantees: one request at a time; calls that come in the meantime are combined into the next one.
Every stage that waits is notified of every new view. Never gives up: servers are tried in turn,
with backoff, alternating the brokers of the view and the configured ``bootstrap_servers``. If a
server's view is older than ours, another one is asked.
"""

from __future__ import annotations

import _thread
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pykaproducer import _threads as threads
from pykaproducer._chance import chance
from pykaproducer._machines.cluster import ClusterView, LeaderHint, led_by_others
from pykaproducer._machines.news import news
from pykaproducer._machines.refresh import Distrust, Refresh, candidates
from pykaproducer._machines.sequencing import ProducerId
from pykaproducer._net.connection import Answered, Request
from pykaproducer._pipeline.connected import Connected
from pykaproducer._pipeline.meter import Link
from pykaproducer._pipeline.producer_id import ProducerIds
from pykaproducer._pipeline.trouble import Trouble
from pykaproducer._pipeline.worker import Worker, wake_all
from pykaproducer._texts import place
from pykaproducer._wire import WireError
from pykaproducer._wire.error_codes import ErrorCode
from pykaproducer._wire.kafka_python import (
    ApiKey,
    decode_init_producer_id,
    decode_metadata,
    init_producer_id_request,
    metadata_request,
)
from pykaproducer.config import Config
from pykaproducer.errors import MetadataTimeoutError

log = logging.getLogger("pykaproducer.metadata")


@dataclass(frozen=True, slots=True)
class ViewChanged:
    """There is a new view of the cluster."""

    #: Partitions that have another leader, for stages that serve many partitions.
    moved: frozenset[tuple[str, int]] = frozenset()


@dataclass(frozen=True, slots=True)
class Want:
    """The view is out of date; that of *topics* alone, if messages wait for them.

    *waiter* is notified of the next view. *anew*: what is known of the topics is wrong.
    """

    topics: tuple[str, ...] = ()
    waiter: Worker | None = None
    anew: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """The leader of a partition, by our view, has refused a batch."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Forget:
    """*topic* has long been unused; *tell* is called when it is forgotten."""

    topic: str
    tell: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Hints:
    """Partition leaders that a broker has named in error responses (KIP-951)."""

    hints: tuple[LeaderHint, ...]


@dataclass(frozen=True, slots=True)
class WantProducerId:
    """*waiter* cannot seal a batch without a producer id; one that it has had will not do."""

    waiter: Worker
    instead_of: int | None


Item = Want | Refused | Forget | Hints | WantProducerId


class Metadata(Connected):
    """Refreshes the view of the cluster: on request, on error, by age."""

    keeps_threads = True

    # Set by wiring, before the first item.
    trouble: Trouble
    dispatcher: Worker
    broker_workers: Callable[[], tuple[Any, ...]]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        #: Replaced whole; read from any thread.
        self.view = ClusterView()
        #: When the cluster answered last (monotonic seconds); None: never yet.
        self.refreshed: float | None = None
        self._waiters: dict[Worker, None] = {}
        self._distrust = Distrust()
        self._asked_at = 0.0
        # The server wants to be left alone until then: a quota was exceeded (KIP-219).
        self._not_before_throttle = 0.0
        self._candidates: list[tuple[str, int]] = []
        # The server that is asked, and the last one that was given up for another.
        self._server: tuple[str, int] | None = None
        self._left: tuple[str, int] | None = None
        self._leaving = False
        # Topics that the log is to tell of if they stay away: see news().
        self._missing: dict[str, int] = {}
        # What the log has said since the cluster answered last: each server has its own reason,
        # and they take turns.
        self._told: set[str] = set()
        # Locks of threads that wait in partitions_for().
        self._lookers: list[Any] = []

    def configure(self, config: Config, trouble: Trouble) -> None:
        """Set up the stage. Called by wiring, before the first item."""
        self.config = config
        self.trouble = trouble
        self.ids = ProducerIds(config, self.clock, trouble)
        self._refresh = Refresh(
            max_age=config.metadata_max_age_ms / 1000,
            backoff_first=config.retry_backoff_ms / 1000,
            backoff_most=config.retry_backoff_max_ms / 1000,
        )

    # Asked by other threads --------------------------------------------------------------------

    @property
    def producer_id(self) -> ProducerId | None:
        """Return the id for partitions that have none yet."""
        return self.ids.current

    def want(self) -> None:
        """Ask for a new view: the present one is out of date."""
        self.put(Want())

    def want_topics(self, *topics: str, waiter: Worker | None = None, anew: bool = False) -> None:
        """Ask for *topics*, because messages wait for them.

        The dispatcher is notified when a view comes, and so is *waiter*, once. *anew*: the view of
        them is wrong, and so may be the answer to a request under way.
        """
        self.put(Want(topics, waiter, anew))

    def tell(self, waiter: Worker) -> None:
        """Notify *waiter*, once, when a view comes, without asking for one."""
        self.put(Want(waiter=waiter))

    def refused(self, topic: str, partition: int) -> None:
        """Report that a partition's leader, by our view, does not lead it or keeps failing."""
        self.put(Refused(topic, partition))

    def forget(self, topic: str, tell: Callable[[str], None]) -> None:
        """Forget the unused *topic*; call *tell* when the view no longer has it."""
        self.put(Forget(topic, tell))

    def hint(self, hints: Iterable[LeaderHint]) -> None:
        """Pass on which leaders a broker has named."""
        self.put(Hints(tuple(hints)))

    def want_producer_id(self, waiter: Worker, *, instead_of: int | None = None) -> None:
        """*waiter* is told, once, when a producer id is there; *instead_of* will not do."""
        self.put(WantProducerId(waiter, instead_of))

    def partitions_for(
        self, topic: str, deadline: float, check_open: Callable[[], object]
    ) -> set[int]:
        """Wait for the metadata of *topic*; *check_open* as for :meth:`_wait_for`."""

        def count() -> int:
            view = self.view.topics.get(topic)
            return 0 if view is None else view.partitions

        partitions = self._wait_for(count, lambda: self.want_topics(topic), deadline, check_open)
        if partitions:
            return set(range(partitions))
        reason = self.trouble.why(topic, None) or "no answer"
        raise MetadataTimeoutError(f"{place(topic)}: no metadata within max_block_ms: {reason}")

    def wait_for_brokers(self, deadline: float, check_open: Callable[[], object]) -> bool:
        """Wait until the cluster has answered; false if it has not by *deadline*."""
        return self._wait_for(lambda: len(self.view.brokers), self.want, deadline, check_open) > 0

    def _wait_for(
        self,
        count: Callable[[], int],
        ask: Callable[[], object],
        deadline: float,
        check_open: Callable[[], object],
    ) -> int:
        """Wait until *count* finds some in the view, *ask* for them; how many, 0 at *deadline*.

        *check_open* raises when there is nothing to wait for any more. No view is missed: (1) we
        enter our lock, (2) we look at the view; the stage (1) replaces the view, (2) releases
        every lock.
        """
        while True:
            lock = _thread.allocate_lock()
            lock.acquire()
            self._lookers.append(lock)
            try:
                check_open()
                if found := count():
                    return found
                ask()
                if not threads.acquire(self.clock, lock, deadline) and (
                    self.clock.monotonic() >= deadline
                ):
                    return 0
            finally:
                self._lookers.remove(lock)

    def wake_lookers(self) -> None:
        """Whoever waits in one of these two looks again."""
        wake_all(self._lookers)

    # The stage -----------------------------------------------------------------------------------

    def in_place(self, item: Item) -> bool:
        # The batch that was refused goes again at once: the view should know of its leader first.
        return isinstance(item, Hints)

    def step(self, item: Item) -> None:
        match item:
            case WantProducerId():
                self.ids.want(item.waiter, item.instead_of)
            case Hints():
                view = self.view.with_leaders(item.hints)
                if view is not self.view:
                    self._show(view)
            case Refused():
                self._distrust.refused(item.topic, item.partition)
                self._refresh.want(item.topic, anew=True)
            case Forget():
                self._forget(item)
            case Want():
                self._want(item)

    def _want(self, item: Want) -> None:
        refresh = self._refresh
        if item.waiter is not None:
            self._waiters[item.waiter] = None
        elif not item.topics:
            refresh.want()
        for topic in item.topics:
            # 1. A partition's worker sees no leader in the view; 2. a view with one is shown;
            # 3. this item comes. Nothing is lacking, and still the worker must be notified.
            anew = item.waiter is not None and topic not in refresh.lacking
            refresh.want(topic, anew=item.anew or anew)

    def _forget(self, item: Forget) -> None:
        self._refresh.forget(item.topic)
        # 1. The topic's partitions have counted their batches under the current id; 2. with the
        # topic that count is lost; 3. it is used again. Counted from 0 under the same id, a new
        # batch would be taken for an old one's duplicate.
        self.ids.current = None
        self._distrust.forget(item.topic)
        self._missing.pop(item.topic, None)
        self.view = self.trouble.view = self.view.without(item.topic)
        item.tell(item.topic)

    def wants_connection(self) -> bool:
        due = self._refresh.next_due()
        return self.ids.is_wanted or (due is not None and due <= self.clock.monotonic())

    def deadline(self) -> float | None:
        found = [due for due in (self._refresh.next_due(), self.ids.due()) if due is not None]
        if not found:
            return None
        due = max(min(found), self._not_before_throttle)
        if self.ready or due > self.clock.monotonic():
            return due
        return None  # it is due, and goes out as soon as there is a connection

    def on_time(self, now: float) -> None:
        """turn() sends what is due."""

    def turn(self) -> None:
        now = self.clock.monotonic()
        if not self.ready or now < self._not_before_throttle:
            return
        due = self._refresh.next_due()
        if due is not None and due <= now:
            self._ask_for_topics(now)
        due = self.ids.due()
        if due is not None and due <= now:
            self._ask_for_id()

    def _ask_for_topics(self, now: float) -> None:
        asked = self._refresh.send(now)
        self._asked_at = now
        create = asked.may_create and self.config.allow_auto_create_topics
        self._ask(
            ApiKey.METADATA,
            lambda version, correlation_id: [
                metadata_request(
                    version, correlation_id, self.config.client_id, asked.topics, create
                )
            ],
        )

    def _ask_for_id(self) -> None:
        if (why := self.refuses(ApiKey.INIT_PRODUCER_ID)) is not None:
            # Not submitted: the connection would end, and the view would grow old.
            host, port = self._server or ("", 0)
            self.ids.unavailable(
                f"the broker at {host}:{port} gives no producer id: {why}; set "
                f"enable_idempotence=False, or upgrade the broker"
            )
            return
        self.ids.sent()
        self._ask(
            ApiKey.INIT_PRODUCER_ID,
            lambda version, correlation_id: [
                init_producer_id_request(version, correlation_id, self.config.client_id)
            ],
        )

    def _ask(self, api: int, encode: Callable[[int, int], list[Any]]) -> None:
        def counted(version: int, correlation_id: int) -> list[Any]:
            buffers = encode(version, correlation_id)
            self.count_outgoing(sum(map(len, buffers)))
            return buffers

        deadline = self.clock.monotonic() + self.config.request_timeout_ms / 1000
        self.submit(Request(api, counted, deadline=deadline, expects_answer=True, tag=api))

    # The connection ------------------------------------------------------------------------------

    def link(self) -> Link:
        return self.meter.metadata

    def next_address(self) -> tuple[str, int] | str:
        if not self._candidates:
            self._candidates = self._servers(self.view)
        self._server = self._candidates.pop(0)
        return self._server

    def _servers(self, view: ClusterView) -> list[tuple[str, int]]:
        known = [(b.host, b.port) for b in view.brokers.values()]
        chance.shuffle(known)
        configured = list(self.config.bootstrap_servers)
        chance.shuffle(configured)
        return candidates(known, configured, self._left)

    def on_lost(self, reason: str, unanswered: list[Request], unwritten: list[Request]) -> None:
        needed = unanswered or self._items or self._refresh.under_way or self.wants_connection()
        self.ids.lost()
        self._not_before_throttle = 0.0
        if self._refresh.under_way:
            self._refresh.failed(self.clock.monotonic(), chance.random())
        if self._leaving or not needed:
            # It is not needed: brokers close connections that have long been idle.
            log.debug("%s", reason)
        else:
            self.trouble.cluster = reason
            if reason not in self._told and not self.stopping:
                self._told.add(reason)
                log.warning("%s; trying again", reason)
        if self._candidates:
            self.next_server_at_once()

    def _leave(self, reason: str, servers: list[tuple[str, int]]) -> None:
        """Ask one of *servers* from now on, if there is another."""
        others = [server for server in servers if server != self._server]
        if not others:
            return
        self._left = self._server
        self._candidates = others
        if self._server is not None:
            log.info("%s:%d: %s; asking another server", *self._server, reason)
        self._leaving = True
        self.drop(reason)
        self._leaving = False
        self._refresh.want()

    def on_answer(self, event: Answered) -> None:
        self._candidates = []
        self.trouble.cluster = None
        if self._told:
            log.info("the cluster answers again")
            self._told.clear()
        try:
            if event.request.api_key == ApiKey.METADATA:
                self._metadata_came(event)
            else:
                answer = decode_init_producer_id(event.request.version, event.payload)
                self._throttled(answer.throttle_ms)
                self.ids.came(answer)
        except WireError as error:
            self.drop(f"an answer that makes no sense: {error}")
        except MemoryError:
            self.drop("this process has no memory for the cluster's answer")

    def _throttled(self, throttle_ms: int) -> None:
        if throttle_ms > 0:
            self._not_before_throttle = self.clock.monotonic() + throttle_ms / 1000

    def _metadata_came(self, event: Answered) -> None:
        began = self.clock.thread_time()
        answer = decode_metadata(event.request.version, event.payload)
        self._throttled(answer.throttle_ms)
        if answer.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
            # The brokers of the view belong to another cluster by now (KIP-1102).
            self._refresh.failed(self.clock.monotonic(), chance.random())
            self._leave("it asks to begin with bootstrap_servers", self._servers(ClusterView()))
            return
        refresh, old = self._refresh, self.view
        # Without topics that were forgotten since, or were not asked for.
        answer = answer.only(refresh.asked)
        view = old.with_answer(answer, self._asked_at)
        seen = {topic.name for topic in answer.topics if view.topics[topic.name].partitions}
        there = {
            topic.name
            for topic in answer.topics
            if not topic.error_code
            and topic.partitions
            and all(p.leader_id >= 0 for p in topic.partitions)
        }
        asked = set(refresh.asked)
        self._show(view)
        self.refreshed = self.clock.monotonic()
        cost = self.clock.thread_time() - began
        refresh.succeeded(self.refreshed, chance.random(), there=there, seen=seen, cost=cost)
        unhelpful = self._distrust.answered(old, view, asked)
        if view.is_out_of_date(asked):
            self._leave("its view of the cluster is older than ours", self._servers(view))
        elif unhelpful:
            self._leave("partitions are refused by the leaders it names", self._servers(view))

    def _show(self, view: ClusterView) -> None:
        """There is a new view: everybody who may wait for one looks at it."""
        old = self.view
        for is_bad, text in news(old, view, self._missing):
            log.log(logging.WARNING if is_bad else logging.INFO, "%s", text)
        self.view = self.trouble.view = view
        waiters, self._waiters = list(self._waiters), {}
        for worker in (self.dispatcher, *waiters):
            worker.put(ViewChanged())
        changed = ViewChanged(led_by_others(old, view))
        for worker in self.broker_workers():
            worker.put(changed)
        self.wake_lookers()
