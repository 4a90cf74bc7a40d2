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
)
from pykaproducer._machines.partition_buffer import PartitionBuffer
from pykaproducer._machines.window import MIN_REQUEST_TIMEOUT
from pykaproducer._pipeline.bridge import Bridge
from pykaproducer._pipeline.metadata import Metadata
from pykaproducer._pipeline.worker import AnyWorker
from pykaproducer.config import Config

#: After a request was handed over, no partition is lent for a pause (seconds), first and at most:
#: other threads send too, or the broker is slow, and handing over costs more than it saves.
_PAUSE: Final = 0.01, 1.0
#: The pause is the shortest one again after this number of requests without a hand-over.
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
        sent: Callable[[ProduceRequest], None],
    ) -> None:
        self._idempotent = config.idempotent
        self._timeout = config.request_timeout_ms / 1000
        self._clock = worker.clock
        self._metadata = metadata
        self._metrics = worker.metrics
        self._bridge = bridge
        self._sealer, self._settler = sealer, settler
        self._sent = sent
        # Those that are lent.
        self._lent: set[PartitionBuffer] = set()
        self._not_before = 0.0
        self._pause = _PAUSE[0]
        self._lends = worker.clock.is_real and config.acks != 0 and config.linger_ms == 0

    @property
    def lent(self) -> bool:
        """Whether callers may use any partition."""
        return bool(self._lent)

    def offer(self, request: ProduceRequest, slot: TopicSlot) -> None:
        """Lend the partition of *request*, which was answered, if nothing of it is left.

        *slot*: of its topic.
        """
        if not self._lends or not self._bridge.lends or len(request.batches) != 1:
            return
        batch = request.batches[0]
        buffer = batch.in_buffer
        if not self._is_at_rest(buffer) or self._clock.monotonic() < self._not_before:
            return
        view = self._metadata.view.topics.get(batch.topic)
        if view is None or view.leaders.get(batch.partition) != self._bridge.broker_id:
            return
        if buffer.path is None:
            buffer.path = self._new_path(buffer)
        self._lent.add(buffer)
        buffer.path.lend(view, self._metrics.topic(batch.topic))
        slot.lend_path(batch.partition, buffer.path)

    def _is_at_rest(self, buffer: PartitionBuffer) -> bool:
        if buffer.pending or buffer.unanswered or buffer.failing or buffer in self._lent:
            return False
        sequencer = buffer.sequencer
        if not self._idempotent:
            return True
        return sequencer.producer is not None and sequencer.known and not sequencer.stale

    def _new_path(self, buffer: PartitionBuffer) -> CallerPath:
        return CallerPath(
            self._bridge.caller_link,
            buffer,
            self._sealer,
            self._settler,
            timeout=self._timeout,
            patience=min(self._timeout, MIN_REQUEST_TIMEOUT),
        )

    def take_back(self, buffer: PartitionBuffer) -> None:
        """Let callers no longer use *buffer*. Count its request that a caller has in flight."""
        if buffer not in self._lent:
            return
        self._lent.remove(buffer)
        path = buffer.path
        assert path is not None, "it was lent"
        begun = path.withdraw()
        if begun is not None:
            is_worthwhile = path.n_sent > _WORTHWHILE
            self._pause = _PAUSE[0] if is_worthwhile else min(2 * self._pause, _PAUSE[1])
            self._not_before = self._clock.monotonic() + self._pause
            self._sent(begun)

    def take_all_back(self) -> None:
        """Take every buffer back."""
        for buffer in list(self._lent):
            self.take_back(buffer)
