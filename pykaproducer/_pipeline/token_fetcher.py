"""TokenFetcher: gets the tokens for OAUTHBEARER from the token endpoint, and renews them in time.

There is one per producer that gets its tokens by itself. No other stage waits for the endpoint: a
connection that needs a token is opened when there is one.

Guarantees: every connection that waits is woken after each answer of the endpoint, and after each
failure. No request for a token is missed: (1) a connection finds no token, and sends its request
with the failure that it has seen; (2) this stage compares them when it handles the request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pykaproducer._net.token_gate import TokenRejected
from pykaproducer._pipeline.worker import StageContext, Worker

if TYPE_CHECKING:
    from pykaproducer._net.tokens import Tokens, TokenWanted

#: How long the end of the pipeline waits for a request that was cancelled (seconds). The resolver
#: cannot be interrupted.
_CANCEL_TIMEOUT: Final = 1.0


class TokenFetcher(Worker["TokenWanted | TokenRejected"]):
    """The stage that requests tokens, and blocks while it does."""

    def __init__(self, context: StageContext, tokens: Tokens) -> None:
        super().__init__("tokens", context)
        self._tokens = tokens
        self._waiting: dict[Callable[[], None], None] = {}
        self._is_wanted = False
        tokens.attend(context.clock, self.put)

    def handle(self, item: TokenWanted | TokenRejected) -> None:
        self._is_wanted = True
        if isinstance(item, TokenRejected):
            return  # deadline() is read again
        if self._tokens.is_valid() or self._tokens.failure is not item.seen:
            item.wake()
        else:
            self._waiting[item.wake] = None

    def deadline(self) -> float | None:
        return self._tokens.fetch_at if self._is_wanted and not self.stopping else None

    def on_time(self, now: float) -> None:
        self._tokens.fetch()
        waiting, self._waiting = self._waiting, {}
        for wake in waiting:
            wake()

    def stop_by(self, deadline: float) -> bool:
        """Cancel a request in progress, and stop; wait for at most a second.

        Returns whether the thread has ended.
        """
        self.stopping = True
        self._tokens.cancel()
        self.stop()
        return self.join(min(deadline, self.clock.monotonic() + _CANCEL_TIMEOUT))
