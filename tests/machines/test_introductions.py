"""When the first Produce requests of a transaction of the second protocol may be written."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pykaproducer._machines.coordination import TV1, TV2
from pykaproducer._machines.introduction_hold import IntroductionHold
from pykaproducer._machines.introduction_turn import IntroductionTurn
from pykaproducer._machines.transaction_effects import (
    EndHold,
    LeaveCoordinator,
    SendDescribeTransactions,
    SendEndTxn,
    SendFindCoordinator,
    SendInitProducerId,
)
from pykaproducer._machines.transaction_states import TransactionState as S

from .transaction_helper import Driver, at

FAST, SLOW = 0.003, 0.025

# The hold: guesses --------------------------------------------------------------------------------


def transact(hold: IntroductionHold, now: float, *answers: bool, took: float = FAST) -> float:
    """End a transaction at *now*, answer the questions, and return when the next one may write.

    *took*: the time of its first Produce. Each question is answered at once.
    """
    hold.ended(now)
    for complete in answers:
        assert hold.ask_at is not None
        at = hold.ask_at
        hold.asks()
        hold.answered(at, complete=complete)
    not_before = hold.not_before
    hold.observed(took)
    return not_before


def asking() -> IntroductionHold:
    hold = IntroductionHold()
    for _ in range(4):
        assert hold.guesses
        hold.observed(SLOW)
    assert not hold.guesses
    return hold


def test_it_guesses_first() -> None:
    hold = IntroductionHold()
    hold.observed(FAST)
    assert hold.seconds == 0.0
    found = []
    for _ in range(3):
        hold.observed(0.018)
        found.append(hold.seconds)
    assert found == [0.001, 0.002, 0.004]
    hold.ended(5.0)
    assert (hold.not_before, hold.ask_at) == (5.004, None)
    for _ in range(100):
        hold.observed(FAST)
    assert hold.seconds == 0.0
    assert hold.guesses


def test_it_asks_when_guesses_do_not_help() -> None:
    hold = asking()
    hold.ended(5.0)
    assert hold.not_before == pytest.approx(5.02)
    assert hold.ask_at == pytest.approx(5.001)


# The hold: questions ------------------------------------------------------------------------------


def test_it_asks_until_the_transaction_has_ended() -> None:
    hold = asking()
    hold.ended(0.0)
    asked = []
    for _ in range(12):
        assert hold.ask_at is not None
        now = hold.ask_at
        asked.append(round(now * 1000, 1))
        hold.asks()
        assert hold.ask_at is None
        hold.answered(now, complete=False)
        assert hold.not_before == pytest.approx(min(now + 0.02, 0.1))
    assert asked == [1, 2, 3, 4, 5, 6.2, 7.8, 9.8, 12.2, 15.3, 19.1, 23.8]
    hold.asks()
    hold.answered(0.03, complete=True)
    assert (hold.not_before, hold.ask_at) == (0.03, None)


def test_all_questions_together_take_a_tenth_of_a_second() -> None:
    hold = asking()
    hold.ended(0.0)
    while hold.ask_at is not None and hold.ask_at < hold.not_before:
        now = hold.ask_at
        hold.asks()
        hold.answered(now, complete=False)
    assert hold.not_before == pytest.approx(0.1)


def test_an_answer_that_is_late_changes_nothing() -> None:
    hold = asking()
    hold.ended(0.0)
    hold.asks()
    hold.answered(0.021, complete=True)
    assert (hold.not_before, hold.ask_at) == (0.02, None)
    hold.ended(1.0)
    hold.asks()
    hold.answered(1.021, complete=False)
    assert (hold.not_before, hold.ask_at) == (1.02, None)


def test_it_guesses_again_if_no_transaction_had_to_be_asked_about_twice() -> None:
    hold = asking()
    for number in range(8):
        assert not hold.guesses
        transact(hold, float(number), True)
    assert hold.guesses
    hold.ended(8.0)
    assert (hold.not_before, hold.ask_at) == (8.0, None)


def test_it_goes_on_asking_if_that_is_needed_now_and_then() -> None:
    hold = asking()
    for number in range(7):
        transact(hold, float(number), True)
    transact(hold, 7.0, False, True)
    for number in range(8, 15):
        transact(hold, float(number), True)
        assert not hold.guesses


def test_nothing_waits_after_a_question_was_refused() -> None:
    hold = asking()
    hold.ended(0.0)
    hold.asks()
    hold.refused(0.001)
    assert (hold.not_before, hold.ask_at) == (0.001, None)
    assert_rests(hold)


def test_a_refusal_that_is_late_does_not_hold_anything_up() -> None:
    hold = asking()
    hold.ended(0.0)
    hold.asks()
    hold.refused(0.5)
    assert hold.not_before == 0.02


def assert_rests(hold: IntroductionHold) -> None:
    """Check that it neither guesses nor asks for a while, and then begins again."""
    for _ in range(100):
        assert transact(hold, 50.0, took=SLOW) == 50.0
        assert (hold.seconds, hold.guesses) == (0.0, True)
    transact(hold, 50.0, took=SLOW)
    assert hold.seconds == 0.001


def test_it_gives_up_if_no_answer_is_in_time() -> None:
    """The brokers are far away."""
    hold = asking()
    for number in range(5):
        assert not hold.guesses
        hold.ended(float(number))
        hold.asks()
        hold.answered(number + 0.04, complete=True)
        hold.observed(0.06)
    assert hold.guesses
    assert_rests(hold)


def test_an_answer_in_time_ends_a_series_of_late_ones() -> None:
    hold = asking()
    for number in range(20):
        hold.ended(float(number))
        hold.asks()
        hold.answered(number + 0.04, complete=True)
        hold.observed(0.06)
        if number % 4 == 3:
            transact(hold, number + 0.5, False, True)
        assert not hold.guesses


def test_what_is_slow_depends_on_what_is_usual() -> None:
    """Brokers that take 12 ms without any retry need no hold."""
    hold = asking()
    for number in range(100):
        transact(hold, float(number), False, True, took=0.012)
    for number in range(8):
        transact(hold, float(number), True, took=0.012)
    assert hold.guesses
    transact(hold, 200.0, took=0.029)
    assert hold.seconds == 0.0
    transact(hold, 201.0, took=0.031)
    assert hold.seconds == 0.001


# Turns --------------------------------------------------------------------------------------------


def test_one_broker_at_a_time_adds_partitions() -> None:
    turn = IntroductionTurn()
    assert turn.take("a", 0.0) is None
    turn.sent("a")
    assert turn.take("b", 0.001) == 0.02
    assert turn.take("c", 0.002) == 0.02
    assert turn.take("a", 0.003) is None, "its connection keeps the order"
    assert set(turn.reported("a")) == {"b", "c"}
    assert turn.take("c", 0.004) is None
    assert turn.take("b", 0.004) == pytest.approx(0.024)
    turn.sent("c")
    assert set(turn.reported("c")) == {"b"}
    assert turn.take("b", 0.005) is None
    turn.sent("b")
    assert not turn.reported("b")


def test_a_turn_ends_with_the_last_request_that_has_used_it() -> None:
    turn = IntroductionTurn()
    for _ in range(2):
        assert turn.take("a", 0.0) is None
        turn.sent("a")
    assert turn.take("b", 0.001) is not None
    assert not turn.reported("a")
    assert turn.take("b", 0.002) is not None
    assert turn.reported("a") == ["b"]


@pytest.mark.parametrize("sent", [False, True])
def test_a_turn_ends_after_20_ms(sent: bool) -> None:
    """The request is not answered, or none was sent as there was no memory for a batch."""
    turn = IntroductionTurn()
    turn.take("a", 0.0)
    if sent:
        turn.sent("a")
    assert turn.take("b", 0.019) == 0.02
    assert turn.take("b", 0.02) is None
    turn.sent("b")
    if sent:
        assert not turn.reported("a"), "it does not end the turn of another one"
    assert turn.take("c", 0.021) == pytest.approx(0.04)
    assert turn.reported("b") == ["c"]


def test_a_broker_may_take_its_turn_again() -> None:
    turn = IntroductionTurn()
    turn.take("a", 0.0)
    assert turn.take("a", 0.03) is None
    assert turn.take("b", 0.03) == 0.05


def test_a_broker_waits_for_a_tenth_of_a_second_however_many_have_a_turn() -> None:
    turn = IntroductionTurn()
    turn.take(0, 0.0)
    now, waited_for = 0.0, 0
    while (until := turn.take("last", now)) is not None:
        assert until <= 0.1
        now, waited_for = until, waited_for + 1
        if now < 0.1:
            assert turn.take(waited_for, now) is None, "it is faster"
    assert now == pytest.approx(0.1)


# The machine --------------------------------------------------------------------------------------


def asks(driver: Driver) -> Driver:
    """Let *driver*, at the end of a transaction, ask about it."""
    driver.machine.hold.guesses = False
    driver.end()
    assert driver.machine.next_due() == pytest.approx(driver.now + 0.001)
    driver.wait()
    assert driver.request == SendDescribeTransactions("orders")
    return driver


def test_the_view_says_when_the_first_produce_may_be_written() -> None:
    driver = at(S.ENDING_COMMIT, TV2)
    driver.machine.view.touch.took = 0.023
    driver.now = 5.0
    driver.end()
    assert driver.machine.view.not_before == 5.001


@pytest.mark.parametrize("state", [S.ENDING_COMMIT, S.ENDING_ABORT])
def test_the_coordinator_is_asked_after_a_transaction(state: S) -> None:
    driver = asks(at(state, TV2))
    assert driver.machine.view.not_before == pytest.approx(0.02)
    driver.describe(complete=False)
    assert driver.request is None
    assert driver.machine.view.not_before == pytest.approx(0.021)
    driver.wait()
    driver.describe(complete=True)
    assert not driver.has(EndHold), "nothing waits"
    assert driver.machine.view.not_before == driver.now == pytest.approx(0.002)
    driver.begin(write=False)
    assert driver.machine.view.not_before == pytest.approx(0.002)
    assert driver.machine.hold.ask_at is None


def test_those_that_wait_are_woken() -> None:
    driver = asks(at(S.ENDING_COMMIT, TV2))
    driver.begin(write=False)
    driver.do(driver.machine.commit("commit", driver.now))
    driver.describe(complete=False)
    assert not driver.has(EndHold)
    driver.wait()
    driver.describe(complete=True)
    assert driver.has(EndHold)
    assert driver.machine.view.is_open
    assert driver.machine.view.not_before == driver.now


@pytest.mark.parametrize(
    ("fail", "stops"),
    [
        (lambda driver: driver.answer(53), True),
        (lambda driver: driver.answer(35), True),
        (lambda driver: driver.lose(written=False), False),
        (lambda driver: driver.lose(written=True), False),
    ],
    ids=["no rights", "too old", "lost", "lost after it was written"],
)
def test_a_question_without_an_answer_delays_nothing(
    fail: Callable[[Driver], object], stops: bool
) -> None:
    """After an error, no questions are asked for a while. A connection may be lost at any time."""
    driver = asks(at(S.ENDING_COMMIT, TV2))
    driver.begin(write=False)
    fail(driver)
    assert driver.has(EndHold)
    assert driver.machine.view.not_before == driver.now
    assert driver.machine.state is S.IN_TRANSACTION
    assert driver.request is None
    assert driver.machine.hold.guesses == stops
    driver.write()
    driver.do(driver.machine.commit("next", driver.now))
    driver.settle()
    driver.retry()
    assert isinstance(driver.request, SendEndTxn)
    driver.end()
    assert driver.answers["next"].failure is None


def test_an_end_does_not_wait_for_the_answer_unless_it_needs_a_request() -> None:
    driver = asks(at(S.ENDING_COMMIT, TV2))
    driver.begin(write=False)
    driver.do(driver.machine.commit("empty", driver.now))
    driver.settle()
    assert driver.answers["empty"].failure is None
    driver.begin()
    driver.do(driver.machine.commit("next", driver.now))
    driver.settle()
    assert driver.machine.state is S.ENDING_COMMIT
    assert driver.request == SendDescribeTransactions("orders"), "one request at a time"
    driver.describe(complete=True)
    assert isinstance(driver.request, SendEndTxn)


def test_another_id_does_not_wait_for_the_answer() -> None:
    """Its coordinator is another broker, or is asked over a new connection."""
    driver = asks(at(S.ENDING_COMMIT, TV2))
    driver.do(driver.machine.init("other", driver.now, transactional_id="another"))
    assert driver.has(LeaveCoordinator)
    assert isinstance(driver.request, SendFindCoordinator)
    driver.answer()
    assert isinstance(driver.request, SendInitProducerId)
    driver.answer()
    assert driver.answers["other"].failure is None


def test_nothing_is_asked_without_a_connection() -> None:
    driver = at(S.ENDING_COMMIT, TV2)
    driver.machine.hold.guesses = False
    driver.end()
    driver.lose()
    assert driver.machine.next_due() is None
    driver.now = 1.0
    driver.do(driver.machine.time_passed(1.0))
    assert driver.request is None


def test_nothing_is_asked_after_a_transaction_without_a_write() -> None:
    driver = at(S.READY, TV2)
    driver.machine.hold.guesses = False
    driver.begin(write=False)
    driver.do(driver.machine.commit("commit", driver.now))
    driver.settle()
    assert driver.machine.hold.ask_at is None
    assert driver.machine.view.not_before == 0.0


def test_the_first_protocol_neither_waits_nor_asks() -> None:
    driver = at(S.ENDING_COMMIT, TV1)
    driver.machine.hold.guesses = False
    driver.end()
    assert driver.machine.view.not_before == 0.0
    assert driver.machine.next_due() is None
