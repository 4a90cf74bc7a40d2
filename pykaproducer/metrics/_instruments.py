"""The instruments for Prometheus and OpenTelemetry, in one table, read from ``stats()``.

The names are OpenTelemetry's. Prometheus' names follow from them by the usual translation (dots
become underscores; the unit and ``_total`` are appended), so that both give the same metrics.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

Snapshot = Mapping[str, Any]

#: Labels and a value.
Point = tuple[dict[str, str], float]

#: ``state`` of ``stats()``.
STATES = ("idle", "running", "closing", "closed", "broken")

#: Fields of a latency in ``stats()`` -> Prometheus' names for them.
_QUANTILES = {"p50": "0.5", "p95": "0.95", "p99": "0.99", "max": "1"}


class Instrument(NamedTuple):
    """One measured quantity."""

    name: str
    #: Whether it is a counter, which only increases.
    counts: bool
    #: In UCUM, as OpenTelemetry requires; empty for a plain number.
    unit: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[Snapshot], Iterable[Point]]


def _number(section: str, field: str, scale: float) -> Callable[[Snapshot], Iterable[Point]]:
    def read(snapshot: Snapshot) -> Iterator[Point]:
        yield {}, snapshot[section][field] * scale

    return read


#: Instruments whose field in ``stats()`` differs from the end of their name: field and factor.
_FIELDS = {
    "retried.batches": ("retried_batches", 1.0),
    "throttle": ("throttle_ms", 0.001),
}


def _total(name: str, unit: str, text: str, section: str) -> Instrument:
    field, scale = _FIELDS.get(name, (name.rpartition(".")[2], 1.0))
    return Instrument(name, True, unit, text, (), _number(section, field, scale))


def _level(name: str, unit: str, text: str, section: str) -> Instrument:
    return Instrument(name, False, unit, text, (), _number(section, name.rpartition(".")[2], 1.0))


def _latency(which: str, text: str) -> Instrument:
    def read(snapshot: Snapshot) -> Iterator[Point]:
        summary = snapshot["latency_ms"].get(which, {})
        for field, quantile in _QUANTILES.items():
            if summary.get(field) is not None:
                yield {"quantile": quantile}, summary[field] / 1000

    return Instrument(f"{which}.latency.recent", False, "s", text, ("quantile",), read)


#: ``state`` of the transactions in ``stats()``.
TRANSACTION_STATES = (
    *("uninitialized", "initializing", "ready", "open", "flushing", "committing"),
    *("abortable", "aborting", "prepared", "fatal"),
)


def _transactional(name: str, counts: bool, unit: str, text: str, field: str) -> Instrument:
    """Return an instrument that only producers with transactions have."""

    def read(snapshot: Snapshot) -> Iterator[Point]:
        found = snapshot.get("transactions")
        if found is not None and found[field] is not None:
            yield {}, found[field]

    return Instrument(name, counts, unit, text, (), read)


def _transaction_state(snapshot: Snapshot) -> Iterator[Point]:
    found = snapshot.get("transactions")
    if found is not None:
        for state in TRANSACTION_STATES:
            yield {"state": state}, float(found["state"] == state)


def _state(snapshot: Snapshot) -> Iterator[Point]:
    for state in STATES:
        yield {"state": state}, float(snapshot["state"] == state)


def _cluster_failing(snapshot: Snapshot) -> Iterator[Point]:
    yield {}, float(snapshot.get("cluster_error") is not None)


def _rows(section: str, **names: str) -> Callable[..., Instrument]:
    """Return a function that makes instruments for rows of *section*; *names*: label -> field."""

    def make(name: str, unit: str, text: str, field: str, counts: bool = False) -> Instrument:
        value = _DERIVED.get(field, operator.itemgetter(field))

        def read(snapshot: Snapshot) -> Iterator[Point]:
            for row in snapshot[section]:
                found = value(row)
                if found is not None:
                    yield {label: _text(row.get(at)) for label, at in names.items()}, float(found)

        return Instrument(name, counts, unit, text, tuple(names), read)

    return make


#: Values that are not fields themselves.
_DERIVED: dict[str, Callable[[Any], Any]] = {
    "connected": lambda row: row["state"] == "connected",
    "down": lambda row: row["state"] == "down",
    "failing": lambda row: row["error"] is not None,
}


def _text(value: object) -> str:
    """Return a value as a label. In Prometheus, an empty label is equivalent to a missing one."""
    return "" if value is None else str(value)


_stage = _rows("stages", stage="stage", topic="topic", partition="partition", broker="broker")
_broker = _rows("brokers", broker="id")
_topic = _rows("topics", topic="topic")
_partition = _rows("partitions", topic="topic", partition="partition")

INSTRUMENTS = (
    Instrument(
        "state",
        False,
        "",
        "1 for the current state of the producer, 0 for its other states.",
        ("state",),
        _state,
    ),
    Instrument(
        "cluster.failing",
        False,
        "",
        "1 while no bootstrap server and no broker can be reached, else 0.",
        (),
        _cluster_failing,
    ),
    _total("messages.accepted", "{message}", "Messages that send() accepted.", "messages"),
    _total("messages.delivered", "{message}", "Messages that brokers acknowledged.", "messages"),
    _total("messages.failed", "{message}", "Messages that were not delivered.", "messages"),
    _level("messages.pending", "{message}", "Accepted messages without an outcome.", "messages"),
    _total("accepted", "By", "Bytes of the messages that send() accepted.", "bytes"),
    _total("delivered", "By", "Bytes of the messages that brokers acknowledged.", "bytes"),
    _level("buffer.limit", "By", "The setting buffer_memory.", "buffer"),
    _level("buffer.used", "By", "Bytes of buffer_memory in use.", "buffer"),
    _level("buffer.waiting_senders", "{call}", "Calls of send() that wait for memory.", "buffer"),
    _total("requests.sent", "{request}", "Requests written to brokers.", "requests"),
    _total("requests.answered", "{request}", "Requests that brokers answered.", "requests"),
    _total("requests.lost", "{request}", "Requests whose connection was lost first.", "requests"),
    _total("batches", "{batch}", "Batches that were closed for sending.", "requests"),
    _total("retried.batches", "{batch}", "Batches that were sent again.", "requests"),
    _total("throttle", "s", "Time for which brokers throttled this client.", "requests"),
    _latency("delivery", "Time from send() to the outcome, recent quantiles."),
    _latency("request", "Time from a produce request to its response, recent quantiles."),
    _latency("queue", "Time from send() until the batch is closed, recent quantiles."),
    _stage("stage.threads", "{thread}", "Running threads of a stage of the producer.", "alive"),
    _stage("stage.inbox", "{event}", "Events waiting for a stage of the producer.", "inbox"),
    _stage("stage.messages", "{message}", "Messages in a stage of the producer.", "rows"),
    _stage("stage.held", "By", "Bytes of the messages in a stage of the producer.", "bytes"),
    _stage("stage.oldest", "s", "Age of the oldest message in a stage.", "oldest_s"),
    _broker("broker.connected", "", "1 while connected to the broker, else 0.", "connected"),
    _broker("broker.down", "", "1 if the last connection to the broker failed, else 0.", "down"),
    _broker(
        "broker.unanswered", "{request}", "Requests in flight to a broker.", "unanswered_requests"
    ),
    _broker("broker.partitions", "{partition}", "Partitions that a broker leads.", "references"),
    _topic("topic.partitions", "{partition}", "Partitions of a topic.", "partitions"),
    _topic(
        "topic.failing",
        "",
        "1 while brokers answer with an error for the topic (no such topic, no right), else 0.",
        "failing",
    ),
    _partition(
        "partition.messages.delivered",
        "{message}",
        "Messages delivered to a partition.",
        "delivered",
        counts=True,
    ),
    _partition(
        "partition.delivered",
        "By",
        "Bytes of the messages delivered to a partition.",
        "bytes",
        counts=True,
    ),
    _partition(
        "partition.messages", "{message}", "Messages waiting for a partition.", "waiting_rows"
    ),
    _partition(
        "partition.held",
        "By",
        "Bytes of the messages waiting for a partition.",
        "waiting_bytes",
    ),
    _partition(
        "partition.unanswered",
        "{batch}",
        "Batches in flight to a partition.",
        "unanswered_batches",
    ),
    _partition("partition.level", "", "Retries of the messages in flight to a partition.", "level"),
    _transactional(
        "transactions.committed", True, "{transaction}", "Committed transactions.", "committed"
    ),
    _transactional(
        "transactions.aborted", True, "{transaction}", "Aborted transactions.", "aborted"
    ),
    _transactional(
        "transactions.fenced",
        True,
        "{producer}",
        "1 if another producer has taken over the transactional id, else 0.",
        "fenced",
    ),
    Instrument(
        "transaction.state",
        False,
        "",
        "1 for the current state of the transactions of the producer, 0 for the other states.",
        ("state",),
        _transaction_state,
    ),
    _transactional(
        "transaction.open", False, "s", "Age of the open transaction, if there is one.", "open_s"
    ),
    _transactional(
        "transaction.partitions",
        False,
        "{partition}",
        "Partitions in the open transaction.",
        "partitions",
    ),
    _latency("commit", "Time from commit_transaction() to its confirmation, recent quantiles."),
)


def _add(one: float, other: float) -> float:
    return one + other


#: How to combine values with the same labels, if they are not added up.
_TOGETHER: dict[str, Callable[[float, float], float]] = {
    "broker.connected": min,
    "broker.down": max,
    "stage.oldest": max,
    "partition.level": max,
}


def points(instrument: Instrument, snapshot: Snapshot, per_partition: bool) -> list[Point]:
    """Return an instrument's values in a snapshot, with unique labels.

    Without *per_partition*, the values of a topic's partitions are combined. A closed producer
    keeps its totals and its state, but has no other values.
    """
    if snapshot["state"] == "closed" and not instrument.counts and instrument.read is not _state:
        return []
    together = _TOGETHER.get(instrument.name, _add)
    found: dict[tuple[str, ...], Point] = {}
    for labels, value in instrument.read(snapshot):
        if not per_partition and "partition" in labels:
            labels["partition"] = ""
        key = tuple(labels.values())
        before = found.get(key)
        found[key] = (labels, value if before is None else together(before[1], value))
    return list(found.values())
