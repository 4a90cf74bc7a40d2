"""The checksum of rows: it does not depend on their order, and sees each change."""

from __future__ import annotations

from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykaproducer._kernel import rows_checksum

HEADERS = pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())]))
SCHEMA = pyarrow.schema(
    {
        "topic": pyarrow.string(),
        "partition": pyarrow.int32(),
        "key": pyarrow.binary(),
        "value": pyarrow.binary(),
        "headers": HEADERS,
        "timestamp": pyarrow.timestamp("ms", tz="UTC"),
    }
)
SMALL = st.binary(max_size=20)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "topic": st.sampled_from(["a", "b", "ab"]),
            "partition": st.one_of(st.none(), st.integers(0, 9)),
            "key": st.one_of(st.none(), SMALL),
            "value": st.one_of(st.none(), SMALL),
            "headers": st.one_of(
                st.none(),
                st.lists(
                    st.fixed_dictionaries(
                        {"key": st.text(max_size=5), "value": st.one_of(st.none(), SMALL)}
                    ),
                    max_size=3,
                ),
            ),
            "timestamp": st.one_of(st.none(), st.integers(0, 2**40)),
        }
    ),
    max_size=30,
)
Row = dict[str, Any]
ROW: Row = {
    "topic": "orders",
    "partition": 1,
    "key": b"key",
    "value": b"value",
    "headers": [{"key": "h", "value": b"1"}],
    "timestamp": 1_700_000_000_000,
}


def batch_of(rows: list[Row]) -> Any:
    return pyarrow.RecordBatch.from_pylist(rows, schema=SCHEMA)


def total(*batches: Any) -> int:
    return sum(map(rows_checksum, batches)) % 2**64


@given(ROWS, st.randoms(use_true_random=False), st.integers(0, 30))
def test_order_and_batches_do_not_matter(rows: list[Row], random: Any, cut: int) -> None:
    whole = total(batch_of(rows))
    shuffled = rows.copy()
    random.shuffle(shuffled)
    assert total(batch_of(shuffled)) == whole
    assert total(batch_of(rows[:cut]), batch_of(rows[cut:])) == whole
    # Slices share the buffers of the whole batch.
    assert total(batch_of(rows).slice(0, cut), batch_of(rows).slice(min(cut, len(rows)))) == whole
    assert total(*(batch_of([row]) for row in rows)) == whole


@pytest.mark.parametrize(
    "change",
    [
        {"topic": "order"},
        {"partition": 0},
        {"partition": None},
        {"key": b"kex"},
        {"key": b""},
        {"key": None},
        {"value": b"val"},
        {"value": b""},
        {"value": None},
        {"key": b"keyva", "value": b"lue"},
        {"headers": None},
        {"headers": [{"key": "h", "value": b"2"}]},
        {"headers": [{"key": "h", "value": None}]},
        {"headers": [{"key": "h1", "value": b""}]},
        {"headers": [{"key": "h", "value": b"1"}] * 2},
        {"timestamp": 1_700_000_000_001},
        {"timestamp": None},
    ],
    ids=str,
)
def test_each_change_is_seen(change: Row) -> None:
    assert total(batch_of([{**ROW, **change}])) != total(batch_of([ROW]))


def test_rows_that_are_doubled_or_exchanged_are_seen() -> None:
    other = {**ROW, "key": b"other", "value": b"second"}
    exchanged = [{**ROW, "value": other["value"]}, {**other, "value": ROW["value"]}]
    both = total(batch_of([ROW, other]))
    assert total(batch_of([ROW, ROW])) != both
    assert total(batch_of([ROW, other, other])) != both
    assert total(batch_of(exchanged)) != both
    assert total(batch_of([])) == 0


def test_types_that_mean_the_same_have_the_same_checksum() -> None:
    texts = [{"key": "ä", "value": "b"}]
    wide = pyarrow.schema({"key": pyarrow.large_string(), "value": pyarrow.large_binary()})
    narrow = pyarrow.schema({"key": pyarrow.binary(), "value": pyarrow.string()})
    assert total(pyarrow.RecordBatch.from_pylist(texts, schema=wide)) == total(
        pyarrow.RecordBatch.from_pylist([{"key": "ä".encode(), "value": "b"}], schema=narrow)
    )
