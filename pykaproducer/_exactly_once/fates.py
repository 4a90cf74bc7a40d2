"""Ends the transactions that a decision lists, and finds out how they have ended."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._exactly_once import points
from pykaproducer._exactly_once.errors import ExactlyOnceError
from pykaproducer._exactly_once.names import Names
from pykaproducer._exactly_once.records import Decision, TaskToken
from pykaproducer._exactly_once.setup import Setup
from pykaproducer._exactly_once.state import SinkState
from pykaproducer._kernel import monotonic
from pykaproducer.transaction_control import Ended, EndState, TransactionControl
from pykaproducer.transactions import PreparedTransaction

#: The error codes of EndTxn that mean that the transaction is not open any more.
ENDED_BEFORE = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
    }
)
#: How long the first attempt to end transactions waits for coordinators (seconds). Each further
#: attempt waits twice as long. Thus one that does not respond does not make the transactions of
#: the others time out.
_PATIENCE = 5.0
#: The shortest timeout of an attempt (seconds).
_LEAST = 1.0


class Fate(enum.Enum):
    """The end of a task's transaction. It is final."""

    COMMITTED = "committed"
    LOST = "lost"


def commit_decided(
    decision: Decision, setup: Setup, control: TransactionControl, state: SinkState
) -> dict[int, Fate]:
    """Commit the transactions of *decision*, and return the fate of each, by task.

    Any process may repeat this: a committed transaction stays committed. All are tried, even if
    some are lost.

    Args:
        decision: committed before.
        setup: coordinators that do not respond are tried for its ``timeout_ms``.
        control: ends the transactions.
        state: for the markers of transactions whose end their coordinators do not know any more.

    Raises:
        ExactlyOnceError: a coordinator did not respond for as long as transactions can be open, or
            refused to end one.
        TransactionError, TransactionTimeoutError: the markers could not be read.
    """
    ends = _end(decision.tokens, setup, control)
    unsure = {token: end for token, end in ends.items() if end.state is EndState.UNSURE}
    open_ones = [token for token, end in unsure.items() if end.code not in ENDED_BEFORE]
    if open_ones:
        tasks = tasks_text([each.task for each in open_ones])
        raise ExactlyOnceError(
            f"{setup.what(decision.key)} is to be committed, but coordinators did not confirm the "
            f"commit of {tasks} ({unsure[open_ones[0]].reason}). {setup.once_more(decision.key)}: "
            f"that completes it. Until then readers may see a part of it"
        )
    # ABORTED: the transaction timed out before.
    fates = {
        token.task: Fate.COMMITTED if end.state is EndState.COMMITTED else Fate.LOST
        for token, end in ends.items()
        if token not in unsure
    }
    return fates | _by_markers(decision, unsure, state)


def _end(
    tokens: Sequence[TaskToken], setup: Setup, control: TransactionControl
) -> dict[TaskToken, Ended]:
    """Commit *tokens*; repeat it for those whose coordinators do not respond."""
    ends: dict[TaskToken, Ended] = {}
    deadline, patience = monotonic() + setup.timeout_ms / 1000, _PATIENCE
    while tokens:
        for start in range(0, len(tokens), setup.ended_at_once):
            some = tokens[start : start + setup.ended_at_once]
            left = max(deadline - monotonic(), _LEAST)
            ended = control.complete_all(
                [prepared(each, setup.names) for each in some],
                commit=True,
                timeout=min(patience, left),
            )
            ends.update(zip(some, ended, strict=True))
            points.reached("ended", len(ends))
        if monotonic() >= deadline:
            break
        tokens = [
            each
            for each in tokens
            if ends[each].state is EndState.UNSURE and ends[each].code is None
        ]
        patience *= 2
    return ends


def _by_markers(
    decision: Decision, tokens: Iterable[TaskToken], state: SinkState
) -> dict[int, Fate]:
    """Return the fates of *tokens* that their coordinators do not know any more.

    Their markers show whether they were committed. They are read without waiting for open
    transactions: a replay of the same task may have left one open that contains the marker as well,
    and that this process itself has to end. What is read is nevertheless final:

    1. The transactional id has been initialized again, or the transaction has timed out: otherwise
       its coordinator would know the token.
    2. Before the coordinator initialized the id, it ended the transaction of the token, and wrote
       that to all partitions of the transaction, also to the one that stores the group's offsets.
    3. The group's coordinator applied the end before it confirmed the write.
    """
    tokens = list(tokens)
    found = state.markers([each.task for each in tokens], decision.partitions, stable=False)
    return {
        token.task: Fate.COMMITTED
        if token.task in found and found[token.task].is_of(token)
        else Fate.LOST
        for token in tokens
    }


def prepared(token: TaskToken, names: Names) -> PreparedTransaction:
    """Return the transaction of *token*, for :class:`TransactionControl`."""
    task, attempt, producer_id, epoch, protocol = token
    return PreparedTransaction(names.task(task, attempt), producer_id, epoch, protocol)


def of_fate(fates: Mapping[int, Fate], fate: Fate) -> list[int]:
    """Return the tasks with this *fate*, in order."""
    return sorted(task for task, found in fates.items() if found is fate)


def tasks_text(tasks: Sequence[int], most: int = 10) -> str:
    """Return *tasks* as text for errors, with the numbers of the first *most*."""
    shown = ", ".join(str(task) for task in tasks[:most])
    more = f" and {len(tasks) - most} more" if len(tasks) > most else ""
    return f"task{'s' if len(tasks) > 1 else ''} {shown}{more}"
