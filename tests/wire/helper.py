"""Encodings of other code, for comparison: the codec of ``testing``, kafka-python's batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder

from pykaproducer._errors.formatting import one_line
from pykaproducer._wire import WireError
from pykaproducer._wire.messages import VERSIONS, ApiKey

NOW_MS = 1_700_000_000_000

int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
#: Includes lengths around the limit at which a compact length takes a second byte.
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=150)
client_ids = st.none() | names
#: Texts that are shown as they are, and host names.
texts = names.map(one_line)
hosts = texts.map(lambda text: text.replace(" ", ""))


def versions(key: ApiKey) -> st.SearchStrategy[int]:
    return st.integers(*VERSIONS[key])


def read_request(kind: Any, version: int, framed: bytes, correlation_id: int = 7) -> Any:
    """Return the codec's object for a request; it must be encoded to the same bytes again."""
    assert int.from_bytes(framed[:4], "big") == len(framed) - 4
    request = kind.decode(framed, version=version, header=True, framed=True)
    assert request.header.request_api_key == kind.API_KEY
    assert request.header.request_api_version == version
    assert request.header.correlation_id == correlation_id
    assert request.encode(framed=True) == framed
    return request


def payload(answer: Any) -> bytes:
    """Return the bytes after the correlation id when a broker sends *answer*."""
    answer.with_header(correlation_id=1)
    encoded = bytes(answer.encode(header=True))
    assert encoded[:4] == b"\0\0\0\1"
    return encoded[4:]


def check_answer(
    decode: Callable[..., object], answer: Any, expected: object, *asked: object
) -> None:
    """Check what is decoded, and that a response that is cut off anywhere is an error.

    *asked* is what *decode* has to know of the request.
    """
    version, whole = answer.API_VERSION, payload(answer)
    assert decode(version, whole, *asked) == expected
    for cut in range(len(whole)):
        with pytest.raises(WireError):
            decode(version, whole[:cut], *asked)


def record_batch(
    *values: bytes,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    codec: int = 0,
    transactional: bool = False,
) -> bytes:
    """Return a record batch made by kafka-python's builder."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=transactional,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        batch_size=1 << 30,
    )
    for number, value in enumerate(values or (b"value",)):
        builder.append(number, NOW_MS + number, b"key", value, [("header", b"x")])
    return bytes(builder.build())
