"""OAUTHBEARER (RFC 7628) with a token that the producer has fetched by itself.

``_wire/mechanisms.py`` has the same mechanism for the user's token provider.
"""

from __future__ import annotations

from collections.abc import Callable


class TokenBearer:
    """One exchange.

    Args:
        token: returns the current token; may raise :class:`MechanismError`.
        extensions (str): SASL extensions: ``name=value``, separated by commas; or empty.
        rejected: called with the token if the broker rejects it.
    """

    def __init__(
        self, token: Callable[[], str], extensions: str, rejected: Callable[[str], None]
    ) -> None:
        self._take = token
        self._extensions = extensions
        self._rejected = rejected
        self._token = ""

    def first(self) -> bytes:
        self._token = self._take()
        pairs = "".join(f"{pair}\1" for pair in self._extensions.split(",") if pair)
        return f"n,,\1auth=Bearer {self._token}\1{pairs}\1".encode()

    def respond(self, challenge: bytes) -> bytes | None:
        if not challenge:
            return None
        # A challenge is a rejection, which the broker completes once the client acknowledges it.
        self._rejected(self._token)
        return b"\1"
