"""Arrow structs that are released, incomplete or inconsistent are rejected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pyarrow
import pytest

from pykaproducer import Producer
from pykaproducer.testing import ScriptedCluster
from tests._support.arrow_structs import Edited, WithoutSchema, structs
from tests._support.blocks import SOON, batch, coded, list_of, logged, with_headers


class Once:
    """An exporter that returns the same capsules each time."""

    def __init__(self, data: Any) -> None:
        self.capsules = data.__arrow_c_array__()

    def __arrow_c_array__(self, requested_schema: object = None) -> Any:
        return self.capsules


def test_a_struct_that_was_imported_is_not_read(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    once = Once(pyarrow.array([b"value"]))
    producer.send_many("t", once, partitions=[0]).result(SOON)
    # The producer owns it now: nothing else could release it.
    assert not structs(once.capsules)[1].release
    with pytest.raises(ValueError, match="imported only once"):
        producer.send_many("t", once)
    for data in (pyarrow.array([0]), batch(value=[b"v"])):
        once = Once(data)
        del data
        pyarrow.Array._import_from_c_capsule(*once.capsules)
        with pytest.raises(ValueError, match="imported only once"):
            producer.send_many("t", [b"v"], partitions=once)
        with pytest.raises(ValueError, match="imported only once"):
            producer.send_arrow(once, "t")
    assert logged(cluster) == [b"value"]


def test_a_stream_that_was_read_is_not_read(producer: Producer) -> None:
    class Stream:
        capsule = pyarrow.table({"value": ["v"]}).__arrow_c_stream__()

        def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
            return self.capsule

    assert producer.send_arrow(Stream(), "t").result(SOON).rows == 1
    with pytest.raises(ValueError, match="read only once"):
        producer.send_arrow(Stream(), "t")


@pytest.mark.parametrize(("status", "text"), [(5, "no schema: no reason given"), (0, "no schema$")])
def test_a_stream_without_a_schema_is_refused(producer: Producer, status: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        producer.send_arrow(WithoutSchema(pyarrow.table({"value": ["v"]}), status), "t")


class Exported:
    """An exporter of objects that are not capsules."""

    def __init__(self, found: Any) -> None:
        self.found = found

    def __arrow_c_array__(self, requested_schema: object = None) -> Any:
        return self.found


@pytest.mark.parametrize(
    "found", [None, (), (1,), (1, 2), [1, 2], pyarrow.array([0]).__arrow_c_array__()[::-1]]
)
def test_what_is_exported_must_be_two_capsules(producer: Producer, found: Any) -> None:
    with pytest.raises(TypeError, match="capsule"):
        producer.send_many("t", Exported(found))
    with pytest.raises(TypeError, match="capsule"):
        producer.send_arrow(Exported(found), "t")


Edit = Callable[[Any, Any], None]


def set_on(place: int, fields: dict[str, Any]) -> Edit:
    def edit(*structs: Any) -> None:
        for name, value in fields.items():
            setattr(structs[place], name, value)

    return edit


def schema(**fields: Any) -> Edit:
    return set_on(0, fields)


def array(**fields: Any) -> Edit:
    return set_on(1, fields)


def no_buffer(number: int) -> Edit:
    return lambda schema, array: array.buffers.__setitem__(number, None)


def of_child(edit: Edit, number: int = 0) -> Edit:
    return lambda schema, array: edit(
        schema.children[number].contents, array.children[number].contents
    )


BINARY = pyarrow.array([b"0", None, b"22"])
VIEWS = pyarrow.array([b"0", None, b"x" * 20], pyarrow.binary_view())
FIXED = pyarrow.array([b"00", None, b"22"], pyarrow.binary(2))
CODED = BINARY.dictionary_encode()
HEADERS = with_headers(
    [[{"key": "k", "value": b"v"}]] * 2, list_of(key=pyarrow.string(), value=pyarrow.binary())
)

WRONG: dict[str, tuple[Any, Edit, str]] = {
    "a negative length": (BINARY, array(length=-1), "length is -1"),
    "a huge length": (BINARY, array(length=1 << 60), "length is 1152921504606846976"),
    "a negative offset": (BINARY, array(offset=-5), "offset is -5"),
    "no list of buffers": (BINARY, array(buffers=None), "no buffers"),
    "a negative number of buffers": (BINARY, array(n_buffers=-1), "no buffers"),
    "too few buffers": (BINARY, array(n_buffers=2), "buffer 2 is missing"),
    "no validity": (BINARY, no_buffer(0), "1 rows are null"),
    "no offsets": (BINARY, no_buffer(1), "buffer 1 is missing"),
    "no data": (BINARY, no_buffer(2), "row 0: column 'value'.*is out of range"),
    "no views": (VIEWS, no_buffer(1), "buffer 1 is missing"),
    "no data of views": (VIEWS, no_buffer(2), "row 2: column 'value'.*is out of range"),
    "no sizes of views": (VIEWS, no_buffer(3), "buffer 3 is missing"),
    "no fixed cells": (FIXED, no_buffer(1), "buffer 1 is missing"),
    "a negative width": (FIXED, schema(format=b"w:-2"), "its format is 'w:-2'"),
    "a huge width": (FIXED, schema(format=b"w:99999999999999999999"), "its format is"),
    "no width": (FIXED, schema(format=b"w:"), "its format is 'w:'"),
    "no dictionary": (CODED, array(dictionary=None), "only one of the schema and the array"),
    "a dictionary for no indices": (
        CODED,
        schema(format=b"z"),
        "must have integers, not Arrow format 'z'",
    ),
    "no format": (BINARY, schema(format=None), "not of Arrow format ''"),
    "children that the schema does not have": (
        BINARY,
        array(n_children=2),
        "it has 2 children, but its schema has 0",
    ),
}


@pytest.mark.parametrize(("data", "edit", "text"), WRONG.values(), ids=WRONG)
def test_arrow_data_that_cannot_be_is_refused(
    producer: Producer, data: Any, edit: Edit, text: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        producer.send_many("t", Edited(data, edit))
    with pytest.raises((ValueError, TypeError), match=text):
        producer.send_arrow(Edited(batch(value=data), of_child(edit)), "t")
    assert producer.accepted == 0
    producer.flush(SOON)
    assert producer._budget.used == 0


def entries(edit: Edit) -> Edit:
    return of_child(of_child(edit), 1)


ONE = batch(value=["0", "1"])
NUMBERED = batch(value=["0", "1"], partition=[0, 1])

WRONG_BATCHES: dict[str, tuple[Any, Edit, str]] = {
    "no children": (ONE, array(children=None), "child 0 is missing"),
    "no children of the schema": (ONE, schema(children=None), "child 0 is missing"),
    "other numbers of children": (ONE, array(n_children=3), "it has 3 children"),
    "a negative number of them": (ONE, schema(n_children=-1), "its schema has -1"),
    "a child without a name": (ONE, of_child(schema(name=None)), "unknown column ''"),
    "a child that is too short": (
        ONE,
        of_child(array(length=1)),
        "column 'value' .* it has 1 rows, but 2 are required",
    ),
    "an offset behind the end": (ONE, array(offset=1), "2 are required|3 are required"),
    "numbers without data": (NUMBERED, of_child(no_buffer(1), 1), "'partition'.*buffer 1"),
    "too few numbers": (NUMBERED, of_child(array(length=1), 1), "'partition'.*1 rows"),
    "headers without offsets": (HEADERS, of_child(no_buffer(1), 1), "'headers'.*buffer 1"),
    "headers without entries": (HEADERS, of_child(array(children=None), 1), "child 0 is missing"),
    "too few entries": (HEADERS, entries(array(length=1)), "'headers'.*out of range"),
    "entries of which the names are too few": (
        HEADERS,
        entries(of_child(array(length=1))),
        "'headers.key'.*1 rows",
    ),
    "entries without names": (HEADERS, entries(array(children=None)), "child 0 is missing"),
}


@pytest.mark.parametrize(("data", "edit", "text"), WRONG_BATCHES.values(), ids=WRONG_BATCHES)
def test_a_record_batch_that_cannot_be_is_refused(
    producer: Producer, data: Any, edit: Edit, text: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        producer.send_arrow(Edited(data, edit), "t")
    assert producer.accepted == 0


def from_buffers(kind: Any, count: int, *buffers: Any) -> Any:
    made = [None, *(pyarrow.py_buffer(numpy.array(*each).tobytes()) for each in buffers)]
    return pyarrow.Array.from_buffers(kind, count, made)


LONG: tuple[Any, str] = ([97] * 40, "u1")


def views(size: int, buffer: int, start: int) -> Any:
    """Return an empty cell and another one."""
    cells = [[0, 0, 0, 0], [size, 0, buffer, start]]
    return from_buffers(pyarrow.binary_view(), 2, (cells, "i4"), LONG)


OUTSIDE: dict[str, Any] = {
    "offsets that fall": from_buffers(pyarrow.binary(), 2, ([0, 9, 5], "i4"), LONG),
    "a negative offset": from_buffers(pyarrow.binary(), 2, ([0, -9, 5], "i4"), LONG),
    "large offsets that fall": from_buffers(pyarrow.large_binary(), 2, ([0, 9, 5], "i8"), LONG),
    "a view of no buffer": views(20, 5, 0),
    "a view behind its buffer": views(20, 0, 21),
    "a view before its buffer": views(20, 0, -1),
    "a view of a negative size": views(-2, 0, 0),
    "an index behind the dictionary": pyarrow.DictionaryArray.from_arrays(
        pyarrow.array([0, 3]), pyarrow.array([b"a", b"b", b"c"]), safe=False
    ),
    "a negative index": pyarrow.DictionaryArray.from_arrays(
        pyarrow.array([0, -1]), pyarrow.array([b"a", b"b", b"c"]), safe=False
    ),
}


@pytest.mark.parametrize("cells", OUTSIDE.values(), ids=OUTSIDE)
def test_a_cell_outside_of_its_column_is_refused(producer: Producer, cells: Any) -> None:
    # The columns are in the order in which a row is validated.
    for name in ("key", "value", "topic"):
        columns = {"value": pyarrow.array([b"", b""]), name: cells}
        if name == "topic":
            assert producer.send_arrow(batch(**columns), "t").result(SOON).rows == 2
        expected = f"row [01]: (column '{name}' is not valid Arrow data|topic '')"
        with pytest.raises(ValueError, match=expected):
            producer.send_arrow(batch(**columns), None if name == "topic" else "t")
    assert producer.accepted == 2


def test_a_header_outside_of_its_list_is_refused(producer: Producer) -> None:
    entries = pyarrow.StructArray.from_arrays([["a", "b"], [b"", b""]], ["key", "value"])
    kind = list_of(key=pyarrow.string(), value=pyarrow.binary())
    for offsets in ([0, 1, 0], [0, -1, 1]):
        made = [None, pyarrow.py_buffer(numpy.array(offsets, "i4").tobytes())]
        headers = pyarrow.ListArray.from_buffers(kind, 2, made, children=[entries])
        with pytest.raises(ValueError, match=r"row [01]: column 'headers' is not valid"):
            producer.send_arrow(batch(value=["", ""], headers=headers), "t")


def test_a_partition_outside_of_its_dictionary_is_refused(producer: Producer) -> None:
    places = pyarrow.array([0, 2], pyarrow.int8())
    partitions = pyarrow.DictionaryArray.from_arrays(places, pyarrow.array([5, 6]), safe=False)
    expected = r"partitions\[1\] is index 2 of a dictionary that has 2 entries"
    with pytest.raises(ValueError, match=expected):
        producer.send_many("t", [b"", b""], partitions=partitions)


def test_a_dictionary_of_itself_is_refused(producer: Producer) -> None:
    def circle(schema: Any, array: Any) -> None:
        schema.dictionary.contents.dictionary = schema.dictionary
        array.dictionary.contents.dictionary = array.dictionary
        schema.dictionary.contents.format = b"i"

    for data in (CODED, coded([1, 2, 3])):
        with pytest.raises(ValueError, match="its dictionaries are nested 8 levels deep"):
            producer.send_many("t", Edited(data, circle))
        with pytest.raises(ValueError, match="its dictionaries are nested 8 levels deep"):
            producer.send_many("t", [b""] * 3, partitions=Edited(data, circle))
