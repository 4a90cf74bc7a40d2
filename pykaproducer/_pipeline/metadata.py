"""Metadata: fetches the view of the cluster and the producer id. One per producer.

Owns: a separate connection to one server of the cluster, the view of the cluster, and the producer
id. The view is an immutable snapshot; other stages read the reference without a lock.

Guarantees: one request at a time; requests made in the meantime are combined into the next one.
Every waiting stage is notified of every new view. The stage never gives up: it tries the servers in
turn, with backoff, alternating between the brokers of the view and the configured
``bootstrap_servers``. If a server's view is older than the current one, it tries another server.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._errors.formatting import format_partition
from pykaproducer._kernel import ConnectionMetrics
from pykaproducer._machines.cluster import ClusterView, LeaderHint, TopicView, led_by_others
from pykaproducer._machines.cluster_changes import cluster_changes
from pykaproducer._machines.cluster_identity import Arrival, ClusterIdentity
from pykaproducer._machines.refresh import Distrust, Refresh, candidates
from pykaproducer._machines.sequencing import ProducerId
from pykaproducer._machines.verdicts import FATAL_TOPIC_ERRORS
from pykaproducer._net.connection import Answered, Request
from pykaproducer._net.transport import Network
from pykaproducer._pipeline.connection_log import ClusterLog
from pykaproducer._pipeline.coordinator_lookups import CoordinatorLookups
from pykaproducer._pipeline.last_errors import LastErrors
from pykaproducer._pipeline.metadata_events import (
    Forget,
    Hints,
    LeaderRejected,
    MetadataItem,
    RefreshRequest,
    ViewChanged,
    WantCoordinator,
    WantProducerId,
)
from pykaproducer._pipeline.producer_id import NoProducerId, ProducerIdCame, ProducerIds
from pykaproducer._pipeline.socket_worker import SocketWorker
from pykaproducer._pipeline.view_waiters import ViewWaiters
from pykaproducer._pipeline.worker import StageContext, Worker
from pykaproducer._util.guarded_log import GuardedLogger
from pykaproducer._util.memory import NO_MEMORY
from pykaproducer._util.randomness import system_random
from pykaproducer._wire import WireError
from pykaproducer._wire.messages import (
    ApiKey,
    decode_metadata,
    metadata_request,
)
from pykaproducer.config import Config
from pykaproducer.errors import MetadataTimeoutError

log = GuardedLogger("pykaproducer.metadata")


class Metadata(SocketWorker[MetadataItem]):
    """Refreshes the view of the cluster: on request, on error, and by age.

    *broker_workers* returns the BrokerWorkers, which are notified of every view.
    """

    keeps_threads = True

    def __init__(
        self,
        context: StageContext,
        config: Config,
        network: Network,
        last_errors: LastErrors,
        broker_workers: Callable[[], Iterable[Worker[ViewChanged]]],
    ) -> None:
        super().__init__("metadata", context, config, network)
        self._last_errors = last_errors
        self._last_errors.setting_up = self.setting_up
        self._log = ClusterLog(self._last_errors)
        self._broker_workers = broker_workers
        self._ids = ProducerIds(config, self.clock, self._last_errors)
        self._lookups = CoordinatorLookups()
        self._refresh = Refresh(
            max_age=config.metadata_max_age_ms / 1000,
            backoff_first=config.retry_backoff_ms / 1000,
            backoff_most=config.retry_backoff_max_ms / 1000,
        )
        #: User threads that wait for a view.
        self.waiting_threads = ViewWaiters(self.clock)
        #: Only ever replaced as a whole; may be read from any thread.
        self.view = ClusterView()
        #: Ordinal of the cluster: changes if the servers are of another one. Not without
        #: idempotence. May be read from any thread.
        self.cluster = 0
        self._identity = ClusterIdentity()
        #: When the cluster last answered (monotonic seconds); None: never.
        self.refreshed: float | None = None
        # Stages that are notified of every view, and those that wait for the next one.
        self._subscribers: list[Worker[ViewChanged]] = []
        self._waiters: dict[Worker[ViewChanged], None] = {}
        self._distrust = Distrust()
        self._asked_at = 0.0
        # Send nothing before this: the server throttles this client because of a quota (KIP-219).
        self._not_before_throttle = 0.0
        self._candidates: list[tuple[str, int]] = []
        # The current server, and the last one that was left for another.
        self._server: tuple[str, int] | None = None
        self._left: tuple[str, int] | None = None
        self._leaving = False
        # When the stage has turned to a certain server, until it has answered, and when it may turn
        # to another one.
        self._turned_at: float | None = None
        self._may_turn_at = 0.0
        # Unknown topics and how often they were missing; see cluster_changes().
        self._missing: dict[str, int] = {}

    def subscribe(self, stage: Worker[ViewChanged]) -> None:
        """Notify *stage* of every new view. Called while the pipeline is created."""
        self._subscribers.append(stage)

    # For other threads ---------------------------------------------------------------------------

    @property
    def servers(self) -> list[tuple[str, int]]:
        """The addresses of the known brokers."""
        return [(broker.host, broker.port) for broker in self.view.brokers.values()]

    @property
    def producer_id(self) -> ProducerId | None:
        """The id for partitions that have none yet."""
        return self._ids.current

    def want(self) -> None:
        """Request a new view, because the current one is out of date."""
        self.put(RefreshRequest())

    def want_topics(
        self,
        *topics: str,
        waiter: Worker[ViewChanged] | None = None,
        anew: bool = False,
        server: tuple[str, int] | None = None,
    ) -> None:
        """Request metadata of *topics*, because messages wait for them.

        The dispatcher is notified of the next view, and so is *waiter*, once. *anew*: the current
        view of the topics is wrong, and so may be the response to a request in flight. *server*:
        the one to ask, unless the last such server was slow to answer.
        """
        self.put(RefreshRequest(topics, waiter, anew, server))

    def tell(self, waiter: Worker[ViewChanged]) -> None:
        """Notify *waiter*, once, of the next view, without requesting one."""
        self.put(RefreshRequest(waiter=waiter))

    def leader_rejected(self, topic: str, partition: int) -> None:
        """Report that the view's leader of a partition does not lead it, or keeps failing."""
        self.put(LeaderRejected(topic, partition))

    def forget(self, topic: str, tell: Callable[[str], None]) -> None:
        """Forget the unused *topic*; call *tell* when the view no longer has it."""
        self.put(Forget(topic, tell))

    def hint(self, hints: Iterable[LeaderHint]) -> None:
        """Update the view with the leaders that a broker has named."""
        self.put(Hints(tuple(hints)))

    def want_producer_id(
        self, waiter: Worker[ProducerIdCame | NoProducerId], *, instead_of: int | None = None
    ) -> None:
        """Notify *waiter*, once, when there is a producer id other than *instead_of*."""
        self.put(WantProducerId(waiter, instead_of))

    def partitions_for(
        self, topic: str, deadline: float, check_open: Callable[[], object]
    ) -> set[int]:
        """Wait for the metadata of *topic*; return its partitions.

        *check_open* is called as in :meth:`ViewWaiters.wait`.

        Raises:
            MetadataTimeoutError: there is no metadata by *deadline*.
        """

        def count() -> int:
            view = self.view.topics.get(topic)
            return 0 if view is None else view.partitions

        partitions = self.waiting_threads.wait(
            count, lambda: self.want_topics(topic), deadline, check_open
        )
        if partitions:
            return set(range(partitions))
        reason = self._last_errors.reason_for(topic, None) or "no response"
        raise MetadataTimeoutError(
            f"{format_partition(topic)}: no metadata within max_block_ms: {reason}"
        )

    def wait_for_brokers(self, deadline: float, check_open: Callable[[], object]) -> bool:
        """Wait until the cluster has answered; return False if it has not by *deadline*."""
        answered = self.waiting_threads.wait(
            lambda: len(self.view.brokers), self.want, deadline, check_open
        )
        return answered > 0

    # The stage -----------------------------------------------------------------------------------

    def can_run_inline(self, item: MetadataItem) -> bool:
        # The rejected batch is retried at once; the view should have its new leader before that.
        return isinstance(item, Hints)

    def handle(self, item: MetadataItem) -> None:
        match item:
            case WantProducerId():
                self._ids.want(item.waiter, item.instead_of)
            case WantCoordinator():
                self._lookups.want(item)
            case Hints():
                view = self.view.with_leaders(item.hints)
                if view is not self.view:
                    self._show(view)
            case LeaderRejected():
                self._distrust.rejected(item.topic, item.partition)
                self._refresh.want(item.topic, anew=True)
            case Forget():
                self._forget(item)
            case RefreshRequest():
                self._want(item)

    def _want(self, item: RefreshRequest) -> None:
        refresh = self._refresh
        if item.server is not None:
            self._turn_to(item.server)
        if item.waiter is not None:
            self._waiters[item.waiter] = None
        elif not item.topics:
            refresh.want()
        for topic in item.topics:
            # The worker must be notified even if nothing is lacking any more:
            # 1. a partition's worker finds no leader in the view; 2. a view with a leader is shown;
            # 3. this item arrives.
            anew = item.waiter is not None and topic not in refresh.lacking
            refresh.want(topic, anew=item.anew or anew)

    def _forget(self, item: Forget) -> None:
        self._refresh.forget(item.topic)
        # Discard the producer id, or new batches could be mistaken for duplicates:
        # 1. the topic's partitions have numbered their batches under the current id; 2. these
        # sequence numbers are lost with the topic; 3. the topic is used again, and its batches are
        # numbered from 0 under the same id.
        self._ids.current = None
        self._distrust.forget(item.topic)
        self._missing.pop(item.topic, None)
        self.view = self._last_errors.view = self.view.without(item.topic)
        item.tell(item.topic)
        # A thread may wait for this topic. Its request has just been dropped, and no response
        # follows that would make it ask again.
        self.waiting_threads.wake_all()

    def _sendable(self) -> list[tuple[float | None, Callable[[float], None]]]:
        """Return when each kind of request is due, None if it is not needed, and how to send it.

        The only list of them, so that none is sent without a wake-up, or the reverse.
        """
        return [
            (self._refresh.next_due(), self._ask_for_topics),
            (self._ids.due(), lambda _: self._ids.ask(self, self._asked_of())),
            (self._lookups.due(), lambda _: self._lookups.ask(self)),
        ]

    def _next_due(self) -> float | None:
        return min((due for due, _ in self._sendable() if due is not None), default=None)

    def wants_connection(self) -> bool:
        due = self._next_due()
        return due is not None and due <= self.clock.monotonic()

    def deadline(self) -> float | None:
        due = self._next_due()
        if due is None:
            return None
        due = max(due, self._not_before_throttle)
        if self.ready or due > self.clock.monotonic():
            return due
        return None  # it is due, and is sent as soon as there is a connection

    def on_time(self, now: float) -> None:
        """Do nothing: on_inbox_drained() sends the requests that are due."""

    def on_inbox_drained(self) -> None:
        now = self.clock.monotonic()
        if now < self._not_before_throttle:
            return
        for due, send in self._sendable():
            if self.ready and due is not None and due <= now:
                send(now)

    def _ask_for_topics(self, now: float) -> None:
        asked = self._refresh.send(now)
        self._asked_at = now
        create = asked.may_create and self._config.allow_auto_create_topics
        self.ask(
            ApiKey.METADATA,
            lambda version, correlation_id, client_id: metadata_request(
                version, correlation_id, client_id, asked.topics, create
            ),
        )

    def ask(self, api: int, encode: Callable[[int, int, str | None], bytes]) -> None:
        """Send a request. *encode*: takes the version, the correlation id and the client id."""

        def counted(version: int, correlation_id: int) -> list[Any]:
            request = encode(version, correlation_id, self._config.client_id)
            self.count_outgoing(self.clock.monotonic(), len(request))
            return [request]

        deadline = self.clock.monotonic() + self._config.request_timeout_ms / 1000
        self.submit(Request(api, counted, deadline=deadline, expects_answer=True, tag=api))

    # The connection ------------------------------------------------------------------------------

    def connection_metrics(self) -> ConnectionMetrics:
        return self.metrics.metadata

    def next_address(self) -> tuple[str, int] | str:
        if not self._candidates:
            self._candidates = self._candidates_now()
        self._server = self._candidates.pop(0)
        return self._server

    def _candidates_now(self) -> list[tuple[str, int]]:
        known = self.servers
        system_random.shuffle(known)
        configured = list(self._config.bootstrap_servers)
        system_random.shuffle(configured)
        return candidates(known, configured, self._left)

    def on_lost(self, reason: str, unanswered: list[Request], unwritten: list[Request]) -> None:
        self._has_turned()
        self._ids.lost()
        self._lookups.lost()
        needed = unanswered or self._items or self._refresh.under_way or self.wants_connection()
        self._not_before_throttle = 0.0
        if self._refresh.under_way:
            self._refresh.failed(self.clock.monotonic(), system_random.random())
        if self._leaving or not needed:
            # The connection is not needed. Brokers close connections that have long been idle.
            log.debug("%s", reason)
        else:
            self._log.failed(reason, stopping=self.stopping)
        if self._candidates:
            self.next_server_at_once()

    def _asked_of(self) -> tuple[str, int]:
        return self._server or ("", 0)

    def _leave(self, reason: str) -> None:
        """Switch to another server, if there is one."""
        others = [server for server in self._candidates_now() if server != self._server]
        if not others:
            return
        self._left = self._server
        if self._server is not None:
            log.info("%s:%d: %s; asking another server", *self._server, reason)
        self._switch_to(others, reason)
        self._refresh.want()

    def _switch_to(self, servers: list[tuple[str, int]], reason: str) -> None:
        self._candidates = servers
        self._leaving = True
        self.drop(reason)
        self._leaving = False

    def _turn_to(self, server: tuple[str, int]) -> None:
        """Ask *server* from now on, because messages wait for what the others deny.

        It may not answer, and other messages need the view: not more than a fifth of the time is
        spent on that.
        """
        now, connection = self.clock.monotonic(), self._connection
        is_free = self.ready and connection is not None and connection.is_idle
        if is_free and server != self._server and now >= self._may_turn_at:
            self._switch_to([server], f"{server[0]}:{server[1]} is asked next")
            self._turned_at = now

    def _has_turned(self) -> None:
        if self._turned_at is not None:
            now = self.clock.monotonic()
            self._may_turn_at = now + 4 * (now - self._turned_at)
            self._turned_at = None

    def _rebootstrap(self) -> None:
        """Rebootstrap, as the current server requires (KIP-1102).

        The known brokers may belong to another cluster by now. All connections are closed, and the
        names of the bootstrap servers are resolved again. The current server is tried last. It may
        be the only one, and its name may resolve to another host now.
        """
        self._left = self._server
        self._identity.rebootstrapped()
        reason = (
            "{}:{} requires a rebootstrap (REBOOTSTRAP_REQUIRED); do bootstrap_servers still name "
            "the cluster?".format(*self._asked_of())
        )
        self._log.failed(reason, stopping=self.stopping)
        self._show(self.view.without_brokers(), give_up="the cluster requires a rebootstrap")
        self._switch_to(self._candidates_now(), reason)
        self._refresh.want()

    def _enter(self, cluster_id: str | None) -> bool:
        """Return whether the cluster is another one, without a rebootstrap.

        If it is another one, have every partition take a new producer id. Called before its brokers
        are in the view. So a BrokerWorker knows of it before it has a connection to one of them.
        """
        known, arrival = self._identity.id, self._identity.answered(cluster_id)
        if arrival is Arrival.SAME:
            return False
        if known is not None:
            text = "%s:%d is of another cluster: the cluster id is %s, and was %s before"
            log.warning(text, *self._asked_of(), cluster_id, known)
        if self._config.idempotent:
            # The id first: a stage that reads the new ordinal must not get the old id.
            self._ids.current = None
            self.cluster += 1
            for worker in self._broker_workers():
                worker.put(ViewChanged())
        return arrival is Arrival.UNANNOUNCED

    def on_answer(self, event: Answered) -> None:
        self._candidates = []
        self._has_turned()
        try:
            if event.request.api_key == ApiKey.METADATA:
                self._metadata_came(event)
            else:
                is_id = event.request.api_key == ApiKey.INIT_PRODUCER_ID
                asked = self._ids if is_id else self._lookups
                handled = asked.answered(event.request.version, event.payload)
                self._log.answered()
                self._throttled(handled.throttle_ms)
                if self._distrust.responded(handled.what, in_vain=handled.in_vain):
                    what = "producer id" if is_id else "coordinator that serves requests"
                    self._leave(f"it keeps naming no {what}")
        except WireError as error:
            self._left = self._server  # the next attempt is for another one
            self.drop(f"malformed response: {error}")
        except NO_MEMORY:
            self.drop("this process has no memory for the cluster's response")

    def _throttled(self, throttle_ms: int) -> None:
        if throttle_ms > 0:
            self._not_before_throttle = self.clock.monotonic() + throttle_ms / 1000

    def _metadata_came(self, event: Answered) -> None:
        began = self.clock.thread_time()
        answer = decode_metadata(event.request.version, event.payload)
        self._throttled(answer.throttle_ms)
        if answer.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
            self._refresh.failed(self.clock.monotonic(), system_random.random())
            self._rebootstrap()
            return
        self._log.answered()
        is_other = self._enter(answer.cluster_id)
        refresh, old = self._refresh, self.view.without_brokers() if is_other else self.view
        # Without topics that were not requested, or have been forgotten since.
        answer = answer.only(refresh.asked)
        view = old.with_answer(answer, self._asked_at, self._server)
        asked, waited_for = set(refresh.asked), set(refresh.waited_for)
        # A topic that the answer lacks is not gone.
        seen = {name for name in asked if name in view.topics and view.topics[name].partitions}
        named = {topic.name for topic in answer.topics if topic.partitions}
        there = {name for name in seen & named if view.topics[name].is_complete}
        self._show(view, give_up="the servers are of another cluster now" if is_other else "")
        if is_other:
            refresh.want()  # the topics that were not requested now have no leaders
        self.refreshed = self.clock.monotonic()
        cost = self.clock.thread_time() - began
        refresh.succeeded(self.refreshed, system_random.random(), there=there, seen=seen, cost=cost)
        incomplete = [name for name in waited_for - there if not _is_refused(view.topics.get(name))]
        unhelpful = self._distrust.answered(old, view, asked, incomplete)
        if view.is_out_of_date(asked):
            self._leave("its metadata is incomplete or older than the known one")
        elif unhelpful:
            self._leave("messages still wait after its answers")

    def _show(self, view: ClusterView, *, give_up: str = "") -> None:
        """Publish a new view, and notify the waiting stages and threads.

        *give_up*: why all connections must be closed; empty: they need not.
        """
        old = self.view
        for is_bad, text in cluster_changes(old, view, self._missing):
            log.log(logging.WARNING if is_bad else logging.INFO, "%s", text)
        self.view = self._last_errors.view = view
        waiters, self._waiters = list(self._waiters), {}
        for worker in (*self._subscribers, *waiters):
            worker.put(ViewChanged())
        changed = ViewChanged(led_by_others(old, view), give_up)
        for worker in self._broker_workers():
            worker.put(changed)
        self.waiting_threads.wake_all()


def _is_refused(view: TopicView | None) -> bool:
    return view is not None and view.error_code in FATAL_TOPIC_ERRORS
