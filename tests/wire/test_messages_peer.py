"""The codec of ``pykaproducer.testing`` against kafka-python 3's classes, in every version.

The other tests of this folder use that codec as the peer of ``_wire``. kafka-python 2 has no such
classes: with it these tests are skipped.
"""

from __future__ import annotations

import importlib
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykaproducer.testing import _admin_messages, _messages, _transaction_messages
from pykaproducer.testing._codec import (
    Array,
    Field,
    Fixed,
    Nested,
    ProtocolMessage,
    Sized,
    Structure,
    Type,
)
from tests._support import messages as support
from tests.wire.helper import int16, int32, int64, names

pytest.importorskip("kafka.protocol.producer", reason="needs kafka-python 3's message classes")

#: The versions that are used, which the schemas here describe.
LAST = {
    "Produce": (3, 12),
    "Metadata": (0, 13),
    "ApiVersions": (0, 4),
    "InitProducerId": (0, 5),
    "SaslHandshake": (0, 1),
    "SaslAuthenticate": (0, 2),
    "CreateTopics": (2, 6),
    "DeleteTopics": (1, 5),
    "CreateAcls": (1, 3),
    "DeleteAcls": (1, 3),
    "DescribeAcls": (1, 3),
    "Fetch": (4, 4),
    "ElectLeaders": (0, 2),
    "AlterPartitionReassignments": (0, 0),
    "UpdateFeatures": (0, 1),
    "FindCoordinator": (0, 6),
    "AddPartitionsToTxn": (0, 3),
    "AddOffsetsToTxn": (0, 4),
    "EndTxn": (0, 5),
    "TxnOffsetCommit": (0, 5),
    "OffsetFetch": (7, 9),
    "DescribeTransactions": (0, 0),
    "ListTransactions": (0, 2),
}
BITS = ("topic_authorized_operations", "cluster_authorized_operations")
THEIRS = ("admin", "consumer", "metadata", "producer", "sasl")
KINDS: list[type[ProtocolMessage]] = [
    kind
    for module in (_messages, _admin_messages, _transaction_messages, support)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, ProtocolMessage) and kind is not ProtocolMessage
]


def theirs(name: str) -> Any:
    for part in THEIRS:
        module = importlib.import_module(f"kafka.protocol.{part}")
        if hasattr(module, name):
            return getattr(module, name)
    raise AssertionError(name)


def values(kind: Type, version: int) -> st.SearchStrategy[Any]:
    """Return values of a type, structures as dicts of their fields."""
    match kind:
        case Fixed():
            return st.booleans() if kind.layout.format == ">?" else numbers(kind)
        case Sized(text=True):
            return names
        case Sized():
            return st.binary(max_size=20)
        case Array(element):
            return st.lists(values(element, version), max_size=3)
        case Nested(structure):
            fields = {each.name: values(each.type, version) for each in present(structure, version)}
            return st.fixed_dictionaries(fields)
    return st.uuids(version=4)


def present(kind: type[Structure], version: int) -> list[Field]:
    """Return the fields that a version has, without those that kafka-python makes a set of bits."""
    return [
        field
        for field in kind.FIELDS
        if field.since <= version <= field.until and field.name not in BITS
    ]


def numbers(kind: Fixed) -> st.SearchStrategy[int]:
    return {">b": st.integers(-128, 127), ">h": int16, ">i": int32, ">q": int64}[kind.layout.format]


def build(kind: Any, fields: dict[str, Any], version: int) -> Any:
    """Return an object of *kind*, with those of its structures in place of dicts."""
    made = {}
    for name, value in fields.items():
        made[name] = value
        if isinstance(value, dict):
            made[name] = build(structure(kind, name), value, version)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            made[name] = [build(structure(kind, name), each, version) for each in value]
    return kind(version=version, **made)


def structure(kind: Any, field: str) -> Any:
    return getattr(kind, STRUCTURES[kind.__name__, field])


#: The name of the structure that a field of a class contains.
STRUCTURES: dict[tuple[str, str], str] = {}


def collect(kind: Any) -> None:
    for field in kind.FIELDS:
        inner = field.type.element if isinstance(field.type, Array) else field.type
        if isinstance(inner, Nested):
            STRUCTURES[kind.__name__, field.name] = inner.kind.__name__
            collect(inner.kind)


for each in KINDS:
    collect(each)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data(), correlation_id=st.integers(0, 2**31 - 1), client_id=st.none() | names)
def test_the_bytes_are_those_of_kafka_python(
    kind: type[ProtocolMessage], data: st.DataObject, correlation_id: int, client_id: str | None
) -> None:
    first, last = LAST[kind.__name__.removesuffix("Request").removesuffix("Response")]
    version = data.draw(st.integers(first, last), "version")
    fields = {
        field.name: data.draw(values(field.type, version), field.name)
        for field in present(kind, version)
    }
    ours = build(kind, fields, version)
    other = build(theirs(kind.__name__), fields, version)
    header = {"client_id": client_id} if kind.RESPONSE is not None else {}
    ours.with_header(correlation_id=correlation_id, **header)
    other.with_header(correlation_id=correlation_id, **header)
    written = ours.encode(header=True, framed=True)
    assert written == bytes(other.encode(header=True, framed=True))
    read = kind.decode(written, version, header=True, framed=True)
    assert read.header.correlation_id == correlation_id
    assert read.encode(header=True, framed=True) == written
    if kind.RESPONSE is not None:
        assert read.header.client_id == client_id


def test_an_absent_uuid_is_none() -> None:
    topic = _messages.MetadataRequest.MetadataRequestTopic
    for wanted in (None, UUID(int=7)):
        request = _messages.MetadataRequest(version=12, topics=[topic(name="t", topic_id=wanted)])
        read = _messages.MetadataRequest.decode(request.encode(header=False), 12, header=False)
        assert read.topics[0].topic_id == wanted
