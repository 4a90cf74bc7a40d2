"""The arguments of ``send_offsets_to_transaction()``: a consumer group, and offsets of it.

Programs pass the objects of the consumer that they use. kafka-python's and confluent-kafka's are
recognized by their attributes, so that neither library has to be installed; other objects with the
same attributes do as well. Everything is checked here, in the caller's thread.

kafka-python: ``{TopicPartition: OffsetAndMetadata}``, in which the older versions have no leader
epoch; and from 3.0 on ``KafkaConsumer.group_metadata()`` (KIP-447).

confluent-kafka: a list of ``TopicPartition``; and ``Consumer.consumer_group_metadata()``, which are
bytes. librdkafka writes them (``rd_kafka_consumer_group_metadata_write``) as ``CGMDv2:``, the
generation as a 32-bit number in the machine's byte order, the group and the member, each followed
by a zero byte, and a byte 1, or a byte 0 followed by the instance and a zero byte.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

#: The longest text that a broker reads (bytes). It closes the connection because of a longer one.
_LONGEST_TEXT: Final = 2**15 - 1


_KEYS: Final = "the keys of offsets, of a class such as kafka.TopicPartition,"


class GroupMetadata(NamedTuple):
    """A consumer group, and the member of it whose offsets are committed (KIP-447).

    Brokers check nothing if there is neither a generation, nor a member, nor an instance.
    """

    group_id: str
    #: The generation of the group, or the epoch of the member (KIP-848). -1: none.
    generation: int = -1
    #: Empty: none.
    member_id: str = ""
    #: ``group.instance.id`` of a static member (KIP-345).
    instance_id: str | None = None


class GroupOffset(NamedTuple):
    """An offset to be committed: the next one that the group is to read in a partition."""

    topic: str
    partition: int
    offset: int
    #: -1: unknown.
    leader_epoch: int = -1
    metadata: str = ""


# Offsets ------------------------------------------------------------------------------------------


def group_offsets(offsets: object) -> tuple[GroupOffset, ...]:
    """Return *offsets* as this package's own values, at most one for each partition.

    *offsets*: a mapping from objects with ``topic`` and ``partition`` to a number or an object with
    ``offset`` and perhaps ``metadata`` and ``leader_epoch``. Or a list or tuple of objects that
    have all of these; those with a negative offset, which means that the consumer has none, are
    left out. Of several for the same partition the last one counts.

    Raises:
        TypeError: *offsets* is something else.
        ValueError: a value is outside of the protocol's limits.
    """
    if isinstance(offsets, Mapping):
        found = [_offset(key, value) for key, value in offsets.items()]
    elif isinstance(offsets, list | tuple) and not hasattr(offsets, "topic"):
        found = [
            _offset(each, each)
            for each in offsets
            if _integer(_attribute(each, "offset", "a list of offsets"), "an offset") >= 0
        ]
    else:
        raise TypeError(
            "offsets must be a dict {TopicPartition: OffsetAndMetadata or int}, or a list of "
            f"confluent_kafka.TopicPartition, not {kind_of(offsets)}"
        )
    return tuple({(each.topic, each.partition): each for each in found}.values())


def _offset(place: Any, value: Any) -> GroupOffset:
    """Return the offset that *value* has for the partition *place*."""
    topic = text_of(_attribute(place, "topic", _KEYS), "a topic's name")
    if not topic:
        raise ValueError("offsets: a topic's name is empty")
    partition = _integer(_attribute(place, "partition", _KEYS), "a partition")
    where = f"offsets: {topic}-{partition}"
    _check(partition, 0, 31, f"{where}: the partition's number")
    leader_epoch, metadata = None, None
    if _is_integer(value):
        offset = _integer(value, "an offset")
    else:
        offset = _integer(
            _attribute(value, "offset", "the values of offsets, unless they are int,"), "an offset"
        )
        leader_epoch = getattr(value, "leader_epoch", None)
        metadata = getattr(value, "metadata", None)
    _check(offset, 0, 63, f"{where}: the offset")
    epoch = -1 if leader_epoch is None else max(-1, _integer(leader_epoch, "a leader epoch"))
    _check(epoch, -1, 31, f"{where}: the leader epoch")
    text = "" if metadata is None else text_of(metadata, "the metadata of an offset")
    return GroupOffset(topic, partition, offset, epoch, text)


# The group ----------------------------------------------------------------------------------------


def group_metadata(group: object) -> GroupMetadata:
    """Return *group* as this package's own value.

    *group*: a name; an object with ``group_id``, ``generation_id``, ``member_id`` and perhaps
    ``group_instance_id``; the bytes that librdkafka makes; or a consumer, which is asked for one of
    these with ``group_metadata()`` or ``consumer_group_metadata()``.

    Raises:
        TypeError: *group* is something else.
        ValueError: the group has no name, or the metadata cannot be read.
    """
    for name in ("group_metadata", "consumer_group_metadata"):
        method = getattr(group, name, None)
        if callable(method) and not isinstance(group, type):
            found = _checked(_metadata(_not_awaitable(method(), name)))
            return _of_member(found) if _subscribes(group) else found
    return _checked(_metadata(group))


def _subscribes(consumer: Any) -> bool:
    """Return whether its group assigns the partitions of *consumer*.

    confluent-kafka's consumer cannot be asked, but need not be: if it has lost its membership, it
    has no member id, but still a generation.
    """
    subscription = getattr(consumer, "subscription", None)
    return callable(subscription) and subscription() is not None


def _of_member(group: GroupMetadata) -> GroupMetadata:
    """Return metadata that brokers check, for a consumer that has to be a member of its group.

    They do not if there is no generation and no member, because these are the metadata of a
    consumer with ``assign()``. But kafka-python's consumer has them, too, when it has left its
    group:

    1. The program reads a batch, and takes longer for it than ``max_poll_interval_ms``.
    2. The consumer's heartbeats stop. It leaves the group, and forgets its generation.
    3. Another member gets the partitions, processes the same batch, and commits it.
    4. The program commits the batch, and its results would be there twice.

    No group has a member without an id, so each refuses the generation 0 of it.
    """
    if group.generation < 0 and not group.member_id:
        return GroupMetadata(group.group_id, 0, "", group.instance_id)
    return group


def _metadata(group: Any) -> GroupMetadata:
    if isinstance(group, GroupMetadata):
        return group
    if isinstance(group, str):
        return GroupMetadata(group)
    if isinstance(group, bytes | bytearray | memoryview):
        return _read_metadata(bytes(group))
    if hasattr(group, "group_id") and hasattr(group, "member_id") and not isinstance(group, type):
        if group.group_id is None:
            raise ValueError("the consumer has no group: its group_id is None")
        generation = _attribute(group, "generation_id", "a group's metadata")
        if _is_integer(generation) and generation > 0 and not group.member_id:
            # No consumer of kafka-python returns these, and its producer refuses them, too.
            raise ValueError(
                f"the metadata of the group have generation {generation}, but no member id: pass "
                f"what consumer.group_metadata() returned, or the consumer"
            )
        return GroupMetadata(
            group.group_id,
            generation,
            group.member_id,
            getattr(group, "group_instance_id", None),
        )
    raise TypeError(
        "the group must be its name, the metadata that a consumer's group_metadata() or "
        f"consumer_group_metadata() returned, or a consumer that has such a method, not "
        f"{kind_of(group)}"
    )


def _not_awaitable(metadata: Any, name: str) -> Any:
    if not hasattr(metadata, "__await__"):
        return metadata
    if hasattr(metadata, "close"):
        metadata.close()  # so that Python does not warn that it was never awaited
    raise TypeError(f"the consumer is asynchronous: pass 'await consumer.{name}()'")


def _checked(group: GroupMetadata) -> GroupMetadata:
    """Return *group* with every value checked."""
    group_id = text_of(group.group_id, "the group's name")
    if not group_id:
        raise ValueError("the group's name is empty")
    generation = _integer(group.generation, "the group's generation")
    _check(generation, -(2**31), 31, "the group's generation")
    member_id = "" if group.member_id is None else text_of(group.member_id, "the member's id")
    # A generation without a member is sent: the group refuses it, so the transaction is aborted.
    instance_id = group.instance_id
    if instance_id is not None:
        text_of(instance_id, "the member's group.instance.id")
    return GroupMetadata(group_id, generation, member_id, instance_id)


_MAGIC: Final = b"CGMDv2:"
_generation = struct.Struct("=i")


def _read_metadata(data: bytes) -> GroupMetadata:
    """Read what ``rd_kafka_consumer_group_metadata_write`` has written."""
    if not data.startswith(_MAGIC):
        same_kind = data.startswith(_MAGIC[:5])
        raise _unreadable("of another version of librdkafka" if same_kind else "of another kind")
    start = len(_MAGIC) + _generation.size
    if len(data) < start:
        raise _unreadable("cut off")
    (generation,) = _generation.unpack_from(data, len(_MAGIC))
    # The group, the member, and what follows: a number other than 0 and nothing more, or 0, the
    # instance, a zero and nothing more.
    group, *rest = data[start:].split(b"\0", 2)
    if len(rest) < 2:
        raise _unreadable("cut off")
    member, last = rest
    if len(last) == 1 and last != b"\0":
        instance = None
    elif last[:1] == b"\0" and last.find(b"\0", 1) == len(last) - 1:
        instance = last[1:-1]
    else:
        raise _unreadable("cut off or damaged")
    try:
        return GroupMetadata(
            group.decode(),
            generation,
            member.decode(),
            None if instance is None else instance.decode(),
        )
    except UnicodeDecodeError:
        raise _unreadable("not text in UTF-8") from None


def _unreadable(what: str) -> ValueError:
    return ValueError(
        f"the group's metadata are bytes that are {what}; pass what the consumer's "
        "consumer_group_metadata() returned, unchanged and made on a machine of the same kind"
    )


# Values -------------------------------------------------------------------------------------------


def kind_of(value: object) -> str:
    """Return the name of a value's type. The value itself is not for error texts."""
    kind = value if isinstance(value, type) else type(value)
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{kind.__module__}.{name}"
    return f"the class {name}" if kind is value else name


def _attribute(value: Any, name: str, where: str) -> Any:
    try:
        return getattr(value, name)
    except AttributeError:
        raise TypeError(f"{where} must have the attribute {name!r}, not {kind_of(value)}") from None


def _is_integer(value: object) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _integer(value: Any, what: str) -> int:
    """Return a number as an int. NumPy's integers are numbers as well."""
    if not _is_integer(value):
        raise TypeError(f"{what} must be an integer, not {kind_of(value)}")
    return operator.index(value)


def _check(value: int, least: int, bits: int, what: str) -> None:
    if not least <= value < 2**bits:
        raise ValueError(f"{what} is {value}, but must be {least} to 2**{bits} - 1")


def text_of(value: Any, what: str) -> str:
    """Return *value*, a text that a broker reads. *what* is its name in errors."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {kind_of(value)}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{what} cannot be encoded as UTF-8") from None
    if size > _LONGEST_TEXT:
        raise ValueError(f"{what} has {size} bytes, more than {_LONGEST_TEXT}")
    return value
