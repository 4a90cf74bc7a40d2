"""A secret as a file for libraries that read it only from a file, for as short as possible."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

#: Where Linux shows the descriptors of a process. It may be missing in a sandbox.
_DESCRIPTORS = "/proc/self/fd"


@contextlib.contextmanager
def path_of(content: bytes) -> Iterator[str]:
    """Yield the path of a file with *content*, which no other user can read.

    On Linux the file is in memory and has no name. Elsewhere it is a temporary file of mode 0600,
    removed at the end of the block.

    Raises:
        OSError: the system refuses the file.
    """
    if hasattr(os, "memfd_create") and os.path.isdir(_DESCRIPTORS):
        descriptor = os.memfd_create("pykaproducer", os.MFD_CLOEXEC)
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            yield f"{_DESCRIPTORS}/{descriptor}"
        return
    import tempfile

    with tempfile.NamedTemporaryFile(prefix="pykaproducer-") as file:  # its mode is 0600
        file.write(content)
        file.flush()
        yield file.name
