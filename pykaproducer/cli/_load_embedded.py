"""``pykaproducer load`` in this process: files are read here, and one producer sends."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

from pykaproducer._load.sources import Options, Source, SourceError, open_source
from pykaproducer._load.summary import Summary
from pykaproducer.cli import _signals
from pykaproducer.cli._load_plan import Outcome, rejects_of, selection_of
from pykaproducer.cli._progress import Progress, progress
from pykaproducer.cli.common import UserError, log_hidden, log_shown, servers_text, settings_of
from pykaproducer.producer import Producer

#: How long send() may wait before we look for a signal (milliseconds).
_LOOK_MS = 200


def embedded(options: argparse.Namespace) -> Outcome:
    """Load in this process."""
    settings = settings_of(options.settings, options.bootstrap_servers)
    source = _open(options)
    job = _job(options, source)
    began = time.monotonic()
    with _signals.counted() as signals:
        producer = Producer(**{"max_block_ms": _LOOK_MS, **settings})
        servers = servers_text(producer.config.bootstrap_servers)
        feed = _Feed(source, job)
        try:
            with log_shown(), progress(f"to {options.topic or 'its topics'}", source.size) as shown:
                summary = feed.send(producer, shown, signals)
        finally:
            with log_hidden():
                producer.close(timeout=0)
    return Outcome(summary, servers, time.monotonic() - began, feed.trouble, signals.number)


def _open(options: argparse.Namespace) -> Source:
    try:
        return open_source(
            options.source, Options(options.format, options.delimiter, options.infer_types)
        )
    except SourceError as error:
        raise UserError(str(error)) from None


def _job(options: argparse.Namespace, source: Source) -> Any:
    mapping = selection_of(options, source.schema)
    from pykaproducer._load.job import Job  # which needs pyarrow: by now it is there

    return Job(options.topic, mapping, rejects_of(options), options.verify)


class _Feed:
    """Reads a source and remembers what could not be read."""

    def __init__(self, source: Source, job: Any) -> None:
        self.trouble: str | None = None
        self._source = source
        self._job = job

    def send(self, producer: Producer, shown: Progress, signals: _signals.Signals) -> Summary:
        """Send everything; what became of it."""
        from pykaproducer._load.job import Interrupted

        def look() -> None:
            if signals.count:
                raise Interrupted

        origins = self._origins(shown)
        found: Summary = self._job.run(producer, origins, "0", look)
        return found

    def _origins(self, shown: Progress) -> Iterator[Any]:
        from pykaproducer._load.rejects import Origin

        position = 0
        try:
            for batch in self._source.batches(self._job.mapping.columns):
                shown.advance(batch.position - position)
                position = batch.position
                yield Origin(batch.batch, batch.file, batch.first_row)
        except SourceError as error:
            self.trouble = f"{error}: not all of it was read"
