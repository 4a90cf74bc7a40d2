"""The arguments of ``send_offsets_to_transaction()``, as consumers of other libraries give them."""

from __future__ import annotations

import asyncio
import ctypes
import pathlib
import struct
import types
from collections import namedtuple
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from kafka import structs

from pykaproducer import TopicPartition
from pykaproducer._util.group_offsets import (
    GroupMetadata,
    GroupOffset,
    group_metadata,
    group_offsets,
)
from pykaproducer.confluent import TopicPartition as DropInPartition

#: As in kafka-python before 2.1.
OldOffset = namedtuple("OldOffset", ["offset", "metadata"])


class Index:
    """An integer that is no int, as NumPy's are."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


# Offsets --------------------------------------------------------------------------------------


def test_offsets_of_kafka_python() -> None:
    made = {
        structs.TopicPartition("t", 0): structs.OffsetAndMetadata(5, "m", 3),
        structs.TopicPartition("t", 1): structs.OffsetAndMetadata(6, None, -1),
        structs.TopicPartition("u", 0): OldOffset(7, "old"),
        TopicPartition("v", 2): 8,
    }
    assert group_offsets(made) == (
        GroupOffset("t", 0, 5, 3, "m"),
        GroupOffset("t", 1, 6),
        GroupOffset("u", 0, 7, -1, "old"),
        GroupOffset("v", 2, 8),
    )


def check_list(partition: Any) -> None:
    """Check a list of confluent-kafka's partitions, which *partition* makes."""
    found = group_offsets(
        [
            partition("t", 0, 5),
            partition("t", 1),  # the consumer has no offset here
            partition("t", 2, -2),
            partition("u", 0, 0, metadata="m", leader_epoch=4),
            partition("t", 0, 6),
        ]
    )
    assert found == (GroupOffset("t", 0, 6), GroupOffset("u", 0, 0, 4, "m"))


def test_offsets_of_confluent_kafka() -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka", reason="needs confluent-kafka")
    check_list(confluent_kafka.TopicPartition)


def test_offsets_of_the_drop_in() -> None:
    check_list(DropInPartition)


@pytest.mark.parametrize("empty", [{}, [], (), [DropInPartition("t", 1)]])
def test_no_offsets(empty: Any) -> None:
    assert group_offsets(empty) == ()


def test_numbers_need_not_be_int() -> None:
    place = SimpleNamespace(topic="t", partition=Index(1), offset=Index(2), leader_epoch=Index(3))
    (found,) = group_offsets([place])
    assert found == GroupOffset("t", 1, 2, 3)
    assert {type(found.partition), type(found.offset), type(found.leader_epoch)} == {int}
    assert group_offsets({TopicPartition("t", 1): Index(9)}) == (GroupOffset("t", 1, 9),)


def test_the_greatest_values() -> None:
    metadata = "é" * 16_383
    place = TopicPartition("t" * 32_767, 2**31 - 1)
    value = structs.OffsetAndMetadata(2**63 - 1, metadata, 2**31 - 1)
    assert group_offsets({place: value}) == (
        GroupOffset("t" * 32_767, 2**31 - 1, 2**63 - 1, 2**31 - 1, metadata),
    )


PLACE = TopicPartition("t", 1)


@pytest.mark.parametrize(
    ("offsets", "text"),
    [
        (None, "must be a dict .*, or a list of .*, not NoneType"),
        ("t", "not str"),
        (5, "not int"),
        (PLACE, "not kafka.structs.TopicPartition"),
        (DropInPartition("t", 1, 5), "not pykaproducer.confluent"),
        ({PLACE}, "not set"),
        ({"t": 5}, "kafka.TopicPartition, must have the attribute 'topic', not str"),
        ({("t", 1): 5}, "'topic', not tuple"),
        ({TopicPartition(b"t", 1): 5}, "a topic's name must be a str, not bytes"),
        ({TopicPartition("t", "1"): 5}, "a partition must be an integer, not str"),
        ({PLACE: "5"}, "unless they are int, must have the attribute 'offset', not str"),
        ({PLACE: 5.0}, "'offset', not float"),
        ({PLACE: None}, "'offset', not NoneType"),
        ({PLACE: True}, "'offset', not bool"),
        ({PLACE: OldOffset("5", "")}, "an offset must be an integer, not str"),
        ({PLACE: OldOffset(5, b"m")}, "metadata of an offset must be a str, not bytes"),
        ({PLACE: structs.OffsetAndMetadata(5, "", "x")}, "leader epoch must be an integer"),
        ([PLACE], "a list of offsets must have the attribute 'offset'"),
        ([(PLACE, 5)], "'offset', not tuple"),
        ([DropInPartition("t", 1, None)], "an offset must be an integer, not NoneType"),  # type: ignore[arg-type]
    ],
)
def test_wrong_types_of_offsets(offsets: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        group_offsets(offsets)


@pytest.mark.parametrize(
    ("offsets", "text"),
    [
        ({PLACE: -1}, "t-1: the offset is -1, but must be 0 to"),
        ({PLACE: OldOffset(-1001, "")}, "t-1: the offset is -1001"),
        ({PLACE: 2**63}, r"the offset is 9223372036854775808, but must be 0 to 2\*\*63 - 1"),
        ({TopicPartition("t", -1): 5}, "t--1: the partition's number is -1"),
        ([DropInPartition("t", -1, 5)], "the partition's number is -1"),
        ({TopicPartition("t", 2**31): 5}, "the partition's number is 2147483648"),
        ({PLACE: structs.OffsetAndMetadata(5, "", 2**31)}, "the leader epoch is 2147483648"),
        ({TopicPartition("", 1): 5}, "a topic's name is empty"),
        ({TopicPartition("\ud800", 1): 5}, "a topic's name cannot be encoded as UTF-8"),
        # Of more than that a broker reads nothing at all, but closes the connection.
        ({PLACE: OldOffset(5, "é" * 16_384)}, "metadata of an offset has 32768 bytes, more than"),
    ],
)
def test_values_that_the_protocol_cannot_carry(offsets: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        group_offsets(offsets)


# The group ------------------------------------------------------------------------------------

LEFT = b"CGMDv2:" + struct.pack("=i", 5) + b"g\0\0\1"
METADATA = SimpleNamespace(
    group_id="g", generation_id=5, member_id="m", group_instance_id="i", state="stable"
)


class Consumer:
    """A consumer that is asked, in the way of kafka-python or of confluent-kafka."""

    def __init__(self, method: str, metadata: Any) -> None:
        setattr(self, method, lambda: metadata)


def test_a_group_by_its_name() -> None:
    assert group_metadata("g") == GroupMetadata("g", -1, "", None)


def test_metadata_of_kafka_python() -> None:
    kind = getattr(structs, "ConsumerGroupMetadata", None)
    if kind is None:
        pytest.skip("needs kafka-python 3.0's ConsumerGroupMetadata")
    assert group_metadata(kind("g", 5, "m", "i")) == GroupMetadata("g", 5, "m", "i")
    assert group_metadata(kind("g")) == GroupMetadata("g")
    with pytest.raises(ValueError, match="has no group: its group_id is None"):
        group_metadata(kind(None))


def test_metadata_of_ones_own() -> None:
    assert group_metadata(METADATA) == GroupMetadata("g", 5, "m", "i")
    old = SimpleNamespace(group_id="g", generation_id=-1, member_id=None)
    assert group_metadata(old) == GroupMetadata("g")
    own = GroupMetadata("g", 5, "m", "i")
    assert group_metadata(own) == own


@pytest.mark.parametrize("method", ["group_metadata", "consumer_group_metadata"])
@pytest.mark.parametrize("metadata", [METADATA, b"CGMDv2:" + struct.pack("=i", 5) + b"g\0m\0\0i\0"])
def test_a_consumer_is_asked(method: str, metadata: Any) -> None:
    assert group_metadata(Consumer(method, metadata)) == GroupMetadata("g", 5, "m", "i")


class Subscribed(Consumer):
    """A consumer with ``subscribe()``, or with ``assign()``: then *topics* is None."""

    def __init__(self, metadata: Any, topics: set[str] | None) -> None:
        super().__init__("group_metadata", metadata)
        self._topics = topics

    def subscription(self) -> set[str] | None:
        return self._topics


@pytest.mark.parametrize("topics", [{"orders"}, set()], ids=["topics", "pattern"])
@pytest.mark.parametrize("instance", [None, "i"])
def test_a_consumer_that_has_left_is_checked(topics: set[str], instance: str | None) -> None:
    """Brokers check a generation of 0 or more, and no member has an empty id."""
    left = GroupMetadata("g", -1, "", instance)
    assert group_metadata(Subscribed(left, topics)) == GroupMetadata("g", 0, "", instance)


def test_metadata_of_other_consumers_are_sent_as_they_are() -> None:
    for metadata, topics in ((METADATA, {"a"}), (GroupMetadata("g", -1, "m"), {"a"}), ("g", None)):
        assert group_metadata(Subscribed(metadata, topics)) == group_metadata(metadata)


def test_metadata_that_no_consumer_returns() -> None:
    metadata = types.SimpleNamespace(
        group_id="g", generation_id=3, member_id="", group_instance_id=None
    )
    with pytest.raises(ValueError, match="have generation 3, but no member id"):
        group_metadata(metadata)


def test_a_generation_without_a_member_is_sent() -> None:
    """librdkafka's consumer has these metadata when it has left its group, which refuses them."""
    assert group_metadata(LEFT) == GroupMetadata("g", 5)


def test_what_a_consumer_raises_is_raised() -> None:
    class Closed:
        def consumer_group_metadata(self) -> bytes:
            raise RuntimeError("Consumer closed")

    with pytest.raises(RuntimeError, match="Consumer closed"):
        group_metadata(Closed())


@pytest.mark.parametrize("method", ["group_metadata", "consumer_group_metadata"])
def test_an_asynchronous_consumer_is_not_waited_for(method: str) -> None:
    async def metadata() -> Any:
        return METADATA

    with pytest.raises(TypeError, match=rf"pass 'await consumer.{method}\(\)'"):
        group_metadata(Consumer(method, metadata()))


def test_nor_is_a_future_closed() -> None:
    loop = asyncio.new_event_loop()
    try:
        with pytest.raises(TypeError, match="asynchronous"):
            group_metadata(Consumer("group_metadata", loop.create_future()))
    finally:
        loop.close()


class HasMethod:
    """A class, of which the program passes no object."""

    group_id = "g"
    member_id = "m"

    def group_metadata(self) -> Any:
        return METADATA


@pytest.mark.parametrize(
    ("group", "text"),
    [
        (None, "the group must be its name, the metadata that .*, not NoneType"),
        (5, "not int"),
        (["g"], "not list"),
        (HasMethod, "not the class .*HasMethod"),
        (Consumer("group_metadata", None), "not NoneType"),
        (Consumer("group_metadata", Consumer("group_metadata", METADATA)), "Consumer"),
        (SimpleNamespace(group_id="g", member_id="m"), "must have the attribute 'generation_id'"),
        (SimpleNamespace(group_id=b"g", generation_id=1, member_id="m"), "name must be a str"),
        (SimpleNamespace(group_id="g", generation_id="1", member_id="m"), "generation must be an"),
        (SimpleNamespace(group_id="g", generation_id=1, member_id=b"m"), "member's id must be a"),
        (GroupMetadata("g", 1, "m", b"i"), "group.instance.id must be a str"),  # type: ignore[arg-type]
    ],
)
def test_wrong_types_of_groups(group: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        group_metadata(group)


@pytest.mark.parametrize(
    ("group", "text"),
    [
        ("", "the group's name is empty"),
        ("g\ud800", "the group's name cannot be encoded as UTF-8"),
        ("g" * 32_768, "the group's name has 32768 bytes, more than 32767"),
        (GroupMetadata(""), "the group's name is empty"),
        (GroupMetadata("g", 2**31, "m"), "the group's generation is 2147483648"),
        (GroupMetadata("g", 1, "m", "\ud800"), "group.instance.id cannot be encoded"),
    ],
)
def test_groups_that_the_protocol_cannot_carry(group: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        group_metadata(group)


# librdkafka's bytes ---------------------------------------------------------------------------

WHOLE = b"CGMDv2:" + struct.pack("=i", 1) + b"g\0m\0\0i\0"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "of another kind"),
        (b"group", "of another kind"),
        (b"CGMDv1:g\0", "of another version of librdkafka"),
        (b"CGMDv2:\0\0", "cut off"),
        (WHOLE + b"\0", "cut off or damaged"),
        (WHOLE.replace(b"g", b"\xff"), "not text in UTF-8"),
        (WHOLE.replace(b"g", b""), "the group's name is empty"),
    ],
)
def test_bytes_that_cannot_be_read(data: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        group_metadata(data)


def test_bytes_that_are_cut_off() -> None:
    assert group_metadata(memoryview(WHOLE)) == GroupMetadata("g", 1, "m", "i")
    for cut in range(len(WHOLE)):
        with pytest.raises(ValueError, match="pass what the consumer's"):
            group_metadata(WHOLE[:cut])


@given(st.binary(max_size=60), st.booleans())
def test_bytes_are_read_or_a_value_error(data: bytes, framed: bool) -> None:
    try:
        found = group_metadata(b"CGMDv2:" * framed + data)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - other bytes make sense
    else:
        assert found.group_id


_pointer = ctypes.c_void_p
_place = ctypes.POINTER(_pointer)


class Librdkafka:
    """The functions of the library that confluent-kafka contains."""

    def __init__(self, path: pathlib.Path) -> None:
        self._library = ctypes.CDLL(str(path))
        prefix = "rd_kafka_consumer_group_metadata_"
        text = ctypes.c_char_p
        self._new = self._function(f"{prefix}new_with_genid", text, ctypes.c_int32, text, text)
        self._write = self._function(
            f"{prefix}write", _pointer, _place, ctypes.POINTER(ctypes.c_size_t)
        )
        self._read = self._function(f"{prefix}read", _place, text, ctypes.c_size_t)
        self._destroy = self._function(f"{prefix}destroy", _pointer)
        self._destroy_error = self._function("rd_kafka_error_destroy", _pointer)
        self._free = self._function("rd_kafka_mem_free", _pointer, _pointer)

    def _function(self, name: str, *arguments: Any) -> Any:
        found = getattr(self._library, name)
        found.restype, found.argtypes = _pointer, arguments
        return found

    def write(self, group: str, generation: int, member: str, instance: str | None) -> bytes:
        """Return the metadata as ``Consumer.consumer_group_metadata()`` returns them."""
        made = self._new(
            group.encode(),
            generation,
            member.encode(),
            None if instance is None else instance.encode(),
        )
        buffer, size = _pointer(), ctypes.c_size_t()
        assert not self._write(made, ctypes.byref(buffer), ctypes.byref(size))
        data = ctypes.string_at(buffer, size.value)  # type: ignore[arg-type]
        self._free(None, buffer)
        self._destroy(made)
        return data

    def accepts(self, data: bytes) -> bool:
        """Return whether librdkafka's producer could read *data*."""
        made = _pointer()
        error = self._read(ctypes.byref(made), data, len(data))
        if error:
            self._destroy_error(error)
            return False
        self._destroy(made)
        return True


@pytest.fixture(scope="module")
def library() -> Librdkafka:
    confluent_kafka = pytest.importorskip("confluent_kafka", reason="needs confluent-kafka")
    folder = pathlib.Path(confluent_kafka.__file__).parent
    found = [
        *folder.parent.glob("confluent_kafka.libs/librdkafka*.so*"),
        *folder.glob(".dylibs/librdkafka*.dylib"),
    ]
    if not found:
        pytest.skip("needs a confluent-kafka that contains librdkafka as a separate library")
    return Librdkafka(found[0])


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@given(texts.filter(bool), st.integers(-(2**31), 2**31 - 1), texts.filter(bool), st.none() | texts)
def test_what_librdkafka_writes_is_read(
    library: Librdkafka, group: str, generation: int, member: str, instance: str | None
) -> None:
    data = library.write(group, generation, member, instance)
    assert group_metadata(data) == GroupMetadata(group, generation, member, instance)


@given(st.data())
def test_what_librdkafka_cannot_read_is_an_error_here(
    library: Librdkafka, data: st.DataObject
) -> None:
    """One byte of a valid buffer is replaced, removed or added."""
    whole = library.write("group", data.draw(st.integers(-1, 0)), "member", data.draw(INSTANCES))
    at = data.draw(st.integers(0, len(whole) - 1))
    byte = data.draw(st.sampled_from([b"", b"\0", b"\1", b"x", b"xx"]))
    changed = whole[:at] + byte + whole[at + data.draw(st.integers(0, 1)) :]
    try:
        found = group_metadata(changed)
    except ValueError as error:
        # It also accepts what no broker would.
        semantic = "name is empty" in str(error)
        assert semantic or not library.accepts(changed)
    else:
        # It refuses other names, which brokers accept.
        assume(f"{found.group_id}{found.member_id}{found.instance_id}".isprintable())
        assert library.accepts(changed)


INSTANCES = st.sampled_from([None, "", "instance"])


@pytest.mark.parametrize(
    ("static", "expected"),
    [
        ({}, GroupMetadata("group")),
        ({"group.instance.id": "instance"}, GroupMetadata("group", -1, "", "instance")),
    ],
)
def test_a_consumer_of_confluent_kafka(static: dict[str, Any], expected: GroupMetadata) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka", reason="needs confluent-kafka")
    # Without a server it connects to nothing.
    consumer = confluent_kafka.Consumer({"group.id": "group", **static})
    try:
        assert group_metadata(consumer) == expected
        assert group_metadata(consumer.consumer_group_metadata()) == expected
    finally:
        consumer.close()


@pytest.mark.parametrize("call", [lambda: group_offsets({}), lambda: group_metadata("g")])
def test_the_arguments_are_immutable(call: Callable[[], object]) -> None:
    hash(call())
