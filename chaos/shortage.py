"""Memory that is refused to the process under load: to the kernel, or to the interpreter."""

from __future__ import annotations

import importlib
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

#: Memory is refused while this file exists.
FILE = "no-memory"
#: How often (seconds).
_TICK = 0.02

#: The number of threads between pause() and resume(), in which they record messages.
_paused = 0
#: Without it, memory could be refused to a thread that has paused since _watch() looked.
_gate = threading.Lock()
_remove_hooks: Callable[[], object] = bool


def watch(directory: Path) -> None:
    """Refuse memory, in a thread, for as long as the file is in *directory*."""
    threading.Thread(target=_watch, args=(directory / FILE,), daemon=True).start()


def _watch(file: Path) -> None:
    global _remove_hooks
    from pykaproducer._kernel import refuse_memory

    chance = random.Random(0)
    while True:
        time.sleep(_TICK)
        _remove_hooks()
        refuse_memory(0, 0)
        if not file.exists():
            continue
        hooks = importlib.import_module("_testcapi")
        _remove_hooks = hooks.remove_mem_hooks
        after, times = chance.randrange(300), chance.randrange(1, 4)
        if chance.random() < 0.5:
            refuse_memory(after // 10, times)
            continue
        until = after + times
        _gate.acquire()  # as in pause()
        if not _paused:
            hooks.set_nomemory(after, until)
        _gate.release()


def pause() -> None:
    """Refuse the interpreter no memory until :func:`resume`. Needs none."""
    global _paused
    _gate.acquire()  # `with` would need memory for it
    _paused += 1
    _gate.release()
    _remove_hooks()


def resume() -> None:
    global _paused
    _gate.acquire()
    _paused -= 1
    _gate.release()
