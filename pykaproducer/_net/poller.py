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
        # The keys, and the arguments of poll_events() in their order; updated when they change.
        self._watched: tuple[list[selectors.SelectorKey], list[tuple[int, int]]] = [], []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        if fileobj in self._keys:
            raise KeyError(f"{fileobj!r} is already registered")
        key = self._keys[fileobj] = selectors.SelectorKey(fileobj, fileobj.fileno(), events, data)
        self._changed()
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        key = self._keys.pop(fileobj)
        self._changed()
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        self.unregister(fileobj)
        return self.register(fileobj, events, data)

    def watch(self, fileobj: Any, events: int) -> None:
        """Wait for *events* of *fileobj*, instead of those it waited for before."""
        self._keys.pop(fileobj, None)
        self.register(fileobj, events)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # Rounded up: if rounded down, it would repeatedly return before the deadline.
        milliseconds = -1 if timeout is None else math.ceil(max(0.0, timeout) * 1000)
        ready = []
        keys, asked = self._watched
        for key, events in zip(keys, _kernel.poll_events(asked, milliseconds), strict=True):
            if events and (found := _ready(events) & key.events):
                ready.append((key, found))
        return ready

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def close(self) -> None:
        self._keys.clear()
        self._changed()

    def _changed(self) -> None:
        keys = list(self._keys.values())
        self._watched = keys, [(key.fd, _poll_mask(key.events)) for key in keys]


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
