"""An order-independent checksum of rows: the sum of the rows' checksums.

It allows comparing what was sent with what was read back from several partitions. A row's checksum
is the 64-bit BLAKE2b hash of its key, value and headers; sums are modulo 2**64.
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
    """Return the checksum of one message."""
    found = hashlib.blake2b(digest_size=8)
    for part in (key, value, *(part for header in headers or () for part in header)):
        data = part.encode() if isinstance(part, str) else part
        # Prefixing the length makes the encoding unambiguous.
        found.update(b"-" if data is None else b"%d:" % len(data))
        found.update(data or b"")
    return int.from_bytes(found.digest(), "big")


def checksum_of(batch: Any, without: Collection[int] = ()) -> int:
    """Return the sum for the rows of a ``pyarrow.RecordBatch`` as ``send_arrow()`` accepts it."""
    from pykaproducer._load.cells import messages  # requires pyarrow

    return sum(
        row_checksum(*message)
        for number, message in enumerate(messages(batch))
        if number not in without
    )
