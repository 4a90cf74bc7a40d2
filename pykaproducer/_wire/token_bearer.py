"""OAUTHBEARER (RFC 7628) with a token that the producer has fetched by itself.

``_wire/mechanisms.py`` has the same mechanism for the user's token provider.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable


def client_response(token: str, extensions: Iterable[str]) -> bytes:
    """Return the client's first message. Each of *extensions* is ``name=value``."""
    pairs = "".join(f"{pair}\1" for pair in extensions)
    return f"n,,\1auth=Bearer {token}\1{pairs}\1".encode()


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

    @property
    def secrets(self) -> tuple[str, ...]:
        return (self._token,)

    def first(self) -> bytes:
        self._token = self._take()
        return client_response(self._token, filter(None, self._extensions.split(",")))

    def respond(self, challenge: bytes) -> bytes | None:
        if not challenge:
            return None
        # A challenge is a rejection, which the broker completes once the client acknowledges it.
        self._rejected(self._token)
        return b"\1"
