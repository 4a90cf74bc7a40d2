"""However the socket accepts the bytes, they are written in order, each request reported once."""

from __future__ import annotations

import array

from hypothesis import given
from hypothesis import strategies as st

from pykaproducer._machines.session import Request
from pykaproducer._net.outbox import Outbox


def request(number: int) -> Request:
    return Request(0, lambda version, correlation_id: [], 0.0, tag=number)


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
        gone += [r.tag for r in outbox.took(len(taken))]
        assert len(outbox) == len(stream) - len(left)
        assert gone == [n for n, end in enumerate(ends) if end <= len(left)]
    assert stream.startswith(left)
    starts = [0, *ends[:-1]] if ends else []
    begun, others = outbox.clear()
    assert [r.tag for r in begun] == [
        n for n, end in enumerate(ends) if starts[n] < len(left) < end
    ]
    assert [r.tag for r in others] == [n for n in range(len(ends)) if starts[n] >= len(left)]
    assert len(outbox) == 0


def test_buffers_are_not_copied() -> None:
    records = bytearray(b"records")
    outbox = Outbox()
    outbox.add([records], request(1))
    records[:] = b"RECORDS"
    assert b"".join(outbox.buffers) == b"RECORDS"


def test_a_buffer_is_let_go_once_it_is_sent() -> None:
    records = bytearray(b"records")
    outbox = Outbox()
    outbox.add([records], request(1))
    outbox.took(len(records))
    records.clear()  # raises BufferError while it is exported


def test_a_buffer_is_let_go_when_the_connection_is_lost() -> None:
    records = bytearray(b"records")
    outbox = Outbox()
    outbox.add([records], request(1))
    outbox.clear()
    records.clear()


def test_a_buffer_of_larger_items_is_counted_in_bytes() -> None:
    outbox = Outbox()
    outbox.add([array.array("q", [1, 2, 3])], request(1))
    assert len(outbox) == 24
    assert outbox.took(23) == []
    assert [r.tag for r in outbox.took(1)] == [1]


def test_it_can_be_used_again_after_a_loss() -> None:
    outbox = Outbox()
    outbox.add([b"abc"], request(1))
    outbox.took(1)
    outbox.clear()
    outbox.add([b"defg"], request(2))
    assert b"".join(outbox.buffers) == b"defg"
    assert [r.tag for r in outbox.took(4)] == [2]
