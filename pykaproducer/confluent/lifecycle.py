"""Producers that are garbage-collected, and producers in the child of a fork."""

from __future__ import annotations

import functools
import os
import weakref
from typing import Protocol

from pykaproducer._pipeline.background_task import spawn_later
from pykaproducer.producer import Producer as Core


class Forkable(Protocol):
    """The parts of a producer that this module uses."""

    def _forked(self) -> None:
        """Become empty in the child of a fork; accepted messages are the parent's."""


_producers: weakref.WeakSet[Forkable] = weakref.WeakSet()


def register(producer: Forkable) -> None:
    """Register a new producer."""
    _producers.add(producer)


def close(core: Core) -> None:
    """Close *core*, and abort its transaction if one is open."""
    config = core.config
    if config.transactional_id is None:
        core.close()
    else:
        # Its max_block_ms, by which it would limit the abort, is that of produce().
        core.close((config.delivery_timeout_ms + config.transaction_timeout_ms) / 1000)


def close_in_background(core: Core) -> None:
    """Close *core* on a separate thread, without waiting for its messages."""
    if not core.accepted:
        close(core)
        return
    # At the interpreter's exit no thread can be started; the exit hook closes it instead.
    spawn_later(f"{core.config.client_id}-farewell", functools.partial(close, core))


def _after_fork() -> None:
    for producer in list(_producers):
        producer._forked()


os.register_at_fork(after_in_child=_after_fork)
