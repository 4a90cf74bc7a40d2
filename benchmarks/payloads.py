"""The payloads: real English text, Python's own language reference, cut into pieces."""

from __future__ import annotations

from collections.abc import Callable
from pydoc_data.topics import topics
from typing import Any

#: The number of distinct values and keys, which are used in turn.
DISTINCT = 10_000
#: There are fewer large values: this many bytes are enough.
_MOST_BYTES = 16 * 2**20


def text_values(size: int) -> list[bytes]:
    """Return values of exactly *size* bytes; they repeat when the text ends."""
    text = "".join(topics[name] for name in sorted(topics)).encode()
    text *= 1 + size // len(text)
    count = max(1, min(DISTINCT, _MOST_BYTES // size))
    starts = ((i * size) % (len(text) - size + 1) for i in range(count))
    return [text[start : start + size] for start in starts]


def keys() -> list[bytes]:
    return [b"key-%06d" % i for i in range(DISTINCT)]


class Tally:
    """A counter of outcomes; its ``on_delivery`` is a closure, the cheapest callback."""

    def __init__(self) -> None:
        delivered = failed = 0
        first_error: Any = None

        def on_delivery(error: Any, report: Any) -> None:
            nonlocal delivered, failed, first_error
            if error is None:
                delivered += 1
            else:
                failed += 1
                first_error = first_error or error

        self.on_delivery = on_delivery
        self._look: Callable[[], tuple[int, int, Any]] = lambda: (delivered, failed, first_error)

    @property
    def delivered(self) -> int:
        return self._look()[0]

    def complaint(self, expected: int) -> str | None:
        """Return an error text unless every one of *expected* messages was delivered."""
        delivered, failed, error = self._look()
        if (delivered, failed) == (expected, 0):
            return None
        missing = expected - delivered - failed
        text = f"of {expected} messages {failed} failed and {missing} have no outcome"
        return f"{text}; first error: {error}" if failed else text
