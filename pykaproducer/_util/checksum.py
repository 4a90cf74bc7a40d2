"""The checksum of record batches: CRC-32C, from the package ``crc32c``.

Importing that package takes a quarter of the time of importing this one, as it reads its version
from the metadata of the installation. So it is imported with the first pipeline and not before, in
the thread of a caller: a stage that imported it would hold its import lock, and a fork at that
moment would leave it locked in the child forever.
"""

from __future__ import annotations

import functools
from collections.abc import Callable


@functools.cache
def crc32c_function() -> Callable[..., int]:
    """Return ``crc32c.crc32c``."""
    from crc32c import crc32c

    return crc32c
