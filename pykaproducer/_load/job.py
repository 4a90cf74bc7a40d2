"""A load: batches of a source become messages and are sent; the same embedded and on Spark."""

from __future__ import annotations

import bisect
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


class Interrupted(Exception):
    """The load is to end now. Raised by what ``Job.run()`` is given as *look*."""


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

    def run(
        self,
        producer: Producer,
        origins: Iterable[Origin],
        part: str,
        look: Callable[[], None] | None = None,
    ) -> Summary:
        """Send the rows of *origins*; what became of them.

        Args:
            producer (Producer): sends them.
            origins: batches of the source, of the columns that the mapping wants.
            part (str): which part of the load it is, unlike all others.
            look: called several times a second; raises :class:`Interrupted` to end the load, which
                gives what was sent a few seconds, and the producer up.
        """
        refused = Rejects(self.rejects, part)
        writer = Writer(producer, self.topic, refused, verifiable=self.verify, look=look)
        try:
            for origin in origins:
                if look is not None:
                    look()
                self._send(writer, refused, origin)
                if refused.ends_the_load:
                    break
            return writer.finish()
        except Interrupted:
            try:
                producer.flush(GRACE)
            except (FlushTimeoutError, DeliveryFailures):
                pass  # the summary tells of them
            producer.close(timeout=0)
            writer.look = None
            return writer.finish()

    def _send(self, writer: Writer, refused: Rejects, origin: Origin) -> None:
        mapped = self.mapping(origin.batch)
        batch = mapped.batch
        if mapped.refused:
            refused.take(origin, list(unsent(mapped.refused, writer.rows)))
            if refused.ends_the_load:
                assert mapped.rows is not None
                batch = batch.slice(0, bisect.bisect(mapped.rows, mapped.refused[0][0]))
        writer.write(batch, origin._replace(rows=mapped.rows))
