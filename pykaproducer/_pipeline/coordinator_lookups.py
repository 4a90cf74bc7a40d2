"""Finding coordinators of transactional ids and groups. Part of Metadata.

Any broker knows which one is the coordinator (FindCoordinator). The lookups of all stages go over
the connection of Metadata, one at a time. If that is lost, they are repeated on the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._machines.refresh import Handled
from pykaproducer._pipeline.metadata_events import CoordinatorCame, WantCoordinator
from pykaproducer._pipeline.worker import Worker
from pykaproducer._wire.messages import ApiKey

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from pykaproducer._pipeline.metadata import Metadata
    from pykaproducer._wire.transactions import CoordinatorKind


class CoordinatorLookups:
    """The lookups that stages wait for."""

    def __init__(self) -> None:
        # The waiters of each, and whether the last result was of no use to them.
        self._wanted: dict[tuple[CoordinatorKind, str], dict[Worker[CoordinatorCame], bool]] = {}
        self._in_flight: tuple[CoordinatorKind, str] | None = None

    def due(self) -> float | None:
        """Return 0.0 if a lookup is to be sent now, None if none is needed or one is in flight."""
        return 0.0 if self._wanted and self._in_flight is None else None

    def want(self, item: WantCoordinator) -> None:
        """Add a lookup, or a waiter to the same one."""
        self._wanted.setdefault((item.kind, item.key), {})[item.waiter] = item.again

    def ask(self, metadata: Metadata) -> None:
        """Send the oldest lookup. Only while *metadata* has a connection."""
        # Imported before, with the stage that wants the lookup.
        from pykaproducer._wire.transactions import find_coordinator_request

        kind, key = self._in_flight = next(iter(self._wanted))
        if metadata.refuses(ApiKey.FIND_COORDINATOR) is not None:
            self._deliver(CoordinatorCame(key, None, ErrorCode.UNSUPPORTED_VERSION))
            return
        metadata.ask(
            ApiKey.FIND_COORDINATOR,
            lambda version, correlation_id, client_id: find_coordinator_request(
                version, correlation_id, client_id, kind, [key]
            ),
        )

    def lost(self) -> None:
        """Record that the connection is lost, and with it a lookup in flight."""
        self._in_flight = None

    def answered(self, version: int, payload: Buffer) -> Handled:
        """Decode and handle the response. Raises WireError."""
        if self._in_flight is None:
            # The connection was closed because of a response that came together with this one. The
            # lookup is repeated.
            return Handled(0, None, in_vain=False)
        from pykaproducer._wire.transactions import decode_find_coordinator

        what = self._in_flight
        answer = decode_find_coordinator(version, payload, [what[1]])
        (found,) = answer.coordinators
        code = found.error_code
        in_vain = any(self._wanted[what].values())
        self._deliver(CoordinatorCame(found.key, None if code else found.address, code))
        return Handled(answer.throttle_ms, what, in_vain)

    def _deliver(self, found: CoordinatorCame) -> None:
        assert self._in_flight is not None
        waiters = self._wanted.pop(self._in_flight)
        self._in_flight = None
        for waiter in waiters:
            waiter.put(found)
