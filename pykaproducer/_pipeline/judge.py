"""What an answer, or the loss of the connection, means for the batches under way.

One for each BrokerWorker, called by it alone; keeps nothing itself. The verdict on an error code
is ``_machines/verdicts.py``'s, what a lane hands back ``_machines/lane.py``'s; here it is done.

Guarantees: every batch of a request is delivered, has failed, or goes round again, once. A lane
hands back when all batches of the request have been judged, so those of one request keep their
order too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pykaproducer._chance import chance
from pykaproducer._clock import Clock
from pykaproducer._machines.cluster import LeaderHint, backoff
from pykaproducer._machines.lane import Batch, Chaser, Lane
from pykaproducer._machines.verdicts import NO_RIGHT, Action, judge
from pykaproducer._pipeline.bridge import Answered, Lost, ProduceRequest
from pykaproducer._pipeline.metadata import Metadata
from pykaproducer._pipeline.meter import Meter
from pykaproducer._pipeline.reports import MakeError, Settler
from pykaproducer._pipeline.retry import Again, RetryHandler
from pykaproducer._pipeline.trouble import Trouble
from pykaproducer._texts import code_text, place
from pykaproducer._wire.produce import ProduceAnswer, ProducedPartition
from pykaproducer.config import Config
from pykaproducer.errors import DeliveryError, Status, delivery_error_for

#: From this level on a temporary error makes us look up the leader too: a broker that is cut off
#: from its controllers may go on as the leader, and never report that it no longer is.
_LOOK_FROM_LEVEL = 2


class Judge:
    """Ends or returns what a BrokerWorker has sent."""

    def __init__(
        self,
        *,
        config: Config,
        clock: Clock,
        metadata: Metadata,
        retry: RetryHandler,
        settler: Settler,
        trouble: Trouble,
        meter: Meter,
        lane_changed: Callable[[Lane], None],
    ) -> None:
        self._meter = meter
        self._config = config
        self._clock = clock
        self._metadata = metadata
        self._retry = retry
        self._settler = settler
        self._trouble = trouble
        self._lane_changed = lane_changed

    # What becomes of a request -------------------------------------------------------------------

    def answered(self, item: Answered) -> None:
        """The broker has answered for every batch of a request."""
        answers = {(a.topic, a.partition): a for a in item.answer.partitions}
        self._pass_on_hints(item.answer)
        for batch in item.request.batches:
            self._judge(batch.in_lane, batch, answers[batch.topic, batch.partition])
        self._hand_back_all([item.request])

    def written(self, request: ProduceRequest) -> None:
        """``acks=0``: the last byte has been given to the socket, and that is all there is."""
        for batch in request.batches:
            batch.in_lane.answered(batch)
            self._lane_changed(batch.in_lane)
            self._deliver(batch, -1, -1)

    def lost(self, item: Lost) -> None:
        """The connection is lost, and with it what was under way."""
        requests = [*item.unanswered, *item.unwritten]
        for request in requests:
            for batch in request.batches:
                batch.in_lane.answered(batch)
                if request in item.unanswered:
                    self._doubt(batch)
                # One with sequence numbers whose rows have all expired is retried if a younger one
                # needs it in the log: the lane decides when it hands back.
                again = batch.sequenced or batch.next_deadline() is not None
                self._fail_lane(batch.in_lane, *([batch] if again else ()), pause=True)
        self._hand_back_all(requests)

    def hand_back(self, lane: Lane) -> None:
        """If *lane* has failed and nothing of it is unanswered: all that is in it goes round."""
        if not lane.failing:
            return
        pause = lane.pause
        again, doubtful = lane.hand_back()
        for batch in doubtful:
            self.fail_doubtful(batch)
        if not again:
            return
        wait = 0.0
        if pause and not isinstance(again[0], Chaser):
            wait = backoff(
                self._config.retry_backoff_ms / 1000,
                self._config.retry_backoff_max_ms / 1000,
                max(0, again[0].level - 1),
                chance.random(),
            )
        now = self._clock.monotonic()
        for item in again:
            if isinstance(item, Batch):
                self._meter.batch_again(item, now)
            if (trace := self._meter.trace) is not None and not isinstance(item, Chaser):
                why = self._trouble.why(item.topic, item.partition)
                trace.note("goes again", None, item, level=item.level, wait_s=wait, detail=why)
        self._retry.put(Again(again, now + wait))

    def _hand_back_all(self, requests: Iterable[ProduceRequest]) -> None:
        for request in requests:
            for batch in request.batches:
                self.hand_back(batch.in_lane)

    # One batch -----------------------------------------------------------------------------------

    def _judge(self, lane: Lane, batch: Batch, answer: ProducedPartition) -> None:
        older = lane.answered(batch)
        self._lane_changed(lane)
        verdict = judge(
            answer.error_code,
            older_unsettled=older,
            count=batch.count,
            sequenced=batch.sequenced,
            has_offset=answer.base_offset >= 0,
        )
        if verdict.possibly_persisted:
            self._doubt(batch)
        match verdict.action:
            case Action.DELIVERED:
                self._trouble.delivered(batch.topic, batch.partition)
                if batch.sequenced:
                    lane.sequencer.delivered(batch.number)
                self._deliver(batch, answer.base_offset, answer.log_append_time_ms)
            case Action.FAILED:
                if not self._refused_in_part(lane, batch, answer):
                    self._refused(lane, batch, answer)
            case Action.SPLIT:
                self._split(lane, batch)
            case Action.AGAIN if batch.retries_used >= self._config.retries:
                self._refused(lane, batch, answer, retries_used=batch.retries_used)
            case action:
                self._again(lane, batch, answer, action)

    def _deliver(self, batch: Batch, base_offset: int, log_append_time_ms: int) -> None:
        index = 0
        now = self._clock.monotonic()
        for part in batch.parts:
            offset = base_offset + index if base_offset >= 0 else -1
            index += part.count
            self._settler.deliver(part, offset, log_append_time_ms, now)

    def _again(self, lane: Lane, batch: Batch, answer: ProducedPartition, action: Action) -> None:
        if action is Action.AGAIN:
            batch.retries_used += 1
            if batch.level >= _LOOK_FROM_LEVEL:
                self._metadata.refused(batch.topic, batch.partition)
        elif action is Action.MOVED:
            self._metadata.refused(batch.topic, batch.partition)
        elif action in (Action.NEW_EPOCH, Action.NEW_PRODUCER_ID):
            lane.spoil(id_too=action is Action.NEW_PRODUCER_ID)
            # The broker does not say what has become of the partition's log meanwhile.
            for part in batch.parts:
                part.doubt()
        text = f"the broker's last answer: {code_text(answer.error_code)}"
        self._trouble.partitions[batch.topic, batch.partition] = text
        self._fail_lane(lane, batch, pause=not _may_go_at_once(action, batch, answer))

    def _split(self, lane: Lane, batch: Batch) -> None:
        if batch.sequenced:
            lane.spoil()
        batch.split()
        self._fail_lane(lane, batch)

    # Failures ------------------------------------------------------------------------------------

    def _refused(
        self, lane: Lane, batch: Batch, answer: ProducedPartition, retries_used: int | None = None
    ) -> None:
        make_error = _refusal(batch, answer, answer.error_message, retries_used)
        if answer.error_code in NO_RIGHT:
            self._trouble.refused(batch.topic, make_error(Status.NOT_PERSISTED))
        for part in batch.parts:
            part.unclaim()
            self._settler.fail(part, make_error)
        if batch.sequenced:
            if not batch.possibly_persisted:
                lane.sequencer.missing(*batch.numbered)
            lane.spoil()
            self._fail_lane(lane)

    def _refused_in_part(self, lane: Lane, batch: Batch, answer: ProducedPartition) -> bool:
        """Fail only the messages for which the broker refused the batch, if it names them.

        The others are sealed again without them (KIP-467).
        """
        texts = {n: text for n, text in answer.record_errors if 0 <= n < batch.count}
        if not 0 < len(texts) < batch.count:
            return False
        for text, parts in batch.refused(texts).items():
            for part in parts:
                part.unclaim()
                self._settler.fail(part, _refusal(batch, answer, text or answer.error_message))
        if batch.sequenced:
            lane.spoil()
        self._fail_lane(lane, batch)
        return True

    def _doubt(self, batch: Batch) -> None:
        """Nobody knows whether this attempt was appended. Sticks to its rows."""
        batch.possibly_persisted = True
        for part in batch.parts:
            part.doubt()

    def refuse_pending(self, lane: Lane, code: int) -> None:
        """Fail with *code* what is pending and unsealed in *lane*: it cannot be sealed."""
        for part in lane.unsealed():
            self._settler.fail(
                part,
                lambda status: delivery_error_for(
                    code,
                    topic=lane.topic,
                    partition=lane.partition,
                    status=status,
                    detail="it gives this client no producer id",
                ),
            )
        lane.sweep()

    def fail_doubtful(self, batch: Batch) -> None:
        """*batch* must not go again: it might be in the log twice, or behind a younger one."""
        where = place(batch.topic, batch.partition)
        if batch.possibly_persisted:
            text = (
                f"{where}: its sequence numbers became void while it was under way, and nobody "
                f"knows whether it is in the log; sent again it might be there twice"
            )
        else:
            text = (
                f"{where}: it was refused while later messages of the partition were not; sent "
                f"again it would stand behind them"
            )
        for part in batch.parts:
            self._settler.fail(
                part,
                lambda status: DeliveryError(
                    text, status=status, topic=batch.topic, partition=batch.partition
                ),
            )

    def _fail_lane(self, lane: Lane, *items: Batch, pause: bool = False) -> None:
        lane.fail(*items, pause=pause)
        self._lane_changed(lane)

    def _pass_on_hints(self, answer: ProduceAnswer) -> None:
        """Where a partition's leader has gone, if the broker says so (KIP-951)."""
        if not answer.node_endpoints:
            return
        addresses = {broker.node_id: broker for broker in answer.node_endpoints}
        hints: list[LeaderHint] = []
        for partition in answer.partitions:
            if partition.current_leader is not None:
                broker_id, epoch = partition.current_leader
                leader = addresses.get(broker_id)
                if leader is not None:
                    hint = LeaderHint(partition.topic, partition.partition, epoch, leader)
                    hints.append(hint)
        if hints:
            self._metadata.hint(hints)


def _may_go_at_once(action: Action, batch: Batch, answer: ProducedPartition) -> bool:
    """Whether there is nothing that time has to mend before *batch* goes again."""
    if action is Action.BEHIND:
        return True  # the older one says whether to wait
    # The new leader is known. Two brokers that each name the other must not be asked in turn as
    # fast as they answer: without backoff once only.
    moved = action is Action.MOVED and answer.current_leader is not None
    return moved and batch.level == 0


def _refusal(
    batch: Batch,
    answer: ProducedPartition,
    detail: str | None,
    retries_used: int | None = None,
) -> MakeError:
    return lambda status: delivery_error_for(
        answer.error_code,
        topic=batch.topic,
        partition=batch.partition,
        status=status,
        detail=detail,
        retries_used=retries_used,
    )
