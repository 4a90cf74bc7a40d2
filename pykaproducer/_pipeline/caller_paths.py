"""The partitions of one broker that callers may use, and the requests that they have begun.

Part of BrokerWorker. A caller that waits for its message sends it itself if the stages have nothing
to do; ``_kernel_parts/caller.pxi`` describes how. A partition is lent when a response has come and
nothing of it is pending or in flight. It is taken back before anything else is done with it, and
its sequence numbers with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pykaproducer._kernel import (
    BATCH_HEADER,
    CALLER_BYTES,
    CALLER_ROWS,
    RECORD_OVERHEAD,
    CallerPath,
    TopicSlot,
)
from pykaproducer._machines.partition_buffer import PartitionBuffer
from pykaproducer._pipeline.bridge import Bridge, ProduceRequest, produce_request_of
from pykaproducer._pipeline.metadata import Metadata
from pykaproducer._pipeline.worker import AnyWorker
from pykaproducer._util.checksum import crc32c_function
from pykaproducer._wire.produce import one_batch_frame
from pykaproducer.config import Config

#: After a request was handed over, no partition is lent for a pause (seconds), first and at most:
#: other threads send too, or the broker is slow, and handing over costs more than it saves.
_PAUSE: Final = 0.01, 1.0
#: The pause is the shortest one again after this number of requests without a hand-over.
_WORTHWHILE: Final = 20
#: The largest batch of a caller: with a lower limit, the stages would divide it.
_LARGEST: Final = BATCH_HEADER + CALLER_BYTES + CALLER_ROWS * RECORD_OVERHEAD


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
        sent: Callable[[ProduceRequest], None],
    ) -> None:
        self._config = config
        self._clock = worker.clock
        self._metadata = metadata
        self._metrics = worker.metrics
        self._bridge = bridge
        self._sent = sent
        self._paths: dict[PartitionBuffer, CallerPath] = {}
        self._not_before = 0.0
        self._pause = _PAUSE[0]
        # The number of each buffer's batches when it was lent.
        self._lent_at: dict[PartitionBuffer, int] = {}
        most = config.batch_max_messages
        self._lends = (
            worker.clock.is_real
            and config.acks != 0
            and config.compression_type is None
            and config.linger_ms == 0
            and min(config.batch_size, config.max_request_size) >= _LARGEST
            and (most == 0 or most >= CALLER_ROWS)
        )

    @property
    def lent(self) -> bool:
        """Whether callers may use any partition."""
        return bool(self._paths)

    def offer(self, request: ProduceRequest, slot: TopicSlot) -> None:
        """Lend the partition of *request*, which was answered, if nothing of it is left.

        *slot*: of its topic.
        """
        version = self._bridge.produce_version
        if not self._lends or version is None or len(request.batches) != 1:
            return
        batch = request.batches[0]
        buffer = batch.in_buffer
        if not self._is_at_rest(buffer) or self._clock.monotonic() < self._not_before:
            return
        view = self._metadata.view.topics.get(batch.topic)
        if view is None or view.leaders.get(batch.partition) != self._bridge.broker_id:
            return
        path = self._path(buffer, view, version)
        self._paths[buffer], self._lent_at[buffer] = path, path.number
        slot.lend_path(batch.partition, path)

    def _is_at_rest(self, buffer: PartitionBuffer) -> bool:
        if buffer.pending or buffer.unanswered or buffer.failing or buffer in self._paths:
            return False
        sequencer = buffer.sequencer
        if not self._config.idempotent:
            return True
        return sequencer.producer is not None and sequencer.known and not sequencer.stale

    def _path(self, buffer: PartitionBuffer, view: object, version: int) -> CallerPath:
        config, metrics, sequencer = self._config, self._metrics, buffer.sequencer
        head, tail = one_batch_frame(
            version,
            config.client_id,
            config.acks,
            int(config.request_timeout_ms),
            buffer.topic,
            buffer.partition,
        )
        topic, link = metrics.topic(buffer.topic), metrics.link(self._bridge.broker_id)
        producer = sequencer.producer if config.idempotent else None
        return CallerPath(
            self._bridge.caller_link,
            buffer,
            view,
            crc32c_function(),
            version,
            head,
            tail,
            -1 if producer is None else producer.producer_id,
            -1 if producer is None else producer.epoch,
            -1 if producer is None else sequencer.next_sequence,
            sequencer.sealed,
            (
                metrics.delivery,
                metrics.request,
                metrics.queue,
                metrics.requests,
                metrics.largest,
                topic.records,
                topic.batches,
                topic.compression,
                metrics.partition(buffer.topic, buffer.partition),
                link.outgoing,
                link.incoming,
                link.latency,
                link.throttle,
            ),
        )

    def take_back(self, buffer: PartitionBuffer) -> None:
        """Let callers no longer use *buffer*. Count its request that a caller has in flight."""
        path = self._paths.pop(buffer, None)
        if path is None:
            return
        begun = path.withdraw()
        sent = path.number - self._lent_at.pop(buffer)
        if self._config.idempotent:
            delivered = path.number - (begun is not None)
            buffer.sequencer.resume(path.number, path.next_sequence, delivered)
        if begun is not None:
            self._pause = _PAUSE[0] if sent > _WORTHWHILE else min(2 * self._pause, _PAUSE[1])
            self._not_before = self._clock.monotonic() + self._pause
            request = produce_request_of(begun, self._config)
            for batch in request.batches:
                buffer.sent(batch)
            self._sent(request)

    def take_all_back(self) -> None:
        """Take every buffer back."""
        for buffer in list(self._paths):
            self.take_back(buffer)
