"""A load, embedded or on Spark: batches of a source are converted to messages and sent."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pykaproducer._load.mapping import Mapping
from pykaproducer._load.refused import RefusedRow
from pykaproducer._load.rejects import Origin, Rejects, RejectsDirectory
from pykaproducer._load.summary import Summary
from pykaproducer._load.writer import Writer
from pykaproducer.producer import Producer


@dataclass(frozen=True)
class Job:
    """The parameters of a load. Can be pickled."""

    #: None if the selection gives the topic of each row.
    topic: str | None
    mapping: Mapping
    #: Destination of rejected rows; None if the first of them ends the load.
    rejects: RejectsDirectory | None = None
    #: Whether to record what is needed for verification.
    verify: bool = False

    def begin(
        self, producer: Producer, part: str, look: Callable[[], None] | None = None
    ) -> RunningLoad:
        """Start a part of the load.

        Args:
            producer (Producer): the producer to send with.
            part (str): the part's name, which must be unique within the load.
            look: called many times a second; may raise ``writer.Interrupted`` to end the load.
        """
        return RunningLoad(self, producer, part, look)


class RunningLoad:
    """A part of a load in progress: all of it if embedded, or a task on Spark."""

    def __init__(
        self, job: Job, producer: Producer, part: str, look: Callable[[], None] | None
    ) -> None:
        #: Called with each encoded batch before it is sent; None: not called.
        self.on_batch: Callable[[Any], None] | None = None
        self._job = job
        self._producer = producer
        self._summary: Summary | None = None
        self._refused = Rejects(job.rejects, part)
        self._writer = Writer(producer, job.topic, self._refused, verifiable=job.verify, look=look)

    def send(self, origins: Iterable[Origin]) -> None:
        """Send batches of the source, which have the columns that the mapping requires."""
        for origin in origins:
            self._send_one(origin)
            if self._refused.ends_the_load:
                return

    def finish(self) -> Summary:
        """Wait for all outcomes and return the summary. Idempotent."""
        if self._summary is None:
            self._summary = self._writer.finish()
        return self._summary

    def stop_looking(self) -> None:
        """Call *look* no more."""
        self._writer.look = None

    def _send_one(self, origin: Origin) -> None:
        mapped = self._job.mapping(origin.batch)
        batch, refused = mapped.batch, mapped.refused
        if refused and self._job.rejects is None:
            # The first of them ends the load. Rows before it are sent.
            refused = refused[:1]
            assert mapped.rows is not None
            batch = batch.slice(0, bisect.bisect(mapped.rows, refused[0][0]))
        if self.on_batch is not None:
            self.on_batch(batch)
        before = self._writer.rows
        self._writer.write(batch, origin._replace(rows=mapped.rows))
        if refused and not self._refused.ends_the_load:
            rows = [RefusedRow(before + place, place, error) for place, error in refused]
            self._refused.take(origin, rows)
