"""The kernel's entry point without a producer: rows go in, chunks come out.

For benchmarks of the kernel alone, and for record batches that are built before the clock starts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import crc32c

import pykaproducer._kernel as _kernel
from pykaproducer._kernel import Chunk, Slice
from pykaproducer._util.clock import Clock
from pykaproducer._util.compression import Compressor
from pykaproducer.delivery import ProducerRef

TOPIC = "benchmark"


class Door(_kernel.BlockAdmission):
    """An admission without a buffer limit; only :meth:`chunks` takes the messages."""

    def __init__(self) -> None:
        self._told: list[_kernel.TopicSlot] = []
        self._open(
            _kernel.Budget(1 << 40),
            self._told.append,
            ProducerRef(Clock()),
            delivery_timeout=3600.0,
            max_request_size=1 << 30,
            serializing=False,
            unconfirmed=False,
        )

    def _start(self) -> None:
        self._admit()

    def _check_topic(self, topic: object) -> None:
        pass

    def _too_large(self, topic: str, size: int) -> None:
        raise ValueError(f"a message of {size} bytes")

    def take_block(self, batches: list[_kernel.Columns]) -> None:
        """Add columns, as ``send_many()`` and ``send_arrow()`` do."""
        self._send_block(_kernel.SentBlock(), TOPIC, batches, None, None, ())

    def chunks(self) -> list[Chunk]:
        """Return everything that has been sent and not yet taken."""
        slots = self._told.copy()
        self._told.clear()
        return [chunk for slot in slots for chunk in self._take(slot)]


def split(
    chunk: Chunk, partitions: int, partitioner: _kernel.Partitioner | None = None
) -> list[Slice]:
    """Return the slices of a chunk, by partition."""
    available = struct.pack(f"{partitions}i", *range(partitions))
    slices, _ = chunk.split(partitioner, partitions, available)
    return slices


def record_batch(
    rows: Iterable[tuple[bytes, bytes | None]],
    batch_size: int,
    compressor: Compressor | None = None,
) -> tuple[bytes, int]:
    """Return a record batch of the *rows* that fit into *batch_size*, and their number."""
    door = Door()
    size = 0
    for value, key in rows:
        door.send(TOPIC, value, key, partition=0)
        size += len(value)
        if size > batch_size:
            break
    parts: list[Slice] = []
    room = batch_size - _kernel.BATCH_HEADER
    for chunk in door.chunks():
        (whole,) = split(chunk, 1)
        part = whole.claim(room, len(whole), not parts)
        if part is None:
            break
        parts.append(part)
        room -= part.nbytes + part.count * _kernel.RECORD_ALLOWANCE
        if len(whole):
            break
    how: dict[str, Any] = {}
    if compressor is not None:
        how = {"compress": compressor.compress, "attributes": compressor.attribute}
    batch, count = _kernel.encode_batch(parts, crc32c.crc32c, **how)
    return bytes(batch), count
