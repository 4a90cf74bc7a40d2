"""Arrow data from hand-made C structs: every accepted layout, and malformed ones.

Each buffer is a piece of ``malloc()`` of exactly its size, so that a sanitizer detects any access
beyond it. Buffer contents and offsets of arrays that are *expected* to arrive are valid; only those
parts are malformed that a consumer can check: the structs, their pointers, counts and lengths.
"""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Callable
from typing import Any

from .odd import ANY, Odd

_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]
_libc.free.argtypes = [ctypes.c_void_p]
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Schema(ctypes.Structure):
    """``struct ArrowSchema``."""


class Array(ctypes.Structure):
    """``struct ArrowArray``."""


class Stream(ctypes.Structure):
    """``struct ArrowArrayStream``."""


_RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_GET_SCHEMA = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Schema))
_GET_NEXT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Array))
_LAST_ERROR = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)

Schema._fields_ = [
    ("format", ctypes.c_void_p),
    ("name", ctypes.c_void_p),
    ("metadata", ctypes.c_void_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.c_void_p),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]
Array._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.c_void_p),
    ("children", ctypes.c_void_p),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]
Stream._fields_ = [
    ("get_schema", _GET_SCHEMA),
    ("get_next", _GET_NEXT),
    ("get_last_error", _LAST_ERROR),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]


@_RELEASE
def _release_schema(at: int) -> None:
    """Mark the schema as released; the memory belongs to the generator."""
    Schema.from_address(at).release = None


@_RELEASE
def _release_array(at: int) -> None:
    Array.from_address(at).release = None


@_RELEASE
def _release_stream(at: int) -> None:
    Stream.from_address(at).release = None


class Memory:
    """Pieces of ``malloc()``, freed together."""

    def __init__(self) -> None:
        self._pieces: list[int] = []

    def put(self, data: bytes) -> int:
        """Return the address of a copy of exactly these bytes."""
        at: int = _libc.malloc(len(data))
        ctypes.memmove(at, data, len(data))
        self._pieces.append(at)
        return at

    def pointers(self, addresses: list[int | None]) -> int:
        """Return the address of an array of pointers."""
        return self.put(struct.pack(f"{len(addresses)}P", *(each or 0 for each in addresses)))

    def struct(self, made: ctypes.Structure) -> int:
        """Return the address of a copy of *made*."""
        return self.put(bytes(made))

    def free(self) -> None:
        """Free all pieces."""
        while self._pieces:
            _libc.free(self._pieces.pop())


class Node:
    """One array with its schema, before it is written to memory."""

    def __init__(self, format: str, length: int, buffers: list[bytes | None]) -> None:
        self.format: bytes | None = format.encode()
        self.name: bytes | None = b""
        self.length = length
        self.null_count = -1
        self.offset = 0
        self.buffers = buffers
        self.children: list[Node] = []
        self.dictionary: Node | None = None
        #: Fields of the structs that are overwritten with wrong values.
        self.schema_fields: dict[str, Any] = {}
        self.array_fields: dict[str, Any] = {}

    def write(self, memory: Memory) -> tuple[int, int]:
        """Return the addresses of an ArrowSchema and an ArrowArray."""
        children = [child.write(memory) for child in self.children]
        inner = (None, None) if self.dictionary is None else self.dictionary.write(memory)
        schema = Schema(
            format=None if self.format is None else memory.put(self.format + b"\0"),
            name=None if self.name is None else memory.put(self.name + b"\0"),
            flags=2,
            n_children=len(children),
            children=memory.pointers([each[0] for each in children]) if children else None,
            dictionary=inner[0],
            release=ctypes.cast(_release_schema, ctypes.c_void_p),
        )
        buffers = [None if each is None else memory.put(each) for each in self.buffers]
        made = Array(
            length=self.length,
            null_count=self.null_count,
            offset=self.offset,
            n_buffers=len(buffers),
            n_children=len(children),
            buffers=memory.pointers(buffers) if buffers else None,
            children=memory.pointers([each[1] for each in children]) if children else None,
            dictionary=inner[1],
            release=ctypes.cast(_release_array, ctypes.c_void_p),
        )
        for field, value in self.schema_fields.items():
            setattr(schema, field, value)
        for field, value in self.array_fields.items():
            setattr(made, field, value)
        return memory.struct(schema), memory.struct(made)


class Arrow:
    """An object with ``__arrow_c_array__``, made of a :class:`Node`; to be freed explicitly."""

    def __init__(self, node: Node, odd: Odd) -> None:
        self._odd = odd
        self.memory = Memory()
        self.schema, self.array = node.write(self.memory)

    def __arrow_c_array__(self, requested_schema: object = None) -> Any:
        self._odd.interfere()
        schema = _new_capsule(self.schema, b"arrow_schema", None)
        made = _new_capsule(self.array, b"arrow_array", None)
        if self._odd.often(0.98):
            return schema, made
        wrong = [(schema,), (), None, [schema, made], (made, schema), (5, None), (schema, schema)]
        return self._odd.chance.choice(wrong)


class ArrowStream:
    """An object with ``__arrow_c_stream__``: batches of one schema."""

    def __init__(self, nodes: list[Node], odd: Odd) -> None:
        self._odd = odd
        self.memory = Memory()
        self._parts = [node.write(self.memory) for node in nodes]
        self._next = 0
        self._text = self.memory.put(b"it broke\xff\0")
        self._stream = Stream(
            _GET_SCHEMA(self._get_schema), _GET_NEXT(self._get_next), _LAST_ERROR(self._why)
        )
        self._stream.release = ctypes.cast(_release_stream, ctypes.c_void_p)
        self.fails_at = len(nodes) + 1
        self.released = False

    def _get_schema(self, stream: int, out: Any) -> int:
        self._odd.interfere()
        if self.fails_at < 0:
            return 5
        ctypes.memmove(out, self._parts[0][0], ctypes.sizeof(Schema))
        return 0

    def _get_next(self, stream: int, out: Any) -> int:
        self._odd.interfere()
        if self._next == self.fails_at:
            return 5
        if self._next == len(self._parts):
            out.contents.release = None
            return 0
        ctypes.memmove(out, self._parts[self._next][1], ctypes.sizeof(Array))
        self._next += 1
        return 0

    def _why(self, stream: int) -> int | None:
        return self._text if self._odd.often(0.5) else None

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        if self.released:
            self._stream.release = None
        name = b"arrow_array_stream" if self._odd.often(0.97) else b"other"
        return _new_capsule(ctypes.addressof(self._stream), name, None)


def bitmap(valid: list[bool]) -> bytes:
    """Return Arrow's validity bitmap."""
    found = bytearray((len(valid) + 7) // 8)
    for place, each in enumerate(valid):
        found[place >> 3] |= each << (place & 7)
    return bytes(found)


class OddArrow:
    """A maker of arrays of every layout, each with the cells that must arrive."""

    def __init__(self, odd: Odd) -> None:
        self.odd = odd
        self.chance: random.Random = odd.chance

    # Cells --------------------------------------------------------------------------------------

    def cells(
        self, count: int, *, nulls: bool = True, text: bool = False
    ) -> tuple[Node, list[Any]]:
        """Return a column of *count* rows, possibly with an offset; *text*: each cell is UTF-8."""
        kinds: list[Callable[[list[bytes]], Node]] = [
            lambda data: self._offsets("z", "i", data),
            lambda data: self._offsets("Z", "q", data),
            lambda data: self._offsets("u", "i", data),
            lambda data: self._offsets("U", "q", data),
            lambda data: self._views("vz", data),
            lambda data: self._views("vu", data),
        ]
        draw = self.chance.random()
        if draw < 0.1:
            return self._dictionary(count, nulls, text)
        if draw < 0.15 and nulls:
            return Node("n", count, []), [None] * count
        before, after = self.chance.choice([0, 0, 1, 9]), self.chance.choice([0, 0, 3])
        total = before + count + after
        if draw < 0.3 and not text:
            width = self.chance.choice([0, 1, 5, 16])
            data = [self.chance.randbytes(width) for _ in range(total)]
            node = Node(f"w:{width}", total, [None, b"".join(data)])
        else:
            lengths = [0, 1, 5, 12, 13, 100]
            data = [
                bytes(self.chance.choices(range(97, 123), k=self.chance.choice(lengths)))
                for _ in range(total)
            ]
            node = self.chance.choice(kinds)(data)
        found: list[Any] = self._with_nulls(node, list(data), nulls)
        node.offset, node.length = before, count
        return node, found[before : before + count]

    def _with_nulls(self, node: Node, cells: list[Any], nulls: bool) -> list[Any]:
        draw = self.chance.random()
        if not nulls or draw < 0.4:
            node.null_count = self.chance.choice([0, -1])
            return cells
        valid = [self.odd.often(0.7) for _ in cells]
        node.buffers[0] = bitmap(valid)
        node.null_count = self.chance.choice([-1, valid.count(False) or -1])
        return [cell if there else None for cell, there in zip(cells, valid, strict=True)]

    def _offsets(self, format: str, code: str, data: list[bytes]) -> Node:
        offsets, at = [], self.chance.choice([0, 0, 4])
        blob = b"x" * at
        for cell in data:
            offsets.append(at)
            at += len(cell)
        packed = struct.pack(f"{len(offsets) + 1}{code}", *offsets, at)
        return Node(format, len(data), [None, packed, blob + b"".join(data)])

    def _views(self, format: str, data: list[bytes]) -> Node:
        views, blobs = [], [bytearray(), bytearray()]
        for cell in data:
            if len(cell) <= 12:
                views.append(struct.pack("i12s", len(cell), cell))
                continue
            which = self.chance.randrange(2)
            views.append(struct.pack("i4sii", len(cell), cell[:4], which, len(blobs[which])))
            blobs[which] += cell
        sizes = struct.pack("2q", *map(len, blobs))
        return Node(format, len(data), [None, b"".join(views), *map(bytes, blobs), sizes])

    def _dictionary(self, count: int, nulls: bool, text: bool) -> tuple[Node, list[Any]]:
        inner, cells = self.cells(self.chance.choice([1, 2, 7]), nulls=nulls, text=text)
        places = [self.chance.randrange(len(cells)) for _ in range(count)]
        code, kind = self.chance.choice(["bc", "BC", "hs", "HS", "ii", "II", "ql", "QL"])
        node = Node(kind, count, [None, struct.pack(f"{count}{code}", *places)])
        node.dictionary = inner
        found = self._with_nulls(node, [cells[place] for place in places], nulls)
        return node, found

    # Numbers, headers ---------------------------------------------------------------------------

    def numbers(self, count: int, most: int, *, time: bool = False) -> tuple[Node, list[Any]]:
        """Return a column of numbers of *count* rows, some of them null."""
        code, kind, highest = self.chance.choice(
            [("b", "c", 127), ("H", "S", 65_535), ("i", "i", 2**31 - 1), ("q", "l", 2**62)]
        )
        scale = 1
        if time and self.odd.often(0.5):
            scale, unit = self.chance.choice([(1000, "s"), (1, "m"), (-1000, "u"), (-(10**6), "n")])
            code, kind, highest = "q", f"ts{unit}:", 2**40
        numbers = [self.chance.randint(0, min(most, highest)) for _ in range(count)]
        node = Node(kind, count, [None, struct.pack(f"{count}{code}", *numbers)])
        scaled = [each * scale if scale > 0 else each // -scale for each in numbers]
        return node, self._with_nulls(node, scaled, nulls=True)

    def headers(self, count: int) -> tuple[Node, list[Any]]:
        """Return a column of lists of key and value."""
        lengths = [self.chance.choice([0, 1, 2]) for _ in range(count)]
        keys, names = self.cells(sum(lengths), nulls=False, text=True)
        values, contents = self.cells(sum(lengths))
        keys.name, values.name = b"key", b"value"
        entry = Node("+s", sum(lengths), [None])
        entry.name, entry.children = b"entries", [keys, values]
        kind, code = self.chance.choice([("+l", "i"), ("+L", "q"), ("+m", "i")])
        ends = [sum(lengths[:row]) for row in range(count + 1)]
        node = Node(kind, count, [None, struct.pack(f"{count + 1}{code}", *ends)])
        node.children = [entry]
        rows: list[Any] = [
            [(names[at].decode(), contents[at]) for at in range(ends[row], ends[row + 1])]
            for row in range(count)
        ]
        return node, [each or [] for each in self._with_nulls(node, rows, nulls=True)]

    # A batch -------------------------------------------------------------------------------------

    def batch(self, count: int) -> tuple[Node, dict[str, Any]]:
        """Return a record batch of *count* rows with its columns by name."""
        columns: dict[str, tuple[Node, list[Any]]] = {"value": self.cells(count)}
        if self.odd.often(0.6):
            columns["key"] = self.cells(count)
        if self.odd.often(0.4):
            columns["partition"] = self.numbers(count, 5)
        if self.odd.often(0.4):
            columns["timestamp"] = self.numbers(count, 2**40, time=True)
        if self.odd.often(0.4):
            columns["headers"] = self.headers(count)
        order = list(columns)
        self.chance.shuffle(order)
        node = Node("+s", count, [None])
        for name in order:
            child = columns[name][0]
            child.name = name.encode()
            node.children.append(child)
        return node, {name: cells for name, (_, cells) in columns.items()}

    def broken(self, node: Node) -> Any:
        """Break something in *node* or below, and return the expected result."""
        while self.odd.often(0.6):
            if not node.children:
                break
            node = self.chance.choice(node.children)
        breaks: list[Callable[[Node], Any]] = [
            _without_name,
            lambda each: _format(each, self.chance.choice(FORMATS)),
            lambda each: _field(each, "schema", "release", None),
            lambda each: _field(each, "array", "release", None),
            lambda each: _field(each, "schema", "format", None),
            lambda each: _field(each, "schema", "n_children", self.chance.choice([0, 1, -1, 9])),
            lambda each: _field(each, "array", "n_children", self.chance.choice([0, 1, -1])),
            lambda each: _field(each, "schema", "children", None),
            lambda each: _field(each, "array", "children", None),
            lambda each: _field(each, "array", "buffers", None),
            lambda each: _field(each, "array", "n_buffers", self.chance.choice([0, 1, -1])),
            lambda each: _field(each, "array", "length", self.chance.choice([-1, -(1 << 63)])),
            lambda each: _field(each, "array", "length", max(each.length - 1, 0)),
            lambda each: _field(each, "array", "offset", -1),
            lambda each: _field(each, "array", "dictionary", None),
            _without_data,
        ]
        return self.chance.choice(breaks)(node)


#: Formats of other types, and invalid ones.
FORMATS = ["", "w", "w:", "w:-1", "w:x", "w:99999999999999999999", "w: 5", "g", "b", "+s", "+l"]
FORMATS += ["+vz", "tsm", "tss:UTC", "\xff", "n", "l", "+m", "+r", "vz:", "d:10,2"]


def _field(node: Node, which: str, field: str, value: Any) -> Any:
    (node.schema_fields if which == "schema" else node.array_fields)[field] = value
    return ANY


def _without_name(node: Node) -> Any:
    node.name = None
    return ANY


def _format(node: Node, format: str) -> Any:
    node.format = format.encode("latin-1")
    node.buffers = [None, *(bytes(16 * node.length + 64 + 16 * node.offset) for _ in range(3))]
    node.buffers = node.buffers[: 1 if format == "+s" else 4]
    return ANY


def _without_data(node: Node) -> Any:
    """Remove buffers that are required."""
    node.buffers = [node.buffers[0] if node.buffers else None, *[None] * (len(node.buffers) - 1)]
    return ANY
