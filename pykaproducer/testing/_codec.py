"""Kafka's requests and responses as objects, encoded and decoded by their schemas.

It shares no code with ``_wire``, so that the scripted brokers do not test the producer against
itself. Objects have the names and attributes of kafka-python 3's classes, with which the tests
compare every message and version, byte for byte. The format is that of Kafka's protocol document
and of KIP-482 (compact fields and tagged fields).

Invalid data raises :class:`struct.error`, :class:`ValueError` or :class:`EOFError`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple, Protocol
from uuid import UUID


class Form(NamedTuple):
    """The version in which a message is encoded, and whether that version is flexible."""

    version: int
    flexible: bool


class ReceivedBytes:
    """A position in received bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        """Return the next *size* bytes."""
        if not 0 <= size <= len(self._data) - self._at:
            raise EOFError(f"{size} bytes are expected at {self._at} of {len(self._data)}")
        self._at += size
        return self._data[self._at - size : self._at]

    def varint(self) -> int:
        """Read an unsigned number of variable length."""
        value = shift = 0
        while (byte := self.take(1)[0]) >= 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
        return value | byte << shift


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# Types --------------------------------------------------------------------------------------


class Type(Protocol):
    """How values of one type are encoded."""

    @property
    def default(self) -> Any:
        """The value of a field that is not given."""

    def write(self, out: bytearray, value: Any, form: Form) -> None:
        """Append *value* to *out*."""

    def read(self, source: ReceivedBytes, form: Form) -> Any:
        """Read a value."""


@dataclass(frozen=True)
class Fixed:
    """A number or a truth value."""

    layout: struct.Struct
    default: Any = 0

    def write(self, out: bytearray, value: Any, form: Form) -> None:
        out += self.layout.pack(value)

    def read(self, source: ReceivedBytes, form: Form) -> Any:
        return self.layout.unpack(source.take(self.layout.size))[0]


class Uuid:
    """A UUID; None stands for zeros."""

    default = None

    def write(self, out: bytearray, value: UUID | None, form: Form) -> None:
        out += bytes(16) if value is None else value.bytes

    def read(self, source: ReceivedBytes, form: Form) -> UUID | None:
        data = source.take(16)
        return UUID(bytes=data) if any(data) else None


@dataclass(frozen=True)
class Sized:
    """Text or bytes after their length, which has the fixed *layout* unless it is compact."""

    layout: struct.Struct
    text: bool

    @property
    def default(self) -> str | bytes:
        return "" if self.text else b""

    def write(self, out: bytearray, value: Any, form: Form) -> None:
        data = value.encode() if self.text and value is not None else value
        _write_length(out, -1 if data is None else len(data), self.layout, form)
        out += data or b""

    def read(self, source: ReceivedBytes, form: Form) -> Any:
        length = _read_length(source, self.layout, form)
        if length < 0:
            return None
        data = source.take(length)
        return data.decode() if self.text else data


@dataclass(frozen=True)
class Array:
    """A list of elements of one type."""

    element: Type

    @property
    def default(self) -> list[Any]:
        return []

    def write(self, out: bytearray, value: Any, form: Form) -> None:
        _write_length(out, -1 if value is None else len(value), _COUNT, form)
        for each in value or ():
            self.element.write(out, each, form)

    def read(self, source: ReceivedBytes, form: Form) -> Any:
        count = _read_length(source, _COUNT, form)
        return None if count < 0 else [self.element.read(source, form) for _ in range(count)]


def _write_length(out: bytearray, length: int, layout: struct.Struct, form: Form) -> None:
    out += _varint(length + 1) if form.flexible else layout.pack(length)


def _read_length(source: ReceivedBytes, layout: struct.Struct, form: Form) -> int:
    if form.flexible:
        return source.varint() - 1
    return int(layout.unpack(source.take(layout.size))[0])


_COUNT = struct.Struct(">i")
BOOL = Fixed(struct.Struct(">?"), False)
INT8 = Fixed(struct.Struct(">b"))
INT16 = Fixed(struct.Struct(">h"))
INT32 = Fixed(struct.Struct(">i"))
INT64 = Fixed(struct.Struct(">q"))
UUID_ = Uuid()
STRING = Sized(struct.Struct(">h"), text=True)
BYTES = Sized(struct.Struct(">i"), text=False)

# Structures and messages --------------------------------------------------------------------


@dataclass(frozen=True)
class Field:
    """A field: *since* and *until* are its first and last version, *tag* its number if tagged."""

    name: str
    type: Type
    _: KW_ONLY
    since: int = 0
    until: int = 99
    tag: int | None = None
    #: Instead of the type's.
    default: Any = ...

    def initial(self) -> Any:
        """Return the value of the field if none is given."""
        return self.type.default if self.default is ... else self.default


class Structure:
    """A structure. Each is a subclass, with the structures of its fields as attributes."""

    FIELDS: tuple[Field, ...] = ()

    def __init__(self, *, version: int | None = None, **values: Any) -> None:
        """Set the fields; *version* is only used by messages."""
        unknown = values.keys() - {field.name for field in self.FIELDS}
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(sorted(unknown))}")
        for field in self.FIELDS:
            given = values.get(field.name, ...)
            setattr(self, field.name, field.initial() if given is ... else given)
        #: Tagged fields beyond the schema: ``{"_7": b"..."}``.
        self.unknown_tags: dict[str, bytes] = {}

    def write_fields(self, out: bytearray, form: Form) -> None:
        """Append the fields that the version has."""
        tagged = {int(name[1:]): value for name, value in self.unknown_tags.items()}
        for field in self.FIELDS:
            if not field.since <= form.version <= field.until:
                continue
            value = getattr(self, field.name)
            if field.tag is None:
                field.type.write(out, value, form)
            elif value != field.initial():
                data = bytearray()
                field.type.write(data, value, form)
                tagged[field.tag] = bytes(data)
        if form.flexible:
            out += _varint(len(tagged))
            for tag, content in sorted(tagged.items()):
                out += _varint(tag) + _varint(len(content)) + content

    def read_fields(self, source: ReceivedBytes, form: Form) -> None:
        """Read the fields that the version has; the others keep their values."""
        here = [field for field in self.FIELDS if field.since <= form.version <= field.until]
        for field in here:
            if field.tag is None:
                setattr(self, field.name, field.type.read(source, form))
        known = {field.tag: field for field in here if field.tag is not None}
        for _ in range(source.varint() if form.flexible else 0):
            tag, data = source.varint(), source.take(source.varint())
            if tag in known:
                setattr(self, known[tag].name, known[tag].type.read(ReceivedBytes(data), form))
            else:
                self.unknown_tags[f"_{tag}"] = data

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        values = (f"{field.name}={getattr(self, field.name)!r}" for field in self.FIELDS)
        return f"{type(self).__name__}({', '.join(values)})"


@dataclass(frozen=True)
class Nested:
    """The type of fields that are structures. The class of None is a structure that is absent."""

    kind: type[Structure]
    default: Any = None

    def write(self, out: bytearray, value: Structure, form: Form) -> None:
        value.write_fields(out, form)

    def read(self, source: ReceivedBytes, form: Form) -> Structure:
        made = self.kind()
        made.read_fields(source, form)
        return made


def record(name: str, *fields: Field) -> Nested:
    """Return the type of a new structure."""
    return Nested(type(name, (Structure,), {"FIELDS": fields, **_structures(fields)}))


def _structures(fields: Iterable[Field]) -> Mapping[str, type[Structure]]:
    """Return the structures of *fields* by name."""
    types = (f.type.element if isinstance(f.type, Array) else f.type for f in fields)
    return {each.kind.__name__: each.kind for each in types if isinstance(each, Nested)}


@dataclass
class Header:
    """The header of a message. The response to a request is an object of *response_kind*."""

    correlation_id: int
    client_id: str | None = None
    request_api_key: int | None = None
    request_api_version: int | None = None
    response_kind: Any = None

    def get_response_class(self) -> Any:
        """Return the class of the response, in the version of the request."""
        kind = self.response_kind
        return type(kind.__name__, (kind,), {"API_VERSION": self.request_api_version})


class ProtocolMessage(Structure):
    """A request or a response."""

    API_KEY: int
    API_VERSION: int | None = None
    #: The first version with compact and tagged fields; None if there is none.
    FLEXIBLE: int | None = None
    #: The class of the response; None if this is one.
    RESPONSE: type[ProtocolMessage] | None = None
    header: Header | None = None

    def __init__(self, *, version: int | None = None, **values: Any) -> None:
        super().__init__(**values)
        if version is not None:
            self.API_VERSION = version

    def with_header(self, correlation_id: int = 0, client_id: str | None = None) -> None:
        """Set the header."""
        self.header = Header(
            correlation_id, client_id, self.API_KEY, self.API_VERSION, self.RESPONSE
        )

    def encode(self, *, header: bool = True, framed: bool = False) -> bytes:
        """Return the message, after its *header* and, with *framed*, the length of all."""
        form = self._form(self.API_VERSION)
        out = bytearray()
        if header:
            assert self.header is not None, "with_header() comes first"
            self._write_header(out, self.header, form)
        self.write_fields(out, form)
        return (_COUNT.pack(len(out)) if framed else b"") + bytes(out)

    @classmethod
    def decode(
        cls, data: bytes, version: int | None = None, *, header: bool = True, framed: bool = False
    ) -> Any:
        """Return the message in *data*, in the given *version* or that of the class."""
        form = cls._form(cls.API_VERSION if version is None else version)
        source = ReceivedBytes(bytes(data))
        if framed and _COUNT.unpack(source.take(4))[0] != len(data) - 4:
            raise ValueError("the frame has another length")
        made = cls(version=form.version)
        if header:
            made.header = cls._read_header(source, form)
        made.read_fields(source, form)
        return made

    def expect_response(self) -> bool:
        """Return whether a broker answers: false for Produce with ``acks=0``."""
        return getattr(self, "acks", None) != 0

    @property
    def name(self) -> str:
        """The name of the message."""
        return type(self).__name__

    @classmethod
    def _form(cls, version: int | None) -> Form:
        if version is None:
            raise ValueError(f"{cls.__name__} requires a version")
        return Form(version, cls.FLEXIBLE is not None and version >= cls.FLEXIBLE)

    @classmethod
    def _write_header(cls, out: bytearray, header: Header, form: Form) -> None:
        if cls.RESPONSE is not None:
            out += struct.pack(">hh", cls.API_KEY, form.version)
        INT32.write(out, header.correlation_id, form)
        if cls.RESPONSE is not None:
            STRING.write(out, header.client_id, form._replace(flexible=False))
        if cls._header_is_tagged(form):
            out.append(0)

    @classmethod
    def _read_header(cls, source: ReceivedBytes, form: Form) -> Header:
        if cls.RESPONSE is None:
            header = Header(INT32.read(source, form))
        else:
            key, version = INT16.read(source, form), INT16.read(source, form)
            correlation_id = INT32.read(source, form)
            client_id = STRING.read(source, form._replace(flexible=False))
            header = Header(correlation_id, client_id, key, version, cls.RESPONSE)
        if cls._header_is_tagged(form):
            Structure().read_fields(source, form)
        return header

    @classmethod
    def _header_is_tagged(cls, form: Form) -> bool:
        # A client cannot know in which version the response to ApiVersions is (KIP-511).
        return form.flexible and not (cls.RESPONSE is None and cls.API_KEY == 18)


def message(
    name: str, key: int, flexible: int | None, request: Iterable[Field], response: Iterable[Field]
) -> tuple[Any, Any]:
    """Return the classes of a request and its response.

    *key*: the API key. *flexible*: the first version with compact and tagged fields.
    """
    fields, body = tuple(request), {"API_KEY": key, "FLEXIBLE": flexible}
    answered = tuple(response)
    reply = type(
        f"{name}Response", (ProtocolMessage,), {**body, "FIELDS": answered, **_structures(answered)}
    )
    kind = type(
        f"{name}Request",
        (ProtocolMessage,),
        {**body, "FIELDS": fields, "RESPONSE": reply, **_structures(fields)},
    )
    return kind, reply
