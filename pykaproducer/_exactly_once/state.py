"""The state of a write in Kafka, read and written with :class:`TransactionControl`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._errors.formatting import format_error_code
from pykaproducer._exactly_once.errors import ExactlyOnceError, StateMismatchError
from pykaproducer._exactly_once.names import Names, by_group
from pykaproducer._exactly_once.records import BatchKey, Decision, Extent, Marker, StateError
from pykaproducer._net.inspect import list_cluster
from pykaproducer._util.clock import Clock, held_lock
from pykaproducer.config import Config
from pykaproducer.delivery import TopicPartition
from pykaproducer.transaction_control import CommittedOffset, TransactionControl
from pykaproducer.transactions import PreparedTransaction

#: How many times to read a decision that is replaced during the read; see
#: :meth:`SinkState.decision`.
_READS = 5
#: How long brokers may take to create the state topic, and how often to look for it (seconds).
_CREATION, _LOOKS_AGAIN = 10.0, 0.1


class SinkState:
    """The decision and the markers of a write.

    Reads are stable (KIP-447): while an open transaction contains an offset that is read, the read
    waits. So a decision or a marker that is about to be committed is not missed.
    """

    def __init__(self, control: TransactionControl, names: Names, timeout: float) -> None:
        """Read and write with *control*; each of its calls takes at most *timeout* seconds."""
        self._control = control
        self._names = names
        self._timeout = timeout

    def decision(self, *, stable: bool = True) -> Decision | None:
        """Return the last decision; None if there is none. *stable*: as of :meth:`markers`.

        The pieces of a decision may not fit together although none is damaged:

        1. This process reads the first piece, which says how many there are.
        2. Another driver commits its decision, which replaces all pieces.
        3. This process reads the other pieces. They are those of the new decision.

        Its CRC shows that. The decision is then read again.

        Raises:
            StateMismatchError: it is damaged, or of a newer version.
            TransactionError, TransactionTimeoutError: as of ``TransactionControl.offsets()``.
        """
        for _ in range(_READS - 1):
            with contextlib.suppress(StateError):
                return self._read_decision(stable)
        try:
            return self._read_decision(stable)
        except StateError as error:
            raise self._damaged(self._names.decision(0, 1)[0], error) from None

    def _read_decision(self, stable: bool) -> Decision | None:
        place = self._names.decision(0, 1)
        first = self._read([place], stable).get(place)
        if first is None:
            return None
        extent = Extent.of(first)
        others = [
            self._names.decision(piece, extent.partitions) for piece in range(1, extent.pieces)
        ]
        found = self._read(others, stable)
        return Decision.of([first, *(found.get(each, "") for each in others)])

    def elsewhere(self) -> dict[str, BatchKey]:
        """Return the last batch that was decided with each other state topic, by topic.

        The prefix is to be used by one query in the whole cluster, but its state is found only by
        the state topic, which is by default the topic that is written to.

        Raises:
            TransactionError, TransactionTimeoutError: as of ``TransactionControl.offsets()``.
        """
        group, own = self._names.decision(0, 1)
        stored = self._control.offsets([group], stable=False, timeout=self._timeout)[group]
        found = {}
        for place, each in stored.items():
            if place.topic != own.topic and place.partition == own.partition:
                with contextlib.suppress(StateError):  # of another program
                    found[place.topic] = Extent.of(each.metadata).key
        return found

    def _damaged(self, group: str, error: StateError) -> StateMismatchError:
        return StateMismatchError(
            f"group {group!r}: {error}. If another program has committed offsets with this group, "
            f"choose another transactionalIdPrefix"
        )

    def markers(
        self, tasks: Iterable[int], partitions: int, *, stable: bool = True
    ) -> dict[int, Marker]:
        """Return the last committed marker of each of *tasks*, without tasks that have none.

        Args:
            tasks: their numbers.
            partitions: of the state topic, when the markers were written.
            stable: whether to wait for open transactions that have one of these markers.

        Raises:
            StateMismatchError: a marker is damaged, or of a newer version.
            TransactionError, TransactionTimeoutError: as of ``TransactionControl.offsets()``.
        """
        places = {self._names.marker(task, partitions): task for task in tasks}
        found = {}
        for (group, partition), text in self._read(places, stable).items():
            try:
                found[places[group, partition]] = Marker.of(text)
            except StateError as error:
                raise self._damaged(group, error) from None
        return found

    def decide(self, session: PreparedTransaction, decision: Decision) -> None:
        """Write *decision* in the transaction *session*. The caller commits the transaction.

        Raises:
            TransactionError, TransactionTimeoutError: as of
                ``TransactionControl.commit_offsets()``.
        """
        offsets: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        for piece, text in enumerate(decision.pieces()):
            group, place = self._names.decision(piece, decision.partitions)
            offsets.setdefault(group, {})[place] = _item(decision.key.batch, text)
        self._control.commit_offsets(session, offsets, timeout=self._timeout)

    def _read(
        self, places: Iterable[tuple[str, TopicPartition]], stable: bool = True
    ) -> dict[tuple[str, TopicPartition], str]:
        found = {}
        for group, partitions in by_group(places).items():
            stored = self._control.offsets([group], partitions, stable, timeout=self._timeout)
            found.update({(group, place): each.metadata for place, each in stored[group].items()})
        return found


def partitions_of_state_topic(
    config: Config, topic: str, timeout: float, *, create: bool = False
) -> int:
    """Return the number of partitions of the state topic.

    *create*: brokers that create topics on demand may create it. That takes a moment.

    Raises:
        ExactlyOnceError: it does not exist, or the brokers do not describe it.
        KafkaTimeoutError: there was no response within *timeout* seconds.
    """
    clock, pause = Clock(), held_lock()
    deadline = clock.monotonic() + (min(timeout, _CREATION) if create else 0)
    while True:
        described = list_cluster(config, timeout, topic, create=create).topics
        found = next((each for each in described if each.name == topic), None)
        if found is not None and found.partitions:
            return len(found.partitions)
        if clock.monotonic() >= deadline:
            break
        clock.acquire(pause, clock.monotonic() + _LOOKS_AGAIN)
    if found is not None and found.error_code not in (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        raise ExactlyOnceError(
            f"option stateTopic: the brokers do not describe topic {topic!r}: "
            f"{format_error_code(found.error_code)}"
        )
    raise ExactlyOnceError(
        f"option stateTopic: topic {topic!r} does not exist"
        + (", and the brokers do not create it" if create else "")
        + ". Create it, or set the option to an existing topic; nothing is written to it"
    )


def marker_offsets(marker: Marker, place: TopicPartition) -> dict[TopicPartition, CommittedOffset]:
    """Return the offset to be committed in a task's transaction: *marker* at *place*."""
    return {place: _item(marker.key.batch, str(marker))}


def _item(batch: int, text: str) -> CommittedOffset:
    # Only the text is read. The offset is for users, who see it in kafka-consumer-groups.sh.
    return CommittedOffset(batch + 1, -1, text)
