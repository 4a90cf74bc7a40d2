"""Whether connections have to wait for a token; light, because every producer imports it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pykaproducer._net.transport import Network

if TYPE_CHECKING:
    from pykaproducer._net.tokens import Tokens


class TokenRejected:
    """A broker has rejected the current token: ``fetch_at`` may be earlier now."""


def tokens_of(network: Network) -> Tokens | None:
    """Return the tokens of a producer that gets them by itself, None for any other producer."""
    # Only SecureNetwork has them. It is not imported here, as it needs TLS.
    found: Tokens | None = getattr(network, "tokens", None)
    return found
