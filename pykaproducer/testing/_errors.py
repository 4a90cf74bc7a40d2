"""The errors of the test cluster."""

from __future__ import annotations


class ClusterError(RuntimeError):
    """An operation of the test cluster failed.

    The text says what happened and what to do. Examples are a component that is not installed or
    could not be downloaded, a broker that did not start (with the last lines of its log), or a
    topic that the cluster rejected.
    """

    __module__ = "pykaproducer.testing"


class NotInstalledError(ClusterError):
    """A component of the test cluster is not installed: Java, or jgo to download Kafka.

    The text says what is missing and how to install it.
    """

    __module__ = "pykaproducer.testing"
