"""A poke is never lost, and never costs more than it must."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pykaproducer._net.wakeup import Wakeup


@pytest.fixture
def wakeup() -> Iterator[Wakeup]:
    made = Wakeup()
    yield made
    made.close()


def readable(wakeup: Wakeup) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(wakeup, selectors.EVENT_READ)
        return bool(selector.select(0))


def test_a_poke_ends_the_next_wait(wakeup: Wakeup) -> None:
    assert not readable(wakeup)
    wakeup.poke()
    assert readable(wakeup)
    wakeup.drain()
    assert not readable(wakeup)
    wakeup.poke()
    assert readable(wakeup)


def test_a_poke_ends_a_wait_that_has_begun(wakeup: Wakeup) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(wakeup, selectors.EVENT_READ)
        thread = threading.Thread(target=wakeup.poke)
        thread.start()
        assert selector.select()  # for ever, if the poke were lost
        thread.join()


class Proxy:
    """A socket that does something else before or after it is used."""

    def __init__(self, real: socket.socket, **hooks: Callable[[], None]) -> None:
        self.real = real
        self.hooks = hooks
        self.sent = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def send(self, data: bytes) -> int:
        self.sent += len(data)
        return self.real.send(data)

    def recv(self, size: int) -> bytes:
        try:
            return self.real.recv(size)
        finally:
            self.hooks.pop("after_recv", lambda: None)()


def test_many_pokes_send_one_byte(wakeup: Wakeup) -> None:
    writer = Proxy(wakeup._writer)
    wakeup._writer = writer  # type: ignore[assignment]
    for _ in range(1000):
        wakeup.poke()
    assert writer.sent == 1
    wakeup.poke(surely=True)
    assert writer.sent == 2


def test_a_poke_in_the_middle_of_a_drain_does_not_deafen_it(wakeup: Wakeup) -> None:
    wakeup.poke()
    # 1. The owner empties the socket. 2. Somebody pokes. 3. The owner lowers the flag.
    wakeup._reader = Proxy(wakeup._reader, after_recv=wakeup.poke)  # type: ignore[assignment]
    wakeup.drain()
    # The owner looks at its work now, so that poke is served; the next one must wake it.
    wakeup.poke()
    assert readable(wakeup)


def test_draining_for_nothing_does_no_harm(wakeup: Wakeup) -> None:
    wakeup.drain()
    wakeup.poke()
    assert readable(wakeup)


def test_thousands_of_pokes_that_nobody_drains_do_not_block(wakeup: Wakeup) -> None:
    for _ in range(100_000):
        wakeup.poke(surely=True)
    wakeup.drain()
    assert not readable(wakeup)


def test_a_poke_after_the_end_is_ignored() -> None:
    wakeup = Wakeup()
    wakeup.close()
    wakeup.poke()
    wakeup.poke(surely=True)
