"""A TLS context whose files other programs may renew while the producer runs.

cert-manager, SPIFFE or Vault replace certificates and revocation lists every few hours.
"""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Callable, Iterable
from typing import TypeAlias

from pykaproducer._util.guarded_log import GuardedLogger
from pykaproducer.errors import ConfigurationError

log = GuardedLogger("pykaproducer.net")

#: Properties that change with the contents, for each file. Symbolic links are followed, because in
#: a volume of Kubernetes only the directory that they lead through is replaced (``..data``).
_Stamp: TypeAlias = list[tuple[int, ...]]


class RenewedContext:
    """A TLS context for new connections, created again when one of its files has changed.

    Connections keep the context that they began with, and none resumes a TLS session: a replaced
    certificate is used by no later connection. Any thread may call :meth:`current`.

    Args:
        make: creates the context; raises ConfigurationError.
        paths: the files that it reads; None is skipped.
    """

    def __init__(self, make: Callable[[], ssl.SSLContext], paths: Iterable[str | None]) -> None:
        self._make = make
        self._paths = [path for path in paths if path is not None]
        self._making = threading.Lock()
        #: The last context. Read without the lock, whose owner may not exist in a forked child.
        self.context: ssl.SSLContext | None = None
        self._stamp: _Stamp | None = None  # of that context's files
        self._warned: _Stamp | None = None  # of files that could not be used

    def current(self) -> ssl.SSLContext:
        """Return the context for a new connection.

        If the renewed files cannot be used, it is the previous one, and each call tries again.

        Raises:
            ConfigurationError: there is no previous one.
        """
        with self._making:
            # Before they are read: if they change in the meantime, the next call reads them again.
            stamp = self._look()
            # A file that is missing is about to be replaced.
            if self.context is not None and stamp in (None, self._stamp):
                return self.context
            try:
                context = self._make()
            except ConfigurationError as error:
                if self.context is None:
                    raise
                # Files that change while they are read, as a certificate and then its key, are
                # judged by the next call.
                if stamp != self._warned and stamp == self._look():
                    self._warned = stamp
                    log.warning("%s; until then, connections use the previous contents", error)
                return self.context
            if self._stamp is not None:
                log.info("new connections use the changed files: %s", ", ".join(self._paths))
            # OpenSSL does not report that it could not read the system's CA certificates, for
            # example because the process has too many open files. If there are none, load them
            # again next time. (A directory's are not counted, and are read when they are needed.)
            self._stamp = stamp if context.cert_store_stats()["x509_ca"] else None
            self.context = context
            return context

    def _look(self) -> _Stamp | None:
        """Return the stamp of the files, None if one is missing."""
        try:
            found = map(os.stat, self._paths)
            return [(s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in found]
        except OSError:
            return None
