"""Input is split into lines without loss, whatever the pieces in which it arrives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pykaproducer.cli._lines import Fragment, Lines, split

CUT = st.lists(
    st.sampled_from([b"", b"\n", b"\r\n", b"a", b"bc\n", b"\xff", b"x" * 7]), max_size=30
)


def whole(items: list[Lines | Fragment]) -> bytes:
    """Return the input again."""
    data = b""
    for item in items:
        if isinstance(item, Fragment):
            data += item.data
        else:
            data += b"\n".join(item.lines) + (b"\n" if item.terminated else b"")
    return data


@given(pieces=CUT, longest=st.integers(1, 10))
def test_nothing_is_lost_and_nothing_is_added(pieces: list[bytes], longest: int) -> None:
    assert whole(list(split(pieces, longest))) == b"".join(pieces)


@given(pieces=CUT)
def test_lines_are_what_stands_between_the_terminators(pieces: list[bytes]) -> None:
    items = list(split(pieces, 1000))
    found = [line for item in items if isinstance(item, Lines) for line in item.lines]
    expected = b"".join(pieces).split(b"\n")
    assert found == (expected if expected[-1] else expected[:-1])


def test_only_a_last_line_without_terminator_is_unterminated() -> None:
    assert list(split([b"a\nb"], 10)) == [Lines([b"a"], True), Lines([b"b"], False)]
    assert list(split([b"a\n", b"\n"], 10)) == [Lines([b"a"], True), Lines([b""], True)]
    assert list(split([], 10)) == []


def test_a_line_without_end_is_not_gathered() -> None:
    items = list(split([b"a\n" + b"x" * 8, b"x" * 8, b"x" * 8, b"x\nb\n"], 10))
    assert items == [
        Lines([b"a"], True),
        Fragment(b"x" * 16, first=True),
        Fragment(b"x" * 8, first=False),
        Fragment(b"x\n", first=False),
        Lines([b"b"], True),
    ]
