"""Which partition a message goes to: the named partitioners, and the protocol for your own.

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

*Sticky* fills one partition with ``batch_size`` bytes before it takes another, so that batches
are large (KIP-794). Rows without a key go only to partitions that have a leader; keyed rows may
go to any, for a key must always mean the same partition.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

from pykaproducer import _kernel


class PartitionerFunction(Protocol):
    """A partitioner of your own: any callable of this form.

    It is called in the topic's worker thread, once a message, with the serialized key (or None),
    all partition numbers of the topic, and those of them that have a leader. It returns one of the
    numbers. If it raises or returns anything else, that message fails with
    :class:`pykaproducer.errors.PartitionerError`; others are not harmed.
    """

    def __call__(
        self, key: bytes | None, all_partitions: Sequence[int], available: Sequence[int], /
    ) -> int: ...


#: name -> (hash of a key, what a row without a key does, an empty key counts as none)
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

#: Other names by which people know them.
_ALIASES = {"default": "murmur2", "crc32": "consistent_random", "roundrobin": "round_robin"}

#: Every name that the ``partitioner`` setting takes.
NAMES: tuple[str, ...] = (*_NAMED, *_ALIASES)


def named(name: str, *, sticky_bytes: int) -> _kernel.Partitioner:
    """A fresh partitioner for one topic."""
    hashing, keyless, empty_is_keyless = _NAMED[_ALIASES.get(name, name)]
    return _kernel.Partitioner(
        hashing,
        keyless,
        empty_is_keyless=empty_is_keyless,
        sticky_bytes=sticky_bytes,
        seed=int.from_bytes(os.urandom(8), "little"),
    )
