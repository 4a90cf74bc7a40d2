"""Arguments that only the package passes: an invalid one raises, and is never a wild pointer."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable, Iterator
from typing import Any

import crc32c
import pytest

import pykaproducer._kernel as _kernel

from .helper import TOPIC, Door, claim, deliver, encode, fail, pack

KINDS = [
    kind
    for kind in vars(_kernel).values()
    if isinstance(kind, type) and kind.__module__ == _kernel.__name__
]
NAN, INF, INT32 = float("nan"), float("inf"), (1 << 31) - 1


def chunk_of(rows: int) -> _kernel.Chunk:
    door = Door()
    for _ in range(rows):
        door.send(TOPIC, b"value", b"key")
    return door.chunk()


@pytest.mark.parametrize("row", [3, 50, 2**32 - 1])
def test_a_row_that_a_chunk_does_not_have_is_refused(row: int) -> None:
    chunk = chunk_of(3)
    calls: tuple[Callable[[], Any], ...] = (
        lambda: chunk.key(row),
        lambda: chunk.value(row),
        lambda: chunk.partition_of(row),
        lambda: chunk.assign(row, 0),
        lambda: chunk.pick([0, row]),
    )
    for call in calls:
        with pytest.raises(IndexError, match=f"no row {row} in a chunk of 3 rows"):
            call()
    fail(chunk.whole())
    with pytest.raises(IndexError):
        chunk.partition_of(row)


def test_only_slices_that_have_been_claimed_are_encoded() -> None:
    chunk = chunk_of(1)
    claimed = claim(chunk.whole())
    encode(claimed)
    for parts in ([None], [claimed], [chunk.whole()]):
        with pytest.raises(ValueError, match="have been claimed"):
            _kernel.encode_batch(parts, crc32c.crc32c)  # type: ignore[arg-type]
    deliver(claimed)
    with pytest.raises(ValueError, match="have been claimed"):
        _kernel.encode_batch([claimed], crc32c.crc32c)


def test_a_negative_room_takes_nothing() -> None:
    part = chunk_of(2).whole()
    assert part.claim(-(1 << 63), 5) is None
    assert part.claim(100, -(1 << 63)) is None
    assert len(part) == 2


def test_a_view_of_a_batch_keeps_no_reference() -> None:
    batch, _ = _kernel.encode_batch([claim(chunk_of(1).whole())], crc32c.crc32c)
    before = sys.getrefcount(batch), sys.getrefcount(None)
    for _ in range(1000):
        memoryview(batch).release()
    assert sys.getrefcount(batch) == before[0]
    assert sys.getrefcount(None) < before[1] + 500


def test_shares_of_no_partition_are_not_drawn() -> None:
    """The favoured partition is not an integer, and later no partition has a leader."""
    partitioner = _kernel.Partitioner(_kernel.NO_HASH, _kernel.STICKY)
    partitioner.set_queue_bounds(b"abc", b"abc")
    slices, unknown = chunk_of(1).split(partitioner, 2, b"abc")
    assert unknown is None
    assert sum(len(part) for part in slices) == 1


#: Calls with a number, and numbers with which they are refused.
REFUSED: list[tuple[Callable[[Any], object], list[float], str]] = [
    (lambda seconds: Door(delivery_timeout=seconds), [-1.0, 1e300, INF, NAN], "timeout must be"),
    (lambda n: chunk_of(1).split(None, n, pack([0])), [-1, -(1 << 31), INT32], "cannot have"),
    (lambda n: _kernel.partition_for(_kernel.FNV1A, b"k", n), [0, -1], "must be at least 1, not"),
    (lambda window: _kernel.SampledStat(window, 3), [0.0, -1.0, NAN], "window"),
    (lambda samples: _kernel.SampledStat(1.0, samples), [0, -1], "sample"),
    (lambda n: _kernel.poll_events([(0, 1)] * n, 0), [9], "poll 9 descriptors: the maximum is 8"),
]


@pytest.mark.parametrize(
    ("call", "number", "text"),
    [(call, number, text) for call, numbers, text in REFUSED for number in numbers],
)
def test_a_number_that_cannot_be_is_refused(
    call: Callable[[Any], object], number: float, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        call(number)


@pytest.mark.parametrize("odd", [INF, -INF, NAN, 1e300, -1e300])
def test_any_number_is_taken(odd: float) -> None:
    stat = _kernel.SampledStat(1.0, 3, True)
    stat.add(5.0, 0.25)
    stat.add(odd, 0.5)
    stat.add(5.0, odd)
    stat.recent(odd)
    stat.percentiles(odd, 0.5, odd)
    assert sum(stat.histogram([0.1, odd, 10.0])) == 3
    late = [len(part) for part in chunk_of(2).expired(odd)]  # all rows, or none
    assert late == ([2] if odd > 0 else [])


# Sequences that change --------------------------------------------------------------------------


class Guess(list[Any]):
    """A list that reports more items each time, and is emptied when its items are read."""

    looks = 0

    def __len__(self) -> int:
        self.looks += 1000
        return self.looks


class Pair:
    """What empties the list of it while it is read."""

    watched: list[Any]

    def __iter__(self) -> Iterator[int]:
        self.watched.clear()
        return iter((0, 0))


def test_sequences_that_change_while_they_are_read() -> None:
    assert chunk_of(3).pick(Guess([0, 2])).row_numbers() == [0, 2]
    stat = _kernel.SampledStat(1.0, 3, True)
    stat.add(0.0, 0.5)
    assert stat.histogram(Guess([0.1, 1.0])) == [0, 1, 0]
    watched: list[Any] = [Pair(), Pair()]
    Pair.watched = watched
    with pytest.raises(IndexError):
        _kernel.poll_events(watched, 0)


def test_one_object_is_no_column() -> None:
    with pytest.raises(TypeError, match="values must be a sequence of bytes, not bytes"):
        _kernel.columns_of(b"text")


def test_watchers_that_go_while_they_are_called() -> None:
    door, block = Door(), _kernel.SentBlock()
    with pytest.raises(TypeError, match="must be Columns, not None"):
        door._send_block(block, TOPIC, [None], None, None, ())  # type: ignore[list-item]
    door._send_block(block, TOPIC, [_kernel.columns_of([b"a", b"b"])], None, None, ())
    for chunk in door._take_all():
        fail(chunk.whole())
    watchers: list[Callable[[_kernel.Delivery], object]] = []
    watchers += [lambda handle: watchers.clear()] * 2
    with pytest.raises(IndexError):
        block.watch_each(watchers)


# Copies -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_the_kernel_is_copied_or_given_a_state(kind: type) -> None:
    """A state made up by another process, or by a caller, would be used as pointers."""
    assert not hasattr(kind, "__setstate_cython__")
    assert not [name for name in dir(_kernel) if name.startswith("__pyx_unpickle")]


@pytest.mark.parametrize(
    "thing", [_kernel.Budget(1), _kernel.SampledStat(1.0, 1), _kernel.Intercepted(None, print)]
)
def test_what_has_no_state_is_not_pickled(thing: object) -> None:
    with pytest.raises(TypeError):
        copy.copy(thing)
    with pytest.raises(TypeError):
        pickle.dumps(thing)
