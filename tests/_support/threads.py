"""The threads of a producer that has ended."""

from __future__ import annotations

import threading

#: Far more than a thread takes to end that was told to (seconds).
_SOON = 60.0


def threads_left(client_id: str) -> list[str]:
    """Return the names of the threads that do not end. ``close()`` waits for them for 0.5 s."""
    left = []
    for thread in threading.enumerate():
        if thread.name.startswith(f"{client_id}-"):
            thread.join(_SOON)
            if thread.is_alive():
                left.append(thread.name)
    return left
