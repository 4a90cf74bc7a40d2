"""The producer id: when to request it, and which stages wait for it. Part of Metadata.

Messages wait while the cluster gives no id, for example because it has just started. If this client
has no right to one waiting does not help: the stages that wait get :class:`NoProducerId`, and fail
their messages.
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

#: How long a broker that has just started may refuse without a warning (seconds).
_MOMENT = 3.0


@dataclass(frozen=True, slots=True)
class ProducerIdCame:
    """The producer id is there."""


@dataclass(frozen=True, slots=True)
class NoProducerId:
    """The cluster refuses one for good, with this error code: messages that wait for it fail."""

    code: int


class ProducerIds:
    """The id that new partitions count under, and the stages that wait for one."""

    def __init__(self, config: Config, clock: Clock, trouble: Trouble) -> None:
        self._clock = clock
        self._trouble = trouble
        #: The last one that came; None: one is requested when it is wanted.
        self.current: ProducerId | None = None
        self._wanted_by: dict[Worker, None] = {}
        self._under_way = False
        # Since when it is refused (monotonic seconds), and whether the log has named the reason.
        self._since: float | None = None
        self._warned = False
        self._not_before = 0.0
        self._backoff = Backoff(config.retry_backoff_ms / 1000, config.retry_backoff_max_ms / 1000)

    def want(self, waiter: Worker, instead_of: int | None) -> None:
        """Notify *waiter*, once, when there is an id other than *instead_of*."""
        current = self.current
        if current is not None and current.producer_id == instead_of:
            current = self.current = None
        if current is not None:
            waiter.put(ProducerIdCame())
        else:
            self._wanted_by[waiter] = None

    @property
    def is_wanted(self) -> bool:
        """Return whether a stage waits for one."""
        return bool(self._wanted_by)

    def due(self) -> float | None:
        """Return when to request one; None if none is wanted, or a request is under way."""
        return self._not_before if self._wanted_by and not self._under_way else None

    def sent(self) -> None:
        """Record that one has been requested."""
        self._under_way = True

    def lost(self) -> None:
        """Record that the connection is lost, and with it a request under way."""
        self._under_way = False

    def came(self, answer: ProducerIdAnswer) -> None:
        """Process the answer."""
        self._under_way = False
        if answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            self._no_right()
        elif answer.error_code:
            self.unavailable(
                f"the cluster gives no producer id: {code_text(answer.error_code)}", passes=True
            )
        else:
            self._trouble.producer_id = None
            self._since = None
            self._warned = False
            self._backoff.reset()
            self.current = ProducerId(answer.producer_id, answer.producer_epoch)
            self._tell(ProducerIdCame())

    def unavailable(self, text: str, *, passes: bool = False) -> None:
        """Request one later: there is none now, for the reason in *text*.

        *passes*: a broker that has just started refuses for a moment, so the log names the reason
        only if it lasts.
        """
        now = self._clock.monotonic()
        self._not_before = now + self._backoff.next(chance.random())
        self._since = now if self._since is None else self._since
        if not self._warned and (not passes or now - self._since >= _MOMENT):
            self._warned = True
            log.warning("%s; messages wait", text)
        self._trouble.producer_id = text

    def _no_right(self) -> None:
        """Fail what waits. The next message requests an id again: a right may be granted later."""
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
