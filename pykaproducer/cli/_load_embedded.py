"""``pykaproducer load`` in this process: one thread reads the files, and one producer sends."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pykaproducer._load.sources import LoadSource, SourceError
from pykaproducer._load.writer import Interrupted
from pykaproducer.cli import _signals
from pykaproducer.cli._load_plan import (
    Outcome,
    files_of,
    load_progress,
    rejects_of,
    selection_of,
)
from pykaproducer.cli._pace import GRACE, settle
from pykaproducer.cli._progress import Progress
from pykaproducer.cli._readback import refuse_unreadable
from pykaproducer.cli._stats_socket import with_stats_socket
from pykaproducer.cli.common import log_hidden, log_shown, notify, settings_from
from pykaproducer.errors import PykaproducerError
from pykaproducer.producer import Producer

#: Maximum time that send() blocks between checks for a signal (milliseconds).
_LOOK_MS = 200
#: Less than the producer's default: a load sends as fast, in 100 MB less memory. max_request_size
#: may be larger.
_BUFFER_MEMORY = 32 << 20


def embedded(options: argparse.Namespace) -> Outcome:
    """Load in this process."""
    settings = with_stats_socket(options, settings_from(options))
    source = files_of(options)
    job = _job(options, source)
    began, problem = time.monotonic(), None
    with _signals.counted() as signals:
        # The writer waits as long as necessary, and checks for signals in between.
        least = max(_BUFFER_MEMORY, settings.get("max_request_size", 0))
        settings = {"buffer_memory": least, **settings, "max_block_ms": _LOOK_MS}
        producer = Producer(**settings)
        load = job.begin(producer, "0", _interrupted_by(signals))
        reading = LoadReading(source, job.mapping.columns, signals)
        try:
            if options.verify:
                refuse_unreadable(producer.config)
            with log_shown(), load_progress(options, source.size) as shown:
                load.send(reading.origins(shown))
                load.finish()
        except Interrupted:
            load.stop_looking()
            settle(producer, signals, lambda: _tell(producer), lambda: None)
        except PykaproducerError as error:
            problem = f"the load stopped early: {error}"
        finally:
            with log_hidden():  # the summary reports the messages that close() abandons
                producer.close(timeout=0)
    return Outcome(
        load.finish(),
        producer.config,
        time.monotonic() - began,
        reading.problem or problem,
        signals.number,
    )


def _tell(producer: Producer) -> None:
    pending = producer.stats()["messages"]["pending"]
    notify(
        f"stopping: waiting up to {GRACE:.0f} s for {pending:,} pending rows; interrupt again to "
        f"abandon them"
    )


def _interrupted_by(signals: _signals.Signals) -> Callable[[], None]:
    def look() -> None:
        if signals.count:
            raise Interrupted

    return look


def _job(options: argparse.Namespace, source: LoadSource) -> Any:
    mapping = selection_of(options, source.schema)
    from pykaproducer._load.job import Job  # requires pyarrow, which is imported by now

    return Job(options.topic, mapping, rejects_of(options), options.verify)


class LoadReading:
    """Reader of a source that records why reading stopped early."""

    def __init__(
        self, source: LoadSource, columns: Sequence[str], signals: _signals.Signals
    ) -> None:
        self.problem: str | None = None
        self._signals = signals
        self._source = source
        self._columns = columns

    def origins(self, shown: Progress) -> Iterator[Any]:
        """Yield the batches of the source. A signal ends the wait for a pipe by Interrupted."""
        from pykaproducer._load.rejects import Origin

        position = 0
        try:
            self._signals.error = Interrupted
            for batch in self._source.batches(self._columns):
                self._signals.error = None
                shown.advance(batch.position - position, batch.batch.num_rows)
                position = batch.position
                yield Origin(batch.batch, batch.file, batch.first_row)
                self._signals.error = Interrupted
                if self._signals.count:  # it came before that
                    raise Interrupted
        except SourceError as error:
            self.problem = f"{error}: only a part of it was read"
        finally:
            self._signals.error = None
