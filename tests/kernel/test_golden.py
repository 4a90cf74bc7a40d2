"""Record batches written by hand from the description of the format (KIP-98), as hex.

``partition leader epoch`` is -1 and ``base offset`` 0: the broker sets both.
"""

from __future__ import annotations

from .helper import TOPIC, Door, claim, encode, split

ONE_RECORD = bytes.fromhex(
    "0000000000000000"  # base offset
    "0000003d"  # length of the rest: 61
    "ffffffff"  # partition leader epoch
    "02"  # magic
    "2b96c458"  # CRC-32C of the rest
    "0000"  # attributes: no compression, CreateTime
    "00000000"  # last offset delta
    "00000174876e8000"  # base timestamp: 1600000000000
    "00000174876e8000"  # max timestamp
    "ffffffffffffffff"  # no producer id
    "ffff"  # no producer epoch
    "ffffffff"  # no base sequence
    "00000001"  # records
    "16"  # length: 11
    "00"  # attributes
    "00"  # timestamp delta
    "00"  # offset delta
    "01"  # key: None
    "0a68656c6c6f"  # value: 5 bytes, "hello"
    "00"  # headers: 0
)

THREE_RECORDS = bytes.fromhex(
    "0000000000000000"  # base offset
    "00000091"  # length of the rest: 145
    "ffffffff"  # partition leader epoch
    "02"  # magic
    "3dfedd4d"  # CRC-32C of the rest
    "0000"  # attributes
    "00000002"  # last offset delta
    "00000000000003e8"  # base timestamp: the first record's, 1000
    "0000000000000428"  # max timestamp: 1064
    "0000000000000fa0"  # producer id: 4000
    "0003"  # producer epoch
    "00011170"  # base sequence: 70000
    "00000003"  # records
    # the first: a key, no value, two headers
    "1c"  # length: 14
    "00"  # attributes
    "00"  # timestamp delta
    "00"  # offset delta
    "026b"  # key: "k"
    "01"  # value: None
    "04"  # headers: 2
    "02610201"  # "a": 01
    "026201"  # "b": None
    # the second: key and value empty, 64 ms later
    "0e"  # length: 7
    "00"  # attributes
    "8001"  # timestamp delta: 64
    "02"  # offset delta: 1
    "00"  # key: 0 bytes
    "00"  # value: 0 bytes
    "00"  # headers: 0
    # the third: 10 ms before the first
    "8e01"  # length: 71
    "00"  # attributes
    "13"  # timestamp delta: -10
    "04"  # offset delta: 2
    "01"  # key: None
    "8001" + "76" * 64 +  # value: 64 times "v"
    "00"  # headers: 0
)  # fmt: skip


def test_one_record() -> None:
    door = Door()
    door.send(TOPIC, b"hello", timestamp_ms=1_600_000_000_000, partition=0)
    assert encode(claim(split(door.chunk(), 1)[0])) == ONE_RECORD


def test_three_records_with_producer_id_and_headers() -> None:
    door = Door()
    door.send(TOPIC, None, b"k", [("a", b"\x01"), ("b", None)], 0, 1000)
    door.send(TOPIC, b"", b"", [], 0, 1064)
    door.send(TOPIC, b"v" * 64, None, None, 0, 990)
    batch = encode(
        claim(split(door.chunk(), 1)[0]), producer_id=4000, producer_epoch=3, base_sequence=70_000
    )
    assert batch == THREE_RECORDS
