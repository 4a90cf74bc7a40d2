"""Sends requests to many brokers at once, on the thread of the caller, and retries them.

A coordinator is looked up when it is needed, and again when it has moved. A broker serves one
request of a connection at a time, so several requests to one broker go over several connections.
"""

from __future__ import annotations

import random
import selectors
from collections.abc import Iterator, Sequence
from itertools import chain, cycle

from pykaproducer._control.control_request import (
    Address,
    ControlRequest,
    CoordinatorKey,
    FindRequest,
)
from pykaproducer._control.link import Link
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

#: The maximum number of connections to one broker.
_LINKS = 4
#: After this time, the reason for the lack of an answer is logged, and another bootstrap server is
#: tried (seconds).
_PATIENCE = 1.0
#: How often an answer may be in vain before another broker is asked for the coordinator.
_TOLERATED = 1
#: A reason is logged again after this time (seconds).
_REPEAT = 30.0
#: Number of coordinators that are remembered after a call.
_MOST_COORDINATORS = 1000


class ControlExchange:
    """The connections, and the requests sent over them. Used by one thread at a time."""

    def __init__(self, config: Config, clock: Clock, network: Network) -> None:
        self._config = config
        self._clock = clock
        self._network = network
        servers = config.bootstrap_servers
        self._servers: Iterator[Address] = cycle(random.sample(servers, len(servers)))
        self._links: list[Link] = []
        self._places: dict[CoordinatorKey, Address] = {}
        # The connections whose brokers have named them.
        self._named_by: dict[CoordinatorKey, Link] = {}
        # Those of the call under way.
        self._requests: list[ControlRequest] = []
        self._lookups: dict[CoordinatorKey, FindRequest] = {}
        self._closed = False
        self._log_from = 0.0
        # Reason -> when it was logged.
        self._logged: dict[str, float] = {}
        # When to try the next bootstrap server, if none of those before is ready.
        self._next_attempt = 0.0

    def run(self, requests: Sequence[ControlRequest], deadline: float) -> None:
        """Send *requests* until each is over, or until *deadline* (monotonic seconds)."""
        self._log_from = self._clock.monotonic() + _PATIENCE
        since = self._clock.monotonic() - _REPEAT
        self._logged = {reason: when for reason, when in self._logged.items() if when > since}
        self._next_attempt = 0.0
        self._requests = list(requests)
        for request in requests:
            request.delays = self._delays()
        self._forget_call()  # an interrupt may have come in the last step of the one before
        try:
            self._poll()  # a broker may have closed an idle connection
            while not self._closed and (now := self._clock.monotonic()) < deadline:
                self._assign(now)
                # A request may be over at once, if the broker does not support it.
                self._requests = [request for request in self._requests if not request.is_over]
                if not self._requests:
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
        for known in (self._places, self._named_by):
            for key in list(known)[:-_MOST_COORDINATORS]:
                known.pop(key, None)  # an interrupt may have come between

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
        """Send what is due. Open connections and look up coordinators for the other requests."""
        sent = {id(request) for link in self._links for request in link.requests}
        waiting: dict[Address | None, list[ControlRequest]] = {}
        for request in self._requests:
            if request.is_over or request.due > now or id(request) in sent:
                continue
            place = request.address
            if request.coordinator is not None:
                place = self._places.get(request.coordinator)
                if place is None:
                    self._look_up(request.coordinator)
                    continue
            waiting.setdefault(place, []).append(request)
        for lookup in self._lookups.values():
            if lookup.due <= now and id(lookup) not in sent:
                waiting.setdefault(None, []).append(lookup)
        for place, requests in waiting.items():
            self._send(place, requests, now)

    def _look_up(self, key: CoordinatorKey) -> None:
        if key not in self._lookups:
            self._lookups[key] = FindRequest(key)
            self._lookups[key].delays = self._delays()

    def _send(self, place: Address | None, requests: list[ControlRequest], now: float) -> None:
        """Send *requests* to the broker at *place*, None: to any."""
        links = [link for link in self._links if place in (None, link.address)]
        for link in links:
            while requests and link.is_free:
                first = requests.pop(0)
                first.unsupported = _too_old(link, first)
                if first.unsupported is not None:
                    if isinstance(first, FindRequest):
                        self._looked_up(first)
                    continue
                most, together = link.most(first), [first]
                rest: list[ControlRequest] = []
                for request in requests:
                    fits = len(together) < most and _may_share(first, request)
                    (together if fits else rest).append(request)
                requests[:] = rest
                link.send(together)
        if not requests:
            return
        if place is None:
            self._try_next_server(now, requests)
            return
        wanted = 1 if requests[0].shared else min(_LINKS, len(requests))
        for _ in range(wanted - sum(not link.requests for link in links)):
            if sum(link.address == place for link in self._links) < _LINKS:
                self._open(place, requests, bootstrap=False)

    def _try_next_server(self, now: float, requests: list[ControlRequest]) -> None:
        """Connect to a bootstrap server; to one more after a while, as the first may be silent."""
        trying = sum(link.bootstrap and not link.was_ready for link in self._links)
        if now >= self._next_attempt and trying < len(self._config.bootstrap_servers):
            self._next_attempt = now + _PATIENCE
            self._open(next(self._servers), requests, bootstrap=True)

    def _open(self, place: Address, requests: list[ControlRequest], *, bootstrap: bool) -> None:
        try:
            link = Link(place, self._config, self._clock, self._network, bootstrap=bootstrap)
        except ConnectionFailed as error:
            for request in requests:
                self._judge(request, NO_ANSWER, str(error), written=False)
            return
        self._links.append(link)

    def _drop(self, link: Link) -> None:
        link.close()  # first: after an interrupt it is closed again
        if link in self._links:  # otherwise a signal handler has called close()
            self._links.remove(link)
        self._named_by = {key: each for key, each in self._named_by.items() if each is not link}

    # Waiting -------------------------------------------------------------------------------------

    def _wait(self, assigned: float, deadline: float) -> None:
        """Handle the events of the connections; without any, wait for one until *deadline*.

        *assigned*: the time for which requests were assigned to connections. A request that has
        become due since then ends the wait at once.
        """
        if self._poll():
            return
        due: float | None = deadline
        for request in chain(self._requests, self._lookups.values()):
            if request.due > assigned:
                due = earlier(due, request.due)
        if self._next_attempt > assigned:
            due = earlier(due, self._next_attempt)
        # The selector of a connection is only for a few descriptors.
        union = selectors.PollSelector()
        for link in self._links:
            due = earlier(due, link.next_deadline)
            link.watch(union)
        self._clock.select(union, due, lambda: None)

    def _poll(self) -> bool:
        """Handle the events of the connections; return whether there was any."""
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
        requests, link.requests = link.requests, ()
        try:
            codes = requests[0].decode(requests, event.version, event.payload, link.protocol)
        except WireError as error:
            self._drop(link)
            for request in requests:
                self._judge(request, NO_ANSWER, f"malformed response from the broker: {error}")
            return
        for request, code in zip(requests, codes, strict=True):
            if isinstance(request, FindRequest):
                self._named_by[request.key] = link
            self._judge(
                request, code, f"{ApiKey(request.api_key).name} returned {format_error_code(code)}"
            )

    def _lost(self, link: Link, event: Lost) -> None:
        requests = link.requests
        self._drop(link)
        reason = "no connection to {}:{}: {}".format(*link.address, event.reason)
        written = not event.unwritten
        others = [each for each in self._links if each.was_ready]
        if link.was_ready:
            if requests:  # their own backoff limits how often
                self._next_attempt = 0.0
        elif link.bootstrap and others:
            requests = ()  # they are busy, but may be free before the next attempt
        elif link.bootstrap:
            requests = [request for request in self._waiting() if _may_go_anywhere(request)]
            self._next_attempt = 0.0
        elif not any(each.address == link.address for each in others):
            requests = [
                request for request in self._waiting() if self._place(request) == link.address
            ]
        for request in requests:
            self._judge(request, NO_ANSWER, reason, written=written and link.was_ready)

    def _explain(self) -> None:
        """Set the reason of requests without one: which broker has not answered by the deadline."""
        for link in self._links:
            where = "{}:{}".format(*link.address)
            requests = link.requests if link.was_ready else self._requests
            for each in requests:
                reason = f"{ApiKey(each.api_key).name} was not answered by {where}"
                if not link.was_ready:
                    reason = f"{where} does not answer"
                found = [each]
                if isinstance(each, FindRequest):
                    found = [
                        request for request in self._requests if request.coordinator == each.key
                    ]
                for request in found:
                    request.reason = request.reason or reason

    def _waiting(self) -> Iterator[ControlRequest]:
        """Yield the requests that are due and not sent."""
        now = self._clock.monotonic()
        sent = {id(request) for link in self._links for request in link.requests}
        for request in chain(self._requests, [*self._lookups.values()]):
            if not request.is_over and request.due <= now and id(request) not in sent:
                yield request

    def _place(self, request: ControlRequest) -> Address | None:
        return (
            request.address
            if request.coordinator is None
            else self._places.get(request.coordinator)
        )

    # Results -------------------------------------------------------------------------------------

    def _judge(
        self, request: ControlRequest, code: int | None, reason: str, *, written: bool = True
    ) -> None:
        """Handle the answer *code*, None: none came for this *reason*."""
        now = self._clock.monotonic()
        found = request.judge(code, written=written)
        request.times[code] = request.times.get(code, 0) + 1
        if found.again:
            request.reason = reason
            request.due = now + request.delays.after(found.reaction, random.random())
            if found.reaction is Reaction.FIND and request.coordinator is not None:
                self._places.pop(request.coordinator, None)
                self._doubt(request.coordinator, request.times[code])
            elif isinstance(request, FindRequest) and code is not None:
                self._doubt(request.key, request.times[code])
            if now >= self._log_from and now >= self._logged.get(reason, now - _REPEAT) + _REPEAT:
                self._logged[reason] = now
                log.warning("%s; trying again", reason)
            if isinstance(request, FindRequest):
                for each in self._requests:
                    if each.coordinator == request.key:
                        each.reason = reason
            return
        request.found = found
        if isinstance(request, FindRequest):
            self._looked_up(request)

    def _doubt(self, key: CoordinatorKey, times: int) -> None:
        """Leave the broker whose answer about *key* was of no use, for the time number *times*.

        It may be cut off from the others, so the next lookup is for another broker, if there is
        one. Usually it only learns later than the others that a coordinator has moved.
        """
        link = self._named_by.pop(key, None)
        if times > _TOLERATED and link is not None and link.is_free:
            self._drop(link)

    def _looked_up(self, lookup: FindRequest) -> None:
        """Let the requests that wait for *lookup* continue, or end them with its error."""
        del self._lookups[lookup.key]
        if lookup.found is not None and lookup.found.reaction is Reaction.DONE:
            assert lookup.place is not None, "a coordinator has an address"
            self._places[lookup.key] = lookup.place
            return
        for request in self._requests:
            if request.coordinator == lookup.key:
                request.found, request.unsupported = lookup.found, lookup.unsupported


def _may_share(first: ControlRequest, other: ControlRequest) -> bool:
    if type(first) is not type(other):
        return False
    if isinstance(first, FindRequest) and isinstance(other, FindRequest):
        return first.key[0] is other.key[0]
    return first.shared


def _may_go_anywhere(request: ControlRequest) -> bool:
    return request.coordinator is None and request.address is None


def _too_old(link: Link, request: ControlRequest) -> str | None:
    reason = link.refuses(request)
    return None if reason is None else "the broker at {}:{}: {}".format(*link.address, reason)
