"""Decisions and markers are read as they were written, and damaged ones are reported."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykaproducer._exactly_once.names import Names, check_prefix
from pykaproducer._exactly_once.records import (
    LONGEST_QUERY,
    PIECE,
    BatchKey,
    Decision,
    Extent,
    Marker,
    StateError,
    TaskToken,
)

NUMBERS = st.integers(0, 2**63 - 1)
CHECKSUMS = st.integers(0, 2**64 - 1)
KEYS = st.builds(
    BatchKey,
    st.text(max_size=40).filter(lambda text: len(text.encode()) <= LONGEST_QUERY),
    NUMBERS,
)


@st.composite
def decisions(draw: st.DrawFn) -> Decision:
    tasks = sorted(draw(st.sets(st.integers(0, 5_000), max_size=1_000)))
    return Decision(
        key=draw(KEYS),
        partitions=draw(st.integers(1, 10_000)),
        tasks=draw(NUMBERS),
        most_tasks=draw(NUMBERS),
        most_attempts=draw(st.integers(0, 100)),
        rows=draw(NUMBERS),
        checksum=draw(CHECKSUMS),
        tokens=tuple(
            TaskToken(task, attempt, producer_id, epoch, protocol)
            for task, attempt, producer_id, epoch, protocol in zip(
                tasks,
                *(
                    draw(st.lists(each, min_size=len(tasks), max_size=len(tasks)))
                    for each in (
                        st.integers(0, 9),
                        NUMBERS,
                        st.integers(0, 2**15 - 1),
                        st.sampled_from([1, 2]),
                    )
                ),
                strict=True,
            )
        ),
    )


@given(decisions())
def test_a_decision_is_read_as_it_was_written(decision: Decision) -> None:
    pieces = decision.pieces()
    assert Decision.of(pieces) == decision
    assert all(len(piece) <= PIECE for piece in pieces)
    assert Extent.of(pieces[0]) == (decision.key, len(pieces), decision.partitions)


@given(KEYS, NUMBERS, NUMBERS, CHECKSUMS, NUMBERS, st.integers(0, 2**15 - 1))
def test_a_marker_is_read_as_it_was_written(
    key: BatchKey, task: int, rows: int, checksum: int, producer_id: int, epoch: int
) -> None:
    marker = Marker(key, task, rows, checksum, producer_id, epoch)
    assert Marker.of(str(marker)) == marker
    assert marker.is_of(TaskToken(task, 3, producer_id, epoch, 2))
    assert not marker.is_of(TaskToken(task, 3, producer_id, epoch + 1, 2))
    assert not marker.is_of(TaskToken(task, 3, producer_id + 1, epoch, 2))
    assert not marker.is_of(TaskToken(task + 1, 3, producer_id, epoch, 2))


def a_decision(tokens: int = 3) -> Decision:
    return Decision(
        BatchKey("q", 7),
        3,
        tokens,
        tokens,
        0,
        100,
        2**64 - 1,
        tuple(TaskToken(task, 0, 10**12 + task, 5, 2) for task in range(tokens)),
    )


def test_three_hundred_tasks_fit_into_a_piece() -> None:
    assert len(a_decision(300).pieces()) == 1
    assert len(a_decision(1_000).pieces()) > 1


@given(st.integers(0), st.integers(1, 255))
def test_a_changed_byte_is_found(place: int, change: int) -> None:
    data = bytearray(base64.b64decode(a_decision().pieces()[0]))
    place %= len(data)
    data[place] ^= change
    with pytest.raises(StateError, match=r"damaged|update pykaproducer"):
        Decision.of([base64.b64encode(data).decode()])


@given(st.integers(0, PIECE))
def test_a_missing_end_is_found(size: int) -> None:
    text = "".join(a_decision(1_000).pieces())
    for pieces in ([text[:size]], [text[:PIECE], text[PIECE : PIECE + size // 4]], []):
        with pytest.raises(StateError, match="damaged"):
            Decision.of(pieces)


@pytest.mark.parametrize("text", ["", "ä", "AAAA", "not base64!", "AQAAAAAAAAAA"])
def test_the_beginning_of_something_else(text: str) -> None:
    with pytest.raises(StateError, match="damaged"):
        Extent.of(text)
    with pytest.raises(StateError, match="damaged"):
        Decision.of([text])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "damaged"),
        ("1 2 3 4", "damaged"),
        ("1 2 3 4 ff 5 6", "damaged"),
        ("1 x 3 4 ff 5 6 q", "damaged"),
        ("2 0 0 0 ff 5 6 q", "a newer version; update pykaproducer"),
    ],
)
def test_a_marker_of_something_else(text: str, said: str) -> None:
    with pytest.raises(StateError, match=said):
        Marker.of(text)


# Names --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefix", "said"),
    [
        ("", "must not be empty"),
        ("shop orders", "letters"),
        ("ä", "letters"),
        ("x" * 181, "180"),
        ("orders.1", "number"),
    ],
)
def test_prefixes_that_are_refused(prefix: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_prefix(prefix)


@pytest.mark.parametrize("prefix", ["a", "shop.orders", "x" * 180, "orders-1", "1"])
def test_prefixes_that_are_accepted(prefix: str) -> None:
    check_prefix(prefix)


@given(st.integers(1, 50))
def test_no_two_tasks_share_a_place(partitions: int) -> None:
    names = Names("X", "t")
    markers = [names.marker(task, partitions) for task in range(200)]
    pieces = [names.decision(piece, partitions) for piece in range(200)]
    ids = [names.task(task, attempt) for task in range(20) for attempt in range(5)]
    assert len({*markers, *pieces}) == 400
    assert len({*ids, names.driver}) == 101
    assert all(place.partition < partitions for _, place in (*markers, *pieces))
