"""A selector for the two or three descriptors of one connection, on the kernel's ``poll_events``.

Python's own selectors let the GIL go for each call and know nothing of who wants it back; see
``_kernel_parts/gil.pxi`` for what that costs beside a busy thread.
"""

from __future__ import annotations

import math
import select
import selectors
from collections.abc import Mapping
from typing import Any

from pykaproducer import _kernel


class Poller(selectors.BaseSelector):
    """As ``selectors.PollSelector``, for few descriptors; used by one thread at a time."""

    def __init__(self) -> None:
        self._keys: dict[Any, selectors.SelectorKey] = {}
        # The keys, and what the kernel is asked in their order: made when they change.
        self._watched: tuple[list[selectors.SelectorKey], list[tuple[int, int]]] = [], []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        if fileobj in self._keys:
            raise KeyError(f"{fileobj!r} is registered")
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

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # Rounded up: rounded down it would wake before the time, again and again.
        milliseconds = -1 if timeout is None else math.ceil(max(0.0, timeout) * 1000)
        ready = []
        keys, asked = self._watched
        for key, events in zip(keys, _kernel.poll_events(asked, milliseconds), strict=True):
            if events and (told := _told(events) & key.events):
                ready.append((key, told))
        return ready

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def close(self) -> None:
        self._keys.clear()
        self._changed()

    def _changed(self) -> None:
        keys = list(self._keys.values())
        self._watched = keys, [(key.fd, _asked(key.events)) for key in keys]


def _asked(events: int) -> int:
    read = select.POLLIN if events & selectors.EVENT_READ else 0
    return read | (select.POLLOUT if events & selectors.EVENT_WRITE else 0)


def _told(events: int) -> int:
    """A descriptor with an error, or whose peer has gone, can be read from and written to."""
    read = selectors.EVENT_READ if events & ~select.POLLOUT else 0
    return read | (selectors.EVENT_WRITE if events & ~select.POLLIN else 0)
