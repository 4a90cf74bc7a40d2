"""The errors of an exactly-once write.

*Visible* means here: to readers with ``isolation.level=read_committed``.
"""

from __future__ import annotations

from pykaproducer.errors import PykaproducerError


class ExactlyOnceError(PykaproducerError):
    """A batch was not committed. Nothing of it is visible, unless the text says otherwise.

    Restart the query, or repeat the write with its ``writeId``: the replay writes the batch again,
    or completes it if the driver had decided to commit it.
    """


class PrefixInUseError(ExactlyOnceError):
    """Another query uses the same ``transactionalIdPrefix``, or a second driver of this one runs.

    Choose another prefix, or stop the other driver.
    """


class StateMismatchError(ExactlyOnceError):
    """The state in Kafka is missing or damaged, or does not fit the checkpoint of the query.

    The text says what to restore, or which option to set.
    """


class TransactionsExpiredError(ExactlyOnceError):
    """Transactions of tasks have timed out, or would before the driver has committed them all.

    The replay writes the batch again; a batch write is to be started again. If that fails in the
    same way, write fewer rows at once, or raise ``kafka.transaction.timeout.ms`` and the brokers'
    ``transaction.max.timeout.ms``.
    """


class PartialCommitError(ExactlyOnceError):
    """The rows of some tasks of a batch are visible, and those of other tasks are lost.

    Run the query again with the parallelism that it had, or set ``onPartialCommit``.
    """
