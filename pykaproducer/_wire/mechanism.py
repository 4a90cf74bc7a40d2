"""The parts of every SASL mechanism: see ``mechanisms``, ``kerberos`` and ``msk_iam``.

In its own module because each session imports it, and only those with SASL need the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class MechanismError(Exception):
    """The exchange failed for the reason in the text."""


class Mechanism(Protocol):
    """The client side of one exchange."""

    @property
    def secrets(self) -> Sequence[str]:
        """What it has that the broker's texts are shown without."""

    def first(self) -> bytes:
        """Return the first token of the client."""

    def respond(self, challenge: bytes) -> bytes | None:
        """Return the response to *challenge*, or None if it is accepted and was the last."""
