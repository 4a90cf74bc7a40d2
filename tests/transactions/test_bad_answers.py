"""Each error code of a coordinator that decides something: what the program gets, and can do then.

Every code passes through the whole producer, to a scripted coordinator. The table of the codes is
tested in ``tests/machines/test_coordination.py``, temporary codes in ``test_silent_coordinators``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._errors.formatting import format_error_code
from pykaproducer._util.clock import Clock
from pykaproducer._wire.messages import ApiKey
from pykaproducer.errors import TransactionError, UnsupportedFeatureError
from pykaproducer.testing import ScriptedCluster
from pykaproducer.testing.scripted import Drop, Exchange, Refuse, proceed
from tests._support.fixtures.cluster import FEATURES
from tests.machines.test_coordination import APIS, END_ABORT, END_COMMIT, NO_ANSWER, TABLE
from tests.pipeline.helper import SOON

from .bounds import PLACE, scripted_control
from .scripted_helper import (
    CALLS,
    IN_TRANSACTION,
    NAME,
    NAMES,
    NOT,
    POSSIBLY,
    UNDEFINED,
    assert_flags,
    assert_goes_on,
    assert_says,
    assert_successor_works,
    begun,
    error_of,
    producer_of,
    send_and_commit,
    send_offsets,
    type_of,
    values,
)

#: Codes that are about one partition, in an answer that has a code for each.
ABOUT_PARTITIONS = (12, 29)


def decided() -> Iterator[Any]:
    """Return ((request, code, letter, group), protocol) for the codes of the table that decide.

    *group*: the coordinator of a group is asked for, within a transaction.
    """
    for codes, row in TABLE:
        for api, reaction in zip(APIS, row, strict=True):
            for code in codes:
                if code is NO_ANSWER or reaction not in "AFU":
                    continue
                for protocol in NAMES[api][1]:
                    name, letter = f"{api.name}-{code}-{protocol}", reaction
                    if api == ApiKey.FIND_COORDINATOR:
                        within = "F" if letter == "U" else letter
                        of_group = (api, code, within, True)
                        yield pytest.param(of_group, protocol, id=f"{name}-group")
                        if code == 35:
                            continue  # test_brokers_that_are_too_old
                        if letter == "A" or 53 in codes:
                            letter = "U"  # nothing is open when it is asked for the first time
                    yield pytest.param((api, code, letter, False), protocol, id=name)


@pytest.mark.parametrize(("case", "protocol"), list(decided()), indirect=["protocol"])
def test_a_code_that_decides(
    scripted: ScriptedCluster, case: tuple[ApiKey, int, str, bool]
) -> None:
    api, code, letter, group = case
    if letter == "F" and code in (47, 90):
        letter = "fenced"
    call, name = send_offsets if group else CALLS[api], NAMES[api][0]
    in_transaction = group or api in IN_TRANSACTION
    with producer_of(scripted) as producer:
        if in_transaction:
            begun(producer)
        scripted.always(name, Refuse(code))
        error = error_of(lambda: call(producer))
        assert type_of(error) == letter
        assert error.outcome is (NOT if in_transaction else None)
        assert_says(error, api, code)
        if api == ApiKey.TXN_OFFSET_COMMIT and code in ABOUT_PARTITIONS:
            assert "for topic 't' partition 0" in str(error)
        elif group or (call is send_offsets and code not in (3, 55)):
            assert "for group 'readers'" in str(error)
        scripted.always(name, proceed)
        assert_goes_on(producer, letter)
    assert scripted.offsets("readers") == {}
    if letter in ("F", "fenced"):
        assert values(scripted) == []
        assert_successor_works(scripted)
    else:
        assert values(scripted) == [b"next"]


@pytest.mark.parametrize("protocol", ["TV1", "TV2"], indirect=True)
@pytest.mark.parametrize("api", APIS)
def test_every_other_code_is_fatal(protocol: str, api: ApiKey) -> None:
    """A code that is not in the table has a meaning that this client does not know."""
    if protocol not in NAMES[api][1]:
        return
    named = {code for codes, _ in TABLE for code in codes}
    for code in sorted({*ErrorCode, *UNDEFINED} - named):
        with (
            ScriptedCluster(topics={"t": 1}, features=FEATURES[protocol]) as scripted,
            producer_of(scripted) as producer,
        ):
            if api in IN_TRANSACTION:
                begun(producer)
            scripted.always(NAMES[api][0], Refuse(code))
            error = error_of(lambda: CALLS[api](producer))
            assert type_of(error) == "F", code
            assert f"{api.name} returned {format_error_code(code)}" in str(error)
            assert_flags(error)
            assert values(scripted) == []


# Ends --------------------------------------------------------------------------------------------


def assert_says_end(error: TransactionError, code: int) -> None:
    text = str(error)
    assert f"END_TXN returned {format_error_code(code)}" in text
    doubt = "it may have been committed: read the topics with isolation.level=read_committed"
    assert (doubt in text) is (error.outcome is POSSIBLY)
    assert_flags(error)


#: Codes that pass, but not forever; and the number of answers after which they are final.
FINAL_AFTER = {-1: 4, 59: 2, 120: 2}


@pytest.mark.parametrize("written", [False, True], ids=["first", "repeated"])
@pytest.mark.parametrize(
    "code", [code for code in (*END_COMMIT, 47, 49, 53, 90, 134) if code not in (NO_ANSWER, 0)]
)
def test_the_end_of_a_commit(scripted: ScriptedCluster, code: int, written: bool) -> None:
    """*written*: EndTxn was written before, and no answer to that has come."""
    letter, *outcomes = END_COMMIT.get(code, ("F", NOT, POSSIBLY))
    if code == -1:
        letter, outcomes = "F", [POSSIBLY, POSSIBLY]
    with producer_of(scripted) as producer:
        begun(producer)
        if written:
            scripted.next("end_txn", Drop())
        scripted.next("end_txn", *[Refuse(code)] * (4 if code == -1 else 1))
        if letter in "RCS":
            send_and_commit(producer)
            assert values(scripted) == [b"value"]
            assert_goes_on(producer, "")
            return
        error = error_of(lambda: send_and_commit(producer))
        assert type_of(error) == ("fenced" if code in (47, 90) else letter)
        assert error.outcome is outcomes[written]
        assert_says_end(error, code)
        assert_goes_on(producer, type_of(error))
    assert values(scripted) == ([b"next"] if letter == "A" else [])
    if letter == "F":
        assert_successor_works(scripted)


@pytest.mark.parametrize("code", sorted({*ErrorCode, *UNDEFINED} - {*END_COMMIT, 47, 49, 53, 90}))
def test_every_other_code_at_the_end_of_a_commit_is_fatal(
    scripted: ScriptedCluster, code: int
) -> None:
    with producer_of(scripted) as producer:
        begun(producer)
        scripted.next("end_txn", Refuse(code))
        error = error_of(lambda: send_and_commit(producer))
        assert (type_of(error), error.outcome) == ("F", NOT)
        assert_says_end(error, code)


@pytest.mark.parametrize(
    "code", [code for code in (*END_ABORT, 49, 53, 134) if code not in (NO_ANSWER, 0)]
)
def test_the_end_of_an_abort(scripted: ScriptedCluster, protocol: str, code: int) -> None:
    letter = END_ABORT.get(code, "FF")[protocol == "TV2"]
    with producer_of(scripted) as producer:
        begun(producer)
        producer.send("t", b"value", partition=0).result(SOON)
        # InitProducerId decides: the transaction has been aborted, so it gives the next epoch.
        answer = Refuse(code, appended=letter == "B")
        scripted.next("end_txn", *[answer] * FINAL_AFTER.get(code, 1))
        if letter == "F" or code in FINAL_AFTER:
            error = error_of(producer.abort_transaction)
            assert type_of(error) == ("fenced" if code in (47, 90) else "F")
            assert error.outcome is NOT
            assert_says_end(error, code)
            assert_goes_on(producer, type_of(error))
        else:
            # It is aborted at the second attempt, or by InitProducerId.
            producer.abort_transaction()
            assert values(scripted) == []
            assert_goes_on(producer, "")
            return
    assert values(scripted) == []
    assert_successor_works(scripted)


def test_a_producer_that_was_fenced_learns_it_at_the_abort(
    scripted: ScriptedCluster, protocol: str
) -> None:
    """With the first protocol only InitProducerId can tell."""
    with producer_of(scripted) as producer:
        begun(producer)
        producer.send("t", b"value", partition=0).result(SOON)
        assert_successor_works(scripted)
        error = error_of(producer.abort_transaction)
        assert type_of(error) == "fenced"
        request = "INIT_PRODUCER_ID" if protocol == "TV1" else "END_TXN"
        assert f"{request} returned PRODUCER_FENCED (90)" in str(error)
        assert_flags(error)
        assert_goes_on(producer, "fenced")


# Brokers that lack something ---------------------------------------------------------------------


def test_brokers_that_are_too_old(scripted: ScriptedCluster) -> None:
    """``test_control`` has brokers that lack versions of a request, or a request."""
    scripted.always("find_coordinator", Refuse(ErrorCode.UNSUPPORTED_VERSION))
    with producer_of(scripted) as producer:
        for _ in range(2):
            with pytest.raises(UnsupportedFeatureError, match="FIND_COORDINATOR") as raised:
                producer.init_transactions()
        text = str(raised.value)
        assert f"transactional id {NAME!r}: transactions need Kafka 2.5 or newer" in text
        assert text.endswith("upgrade the brokers, or remove transactional_id")


def lacking(exchange: Exchange) -> None:
    """Carry out nothing, and answer about nothing."""
    answer = exchange.refusal(0)
    for each in getattr(answer, "groups", [answer]):
        each.topics = []
    answer.transaction_states = []
    exchange.answer(answer)


@pytest.mark.parametrize("wait", [True, False])
def test_an_answer_without_the_partitions_of_the_offsets(
    scripted: ScriptedCluster, wait: bool
) -> None:
    """It is no success: the connection is lost, and the request is sent again."""
    with producer_of(scripted) as producer:
        begun(producer).send("t", b"value")
        scripted.next("txn_offset_commit", lacking)
        producer.send_offsets_to_transaction({PLACE: 7}, "group", wait=wait)
        producer.commit_transaction()
    assert scripted.offsets("group") == {("t", 0): 7}
    assert len(scripted.received("txn_offset_commit")) == 2


def test_answers_to_a_control_without_what_was_asked(scripted: ScriptedCluster) -> None:
    with producer_of(scripted) as producer:
        begun(producer).send("t", b"value")
        token = producer.prepare_transaction()
        for api in ("txn_offset_commit", "describe_transactions", "offset_fetch"):
            scripted.next(api, lacking)
        with scripted_control(scripted, Clock()) as control:  # type: ignore[arg-type]
            control.commit_offsets(token, {"group": {PLACE: 7}})
            assert control.describe([NAME])[NAME].state == "Ongoing"
            control.complete(token, commit=True)
            assert (
                control.offsets(["group"], {PLACE.topic: [PLACE.partition]})["group"][PLACE].offset
                == 7
            )
