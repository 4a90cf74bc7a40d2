"""The log lines about connections: one for each change, not for each attempt."""

from __future__ import annotations

import logging

from pykaproducer._pipeline.last_errors import LastErrors
from pykaproducer._util.guarded_log import GuardedLogger

log = GuardedLogger("pykaproducer.broker")
metadata_log = GuardedLogger("pykaproducer.metadata")


class ConnectionLog:
    """Part of BrokerWorker. The last error is in *last_errors*, for messages that expire."""

    def __init__(self, broker_id: int, last_errors: LastErrors) -> None:
        self._broker_id = broker_id
        self._errors = last_errors.brokers
        self._was_up = False

    def connected(self) -> None:
        """Log a connection. The first one is INFO, if there was no error.

        After an error, the recovery is logged when the broker answers a request: a successful
        connection attempt alone does not show that the broker works again.
        """
        again = self._was_up or self._broker_id in self._errors
        level = logging.DEBUG if again else logging.INFO
        log.log(level, "broker %d: connected", self._broker_id)
        self._was_up = True

    def answered(self) -> None:
        """Log the recovery from an error, if there was one."""
        if self._errors.pop(self._broker_id, None) is not None:
            log.info("broker %d: works again", self._broker_id)

    def lost(self, reason: str, *, needed: bool, stopping: bool) -> None:
        """Log a *reason* that has changed, at DEBUG if the connection was not *needed*."""
        if self._errors.get(self._broker_id) != reason and not stopping:
            level = logging.WARNING if needed else logging.DEBUG
            log.log(level, "broker %d: %s; trying again", self._broker_id, reason)
        self._errors[self._broker_id] = reason


class ClusterLog:
    """Part of Metadata. The last error is in *last_errors*, for messages that expire."""

    def __init__(self, last_errors: LastErrors) -> None:
        self._errors = last_errors
        # Since the cluster last answered. There may be several, as the servers are tried in turn
        # and each may fail for a different reason.
        self._reasons: set[str] = set()

    def failed(self, reason: str, *, stopping: bool) -> None:
        """Log why there is no new view, once for each *reason*."""
        self._errors.cluster = reason
        if reason not in self._reasons and not stopping:
            self._reasons.add(reason)
            metadata_log.warning("%s; trying again", reason)

    def answered(self) -> None:
        """Log the recovery from errors, if there were any."""
        self._errors.cluster = None
        if self._reasons:
            metadata_log.info("the cluster answers again")
            self._reasons.clear()
