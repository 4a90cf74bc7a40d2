"""The error of the test cluster."""

from __future__ import annotations


class ClusterError(RuntimeError):
    """The test cluster could not do what it was asked for.

    The text says what happened and what to do: a part that is not installed or could not be
    fetched, a broker that did not start (with the last lines of its log), a topic that the
    cluster refused.
    """

    __module__ = "pykaproducer.testing"
