"""What becomes of messages that nobody waits for."""

from __future__ import annotations

import logging

from pykaproducer.delivery import Delivery

log = logging.getLogger("pykaproducer.contrib")


def log_failure(error: BaseException | None, delivery: Delivery) -> None:
    """As ``on_delivery``: a message whose handle nobody has is not lost without a word."""
    if error is not None:
        log.error("a message was not delivered: %s", error)
