"""Messages that belong to a database transaction and are only sent when it commits."""

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
    """Call ``send()`` when the transaction commits, but not if it is rolled back.

    Outside of a transaction, the message is sent immediately. A process that dies between the
    commit and the delivery loses the message. If that is not acceptable, store messages in a table
    and send them from there.

    Args:
        topic, value, key, headers, partition, timestamp_ms, delivery_timeout_ms: as for
            ``Producer.send``.
        using (str): the alias of the database; None is the default one.
        producer (str): the alias of the producer.
        robust (bool): log an error in ``send()`` (a full buffer, a message that is too large) to
            Django's log, so that it affects neither the response nor other functions that wait for
            the commit. False raises it after the commit.
        on_delivery: as for ``Producer.send``; without one, undelivered messages are logged to
            ``pykaproducer.contrib``.

    Raises:
        ImproperlyConfigured: there is no such producer; raised immediately, in the transaction.
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
    """Log a failure, as ``on_delivery`` of a message without a handle that is read."""
    if error is not None:
        log.error("a message was not delivered: %s", error)
