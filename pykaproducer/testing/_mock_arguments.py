"""The arguments of :class:`~pykaproducer.testing.MockProducer` and its methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pykaproducer._errors.formatting import check_topic, format_partition
from pykaproducer.errors import DeliveryError, DeliveryTimeoutError, Status, delivery_error_for
from pykaproducer.testing._mock_outcomes import MakeError

#: Number of partitions of a topic for which none is given.
_PARTITIONS = 1


def error_maker_for(error: BaseException | int | None, status: Status | None) -> MakeError:
    """Return a function that makes the outcome for what the test has given."""
    wanted = Status.NOT_PERSISTED if status is None else status
    if isinstance(error, DeliveryError):
        if status is not None:
            raise TypeError("a DeliveryError has its own status; omit status")
        return lambda topic, partition, _: error
    if error is None:
        return lambda topic, partition, _: DeliveryTimeoutError(
            topic=topic, partition=partition, waited=0.0, status=wanted, reason="fail_next()"
        )
    if isinstance(error, int) and not isinstance(error, bool):
        return lambda topic, partition, _: delivery_error_for(
            error, topic=topic, partition=partition, status=wanted
        )
    if isinstance(error, Exception):
        return lambda topic, partition, _: DeliveryError(
            f"{format_partition(topic, partition)}: {type(error).__name__}: {error}",
            status=wanted,
            topic=topic,
            partition=partition,
            cause=error,
        )
    raise TypeError(
        f"error must be an exception, an error code of Kafka or None, not {error!a:.60}"
    )


def checked_partitions(partitions: Any) -> tuple[dict[str, int], int]:
    """Return the numbers of partitions by topic, and that of the other topics."""
    if partitions is None:
        return {}, _PARTITIONS
    if not isinstance(partitions, Mapping):
        return {}, _checked_count(partitions, "partitions")
    for topic, count in partitions.items():
        check_topic(topic)
        _checked_count(count, f"partitions[{topic!r}]")
    return dict(partitions), _PARTITIONS


def _checked_count(count: Any, name: str) -> int:
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(f"{name} must be an int, not {type(count).__name__}")
    if count < 1:
        raise ValueError(f"{name} must be at least 1, not {count}")
    return count
