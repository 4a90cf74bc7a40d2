"""End, inspect and fence transactions that other producers have begun.

A producer leaves a transaction to others with ``prepare_transaction()``.
:class:`TransactionControl` ends such transactions, in any process, and does what an administrator
needs: list the transactions of a cluster, describe them, and abort those whose program is gone.
``docs/transactions.rst`` is the guide.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, NoReturn, Self, Unpack

from pykaproducer._control.arguments import (
    flag_of,
    name_of,
    names_of,
    places_of,
    session_of,
    text_of,
    token_of,
    tokens_of,
)
from pykaproducer._control.control_request import Address, ControlRequest
from pykaproducer._control.exchange import ControlExchange
from pykaproducer._control.refusals import error_of, refused, why_unsure
from pykaproducer._control.requests import (
    AddGroupRequest,
    BrokersRequest,
    CommitRequest,
    DescribeRequest,
    EndRequest,
    FenceRequest,
    FetchRequest,
    InitRequest,
    ListRequest,
)
from pykaproducer._errors.codes import ErrorCode
from pykaproducer._machines.coordination import TV1, CommitOutcome
from pykaproducer._machines.sequencing import ProducerId
from pykaproducer._net.networks import network_for
from pykaproducer._net.transport import Network
from pykaproducer._util.clock import Clock, in_seconds
from pykaproducer._util.group_offsets import group_metadata, group_offsets
from pykaproducer._wire.messages import ApiKey
from pykaproducer._wire.transaction_queries import CommittedOffset as CommittedOffset
from pykaproducer._wire.transaction_queries import ListedTransaction as ListedTransaction
from pykaproducer._wire.transaction_queries import TransactionDescription as TransactionDescription
from pykaproducer.config import Config, resolve
from pykaproducer.delivery import TopicPartition
from pykaproducer.errors import (
    ProducerClosedError,
    TransactionStateError,
)
from pykaproducer.settings import ProducerSettings
from pykaproducer.transactions import PreparedTransaction

#: The states of an open transaction.
OPEN_STATES = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})

#: How long to wait for a broker's list before looking up the brokers again (seconds).
_REFRESH_AFTER = 2.0


class EndState(enum.Enum):
    """The end of a transaction, as far as it is known."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    #: It may have been committed or aborted before, or may still be open.
    UNSURE = "unsure"


class Ended(NamedTuple):
    """The result of :meth:`TransactionControl.complete`."""

    state: EndState
    #: UNSURE: the error code of the coordinator. None: no conclusive answer came within the
    #: timeout; repeat the same call to find out.
    code: int | None = None
    #: UNSURE: the reason.
    reason: str = ""


class TransactionControl:
    """Ends, inspects and fences transactions of other producers.

    Takes the settings of a producer that concern connections; others have no effect. It connects
    when it is used, and has no threads: use it in one thread, and close it, or use it in a ``with``
    statement.

    Each call takes a *timeout* in seconds; None: ``max_block_ms``. Within it, temporary errors are
    retried. Only a resolver or a token provider that blocks can take longer. All calls raise:

    * TransactionTimeoutError: there was no answer in time; the text has the last reason. It may be
      called again.
    * TransactionError: a coordinator refused it, for example for lack of a right. The error is also
      kafka-python's class for the ``code``.
    * UnsupportedFeatureError: a broker is too old.
    """

    # Tests replace them.
    _clock: Clock = Clock()
    _network_type: Callable[[Config], Network] = staticmethod(network_for)

    def __init__(self, **settings: Unpack[ProducerSettings]) -> None:
        self.config = Config.from_kwargs(settings)
        self._exchange = ControlExchange(self.config, self._clock, self._network_type(self.config))
        # The calls that are under way. Only the first one goes on.
        self._calls: dict[object, None] = {}
        self._process = os.getpid()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a TransactionControl cannot be pickled; make one where it is used")

    def close(self) -> None:
        """Close the connections. In a forked child they stay open, as they are the parent's."""
        self._closed = True
        if os.getpid() == self._process:
            self._exchange.close()

    # Ending --------------------------------------------------------------------------------------

    def complete(
        self, prepared: PreparedTransaction, commit: bool, *, timeout: float | None = None
    ) -> Ended:
        """Commit or abort a prepared transaction.

        It may be repeated: COMMITTED stays COMMITTED until another client calls
        ``init_transactions()`` with the id. If the coordinator refuses it or does not answer, the
        result is UNSURE, and nothing is raised: see :class:`Ended`.

        Args:
            prepared: returned by ``prepare_transaction()`` or by :meth:`initialize`.
            commit (bool): whether to commit it.
            timeout (float): seconds.
        """
        tokens = [token_of(prepared, "prepared")]
        (ended,) = self._complete("complete()", tokens, commit, timeout)
        return ended

    def complete_all(
        self,
        prepared: Iterable[PreparedTransaction],
        commit: bool,
        *,
        timeout: float | None = None,
    ) -> list[Ended]:
        """Commit or abort prepared transactions, several at a time. Return the results in order.

        All are tried, also if one fails. They are separate transactions: one may be committed, and
        another one not. The arguments are as in :meth:`complete`.
        """
        return self._complete("complete_all()", tokens_of(prepared), commit, timeout)

    def _complete(
        self, call: str, tokens: Sequence[PreparedTransaction], commit: bool, timeout: float | None
    ) -> list[Ended]:
        commit = flag_of(commit, "commit")
        requests = [
            None if empty else EndRequest(tid, ProducerId(pid, epoch), protocol, commit)
            for tid, pid, epoch, protocol, empty in tokens
        ]
        self._run(call, [request for request in requests if request is not None], timeout)
        nothing = Ended(EndState.COMMITTED if commit else EndState.ABORTED)
        return [nothing if request is None else _ended(request) for request in requests]

    def initialize(
        self, transactional_id: str, timeout_ms: int, *, timeout: float | None = None
    ) -> PreparedTransaction:
        """Take the id over, as ``init_transactions()`` does, for a transaction of offsets only.

        Producers that have the id are fenced. A transaction that was committed before is complete
        when this returns, and an open one is aborted.

        Args:
            transactional_id (str): the id.
            timeout_ms (int): the time after which the coordinator aborts the transaction.
            timeout (float): seconds.

        Returns:
            PreparedTransaction: for :meth:`commit_offsets` and :meth:`complete`. With nothing
            committed in it, an attempt to commit it returns ABORTED.
        """
        name = name_of(transactional_id, "transactional_id")
        checked = resolve({"transactional_id": name, "transaction_timeout_ms": timeout_ms})
        request = InitRequest(checked["transactional_id"], int(checked["transaction_timeout_ms"]))
        self._finish("initialize()", [request], timeout)
        pid, epoch = request.producer.producer_id, request.producer.epoch
        return PreparedTransaction(request.transactional_id, pid, epoch, request.protocol)

    def commit_offsets(
        self,
        session: PreparedTransaction,
        offsets: Mapping[str, object],
        *,
        timeout: float | None = None,
    ) -> None:
        """Commit offsets of groups within a transaction, which :meth:`complete` then ends.

        Args:
            session: returned by :meth:`initialize`.
            offsets: group -> offsets, both as in ``send_offsets_to_transaction()``.
            timeout (float): seconds, for all groups.

        Raises:
            ProducerFencedError: another producer has taken over the id.
            TypeError, ValueError: *offsets* are something else.
        """
        tid, pid, epoch, protocol, _ = session_of(session)
        if not isinstance(offsets, Mapping):
            raise TypeError(
                f"offsets must be a dict {{group: offsets}}, not {type(offsets).__name__}"
            )
        producer = ProducerId(pid, epoch)
        asked = [(group_metadata(group), group_offsets(each)) for group, each in offsets.items()]
        deadline = self._deadline(timeout)
        for group, each in asked:
            # One after the other: a coordinator refuses a second request for the same id.
            if each and protocol == TV1:
                added = AddGroupRequest(tid, producer, group.group_id)
                self._finish("commit_offsets()", [added], timeout, deadline)
            if each:
                request = CommitRequest(tid, producer, protocol, group, each)
                self._finish("commit_offsets()", [request], timeout, deadline)

    def fence(
        self, transactional_ids: Iterable[str], *, timeout: float | None = None
    ) -> tuple[str, ...]:
        """Abort the open transactions of these ids, and fence their producers.

        Ids without an open transaction, and ids that no coordinator knows, are left alone.

        Returns:
            tuple: the ids whose transactions are aborted. If the brokers cannot write that for a
            second, for example because a partition has no leader, they may do so later.
        """
        deadline = self._deadline(timeout)
        described = self._describe("fence()", transactional_ids, timeout, deadline)
        forbidden = [each for each in described.values() if each.error_code == _NOT_ALLOWED]
        if forbidden:
            name = forbidden[0].transactional_id
            about, api_key = f"transactional id {name!r}", ApiKey.DESCRIBE_TRANSACTIONS
            raise refused("fence()", about, api_key, _NOT_ALLOWED, name)
        open_ones = [each for each in described.values() if each.state == "Ongoing"]
        requests = [FenceRequest(each.transactional_id, each.timeout_ms) for each in open_ones]
        self._finish("fence()", requests, timeout, deadline)
        return tuple(each.transactional_id for each in open_ones)

    # Inspecting ----------------------------------------------------------------------------------

    def describe(
        self, transactional_ids: Iterable[str], *, timeout: float | None = None
    ) -> dict[str, TransactionDescription]:
        """Return the state of each transactional id.

        An id that its coordinator does not know has the ``error_code`` 105, and one for which a
        right is missing (Describe) 53. They are not raised.
        """
        return self._describe("describe()", transactional_ids, timeout, self._deadline(timeout))

    def list(
        self,
        prefix: str = "",
        states: Collection[str] = (),
        *,
        timeout: float | None = None,
    ) -> tuple[ListedTransaction, ...]:
        """Return the transactional ids that the brokers know, ordered by name.

        The brokers leave out ids for which the right Describe is missing.

        Args:
            prefix (str): only ids that begin with it.
            states: only those in one of these states, as ``Ongoing``; empty: all.
            timeout (float): seconds.

        Raises:
            ValueError: the brokers do not know one of the *states*.
        """
        prefix = text_of(prefix, "prefix")
        states = names_of(states, "state", "Ongoing")
        deadline = self._deadline(timeout)
        known: dict[Address, ListRequest] = {}
        while True:
            brokers = BrokersRequest()
            self._run("list()", [brokers], timeout, deadline)
            if brokers.is_over or not known:
                self._check("list()", brokers, timeout)
                places = [(each.host, each.port) for each in brokers.brokers]
                known = {at: known.get(at) or ListRequest(at, prefix, states) for at in places}
            requests = [*known.values()]
            missing = [request for request in requests if not request.is_over]
            # A broker that does not answer may be dead, and the cluster notice it a little later.
            until = self._clock.monotonic() + _REFRESH_AFTER
            self._run("list()", missing, timeout, min(deadline, until))
            if all(request.is_over for request in missing) or self._clock.monotonic() >= deadline:
                break
        for request in requests:
            self._check("list()", request, timeout)
        # A broker of another version may know fewer states.
        unknown = [{*request.unknown_states} for request in requests]
        if unknown and (common := set.intersection(*unknown)):
            wrong = ", ".join(sorted(common))
            raise ValueError(f"unknown states of transactions: {wrong}; one of Kafka's is Ongoing")
        # While a coordinator moves, both brokers may list an id.
        found = {
            each.transactional_id: each for request in requests for each in request.transactions
        }
        return tuple(found[name] for name in sorted(found))

    def offsets(
        self,
        groups: Iterable[str],
        topics: Collection[str] | Mapping[str, Collection[int]] | None = None,
        stable: bool = True,
        *,
        timeout: float | None = None,
    ) -> dict[str, dict[TopicPartition, CommittedOffset]]:
        """Return the committed offsets of groups, without partitions that have none.

        Args:
            groups: the names of the groups.
            topics: only these topics, or topic -> only these partitions; None: all. A partition
                for which the group has never committed an offset is only waited for if it is
                named.
            stable (bool): whether to wait for open transactions that have offsets of the group.
            timeout (float): seconds.
        """
        names, places = places_of(topics)
        groups = names_of(groups, "group", "orders")
        stable = flag_of(stable, "stable")
        requests = [FetchRequest(each, names, places, stable=stable) for each in groups]
        self._finish("offsets()", requests, timeout)
        return {
            request.group: {
                TopicPartition(*place): each
                for place, each in sorted(request.offsets.items())
                if each.offset >= 0
            }
            for request in requests
        }

    # Requests ------------------------------------------------------------------------------------

    def _deadline(self, timeout: float | None) -> float:
        given = self._clock.after(timeout)
        return self._clock.monotonic() + self.config.max_block_ms / 1000 if given is None else given

    def _describe(
        self, call: str, transactional_ids: Iterable[str], timeout: float | None, deadline: float
    ) -> dict[str, TransactionDescription]:
        names = names_of(transactional_ids, "transactional id", "orders-0")
        requests = [DescribeRequest(each) for each in names]
        self._run(call, requests, timeout, deadline)
        for request in requests:
            if (
                request.description is None
                and request.found is not None
                and request.found.code == _NOT_ALLOWED
            ):
                request.description = TransactionDescription(
                    _NOT_ALLOWED, request.transactional_id, "", 0, -1, -1, -1, ()
                )
            else:
                self._check(call, request, timeout)
        return {
            request.transactional_id: request.description
            for request in requests
            if request.description is not None
        }

    def _finish(
        self,
        call: str,
        requests: Sequence[ControlRequest],
        timeout: float | None,
        deadline: float | None = None,
    ) -> None:
        """Send *requests*, and raise the first error."""
        self._run(call, requests, timeout, deadline)
        for request in requests:
            self._check(call, request, timeout)

    def _run(
        self,
        call: str,
        requests: Sequence[ControlRequest],
        timeout: float | None,
        deadline: float | None = None,
    ) -> None:
        if self._closed:
            raise ProducerClosedError(f"{call}: the TransactionControl is closed; make a new one")
        if os.getpid() != self._process:
            raise TransactionStateError(
                f"{call}: this TransactionControl was made in the parent process; make one here"
            )
        # No lock: an interrupt between acquire() and `try` would leave it locked.
        this = object()
        try:
            self._calls[this] = None
            calls = [*self._calls]  # a copy: other threads add theirs
            if calls[0] is not this:
                raise TransactionStateError(
                    f"{call}: another thread is using this TransactionControl; make one for each "
                    f"thread"
                )
            self._exchange.run(requests, self._deadline(timeout) if deadline is None else deadline)
        finally:
            self._calls.pop(this, None)
        if self._closed:
            raise ProducerClosedError(f"{call}: the TransactionControl was closed during the call")

    def _check(self, call: str, request: ControlRequest, timeout: float | None) -> None:
        """Raise unless *request* has succeeded."""
        given = in_seconds(timeout)
        seconds = self.config.max_block_ms / 1000 if given is None else given
        error = error_of(call, request, seconds)
        if error is not None:
            raise error


_NOT_ALLOWED = int(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


def _ended(request: EndRequest) -> Ended:
    if request.outcome is CommitOutcome.COMMITTED:
        return Ended(EndState.COMMITTED)
    if request.outcome is CommitOutcome.NOT_COMMITTED:
        return Ended(EndState.ABORTED)
    if request.unsupported is not None:
        return Ended(EndState.UNSURE, int(ErrorCode.UNSUPPORTED_VERSION), request.unsupported)
    if request.found is None:
        return Ended(EndState.UNSURE, None, request.reason or "there was no answer in time")
    code = request.found.code
    assert code is not None, "the lack of an answer is temporary"
    return Ended(EndState.UNSURE, code, why_unsure(request.found.api_key, code))
