"""A selector for the two or three descriptors of one connection, based on ``poll_events``.

Python's selectors release the GIL for each call and do not take part in the GIL handoff of the
compiled kernel. ``_kernel_parts/gil_handoff.pxi`` describes the cost next to a busy thread.
"""

from __future__ import annotations

import math
import select
import selectors
from collections.abc import Mapping
from typing import Any

import pykaproducer._kernel as _kernel


class Poller(selectors.BaseSelector):
    """A ``selectors.PollSelector`` for few descriptors, used by one thread at a time."""

    def __init__(self) -> None:
        self._keys: dict[Any, selectors.SelectorKey] = {}
        # The keys, and the arguments of poll_events(), in the same order.
        self._order: list[selectors.SelectorKey] = []
        self._asked: list[tuple[int, int]] = []
        # What is polled instead of a file object's own descriptor: see watch_instead().
        self._link: _kernel.CallerLink | None = None
        self._linked: Any = None

    def watch_instead(self, fileobj: Any, link: _kernel.CallerLink) -> None:
        """Wait through *link*; its ``watch`` becomes readable when *fileobj* can be read."""
        self._link, self._linked = link, fileobj
        self.modify(fileobj, self._keys[fileobj].events)  # without memory, only from the next time

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        if fileobj in self._keys:
            raise KeyError(f"{fileobj!r} is already registered")
        return self.modify(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        # Without allocating anything: a closed connection must be removed in any case.
        key = self._keys.pop(fileobj)
        place = self._order.index(key)
        del self._order[place], self._asked[place]
        if fileobj is self._linked:
            self._link = self._linked = None
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Wait for *events* of *fileobj*, which need not be registered.

        If there is no memory, nothing changes.
        """
        key = selectors.SelectorKey(fileobj, fileobj.fileno(), events, data)
        keys = {**self._keys, fileobj: key}
        order = list(keys.values())
        asked = [(self._polled(each), _poll_mask(each.events)) for each in order]
        self._keys, self._order, self._asked = keys, order, asked
        return key

    def _polled(self, key: selectors.SelectorKey) -> int:
        link = self._link
        if link is None or key.fileobj is not self._linked or key.events != selectors.EVENT_READ:
            return key.fd
        return link.watch

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # Rounded up: if rounded down, it would repeatedly return before the deadline.
        milliseconds = -1 if timeout is None else math.ceil(max(0.0, timeout) * 1000)
        ready = []
        wait = _kernel.poll_events if self._link is None else self._link.poll
        found_events = wait(self._asked, milliseconds)
        for key, events in zip(self._order, found_events, strict=True):
            if events and (found := _ready(events) & key.events):
                ready.append((key, found))
        return ready

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def close(self) -> None:
        self._keys.clear()
        self._order.clear()
        self._asked.clear()
        self._link = self._linked = None


def _poll_mask(events: int) -> int:
    """Return the events of poll(2) for *events* of a selector."""
    read = select.POLLIN if events & selectors.EVENT_READ else 0
    return read | (select.POLLOUT if events & selectors.EVENT_WRITE else 0)


def _ready(events: int) -> int:
    """Return the events of a selector for *events* of poll(2).

    A descriptor with an error or without a peer is both readable and writable.
    """
    read = selectors.EVENT_READ if events & ~select.POLLOUT else 0
    return read | (selectors.EVENT_WRITE if events & ~select.POLLIN else 0)
