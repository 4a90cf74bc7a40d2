"""Reused memory: it never exposes other data, whatever the size, with several threads."""

from __future__ import annotations

import functools
import random

import pytest

import pykaproducer._kernel as _kernel
from tests._support.threads import run_together
from tests.kernel.helper import TOPIC, Door, claim, encode, read, some, split

#: Below and above the sizes that the pool keeps, and around its 32 KiB pieces and 2 MiB slabs.
SIZES = (1, 500, 32_000, 32_768, 33_000, 262_144, 300_000, 1_000_000, 2_097_152, 2_200_000)


def there_and_back(values: list[bytes]) -> None:
    door = Door(max_request_size=1 << 24)
    for value in values:
        door.send(TOPIC, value, partition=0)
    for chunk in door.chunks():
        (part,) = split(chunk, 1).values()
        rows = part.count
        claimed = claim(part)
        assert [record.value for record in read(encode(claimed))] == values[:rows]
        del values[:rows]
        settled = some(claimed.deliver(0))
        settled.report(pytest.fail)
    assert values == []


@pytest.mark.parametrize("size", SIZES)
def test_a_message_of_any_size_keeps_its_bytes(size: int) -> None:
    there_and_back([bytes([number]) * size for number in range(1, 4)])


def test_threads_that_take_and_give_memory_do_not_get_each_others() -> None:
    def work(seed: int) -> None:
        choose = random.Random(seed)
        for _ in range(40):
            sizes = choose.choices(SIZES[:7], k=8)
            there_and_back([bytes([choose.randrange(256)]) * size for size in sizes])

    run_together(*(functools.partial(work, seed) for seed in range(4)))


def test_rows_of_a_table_that_grew_are_all_there() -> None:
    there_and_back([b"%d" % number for number in range(70_000)])


def test_a_closed_chunk_takes_little_more_than_its_rows() -> None:
    """Its tables grow in large steps; the space after the last row is released."""
    for rows in (2048, 6144, 10_240, 32_768):
        door = Door()
        before = _kernel.pool_use()[1]
        for _ in range(rows):
            door.send(TOPIC, b"x" * 100, partition=0)
        chunks = door.chunks()
        taken = _kernel.pool_use()[1] - before
        assert taken <= 1.1 * rows * (100 + _kernel.ROW_COST)
        del chunks
        assert _kernel.pool_use()[1] == before


def test_what_is_not_used_goes_back_to_the_system() -> None:
    mapped_before, out_before = _kernel.pool_use()
    door = Door()
    for _ in range(400):
        door.send(TOPIC, bytearray(500_000), partition=0)
    assert _kernel.pool_use()[0] - mapped_before > 150 << 20
    assert len(door.chunks()) > 10  # and they are freed
    mapped, out = _kernel.pool_use()
    assert out == out_before
    assert mapped - mapped_before <= 16 << 20
