"""Producer ids: when to request one, and which stages wait for it. Part of Metadata.

Messages wait while the cluster assigns no id, for example because it has just started. If the
client is not authorized, waiting would not help: the waiting stages get :class:`NoProducerId`, and
fail their messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._errors.formatting import format_error_code
from pykaproducer._errors.hints import ADVICE
from pykaproducer._machines.cluster import Backoff
from pykaproducer._machines.refresh import Handled
from pykaproducer._machines.sequencing import ProducerId
from pykaproducer._pipeline.last_errors import LastErrors
from pykaproducer._pipeline.worker import Worker
from pykaproducer._util.clock import Clock
from pykaproducer._util.guarded_log import GuardedLogger
from pykaproducer._util.randomness import system_random
from pykaproducer._wire.messages import (
    ApiKey,
    ProducerIdAnswer,
    decode_init_producer_id,
    init_producer_id_request,
)
from pykaproducer.config import Config

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from pykaproducer._pipeline.metadata import Metadata

log = GuardedLogger("pykaproducer.metadata")

#: How long a broker that has just started may reject requests without a warning (seconds).
_MOMENT = 3.0


class ProducerIdCame:
    """A producer id is available."""


class NoProducerId(NamedTuple):
    """The cluster permanently refuses a producer id, with this error code."""

    code: int


class ProducerIds:
    """The producer id for new partitions, and the stages that wait for one."""

    def __init__(self, config: Config, clock: Clock, last_errors: LastErrors) -> None:
        self._clock = clock
        self._last_errors = last_errors
        #: The latest id; None: one is requested when it is needed.
        self.current: ProducerId | None = None
        self._wanted_by: dict[Worker[ProducerIdCame | NoProducerId], None] = {}
        self._under_way = False
        # Since when requests have failed (monotonic seconds), and whether that was logged.
        self._since: float | None = None
        self._warned = False
        self._not_before = 0.0
        self._backoff = Backoff(config.retry_backoff_ms / 1000, config.retry_backoff_max_ms / 1000)

    def want(self, waiter: Worker[ProducerIdCame | NoProducerId], instead_of: int | None) -> None:
        """Notify *waiter*, once, when there is an id other than *instead_of*."""
        current = self.current
        if current is not None and current.producer_id == instead_of:
            current = self.current = None
        if current is not None:
            waiter.put(ProducerIdCame())
        else:
            self._wanted_by[waiter] = None

    def due(self) -> float | None:
        """Return when to request an id, None if none is needed or a request is in flight."""
        return self._not_before if self._wanted_by and not self._under_way else None

    def ask(self, metadata: Metadata, server: tuple[str, int]) -> None:
        """Request an id from *server*, to which *metadata* is connected."""
        if (reason := metadata.refuses(ApiKey.INIT_PRODUCER_ID)) is not None:
            # Do not submit the request: the connection would be closed, and the view become stale.
            host, port = server
            self.unavailable(
                f"the broker at {host}:{port} assigns no producer ids: {reason}; set "
                f"enable_idempotence=False, or upgrade the broker"
            )
            return
        self._under_way = True
        metadata.ask(ApiKey.INIT_PRODUCER_ID, init_producer_id_request)

    def lost(self) -> None:
        """Record that the connection is lost, and with it a request in flight."""
        self._under_way = False

    def answered(self, version: int, payload: Buffer) -> Handled:
        """Decode and handle the response. Raises WireError."""
        answer = decode_init_producer_id(version, payload)
        self.came(answer)
        passes = answer.error_code not in (ErrorCode.NONE, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return Handled(answer.throttle_ms, ProducerId, in_vain=passes)

    def came(self, answer: ProducerIdAnswer) -> None:
        """Handle a decoded response."""
        self._under_way = False
        if answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            self._no_right()
        elif answer.error_code:
            self.unavailable(
                f"the cluster gives no producer id: {format_error_code(answer.error_code)}",
                passes=True,
            )
        else:
            self._last_errors.producer_id = None
            self._since = None
            self._warned = False
            self._backoff.reset()
            self.current = ProducerId(answer.producer_id, answer.producer_epoch)
            self._tell(ProducerIdCame())

    def unavailable(self, text: str, *, passes: bool = False) -> None:
        """Request an id later, as there is none now; *text* is the reason.

        *passes*: the reason may be temporary, as for a broker that has just started, so it is
        logged only if it persists.
        """
        now = self._clock.monotonic()
        self._not_before = now + self._backoff.next(system_random.random())
        self._since = now if self._since is None else self._since
        if not self._warned and (not passes or now - self._since >= _MOMENT):
            self._warned = True
            log.warning("%s; messages wait", text)
        self._last_errors.producer_id = text

    def _no_right(self) -> None:
        """Have the waiting messages failed. The next message requests an id again."""
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        text = f"the cluster gives no producer id: {format_error_code(code)}; {ADVICE[code]}"
        self._not_before = self._clock.monotonic() + self._backoff.next(system_random.random())
        if self._last_errors.producer_id != text:
            log.error("%s", text)
        self._last_errors.producer_id = text
        self._tell(NoProducerId(code))

    def _tell(self, item: ProducerIdCame | NoProducerId) -> None:
        waiters, self._wanted_by = self._wanted_by, {}
        for worker in waiters:
            worker.put(item)
