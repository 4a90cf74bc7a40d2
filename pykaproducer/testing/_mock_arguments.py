"""The arguments of :class:`~pykaproducer.testing.MockProducer` and its methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from kafka.errors import BrokerResponseError

from pykaproducer._config.schema import INT_MAX
from pykaproducer._errors.formatting import check_topic, format_error_code, format_partition
from pykaproducer._machines.verdicts import Action, classify
from pykaproducer.config import Config
from pykaproducer.errors import DeliveryError, DeliveryTimeoutError, Status, delivery_error_for
from pykaproducer.testing._mock_outcomes import MakeError

#: Number of partitions of a topic for which none is given.
_PARTITIONS = 1


def error_maker_for(
    error: BaseException | type[BaseException] | int | None, status: Status | None, config: Config
) -> MakeError:
    """Return a function that makes the outcome for what the test has given."""
    if status is not None and not isinstance(status, Status):
        raise TypeError(f"status must be a pykaproducer.Status, not {status!a:.60}")
    wanted = Status.NOT_PERSISTED if status is None else status
    if isinstance(error, DeliveryError):
        if status is not None:
            raise TypeError("a DeliveryError has its own status; omit status")
        return _itself(cast(DeliveryError, error))
    if error is None:
        return _expired(wanted, "the test called fail_next()", config)
    if isinstance(error, BrokerResponseError) or _is_class(error, BrokerResponseError):
        return _answered(int(error.errno), status, config)  # type: ignore[union-attr]
    if isinstance(error, int) and not isinstance(error, bool):
        return _answered(error, status, config)
    if isinstance(error, Exception):
        return _caused(error, wanted)
    if _is_class(error, BaseException):
        raise TypeError(f"error must be an instance: {error.__name__}(...), not the class")  # type: ignore[union-attr]
    raise TypeError(
        f"error must be an exception, an error code of Kafka or None, not {error!a:.60}"
    )


def _is_class(given: object, kind: type) -> bool:
    return isinstance(given, type) and issubclass(given, kind)


def _itself(error: BaseException) -> MakeError:
    return lambda topic, partition, status: error


def _expired(status: Status, reason: str, config: Config) -> MakeError:
    """Return a function that makes the error of a message whose deadline has passed."""
    return lambda topic, partition, _: DeliveryTimeoutError(
        topic=topic,
        partition=partition,
        waited=config.delivery_timeout_ms / 1000,
        status=status,
        reason=reason,
    )


def _answered(code: int, status: Status | None, config: Config) -> MakeError:
    """Return a function that makes the outcome of a message that brokers always refuse with *code*.

    A code after which the producer sends the message again ends at the message's deadline, unless
    ``retries`` is limited. *status* replaces the one that follows from the code.
    """
    if not code:
        raise ValueError("error must be an error code of Kafka, and 0 means that there is none")
    verdict = classify(code, older_unsettled=False, count=1, sequenced=config.idempotent)
    if verdict.action is Action.DELIVERED:
        raise ValueError(
            f"error must be an error code of Kafka that is a failure; after "
            f"{format_error_code(code)} a message counts as delivered"
        )
    uncertain = verdict.possibly_persisted
    retries = None
    if verdict.action is Action.RETRY and config.retries < INT_MAX:
        retries = config.retries
    elif verdict.action is not Action.FAILED:
        # A sealed batch with sequence numbers is retried until all of its messages have expired, so
        # a message that expires may be in the log (docs/design.rst).
        uncertain = uncertain or config.idempotent
        given = _status(uncertain) if status is None else status
        reason = f"the broker's last response: {format_error_code(code)}"
        return _expired(given, reason, config)
    given = _status(uncertain) if status is None else status
    return lambda topic, partition, _: delivery_error_for(
        code, topic=topic, partition=partition, status=given, retries_used=retries
    )


def _status(uncertain: bool) -> Status:
    return Status.POSSIBLY_PERSISTED if uncertain else Status.NOT_PERSISTED


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
