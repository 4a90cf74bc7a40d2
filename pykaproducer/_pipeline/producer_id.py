"""The producer id: who waits for it, and when it is asked for. A part of Metadata's, in its thread.

Messages wait while a broker that has just started has no ids to give. What no waiting mends (no
right to one, a broker that gives none) is passed on to whoever waits.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pykaproducer._advice import ADVICE
from pykaproducer._chance import chance
from pykaproducer._clock import Clock
from pykaproducer._machines.cluster import Backoff
from pykaproducer._machines.sequencing import ProducerId
from pykaproducer._pipeline.trouble import Trouble
from pykaproducer._pipeline.worker import Worker
from pykaproducer._texts import code_text
from pykaproducer._wire.error_codes import ErrorCode
from pykaproducer._wire.kafka_python import ProducerIdAnswer
from pykaproducer.config import Config

log = logging.getLogger("pykaproducer.metadata")


@dataclass(frozen=True, slots=True)
class ProducerIdCame:
    """The producer id is there."""


@dataclass(frozen=True, slots=True)
class NoProducerId:
    """The cluster refuses one for good, with this error code: messages that wait for it fail."""

    code: int


class ProducerIds:
    """The id that new partitions count under, and who waits for one."""

    def __init__(self, config: Config, clock: Clock, trouble: Trouble) -> None:
        self._clock = clock
        self._trouble = trouble
        #: The last one that came; None: the next that is wanted is asked for.
        self.current: ProducerId | None = None
        self._wanted_by: dict[Worker, None] = {}
        self._under_way = False
        self._not_before = 0.0
        self._backoff = Backoff(config.retry_backoff_ms / 1000, config.retry_backoff_max_ms / 1000)

    def want(self, waiter: Worker, instead_of: int | None) -> None:
        """*waiter* is told, once, when there is one other than *instead_of*."""
        current = self.current
        if current is not None and current.producer_id == instead_of:
            current = self.current = None
        if current is not None:
            waiter.put(ProducerIdCame())
        else:
            self._wanted_by[waiter] = None

    @property
    def is_wanted(self) -> bool:
        """Whether anybody waits for one."""
        return bool(self._wanted_by)

    def due(self) -> float | None:
        """When it is to be asked for; None: not, or it is under way."""
        return self._not_before if self._wanted_by and not self._under_way else None

    def sent(self) -> None:
        """It has been asked for."""
        self._under_way = True

    def lost(self) -> None:
        """The connection is lost, and with it what was under way."""
        self._under_way = False

    def came(self, answer: ProducerIdAnswer) -> None:
        """The answer."""
        self._under_way = False
        if answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            self._no_right()
        elif answer.error_code:
            self.unavailable(f"the cluster gives no producer id: {code_text(answer.error_code)}")
        else:
            self._trouble.producer_id = None
            self._backoff.reset()
            self.current = ProducerId(answer.producer_id, answer.producer_epoch)
            self._tell(ProducerIdCame())

    def unavailable(self, text: str) -> None:
        """There is none now, as *text* says: it is asked for again later."""
        self._not_before = self._clock.monotonic() + self._backoff.next(chance.random())
        if self._trouble.producer_id is None:
            log.warning("%s; messages wait", text)
        self._trouble.producer_id = text

    def _no_right(self) -> None:
        """What waits fails. The next message asks again: the right may have been granted."""
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        text = f"the cluster gives no producer id: {code_text(code)}; {ADVICE[code]}"
        self._not_before = self._clock.monotonic() + self._backoff.next(chance.random())
        if self._trouble.producer_id != text:
            log.error("%s", text)
        self._trouble.producer_id = text
        self._tell(NoProducerId(code))

    def _tell(self, item: ProducerIdCame | NoProducerId) -> None:
        waiters, self._wanted_by = self._wanted_by, {}
        for worker in waiters:
            worker.put(item)
