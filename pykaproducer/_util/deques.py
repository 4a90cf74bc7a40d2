"""A copy of a deque that other threads change."""

from __future__ import annotations

from collections import deque
from typing import TypeVar

T = TypeVar("T")


def copied_items(items: deque[T]) -> list[T]:
    """Return the items of a deque that other threads change at the same time.

    Python refuses to continue an iteration after a change. With the GIL, ``list()`` copies a deque
    in one step. Without it, every change interrupts the copy, and repeating it until there is no
    change in between may take seconds beside a busy stage. So if the copy fails, the items are read
    one by one. An item that is added or removed during that may then be missing, or counted twice.
    """
    try:
        return list(items)
    except RuntimeError:  # "deque mutated during iteration"
        pass
    found: list[T] = []
    for index in range(len(items)):
        try:
            found.append(items[index])
        except IndexError:  # it has become shorter
            break
    return found
