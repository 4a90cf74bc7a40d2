"""Arguments of any kind for the fuzzer, each with the expected result.

A generator method returns ``(thing, expected)``: *expected* is the content that must arrive,
:data:`WRONG` if the call must be rejected, or :data:`ANY` if it may be accepted, with any content,
or rejected.
"""

from __future__ import annotations

import array
import ctypes
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy


class _Mark:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name

    def __len__(self) -> int:
        return 0


WRONG = _Mark("WRONG")
ANY = _Mark("ANY")

Made = tuple[Any, Any]


class BoomError(Exception):
    """Raised by odd objects; it must reach the caller."""


class Exporter:
    """An exporter of a buffer, written in Python.

    Not a local class: CPython 3.14's collector would clear its methods before it releases the
    buffers of its instances, and crash.
    """

    def __init__(self, odd: Any, data: bytes) -> None:
        self._odd = odd
        self._data = data

    def __buffer__(self, flags: int) -> memoryview:
        self._odd.disturb()
        return memoryview(self._data)

    def __release_buffer__(self, view: memoryview) -> None:
        self._odd.interfere()


class Odd:
    """A maker of arguments from one random number generator.

    Odd objects call *interfere* from their special methods: it may call back into the kernel.
    """

    def __init__(self, chance: random.Random, interfere: Callable[[], None]) -> None:
        self.chance = chance
        self.interfere = interfere

    def often(self, share: float) -> bool:
        """Return True in *share* of all cases."""
        return self.chance.random() < share

    def disturb(self) -> None:
        """Misbehave as a special method: do nothing, call back, or raise."""
        draw = self.chance.random()
        if draw < 0.5:
            self.interfere()
        elif draw < 0.65:
            raise BoomError

    def raw(self) -> bytes:
        """Return bytes whose length is around a limit in the kernel."""
        lengths = (0, 0, 1, 3, 8, 12, 13, 63, 64, 300, 513)
        if self.often(0.01):
            lengths = (8191, 32_768, 70_000, 262_145, 1_000_000)
        return self.chance.randbytes(self.chance.choice(lengths))

    # Keys, values ------------------------------------------------------------------------------

    def payload(self) -> Made:
        """Return a key or a value."""
        data = self.raw()
        makers: tuple[Callable[[bytes], Made], ...] = (
            lambda data: (data, data),
            lambda data: (None, None),
            lambda data: (bytearray(data), data),
            lambda data: (memoryview(data), data),
            lambda data: (memoryview(bytearray(data)), data),
            self._view_of_numbers,
            self._strided,
            self._released,
            self._view_of_ctypes,
            lambda data: (bytes_of(self)(data), data),
            lambda data: (bytearray_of(self)(data), data),
            lambda data: (self.nonsense(), WRONG),
            lambda data: (pretender(self, bytes), ANY),
            self._exporter,
        )
        weights = (12, 4, 3, 3, 2, *(1,) * (len(makers) - 5))
        return self.chance.choices(makers, weights)[0](data)

    def _view_of_numbers(self, data: bytes) -> Made:
        numbers = array.array("H", data[: len(data) & ~1])
        view = memoryview(numbers)
        if len(numbers) % 2 == 0 and len(numbers) > 0 and self.often(0.5):
            view = view.cast("B").cast("H", (2, len(numbers) // 2))
        return view, numbers.tobytes()

    def _strided(self, data: bytes) -> Made:
        data += b"abcd"
        return memoryview(data)[:: self.chance.choice([2, -1])], WRONG

    def _released(self, data: bytes) -> Made:
        view = memoryview(data)
        view.release()
        return view, WRONG

    def _view_of_ctypes(self, data: bytes) -> Made:
        memory = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
        return memoryview(memory), data

    def _exporter(self, data: bytes) -> Made:
        if sys.version_info < (3, 12):
            return (ctypes.c_uint8 * 3)(), WRONG
        try:
            return memoryview(Exporter(self, data)), data  # type: ignore[arg-type]
        except BoomError:
            return Exporter(self, data), WRONG

    def nonsense(self) -> Any:
        """Return an object of a type that the kernel does not accept."""
        makers: tuple[Callable[[], Any], ...] = (
            lambda: "text",
            lambda: 5,
            lambda: 2.5,
            lambda: True,
            lambda: 1 << 80,
            lambda: -(1 << 63),
            object,
            list,
            dict,
            lambda: (b"a", b"b"),
            lambda: array.array("B", b"abc"),
            lambda: numpy.array([1.5]),
            lambda: numpy.array(b"abc"),
            lambda: type,
            lambda: Hostile(self),
            lambda: "\ud800",
            lambda: float("nan"),
            lambda: float("inf"),
            lambda: range(3),
            lambda: iter(()),
        )
        return self.chance.choice(makers)()

    # Headers -----------------------------------------------------------------------------------

    def headers(self) -> Made:
        """Return the headers of one message: expected is a list of pairs, [] for none."""
        draw = self.chance.random()
        if draw < 0.3:
            return None, []
        if draw < 0.36:
            return self.chance.choice([5, "ab", b"ab", {"a": b"b"}, iter(()), object()]), WRONG
        pairs = [self._header() for _ in range(self.chance.choice([0, 1, 1, 2, 3]))]
        things: Any = [thing for thing, _ in pairs]
        expected = whole([content for _, content in pairs])
        if draw < 0.6:
            return tuple(things), expected
        if draw < 0.66:
            return list_of(self)(things), ANY
        if draw < 0.7:
            return pretender(self, list), ANY
        return things, expected

    def _header(self) -> Made:
        name, name_expected = self._header_name()
        value, value_expected = self.payload()
        if isinstance(value, memoryview) and value_expected is WRONG:
            value_expected = ANY  # bytes() reads strided memory
        expected = whole([name_expected, value_expected])
        draw = self.chance.random()
        if draw < 0.7:
            return (name, value), tuple(expected) if isinstance(expected, list) else expected
        if draw < 0.8:
            return [name, value], tuple(expected) if isinstance(expected, list) else expected
        if draw < 0.85:
            return self.chance.choice([(), (name,), (name, value, 1), 5, None, "abc"]), WRONG
        return sequence(self, [name, value]), ANY

    def _header_name(self) -> Made:
        odd = self

        class Name(str):
            def encode(self, *a: Any, **k: Any) -> Any:
                odd.disturb()
                return odd.chance.choice([b"x", bytearray(b"yy"), [1, 2], "text", bytes_of(odd)()])

        makers: tuple[Callable[[], Made], ...] = (
            lambda: ("name", "name"),
            lambda: ("", ""),
            lambda: ("äß€", "äß€"),
            lambda: ("n" * 70, "n" * 70),
            lambda: ("\ud800", WRONG),
            lambda: (Name("odd"), ANY),
            lambda: (b"bytes", WRONG),
            lambda: (pretender(self, str), ANY),
        )
        return self.chance.choices(makers, (9, 1, 2, 1, 1, 1, 1, 1))[0]()

    # Numbers -----------------------------------------------------------------------------------

    def number(self, most: int, least: int = 0) -> Made:
        """Return a number from *least* to *most*, or None for "not given"."""
        odd = self

        class Liar(int):
            """An integer with random results of comparisons."""

            def __le__(self, other: Any) -> bool:
                odd.disturb()
                return True

            __ge__ = __lt__ = __gt__ = __le__  # type: ignore[assignment]

            def __index__(self) -> int:
                odd.disturb()
                return odd.chance.choice([-5, 1 << 40, 1 << 70])

        draw = self.chance.random()
        if draw < 0.4:
            return None, None
        if draw < 0.75:
            number = self.chance.choice([least, 1, 2, 7, self.chance.randint(least, most), most])
            return number, number
        if draw < 0.85:
            return self.chance.choice([least - 1, most + 1, 1 << 63, -(1 << 63), 1 << 64]), WRONG
        if draw < 0.9:
            return Liar(self.chance.choice([-1, 3, most + 1, 1 << 65])), ANY
        if draw < 0.93:
            return numpy.int64(3), ANY
        if draw < 0.95:
            return pretender(self, int), ANY
        return self.chance.choice(["5", 2.5, b"1", True, object(), Hostile(self)]), WRONG

    # Columns -----------------------------------------------------------------------------------

    def column(self, made: list[Made], *, padded: bool = False) -> Made:
        """Return the cells *made* as one argument; expected is a list, one for each row."""
        things = [thing for thing, _ in made]
        expected = whole([content for _, content in made])
        draw = self.chance.random()
        if draw < 0.35:
            return things, expected
        if draw < 0.5:
            return tuple(things), expected
        if draw < 0.56:
            return sequence(self, things), ANY
        if draw < 0.6:
            return list_of(self)(things), ANY
        if draw < 0.64:
            return self.nonsense(), ANY
        if draw < 0.67:
            return shrinking(self, things), ANY
        if draw < 0.72:
            column = numpy.empty(len(things), object)
            for place, thing in enumerate(things):
                column[place] = thing
            return column, expected
        if draw < 0.85 and padded:
            return self._numpy_bytes(len(things))
        return things, expected

    def _numpy_bytes(self, count: int) -> Made:
        cells = [self.chance.randbytes(self.chance.choice([0, 1, 5])) for _ in range(count)]
        column = numpy.array(cells, dtype="S5") if cells else numpy.empty(0, "S5")
        expected: list[Any] = column.tolist()
        draw = self.chance.random()
        if draw < 0.3:
            return column, expected
        if draw < 0.6:
            return numpy.repeat(column, 2)[::2], expected
        if draw < 0.75:
            return column[::-1], expected[::-1]
        if draw < 0.85:
            return column.reshape(count, 1), WRONG
        return column.view(lying_array(self)), ANY


# Classes whose special methods interfere -------------------------------------------------------


def whole(parts: list[Any]) -> Any:
    """Return the expected result for an object made of *parts*."""
    # An unpredictable part may be processed before a wrong one.
    if any(part is ANY for part in parts):
        return ANY
    if any(part is WRONG for part in parts):
        return WRONG
    return parts


def pretender(odd: Odd, kind: type) -> Any:
    """Return an object that passes ``isinstance(thing, kind)`` and is of another type."""

    class Pretender(Hostile):
        @property
        def __class__(self) -> Any:
            return kind

    return Pretender(odd)


def sequence(odd: Odd, things: list[Any]) -> Any:
    """Return a sequence whose length is a guess, and whose items interfere."""

    class Sequence:
        def __len__(self) -> int:
            odd.disturb()
            wrong = [0, 1, len(things) + 1, len(things) * 3 + 5, 1 << 20]
            return len(things) if odd.often(0.6) else odd.chance.choice(wrong)

        def __iter__(self) -> Iterator[Any]:
            for thing in things:
                odd.disturb()
                yield thing
            if odd.often(0.2):
                yield from things * 3

        def __getitem__(self, place: int) -> Any:
            odd.disturb()
            return things[place]

        def tolist(self) -> Any:
            odd.disturb()
            return odd.chance.choice([things, things * 2, 5, self])

    if odd.often(0.1):
        Sequence.__array_interface__ = {}  # type: ignore[attr-defined]
        Sequence.dtype = numpy.dtype("O")  # type: ignore[attr-defined]
    return Sequence()


def shrinking(odd: Odd, things: list[Any]) -> Any:
    """Return a sequence whose items change the list while it is read."""
    shared: list[Any] = []

    class Changing(bytes):
        def __bytes__(self) -> bytes:
            draw = odd.chance.random()
            if draw < 0.4:
                shared.clear()
            elif draw < 0.8:
                shared.extend([b"more"] * 50)
            odd.disturb()
            return odd.chance.choice([bytes(3), bytes_of(odd)(b"abc")])

        def __iter__(self) -> Iterator[int]:
            shared.clear()
            return iter((b"a", b"b"))  # type: ignore[arg-type]

    shared.extend(Changing(b"abc") for _ in things)
    return shared


def bytes_of(odd: Odd) -> type[bytes]:
    """Return a subclass of bytes that lies about itself."""

    class LyingBytes(bytes):
        def __len__(self) -> int:
            odd.interfere()
            return odd.chance.choice([0, 1, 1 << 20])

        def __iter__(self) -> Any:
            odd.disturb()
            return iter((1, 2))

        def __eq__(self, other: object) -> bool:
            odd.disturb()
            return odd.often(0.5)

        __hash__ = bytes.__hash__

        def __del__(self) -> None:
            odd.interfere()

    return LyingBytes


def bytearray_of(odd: Odd) -> type[bytearray]:
    """Return a subclass of bytearray that interferes when it is freed."""

    class LyingBytearray(bytearray):
        def __len__(self) -> int:
            return 1 << 20

        def __del__(self) -> None:
            odd.interfere()

    return LyingBytearray


def list_of(odd: Odd) -> type[list[Any]]:
    """Return a subclass of list that lies about itself."""

    class LyingList(list[Any]):
        def __len__(self) -> int:
            odd.disturb()
            return odd.chance.choice([list.__len__(self), 0, 1 << 20])

        def __iter__(self) -> Iterator[Any]:
            odd.disturb()
            items = list.__getitem__(self, slice(None))
            if odd.often(0.3):
                list.clear(self)
            return iter(items[: odd.chance.choice([0, 1, 1 << 20])])

    return LyingList


def lying_array(odd: Odd) -> type[numpy.ndarray[Any, Any]]:
    """Return a subclass of NumPy's array that lies about itself."""

    class LyingArray(numpy.ndarray[Any, Any]):
        def __len__(self) -> int:
            odd.disturb()
            return odd.chance.choice([0, 1, 1000])

        @property
        def ndim(self) -> int:
            odd.disturb()
            return 1

        @property
        def strides(self) -> Any:
            odd.disturb()
            return odd.chance.choice([(5,), (0,), (1 << 20,), ()])

    return LyingArray


class Hostile:
    """An object whose every operation raises or calls back."""

    def __init__(self, odd: Odd) -> None:
        self._odd = odd

    def _trouble(self, *a: Any, **k: Any) -> Any:
        self._odd.disturb()
        return self._odd.chance.choice([1, None, b"x", "x", self])

    __bytes__ = __index__ = __int__ = __float__ = __iter__ = __next__ = __getitem__ = _trouble
    __bool__ = __call__ = __eq__ = __contains__ = __enter__ = __exit__ = encode = release = _trouble
    fileno = monotonic = tolist = __length_hint__ = __len__ = _trouble

    def __hash__(self) -> int:
        self._odd.interfere()
        return 7

    def __del__(self) -> None:
        self._odd.interfere()
