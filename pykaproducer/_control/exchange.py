"""Sends requests to many brokers at once, in the thread of the caller, and repeats them.

A coordinator is looked up when it is needed, and again when it has moved. A broker serves one
request of a connection at a time, so several requests to one broker go over several connections.
"""

from __future__ import annotations

import random
import selectors
from collections.abc import Iterator, Sequence
from itertools import chain, cycle

from pykaproducer._control.link import Link
from pykaproducer._control.question import Address, CoordinatorKey, FindQuestion, Question
from pykaproducer._errors.formatting import format_error_code
from pykaproducer._machines.coordination import NO_ANSWER, Delays, Reaction
from pykaproducer._net.connection import Answered, ConnectionFailed, Event, Lost
from pykaproducer._net.transport import Network
from pykaproducer._util.clock import Clock, earlier
from pykaproducer._util.guarded_log import GuardedLogger
from pykaproducer._wire import WireError
from pykaproducer._wire.messages import ApiKey
from pykaproducer.config import Config

log = GuardedLogger("pykaproducer.transactions")

#: The most connections to one broker.
_LINKS = 4
#: After this time, the reason for the lack of an answer is logged, and another bootstrap server is
#: tried (seconds).
_PATIENCE = 1.0
#: A reason is logged again after this time (seconds).
_REPEAT = 30.0


class ControlExchange:
    """The connections, and what is asked over them. Used by one thread at a time."""

    def __init__(self, config: Config, clock: Clock, network: Network) -> None:
        self._config = config
        self._clock = clock
        self._network = network
        servers = config.bootstrap_servers
        self._servers: Iterator[Address] = cycle(random.sample(servers, len(servers)))
        self._links: list[Link] = []
        self._places: dict[CoordinatorKey, Address] = {}
        # Of the call under way.
        self._asks: list[Question] = []
        self._lookups: dict[CoordinatorKey, FindQuestion] = {}
        self._closed = False
        self._log_from = 0.0
        # What was logged, and when.
        self._logged: dict[str, float] = {}
        # When to try the next bootstrap server, if none of those before is ready.
        self._next_attempt = 0.0

    def run(self, asks: Sequence[Question], deadline: float) -> None:
        """Ask until each of *asks* is over, or until *deadline* (monotonic seconds)."""
        self._log_from = self._clock.monotonic() + _PATIENCE
        since = self._clock.monotonic() - _REPEAT
        self._logged = {reason: when for reason, when in self._logged.items() if when > since}
        self._next_attempt = 0.0
        self._asks = list(asks)
        for ask in asks:
            ask.delays = self._delays()
        self._forget_call()  # an interrupt may have come in the last step of the one before
        try:
            self._poll()  # a broker may have closed an idle connection
            while not self._closed and (now := self._clock.monotonic()) < deadline:
                self._assign(now)
                # An ask may be over at once, if the broker does not support it.
                self._asks = [ask for ask in self._asks if not ask.is_over]
                if not self._asks:
                    return
                self._wait(now, deadline)
            self._explain()
        finally:
            self._forget_call()

    def _forget_call(self) -> None:
        # An answer that comes later belongs to no call.
        for link in [each for each in self._links if not each.is_free]:
            self._drop(link)
        self._lookups.clear()

    def close(self) -> None:
        """Close all connections, and end the call under way, which a signal has interrupted."""
        self._closed = True
        for link in list(self._links):
            self._drop(link)

    def _delays(self) -> Delays:
        config = self._config
        return Delays(config.retry_backoff_ms / 1000, config.retry_backoff_max_ms / 1000)

    # Assigning requests to connections -----------------------------------------------------------

    def _assign(self, now: float) -> None:
        """Send what is due, open the connections and look up the coordinators that are missing."""
        sent = {id(ask) for link in self._links for ask in link.asks}
        waiting: dict[Address | None, list[Question]] = {}
        for ask in self._asks:
            if ask.is_over or ask.due > now or id(ask) in sent:
                continue
            place = ask.address
            if ask.coordinator is not None:
                place = self._places.get(ask.coordinator)
                if place is None:
                    self._look_up(ask.coordinator)
                    continue
            waiting.setdefault(place, []).append(ask)
        for lookup in self._lookups.values():
            if lookup.due <= now and id(lookup) not in sent:
                waiting.setdefault(None, []).append(lookup)
        for place, asks in waiting.items():
            self._send(place, asks, now)

    def _look_up(self, key: CoordinatorKey) -> None:
        if key not in self._lookups:
            self._lookups[key] = FindQuestion(key)
            self._lookups[key].delays = self._delays()

    def _send(self, place: Address | None, asks: list[Question], now: float) -> None:
        """Send *asks* to the broker at *place*, None: to any."""
        links = [link for link in self._links if place in (None, link.address)]
        for link in links:
            while asks and link.is_free:
                first = asks.pop(0)
                first.unsupported = _too_old(link, first)
                if first.unsupported is not None:
                    if isinstance(first, FindQuestion):
                        self._looked_up(first)
                    continue
                most, together = link.most(first), [first]
                rest: list[Question] = []
                for ask in asks:
                    fits = len(together) < most and _may_share(first, ask)
                    (together if fits else rest).append(ask)
                asks[:] = rest
                link.send(together)
        if not asks:
            return
        if place is None:
            self._try_next_server(now, asks)
            return
        wanted = 1 if asks[0].shared else min(_LINKS, len(asks))
        for _ in range(wanted - sum(not link.asks for link in links)):
            if sum(link.address == place for link in self._links) < _LINKS:
                self._open(place, asks, bootstrap=False)

    def _try_next_server(self, now: float, asks: list[Question]) -> None:
        """Connect to a bootstrap server; to one more after a while, as the first may be silent."""
        trying = sum(link.bootstrap and not link.was_ready for link in self._links)
        if now >= self._next_attempt and trying < len(self._config.bootstrap_servers):
            self._next_attempt = now + _PATIENCE
            self._open(next(self._servers), asks, bootstrap=True)

    def _open(self, place: Address, asks: list[Question], *, bootstrap: bool) -> None:
        try:
            link = Link(place, self._config, self._clock, self._network, bootstrap=bootstrap)
        except ConnectionFailed as error:
            for ask in asks:
                self._judge(ask, NO_ANSWER, str(error), written=False)
            return
        self._links.append(link)

    def _drop(self, link: Link) -> None:
        link.close()  # first: after an interrupt it is closed again
        if link in self._links:  # otherwise a signal handler has called close()
            self._links.remove(link)

    # Waiting -------------------------------------------------------------------------------------

    def _wait(self, assigned: float, deadline: float) -> None:
        """Handle what has happened; wait for it if nothing has, at most until *deadline*.

        *assigned*: the time for which requests were assigned to connections. What has become due
        since then must not be slept through.
        """
        if self._poll():
            return
        due: float | None = deadline
        for ask in chain(self._asks, self._lookups.values()):
            if ask.due > assigned:
                due = earlier(due, ask.due)
        if self._next_attempt > assigned:
            due = earlier(due, self._next_attempt)
        # The selector of a connection is only for a few descriptors.
        union = selectors.PollSelector()
        for link in self._links:
            due = earlier(due, link.next_deadline)
            link.watch(union)
        self._clock.select(union, due, lambda: None)

    def _poll(self) -> bool:
        """Handle what has happened; return whether anything has."""
        happened = False
        for link in list(self._links):
            for event in link.poll():
                happened = True
                self._handle(link, event)
        return happened

    def _handle(self, link: Link, event: Event) -> None:
        match event:
            case Answered():
                self._answered(link, event)
            case Lost():
                self._lost(link, event)

    def _answered(self, link: Link, event: Answered) -> None:
        asks, link.asks = link.asks, ()
        try:
            codes = asks[0].decode(asks, event.version, event.payload, link.protocol)
        except WireError as error:
            self._drop(link)
            for ask in asks:
                self._judge(ask, NO_ANSWER, f"malformed response from the broker: {error}")
            return
        for ask, code in zip(asks, codes, strict=True):
            self._judge(ask, code, f"{ApiKey(ask.api_key).name} returned {format_error_code(code)}")

    def _lost(self, link: Link, event: Lost) -> None:
        asks = link.asks
        self._drop(link)
        reason = "no connection to {}:{}: {}".format(*link.address, event.reason)
        written = not event.unwritten
        others = [each for each in self._links if each.was_ready]
        if link.was_ready:
            if asks:  # their own backoff limits how often
                self._next_attempt = 0.0
        elif link.bootstrap and others:
            asks = ()  # they are busy, but may be free before the next attempt
        elif link.bootstrap:
            asks = [ask for ask in self._waiting() if _may_go_anywhere(ask)]
            self._next_attempt = 0.0
        elif not any(each.address == link.address for each in others):
            asks = [ask for ask in self._waiting() if self._place(ask) == link.address]
        for ask in asks:
            self._judge(ask, NO_ANSWER, reason, written=written and link.was_ready)

    def _explain(self) -> None:
        """Say what is waited for at the deadline, if nothing else is the reason."""
        for link in self._links:
            where = "{}:{}".format(*link.address)
            asks = link.asks if link.was_ready else self._asks
            for each in asks:
                reason = f"{ApiKey(each.api_key).name} was not answered by {where}"
                if not link.was_ready:
                    reason = f"{where} does not answer"
                found = [each]
                if isinstance(each, FindQuestion):
                    found = [ask for ask in self._asks if ask.coordinator == each.key]
                for ask in found:
                    ask.reason = ask.reason or reason

    def _waiting(self) -> Iterator[Question]:
        """Yield the asks that are due and not sent."""
        now = self._clock.monotonic()
        sent = {id(ask) for link in self._links for ask in link.asks}
        for ask in chain(self._asks, [*self._lookups.values()]):
            if not ask.is_over and ask.due <= now and id(ask) not in sent:
                yield ask

    def _place(self, ask: Question) -> Address | None:
        return ask.address if ask.coordinator is None else self._places.get(ask.coordinator)

    # Results -------------------------------------------------------------------------------------

    def _judge(self, ask: Question, code: int | None, reason: str, *, written: bool = True) -> None:
        """Handle the answer *code*, None: none came for this *reason*."""
        now = self._clock.monotonic()
        found = ask.judge(code, written=written)
        ask.times[code] = ask.times.get(code, 0) + 1
        if found.again:
            ask.reason = reason
            ask.due = now + ask.delays.after(found.reaction, random.random())
            if found.reaction is Reaction.FIND and ask.coordinator is not None:
                self._places.pop(ask.coordinator, None)
            if now >= self._log_from and now >= self._logged.get(reason, now - _REPEAT) + _REPEAT:
                self._logged[reason] = now
                log.warning("%s; trying again", reason)
            if isinstance(ask, FindQuestion):
                for each in self._asks:
                    if each.coordinator == ask.key:
                        each.reason = reason
            return
        ask.found = found
        if isinstance(ask, FindQuestion):
            self._looked_up(ask)

    def _looked_up(self, lookup: FindQuestion) -> None:
        """Let those continue that wait for *lookup*, or end them with its error."""
        del self._lookups[lookup.key]
        if lookup.found is not None and lookup.found.reaction is Reaction.DONE:
            assert lookup.place is not None, "a coordinator has an address"
            self._places[lookup.key] = lookup.place
            return
        for ask in self._asks:
            if ask.coordinator == lookup.key:
                ask.found, ask.unsupported = lookup.found, lookup.unsupported


def _may_share(first: Question, other: Question) -> bool:
    if type(first) is not type(other):
        return False
    if isinstance(first, FindQuestion) and isinstance(other, FindQuestion):
        return first.key[0] is other.key[0]
    return first.shared


def _may_go_anywhere(ask: Question) -> bool:
    return ask.coordinator is None and ask.address is None


def _too_old(link: Link, ask: Question) -> str | None:
    reason = link.refuses(ask)
    return None if reason is None else "the broker at {}:{}: {}".format(*link.address, reason)
