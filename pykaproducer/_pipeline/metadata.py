"""Metadata: one per producer. Knows the cluster, and asks for the producer id.

Owns: its own connection to one server of the cluster, the view of the cluster (an immutable
snapshot: the other stages read the reference without a lock), and the producer id.

Guarantees: one request at a time; whoever asks meanwhile is served by the next one. Everybody who
waits is told of every new view. Never gives up: servers are tried in turn, with backoff, the known
brokers first and the configured ``bootstrap_servers`` after them, again and again.
"""

from __future__ import annotations

import _thread
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pykaproducer import _threads as threads
from pykaproducer._chance import chance
from pykaproducer._machines.cluster import Backoff, ClusterView, Refresh
from pykaproducer._machines.news import news
from pykaproducer._machines.sequencing import ProducerId
from pykaproducer._net.connection import Answered, Request
from pykaproducer._pipeline.connected import Connected
from pykaproducer._pipeline.meter import Link
from pykaproducer._pipeline.trouble import Trouble
from pykaproducer._pipeline.worker import Worker, wake_all
from pykaproducer._texts import code_text, place
from pykaproducer._wire import WireError
from pykaproducer._wire.error_codes import ErrorCode
from pykaproducer._wire.kafka_python import (
    ApiKey,
    BrokerAddress,
    decode_init_producer_id,
    decode_metadata,
    init_producer_id_request,
    metadata_request,
)
from pykaproducer.errors import MetadataTimeoutError

log = logging.getLogger("pykaproducer.metadata")


@dataclass(frozen=True, slots=True)
class ViewChanged:
    """There is a new view of the cluster."""


@dataclass(frozen=True, slots=True)
class ProducerIdCame:
    """The producer id is there."""


@dataclass(frozen=True, slots=True)
class Want:
    """Somebody needs a (new) view; of *topic* too, and *waiter* wants to be told of it."""

    topic: str | None = None
    waiter: Worker | None = None


@dataclass(frozen=True, slots=True)
class Hint:
    """A broker has said, beside an error, who leads a partition (KIP-951)."""

    topic: str
    partition: int
    leader: BrokerAddress


@dataclass(frozen=True, slots=True)
class WantProducerId:
    """*waiter* cannot seal a batch without a producer id; one that it has had will not do."""

    waiter: Worker
    instead_of: int | None


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
        self.producer_id: ProducerId | None = None
        self._refresh: Refresh | None = None
        self._id_wanted_by: list[Worker] = []
        self._id_under_way = False
        self._id_not_before = 0.0
        self._id_backoff: Backoff | None = None
        self._waiters: dict[Worker, None] = {}
        self._candidates: list[tuple[str, int]] = []
        # Topics that the log is to tell of if they stay away: see news().
        self._missing: dict[str, int] = {}
        # What the log has said since the cluster answered last: each server has its own reason,
        # and they take turns.
        self._told: set[str] = set()
        # Locks of threads that wait in partitions_for().
        self._lookers: list[Any] = []

    # Asked by other threads --------------------------------------------------------------------

    def want(self) -> None:
        """A view is out of date."""
        self.put(Want())

    def hint(self, topic: str, partition: int, leader: BrokerAddress) -> None:
        """A broker says that *leader* leads a partition."""
        self.put(Hint(topic, partition, leader))

    def want_topic(self, topic: str) -> None:
        """Messages wait for *topic*; the dispatcher is told when a view comes."""
        self.put(Want(topic))

    def want_leader(self, topic: str, waiter: Worker) -> None:
        """A partition of *topic* has no leader; *waiter* is told, once, when a view comes."""
        self.put(Want(topic, waiter))

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

        partitions = self._wait_for(count, lambda: self.want_topic(topic), deadline, check_open)
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

    def in_place(self, item: Want | Hint | WantProducerId) -> bool:
        # The batch that was refused goes again at once: the view should know of its leader first.
        return isinstance(item, Hint)

    def step(self, item: Want | Hint | WantProducerId) -> None:
        if isinstance(item, WantProducerId):
            if self.producer_id is not None and self.producer_id.producer_id == item.instead_of:
                self.producer_id = None
            if self.producer_id is not None:
                item.waiter.put(ProducerIdCame())
            else:
                self._id_wanted_by.append(item.waiter)
            return
        if isinstance(item, Hint):
            view = self.view.with_leader(item.topic, item.partition, item.leader)
            if view is not self.view:
                self._show(view)
            return
        if item.waiter is not None:
            self._waiters[item.waiter] = None
        refresh = self._refreshing()
        # A partition without leader is asked for again as it is, with backoff.
        if item.waiter is None or item.topic in refresh.known:
            refresh.want(None if item.waiter is not None else item.topic)

    def wants_connection(self) -> bool:
        due = self._refreshing().next_due()
        return bool(self._id_wanted_by) or (due is not None and due <= self.clock.monotonic())

    def deadline(self) -> float | None:
        due = self._refreshing().next_due()
        if self._id_wanted_by and not self._id_under_way:
            due = self._id_not_before if due is None else min(due, self._id_not_before)
        if due is None or self.ready or due > self.clock.monotonic():
            return due
        return None  # it is due, and goes out as soon as there is a connection

    def on_time(self, now: float) -> None:
        """turn() sends what is due."""

    def turn(self) -> None:
        if not self.ready:
            return
        now = self.clock.monotonic()
        refresh = self._refreshing()
        due = refresh.next_due()
        if due is not None and due <= now:
            topics = refresh.send(now)
            self._ask(
                ApiKey.METADATA,
                lambda version, correlation_id: [
                    metadata_request(
                        version,
                        correlation_id,
                        self.config.client_id,
                        topics,
                        self.config.allow_auto_create_topics,
                    )
                ],
            )
        if self._id_wanted_by and not self._id_under_way and self._id_not_before <= now:
            self._id_under_way = True
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
            known = [(b.host, b.port) for b in self.view.brokers.values()]
            chance.shuffle(known)
            configured = list(self.config.bootstrap_servers)
            chance.shuffle(configured)
            self._candidates = [*known, *(a for a in configured if a not in known)]
        return self._candidates.pop(0)

    def on_lost(self, reason: str, unanswered: list[Request], unwritten: list[Request]) -> None:
        self._id_under_way = False
        if self._refreshing().under_way:
            self._refreshing().failed(self.clock.monotonic(), chance.random())
        self.trouble.cluster = reason
        if reason not in self._told and not self.stopping:
            self._told.add(reason)
            log.warning("%s; trying again", reason)
        if self._candidates:
            self.next_server_at_once()

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
                self._producer_id_came(event)
        except WireError as error:
            self.drop(f"an answer that makes no sense: {error}")
        except MemoryError:
            self.drop("this process has no memory for the cluster's answer")

    def _metadata_came(self, event: Answered) -> None:
        began = self.clock.monotonic()
        answer = decode_metadata(event.request.version, event.payload)
        there = {
            topic.name
            for topic in answer.topics
            if not topic.error_code
            and topic.partitions
            and all(p.leader_id >= 0 for p in topic.partitions)
        }
        self._show(self.view.with_answer(answer))
        now = self.refreshed = self.clock.monotonic()
        self._refreshing().succeeded(now, chance.random(), there=there, cost=now - began)

    def _show(self, view: ClusterView) -> None:
        """There is a new view: everybody who may wait for one looks at it."""
        for is_bad, text in news(self.view, view, self._missing):
            log.log(logging.WARNING if is_bad else logging.INFO, "%s", text)
        self.view = self.trouble.view = view
        waiters, self._waiters = list(self._waiters), {}
        for worker in (self.dispatcher, *waiters, *self.broker_workers()):
            worker.put(ViewChanged())
        self.wake_lookers()

    def _producer_id_came(self, event: Answered) -> None:
        self._id_under_way = False
        answer = decode_init_producer_id(event.request.version, event.payload)
        if answer.error_code:
            self._producer_id_refused(answer.error_code)
            return
        self.trouble.producer_id = None
        self.producer_id = ProducerId(answer.producer_id, answer.producer_epoch)
        waiters, self._id_wanted_by = self._id_wanted_by, []
        for worker in waiters:
            worker.put(ProducerIdCame())

    def _producer_id_refused(self, code: int) -> None:
        """Messages wait on: a broker that has just started has no ids to give for a moment, and
        rights may be granted. Their error says what to do if it does not pass."""
        if self._id_backoff is None:
            config = self.config
            self._id_backoff = Backoff(
                config.retry_backoff_ms / 1000, config.retry_backoff_max_ms / 1000
            )
        self._id_not_before = self.clock.monotonic() + self._id_backoff.next(chance.random())
        text = f"the cluster gives no producer id: {code_text(code)}"
        if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            text += (
                "; grant this client Write on its topics (before Kafka 2.8 IdempotentWrite on the "
                "cluster, or set enable_idempotence=False)"
            )
            if self.trouble.producer_id != text:
                log.error("%s", text)
        self.trouble.producer_id = text

    def _refreshing(self) -> Refresh:
        if self._refresh is None:
            config = self.config
            self._refresh = Refresh(
                max_age=config.metadata_max_age_ms / 1000,
                backoff_first=config.retry_backoff_ms / 1000,
                backoff_most=config.retry_backoff_max_ms / 1000,
            )
        return self._refresh
