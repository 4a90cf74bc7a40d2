"""However the socket accepts the bytes, they are written in order, each request reported once.

Also without memory: a step that fails has changed nothing.
"""

from __future__ import annotations

import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykaproducer._machines.request_timeouts import RequestTimeouts
from pykaproducer._machines.session import Request, Session, SessionState
from pykaproducer._net.events import FullyWritten
from pykaproducer._net.outbox import Outbox
from tests.net.helper import Full


def request(number: int, *, expects_answer: bool = False) -> Request:
    return Request(0, lambda version, correlation_id: [b"abc"], 0.0, expects_answer, number)


def took(outbox: Outbox, count: int) -> list[int]:
    """Return the tags of the requests that are fully written after *count* more bytes."""
    events: list[Any] = []
    outbox.took(count, 1.0, events)
    assert all(isinstance(event, FullyWritten) for event in events)
    assert all(event.request.written == 1.0 for event in events)
    return [event.request.tag for event in events]


def unfinished(outbox: Outbox) -> tuple[list[Request], list[Request]]:
    """Return the partially sent requests, and those not sent at all."""
    lost = outbox.lost("", [])
    return lost.unanswered, lost.unwritten


requests = st.lists(
    st.lists(st.binary(max_size=20), max_size=4).filter(lambda buffers: any(buffers)), max_size=6
)


@given(requests, st.lists(st.integers(0, 30), max_size=30))
def test_what_leaves_is_what_was_added(requests: list[list[bytes]], bites: list[int]) -> None:
    outbox = Outbox()
    ends: list[int] = []
    stream = b""
    for number, buffers in enumerate(requests):
        outbox.add(buffers, request(number))
        stream += b"".join(buffers)
        ends.append(len(stream))
    left = b""
    gone: list[int] = []
    for bite in bites:
        taken = b"".join(outbox.buffers)[:bite]
        left += taken
        gone += took(outbox, len(taken))
        assert len(outbox) == len(stream) - len(left)
        assert gone == [n for n, end in enumerate(ends) if end <= len(left)]
    assert stream.startswith(left)
    starts = [0, *ends[:-1]] if ends else []
    begun, others = unfinished(outbox)
    assert [r.tag for r in begun] == [
        n for n, end in enumerate(ends) if starts[n] < len(left) < end
    ]
    assert [r.tag for r in others] == [n for n in range(len(ends)) if starts[n] >= len(left)]
    outbox.clear()
    assert len(outbox) == 0
    assert unfinished(outbox) == ([], [])


def test_buffers_are_not_copied() -> None:
    records = bytearray(b"records")
    outbox = Outbox()
    outbox.add([records], request(1))
    records[:] = b"RECORDS"
    assert b"".join(outbox.buffers) == b"RECORDS"


@pytest.mark.parametrize("end", [lambda it: took(it, 7), Outbox.clear], ids=["sent", "lost"])
def test_a_buffer_is_let_go(end: Callable[[Outbox], object]) -> None:
    records = bytearray(b"records")
    outbox = Outbox()
    outbox.add([records], request(1))
    end(outbox)
    records.clear()  # raises BufferError while it is exported


def test_a_buffer_of_larger_items_is_counted_in_bytes() -> None:
    outbox = Outbox()
    outbox.add([array.array("q", [1, 2, 3])], request(1))
    assert len(outbox) == 24
    assert took(outbox, 23) == []
    assert took(outbox, 1) == [1]


def test_it_can_be_used_again_after_a_loss() -> None:
    outbox = Outbox()
    outbox.add([b"abc"], request(1))
    took(outbox, 1)
    outbox.clear()
    outbox.add([b"defg"], request(2))
    assert b"".join(outbox.buffers) == b"defg"
    assert took(outbox, 4) == [2]


# Without memory -----------------------------------------------------------------------------------


def ready_session() -> Session:
    session = Session("c")
    session.state = SessionState.READY
    session.versions = {0: 0}
    return session


def state(outbox: Outbox) -> tuple[Any, ...]:
    return (b"".join(outbox.buffers), len(outbox), outbox.first, unfinished(outbox))


def test_a_request_is_added_whole_or_not_at_all() -> None:
    outbox = Outbox()
    outbox.add([b"abc"], request(1))
    took(outbox, 1)
    before = state(outbox)

    def halfway() -> Iterator[bytes]:
        yield b"defg"
        raise MemoryError

    with pytest.raises(MemoryError):
        outbox.add(halfway(), request(2))
    assert state(outbox) == before
    outbox.buffers = Full(outbox.buffers)
    with pytest.raises(MemoryError):
        outbox.add([b"defg"], request(2))
    assert state(outbox) == before


def test_bytes_are_removed_all_or_not_at_all() -> None:
    outbox = Outbox()
    outbox.add([b"abc", b"de"], request(1))
    outbox.add([b"fgh"], request(2))
    before = state(outbox)
    with pytest.raises(MemoryError):
        outbox.took(6, 1.0, Full())
    assert state(outbox) == before
    assert took(outbox, 6) == [1]
    assert b"".join(outbox.buffers) == b"gh"


class Forgetful:
    """A transport that takes bytes, and has no memory for their number."""

    calls = 0

    def send(self, buffers: Sequence[memoryview], *, patient: bool = True) -> int:
        self.calls += 1
        raise MemoryError


def test_nothing_is_written_twice_if_the_number_of_bytes_is_unknown() -> None:
    outbox, session = Outbox(), ready_session()
    requests = [request(1, expects_answer=True), request(2)]
    outbox.queued.extend([*requests, request(3)])
    outbox.encode_queued(session)
    took(outbox, 1)
    outbox.queued.append(later := request(4))
    transport: Any = Forgetful()
    for _ in range(2):
        with pytest.raises(MemoryError):
            outbox.write(transport, 1.0, RequestTimeouts(), [])
    assert transport.calls == 1
    lost = outbox.lost("no memory", session.unanswered)
    # The broker may have received all of them.
    assert [r.tag for r in lost.unanswered] == [1, 2, 3]
    assert lost.unwritten == [later]
    outbox.clear()
    outbox.add([b"abc"], request(5))
    assert [r.tag for r in outbox.lost("", []).unwritten] == [5]
