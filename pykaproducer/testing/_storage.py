"""The files that ``kafka-storage format`` writes, without running this second Java process.

A broker's data directory contains two files before its first start:

- ``meta.properties``: the cluster and the node to which the directory belongs;
- ``bootstrap.checkpoint``: a snapshot with the initial feature levels of a new cluster and the
  credentials of its users (SCRAM), as record batches in Kafka's format: a header, the records, a
  footer.

A test compares both with the output of Kafka's tool. One broker of several has a third file:

- ``__cluster_metadata-0/quorum-state``: the controller for which it has voted, itself.
"""

from __future__ import annotations

import base64
import json
import struct
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

#: Default feature levels of Kafka 4.3 (release 4.3-IV0).
FEATURE_LEVELS = {
    "metadata.version": 30,
    "eligible.leader.replicas.version": 1,
    "group.version": 1,
    "share.version": 1,
    "streams.version": 1,
    "transaction.version": 2,
}

_CONTROL_BATCH = 0x20
# Types of control records.
_SNAPSHOT_HEADER = 3
_SNAPSHOT_FOOTER = 4
#: The metadata record FeatureLevelRecord: frame version 1, type 12, version 0.
_FEATURE_LEVEL_RECORD = b"\x01\x0c\x00"
#: The metadata record UserScramCredentialRecord: frame version 1, type 11, version 0.
_SCRAM_RECORD = b"\x01\x0b\x00"
#: Kafka's codes of the mechanisms.
_SCRAM_NUMBERS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}


class ScramCredential(NamedTuple):
    """A user's credential for one SCRAM mechanism, as a cluster stores it (RFC 5802)."""

    mechanism: str
    user: str
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


def random_id() -> str:
    """Return a random id in Kafka's format for UUIDs: base64, 22 characters."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        # Like Kafka, avoid a leading dash, which a tool would parse as an option.
        if not text.startswith("-"):
            return text


def feature_levels(changes: Mapping[str, int]) -> dict[str, int]:
    """Return :data:`FEATURE_LEVELS` with *changes*. Raises ValueError."""
    for name, level in changes.items():
        if name not in FEATURE_LEVELS:
            raise ValueError(f"unknown feature {name!r}; there are {', '.join(FEATURE_LEVELS)}")
        if not 0 <= level <= FEATURE_LEVELS[name]:
            raise ValueError(f"{name} must be from 0 to {FEATURE_LEVELS[name]}, not {level}")
    return FEATURE_LEVELS | dict(changes)


def format_directory(
    directory: Path,
    cluster_id: str,
    node_id: int,
    credentials: Iterable[ScramCredential] = (),
    features: Mapping[str, int] = FEATURE_LEVELS,
) -> None:
    """Format *directory* for the first start of node *node_id* of cluster *cluster_id*."""
    format_disk(directory, cluster_id, node_id)
    (directory / "bootstrap.checkpoint").write_bytes(
        bootstrap_checkpoint(credentials, features=features)
    )


def format_disk(directory: Path, cluster_id: str, node_id: int) -> None:
    """Format *directory* as an additional log directory of node *node_id*."""
    directory.mkdir(parents=True)
    (directory / "meta.properties").write_text(
        f"version=1\ncluster.id={cluster_id}\nnode.id={node_id}\ndirectory.id={random_id()}\n"
    )


def vote_for_itself(directory: Path, node_id: int, voters: Iterable[int]) -> None:
    """Add to a formatted directory that node *node_id* was a candidate when it stopped.

    Otherwise the controllers of a new cluster wait for one to two seconds before one of them
    becomes a candidate. A node with this state asks for votes at once, and the others, which have
    not voted, elect it. If the votes are late, an ordinary election follows.
    """
    state = {
        "clusterId": "",
        "leaderId": -1,
        "leaderEpoch": 1,
        "votedId": node_id,
        "appliedOffset": 0,
        "currentVoters": [{"voterId": voter} for voter in voters],
        "data_version": 0,
    }
    log = directory / "__cluster_metadata-0"
    log.mkdir()
    (log / "quorum-state").write_text(json.dumps(state))


def bootstrap_checkpoint(
    credentials: Iterable[ScramCredential] = (),
    timestamp_ms: int = 0,
    features: Mapping[str, int] = FEATURE_LEVELS,
) -> bytes:
    """Return the snapshot that sets the levels of *features* and adds users."""
    # A feature of level 0 is off, and has no record.
    records = [_feature_level(name, level) for name, level in features.items() if level]
    records += map(_scram_credential, credentials)
    # Version 0, timestamp of the last log record in the snapshot, no tagged fields.
    header = struct.pack(">hqb", 0, 0, 0)
    footer = struct.pack(">hb", 0, 0)
    return b"".join(
        (
            _batch(0, _CONTROL_BATCH, timestamp_ms, [(_control_key(_SNAPSHOT_HEADER), header)]),
            _batch(1, 0, timestamp_ms, [(None, value) for value in records]),
            _batch(
                1 + len(records),
                _CONTROL_BATCH,
                timestamp_ms,
                [(_control_key(_SNAPSHOT_FOOTER), footer)],
            ),
        )
    )


def _control_key(kind: int) -> bytes:
    return struct.pack(">hh", 0, kind)


def _feature_level(name: str, level: int) -> bytes:
    # A compact string (its length plus one, which fits one byte here), the level, no tagged
    # fields.
    return _FEATURE_LEVEL_RECORD + struct.pack(
        f">B{len(name)}shb", len(name) + 1, name.encode(), level, 0
    )


def _scram_credential(credential: ScramCredential) -> bytes:
    fields = (credential.salt, credential.stored_key, credential.server_key)
    return b"".join(
        (
            _SCRAM_RECORD,
            _compact(credential.user.encode()),
            struct.pack(">b", _SCRAM_NUMBERS[credential.mechanism]),
            *map(_compact, fields),
            # No tagged fields.
            struct.pack(">ib", credential.iterations, 0),
        )
    )


def _compact(data: bytes) -> bytes:
    """Encode bytes or text in compact form: its length plus one as an unsigned varint, its data."""
    number, out = len(data) + 1, bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out) + data


def _batch(
    offset: int,
    attributes: int,
    timestamp_ms: int,
    records: Iterable[tuple[bytes | None, bytes]],
) -> bytes:
    encoded = [_record(delta, key, value) for delta, (key, value) in enumerate(records)]
    # Last offset delta, first and largest timestamp, no producer id, epoch, sequence.
    checked = struct.pack(
        ">hiqqqhii",
        attributes,
        len(encoded) - 1,
        timestamp_ms,
        timestamp_ms,
        -1,
        -1,
        -1,
        len(encoded),
    ) + b"".join(encoded)
    # Leader epoch 0, format 2, checksum.
    head = struct.pack(">ibI", 0, 2, crc32c(checked))
    return struct.pack(">qi", offset, len(head) + len(checked)) + head + checked


def _record(offset_delta: int, key: bytes | None, value: bytes) -> bytes:
    # Attributes and timestamp delta are 0, and there are no headers.
    body = (
        b"\x00\x00"
        + _varint(offset_delta)
        + (_varint(-1) if key is None else _varint(len(key)) + key)
        + _varint(len(value))
        + value
        + b"\x00"
    )
    return _varint(len(body)) + body


def _varint(number: int) -> bytes:
    number = (number << 1) ^ (number >> 31)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
