"""Asking a user's partitioner function for the partitions of a chunk's rows.

Used by the TopicWorker, and by ``pykaproducer.testing.MockProducer``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from pykaproducer._errors.formatting import format_partition
from pykaproducer._kernel import Chunk
from pykaproducer.errors import PartitionerError, Status
from pykaproducer.partitioners import PartitionerFunction

#: Fails a row: ``fail(row, make_error)``; *make_error* makes its error for a status.
FailRow = Callable[[int, Callable[[Status], PartitionerError]], None]


def assign_partitions(
    function: PartitionerFunction,
    chunk: Chunk,
    partitions: int,
    available: Sequence[int],
    fail: FailRow,
) -> None:
    """Assign the partition that *function* returns to each unassigned row of *chunk*.

    A row for which it raises, or returns something that is not a partition, is passed to *fail*.

    Args:
        function: the user's.
        chunk: the rows.
        partitions: the topic's number of partitions.
        available: the partitions with a leader; empty stands for all.
        fail: called for each row without a partition.
    """
    everything = list(range(partitions))
    for row in chunk.unassigned():
        cause: BaseException | None = None
        where: str | None = None
        try:
            partition: Any = function(chunk.key(row), everything, available or everything)
            if _is_index(partition) and 0 <= partition < partitions:
                chunk.assign(row, operator.index(partition))
                continue
            text = f"returned {partition!r}; partitions of the topic: {partitions}"
        except BaseException as error:
            # In a user's partitioner: only this row fails (P9). BaseException, because SystemExit
            # or asyncio.CancelledError would end the stage and everything that waits for it.
            cause, where = error, _place_of(error)
            text = f"raised {_named(error)}"
        fail(row, error_maker(chunk.topic, f"the partitioner {text}", cause, where))


def no_such_partition(partition: int, partitions: int) -> str:
    """Return why a row for *partition* of a topic with this many *partitions* fails."""
    return f"there is no partition {partition}; the topic has partitions 0 to {partitions - 1}"


def error_maker(
    topic: str, text: str, cause: BaseException | None = None, where: str | None = None
) -> Callable[[Status], PartitionerError]:
    """Return a function that makes the error of a row without a partition, for a status."""

    def make_error(status: Status) -> PartitionerError:
        error = PartitionerError(
            f"{format_partition(topic)}: {text}", status=status, topic=topic, cause=cause
        )
        if where is not None:
            error.add_note(where)
        return error

    return make_error


def _named(error: BaseException) -> str:
    """Return the type of *error* and its text, if it has one."""
    name = type(error).__name__
    try:
        return f"{name}: {error}".rstrip(": ")
    except BaseException:  # as above: the text is made by the user's code
        return name


def _place_of(error: BaseException) -> str | None:
    """Return where the partitioner raised; the rest of its traceback is not kept."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return None
    code = last.tb_frame.f_code
    return f'raised in {code.co_qualname}, file "{code.co_filename}", line {last.tb_lineno}'


def _is_index(value: object) -> bool:
    """Return whether *value* is an integer, including NumPy integers."""
    return hasattr(value, "__index__")
