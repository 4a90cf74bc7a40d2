"""The names of a write's transactional ids, and of the groups that hold its state.

The state consists of committed offsets with metadata, because offsets can be part of a transaction,
are found by name, and require no additional topic. With the prefix ``X``:

======================== ===========================================================================
``X.driver``             transactional id of the driver
``X.<p>``, ``X.<p>.<a>`` transactional id of task *p*, in its first attempt and in attempt *a* > 0
group ``X.driver``       the decision
group ``X.tasks``        the marker of each task
======================== ===========================================================================

A group's offsets belong to partitions of a topic, the state topic; nothing is written to it. Item
*i* (the piece *i* of the decision, or the marker of task *i*) is the metadata of the offset of
partition *i*. If the topic has fewer partitions, the item is in a further group: in
``X.tasks.<i // partitions>``, with the offset of partition *i* % partitions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from pykaproducer.delivery import TopicPartition

#: The most characters of a prefix: the names made with it stay below the limit of topics' names.
LONGEST_PREFIX = 180
_CHARACTERS = re.compile(r"[a-zA-Z0-9._-]+")
_LIKE_A_TASK = re.compile(r".*\.[0-9]+")
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")


def check_prefix(prefix: str) -> None:
    """Check a ``transactionalIdPrefix``.

    Raises:
        ValueError: it is empty or too long, has other characters than a topic's name may have, or
            ends with a dot and a number. ``orders.1`` would share ids with the tasks of ``orders``.
    """
    if not prefix:
        raise ValueError("it must not be empty")
    if not _CHARACTERS.fullmatch(prefix):
        raise ValueError(f"{prefix!r} was given; use ASCII letters, digits, '.', '_' and '-' only")
    if len(prefix) > LONGEST_PREFIX:
        raise ValueError(f"{len(prefix)} characters were given; use at most {LONGEST_PREFIX}")
    if _LIKE_A_TASK.fullmatch(prefix):
        raise ValueError(
            f"{prefix!r} ends with a dot and a number, and the sink itself appends these for "
            f"each task; use another character than the dot, such as '-'"
        )


@dataclass(frozen=True)
class Names:
    """The names for one prefix."""

    #: ``transactionalIdPrefix``
    prefix: str
    #: The topic to whose partitions the offsets belong.
    state_topic: str

    @property
    def driver(self) -> str:
        """The transactional id of the driver."""
        return f"{self.prefix}.driver"

    def task(self, task: int, attempt: int) -> str:
        """Return the transactional id of an attempt of a task; *attempt* is 0 for the first one."""
        return f"{self.prefix}.{task}" + (f".{attempt}" if attempt else "")

    def is_task(self, transactional_id: str) -> bool:
        """Return whether it is the id of an attempt of a task."""
        number = transactional_id.removeprefix(f"{self.prefix}.")
        return number != transactional_id and _NUMBER.fullmatch(number) is not None

    def decision(self, piece: int, partitions: int) -> tuple[str, TopicPartition]:
        """Return the group and the partition of a piece of the decision.

        Args:
            piece: its number, from 0.
            partitions: of the state topic; has no effect for the first piece.
        """
        return self._place("driver", piece, partitions)

    def marker(self, task: int, partitions: int) -> tuple[str, TopicPartition]:
        """Return the group and the partition of a task's marker.

        *partitions*: of the state topic.
        """
        return self._place("tasks", task, partitions)

    def _place(self, name: str, item: int, partitions: int) -> tuple[str, TopicPartition]:
        number, partition = divmod(item, partitions) if item else (0, 0)
        group = f"{self.prefix}.{name}" + (f".{number}" if number else "")
        return group, TopicPartition(self.state_topic, partition)


def by_group(
    places: Iterable[tuple[str, TopicPartition]],
) -> dict[str, dict[str, list[int]]]:
    """Return the pairs of group and partition as group -> topic -> partitions."""
    found: dict[str, dict[str, list[int]]] = {}
    for group, (topic, partition) in places:
        found.setdefault(group, {}).setdefault(topic, []).append(partition)
    return found
