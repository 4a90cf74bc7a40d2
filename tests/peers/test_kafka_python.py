"""kafka-python's own tests of its producer, with only the import changed.

They are part of its source distribution, which pip downloads into a temporary directory. They run
in a separate process against a real cluster. All integration tests of its producer are run, and the
parts of its other integration tests that use a producer (to write to topics for consumers and for
administration). Tests that only its repository has are run by hand: tests/kafka_python/their_tests.
"""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator

import pytest

from pykaproducer.testing import KafkaCluster
from pykaproducer.testing._jars import KAFKA_VERSION

pytestmark = pytest.mark.full

VERSION = importlib.metadata.version("kafka-python")

#: Test modules and the selected tests: all of the producer, and those that send.
MODULES = {
    "test_producer_integration.py": "test",
    "test_consumer_integration.py": "test_kafka_consumer and not time_old",
    "test_admin_integration.py": "delete_groups or delete_records",
}

#: The minimum number of tests that must have run, so that none is skipped silently.
AT_LEAST = {
    "test_producer_integration.py": 17,
    "test_consumer_integration.py": 9,
    "test_admin_integration.py": 4,
}

_IMPORT = re.compile(r"^from kafka import (?P<names>.*\bKafkaProducer\b.*)$", re.MULTILINE)

#: Two files that its tests import and its source distribution does not contain.
MISSING = {
    "test/__init__.py": "",
    "test/service.py": """\
class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port


class SpawnedService:
    pass
""",
}


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCluster]:
    """Yield a broker that creates topics with as many partitions as theirs."""
    with KafkaCluster(properties={"num.partitions": "4"}, fast_start=True) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return its tests, with the import changed."""
    directory = tmp_path_factory.mktemp("kafka-python")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--no-binary", ":all:", f"kafka-python=={VERSION}", "--dest", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"pip cannot fetch the sources of kafka-python: {done.stderr[-300:]}")
    (archive,) = directory.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(directory, filter="data")
    root = directory / archive.name.removesuffix(".tar.gz")
    (root / "kafka").rename(root / "not-used")  # the installed kafka-python is used
    for name, content in MISSING.items():
        if not (root / name).exists():
            (root / name).write_text(content)
    changed = [path for path in (root / "test").rglob("*.py") if _change_import(path)]
    conftest = root / "test" / "integration" / "conftest.py"
    assert conftest in changed
    _refresh_soon(conftest)
    return root


def _refresh_soon(conftest: pathlib.Path) -> None:
    """Have the consumers of the tests refresh their metadata every second.

    A consumer of kafka-python 3.0.12 may not look up its topics for five minutes:

    1. it requests metadata without topics, to bootstrap;
    2. it is subscribed to a topic, and wants its metadata;
    3. the response to 1 arrives, and counts as the metadata that is wanted.
    """
    text = conftest.read_text()
    setting = "'auto_offset_reset': 'earliest',"
    assert text.count(setting) == 1
    conftest.write_text(text.replace(setting, f"{setting} 'metadata_max_age_ms': 1000,"))


def _change_import(path: pathlib.Path) -> bool:
    def without(match: re.Match[str]) -> str:
        names = [name.strip() for name in match["names"].split(",")]
        names.remove("KafkaProducer")
        ours = "from pykaproducer import KafkaProducer"
        return f"from kafka import {', '.join(names)}\n{ours}" if names else ours

    text, count = _IMPORT.subn(without, path.read_text())
    if count:
        path.write_text(text)
    return count > 0


def _run(sources: pathlib.Path, cluster: KafkaCluster, module: str) -> dict[str, str]:
    """Return the outcome of each test of a module."""
    host, _, port = cluster.bootstrap_servers.partition(":")
    report = sources / f"{module}.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(sources)]
    command += ["-p", "no:cacheprovider", "--import-mode=prepend", f"--junitxml={report}"]
    command += ["-k", MODULES[module], str(sources / "test" / "integration" / module)]
    done = subprocess.run(
        command,
        cwd=sources,
        env={
            **os.environ,
            "KAFKA_ROOT": str(sources),  # only a directory: nothing is started from it
            "KAFKA_URI": f"kafka://{host}:{port}",
            "KAFKA_VERSION": ".".join(KAFKA_VERSION.split(".")[:2]),
            "PYTHONPATH": os.pathsep.join([str(sources), *filter(None, sys.path)]),
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    print(done.stdout[-8000:], done.stderr[-2000:])
    outcomes = {}
    for case in ET.parse(report).iter("testcase"):
        outcome = next((child.tag for child in case if child.tag != "system-out"), "passed")
        outcomes[str(case.get("name"))] = outcome
    return outcomes


@pytest.mark.parametrize("module", MODULES)
def test_with_only_the_import_changed(
    sources: pathlib.Path, kafka: KafkaCluster, module: str
) -> None:
    outcomes = _run(sources, kafka, module)
    assert outcomes == dict.fromkeys(outcomes, "passed")
    assert len(outcomes) >= AT_LEAST[module]
