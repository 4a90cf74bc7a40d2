"""A Spark session for the tests that need one, started once, when the first test requests it."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import pykaproducer

#: The directory of the package: Spark's processes import it from there, however it was installed.
ROOT = pathlib.Path(pykaproducer.__file__).parent.parent

_OLDEST_JAVA = 17


def java_of_the_machine() -> str | None:
    """Return the home of a Java that runs Spark, from ``JAVA_HOME`` or from ``PATH``."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(f"{home}/bin/java") if home else shutil.which("java")
    if java is None:
        return None
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', told)
    if version is None or int(version[1]) < _OLDEST_JAVA:
        return None
    return str(pathlib.Path(java).resolve().parent.parent)


def spark_environment() -> dict[str, str]:
    """Return the variables that Spark's processes need; skip where there is no suitable Java."""
    home = java_of_the_machine()
    if home is None:
        pytest.skip(f"no Spark to test with: it needs Java {_OLDEST_JAVA} or newer, on PATH")
    return {
        "JAVA_HOME": home,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }


def spark_session(master: str, directory: pathlib.Path, **conf: str) -> Any:
    """Start a separate session on *master* that keeps its files in *directory*."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("tests")
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
        **conf,
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


_TOLD = pytest.StashKey[list[str]]()


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> list[str]:
    """Return a list of lines that are shown at the end of the run, even if it succeeds."""
    return request.config.stash.setdefault(_TOLD, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the lines that the tests have recorded."""
    for line in terminalreporter.config.stash.get(_TOLD, []):
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yield a session on ``local[2]``; its JVM ends with the test run."""
    environment = spark_environment()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        session = spark_session("local[2]", tmp_path_factory.mktemp("spark"))
        yield session
        gateway = session.sparkContext._gateway
        session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()  # at which the JVM ends
        gateway.proc.wait(30)
