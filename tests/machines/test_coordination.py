"""The meaning of each error code in the answer of a coordinator: the table of the contract."""

from __future__ import annotations

import itertools

import pytest

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._machines.coordination import (
    NO_ANSWER,
    TV1,
    TV2,
    CommitOutcome,
    Coordination,
    Delays,
    Ending,
    Reaction,
    coordinate,
    coordinate_all,
)
from pykaproducer._wire.messages import ApiKey

_FIND = ApiKey.FIND_COORDINATOR
_INIT = ApiKey.INIT_PRODUCER_ID
_PARTITIONS = ApiKey.ADD_PARTITIONS_TO_TXN
_OFFSETS = ApiKey.ADD_OFFSETS_TO_TXN
_COMMIT = ApiKey.TXN_OFFSET_COMMIT
APIS = [_FIND, _INIT, _PARTITIONS, _OFFSETS, _COMMIT]

LETTERS = {
    "0": Reaction.DONE,
    "R": Reaction.RETRY,
    "C": Reaction.FIND,
    "S": Reaction.SOON,
    "A": Reaction.ABORTABLE,
    "F": Reaction.FATAL,
    "U": Reaction.UNINITIALIZED,
    "B": Reaction.RENEW,
}

#: Codes, and the reactions to FindCoordinator in a transaction, InitProducerId,
#: AddPartitionsToTxn, AddOffsetsToTxn and TxnOffsetCommit.
TABLE: list[tuple[list[int | None], str]] = [
    ([0], "00000"),
    ([NO_ANSWER], "RCCCC"),
    ([14, 13], "RRRRR"),
    ([7], "RRRRC"),
    ([15, 16], "RCCCC"),
    ([51], "FSSSS"),
    ([3], "FFRFR"),
    ([47], "FFFFA"),
    ([90, 49, 48], "FFFFF"),
    ([59, 120], "AUAAA"),
    ([53], "FUFFF"),
    ([31, 50, 42], "FUFFF"),
    ([29, 55], "FFAFA"),
    ([30], "AFFAA"),
    ([22, 25, 27, 82, 113], "FFFFA"),
    ([12, 28], "FFFFA"),
    ([35, 43, -1], "FFFFF"),
]

UNHEARD_OF = [134, 999, -2, 32767, -32768]


@pytest.mark.parametrize("api", APIS)
def test_each_code_of_each_request(api: ApiKey) -> None:
    named = {code: row for codes, row in TABLE for code in codes}
    for code in [NO_ANSWER, *ErrorCode, *UNHEARD_OF]:
        letter = named.get(code, "FFFFF")[APIS.index(api)]
        found = coordinate(api, code)
        assert (found.reaction, found.api_key, found.code) == (LETTERS[letter], api, code)
        assert found.fenced is (letter == "F" and code in (47, 90))
        assert found.again is (letter in "RCS")
        assert found.outcome is None


@pytest.mark.parametrize("code", [*ErrorCode, *UNHEARD_OF])
def test_the_coordinator_may_be_refused_while_initializing(code: int) -> None:
    """Nothing is open, so that ``init_transactions()`` may be called again."""
    found = coordinate(_FIND, code, initializing=True).reaction
    in_transaction = coordinate(_FIND, code).reaction
    if in_transaction is Reaction.ABORTABLE or code == 53:
        assert found is Reaction.UNINITIALIZED
    else:
        assert found is in_transaction


def test_an_unknown_partition_is_waited_for_until_the_deadline_of_the_call() -> None:
    assert coordinate(_COMMIT, 3).again
    assert coordinate(_COMMIT, 3, late=True).reaction is Reaction.ABORTABLE
    for code in ErrorCode:
        if code != 3:
            assert coordinate(_COMMIT, code, late=True) == coordinate(_COMMIT, code)
    assert coordinate_all(_COMMIT, [3, 0], late=True).reaction is Reaction.ABORTABLE


# EndTxn -----------------------------------------------------------------------------------------

NOT, POSSIBLY, COMMITTED = (
    CommitOutcome.NOT_COMMITTED,
    CommitOutcome.POSSIBLY_COMMITTED,
    CommitOutcome.COMMITTED,
)

#: Code -> the reaction, and the outcome when EndTxn(commit) is written for the first time, and
#: when it was written before without an answer.
END_COMMIT: dict[int | None, tuple[str, CommitOutcome | None, CommitOutcome | None]] = {
    0: ("0", COMMITTED, COMMITTED),
    NO_ANSWER: ("C", None, None),
    14: ("R", None, None),
    13: ("R", None, None),
    7: ("R", None, None),
    -1: ("R", None, None),
    15: ("C", None, None),
    16: ("C", None, None),
    51: ("S", None, None),
    48: ("A", NOT, NOT),
    59: ("A", NOT, POSSIBLY),
    120: ("A", NOT, POSSIBLY),
}


@pytest.mark.parametrize("protocol", [TV1, TV2])
@pytest.mark.parametrize("unconfirmed", [False, True])
@pytest.mark.parametrize("code", [NO_ANSWER, *ErrorCode, *UNHEARD_OF])
def test_what_is_known_after_a_commit(code: int | None, unconfirmed: bool, protocol: int) -> None:
    letter, first, again = END_COMMIT.get(code, ("F", NOT, POSSIBLY))
    found = coordinate(ApiKey.END_TXN, code, ending=Ending(True, protocol, unconfirmed))
    assert (found.reaction, found.outcome) == (LETTERS[letter], again if unconfirmed else first)
    assert found.unconfirmed is (code in (NO_ANSWER, 7, -1, 14, 15, 16))
    assert found.fenced is (code in (47, 90))


def test_a_commit_that_was_not_written_leaves_nothing_in_doubt() -> None:
    found = coordinate(ApiKey.END_TXN, NO_ANSWER, ending=Ending(True, TV2), written=False)
    assert not found.unconfirmed
    assert found.again


END_ABORT: dict[int | None, str] = {
    0: "00",
    NO_ANSWER: "CC",
    14: "RR",
    13: "RR",
    7: "RR",
    -1: "RR",
    15: "CC",
    16: "CC",
    51: "SS",
    59: "RR",
    120: "RR",
    47: "BF",
    90: "BF",
    48: "BF",
}


@pytest.mark.parametrize("code", [NO_ANSWER, *ErrorCode, *UNHEARD_OF])
def test_what_happens_after_an_abort(code: int | None) -> None:
    for protocol, letter in zip((TV1, TV2), END_ABORT.get(code, "FF"), strict=True):
        found = coordinate(ApiKey.END_TXN, code, ending=Ending(False, protocol))
        assert found.reaction is LETTERS[letter]
        assert found.outcome is (None if letter in "RCS" else NOT)
        assert found.fenced is (letter == "F" and code in (47, 90))


@pytest.mark.parametrize("protocol", [TV1, TV2])
def test_nothing_to_abort_after_a_commit_in_doubt_decides_nothing(protocol: int) -> None:
    """Nothing may be open because the commit succeeded."""
    for code in (48, 47, 90):
        found = coordinate(ApiKey.END_TXN, code, ending=Ending(False, protocol, True))
        assert (found.reaction, found.outcome) == (Reaction.FATAL, POSSIBLY)


@pytest.mark.parametrize(
    ("commit", "code", "most"),
    [(True, -1, 3), (False, -1, 3), (False, 120, 1), (False, 59, 1)],
)
def test_what_is_retried_a_few_times_is_fatal_then(commit: bool, code: int, most: int) -> None:
    for times, protocol in itertools.product(range(most + 2), (TV1, TV2)):
        found = coordinate(ApiKey.END_TXN, code, ending=Ending(commit, protocol), times=times)
        assert found.reaction is (Reaction.RETRY if times < most else Reaction.FATAL)
        if times >= most:
            # The coordinator failed while it handled the request, nobody knows where.
            assert found.outcome is (POSSIBLY if commit else NOT)


def test_the_coordinator_of_an_abort_is_not_given_up_at_once() -> None:
    aborting = Ending(False, TV2)
    assert coordinate(_FIND, 120, ending=aborting).reaction is Reaction.RETRY
    assert coordinate(_FIND, 120, ending=aborting, times=1).reaction is Reaction.FATAL
    doubt = coordinate(_FIND, 53, ending=Ending(True, TV2, True))
    assert (doubt.reaction, doubt.outcome) == (Reaction.FATAL, POSSIBLY)


# Answers with a code for each partition ---------------------------------------------------------


@pytest.mark.parametrize(
    ("codes", "reaction", "code"),
    [
        ([], Reaction.DONE, 0),
        ([0, 0], Reaction.DONE, 0),
        ([0, 51], Reaction.SOON, 51),
        ([55, 3], Reaction.RETRY, 3),  # the others are attempted when that one is known
        ([55, 29, 3], Reaction.ABORTABLE, 29),
        ([55, 0], Reaction.ABORTABLE, 55),
        ([14, 16], Reaction.FIND, 16),
        ([29, 53, 0], Reaction.FATAL, 53),
    ],
)
def test_the_gravest_code_of_an_answer_prevails(
    codes: list[int], reaction: Reaction, code: int
) -> None:
    for order in itertools.permutations(codes):
        found = coordinate_all(_PARTITIONS, order)
        assert (found.reaction, found.code) == (reaction, code)


def test_when_the_next_attempt_is_due() -> None:
    delays = Delays(0.1, 1.0)
    soon = [delays.after(Reaction.SOON, 0.5) for _ in range(7)]
    assert soon == [0.001, 0.002, 0.004, 0.008, 0.016, 0.02, 0.02]
    assert [delays.after(Reaction.FIND, 0.5) for _ in range(3)] == [0.0, 0.1, 0.2]
    assert delays.after(Reaction.RETRY, 0.5) == 0.4
    for _ in range(5):
        assert delays.after(Reaction.RETRY, 0.5) <= 1.0
    delays.reset()
    assert delays.after(Reaction.SOON, 0.5) == 0.001
    assert delays.after(Reaction.FIND, 0.5) == 0.0
    assert delays.after(Reaction.RETRY, 0.5) == 0.1


def test_a_table_needs_to_know_what_is_ended() -> None:
    with pytest.raises(AssertionError):
        coordinate(ApiKey.END_TXN, 0)
    assert isinstance(coordinate(ApiKey.END_TXN, 0, ending=Ending(True, TV1)), Coordination)
