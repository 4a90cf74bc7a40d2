"""The public calls of the fuzzer: send(), columns of objects, Arrow data."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pykaproducer._kernel as _kernel

from .fuzz_stages import Callback, MisjudgedError, Stages, TooLargeError
from .helper import ClosedError, NoSpaceError
from .odd import ANY, WRONG, BoomError, Hostile, Made, Odd, whole
from .odd_arrow import Arrow, ArrowStream, OddArrow

#: The exceptions documented for send(), send_many() and send_arrow().
DOCUMENTED = (TypeError, ValueError, BufferError, BoomError, NoSpaceError, ClosedError)

MOST_PARTITION = (1 << 31) - 1
MOST_TIMESTAMP = 1 << 62


class Calls(Stages):
    """Messages sent by every call, with any arguments, and their expected results."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.odd = Odd(self.chance, self.interfere)
        self.arrow = OddArrow(self.odd)

    def interfere(self) -> None:
        """Call back into the kernel, from the special methods of odd objects."""
        if self.depth >= 2:
            return
        self.depth += 1
        try:
            draw = self.chance.random()
            if draw < 0.3:
                self.send_plain()
            elif draw < 0.45:
                self.settle_some()
            elif draw < 0.5:
                self.send_block()
            elif draw < 0.55 and self.kept:
                self.kept.pop()
            elif draw < 0.555:
                gc.collect()
        finally:
            self.depth -= 1

    # send() ---------------------------------------------------------------------------------------

    def send(self) -> None:
        """Send one message with any arguments."""
        key, key_expected = self.odd.payload()
        value, value_expected = self.odd.payload()
        headers, headers_expected = self.odd.headers()
        partition, partition_expected = self.odd.number(MOST_PARTITION)
        timestamp, timestamp_expected = self.odd.number(MOST_TIMESTAMP)
        timeout, timeout_expected = self.odd.number(MOST_PARTITION, 1)
        callback, callback_expected = self._callback()
        topic, topic_expected = self._topic()
        content = (
            key_expected,
            value_expected,
            headers_expected,
            partition_expected,
            timestamp_expected,
        )
        expected = whole([*content, timeout_expected, callback_expected, topic_expected])
        try:
            handle = self.door.send(
                topic,
                value,
                key,
                headers,
                partition,
                timestamp,
                on_delivery=callback,
                delivery_timeout_ms=timeout,
            )
        except DOCUMENTED as error:
            self._refused(expected, error)
            return
        if isinstance(callback, Callback):
            self.due.add(callback)
        if expected is WRONG:
            raise MisjudgedError("an invalid call was accepted")
        self.note(handle.chunk, handle.row, content)
        if self.odd.often(0.3):
            self.kept.append(handle)

    def _refused(self, expected: Any, error: Exception) -> None:
        """Raise if the call was valid, according to *expected*, and must not be rejected."""
        if isinstance(expected, list) and not isinstance(error, (TooLargeError, NoSpaceError)):
            raise MisjudgedError("a valid call was rejected") from error

    def send_plain(self) -> None:
        """Send a message that must be accepted, whatever else runs at this moment."""
        data = self.odd.raw()
        try:
            handle = self.door.send("t1", data, partition=1)
        except NoSpaceError:
            return
        self.note(handle.chunk, handle.row, (None, data, [], 1, None))

    def _callback(self) -> Made:
        """Return an ``on_delivery`` argument."""
        draw = self.chance.random()
        if draw < 0.5:
            return None, None
        if draw < 0.85:
            return Callback(self), None
        if draw < 0.95:
            return Hostile(self.odd), ANY
        return self.chance.choice([5, "x", b"", [], object()]), WRONG

    def _topic(self) -> Made:
        odd = self.odd

        class Topic(str):
            def __eq__(self, other: object) -> bool:
                odd.disturb()
                return False

            def __hash__(self) -> int:
                odd.disturb()
                return odd.chance.choice([0, -1, 1 << 61])

            def __str__(self) -> str:
                odd.disturb()
                return "other"

        draw = self.chance.random()
        if draw < 0.9:
            return self.chance.choice(["t1", "t2", "ä" * 3]), "topic"
        if draw < 0.95:
            return Topic("t3"), ANY
        return self.chance.choice(["", None, b"t1", 5, object(), Hostile(odd)]), WRONG

    # send_many() ----------------------------------------------------------------------------------

    def send_block(self) -> None:
        """Send columns of any objects."""
        count = self.chance.choice([0, 1, 2, 2, 5, 20])
        values, values_expected = self._cells(count)
        keys, keys_expected = self._maybe(count, self._cells)
        headers, headers_expected = self._maybe(count, self._header_lists)
        if headers is None:
            headers_expected = [[]] * count
        partitions, partitions_expected = self._maybe(count, self._partitions)
        timestamps, timestamps_expected = self._maybe(count, self._timestamps)
        columns = [
            keys_expected,
            values_expected,
            headers_expected,
            partitions_expected,
            timestamps_expected,
        ]
        try:
            made = _kernel.columns_of(values, keys, headers, partitions, timestamps)
        except DOCUMENTED as error:
            self._refused(whole(columns), error)
            return
        self._admit_block("t1", [made], columns)

    def _cells(self, count: int) -> Made:
        """Return a column of keys or values."""
        plain = self.odd.often(0.6)
        made: list[Made] = []
        for _ in range(count):
            data = self.odd.raw()
            made.append((data, data) if plain else self._cell())
        return self._of_length(self.odd.column(made, padded=True), count)

    def _cell(self) -> Made:
        thing, expected = self.odd.payload()
        if isinstance(thing, memoryview) and expected is WRONG:
            expected = ANY  # bytes() reads strided memory
        return thing, expected

    def _header_lists(self, count: int) -> Made:
        """Return a column of lists of headers."""
        return self._of_length(self.odd.column([self.odd.headers() for _ in range(count)]), count)

    def _partitions(self, count: int) -> Made:
        return self._numbers(count, MOST_PARTITION)

    def _timestamps(self, count: int) -> Made:
        return self._numbers(count, MOST_TIMESTAMP)

    def _numbers(self, count: int, most: int) -> Made:
        """Return a column of numbers."""
        plain = self.odd.often(0.6)
        made: list[Made] = []
        for _ in range(count):
            number = self.chance.randint(0, most)
            made.append((number, number) if plain else self.odd.number(most))
        return self._of_length(self.odd.column(made), count)

    def _of_length(self, made: Made, count: int) -> Made:
        """Return *made*, sometimes with a length other than that of the other columns."""
        thing, expected = made
        if type(thing) is list and self.odd.often(0.03):
            return [*thing, None], ANY
        return thing, expected

    def _maybe(self, count: int, maker: Callable[[int], Made]) -> Made:
        """Return a column, or None for one that is optional."""
        if self.odd.often(0.6):
            return None, [None] * count
        return maker(count)

    # send_arrow() ---------------------------------------------------------------------------------

    def send_arrow(self) -> None:
        """Send Arrow data of any layout, broken or not."""
        count = self.chance.choice([0, 1, 2, 9, 30])
        node, found = self.arrow.batch(count)
        empty = {"headers": [[]] * count}
        expected: Any = [
            found.get(name, empty.get(name, [None] * count))
            for name in ("key", "value", "headers", "partition", "timestamp")
        ]
        if self.odd.often(0.4):
            expected = self.arrow.broken(node)
        data: Arrow | ArrowStream
        if self.odd.often(0.7):
            data = Arrow(node, self.odd)
        else:
            batches = self.chance.choice([1, 2])
            data = ArrowStream([node] * batches, self.odd)
            data.fails_at = self.chance.choice([9, 9, 9, 0, 1, -1])
            data.released = self.odd.often(0.1)
            if expected is not ANY:
                expected = [column * batches for column in expected]
        made: list[_kernel.Columns] = []
        try:
            # Capsules and streams are sometimes malformed; accepted data must arrive unchanged.
            made = _kernel.columns_of_arrow(data)
            self._admit_block("t2", made, expected)
        except DOCUMENTED:
            pass
        finally:
            del made
            data.memory.free()

    def _admit_block(self, topic: str, made: list[_kernel.Columns], expected: Any) -> None:
        """Accept columns; each row must match *expected*, column by column."""
        columns = [ANY] * 5 if expected is ANY else expected
        block = _kernel.SentBlock()
        watch = Callback(self) if self.odd.often(0.2) else None
        try:
            self.door._send_block(block, topic, made, None, watch, (NoSpaceError,))
        except DOCUMENTED as error:
            self._refused(whole(columns), error)
            return
        if watch is not None:
            self.due.add(watch)
            if block.refusal is not None or not block.count:
                watch.calls += 1  # normally done by the caller
        if whole(columns) is WRONG:
            raise MisjudgedError("an invalid column was accepted")
        row = 0
        for segment in block.segments:
            for at in range(len(segment.chunk)):
                # A column that lies about its length may have made the block longer.
                content = [ANY if row >= len(column) else column[row] for column in columns]
                self.note(segment.chunk, at, tuple(content))
                row += 1
        if self.odd.often(0.3):
            self.kept.append(block)
