"""Text is split into lines, and lines into the parts of a message, without loss."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import pykaproducer._kernel as _kernel
from pykaproducer._kernel import ROW_COST, LineFormat, Lines
from tests.kernel.helper import TOPIC, Door, claim, encode, read, split

LIMITS = {"max_request_size": 1 << 20, "buffer_memory": 1 << 20, "room": 1 << 20}
#: Separators that are in the texts often, also in each other.
SEPARATOR = st.sampled_from([b"\n", b"\r\n", b"\0", b"aa", b"aab", b":", b"\xff"])
TEXT = st.lists(
    st.sampled_from([b"", b"\n", b"\r\n", b"\0", b"a", b"aa", b"b", b":", b",", b"\xff", b"7"]),
    max_size=40,
).map(b"".join)


class Message(NamedTuple):
    """A message, or the reason why a line is none."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp: int | None = None


def messages(lines: Lines) -> list[Message]:
    """Return what the consumer of kafka-python reads."""
    if not lines:
        return []
    door = Door()
    assert lines.columns is not None
    door._send_block(_kernel.SentBlock(), TOPIC, [lines.columns], None, None, ())
    now = round(door.clock.time() * 1000)
    (part,) = split(
        door.chunk(), 1, _kernel.Partitioner(_kernel.NO_HASH, _kernel.ROUND_ROBIN)
    ).values()
    return [
        Message(r.key, r.value, r.headers, None if r.timestamp == now else r.timestamp)
        for r in read(encode(claim(part)))
    ]


def all_of(line_format: LineFormat, data: bytes) -> tuple[list[Message | str], bytes]:
    """Return the messages and the errors, and the text of all lines as it was read."""
    found: list[Message | str] = []
    raw, start = b"", 0
    while True:
        lines = line_format.split(data, start, True)
        assert lines.start == start
        found += messages(lines)
        raw += b"".join(lines.raw(row, row + 1) for row in range(len(lines)))
        raw += data[lines.end : lines.resume]
        start = lines.resume
        if lines.error is not None:
            found.append(lines.error)
        elif not lines:
            return found, raw


def expected(line: bytes, ends: list[bytes | None], null: bytes | None) -> Message | str:
    """Return the message that *line* is, or why it is none, by the rules in Python's words."""
    parts: list[bytes | None] = []
    for end in ends:
        before, found, after = line.partition(end or b"not in any line")
        parts.append(before if found else None)
        line = after if found else line
    timestamp, headers, *cells = [*parts, line]
    if timestamp is not None and not timestamp.isdigit():
        return "a timestamp is not a number of milliseconds"
    pairs = [] if not headers else [header.partition(b":") for header in headers.split(b",")]
    for name, colon, _ in pairs:
        if not name or not colon:
            return "a header is not NAME:VALUE"
        if b"\xff" in name:
            return "the name of a header is not valid UTF-8"
    key, value, *values = (
        None if cell == null else cell for cell in [*cells, *(text for *_, text in pairs)]
    )
    names = [name.decode() for name, *_ in pairs]
    when = None if timestamp is None else int(timestamp)
    return Message(key, value, list(zip(names, values, strict=True)), when)


@given(
    data=TEXT,
    delimiter=SEPARATOR,
    ends=st.lists(st.none() | SEPARATOR, min_size=3, max_size=3),
    null=st.none() | st.sampled_from([b"", b"a", b"7"]),
    room=st.sampled_from([1, 3 * ROW_COST, 1 << 20]),
)
@example(b"7|a:b,c:|k:v\n", b"\n", [b"|", b"|", b":"], b"", 1 << 20)
def test_lines_have_the_parts_that_their_separators_end(
    data: bytes, delimiter: bytes, ends: list[bytes | None], null: bytes | None, room: int
) -> None:
    names = ("timestamp_separator", "headers_separator", "key_separator")
    options: dict[str, Any] = {**LIMITS, **dict(zip(names, ends, strict=True)), "room": room}
    found, raw = all_of(LineFormat(delimiter, null=null, **options), data)
    assert raw == data
    lines = data.split(delimiter)
    if not lines[-1]:
        lines.pop()
    assert found == [expected(line, ends, null) for line in lines]


def test_headers_partition_and_timestamp_of_every_line() -> None:
    given: dict[str, Any] = {"headers": [("all", b"1"), ("ä", b"")], "timestamp_ms": 5, **LIMITS}
    both = LineFormat(b"\n", headers_separator=b" ", timestamp_separator=b"|", **given)
    found, _ = all_of(both, b"9|own:2 a\nb\n")
    every: list[tuple[str, bytes | None]] = [("all", b"1"), ("ä", b"")]
    assert found == [
        Message(None, b"a", [*every, ("own", b"2")], 9),
        Message(None, b"b", every, 5),
    ]
    assert all_of(LineFormat(b"\n", **given), b"a")[0] == [Message(None, b"a", every, 5)]


def test_a_line_that_is_not_complete_is_left() -> None:
    lines = LineFormat(b"\r\n", **LIMITS).split(b"a\r\n\nb\r", 0, False)
    assert (len(lines), lines.end, lines.raw(0, 1)) == (1, 3, b"a\r\n")


def test_text_without_a_delimiter_is_one_line() -> None:
    whole = LineFormat(b"", **LIMITS)
    assert all_of(whole, b"a\nb\0")[0] == [Message(None, b"a\nb\0", [])]
    assert len(whole.split(b"a\n", 0, False)) == 0
    assert len(whole.split(b"", 0, True)) == 1


@pytest.mark.parametrize("text", [b"1e3", b"-1", b"", b" 1", b"4611686018427387905", b"9" * 40])
def test_a_timestamp_is_a_number_of_milliseconds(text: bytes) -> None:
    line_format = LineFormat(b"\n", timestamp_separator=b",", **LIMITS)
    found, raw = all_of(line_format, b"4611686018427387904,a\n" + text + b",b\n")
    assert found == [
        Message(None, b"a", [], 1 << 62),
        "a timestamp is not a number of milliseconds",
    ]
    assert raw.endswith(text + b",b\n")


@pytest.mark.parametrize("limits", [{"max_request_size": 200}, {"buffer_memory": 200}])
def test_a_line_may_be_as_long_as_a_message(limits: dict[str, int]) -> None:
    """It is admitted, and not a byte more."""
    sizes = {**LIMITS, **limits}
    line_format = LineFormat(b"\n", key_separator=b":", **sizes)
    for size in range(200):
        door = Door(limit=sizes["buffer_memory"], max_request_size=sizes["max_request_size"])
        lines = line_format.split(b"k:" + b"v" * size, 0, True)
        columns = _kernel.columns_of([b"v" * size], [b"k"])
        if lines:
            assert lines.columns is not None
            door._send_block(_kernel.SentBlock(), TOPIC, [lines.columns], None, None, ())
        else:
            assert lines.error == line_format.too_long
            with pytest.raises(ValueError, match="more than"):
                door._send_block(_kernel.SentBlock(), TOPIC, [columns], None, None, ())


def test_the_text_is_not_copied_but_kept() -> None:
    data = b"a line\n" * 1000
    before = sys.getrefcount(data)
    lines = LineFormat(b"\n", **LIMITS).split(data, 0, True)
    door = Door()
    assert lines.columns is not None
    door._send_block(_kernel.SentBlock(), TOPIC, [lines.columns], None, None, ())
    del lines
    assert sys.getrefcount(data) > before
    assert door.budget.used == 1000 * (len(b"a line") + ROW_COST)


def test_arguments_that_make_no_format() -> None:
    with pytest.raises(ValueError, match="a separator must not be empty"):
        LineFormat(b"\n", key_separator=b"", **LIMITS)
    with pytest.raises(ValueError, match="partition"):
        LineFormat(b"\n", partition=-1, **LIMITS)
    line_format = LineFormat(b"\n", **LIMITS)
    with pytest.raises(ValueError, match="start is 2, but the data has 1 bytes"):
        line_format.split(b"a", 2, True)
    with pytest.raises(IndexError):
        line_format.split(b"a", 0, True).raw(0, 2)
