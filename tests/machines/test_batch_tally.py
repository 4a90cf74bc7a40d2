"""Whether a batch that was sealed is missing."""

from __future__ import annotations

from pykaproducer._machines.batch_tally import BatchTallies


class Sealer:
    """What seals batches."""

    sealed_so_far = 0


def test_all_batches_are_confirmed() -> None:
    tallies, sealer = BatchTallies(), Sealer()
    tally = tallies.of(sealer)
    assert not tallies.missed_some()
    sealer.sealed_so_far = 3
    tally.confirmed = 3
    assert tally.unconfirmed == 0
    assert not tallies.missed_some()


def test_a_batch_is_missing_once() -> None:
    tallies, sealer = BatchTallies(), Sealer()
    tally = tallies.of(sealer)
    sealer.sealed_so_far = 2
    tally.confirmed = 1
    assert tallies.missed_some()
    assert not tallies.missed_some()
    sealer.sealed_so_far, tally.confirmed = 5, 4
    assert not tallies.missed_some()
    sealer.sealed_so_far = 6
    assert tallies.missed_some()


def test_a_batch_that_another_worker_was_confirmed() -> None:
    """The leader of its partition has moved."""
    tallies, sealers = BatchTallies(), [Sealer(), Sealer()]
    first, second = (tallies.of(sealer) for sealer in sealers)
    sealers[0].sealed_so_far = 1
    second.confirmed = 1
    assert (first.unconfirmed, second.unconfirmed) == (1, -1)
    assert not tallies.missed_some()


def test_the_batches_of_a_worker_that_has_ended_count() -> None:
    tallies, sealers = BatchTallies(), [Sealer(), Sealer()]
    first, second = (tallies.of(sealer) for sealer in sealers)
    sealers[0].sealed_so_far = 1
    first.has_ended = True
    second.confirmed = 1
    assert not tallies.missed_some()
    assert not tallies.missed_some()
    sealers[1].sealed_so_far = 1
    second.has_ended = True
    assert tallies.missed_some()
    assert not tallies.missed_some()
