"""The selector of a connection reports the same as Python's own."""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Iterator

import pytest

import pykaproducer._kernel as _kernel
from pykaproducer._net.poller import Poller

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def both(watched: dict[socket.socket, int]) -> list[tuple[socket.socket, int]]:
    """Return the ready sockets according to both selectors."""
    told = []
    for kind in (Poller, selectors.PollSelector):
        with kind() as selector:
            for sock, events in watched.items():
                selector.register(sock, events)
            told.append([(key.fileobj, mask) for key, mask in selector.select(0)])
    assert told[0] == told[1]
    return told[0]


@pytest.mark.parametrize("events", [READ, WRITE, READ | WRITE])
@pytest.mark.parametrize("change", ["nothing", "data", "end of stream", "full"])
def test_what_is_ready(pair: tuple[socket.socket, socket.socket], events: int, change: str) -> None:
    ours, theirs = pair
    match change:
        case "data":
            theirs.send(b"value")
        case "end of stream":
            theirs.shutdown(socket.SHUT_WR)
        case "full":
            with contextlib.suppress(BlockingIOError):
                while True:
                    ours.send(bytes(65536))
    readable = READ if change in ("data", "end of stream") else 0
    writable = 0 if change == "full" else WRITE
    ready = events & (readable | writable)
    assert both({ours: events}) == ([(ours, ready)] if ready else [])


def test_a_peer_that_has_gone_ends_every_wait(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.close()
    assert both({ours: READ}) == [(ours, READ)]


def test_only_those_that_are_ready(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    ours.send(b"value")
    assert both({ours: READ, theirs: READ}) == [(theirs, READ)]


def test_what_is_watched_can_change(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, _ = pair
    with Poller() as poller:
        poller.register(ours, READ)
        assert poller.select(0) == []
        poller.modify(ours, WRITE)
        assert [mask for _, mask in poller.select()] == [WRITE]
        poller.unregister(ours)
        assert poller.select(0.001) == []


def test_without_memory_nothing_changes(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that is lost because of it must be removed, and not be watched any more."""
    ours, theirs = pair

    def no_memory(events: int) -> int:
        raise MemoryError

    with Poller() as poller:
        with monkeypatch.context() as patch:
            patch.setattr("pykaproducer._net.poller._poll_mask", no_memory)
            with pytest.raises(MemoryError):
                poller.register(ours, WRITE)
        assert poller.select(0) == []
        poller.register(ours, READ)
        with monkeypatch.context() as patch:
            patch.setattr("pykaproducer._net.poller._poll_mask", no_memory)
            with pytest.raises(MemoryError):
                poller.modify(ours, WRITE)
            assert poller.select(0) == []
            theirs.send(b"value")
            assert [mask for _, mask in poller.select()] == [READ]
            poller.unregister(ours)
            assert poller.select(0) == []


def test_a_socket_is_read_until_its_end(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    into = memoryview(bytearray(3))
    assert _kernel.read_into(ours.fileno(), into) is None
    theirs.send(b"value")
    assert (_kernel.read_into(ours.fileno(), into), bytes(into)) == (3, b"val")
    assert (_kernel.read_into(ours.fileno(), into), bytes(into[:2])) == (2, b"ue")
    theirs.close()
    assert _kernel.read_into(ours.fileno(), into) == 0
    number = ours.detach()
    socket.close(number)
    with pytest.raises(OSError, match="cannot read from the socket"):
        _kernel.read_into(number, into)
