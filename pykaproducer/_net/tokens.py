"""Tokens: the current token of a producer, which all its connections share.

The pipeline's TokenFetcher calls :meth:`Tokens.fetch`, which blocks, in its own thread, before the
first connection and then whenever ``fetch_at`` has come. The connections only read the token. A
connection outside of a pipeline (the command line describes a cluster) has no TokenFetcher, and
fetches the token itself.

Guarantees: the attributes are replaced as a whole, so any thread may read them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from pykaproducer._config.oauth_settings import OAuthSettings
from pykaproducer._machines.token_schedule import TokenSchedule
from pykaproducer._net.token_gate import TokenRejected
from pykaproducer._net.token_source import NoToken, TokenSource
from pykaproducer._util.clock import Clock
from pykaproducer._util.guarded_log import GuardedLogger
from pykaproducer._util.memory import NO_MEMORY
from pykaproducer._util.randomness import system_random
from pykaproducer._wire.mechanism import MechanismError
from pykaproducer._wire.token_bearer import TokenBearer

log = GuardedLogger("pykaproducer.tokens")


@dataclass(frozen=True, eq=False)
class TokenFailure:
    """Why there is no token. Failures differ even if their texts are equal."""

    reason: str


@dataclass(frozen=True, slots=True)
class TokenWanted:
    """A connection waits for a token, or for another failure than the one that it has *seen*."""

    wake: Callable[[], None]
    seen: TokenFailure | None


class Tokens:
    """The current token, and the failure to get one."""

    def __init__(self, settings: OAuthSettings, source: TokenSource | None = None) -> None:
        self._source = source or TokenSource(settings)
        self._extensions = settings.sasl_oauthbearer_extensions or ""
        self._schedule = TokenSchedule(
            settings.sasl_login_retry_backoff_ms / 1000,
            settings.sasl_login_retry_backoff_max_ms / 1000,
        )
        self._clock = Clock()
        self._ask: Callable[[TokenWanted | TokenRejected], None] | None = None
        # Guards the schedule, and is never held while blocked.
        self._changing = threading.Lock()
        self._token: str | None = None
        self._logged: str | None = None
        #: The last failure; None after a success.
        self.failure: TokenFailure | None = None

    def attend(self, clock: Clock, ask: Callable[[TokenWanted | TokenRejected], None]) -> None:
        """Leave fetching to *ask*, which takes connections' requests and calls :meth:`fetch`."""
        self._clock = clock
        self._ask = ask

    @property
    def waiting_for(self) -> str:
        """Describe a wait for the token, for errors."""
        return f"waiting for a token from {self._source.origin}"

    # For connections -----------------------------------------------------------------------------

    def is_valid(self) -> bool:
        """Return whether there is a token that has not expired."""
        return self._schedule.is_valid(self._clock.monotonic())

    def want(self, wake: Callable[[], None], seen: TokenFailure | None) -> None:
        """Have *wake* called when there is a token, or another failure than *seen*."""
        assert self._ask is not None, "it is attended by a pipeline"
        self._ask(TokenWanted(wake, seen))

    def mechanism(self) -> TokenBearer:
        """Return a new SASL exchange with the current token."""
        return TokenBearer(self._current, self._extensions, self._rejected)

    def _current(self) -> str:
        is_due = self._clock.monotonic() >= self.fetch_at
        if self._ask is None and is_due:
            self.fetch()
        token, failure = self._token, self.failure
        if token is None or not self.is_valid():
            raise MechanismError(self.waiting_for if failure is None else failure.reason)
        return token

    def _rejected(self, token: str) -> None:
        # The broker's error is reported by the connection. The token stays, for the other brokers.
        with self._changing:
            if token != self._token:
                return
            self._schedule.rejected(self._clock.monotonic())
        if self._ask is not None:
            self._ask(TokenRejected())

    # For the thread that fetches -----------------------------------------------------------------

    @property
    def fetch_at(self) -> float:
        """Return when to call :meth:`fetch` (monotonic seconds)."""
        return self._schedule.fetch_at

    def fetch(self) -> None:
        """Request a token, which may block for the two timeouts of the settings."""
        origin = self._source.origin
        try:
            made = self._source.fetch(self._clock.time())
        except NoToken as error:
            self._failed(f"no token from {origin}: {error}", error.permanent)
            return
        except NO_MEMORY:
            self._failed(f"no token from {origin}: out of memory", False)
            return
        with self._changing:
            now = self._clock.monotonic()
            self._schedule.fetched(made.lifetime, now, system_random.random())
            self._token = made.text
            self.failure = None
        if self._logged is not None:
            self._logged = None
            log.info("%s gives tokens again", origin)
        log.debug("new token from %s, valid for %.0f s", origin, made.lifetime)

    def _failed(self, reason: str, permanent: bool) -> None:
        with self._changing:
            now = self._clock.monotonic()
            self._schedule.failed(now, system_random.random(), permanent=permanent)
            left = self._schedule.expires_at - now
            self.failure = TokenFailure(reason)
        # Without a valid token, the connections that wait for one log the failure.
        if left > 0 and reason != self._logged:
            self._logged = reason
            log.warning("%s; trying again, the current one is valid for %.0f s", reason, left)

    def cancel(self) -> None:
        """Make a request in another thread fail soon."""
        self._source.cancel()

    def inherited(self) -> list[object]:
        """Close the parent's socket in a forked child; return what must not be freed there."""
        return self._source.inherited()
