"""Arrow data of every accepted layout, and with wrong fields in the structs of its C interface.

Each buffer is a piece of memory of exactly its size, so that a sanitizer detects any access beyond
it. Only those fields are wrong that a consumer can check: pointers, counts, lengths and formats.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy
import pyarrow

from tests._support.arrow_structs import Edited

from .odd import Odd

NAME_AND_VALUE = pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])
#: Types of cells, of numbers, and of lists of headers.
BYTES = [pyarrow.binary(), pyarrow.large_binary(), pyarrow.binary_view()]
TEXTS = [pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()]
NUMBERS = [pyarrow.int8(), pyarrow.uint16(), pyarrow.int32(), pyarrow.int64()]
HEADERS = [pyarrow.list_(NAME_AND_VALUE), pyarrow.large_list(NAME_AND_VALUE)]
HEADERS += [pyarrow.list_(pyarrow.struct(dict.fromkeys(["key", "value"], pyarrow.binary())))]
HEADERS += [pyarrow.map_(pyarrow.string(), pyarrow.binary())]
#: Milliseconds in a unit, or the negative number of units in a millisecond.
UNITS = {"s": 1000, "ms": 1, "us": -1000, "ns": -1_000_000}
#: Formats that no column has.
FORMATS = [b"", b"w", b"w:", b"w:-1", b"w:x", b"w:99999999999999999999", b"g", b"b", b"+r", b"vz:"]
#: Fields of a schema or of an array, and values that they cannot have.
WRONG_FIELDS: dict[str, list[Any]] = {
    "n_children": [1, -1, 9],
    "children": [None],
    "buffers": [None],
    "n_buffers": [0, 1, -1],
    "length": [-1, -(1 << 63), 0],
    "offset": [-1],
    "format": [None, *FORMATS],
    "name": [None, b"", b"value"],
    "dictionary": [None],
}


def tight(array: Any) -> Any:
    """Return a copy of *array* in which each buffer has no byte to spare."""

    def copy(buffer: Any) -> Any:
        return buffer and pyarrow.py_buffer(numpy.frombuffer(buffer, "u1").copy())

    kind, size, start = array.type, len(array), array.offset
    buffers = [copy(each) for each in array.buffers()]
    if pyarrow.types.is_dictionary(kind):
        inner = tight(array.dictionary)
        return pyarrow.DictionaryArray.from_buffers(kind, size, buffers, inner, -1, start)
    if not pyarrow.types.is_nested(kind):
        return pyarrow.Array.from_buffers(kind, size, buffers, -1, start)
    # Its own buffers come first, then those of its children.
    inside = [array.field(0), array.field(1)] if pyarrow.types.is_struct(kind) else [array.values]
    children = [tight(each) for each in inside]
    return pyarrow.Array.from_buffers(kind, size, buffers[: kind.num_buffers], -1, start, children)


class OddArrow:
    """A maker of record batches, each with the rows that must arrive."""

    def __init__(self, odd: Odd) -> None:
        self.odd = odd

    @property
    def chance(self) -> random.Random:
        """The random numbers of the calling thread."""
        return self.odd.chance

    def batch(self, count: int) -> tuple[Any, dict[str, list[Any]]]:
        """Return a record batch of *count* rows, and its columns by name."""
        columns = {"value": self._cells(count)}
        if self.odd.often(0.6):
            columns["key"] = self._cells(count)
        if self.odd.often(0.4):
            columns["partition"] = self._numbers(count, 0)
        if self.odd.often(0.4):
            columns["timestamp"] = self._numbers(count, 2**40)
        if self.odd.often(0.4):
            columns["headers"] = self._headers(count)
        names = list(columns)
        self.chance.shuffle(names)
        arrays = {name: columns[name][0] for name in names}
        return pyarrow.record_batch(arrays), {name: columns[name][1] for name in names}

    def _nulls(self, cells: list[Any]) -> list[Any]:
        share = self.chance.choice([0, 0, 0.3, 1])
        return [None if self.odd.often(share) else cell for cell in cells]

    def _array(self, cells: list[Any], kind: Any) -> Any:
        """Return an array of *cells*, possibly with an offset, possibly dictionary-encoded."""
        before, after = self.chance.choice([0, 0, 1, 9]), self.chance.choice([0, 0, 3])
        if not cells:
            return tight(pyarrow.array(cells, kind))
        array = pyarrow.array([cells[-1]] * before + cells + [cells[0]] * after, kind)
        if self.odd.often(0.15) and not pyarrow.types.is_nested(kind):
            array = array.dictionary_encode()
            index = self.chance.choice(NUMBERS)
            array = pyarrow.DictionaryArray.from_arrays(array.indices.cast(index), array.dictionary)
        return tight(array)[before : before + len(cells)]

    def _cells(self, count: int) -> tuple[Any, list[Any]]:
        draw = self.chance.random()
        if draw < 0.05:
            return pyarrow.nulls(count), [None] * count
        width = self.chance.choice([0, 1, 5, 16])
        kind = pyarrow.binary(width) if draw < 0.15 else self.chance.choice(BYTES + TEXTS)
        found = self._nulls(
            [
                bytes(self.chance.choices(range(97, 123), k=length))
                for length in (
                    [width] * count
                    if draw < 0.15
                    else self.chance.choices([0, 1, 5, 12, 13, 100], k=count)
                )
            ]
        )
        return self._array(found, kind), found

    def _numbers(self, count: int, most: int) -> tuple[Any, list[Any]]:
        if self.odd.often(0.05):
            return pyarrow.nulls(count), [None] * count
        if most and self.odd.often(0.5):
            unit, scale = self.chance.choice(list(UNITS.items()))
            given = self._nulls([self.chance.randint(0, most) for _ in range(count)])
            times = [n and (n * scale if scale > 0 else n // -scale) for n in given]
            return self._array(given, pyarrow.timestamp(unit)), times
        found = self._nulls([self.chance.randint(0, min(most, 127)) for _ in range(count)])
        return self._array(found, self.chance.choice(NUMBERS)), found

    def _headers(self, count: int) -> tuple[Any, list[Any]]:
        if self.odd.often(0.05):
            return pyarrow.nulls(count), [[]] * count
        kind = self.chance.choice(HEADERS)
        rows = self._nulls(
            [
                [
                    (
                        self.chance.choice(["", "name", "ä" * 9]),
                        self.chance.choice([None, b"", b"v"]),
                    )
                    for _ in range(self.chance.choice([0, 1, 2]))
                ]
                for _ in range(count)
            ]
        )
        cells = rows
        if kind not in HEADERS[3:]:
            cells = [row and [{"key": name, "value": value} for name, value in row] for row in rows]
        return self._array(cells, kind), [row or [] for row in rows]

    def broken(self, batch: Any) -> Any:
        """Return *batch* with a wrong field in one of its structs."""

        def edit(schema: Any, array: Any) -> None:
            while schema.n_children and self.odd.often(0.6):
                place = self.chance.randrange(schema.n_children)
                schema, array = schema.children[place].contents, array.children[place].contents
            if schema.dictionary and self.odd.often(0.5):
                schema, array = schema.dictionary.contents, array.dictionary.contents
            field, values = self.chance.choice(list(WRONG_FIELDS.items()))
            struct = self.chance.choice([each for each in (schema, array) if hasattr(each, field)])
            setattr(struct, field, self.chance.choice(values))

        return Edited(batch, edit)

    @contextlib.contextmanager
    def changing(self, batch: Any) -> Iterator[None]:
        """Clear and restore the memory of *batch* in another thread again and again.

        No size, offset or index in it is ever larger than it was.
        """
        memory = [
            numpy.frombuffer(each, "u1")
            for column in batch.columns
            for each in column.buffers()
            if each
        ]
        saved, ended = [each.copy() for each in memory], threading.Event()

        def change() -> None:
            while not ended.is_set():
                for each, contents in zip(memory, saved, strict=True):
                    each[:] = 0
                    each[:] = contents

        thread = threading.Thread(target=change)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def stream(self, batch: Any, times: int) -> tuple[Any, bool]:
        """Return a stream of *batch*, and whether it fails."""
        fails = self.odd.often(0.2)

        def batches() -> Iterator[Any]:
            for _ in range(times):
                self.odd.interfere()
                yield batch
            if fails:
                raise LookupError

        return pyarrow.RecordBatchReader.from_batches(batch.schema, batches()), fails
