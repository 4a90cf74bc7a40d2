"""The options of an exactly-once write, and the check of the last decision."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from pykaproducer._exactly_once.errors import PrefixInUseError, StateMismatchError
from pykaproducer._exactly_once.names import Names
from pykaproducer._exactly_once.records import BatchKey, Decision


class WriteKind(enum.Enum):
    """The kind of a write, which determines how its batches are numbered."""

    #: A streaming query. The numbers of its micro-batches have no gaps.
    STREAM = "stream"
    #: ``write()`` in ``foreachBatch``. The program may leave micro-batches out.
    NUMBERED = "numbered"
    #: A batch write. Its only batch has the number 0.
    SINGLE = "single"


class OnPartialCommit(enum.Enum):
    """What to do if a part of a batch is visible, and its replay cannot complete it."""

    #: Raise PartialCommitError.
    FAIL = "fail"
    #: Write all rows of the replay. Those that were visible are then duplicated.
    DUPLICATE = "duplicate"
    #: Consider the batch written. The other rows are lost.
    SKIP = "skip"


@dataclass(frozen=True)
class Setup:
    """The options of an exactly-once write."""

    names: Names
    kind: WriteKind
    #: ``transaction.timeout.ms`` of the tasks (milliseconds).
    timeout_ms: int
    #: Whether brokers may create the state topic if it does not exist, because rows are written to
    #: it.
    may_create_state_topic: bool = True
    #: Whether a stream may begin although Kafka has no state of the batch before.
    start_without_state: bool = False
    on_partial_commit: OnPartialCommit = OnPartialCommit.FAIL
    #: The timeout of each call of the driver, and of each read of the state (seconds). It is longer
    #: than the timeout of the driver's transactions: a read may have to wait for the end of one
    #: that a dead driver has left open.
    call_timeout: float = 30.0
    #: The size of a group of transactions that the driver ends at the same time.
    ended_at_once: int = 256

    def what(self, key: BatchKey) -> str:
        """Return what is written, for errors."""
        return "the write" if self.kind is WriteKind.SINGLE else f"batch {key.batch}"

    def once_more(self, key: BatchKey) -> str:
        """Return the sentence that asks the user to repeat the batch, without its full stop."""
        if self.kind is WriteKind.SINGLE:
            return f"Start it again with writeId {key.query!r}"
        return "Run the query again"


def check_decision(
    setup: Setup, key: BatchKey, last: Decision | None, elsewhere: Mapping[str, BatchKey]
) -> None:
    """Check whether the batch *key* may be written after the decision *last*.

    *elsewhere* are the last batches that were decided with the prefix and other state topics. Two
    queries with one prefix abort each other's transactions, also if they have two state topics.

    Raises:
        PrefixInUseError: *last* is of another query, or one of *elsewhere* is.
        StateMismatchError: *last* is of a later batch, or there are batches missing in between.
    """
    if setup.kind is WriteKind.SINGLE:
        return
    prefix = setup.names.prefix
    used = dict(elsewhere)
    if last is not None:
        used[setup.names.state_topic] = last.key
    for topic, used_by in used.items():
        if used_by.query not in (key.query, ""):
            raise PrefixInUseError(
                f"transactionalIdPrefix {prefix!r} is used by query {used_by.query!r} (state topic "
                f"{topic!r}), this is query {key.query!r}: choose another prefix. (A query whose "
                f"checkpoint was deleted gets another id.)"
            )
    if last is not None and last.key.batch > key.batch:
        raise StateMismatchError(
            f"the checkpoint is older than Kafka: batch {key.batch} is to be written, but batch "
            f"{last.key.batch} has been committed with transactionalIdPrefix {prefix!r}. Restore "
            f"the newer checkpoint, or choose another prefix and accept duplicates"
        )
    gap = key.batch > (0 if last is None else last.key.batch + 1)
    if gap and setup.kind is WriteKind.STREAM and not setup.start_without_state:
        if last is None and elsewhere:
            before = max(elsewhere, key=lambda topic: elsewhere[topic].batch)
            raise StateMismatchError(
                f"the state of transactionalIdPrefix {prefix!r} belongs to topic {before!r}, but "
                f"the state topic is {setup.names.state_topic!r}. By default it is the topic that "
                f"is written to; if you have changed that, set stateTopic to {before!r}"
            )
        found = "no state of any batch" if last is None else f"only that of batch {last.key.batch}"
        raise StateMismatchError(
            f"the state of transactionalIdPrefix {prefix!r} is gone: batch {key.batch} is to be "
            f"written, and Kafka has {found}. Brokers delete offsets of groups after "
            f"offsets.retention.minutes. If batch {key.batch - 1} was written completely, and "
            f"nothing of batch {key.batch} (the query may have died after it had written it), set "
            f"startWithoutState to true for one start"
        )
