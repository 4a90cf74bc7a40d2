"""Conversations of a raw client with a coordinator, and what Kafka 4.3 answers.

The client encodes with the codec of ``testing``, so no code of the library is between the test and
the broker. ``tests/testing`` holds the scripted brokers against these facts, and
``test_coordinators`` a real broker.

Answers are texts: the error code, the producer, and the base offset of a batch, as far as there are
any. ``"0 A1"`` is success, and epoch 1 of the first producer id.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from pykaproducer.testing._messages import InitProducerIdRequest
from pykaproducer.testing._transaction_messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    OffsetFetchRequest,
    TxnOffsetCommitRequest,
)
from tests.testing.helper import RawClient, produce_request
from tests.wire.helper import record_batch

#: How long a coordinator may take, in seconds; only a hang takes as long.
PATIENCE = 60.0
#: Temporary errors: the coordinator is loading, or markers are being written. To a client that does
#: not expect CONCURRENT_TRANSACTIONS from Produce, a broker returns NOT_ENOUGH_REPLICAS.
TEMPORARY = {3, 5, 6, 14, 15, 16, 19, 51}
#: The timeout of transactions that are to time out (milliseconds).
SHORT_MS = 1_000

#: A producer id and an epoch.
Producer = tuple[int, int]
NO_PRODUCER: Producer = (-1, -1)


@dataclass
class World:
    """A broker that coordinates everything, and a transactional id on it."""

    client: RawClient
    topic: str
    name: str
    #: The level of ``transaction.version``, at least 2 or not, as a protocol: 1 or 2.
    server: int
    #: The protocol that the client uses.
    protocol: int
    #: Ends the open transaction of the transactional id, as if its timeout had passed.
    expire: Callable[[World], object]
    #: Opens another connection to the broker.
    connect: Callable[[], RawClient]
    _letters: dict[int, str] = field(default_factory=dict)

    # Requests ----------------------------------------------------------------------------------

    def ask(self, request: Any, code: Callable[[Any], Iterable[int]], once: bool = False) -> Any:
        """Return the answer to *request*. Unless *once*, repeat it after temporary errors."""
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self.client.ask(request)
            if once or not TEMPORARY.intersection(code(answer)):
                return answer
            assert time.monotonic() < deadline, answer

    def _sender(self, producer: Producer, prefix: str = "") -> dict[str, Any]:
        """Return the fields that say whose request it is."""
        return {
            f"{prefix}transactional_id": self.name,
            f"{prefix}producer_id": producer[0],
            f"{prefix}producer_epoch": producer[1],
        }

    def find(self) -> None:
        """Wait until there are coordinators. The first request creates the topics of their logs."""
        for kind in (0, 1):
            request = FindCoordinatorRequest(version=5, key_type=kind, coordinator_keys=[self.name])
            self.ask(request, lambda answer: [answer.coordinators[0].error_code])

    def init(
        self,
        expected: Producer = NO_PRODUCER,
        *,
        version: int = 5,
        timeout_ms: int = 60_000,
        once: bool = False,
    ) -> Any:
        request = InitProducerIdRequest(
            version=version,
            transactional_id=self.name,
            transaction_timeout_ms=timeout_ms,
            producer_id=expected[0],
            producer_epoch=expected[1],
        )
        return self.ask(request, lambda answer: [answer.error_code], once)

    def begin(self, **more: Any) -> Producer:
        """Initialize, and return the producer."""
        answer = self.init(**more)
        assert answer.error_code == 0, answer
        return answer.producer_id, answer.producer_epoch

    def produce(
        self,
        producer: Producer,
        sequence: int = 0,
        *,
        version: int | None = None,
        partition: int = 0,
    ) -> str:
        batch = record_batch(
            b"value",
            producer_id=producer[0],
            epoch=producer[1],
            sequence=sequence,
            transactional=True,
        )
        request = produce_request(
            [(self.topic, partition, batch)],
            version=version or (12 if self.protocol == 2 else 11),
            transactional_id=self.name,
        )
        answer = self.ask(request, lambda answer: [_only(answer).error_code])
        found = _only(answer)
        return f"{found.error_code}" + (f" @{found.base_offset}" if not found.error_code else "")

    def add(self, producer: Producer, *partitions: int, version: int = 3, topic: str = "") -> Any:
        kind = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        request = AddPartitionsToTxnRequest(
            version=version,
            **self._sender(producer, "v3_and_below_"),
            v3_and_below_topics=[kind(name=topic or self.topic, partitions=list(partitions))],
        )

        def codes(answer: Any) -> list[int]:
            found = {
                each.partition_index: each.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for each in topic.results_by_partition
            }
            return [found[number] for number in sorted(found)]

        # UNKNOWN_TOPIC_OR_PARTITION is not temporary here.
        answer = self.ask(request, lambda answer: set(codes(answer)) - {3})
        return " ".join(map(str, codes(answer)))

    def add_group(self, producer: Producer, group: str, version: int = 4) -> str:
        request = AddOffsetsToTxnRequest(
            version=version,
            **self._sender(producer),
            group_id=group,
        )
        return str(self.ask(request, lambda answer: [answer.error_code]).error_code)

    def commit_offset(
        self,
        producer: Producer,
        group: str,
        offset: int = 7,
        *,
        version: int | None = None,
        partition: int = 0,
        topic: str = "",
        generation: int = -1,
        metadata: str = "m",
    ) -> str:
        kind = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        one = kind.TxnOffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=metadata
        )
        request = TxnOffsetCommitRequest(
            version=version or (5 if self.protocol == 2 else 4),
            group_id=group,
            **self._sender(producer),
            generation_id=generation,
            topics=[kind(name=topic or self.topic, partitions=[one])],
        )

        def code(answer: Any) -> int:
            return int(answer.topics[0].partitions[0].error_code)

        return str(code(self.ask(request, lambda answer: {code(answer)} - {3})))

    def offset(self, group: str, *, stable: bool = True) -> str:
        """Return the error code and the committed offset of the first partition."""
        kind = OffsetFetchRequest.OffsetFetchRequestGroup
        topics = [kind.OffsetFetchRequestTopics(name=self.topic, partition_indexes=[0])]
        request = OffsetFetchRequest(
            version=9, groups=[kind(group_id=group, topics=topics)], require_stable=stable
        )
        answer = self.ask(request, lambda answer: [answer.groups[0].error_code])
        (found,) = answer.groups[0].topics[0].partitions
        return f"{found.error_code} {found.committed_offset}"

    def end(
        self, producer: Producer, *, commit: bool, version: int | None = None, once: bool = False
    ) -> Any:
        request = EndTxnRequest(
            version=version or (5 if self.protocol == 2 else 4),
            **self._sender(producer),
            committed=commit,
        )
        return self.ask(request, lambda answer: [answer.error_code], once)

    def describe(self) -> Any:
        request = DescribeTransactionsRequest(version=0, transactional_ids=[self.name])
        answer = self.ask(request, lambda answer: [answer.transaction_states[0].error_code])
        return answer.transaction_states[0]

    def wait_for(self, state: str) -> None:
        """Wait until the markers of the last transaction are written."""
        deadline = time.monotonic() + PATIENCE
        while self.describe().transaction_state != state:
            assert time.monotonic() < deadline

    # A client of the protocol ------------------------------------------------------------------

    def write(self, producer: Producer, sequence: int = 0) -> str:
        """Write a batch as a client of the protocol does."""
        if self.protocol == 1:
            assert self.add(producer, 0) == "0"
        return self.produce(producer, sequence)

    def write_offset(self, producer: Producer, group: str, offset: int) -> str:
        if self.protocol == 1:
            assert self.add_group(producer, group) == "0"
        return self.commit_offset(producer, group, offset)

    def after(self, producer: Producer, answer: Any) -> Producer:
        """Return the producer of the next transaction, from the *answer* to EndTxn."""
        assert answer.error_code == 0, answer
        return (answer.producer_id, answer.producer_epoch) if self.protocol == 2 else producer

    # Answers -----------------------------------------------------------------------------------

    def text_of(self, answer: Any) -> str:
        """Return an answer with a code and a producer as a text."""
        if answer.producer_id < 0:
            return str(answer.error_code)
        letter = self._letters.setdefault(answer.producer_id, "ABCDE"[len(self._letters)])
        return f"{answer.error_code} {letter}{answer.producer_epoch}"

    def ended(self, producer: Producer, *, commit: bool, **more: Any) -> str:
        return self.text_of(self.end(producer, commit=commit, **more))

    def initialized(self, *expected: Producer, **more: Any) -> str:
        return self.text_of(self.init(*expected, **more))


Conversation = Callable[[World], list[str]]

#: The conversations, and their answers by the protocols of the server and of the client.
CONVERSATIONS: dict[Conversation, dict[tuple[int, int], list[str]]] = {}


def answered(
    *,
    first: list[str],
    second: list[str] | None = None,
    mixed: list[str] | None = None,
) -> Callable[[Conversation], Conversation]:
    """Add a conversation, with the answers that Kafka 4.3.1 has given.

    *first*: with the first protocol. *second*: with the second one. *mixed*: to a client of the
    first protocol on a server of the second. By default they are as the first.
    """

    def add(conversation: Conversation) -> Conversation:
        CONVERSATIONS[conversation] = {
            (1, 1): first,
            (2, 1): first if mixed is None else mixed,
            (2, 2): first if second is None else second,
        }
        return conversation

    return add


def _only(answer: Any) -> Any:
    ((found,),) = (topic.partition_responses for topic in answer.responses)
    return found


# Ends of transactions ---------------------------------------------------------------------------


@answered(
    first=["0 @0", "0", "0", "48", "CompleteCommit"],
    second=["0 @0", "0 A1", "0 A1", "48", "CompleteCommit"],
)
def a_commit_that_is_repeated(world: World) -> list[str]:
    return _end_that_is_repeated(world, commit=True)


@answered(
    first=["0 @0", "0", "0", "48", "CompleteAbort"],
    second=["0 @0", "0 A1", "0 A1", "48", "CompleteAbort"],
)
def an_abort_that_is_repeated(world: World) -> list[str]:
    return _end_that_is_repeated(world, commit=False)


def _end_that_is_repeated(world: World, *, commit: bool) -> list[str]:
    producer = world.begin()
    ends = (commit, commit, not commit)
    answers = [world.write(producer), *(world.ended(producer, commit=each) for each in ends)]
    return [*answers, world.describe().transaction_state]


@answered(first=["0 @0", "0", "0 A1", "90"], second=["0 @0", "0 A1", "0 A2", "90"])
def a_commit_that_is_repeated_after_the_next_producer(world: World) -> list[str]:
    producer = world.begin()
    answers = [world.write(producer), world.ended(producer, commit=True), world.initialized()]
    return [*answers, world.ended(producer, commit=True)]


@answered(first=["0 @0", "0", "CompleteCommit"], second=["0 @0", "0 A1", "CompleteCommit"])
def a_commit_from_another_connection(world: World) -> list[str]:
    """Only the transactional id, the producer id and the epoch count."""
    producer = world.begin()
    answers = [world.write(producer)]
    with world.connect() as other:
        other.client_id = "another"
        mine, world.client = world.client, other
        answers.append(world.ended(producer, commit=True))
        world.wait_for("CompleteCommit")
        world.client = mine
    return [*answers, world.describe().transaction_state]


@answered(
    first=["0 @0", "0", "0 @2", "0", "CompleteCommit"],
    second=["0 @0", "0 A1", "0 @2", "90", "Ongoing"],
)
def a_commit_that_is_repeated_in_the_next_transaction(world: World) -> list[str]:
    """With the first protocol it commits that one, as the epoch is the same."""
    producer = world.begin()
    answers = [world.write(producer)]
    answer = world.end(producer, commit=True)
    world.wait_for("CompleteCommit")
    answers.append(world.text_of(answer))
    answers.append(world.write(world.after(producer, answer), 2 - world.protocol))
    answers.append(world.ended(producer, commit=True))
    if world.protocol == 1:
        world.wait_for("CompleteCommit")
    return [*answers, world.describe().transaction_state]


@answered(
    first=["0 @0", "0", "0 @2", "0", "0 @4", "0"],
    second=["0 @0", "0 A1", "0 @2", "0 A2", "0 @4", "0 A3"],
)
def several_transactions(world: World) -> list[str]:
    producer, answers = world.begin(), []
    for serial, commit in enumerate((True, False, True)):
        # A new epoch begins at 0 again.
        answers.append(world.write(producer, 0 if world.protocol == 2 else serial))
        answer = world.end(producer, commit=commit)
        answers.append(world.text_of(answer))
        producer = world.after(producer, answer)
    return answers


@answered(first=["48", "48", "48", "48"], second=["48", "0 A1", "0 A1", "48"])
def an_end_without_anything(world: World) -> list[str]:
    producer = world.begin()
    return [world.ended(producer, commit=commit) for commit in (True, False, False, True)]


@answered(first=[], mixed=["0 @0", "0 A1", "0 @2"], second=["0 @0", "0", "0 @2"])
def an_end_of_the_other_protocol(world: World) -> list[str]:
    """Only a server of the second protocol knows both."""
    if world.server == 1:
        return []
    producer = world.begin()
    answers = [world.write(producer)]
    answer = world.end(producer, commit=True, version=4 if world.protocol == 2 else 5)
    world.wait_for("CompleteCommit")
    answers.append(world.text_of(answer))
    if answer.producer_id >= 0:
        producer = (answer.producer_id, answer.producer_epoch)
    return [*answers, world.write(producer, 1 if world.protocol == 2 else 0)]


# Fences -----------------------------------------------------------------------------------------


@answered(
    first=["0 @0", "CompleteAbort", "47", "90", "90", "47", "90"],
    mixed=["0 @0", "CompleteAbort", "47", "90", "90", "47", "0 A1"],
    second=["0 @0", "CompleteAbort", "47", "90", "48", "0 A1", "0 @2"],
)
def a_transaction_that_times_out(world: World) -> list[str]:
    producer = world.begin(timeout_ms=SHORT_MS)
    answers = [world.write(producer)]
    world.expire(world)
    answers += [world.describe().transaction_state, world.produce(producer, 1)]
    answers.append(world.add(producer, 0))
    answers.append(world.ended(producer, commit=True))
    if world.protocol == 1:
        answers.append(world.ended(producer, commit=True, version=1))
        answers.append(world.initialized(producer))
    else:
        answer = world.end(producer, commit=False)
        answers += [world.text_of(answer), world.write(world.after(producer, answer))]
    return answers


@answered(first=["0 @0", "51", "0 A2", "47", "90", "90", "90"])
def a_second_instance(world: World) -> list[str]:
    producer = world.begin()
    answers = [world.write(producer), world.initialized(once=True), world.initialized()]
    answers += [world.produce(producer, 1), world.ended(producer, commit=True)]
    return [*answers, world.ended(producer, commit=False), world.initialized(producer)]


@answered(first=["0 A1", "0 A1", "0 A2", "90", "0 A3"])
def the_same_instance_again(world: World) -> list[str]:
    producer = world.begin()
    first = [world.initialized(each) for each in (producer, producer, (producer[0], 1), producer)]
    return [*first, world.initialized()]


@answered(
    first=["0 @0", "51", "90", "CompleteAbort"],
    mixed=["0 @0", "51", "0 A1", "Empty"],
    second=["0 @0", "51", "0 A1", "Empty"],
)
def initialized_by_its_owner_while_open(world: World) -> list[str]:
    producer = world.begin()
    answers = [world.write(producer), world.initialized(producer, once=True)]
    return [*answers, world.initialized(producer), world.describe().transaction_state]


@answered(first=["0 A1", "90", "47", "90", "47", "90", "47", "90", "47"])
def codes_for_older_clients(world: World) -> list[str]:
    producer = world.begin()
    newer = world.init()
    answers = [world.text_of(newer), world.initialized(producer, version=4)]
    answers += [world.initialized(producer, version=3), world.add(producer, 0, version=3)]
    answers += [world.add(producer, 0, version=1), world.add_group(producer, "g")]
    answers.append(world.add_group(producer, "g", 1))
    answers += [world.ended(producer, commit=True, version=v) for v in (4, 1)]
    return answers


@answered(first=["49", "49", "49", "90", "90", "42", "42"])
def what_the_coordinator_does_not_know(world: World) -> list[str]:
    named = world.ended((5, 0), commit=True)
    producer = world.begin()
    answers = [named, world.ended((producer[0] + 999, 0), commit=True)]
    answers += [world.add((producer[0] + 999, 0), 0), world.add((producer[0], 7), 0)]
    answers.append(world.ended((producer[0], 7), commit=True))
    world.name = ""
    answers += [world.initialized(), world.ended(producer, commit=True)]
    return answers


@answered(first=["50", "0 A0", "50"])
def a_timeout_out_of_range(world: World) -> list[str]:
    timeouts = (900_001, 900_000, 0)
    return [world.initialized(timeout_ms=timeout) for timeout in timeouts]


# What is written --------------------------------------------------------------------------------


@answered(first=["120", "48", "55 3", "120", "0", "0 @0"])
def a_partition_that_was_not_added(world: World) -> list[str]:
    producer = world.begin()
    answers = [world.produce(producer, version=version) for version in (11, 9)]
    answers += [world.add(producer, 0, 99), world.produce(producer, version=11)]
    return [*answers, world.add(producer, 0), world.produce(producer, version=11)]


@answered(first=["0 @0", "0", "120", "48", "0 A1", "47"], second=["0 @0", "0 A1", "47"])
def a_late_batch(world: World) -> list[str]:
    producer = world.begin()
    answers = [world.write(producer), world.ended(producer, commit=True)]
    # Before the marker is written, a broker appends it to the transaction.
    world.wait_for("CompleteCommit")
    answers.append(world.produce(producer, 1))
    if world.protocol == 1:
        answers.append(world.produce(producer, 1, version=9))
        answers.append(world.initialized(producer))
        answers.append(world.produce(producer, 1))
    return answers


@answered(first=["0 @0", "0 A1", "45", "0 @2"])
def a_first_sequence_that_is_not_the_first(world: World) -> list[str]:
    producer = world.begin()
    answers = [world.write(producer)]
    answer = world.end(producer, commit=True)
    if world.protocol == 1:
        answer = world.init(producer)
    producer = (answer.producer_id, answer.producer_epoch)
    return [*answers, world.text_of(answer), world.write(producer, 5), world.write(producer, 0)]


@answered(first=["0 @0", "0 @1", "0 @1", "0 @0", "45"])
def batches_that_are_repeated_in_a_transaction(world: World) -> list[str]:
    producer = world.begin()
    return [world.write(producer, sequence) for sequence in (0, 1, 1, 0, 3)]


# Offsets ----------------------------------------------------------------------------------------


@answered(first=["0 -1", "0", "88 -1", "0 -1", "0 7", "0", "88 -1", "0 7", "0 7"])
def offsets_of_a_transaction(world: World) -> list[str]:
    producer, group = world.begin(), f"group-{world.name}"
    answers = [world.offset(group)]
    for offset, commit in ((7, True), (8, False)):
        answers += [world.write_offset(producer, group, offset), world.offset(group)]
        answers.append(world.offset(group, stable=False))
        answer = world.end(producer, commit=commit)
        producer = world.after(producer, answer)
        answers.append(_settled(world, group))
    return answers


def _settled(world: World, group: str) -> str:
    """Return the offset once no transaction is pending: markers are written a little later."""
    deadline = time.monotonic() + PATIENCE
    while (found := world.offset(group)).startswith("88"):
        assert time.monotonic() < deadline
    return found


@answered(first=["0 0", "0 1", "0 2", "0 2", "0 4", "0 5", "0 6", "0 6"])
def offsets_that_the_next_producer_reads(world: World) -> list[str]:
    """When InitProducerId is answered, the last transaction and its offsets are decided."""
    group, answers = f"group-{world.name}", []
    producer = world.begin()
    for number in range(8):
        world.write_offset(producer, group, number)
        if number % 4 != 3:
            world.end(producer, commit=True)
        producer = world.begin()
        answers.append(world.offset(group))
    return answers


@answered(first=["0", "0", "0", "0 5", "0 5"], second=["0", "0", "0 A1", "0 5", "0 5"])
def offsets_of_several_groups(world: World) -> list[str]:
    producer, groups = world.begin(), [f"{each}-{world.name}" for each in "ab"]
    answers = [world.write_offset(producer, group, 5) for group in groups]
    answers.append(world.ended(producer, commit=True))
    return answers + [_settled(world, group) for group in groups]


@answered(
    first=["120", "48", "0", "3", "12", "0", "25", "0", "22", "47", "49"],
    second=["3", "12", "0", "25", "22", "47", "49"],
)
def offsets_that_are_refused(world: World) -> list[str]:
    producer, group = world.begin(), f"refused-{world.name}"
    answers = []
    if world.protocol == 1:
        answers += [world.commit_offset(producer, group, version=version) for version in (4, 3)]
        answers.append(world.add_group(producer, group))
    answers.append(world.commit_offset(producer, group, partition=99))
    answers.append(world.commit_offset(producer, group, metadata="m" * 4097))
    answers.append(world.commit_offset(producer, group, metadata="m" * 4096))
    answers.append(world.commit_offset(producer, group, generation=3))
    if world.protocol == 1:
        answers.append(world.add_group(producer, f"{group}-2"))
    answers.append(world.commit_offset(producer, f"{group}-2", generation=3))
    answers.append(world.commit_offset((producer[0], 7), group))
    answers.append(world.commit_offset((producer[0] + 999, 0), group))
    return answers


@answered(first=["105", "Empty 60000 []", "Ongoing 60000 ['True [0]']", "CompleteCommit 60000 []"])
def what_is_described(world: World) -> list[str]:
    answers = [str(world.describe().error_code)]
    producer = world.begin()
    for step in range(3):
        if step == 1:
            world.write(producer)
        if step == 2:
            world.end(producer, commit=True)
            world.wait_for("CompleteCommit")
        found = world.describe()
        places = [f"{each.topic == world.topic} {each.partitions}" for each in found.topics]
        answers.append(f"{found.transaction_state} {found.transaction_timeout_ms} {places}")
    return answers
