"""A checksum of rows that does not depend on their order: the sum of one for each row.

So what was sent can be compared with what was read back from several partitions. A row's checksum
is BLAKE2b of its key, value and headers, to 64 bits; sums are modulo 2**64.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from typing import Any

_Headers = Iterable[tuple[str | bytes, str | bytes | None]]


def row_checksum(
    key: str | bytes | None, value: str | bytes | None, headers: _Headers | None
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
    names = batch.schema.names
    keys, values, headers = (
        batch.column(name).to_pylist() if name in names else [None] * batch.num_rows
        for name in ("key", "value", "headers")
    )
    rows = enumerate(zip(keys, values, headers, strict=True))
    return sum(
        row_checksum(key, value, header_pairs(pairs))
        for number, (key, value, pairs) in rows
        if number not in without
    )


def header_pairs(cell: Any) -> list[tuple[str | bytes, str | bytes | None]]:
    """A cell of column ``headers`` (a list of structs or a map), as pairs."""
    pairs = (tuple(each.values()) if isinstance(each, dict) else each for each in cell or ())
    return [(name, value) for name, value in pairs]
