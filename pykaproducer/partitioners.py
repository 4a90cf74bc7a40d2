"""The named partitioners, and the protocol for custom ones.

====================== ====================== ===================== =======================
name                   a key's hash           without a key         as in
====================== ====================== ===================== =======================
``murmur2``            murmur2                sticky                Java client (default)
``murmur2_random``     murmur2                random                librdkafka, kafka-python
``consistent_random``  CRC-32; empty: no key  sticky                librdkafka's default
``consistent``         CRC-32                 as an empty key       librdkafka
``murmur2_consistent`` murmur2                as an empty key       librdkafka's murmur2
``fnv1a_consistent``   FNV-1a                 as an empty key       librdkafka's fnv1a
``fnv1a``              FNV-1a                 random                Sarama's default
``round_robin``        ignored                each one in turn      Sarama, Java
``sticky``             ignored                sticky                KIP-480, KIP-794
``random``             ignored                random                Sarama, librdkafka
====================== ====================== ===================== =======================

*Sticky* fills one partition with ``batch_size`` bytes before it chooses another, so that batches
are large (KIP-794). Messages without a key are only sent to partitions that have a leader. Messages
with a key may be sent to any partition, because a key must always map to the same one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

import pykaproducer._kernel as _kernel


class PartitionerFunction(Protocol):
    """A custom partitioner: any callable with this signature.

    It is called on the topic's worker thread, once per message, with the serialized key (or None),
    all partition numbers of the topic, and those that have a leader. It returns one of these
    numbers. If it raises or returns anything else, the message fails with
    :class:`pykaproducer.errors.PartitionerError`; other messages are not affected.
    """

    def __call__(
        self, key: bytes | None, all_partitions: Sequence[int], available: Sequence[int], /
    ) -> int: ...


#: name -> (hash of a key, handling of messages without a key, whether an empty key counts as none)
_NAMED: dict[str, tuple[int, int, bool]] = {
    "murmur2": (_kernel.MURMUR2, _kernel.STICKY, False),
    "murmur2_random": (_kernel.MURMUR2, _kernel.RANDOM, False),
    "consistent_random": (_kernel.CRC32, _kernel.STICKY, True),
    "consistent": (_kernel.CRC32, _kernel.HASH_EMPTY, False),
    "murmur2_consistent": (_kernel.MURMUR2, _kernel.HASH_EMPTY, False),
    "fnv1a_consistent": (_kernel.FNV1A, _kernel.HASH_EMPTY, False),
    "fnv1a": (_kernel.FNV1A, _kernel.RANDOM, False),
    "round_robin": (_kernel.NO_HASH, _kernel.ROUND_ROBIN, False),
    "sticky": (_kernel.NO_HASH, _kernel.STICKY, False),
    "random": (_kernel.NO_HASH, _kernel.RANDOM, False),
}

#: Other common names.
_ALIASES = {"default": "murmur2", "crc32": "consistent_random", "roundrobin": "round_robin"}

#: Every name that the setting ``partitioner`` accepts.
NAMES: tuple[str, ...] = (*_NAMED, *_ALIASES)


def named(name: str, *, sticky_bytes: int) -> _kernel.Partitioner:
    """Return a new partitioner for one topic."""
    hashing, keyless, empty_is_keyless = _NAMED[_ALIASES.get(name, name)]
    return _kernel.Partitioner(
        hashing,
        keyless,
        empty_is_keyless=empty_is_keyless,
        sticky_bytes=sticky_bytes,
        seed=int.from_bytes(os.urandom(8), "little"),
    )
