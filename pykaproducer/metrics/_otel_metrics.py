"""A producer's ``stats()`` as observable instruments of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation, get_meter

from pykaproducer._kernel import monotonic
from pykaproducer._version import VERSION
from pykaproducer.metrics._instruments import INSTRUMENTS, Instrument, Snapshot, points
from pykaproducer.metrics._sources import Source, Sources

#: How long snapshots are reused for the instruments of one collection (seconds).
_FRESH = 0.5

#: The semantic conventions' names of our labels; other names get the library's prefix.
_ATTRIBUTES = {
    "topic": "messaging.destination.name",
    "partition": "messaging.destination.partition.id",
    "quantile": "quantile",
}

_SENT = "messaging.client.sent.messages"


class Observed:
    """The result of :func:`observe`, with which producers can be added and removed."""

    def __init__(self, meter: Meter, per_partition: bool) -> None:
        self._sources = Sources()
        self._per_partition = per_partition
        # All snapshots and their time; always replaced together.
        self._seen: tuple[float, Sequence[tuple[str, Snapshot]]] = (float("-inf"), ())
        for instrument in INSTRUMENTS:
            make = (
                meter.create_observable_counter
                if instrument.counts
                else meter.create_observable_gauge
            )
            name = f"pykaproducer.{instrument.name}"
            make(name, [self._reader(instrument)], instrument.unit, instrument.help)
        meter.create_observable_counter(
            _SENT, [self._sent], "{message}", "Messages that a producer attempted to send."
        )

    def add(self, producer: Source) -> None:
        """Observe *producer*, too."""
        self._sources.add(producer)

    def remove(self, producer: Source) -> None:
        """Stop observing *producer*."""
        self._sources.remove(producer)

    def _snapshots(self) -> Sequence[tuple[str, Snapshot]]:
        """Return all snapshots, taken once for the many callbacks of one collection."""
        now = monotonic()
        looked, seen = self._seen
        if now - looked >= _FRESH:
            seen = list(self._sources.snapshots())
            self._seen = (now, seen)
        return seen

    def _reader(self, instrument: Instrument) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def read(_: CallbackOptions) -> Iterator[Observation]:
            for name, snapshot in self._snapshots():
                for labels, value in points(instrument, snapshot, self._per_partition):
                    yield Observation(value, {"messaging.client.id": name, **_attributes(labels)})

        return read

    def _sent(self, _: CallbackOptions) -> Iterator[Observation]:
        """Yield sent messages as in the semantic conventions: failures have ``error.type``."""
        for name, snapshot in self._snapshots():
            common = {
                "messaging.system": "kafka",
                "messaging.operation.name": "send",
                "messaging.client.id": name,
            }
            messages = snapshot["messages"]
            yield Observation(messages["delivered"], common)
            if messages["failed"]:
                yield Observation(messages["failed"], {**common, "error.type": "_OTHER"})


def _attributes(labels: dict[str, str]) -> dict[str, str]:
    return {
        _ATTRIBUTES.get(name, f"pykaproducer.{name}"): value
        for name, value in labels.items()
        if value
    }


def observe(
    *producers: Source,
    meter_provider: MeterProvider | None = None,
    per_partition: bool = True,
) -> Observed:
    """Register OpenTelemetry instruments that report *producers* at each collection.

    The producers are not kept alive. A closed one keeps its totals.

    Args:
        producers: the producers to observe; ``add()`` of the result adds more.
        meter_provider: default: the global one.
        per_partition (bool): report each partition separately; False adds up those of a topic.
    """
    observed = Observed(get_meter("pykaproducer", VERSION, meter_provider), per_partition)
    for producer in producers:
        observed.add(producer)
    return observed
