"""The partitions of one broker that callers may use, and the requests that they have begun.

Part of BrokerWorker. A caller sends its message itself if the stages have nothing to do;
``_kernel_parts/caller.pxi`` describes how. A partition is lent when a response has come and nothing
of it is pending or in flight. It is taken back before a stage does anything with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pykaproducer._kernel import (
    CallerPath,
    ProduceRequest,
    RequestSealer,
    RequestSettler,
    TopicSlot,
    WindowState,
)
from pykaproducer._machines.batch import Batch
from pykaproducer._machines.partition_buffer import PartitionBuffer
from pykaproducer._pipeline.bridge import Bridge
from pykaproducer._pipeline.metadata import Metadata
from pykaproducer._pipeline.worker import AnyWorker
from pykaproducer.config import Config

#: After a request was handed over, no partition is lent for a pause (seconds), first and at most:
#: other threads send too, or the broker is slow, and handing over costs more than it saves.
_PAUSE: Final = 0.01, 1.0
#: Nothing is lent after a request with more batches, or with more rows in one.
_FEW: Final = 16
#: Minimum interval between two rests, first and at most (seconds): see CallerPaths._rest().
_REST_EVERY: Final = 0.05, 0.5
#: How long messages wait in a rest at most (seconds).
_LONGEST_REST: Final = 0.1
#: After more requests than this without a hand-over, the pause and the interval are the shortest.
_WORTHWHILE: Final = 20


class CallerPaths:
    """The partition buffers that are lent to callers. Used by one BrokerWorker, *worker*.

    *sent* is called for a request that a caller has in flight when it is taken back.
    """

    def __init__(
        self,
        worker: AnyWorker,
        bridge: Bridge,
        config: Config,
        metadata: Metadata,
        *,
        sealer: RequestSealer,
        settler: RequestSettler,
        window: WindowState,
        sent: Callable[[ProduceRequest], None],
    ) -> None:
        self._idempotent = config.idempotent
        self._clock = worker.clock
        self._metadata = metadata
        self._metrics = worker.metrics
        self._bridge = bridge
        self._sealer, self._settler, self._window = sealer, settler, window
        self._sent = sent
        # Those that are lent.
        self._lent: set[PartitionBuffer] = set()
        self._not_before = 0.0
        self._rest_at = 0.0  # no rest before that
        self._rest_every = _REST_EVERY[0]
        self._pause = _PAUSE[0]
        # A transaction has to be joined before a request is written.
        self._lends = config.acks != 0 and config.transactional_id is None

    @property
    def lent(self) -> bool:
        """Whether callers may use any partition."""
        return bool(self._lent)

    def offers(self, request: ProduceRequest) -> list[tuple[Batch, TopicSlot]]:
        """Return the batches of *request*, each with its topic's slot, if they may be offered.

        Called before they are settled: their last row releases the slot.
        """
        batches = request.batches
        if not self._lends or not self._bridge.lends or len(batches) > _FEW:
            return []
        found = []
        for batch in batches:
            slot = batch.parts[0].chunk.slot
            if slot is None or batch.count > _FEW:
                return []
            found.append((batch, slot))
        return found

    def offer(self, offers: list[tuple[Batch, TopicSlot]], *, alone: bool) -> None:
        """Lend the partitions of :meth:`offers`, which were answered, if nothing of them is left.

        *alone*: no request is in flight.
        """
        link = self._bridge.caller_link
        now = self._clock.monotonic()
        if now < self._not_before:
            offers = []
        for batch, slot in offers:
            buffer = batch.in_buffer
            if not self._is_usual(buffer):
                continue
            if buffer.pending or buffer.unanswered:
                self._rest(buffer, slot, now)
            else:
                self._lend(buffer, slot)
        if alone:
            link.end_rest()
        elif offers and self._lent:
            self._rest(offers[0][0].in_buffer, offers[0][1], now)

    def _lend(self, buffer: PartitionBuffer, slot: TopicSlot) -> None:
        view = self._metadata.view.topics.get(buffer.topic)
        if view is None or view.leaders.get(buffer.partition) != self._bridge.broker_id:
            return
        path = self._path(buffer)
        self._lent.add(buffer)
        path.lend(view, self._metrics.topic(buffer.topic))
        slot.lend_path(buffer.partition, path)

    def _rest(self, buffer: PartitionBuffer, slot: TopicSlot, now: float) -> None:
        """Let the next messages of *slot* wait until the requests in flight are answered.

        They wait for two round trips at most.
        Where the next message always comes before the response, nothing would ever be lent.
        """
        if now < self._rest_at:
            return
        self._rest_at = now + self._rest_every
        self._rest_every = min(2 * self._rest_every, _REST_EVERY[1])
        most = min(2 * self._window.round_trip, _LONGEST_REST)
        self._bridge.caller_link.rest(slot, self._path(buffer), now + most)

    def _is_usual(self, buffer: PartitionBuffer) -> bool:
        if buffer.failing or buffer in self._lent:
            return False
        sequencer = buffer.sequencer
        if not self._idempotent:
            return True
        return sequencer.producer is not None and sequencer.known and not sequencer.stale

    def _path(self, buffer: PartitionBuffer) -> CallerPath:
        if buffer.path is None:
            link = self._bridge.caller_link
            buffer.path = CallerPath(link, buffer, self._sealer, self._settler, self._window)
        return buffer.path

    def take_back(self, buffer: PartitionBuffer) -> None:
        """Let callers no longer use *buffer*. Count its requests that callers have in flight."""
        if buffer not in self._lent:
            return
        self._lent.remove(buffer)
        path = buffer.path
        assert path is not None, "it was lent"
        begun = path.withdraw()
        if begun:
            if path.n_sent > _WORTHWHILE:
                self._pause, self._rest_every = _PAUSE[0], _REST_EVERY[0]
            else:
                self._pause = min(2 * self._pause, _PAUSE[1])
            self._not_before = self._clock.monotonic() + self._pause
            for request in begun:
                self._sent(request)

    def take_all_back(self) -> None:
        """Take every buffer back."""
        for buffer in list(self._lent):
            self.take_back(buffer)
