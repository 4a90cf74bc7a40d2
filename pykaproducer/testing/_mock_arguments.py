"""The arguments of :class:`~pykaproducer.testing.MockProducer` and its methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from kafka.errors import BrokerResponseError

from pykaproducer._errors.formatting import check_topic, format_partition
from pykaproducer.errors import DeliveryError, DeliveryTimeoutError, Status, delivery_error_for
from pykaproducer.testing._mock_outcomes import MakeError

#: Number of partitions of a topic for which none is given.
_PARTITIONS = 1


def error_maker_for(
    error: BaseException | type[BaseException] | int | None, status: Status | None
) -> MakeError:
    """Return a function that makes the outcome for what the test has given."""
    wanted = Status.NOT_PERSISTED if status is None else status
    if isinstance(error, DeliveryError):
        if status is not None:
            raise TypeError("a DeliveryError has its own status; omit status")
        return _itself(cast(DeliveryError, error))
    if error is None:
        return lambda topic, partition, _: DeliveryTimeoutError(
            topic=topic, partition=partition, waited=0.0, status=wanted, reason="fail_next()"
        )
    if isinstance(error, BrokerResponseError) or _is_class(error, BrokerResponseError):
        return _rejected(int(error.errno), wanted)  # type: ignore[union-attr]
    if isinstance(error, int) and not isinstance(error, bool):
        return _rejected(error, wanted)
    if isinstance(error, Exception):
        return _caused(error, wanted)
    raise TypeError(
        f"error must be an exception, an error code of Kafka or None, not {error!a:.60}"
    )


def _is_class(given: object, kind: type) -> bool:
    return isinstance(given, type) and issubclass(given, kind)


def _itself(error: BaseException) -> MakeError:
    return lambda topic, partition, status: error


def _rejected(code: int, status: Status) -> MakeError:
    """Return a function that makes the error for a broker's answer with *code*."""
    if not code:
        raise ValueError("error must be an error code of Kafka, and 0 means that there is none")
    return lambda topic, partition, _: delivery_error_for(
        code, topic=topic, partition=partition, status=status
    )


def _caused(cause: Exception, status: Status) -> MakeError:
    return lambda topic, partition, _: DeliveryError(
        f"{format_partition(topic, partition)}: {type(cause).__name__}: {cause}",
        status=status,
        topic=topic,
        partition=partition,
        cause=cause,
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
