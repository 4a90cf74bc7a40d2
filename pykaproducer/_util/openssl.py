"""OpenSSL's errors in words. The module ``ssl`` is not imported: many producers do not need it."""

from __future__ import annotations

import re
from typing import Final

#: The place in Python's sources, at the end of some errors.
_SOURCE: Final = re.compile(r" *\(_ssl\.c:\d+\)$")


def reason_of(error: Exception) -> str:
    """Return the reason of an ``ssl.SSLError`` in words, without numbers and source locations.

    Of another error, its text.
    """
    reason: str = getattr(error, "reason", None) or _SOURCE.sub("", str(error))
    return reason.lower().replace("_", " ")
