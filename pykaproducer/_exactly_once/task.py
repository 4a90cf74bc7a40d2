"""A task: writes its rows in a transaction that stays open, and that the driver ends."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._exactly_once import points
from pykaproducer._exactly_once.errors import ExactlyOnceError
from pykaproducer._exactly_once.fates import Fate, commit_decided
from pykaproducer._exactly_once.records import BatchKey, Decision, Marker, TaskToken
from pykaproducer._exactly_once.setup import OnPartialCommit, Setup, WriteKind, check_decision
from pykaproducer._exactly_once.state import (
    SinkState,
    marker_offsets,
    partitions_of_state_topic,
)
from pykaproducer._load.summary import Summary
from pykaproducer.errors import PykaproducerError, TransactionError
from pykaproducer.producer import Producer
from pykaproducer.transaction_control import TransactionControl


class TaskPlace(NamedTuple):
    """A task, and its attempt."""

    #: The partition of the DataFrame.
    task: int
    #: 0 for the first attempt.
    attempt: int


@dataclass(frozen=True)
class TaskResult:
    """The result of a task, which travels to the driver."""

    task: int
    attempt: int
    #: The number of rows that the task has read, and the sum of their checksums, modulo 2**64.
    rows: int
    checksum: int
    #: The number of partitions of the state topic; 0 if the task has no rows.
    partitions: int
    #: The outcomes of the rows that the task has sent.
    summary: Summary
    #: The prepared transaction. None if the task has no rows, or if they are committed already.
    token: TaskToken | None
    #: Whether the task sent nothing because its batch is committed already.
    is_done: bool = False


class Rows(Protocol):
    """The rows of a task, which can be read once."""

    def is_empty(self) -> bool:
        """Return whether there are no rows. Rows that are read for this are kept."""

    def read(self) -> tuple[int, int]:
        """Read all rows. Return their number and checksum."""

    def send(self, producer: Producer) -> tuple[int, int, Summary]:
        """Send all rows and wait for their outcomes. Return their number, checksum and summary."""


def write_rows(
    setup: Setup,
    key: BatchKey,
    place: TaskPlace,
    rows: Rows,
    control: TransactionControl,
    producer_for_task: Callable[[], AbstractContextManager[Producer]],
) -> TaskResult:
    """Write *rows* in a transaction that stays open, unless they are committed already.

    Args:
        setup: the options.
        key: the batch.
        place: the task and its attempt.
        rows: the rows of the task.
        control: reads the state, and ends transactions that are decided.
        producer_for_task: yields a producer without an open transaction, and closes it if the task
            fails.

    Returns:
        TaskResult: with a token, unless there are no rows, or they are committed already.

    Raises:
        ExactlyOnceError: the batch does not fit the committed state, an earlier decision could not
            be completed, or the transaction cannot be used. Nothing of this attempt is visible.
        PykaproducerError: a row failed, or the brokers did not respond; the transaction is aborted.
    """
    state = SinkState(control, setup.names, setup.call_timeout)
    last = state.decision()
    # The driver looks for queries with other state topics at each batch.
    check_decision(setup, key, last, state.elsewhere() if last is None else {})
    points.reached("read", *place)
    if last is not None and last.key == key and _is_written(setup, last, place, control, state):
        count, checksum = rows.read()
        return TaskResult(*place, count, checksum, last.partitions, Summary(), None, is_done=True)
    if rows.is_empty():
        return TaskResult(*place, 0, 0, 0, Summary(), None)
    if last is not None and last.key != key and setup.kind is not WriteKind.STREAM:
        _complete_earlier(setup, last, place, control, state)
    partitions = 0 if last is None else last.partitions
    if not partitions and not setup.may_create_state_topic:
        partitions = partitions_of_state_topic(
            control.config, setup.names.state_topic, setup.call_timeout
        )
    with producer_for_task() as producer:
        return _write(setup, key, place, rows, producer, partitions)


def _is_written(
    setup: Setup, last: Decision, place: TaskPlace, control: TransactionControl, state: SinkState
) -> bool:
    """Return whether this task need not write its rows, because its batch is decided.

    Transactions of the decision that are still open are committed to find out:

    * The task's own one was lost: its rows, in any layout, are missing. Write.
    * It was committed: do not write. If the replay has another layout, the task with this number
      may have had other rows, and some of the present ones may be missing; the driver finds out.
      But with ``duplicate`` all tasks write if any transaction was lost.
    * The decision has none of this task, which had no rows, or did not exist: write if all
      transactions were lost, or with ``duplicate`` if any was.
    """
    if not last.tokens:
        return False  # the batch had no rows
    own = replace(last, tokens=tuple(each for each in last.tokens if each.task == place.task))
    repeats = setup.on_partial_commit is OnPartialCommit.DUPLICATE
    fates = commit_decided(own, setup, control, state)
    if own.tokens and (not repeats or Fate.LOST in fates.values()):
        return Fate.LOST not in fates.values()
    fates = commit_decided(last, setup, control, state)
    if Fate.LOST not in fates.values():
        return True
    return Fate.COMMITTED in fates.values() and not repeats


def _complete_earlier(
    setup: Setup, last: Decision, place: TaskPlace, control: TransactionControl, state: SinkState
) -> None:
    """Commit the transaction of this place that *last* lists, before its id is used again.

    A stream repeats a batch that is not complete. Here another write may follow, if the program
    died and was not started again, or leaves the batch out.
    """
    own = tuple(each for each in last.tokens if (each.task, each.attempt) == place)
    commit_decided(replace(last, tokens=own), setup, control, state)


def _initialize(setup: Setup, producer: Producer, place: TaskPlace) -> None:
    try:
        producer.init_transactions(transactional_id=setup.names.task(*place))
    except TransactionError as error:
        if error.code != ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            raise
        raise ExactlyOnceError(
            f"option kafka.transaction.timeout.ms: {setup.timeout_ms} is above the brokers' "
            f"transaction.max.timeout.ms; lower it, or raise that of the brokers"
        ) from None


def _write(
    setup: Setup,
    key: BatchKey,
    place: TaskPlace,
    rows: Rows,
    producer: Producer,
    partitions: int,
) -> TaskResult:
    names = setup.names
    partitions = partitions or len(producer.partitions_for(names.state_topic))
    _initialize(setup, producer, place)
    points.reached("initialized", *place)
    producer.begin_transaction()
    try:
        count, checksum, summary = rows.send(producer)
        points.reached("sent", *place)
        group, at = names.marker(place.task, partitions)
        marker = Marker(key, place.task, count, checksum, *_identity(producer))
        producer.send_offsets_to_transaction(marker_offsets(marker, at), group)
        points.reached("marked", *place)
        token = producer.prepare_transaction()
    except BaseException:
        with contextlib.suppress(PykaproducerError):
            producer.abort_transaction()
        raise
    points.reached("prepared", *place)
    result = TaskToken(*place, *token[1:4])
    if not marker.is_of(result):
        raise ExactlyOnceError(
            f"task {place.task}: the producer id changed within the transaction, from "
            f"{marker.producer_id}:{marker.producer_epoch} to "
            f"{result.producer_id}:{result.producer_epoch}; the next attempt writes the rows again"
        )
    return TaskResult(*place, count, checksum, partitions, summary, result)


def _identity(producer: Producer) -> tuple[int, int]:
    """Return the producer id and the epoch of the open transaction."""
    found = producer.stats()["transactions"]
    return found["producer_id"], found["producer_epoch"]
