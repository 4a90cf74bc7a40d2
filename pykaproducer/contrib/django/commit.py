"""Messages that belong to a transaction: sent when it commits, and only then."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from django.db import transaction

from pykaproducer.contrib.django.producers import DEFAULT, get_producer
from pykaproducer.delivery import Delivery

log = logging.getLogger("pykaproducer.contrib")

Report = Callable[[BaseException | None, Delivery], object]


def send_on_commit(
    topic: str,
    value: Any = None,
    key: Any = None,
    headers: Sequence[tuple[str, bytes | None]] | None = None,
    partition: int | None = None,
    timestamp_ms: int | None = None,
    *,
    using: str | None = None,
    producer: str = DEFAULT,
    robust: bool = True,
    on_delivery: Report | None = None,
    delivery_timeout_ms: int | None = None,
) -> None:
    """``send()`` when the transaction commits; never, if it is rolled back.

    Outside of a transaction: at once. A process that dies between the commit and the delivery
    loses the message: who cannot bear that keeps it in a table and sends from there.

    Args:
        topic, value, key, headers, partition, timestamp_ms, delivery_timeout_ms: as for
            ``Producer.send``.
        using (str): the alias of the database; None: the default one.
        producer (str): the alias of the producer.
        robust (bool): an error in ``send()`` (the buffer is full, the message too large) is
            written to Django's log and harms neither the response nor what else waits for the
            commit. False: it is raised, behind the commit.
        on_delivery: as for ``Producer.send``; without one a message that is not delivered is
            written to the log ``pykaproducer.contrib``.

    Raises:
        ImproperlyConfigured: at once, in the transaction, if there is no such producer.
    """
    chosen = get_producer(producer)

    def send() -> None:
        chosen.send(
            topic,
            value,
            key,
            headers,
            partition,
            timestamp_ms,
            on_delivery=on_delivery or _log_failure,
            delivery_timeout_ms=delivery_timeout_ms,
        )

    transaction.on_commit(send, using=using, robust=robust)


def _log_failure(error: BaseException | None, delivery: Delivery) -> None:
    """As ``on_delivery``: a message whose handle nobody has is not lost without a word."""
    if error is not None:
        log.error("a message was not delivered: %s", error)
