"""pykaproducer with the transaction protocol before KIP-890, whatever the brokers support."""

from __future__ import annotations

import sys

from benchmarks.clients import pykaproducer
from pykaproducer._pipeline import coordinator

__all__ = ["Client"]

Client = pykaproducer.Client

# The process is separate, so this stays changed. Brokers with KIP-890 accept clients without it.
setattr(coordinator, "_TV2_LEVEL", sys.maxsize)  # noqa: B010 - it is private
