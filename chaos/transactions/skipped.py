"""Markers that the brokers have skipped, according to their logs.

If a partition has no leader while the transaction that wrote into it ends, a coordinator of Kafka
4.3.1 considers the partition deleted: it never writes a marker there, and the transaction counts
as ended (KAFKA-20734). In that partition the outcome of the next transaction of the same producer
decides what is readable, whatever this one's was. No client can prevent that.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from chaos.transactions.history import Instance, Name

_LINE = re.compile(
    r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d\.\d+) .*"
    r"Couldn't find leader endpoint for partitions \w*Set\((?P<places>[^)]*)\) "
    r"while trying to send transaction markers for (?P<id>\S+),"
)
_DAY = 86_400.0
#: The coordinator answers before it writes markers: the next transaction may have begun.
_CANDIDATES = 2


class Skipped(NamedTuple):
    """The markers of one transaction that were not written."""

    transactional_id: str
    #: The partitions of the topic that is audited.
    partitions: frozenset[int]
    #: Whether there are others: those of the group's offsets.
    offsets: bool
    #: Monotonic seconds.
    at: float


def skipped_markers(paths: Iterable[Path], topic: str, begin: float) -> list[Skipped]:
    """Return the skipped markers in the logs at *paths*.

    The logs began at *begin* (monotonic seconds) or later, and have the local time of day only.
    """
    since = _time_of_day(time.time() - (time.monotonic() - begin))
    found = []
    for path in paths:
        for match in _LINE.finditer(path.read_text(errors="replace")):
            places = [place.strip().rpartition("-") for place in match["places"].split(",")]
            mine = frozenset(int(number) for name, _, number in places if name == topic)
            seconds = int(match["hour"]) * 3600 + int(match["minute"]) * 60 + float(match["second"])
            found.append(
                Skipped(
                    match["id"],
                    mine,
                    offsets=any(name != topic for name, _, _ in places),
                    at=begin + (seconds - since) % _DAY,
                )
            )
    return found


def _time_of_day(moment: float) -> float:
    local = time.localtime(moment)
    return local.tm_hour * 3600 + local.tm_min * 60 + local.tm_sec + moment % 1


def affected(
    skipped: Iterable[Skipped],
    instances: Iterable[Instance],
    partitions: Mapping[Name, Collection[int]],
) -> set[Name]:
    """Return the transactions to which markers may be missing; *partitions* has those of each."""
    found: set[Name] = set()
    instances = list(instances)
    for each in skipped:
        begun = sorted(
            (transaction.begun_at, transaction.name)
            for instance in instances
            for transaction in instance.transactions.values()
            if instance.transactional_id == each.transactional_id
            and transaction.begun_at <= each.at
            and each.partitions.intersection(partitions.get(transaction.name, ()))
        )
        found |= {name for _, name in begun[-_CANDIDATES:]}
    return found
