"""Something dies in the middle of a write or load on a small cluster, which succeeds."""

from __future__ import annotations

import pathlib
from collections import Counter

import pytest
from pyarrow import parquet

from pykaproducer.testing import KafkaCluster
from tests.transactions.helper import read

from .fault_app import FAULTS, FIRST_TASK, LOAD_FAULTS, REFUSED, ROWS
from .helper import SOON, Meeting, application, records, wait_for_rows


@pytest.mark.parametrize(
    "once",
    [
        pytest.param(False, id="at least once", marks=pytest.mark.full),
        pytest.param(True, id="exactly once"),
    ],
)
def test_nothing_is_lost(
    own_cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path, tell: list[str], once: bool
) -> None:
    for fault in FAULTS:
        own_cluster.create_topic(f"{topic}-{fault}", partitions=3)
    meetings = {fault: Meeting(tmp_path / f"sign-{fault}") for fault in FAULTS}
    arguments = {
        "servers": own_cluster.bootstrap_servers,
        "topic": topic,
        "local": str(tmp_path),
        "sign": str(tmp_path / "sign"),
        **({"once": "true"} if once else {}),
    }
    with application("fault_app.py", arguments, tmp_path / "log") as running:
        for fault, meeting in meetings.items():
            meeting.wait(SOON)
            # The fault was in the middle: rows of the lost attempt are in the log.
            wait_for_rows(own_cluster, f"{topic}-{fault}", FIRST_TASK, 3)
            if fault != "broker":
                meeting.go_on()
        own_cluster.kill(0)
        try:
            meetings["broker"].go_on()
        finally:
            own_cluster.restart(0)
        status = running.wait(SOON)
    log = (tmp_path / "log").read_text()
    assert status == 0, log[-5000:]
    assert log.count("Lost task 0.0") == 2, "the worker's and the executor's"
    for fault in FAULTS:
        name = f"{topic}-{fault}"
        if once:
            found = read(own_cluster.bootstrap_servers, name, "read_committed", range(3))
            assert sorted(map(int, found)) == list(range(ROWS))
            continue
        counts = Counter(int(record.value or b"") for record in records(own_cluster, name, 3))
        assert set(counts) == set(range(ROWS))
        # A restarted task writes its rows again; those of the other tasks are there once.
        again = sum(counts.values()) - ROWS
        tell.append(f"Spark, the {fault} dies in a write of {ROWS:,} rows: {again:,} twice")
        assert again <= ROWS // 2
        assert (again == 0) == (fault == "broker")


@pytest.mark.full
@pytest.mark.parametrize("once", [False, True], ids=["at least once", "exactly once"])
def test_a_load_loses_nothing(
    cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path, tell: list[str], once: bool
) -> None:
    """What was rejected is kept once, too."""
    for fault in LOAD_FAULTS:
        cluster.create_topic(f"{topic}-{fault}", partitions=3)
    meetings = {fault: Meeting(tmp_path / f"sign-{fault}") for fault in LOAD_FAULTS}
    arguments = {
        "servers": cluster.bootstrap_servers,
        "topic": topic,
        "local": str(tmp_path),
        "sign": str(tmp_path / "sign"),
        "load": "true",
        **({"once": "true"} if once else {}),
    }
    with application("fault_app.py", arguments, tmp_path / "log") as running:
        for fault, meeting in meetings.items():
            meeting.wait(SOON)
            wait_for_rows(cluster, f"{topic}-{fault}", FIRST_TASK, 3)
            assert once or hidden(tmp_path / f"rows-{fault}")
            meeting.go_on()
        status = running.wait(SOON)
    log = (tmp_path / "log").read_text()
    assert status == 0, log[-5000:]
    rejected = set() if once else set(range(0, ROWS, REFUSED))
    for fault in LOAD_FAULTS:
        name = f"{topic}-{fault}"
        assert f"-- {fault}: exit status {int(not once)}" in log, log[-5000:]
        if once:
            found = read(cluster.bootstrap_servers, name, "read_committed", range(3))
            assert sorted(map(int, found)) == list(range(ROWS))
            continue
        counts = Counter(int(record.value or b"") for record in records(cluster, name, 3))
        assert set(counts) == set(range(ROWS)) - rejected
        again = sum(counts.values()) - len(counts)
        tell.append(f"Spark, the {fault} dies in a load of {ROWS:,} rows: {again:,} twice")
        assert 0 < again <= ROWS // 2
        kept = parquet.read_table(tmp_path / f"rows-{fault}").column("value").to_pylist()
        assert sorted(map(int, kept)) == sorted(rejected)
        assert not hidden(tmp_path / f"rows-{fault}"), "of the attempt that died"


def hidden(directory: pathlib.Path) -> list[pathlib.Path]:
    """Return the files of rejected rows that are not complete."""
    return list(directory.glob(".*"))
