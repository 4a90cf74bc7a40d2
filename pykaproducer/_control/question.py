"""Something to be asked: a request, or a part of one, until it is answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

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

#: The most ids or groups in one request.
_MOST = 500


class Question:
    """A request, or a part of one that several questions share.

    :class:`~pykaproducer._control.exchange.ControlExchange` sends it, and repeats it after
    temporary errors. It is over when :attr:`found` or :attr:`unsupported` is set.
    """

    api_key: ClassVar[int]
    #: Whether questions of this class for the same broker may share a request.
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
        #: The result: not to be repeated.
        self.found: Coordination | None = None
        #: Why the broker cannot be asked.
        self.unsupported: str | None = None
        #: The last reason for which it was repeated.
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
        """Return how many questions may share a request of *version*."""
        return _MOST if self.shared else 1

    def encode(
        self, asks: Sequence[Question], version: int, correlation_id: int, client_id: str | None
    ) -> bytes:
        """Return the request for *asks*, of which this is the first one."""
        raise AssertionError(f"{type(self).__name__} does not implement encode()")

    def decode(
        self, asks: Sequence[Question], version: int, payload: bytes, protocol: int
    ) -> Sequence[int]:
        """Take the results of *asks* from the answer; return a code for each. Raises WireError.

        *protocol*: the transaction protocol of the broker's cluster.
        """
        raise AssertionError(f"{type(self).__name__} does not implement decode()")

    def judge(self, code: int | None, *, written: bool) -> Coordination:
        """Return how to handle *code*; None: no answer, and *written* says if it was written."""
        return query_reaction(self.api_key, code)


class FindQuestion(Question):
    """Asks for the address of a coordinator."""

    api_key = ApiKey.FIND_COORDINATOR
    shared = True

    def __init__(self, key: CoordinatorKey) -> None:
        super().__init__("FindCoordinator")
        self.key = key
        #: The result.
        self.place: Address | None = None

    def most(self, version: int) -> int:
        return _MOST if version >= 4 else 1

    def encode(
        self, asks: Sequence[Question], version: int, correlation_id: int, client_id: str | None
    ) -> bytes:
        kind, names = self.key[0], [name for _, name in _keys(asks)]
        return find_coordinator_request(version, correlation_id, client_id, kind, names)

    def decode(
        self, asks: Sequence[Question], version: int, payload: bytes, protocol: int
    ) -> Sequence[int]:
        names = [name for _, name in _keys(asks)]
        found = decode_find_coordinator(version, payload, names).coordinators
        for ask, each in zip(asks, found, strict=True):
            assert isinstance(ask, FindQuestion), "only such questions share a request"
            ask.place = each.address.host, each.address.port
        return [each.error_code for each in found]


def _keys(asks: Sequence[Question]) -> list[CoordinatorKey]:
    return [ask.key for ask in asks if isinstance(ask, FindQuestion)]
