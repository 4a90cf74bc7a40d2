"""One producer and its simulated cluster, without anything random."""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any
from unittest import mock

from pykaproducer._kernel import Delivery
from pykaproducer._machines.batch import Batch
from pykaproducer._machines.ordering import Transitions
from pykaproducer._pipeline.broker_events import FlushStarted
from pykaproducer._pipeline.dispatcher_items import FlushMark
from pykaproducer._pipeline.incomplete import FlushBarrier
from pykaproducer._util.clock import earlier
from pykaproducer.config import Config
from tests.kernel.helper import TOPIC

from .cluster import Cluster, Fate, Kind
from .promises import Message, check, check_expired, check_log, check_told
from .stages import ModelBridge, ModelDoor, ModelMetadata, ModelPipeline, Schedule

BROKERS = 3
#: The behaviour of a broker without faults.
WELL = Fate(Kind.TAKE)
#: Longer than any wait of the producer after a fault has ended (seconds).
CALM = 60.0


class World:
    """The producer, the cluster, and the state of each message."""

    idempotent = True
    pipeline_type: type[ModelPipeline] = ModelPipeline
    #: Names that a PartitionWorker uses, and their replacements: a test removes a rule this way.
    replaced: Mapping[str, Any] = MappingProxyType({})

    def begin(self, leaders: list[int], transitions: Transitions, **settings: Any) -> None:
        """Start with *leaders*, one for each partition."""
        self.messages: list[Message] = []
        #: The messages without an outcome.
        self.open: list[Message] = []
        #: Batches written to a dead connection that a broker will still handle.
        self.late: list[tuple[int, deque[tuple[Batch, int]]]] = []
        self.marks: list[tuple[FlushBarrier, int]] = []
        self.cluster = self.new_cluster(leaders)
        self.door = self.new_door()
        self.clock = self.door.clock
        self.schedule = Schedule(self.clock)
        self.patches = contextlib.ExitStack()
        self.patches.enter_context(self.schedule.in_charge())
        for name, kind in self.replaced.items():
            where = f"pykaproducer._pipeline.partition.{name}"
            self.patches.enter_context(mock.patch(where, kind))
        self.config = Config(
            acks=-1,
            enable_idempotence=self.idempotent,
            retry_backoff_ms=100,
            retry_backoff_max_ms=1_000,
            request_timeout_ms=10_000,
            **settings,
        )
        self.pipeline = self.pipeline_type(self.config, self.clock, self.door, transitions)
        self.door.dispatcher = self.pipeline.dispatcher
        metadata = self.pipeline.metadata
        assert isinstance(metadata, ModelMetadata)
        self.metadata = metadata

    def new_cluster(self, leaders: list[int]) -> Cluster:
        """Return the simulated cluster."""
        return Cluster(BROKERS, leaders)

    def new_door(self) -> ModelDoor:
        """Return the producer's entry point."""
        return ModelDoor()

    # The user ---------------------------------------------------------------------------------

    def user_sends(self, partition: int, times: int, seconds: float) -> None:
        """Send messages with *seconds* as their delivery timeout."""
        for _ in range(times):
            number = len(self.messages)
            message = Message(number, partition, self.clock.monotonic() + seconds)
            self.messages.append(message)
            self.open.append(message)
            message.handle = self.door.send(
                TOPIC,
                number.to_bytes(4, "big"),
                partition=partition,
                on_delivery=self._teller(message),
                delivery_timeout_ms=int(seconds * 1000),
            )

    def _teller(self, message: Message) -> Any:
        def tell(error: BaseException | None, handle: Delivery) -> None:
            offset = None if error is not None else handle.offset
            offset = -1 if error is None and offset is None else offset
            message.told.append((error, offset, self.clock.monotonic()))
            check_told(message)
            message.handle = None
            self.open.remove(message)

        return tell

    def user_flushes(self) -> None:
        """Begin a flush() that waits."""
        self.pipeline.flushing = True
        mark = FlushBarrier()
        self.pipeline.dispatcher.put(FlushMark(mark))
        self.marks.append((mark, len(self.messages)))
        for worker in self.pipeline.brokers.all():
            worker.put(FlushStarted())

    # The stages and time ------------------------------------------------------------------------

    def run_all(self) -> bool:
        """Run all stages until they are idle; return whether there was any work."""
        for rounds in range(1_000):
            busy = self.schedule.busy()
            if not busy:
                return rounds > 0
            for worker in busy:
                self.schedule.run(worker, 100)
        check(False, "liveness", "the stages never rest")
        return True

    def jump_to_next(self, most: float) -> bool:
        """Jump to a stage's next deadline if it is within *most* seconds."""
        dispatcher = self.pipeline.dispatcher
        then = earlier(self.schedule.next_time(without=dispatcher), dispatcher.held.until)
        now = self.clock.monotonic()
        if then is None or not now < then < now + most:
            return False
        self.clock.jump(then - now + 1e-6)
        return True

    # The cluster --------------------------------------------------------------------------------

    def bridges(self, kind: str) -> list[ModelBridge]:
        """Return the bridges that want a connection, have one, or whose broker has work."""
        bridges = self.pipeline.bridges
        match kind:
            case "wants":
                return [bridge for bridge in bridges if bridge.wants_to_connect()]
            case "unhandled":
                return [bridge for bridge in bridges if len(bridge.done) < len(bridge.wire)]
            case "handled":
                return [bridge for bridge in bridges if bridge.done]
        return [bridge for bridge in bridges if bridge.ready]

    def serve(self, fates: Iterator[Fate]) -> bool:
        """Let every server work; return whether there was any work."""
        done = False
        while self.metadata.wire:
            self.metadata.answered(self.cluster)
            done = True
        for bridge in [*self.pipeline.bridges]:
            if bridge.wants_to_connect():
                bridge.connected(True)
                done = True
            while bridge.wire:
                if not bridge.done:
                    bridge.taken_by_broker(self.cluster, [next(fates)])
                bridge.answered()
                done = True
        return done

    def go_on(self, fates: Iterator[Fate], rounds: int, *, wait: bool) -> None:
        """Run everything that can make progress; the requests meet *fates* in turn."""
        for _ in range(rounds):
            self.run_all()
            self.serve(fates)
            self.run_all()
            if wait:
                self.jump_to_next(2)

    def hold_up(self, broker: int) -> None:
        """Suspend the stages of *broker*."""
        workers = self.pipeline.brokers.all()
        self.schedule.held_up.update(w for w in workers if w.broker_id == broker)

    def handle_late(self, which: int) -> None:
        """Handle a request of a dead connection after all."""
        broker, batches = self.late[which % len(self.late)]
        batch, version = batches.popleft()
        self.cluster.produce(broker, batch, WELL, version)
        self.late = [each for each in self.late if each[1]]

    # Invariants ---------------------------------------------------------------------------------

    def check_now(self) -> None:
        """Check the invariants that hold at any moment."""
        check(self.pipeline.broken is None, "P9", f"a stage has died: {self.pipeline.broken}")
        if self.pipeline.dispatcher not in self.schedule.busy():
            check_expired(self.open, self.clock.monotonic())
        for mark, count in self.marks:
            waits = [m for m in self.open if m.number < count]
            check(mark.done.locked() or not waits, "P7", f"flush has ended before {waits}")

    def stop_faults(self) -> None:
        """Let every stage run, and the metadata be right."""
        self.schedule.held_up.clear()
        self.cluster.published = list(self.cluster.leaders)

    def calm_down(self) -> None:
        """Stop all faults; every message gets its outcome, and none expires early."""
        self.stop_faults()
        end = self.clock.monotonic() + CALM
        for _ in range(3_000):
            if self.run_all() or self.serve(itertools.repeat(WELL)):
                continue
            left = end - self.clock.monotonic()
            if left <= 0 or not self.jump_to_next(left):
                break
        self.check_now()
        stuck = [message for message in self.open if message.deadline > self.clock.monotonic()]
        check(not stuck, "liveness", f"all faults have ended, but {stuck} waits forever")
        check(not self.open, "P3", f"without outcome: {self.open}")

    def check_the_end(self) -> None:
        """Stop all faults, check that sending works again, and check the log."""
        self.calm_down()
        fresh = len(self.messages)
        for partition in range(len(self.cluster.logs)):
            self.user_sends(partition, 2, 2 * CALM)
        self.calm_down()
        for message in self.messages[fresh:]:
            check(message.offset is not None, "liveness", f"{message} was not delivered")
        # The worst case: lingering requests are handled last.
        while self.late:
            self.handle_late(0)
        check_log(self.messages, self.cluster, idempotent=self.idempotent)
        check(not self.pipeline.incomplete.chunks(), "P3", "something counts as in flight")
        check(self.door.budget.used == 0, "P2", f"{self.door.budget.used} bytes are not given back")
