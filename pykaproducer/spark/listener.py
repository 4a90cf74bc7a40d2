"""``ProgressListener``: Spark's progress of a stream, and what the sink wrote, in one callback."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import weakref
from collections.abc import Callable
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql.streaming.listener import StreamingQueryListener

from pykaproducer._load.summary import Summary
from pykaproducer.spark.options import PROGRESS_DIRECTORY, SinkError
from pykaproducer.spark.reports import remove, take

log = logging.getLogger("pykaproducer.spark")


class ProgressListener(StreamingQueryListener):
    """Call a function for each micro-batch that a stream has written with this sink.

    Pass :attr:`options` to the stream. Several queries of the session can share a listener. Close
    it, or use it in a ``with`` block, before the session is stopped.

    Args:
        spark (SparkSession): the session of the queries. With Spark Connect the server must run on
            the same machine as the program, with the same file system.
        callback: called as ``callback(progress, summary)``, with Spark's ``StreamingQueryProgress``
            and a :class:`Summary`, in one of Spark's threads and in the order of the batches. An
            exception is logged. While it runs other listeners wait, but not the query. It must not
            close the listener.

    Raises:
        SinkError: the server of Spark Connect does not share the program's file system.
    """

    def __init__(self, spark: Any, callback: Callable[[Any, Summary], object]) -> None:
        self._session = spark
        self._callback = callback
        self._changed = threading.Condition()
        #: The runs that Spark has not reported as ended.
        self._runs: set[str] = set()
        self._directory = tempfile.mkdtemp(prefix="pykaproducer-progress-")
        # Also called at the end of the program.
        self._remove = weakref.finalize(self, remove, self._directory, os.getpid())
        try:
            if self._is_remote:
                check_shared(spark, self._directory)
            spark.streams.addListener(self)
        except BaseException:
            self._remove()
            raise

    @property
    def options(self) -> dict[str, str]:
        """The options with which a stream reports to this listener."""
        return {PROGRESS_DIRECTORY: self._directory}

    def close(self, timeout: float = 10.0) -> None:
        """Stop listening. Queries continue, and write as before.

        Args:
            timeout: Spark reports a batch some time after it is written. For queries that have
                ended, wait up to this time (seconds) for what is still to be reported.
        """
        if not self._remove.alive:
            return
        try:
            active = {str(query.runId) for query in self._session.streams.active}
            with self._changed:
                self._changed.wait_for(lambda: self._runs <= active, timeout)
                is_idle = not self._runs
            # In Spark Connect removing the last listener holds a lock and waits for the thread that
            # calls the listeners. That thread needs the lock for each event, and so neither
            # continues if there is one. A listener that stays gets no summary any more.
            if is_idle or not self._is_remote:
                self._session.streams.removeListener(self)
        finally:
            self._remove()

    def __enter__(self) -> ProgressListener:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def _is_remote(self) -> bool:
        return type(self._session).__module__.startswith("pyspark.sql.connect.")

    # Called by Spark -----------------------------------------------------------------------------

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Note that a query runs."""
        with self._changed:
            self._runs.add(str(event.runId))

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Call the callback, if the batch was written with this sink and these options."""
        progress = event.progress
        summary = take(self._directory, str(progress.runId), progress.batchId)
        if summary is None:
            return
        try:
            self._callback(progress, summary)
        except Exception:
            log.exception("exception in callback %r; the query is not affected", self._callback)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Note that a query has ended."""
        with self._changed:
            self._runs.discard(str(event.runId))
            self._changed.notify_all()


def check_shared(spark: Any, directory: str) -> None:
    """Raise SinkError if the driver of *spark* does not see *directory*."""
    try:
        _ = spark.read.text(f"file:{directory}").schema  # Spark looks at the directory for this
    except AnalysisException as error:
        raise SinkError(
            f"the server of Spark Connect does not see {directory}, a directory of this program: "
            f"ProgressListener requires that both run on the same machine. Write with "
            f"foreachBatch() and pykaproducer.spark.write(), which returns the summary to your "
            f"function on the server"
        ) from error
