"""Arguments of any kind for the fuzzer, each with the expected result.

A generator method returns ``(thing, expected)``: *expected* is the content that must arrive,
:data:`WRONG` if the call must be rejected, or :data:`ANY` if it may be accepted, with any content,
or rejected.
"""

from __future__ import annotations

import array
import collections
import ctypes
import random
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

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


class _Here(threading.local):
    """Random numbers and the nesting depth of special methods, separate in each thread."""

    def __init__(self, number: int) -> None:
        self.depth = 0  # before a collection of garbage runs a finalizer of ours
        self.chance = random.Random(number)


def whole(parts: list[Any]) -> Any:
    """Return the expected result for an object made of *parts*."""
    # An unpredictable part may be processed before a wrong one.
    if any(part is ANY for part in parts):
        return ANY
    if any(part is WRONG for part in parts):
        return WRONG
    return parts


class Odd:
    """A maker of arguments from one random number generator.

    Odd objects call *act* from their special methods: it may call back into the producer.
    """

    #: That of the current round.
    current: ClassVar[Odd]

    def __init__(self, number: int, act: Callable[[], None]) -> None:
        self._here = _Here(number)
        self._act = act
        Odd.current = self

    @property
    def chance(self) -> random.Random:
        """The random numbers of the calling thread."""
        return self._here.chance

    def often(self, share: float) -> bool:
        """Return True in *share* of all cases."""
        return self.chance.random() < share

    def interfere(self) -> None:
        """Call back, unless this is a call back within another one."""
        if self._here.depth < 2:
            self._here.depth += 1
            try:
                self._act()
            finally:
                self._here.depth -= 1

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
        makers: tuple[Callable[[], Made], ...] = (
            lambda: (data, data),
            lambda: (None, None),
            lambda: (bytearray(data), data),
            lambda: (memoryview(data), data),
            lambda: (memoryview(bytearray(data)), data),
            lambda: self._view_of_numbers(data),
            lambda: (memoryview(data + b"abcd")[:: self.chance.choice([2, -1])], WRONG),
            lambda: self._released(data),
            lambda: (memoryview((ctypes.c_uint8 * len(data)).from_buffer_copy(data)), data),
            lambda: (LyingBytes(data), data),
            lambda: (LyingBytearray(data), data),
            lambda: (self.nonsense(), WRONG),
            lambda: (Pretender(bytes), ANY),
            lambda: self._exporter(data),
        )
        return self.chance.choices(makers, (12, 4, 3, 3, 2, *(1,) * (len(makers) - 5)))[0]()

    def _view_of_numbers(self, data: bytes) -> Made:
        numbers = array.array("H", data[: len(data) & ~1])
        view = memoryview(numbers)
        if len(numbers) % 2 == 0 and len(numbers) > 0 and self.often(0.5):
            view = view.cast("B").cast("H", (2, len(numbers) // 2))
        return view, numbers.tobytes()

    def _released(self, data: bytes) -> Made:
        view = memoryview(data)
        view.release()
        return view, WRONG

    def _exporter(self, data: bytes) -> Made:
        if sys.version_info < (3, 12):
            return (ctypes.c_uint8 * 3)(), WRONG
        try:
            return memoryview(Exporter(data)), data  # type: ignore[arg-type]
        except BoomError:
            return Exporter(data), WRONG

    def nonsense(self) -> Any:
        """Return an object of a type that is not accepted."""
        makers: tuple[Callable[[], Any], ...] = (
            *(object, list, dict, Hostile),
            lambda: array.array("B", b"abc"),
            lambda: numpy.array([1.5]),
            lambda: numpy.array([b"a", b"bc"]).view(LyingArray),
            lambda: numpy.array(b"abc"),
            lambda: iter(()),
        )
        constants = ("text", 5, 2.5, True, 1 << 80, -(1 << 63), (b"a", b"b"), type, "\ud800")
        draw = self.chance.randrange(len(makers) + len(constants))
        return makers[draw]() if draw < len(makers) else constants[draw - len(makers)]

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
            return LyingList(things), ANY
        if draw < 0.7:
            return Pretender(list), ANY
        return things, expected

    def _header(self) -> Made:
        name, name_expected = self.chance.choices(
            [
                *[(each, each) for each in ("name", "", "äß€", "n" * 70)],
                *[("\ud800", WRONG), (b"bytes", WRONG), (LyingText("odd"), ANY)],
                (Pretender(str), ANY),
            ],
            (9, 1, 2, 1, 1, 1, 1, 1),
        )[0]
        value, value_expected = self.cell()
        expected = whole([name_expected, value_expected])
        pair = tuple(expected) if isinstance(expected, list) else expected
        draw = self.chance.random()
        if draw < 0.7:
            return (name, value), pair
        if draw < 0.8:
            return [name, value], pair
        if draw < 0.85:
            return self.chance.choice([(), (name,), (name, value, 1), 5, None, "abc"]), WRONG
        return Sequence([name, value]), ANY

    def cell(self) -> Made:
        """Return a value where bytes() is called on a buffer, which reads strided memory."""
        thing, expected = self.payload()
        return thing, ANY if isinstance(thing, memoryview) and expected is WRONG else expected

    # Numbers -----------------------------------------------------------------------------------

    def number(self, usual: list[int], least: int, most: int) -> Made:
        """Return one of *usual*, another number around the limits, or None for "not given"."""
        draw = self.chance.random()
        if draw < 0.4:
            return None, None
        if draw < 0.75:
            number = self.chance.choice([*usual * 4, least, most])
            return number, number
        if draw < 0.85:
            return self.chance.choice([least - 1, most + 1, 1 << 63, -(1 << 63), 1 << 64]), WRONG
        if draw < 0.9:
            return LyingInt(self.chance.choice([-1, 3, most + 1, 1 << 65])), ANY
        if draw < 0.95:
            return self.chance.choice([numpy.int64(3), Pretender(int)]), ANY
        return self.chance.choice(["5", 2.5, b"1", True, object(), Hostile()]), WRONG

    # Columns -----------------------------------------------------------------------------------

    def column(self, made: list[Made]) -> Made:
        """Return the cells *made* as one argument; expected is a list, one for each row."""
        things = [thing for thing, _ in made]
        expected = whole([content for _, content in made])
        draw = self.chance.random()
        if draw < 0.35:
            return things, expected
        if draw < 0.5:
            return tuple(things), expected
        if draw < 0.67:
            changing = [Changing(b"abc") for _ in things]
            for cell in changing:
                cell.shared = changing
            odd = [Sequence(things), LyingList(things), self.nonsense(), changing]
            return self.chance.choice(odd), ANY
        if draw < 0.72:
            column = numpy.empty(len(things), object)
            for place, thing in enumerate(things):
                column[place] = thing
            return column, expected
        return things, expected


# Objects whose special methods interfere --------------------------------------------------------


def lying(kind: type, **results: tuple[Any, ...]) -> Any:
    """Return a subclass of *kind* whose methods call back or raise, and return any of *results*.

    A method is named without underscores. A result that is a lambda is called with the object.
    """

    def method(choices: tuple[Any, ...]) -> Callable[..., Any]:
        def call(self: Any, *arguments: Any, **more: Any) -> Any:
            Odd.current.disturb()
            found = Odd.current.chance.choice(choices)
            return found(self) if isinstance(found, types.FunctionType) else found

        return call

    members: dict[str, Any] = {
        "__del__": lambda self: Odd.current.interfere(),
        "__hash__": kind.__hash__,
    }
    for name, choices in results.items():
        members[name if name in _PLAIN else f"__{name}__"] = method(choices)
    return type(f"Lying{kind.__name__.title()}", (kind,), members)


_PLAIN = ("encode", "release", "fileno", "monotonic", "tolist")
_SPECIAL = ["bytes", "index", "int", "float", "iter", "next", "getitem", "bool", "call", "eq"]
_SPECIAL += ["contains", "enter", "exit", "len", "length_hint"]
_LENGTHS = (0, 1, 1 << 20)


def _emptied(items: Any) -> Any:
    found = list.__getitem__(items, slice(None))
    list.clear(items)
    return iter(found)


#: An object whose every operation raises or calls back.
Hostile = lying(
    object, **dict.fromkeys([*_SPECIAL, *_PLAIN], (1, None, b"x", "x", lambda self: self))
)
LyingBytes = lying(bytes, len=_LENGTHS, iter=(lambda self: iter((1, 2)),), eq=(True, False))
LyingBytearray = lying(bytearray, len=(1 << 20,))
LyingText = lying(
    str,
    encode=(b"x", bytearray(b"yy"), [1, 2], "text", lambda self: LyingBytes()),
    str=("other",),
    eq=(False,),
    hash=(0, -1, 1 << 61),
)
LyingInt = lying(int, **dict.fromkeys(["le", "ge", "lt", "gt"], (True,)), index=(-5, 1 << 70))
LyingList = lying(
    list,
    len=(lambda self: list.__len__(self), *_LENGTHS),
    iter=(_emptied, lambda self: iter(list.__getitem__(self, slice(0, 1)))),
)
Sequence = lying(
    collections.UserList,
    len=(*[lambda self: len(self.data)] * 4, lambda self: len(self.data) + 1, *_LENGTHS),
    iter=(*[lambda self: iter(self.data)] * 4, lambda self: iter(self.data * 4)),
    tolist=(5, lambda self: self, lambda self: self.data * 2),
)
LyingArray = lying(numpy.ndarray, len=(0, 1, 1000))
LyingArray.ndim = property(lambda self: Odd.current.disturb() or 1)
LyingArray.strides = property(lambda self: Odd.current.chance.choice([(5,), (1 << 20,), ()]))


class Pretender(Hostile):  # type: ignore[misc]
    """An object that passes ``isinstance(thing, kind)`` and is of another type."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    @property
    def __class__(self) -> Any:
        return self._kind


class Changing(bytes):
    """A cell that changes its list while the list is read."""

    shared: list[Any]

    def __bytes__(self) -> bytes:
        if Odd.current.often(0.5):
            self.shared.clear()
        else:
            self.shared.extend([b"more"] * 50)
        Odd.current.disturb()
        return Odd.current.chance.choice([bytes(3), LyingBytes(b"abc")])

    def __iter__(self) -> Iterator[int]:
        self.shared.clear()
        return iter((b"a", b"b"))  # type: ignore[arg-type]


class Exporter:
    """An exporter of a buffer, written in Python.

    It has no ``__del__``: CPython 3.14's collector would clear its methods before it releases the
    buffers of its instances, and crash.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __buffer__(self, flags: int) -> memoryview:
        Odd.current.disturb()
        return memoryview(self._data)

    def __release_buffer__(self, view: memoryview) -> None:
        Odd.current.interfere()
