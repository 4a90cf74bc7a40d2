"""What a new view of the cluster has that the one before had not, in words for the log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pykaproducer._machines.cluster import ClusterView, TopicView
from pykaproducer._texts import code_text, place

#: So many partitions are named in one line.
_NAMED = 3
#: A topic that has just been asked for may be created by that: it is news if it is missing for the
#: how many-th time (about a second after the first).
_MISSING = 5


class News(NamedTuple):
    """One line."""

    #: Whether messages wait because of it.
    is_bad: bool
    text: str


def news(old: ClusterView, new: ClusterView, missing: dict[str, int]) -> Iterator[News]:
    """What has changed between two views. Each change is told once: views follow each other.

    *missing*: how often topics have been missing one after the other; the caller keeps it.
    """
    if not old.brokers and new.brokers:
        ids = ", ".join(str(number) for number in sorted(new.brokers))
        yield News(False, f"the cluster answers; its brokers: {ids}")
    for name, view in new.topics.items():
        before = old.topics.get(name)
        if before is view:
            continue
        if not view.partitions:
            missing[name] = missing.get(name, 0) + 1
            if missing[name] == _MISSING and view.error_code:
                text = f"{place(name)}: the cluster has no such topic: {code_text(view.error_code)}"
                yield News(True, f"{text}; its messages wait")
            continue
        if before is None or not before.partitions:
            yield from _appeared(view, was_told=missing.pop(name, 0) >= _MISSING)
        else:
            yield from _moved(before, view)


def _appeared(view: TopicView, *, was_told: bool) -> Iterator[News]:
    if was_told:
        yield News(False, f"{place(view.name)}: is there now, partitions: {view.partitions}")
    without = [number for number in range(view.partitions) if number not in view.leaders]
    if without:
        yield News(False, f"{place(view.name)}: no leader yet: {_partitions(without)}")


def _moved(before: TopicView, view: TopicView) -> Iterator[News]:
    if view.partitions != before.partitions:
        yield News(
            False, f"{place(view.name)}: partitions: {before.partitions}, now {view.partitions}"
        )
    if view.leaders == before.leaders:
        return
    old, new = before.leaders, view.leaders
    lost = sorted(old.keys() - new.keys())
    found = sorted(n for n in new.keys() - old.keys() if n < before.partitions)
    moved = sorted(n for n, _ in new.items() - old.items() if n in old)
    if lost:
        yield News(True, f"{place(view.name)}: no leader any more: {_partitions(lost)}")
    if found:
        yield News(False, f"{place(view.name)}: has a leader again: {_partitions(found)}")
    if moved:
        first = moved[0]
        ways = f"{before.leaders[first]} to {view.leaders[first]}"
        yield News(
            False,
            f"{place(view.name)}: the leader has moved: {_partitions(moved)} (from broker {ways})",
        )


def _partitions(numbers: list[int]) -> str:
    named = ", ".join(str(number) for number in numbers[:_NAMED])
    more = len(numbers) - _NAMED
    return f"partition {named}" + (f" and {more} more" if more > 0 else "")
