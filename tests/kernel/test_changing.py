"""Arrow data that another thread modifies during a call: noticed, and never written past a row.

A new topic's name is checked after the rows were measured and before they are copied.
"""

from __future__ import annotations

from typing import Any

import numpy
import pyarrow
import pytest

import pykaproducer._kernel as _kernel
from pykaproducer.block import _REFUSALS

from .helper import TOPIC, Door, deliver

ROWS = 4
BIG = 300_000
NAMES = pyarrow.array([b"name"] * ROWS)


class Changing(Door):
    """An admission during whose calls the *memory* of a column gets *contents*."""

    def __init__(self, memory: Any, contents: Any, **settings: Any) -> None:
        super().__init__(**settings)
        self._memory, self._contents = memory, contents

    def _check_topic(self, topic: object) -> None:
        self._memory[:] = self._contents


def arrow(kind: Any, *buffers: Any, validity: Any = None, children: Any = None) -> Any:
    """Return an array of ROWS cells in these NumPy arrays."""
    found = [each if each is None else pyarrow.py_buffer(each) for each in (validity, *buffers)]
    nulls = 0 if validity is None else 1  # otherwise the bitmap would not be read
    return pyarrow.Array.from_buffers(kind, ROWS, found, nulls, children=children)


def offsets(size: int) -> Any:
    return numpy.arange(ROWS + 1, dtype="i4") * size


def views(size: int) -> Any:
    """Return views of *size* bytes in the first buffer."""
    return numpy.array([[size, 0, 0, 0]] * ROWS, "i4")


def headers(memory: Any, values: Any, names: Any = NAMES, validity: Any = None) -> Any:
    """Return a header for each row; *memory*: the offsets."""
    entries = pyarrow.StructArray.from_arrays([names, values], ["key", "value"])
    return arrow(pyarrow.list_(entries.type), memory, validity=validity, children=[entries])


def cases() -> dict[str, tuple[Any, Any, str, Any]]:
    """Return columns: the memory and what it changes to, the name of the column, and its array."""
    data = numpy.zeros(BIG + 99, "u1")
    found = {}

    def add(name: str, memory: Any, contents: Any, column: str, array: Any) -> None:
        found[name] = memory, contents, column, array

    for column in ("value", "headers"):
        for size in (BIG, 0, 14):
            memory = views(13)
            cells = arrow(pyarrow.binary_view(), memory, data)
            array = cells if column == "value" else headers(offsets(1), cells)
            add(f"{column}: views of {size}", memory, views(size), column, array)
            memory = offsets(20)
            cells = arrow(pyarrow.binary(), memory, data)
            array = cells if column == "value" else headers(offsets(1), cells)
            add(f"{column}: offsets of {size}", memory, offsets(size), column, array)
    for contents in (offsets(2), offsets(1 << 20), -offsets(1), offsets(1)[::-1], offsets(0)):
        memory = offsets(1)
        add(f"headers: {contents}", memory, contents, "headers", headers(memory, NAMES))
    valid = numpy.array([255], "u1")
    names = arrow(pyarrow.binary(), offsets(5), data, validity=valid)
    add("a name is null", valid, 0, "headers", headers(offsets(1), NAMES, names))
    valid = numpy.array([255], "u1")
    add("headers are null", valid, 0, "headers", headers(offsets(1), NAMES, validity=valid))
    valid = numpy.array([255], "u1")
    values = arrow(pyarrow.binary(), offsets(5), data, validity=valid)
    add("values are null", valid, 0, "value", values)
    for wrong in (2, -1):
        memory = numpy.zeros(ROWS, "i4")
        indices = arrow(pyarrow.int32(), memory)
        for column in ("key", "partition", "timestamp"):
            inner = pyarrow.array([b"one", b"two"] if column == "key" else [1, 2])
            array = pyarrow.DictionaryArray.from_arrays(indices, inner, safe=False)
            add(f"{column}: index {wrong}", memory, wrong, column, array)
    for column, most in (("partition", (1 << 31) - 1), ("timestamp", 1 << 62)):
        for wrong in (-1, most + 1):
            memory = numpy.zeros(ROWS, "i8")
            add(f"{column} {wrong}", memory, wrong, column, arrow(pyarrow.int64(), memory))
    memory = numpy.array([0, 500, 1000, 1000, 1000], "i4")
    values = arrow(pyarrow.binary(), memory, data)
    add("too large", memory, [0, 1000, 1000, 1000, 1000], "value", values)
    return found


@pytest.mark.parametrize("name", cases())
def test_a_column_that_changes_after_it_was_measured(name: str) -> None:
    memory, contents, column, array = cases()[name]
    batch = pyarrow.record_batch({"value": NAMES, column: array})
    door = Changing(memory, contents, max_request_size=800)
    with pytest.raises(ValueError, match="was modified during the call"):
        door._send_block(
            _kernel.SentBlock(), TOPIC, _kernel.columns_of_arrow(batch), None, None, ()
        )
    assert (door.accepted, door.budget.used, door.chunks()) == (0, 0, [])


def test_a_part_of_the_block_was_accepted_before() -> None:
    """Raised, the error would mean that none of the rows will be sent."""

    class Waits(Changing):
        def _wait_for_space(self, turn: _kernel.Turn) -> None:
            super()._check_topic(TOPIC)
            for chunk in self.chunks():
                deliver(chunk.whole())

        def _check_topic(self, topic: object) -> None:
            pass

    memory = offsets(1000)
    cells = arrow(pyarrow.binary(), memory, numpy.zeros(BIG, "u1"))
    columns = _kernel.columns_of_arrow(pyarrow.record_batch({"value": cells}))
    door, block = Waits(memory, offsets(2000), limit=2500), _kernel.SentBlock()
    door._send_block(block, TOPIC, columns, None, None, _REFUSALS)
    assert (block.accepted, door.budget.used) == (2, 0)
    assert "was modified during the call" in str(block.refusal)
