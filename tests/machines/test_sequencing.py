"""Producer id, epoch and sequence numbers of one partition, as defined by KIP-98 and KIP-360."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pykaproducer._machines.sequencing import ProducerId, Sequencer

#: Sequence numbers are 0 to 2**31 - 1.
LAST = 2**31 - 1


@settings(deadline=None)
@given(
    st.integers(0, LAST) | st.integers(LAST - 100, LAST),
    st.lists(st.integers(1, 50) | st.integers(1, LAST), min_size=1, max_size=20),
)
def test_numbers_follow_each_other_without_a_gap(first: int, counts: list[int]) -> None:
    sequencer = Sequencer(ProducerId(7, 0), next_sequence=first)
    taken = [sequencer.take(count) for count in counts]
    assert taken[0] == first
    for (before, count), after in itertools.pairwise(
        [*zip(taken, counts, strict=True), (sequencer.next_sequence, 0)]
    ):
        assert after[0] == (before + count) % 2**31
    assert all(0 <= number <= LAST for number in taken)


@pytest.mark.parametrize(
    ("start", "count", "first", "after"),
    [
        (0, 1, 0, 1),
        (0, 1000, 0, 1000),
        (LAST, 1, LAST, 0),
        (LAST - 1, 1, LAST - 1, LAST),
        # A batch may wrap around: its records are numbered LAST - 1, LAST, 0, 1, 2.
        (LAST - 1, 5, LAST - 1, 3),
    ],
)
def test_numbers_start_again_after_the_last(start: int, count: int, first: int, after: int) -> None:
    sequencer = Sequencer(ProducerId(7, 0), next_sequence=start)
    assert (sequencer.take(count), sequencer.next_sequence) == (first, after)


# The producer id --------------------------------------------------------------------------------


def test_it_begins_unknown_and_without_a_producer_id() -> None:
    sequencer = Sequencer()
    assert (sequencer.producer, sequencer.known) == (None, False)
    assert not sequencer.adopt(None)
    assert sequencer.adopt(ProducerId(7, 3))
    assert sequencer.producer == ProducerId(7, 3)
    assert sequencer.take(1) == 0


def test_an_id_that_it_has_is_not_replaced() -> None:
    """Batches sealed under the first id would be out of order under another."""
    sequencer = Sequencer(ProducerId(7, 3))
    for given_ in (None, ProducerId(7, 0), ProducerId(8, 0)):
        assert sequencer.adopt(given_)
        assert sequencer.producer == ProducerId(7, 3)


# A new epoch ------------------------------------------------------------------------------------


def test_while_nothing_is_spoiled_it_counts_on() -> None:
    sequencer = Sequencer(ProducerId(7, 3), next_sequence=1234, known=True)
    sequencer.renew()
    assert (sequencer.producer, sequencer.known) == (ProducerId(7, 3), True)
    assert sequencer.take(1) == 1234


def test_spoiled_numbers_are_followed_by_one_new_epoch_that_counts_anew() -> None:
    sequencer = Sequencer(ProducerId(7, 3), next_sequence=1234, known=True)
    sequencer.invalidate_sequences()
    sequencer.invalidate_sequences()
    # Batches of the old epoch may still be in flight.
    assert (sequencer.producer, sequencer.known) == (ProducerId(7, 3), True)
    for _ in range(2):
        sequencer.renew()
        assert sequencer.producer == ProducerId(7, 4)
        # No broker has seen this epoch: only one batch may be in flight again.
        assert not sequencer.known
    assert sequencer.take(2) == 0
    assert sequencer.take(1) == 2


def test_a_new_epoch_of_one_partition_leaves_the_others_alone() -> None:
    given_to_all = ProducerId(7, 0)
    one = Sequencer(given_to_all, next_sequence=5, known=True)
    other = Sequencer(given_to_all, next_sequence=6, known=True)
    one.invalidate_sequences()
    for sequencer in (one, other):
        sequencer.renew()
    assert one.producer == ProducerId(7, 1)
    assert (other.producer, other.next_sequence, other.known) == (ProducerId(7, 0), 6, True)


def spent(sequencer: Sequencer) -> None:
    """Check that it has dropped its id and accepts only a different one."""
    sequencer.renew()
    assert sequencer.producer is None
    assert not sequencer.adopt(ProducerId(7, 0))
    assert sequencer.adopt(ProducerId(8, 0))
    assert sequencer.producer == ProducerId(8, 0)
    assert sequencer.take(1) == 0
    assert not sequencer.known


def test_an_id_that_the_broker_refuses_is_given_up() -> None:
    sequencer = Sequencer(ProducerId(7, 3), next_sequence=9, known=True)
    sequencer.invalidate_sequences(id_too=True)
    sequencer.invalidate_sequences()
    spent(sequencer)


def test_after_the_last_epoch_the_id_is_given_up() -> None:
    # Epochs are int16, and the broker rejects the largest, 32767.
    sequencer = Sequencer(ProducerId(7, 32765), next_sequence=9, known=True)
    sequencer.invalidate_sequences()
    sequencer.renew()
    assert sequencer.producer == ProducerId(7, 32766)
    sequencer.take(9)
    sequencer.invalidate_sequences()
    spent(sequencer)


def test_a_new_id_has_epochs_of_its_own() -> None:
    sequencer = Sequencer(ProducerId(7, 3))
    sequencer.invalidate_sequences(id_too=True)
    sequencer.renew()
    assert sequencer.adopt(ProducerId(8, 0))
    sequencer.invalidate_sequences()
    sequencer.renew()
    assert sequencer.producer == ProducerId(8, 1)


def test_the_id_of_another_cluster_is_not_used() -> None:
    """Nor an equal one of the new cluster, as older batches have it."""
    sequencer = Sequencer(ProducerId(7, 3), next_sequence=5, known=True)
    sequencer.enter(0)
    assert sequencer.producer == ProducerId(7, 3)
    sequencer.enter(1)
    assert (sequencer.producer, sequencer.known, sequencer.next_sequence) == (None, False, 0)
    assert sequencer.has_left(7, 3)
    assert not sequencer.adopt(ProducerId(7, 0))
    assert sequencer.adopt(ProducerId(8, 0))
    sequencer.enter(1)
    assert sequencer.producer == ProducerId(8, 0)


# Transactions -----------------------------------------------------------------------------------


def test_the_next_transaction_of_an_epoch_counts_on() -> None:
    sequencer = Sequencer()
    assert sequencer.adopt_transaction(ProducerId(7, 3))
    assert (sequencer.take(5), sequencer.known) == (0, False)
    sequencer.delivered(1)
    assert not sequencer.adopt_transaction(ProducerId(7, 3))
    assert (sequencer.take(5), sequencer.known) == (5, True)


def test_an_epoch_of_the_coordinator_begins_anew_with_a_broker_that_knows_the_producer() -> None:
    sequencer = Sequencer(ProducerId(7, 3), next_sequence=1234, known=True)
    assert sequencer.adopt_transaction(ProducerId(7, 4))
    assert (sequencer.take(5), sequencer.take(5)) == (0, 5)
    assert sequencer.known
    assert sequencer.has_left(7, 3)


@pytest.mark.parametrize("known", [False, True])
def test_another_id_of_the_coordinator_is_unknown_to_the_broker(known: bool) -> None:
    sequencer = Sequencer(ProducerId(7, 32766), next_sequence=1234, known=known)
    assert sequencer.adopt_transaction(ProducerId(8, 0))
    assert (sequencer.take(5), sequencer.known) == (0, False)
    # An epoch of an unknown id is unknown, too.
    assert sequencer.adopt_transaction(ProducerId(8, 1))
    assert not sequencer.known


def test_a_batch_of_an_older_transaction_is_needed_no_more() -> None:
    """The epoch of the transaction that was aborted is over."""
    sequencer = Sequencer(ProducerId(7, 3), known=True)
    for _ in range(2):
        sequencer.take(5)
    assert sequencer.is_needed(1, 7, 3)
    sequencer.adopt_transaction(ProducerId(7, 4))
    assert not sequencer.is_needed(1, 7, 3)
    sequencer.drop(1, 7, 3)
    assert not sequencer.stale
