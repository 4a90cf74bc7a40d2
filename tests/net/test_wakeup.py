"""A wake-up is never lost, and never costs more than necessary."""

from __future__ import annotations

import selectors
from collections.abc import Iterator

import pytest

import pykaproducer._kernel as _kernel
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


def test_many_pokes_send_one_byte(wakeup: Wakeup) -> None:
    for _ in range(1000):
        wakeup.poke()
    assert wakeup._reader.recv(100) == b"\0"
    wakeup.poke(surely=True)
    assert wakeup._reader.recv(100) == b"\0"


def test_a_poke_in_the_middle_of_a_drain_does_not_deafen_it(
    wakeup: Wakeup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drain_and_poke(fd: int) -> None:
        drain(fd)
        wakeup.poke()

    drain = _kernel.drain
    wakeup.poke()
    # 1. The owner empties the socket. 2. Another thread pokes. 3. The owner clears the flag.
    monkeypatch.setattr(_kernel, "drain", drain_and_poke)
    wakeup.drain()
    # The owner checks for work after this, so the first poke is served; the next one must wake it.
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
