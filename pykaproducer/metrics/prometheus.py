"""Metrics for Prometheus: collectors for the library prometheus-client.

A collector calls ``stats()`` when it is scraped, and costs nothing in between::

    from prometheus_client import REGISTRY
    from pykaproducer.metrics import ProducerCollector

    REGISTRY.register(ProducerCollector(producer))

If several processes serve one address (gunicorn), only the one that is scraped would report. In
that case, set ``stats_socket="/run/app/%p.sock"`` for each producer, and use a
:class:`SocketCollector`, which reads all of them.
"""

from __future__ import annotations

import glob
import itertools
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pykaproducer.metrics._instruments import INSTRUMENTS, Instrument, Snapshot, points
from pykaproducer.metrics._sources import Source, Sources
from pykaproducer.stats import read_stats

try:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError(
        "pykaproducer.metrics.prometheus needs prometheus-client: "
        "pip install 'pykaproducer[prometheus]'"
    ) from error

#: Prometheus' names of units.
_UNITS = {"By": "bytes", "s": "seconds"}

_HISTOGRAMS = {
    "delivery": "Time from send() to the outcome.",
    "request": "Time from a produce request to its response.",
    "queue": "Time from send() until the batch is closed.",
    "commit": "Time from commit_transaction() to its confirmation.",
}

#: The values of the labels that distinguish sources, and the source's snapshot.
Labelled = tuple[tuple[str, ...], Snapshot]


class _Families(Collector):
    """Metric families from snapshots, which a subclass provides."""

    #: The labels that distinguish sources.
    _own_labels: tuple[str, ...] = ("client_id",)

    def __init__(self, per_partition: bool, labels: Mapping[str, str] | None) -> None:
        self._per_partition = per_partition
        self._constant = dict(labels or {})
        taken = {name for each in INSTRUMENTS for name in each.labels}.union(self._own_labels)
        if taken & self._constant.keys():
            raise ValueError(
                f"labels {', '.join(sorted(taken & self._constant.keys()))}: the metrics already "
                f"have labels with these names; choose others"
            )

    def describe(self) -> Iterable[Metric]:
        """Return the names for the registry, without reading any source."""
        return self._families([])

    def collect(self) -> Iterable[Metric]:
        """Return the current metrics of all sources."""
        return self._families(list(self._snapshots()))

    @abstractmethod
    def _snapshots(self) -> Iterator[Labelled]:
        """Yield the snapshot of each source that answers."""

    def _families(self, sources: Sequence[Labelled]) -> list[Metric]:
        families = [self._family(instrument, sources) for instrument in INSTRUMENTS]
        return [*families, *(self._histogram(which, sources) for which in _HISTOGRAMS)]

    def _names(self, more: Sequence[str]) -> list[str]:
        return [*self._own_labels, *self._constant, *more]

    def _values(self, own: Sequence[str], more: Iterable[str]) -> list[str]:
        return [*own, *self._constant.values(), *more]

    def _family(self, instrument: Instrument, sources: Sequence[Labelled]) -> Metric:
        kind = CounterMetricFamily if instrument.counts else GaugeMetricFamily
        name = "_".join(filter(None, [_name(instrument.name), _UNITS.get(instrument.unit)]))
        family = kind(name, instrument.help, labels=self._names(instrument.labels))
        for own, snapshot in sources:
            for labels, value in points(instrument, snapshot, self._per_partition):
                family.add_metric(self._values(own, labels.values()), value)
        return family

    def _histogram(self, which: str, sources: Sequence[Labelled]) -> Metric:
        name = f"{_name(which)}_latency_seconds"
        family = HistogramMetricFamily(name, _HISTOGRAMS[which], labels=self._names(()))
        for own, snapshot in sources:
            histogram = snapshot["latency_ms"].get(which, {}).get("histogram")
            if histogram is not None:
                buckets, total = _buckets(histogram)
                family.add_metric(self._values(own, ()), buckets, total)
        return family


def _name(name: str) -> str:
    return f"pykaproducer_{name.replace('.', '_')}"


def _buckets(histogram: Mapping[str, Any]) -> tuple[list[tuple[str, float]], float]:
    """Return the buckets of Prometheus, which are cumulative and whose last has no bound."""
    bounds = [*(f"{bound / 1000:g}" for bound in histogram["le_ms"]), "+Inf"]
    counts = itertools.accumulate(histogram["counts"])
    return list(zip(bounds, counts, strict=True)), histogram["sum_ms"] / 1000


class ProducerCollector(_Families):
    """A collector for producers of this process.

    It does not keep producers alive. A closed one keeps its totals for as long as it exists. If two
    have the same ``client_id``, the second gets a number (``name#2``).

    Args:
        producers: the producers to collect from; :meth:`add` adds more.
        per_partition (bool): report each partition separately; False adds up those of a topic.
        labels: additional labels for all metrics.
    """

    def __init__(
        self,
        *producers: Source,
        per_partition: bool = True,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(per_partition, labels)
        self._sources = Sources()
        for producer in producers:
            self.add(producer)

    def add(self, producer: Source) -> None:
        """Add *producer*."""
        self._sources.add(producer)

    def remove(self, producer: Source) -> None:
        """Remove *producer*."""
        self._sources.remove(producer)

    def _snapshots(self) -> Iterator[Labelled]:
        for name, snapshot in self._sources.snapshots():
            yield (name,), snapshot


class SocketCollector(_Families):
    """A collector for producers that listen on Unix sockets, in any process of this machine.

    Metrics have the additional label ``pid``. Producers that do not answer are left out.

    Args:
        pattern (str): the sockets, for example ``"/run/app/*.sock"``.
        per_partition (bool): report each partition separately; False adds up those of a topic.
        labels: additional labels for all metrics.
        timeout (float): seconds that a producer may take to answer.
    """

    _own_labels = ("client_id", "pid")

    def __init__(
        self,
        pattern: str,
        *,
        per_partition: bool = True,
        labels: Mapping[str, str] | None = None,
        timeout: float = 2.0,
    ) -> None:
        super().__init__(per_partition, labels)
        self._pattern = pattern
        self._timeout = timeout

    def _snapshots(self) -> Iterator[Labelled]:
        seen = set()
        for path in sorted(glob.glob(self._pattern)):
            try:
                snapshot = read_stats(path, self._timeout)
            except (OSError, ValueError):
                continue  # a process that has ended and left its socket
            own = (snapshot["client_id"], str(snapshot["pid"]))
            if own not in seen:
                seen.add(own)
                yield own, snapshot
