"""What becomes of a producer that is dropped, and of one in the child of a fork."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from pykaproducer._pipeline.worker import spawn_later
from pykaproducer.producer import Producer as Core


class Forkable(Protocol):
    """What a producer is for this module."""

    def _forked(self) -> None:
        """Be empty: this is the child of a fork, and what was accepted is the parent's."""


_producers: weakref.WeakSet[Forkable] = weakref.WeakSet()


def watch(producer: Forkable) -> None:
    """A producer has been made."""
    _producers.add(producer)


def end_behind(core: Core) -> None:
    """Close *core* in a thread of its own: nobody waits for what it has still to deliver."""
    if not core.accepted:
        core.close()
        return
    # At the interpreter's exit no thread may be started: the exit hook closes it then.
    spawn_later(f"{core.config.client_id}-farewell", core.close)


def _after_fork() -> None:
    for producer in list(_producers):
        producer._forked()


os.register_at_fork(after_in_child=_after_fork)
