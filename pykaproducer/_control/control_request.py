"""The base class of the requests of ``TransactionControl``, and FindCoordinator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from pykaproducer._machines.coordination import Coordination, Delays
from pykaproducer._machines.coordinator_queries import query_reaction
from pykaproducer._machines.session import LAST_VERSION
from pykaproducer._wire.messages import ApiKey
from pykaproducer._wire.transactions import (
    CoordinatorKind,
    decode_find_coordinator,
    find_coordinator_request,
)

#: A host and a port.
Address = tuple[str, int]
#: The kind of a coordinator, and the name for which it is looked up.
CoordinatorKey = tuple[CoordinatorKind, str]

#: The maximum number of ids or groups in one request.
_MOST = 500


class RequestHeader(NamedTuple):
    """The parts of a request's header that its sender chooses."""

    version: int
    correlation_id: int
    client_id: str | None


class ControlRequest:
    """A request for one id, one group or one broker. Several may be sent as one request of Kafka's.

    :class:`~pykaproducer._control.exchange.ControlExchange` sends it, and retries it after
    temporary errors. It is over when :attr:`found` or :attr:`unsupported` is set.
    """

    api_key: ClassVar[int]
    #: Whether requests of this class to the same broker may be sent as one.
    shared: ClassVar[bool] = False
    #: The versions in which it may be sent.
    at_least = 0
    at_most = LAST_VERSION

    def __init__(
        self, about: str, coordinator: CoordinatorKey | None = None, address: Address | None = None
    ) -> None:
        """*about*: for errors. Without *coordinator* and *address* any broker may answer."""
        self.about = about
        self.coordinator = coordinator
        self.address = address
        #: The result, None while the request is to be sent or retried.
        self.found: Coordination | None = None
        #: Why the broker cannot handle it, None if it can.
        self.unsupported: str | None = None
        #: The reason for the last retry.
        self.reason = ""
        #: When it is to be sent (monotonic seconds).
        self.due = 0.0
        #: How often it was answered with each code.
        self.times: dict[int | None, int] = {}
        self.delays = Delays(0.0, 0.0)

    def versions(self, protocol: int) -> tuple[int, int]:
        """Return the versions for a broker whose cluster has this transaction *protocol*."""
        return self.at_least, self.at_most

    @property
    def is_over(self) -> bool:
        """Whether it has a result."""
        return self.found is not None or self.unsupported is not None

    def most(self, version: int) -> int:
        """Return how many requests may be sent as one in *version*."""
        return _MOST if self.shared else 1

    def encode(self, requests: Sequence[ControlRequest], header: RequestHeader) -> bytes:
        """Encode *requests*, of which this is the first one, as one framed request."""
        raise AssertionError(f"{type(self).__name__} does not implement encode()")

    def decode(
        self, requests: Sequence[ControlRequest], version: int, payload: bytes, protocol: int
    ) -> Sequence[int]:
        """Store the results of *requests*, and return a code for each. Raises WireError.

        *payload* is the answer, *protocol* the transaction protocol of the broker's cluster.
        """
        raise AssertionError(f"{type(self).__name__} does not implement decode()")

    def judge(self, code: int | None, *, written: bool) -> Coordination:
        """Return how to handle *code*; None: no answer, and *written* says if it was written."""
        return query_reaction(self.api_key, code)


class FindRequest(ControlRequest):
    """FindCoordinator, for one id or group."""

    api_key = ApiKey.FIND_COORDINATOR
    shared = True

    def __init__(self, key: CoordinatorKey) -> None:
        super().__init__("FindCoordinator")
        self.key = key
        #: The result.
        self.place: Address | None = None

    def most(self, version: int) -> int:
        return _MOST if version >= 4 else 1

    def encode(self, requests: Sequence[ControlRequest], header: RequestHeader) -> bytes:
        kind, names = self.key[0], [name for _, name in _keys(requests)]
        return find_coordinator_request(*header, kind, names)

    def decode(
        self, requests: Sequence[ControlRequest], version: int, payload: bytes, protocol: int
    ) -> Sequence[int]:
        names = [name for _, name in _keys(requests)]
        found = decode_find_coordinator(version, payload, names).coordinators
        for request, each in zip(requests, found, strict=True):
            assert isinstance(request, FindRequest), "only such requests are sent as one"
            request.place = each.address.host, each.address.port
        return [each.error_code for each in found]


def _keys(requests: Sequence[ControlRequest]) -> list[CoordinatorKey]:
    return [request.key for request in requests if isinstance(request, FindRequest)]
