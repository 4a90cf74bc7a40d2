"""A checksum of rows that does not depend on their order: the sum of one for each row.

So what was sent can be compared with what was read back from several partitions. A row's checksum
is BLAKE2b of its key, value and headers, to 64 bits; sums are modulo 2**64.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from typing import Any


def row_checksum(
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[tuple[str | bytes | None, bytes | None]] | None,
) -> int:
    """The checksum of one message."""
    found = hashlib.blake2b(digest_size=8)
    for part in (key, value, *(part for header in headers or () for part in header)):
        data = part.encode() if isinstance(part, str) else part
        # The length in front: so that no two messages have the same bytes.
        found.update(b"-" if data is None else b"%d:" % len(data))
        found.update(data or b"")
    return int.from_bytes(found.digest(), "big")


def checksum_of(batch: Any, without: Collection[int] = ()) -> int:
    """The sum for the rows of a ``pyarrow.RecordBatch`` as ``send_arrow()`` takes it."""
    from pykaproducer._load.cells import messages  # which needs pyarrow

    return sum(
        row_checksum(*message)
        for number, message in enumerate(messages(batch))
        if number not in without
    )
