"""Changes between two views of the cluster, as texts for the log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pykaproducer._errors.formatting import format_partition
from pykaproducer._machines.cluster import ClusterView, TopicView, lookup_error
from pykaproducer._machines.verdicts import FATAL_TOPIC_ERRORS

#: Maximum number of partitions named in a line.
_NAMED = 3
#: Number of consecutive responses without a topic after which that is reported (about a second
#: after the first). Before that, the requests may still cause the topic to be created.
_MISSING = 5


class ClusterChange(NamedTuple):
    """A line for the log."""

    #: Whether messages wait because of it.
    is_bad: bool
    text: str


def cluster_changes(
    old: ClusterView, new: ClusterView, missing: dict[str, int]
) -> Iterator[ClusterChange]:
    """Yield the changes between two consecutive views.

    *missing*: the number of consecutive views without a topic, by topic. It is updated here, and
    kept by the caller.
    """
    if not old.brokers and new.brokers:
        ids = ", ".join(str(number) for number in sorted(new.brokers))
        yield ClusterChange(False, f"the cluster answers; broker ids: {ids}")
    for name, view in new.topics.items():
        before = old.topics.get(name)
        if before is view:
            continue
        if not view.partitions:
            if view.error_code in FATAL_TOPIC_ERRORS:
                continue  # its messages fail, which is logged with them
            missing[name] = missing.get(name, 0) + 1
            if missing[name] == _MISSING and view.error_code:
                text = f"{lookup_error(view.error_code)}; its messages wait"
                yield ClusterChange(True, f"{format_partition(name)}: {text}")
            continue
        if before is None or not before.partitions:
            yield from _appeared(view, was_reported=missing.pop(name, 0) >= _MISSING)
        else:
            yield from _moved(before, view)


def _appeared(view: TopicView, *, was_reported: bool) -> Iterator[ClusterChange]:
    if was_reported:
        yield ClusterChange(
            False, f"{format_partition(view.name)}: now exists; partitions: {view.partitions}"
        )
    without = [number for number in range(view.partitions) if number not in view.leaders]
    if without:
        yield ClusterChange(
            False, f"{format_partition(view.name)}: no leader yet: {_partitions(without)}"
        )


def _moved(before: TopicView, view: TopicView) -> Iterator[ClusterChange]:
    topic = format_partition(view.name)
    if view.partitions != before.partitions:
        text = f"{topic}: partitions: {before.partitions}, now {view.partitions}"
        yield ClusterChange(False, text)
    if view.leaders == before.leaders:
        return
    old, new = before.leaders, view.leaders
    lost = sorted(old.keys() - new.keys())
    found = sorted(n for n in new.keys() - old.keys() if n < before.partitions)
    moved = sorted(n for n, _ in new.items() - old.items() if n in old)
    if lost:
        yield ClusterChange(True, f"{topic}: no leader any more: {_partitions(lost)}")
    if found:
        yield ClusterChange(False, f"{topic}: has a leader again: {_partitions(found)}")
    if moved:
        first = moved[0]
        ways = f"{before.leaders[first]} to {view.leaders[first]}"
        text = f"{topic}: the leader has moved: {_partitions(moved)} (from broker {ways})"
        yield ClusterChange(False, text)


def _partitions(numbers: list[int]) -> str:
    named = ", ".join(str(number) for number in numbers[:_NAMED])
    more = len(numbers) - _NAMED
    return f"partition {named}" + (f" and {more} more" if more > 0 else "")
