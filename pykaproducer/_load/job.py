"""A load: batches of a source become messages and are sent; the same embedded and on Spark."""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pykaproducer._load.mapping import Mapping
from pykaproducer._load.rejects import Origin, Rejects, RejectsDirectory, unsent
from pykaproducer._load.summary import Summary
from pykaproducer._load.writer import Writer
from pykaproducer.errors import DeliveryFailures, FlushTimeoutError
from pykaproducer.producer import Producer

#: How long what was sent may take to be delivered after an interruption (seconds).
GRACE = 5.0


@dataclass(frozen=True)
class Job:
    """What is to be done. Can be pickled."""

    #: None: the selection says it for each row.
    topic: str | None
    mapping: Mapping
    #: Where refused rows are kept; None: the first of them ends the load.
    rejects: RejectsDirectory | None = None
    #: Keep what is needed to read everything back.
    verify: bool = False

    def begin(self, producer: Producer, part: str, look: Callable[[], None] | None = None) -> Load:
        """Begin a part of the load.

        Args:
            producer (Producer): sends it.
            part (str): its name, unlike that of all others.
            look: called many times a second; raises
                ``writer.Interrupted`` to end the load.
        """
        return Load(self, producer, part, look)


class Load:
    """A part of a load under way: all of it in one process, or a task on Spark."""

    def __init__(
        self, job: Job, producer: Producer, part: str, look: Callable[[], None] | None
    ) -> None:
        self._job = job
        self._producer = producer
        self._summary: Summary | None = None
        self._refused = Rejects(job.rejects, part)
        self._writer = Writer(producer, job.topic, self._refused, verifiable=job.verify, look=look)

    def send(self, origins: Iterable[Origin]) -> None:
        """Send batches of the source, of the columns that the mapping wants."""
        for origin in origins:
            self._send_one(origin)
            if self._refused.ends_the_load:
                return

    def finish(self) -> Summary:
        """Wait until every row has its outcome; what became of them. May be called again."""
        if self._summary is None:
            self._summary = self._writer.finish()
        return self._summary

    def interrupt(self) -> None:
        """Give what was sent a few seconds; then the producer is to be closed."""
        self._writer.look = None
        # The summary tells of those that fail.
        with contextlib.suppress(FlushTimeoutError, DeliveryFailures):
            self._producer.flush(GRACE)

    def _send_one(self, origin: Origin) -> None:
        mapped = self._job.mapping(origin.batch)
        batch, refused = mapped.batch, mapped.refused
        if refused and self._job.rejects is None:
            # The first of them ends the load. Those before it go.
            refused = refused[:1]
            assert mapped.rows is not None
            batch = batch.slice(0, bisect.bisect(mapped.rows, refused[0][0]))
        before = self._writer.rows
        self._writer.write(batch, origin._replace(rows=mapped.rows))
        if refused and not self._refused.ends_the_load:
            self._refused.take(origin, list(unsent(refused, before)))
