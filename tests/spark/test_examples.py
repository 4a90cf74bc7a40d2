"""The example runs as its README describes, on the log of a real web server."""

from __future__ import annotations

import http.client
import json
import os
import pathlib
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from pykaproducer.testing import KafkaCluster
from tests._support.fixtures.spark import spark_environment
from tests.cluster.readback import Record

from .helper import SOON, records

pytestmark = pytest.mark.full

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "access_log.py"


#: The requests to the web server, and its answers.
ASKED = [("GET", "/page"), ("GET", "/missing?a=b%20c"), ("POST", "/"), ("GET", "/")]
ANSWERED = [200, 404, 501, 200]

#: As nginx writes it. The last client did not speak HTTP.
COMBINED = r"""
192.0.2.7 - alice [17/May/2024:12:30:15 +0200] "GET /q?x=\x22 HTTP/2.0" 200 53 "http://a/ b" "M (X)"
2001:db8::1 - - [17/May/2024:12:30:59 +0000] "POST /api HTTP/1.1" 503 0 "-" "curl/8.1"
192.0.2.8 - - [17/May/2024:12:31:00 +0000] "\x16\x03\x01" 400 157 "-" "-"
"""


class Run(NamedTuple):
    """The input and the results of the example."""

    #: The lines of the server's log.
    log: list[str]
    #: Its output, including Spark's.
    output: str
    #: Everything in each of its topics.
    topics: dict[str, list[Record]]

    def requests_in(self, file: bytes) -> list[Record]:
        """Return the requests of one log file."""
        return [each for each in self.topics["requests"] if ("file", file) in each.headers]


@pytest.fixture(scope="module")
def run(cluster: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run the example on the logs of two servers."""
    directory = tmp_path_factory.mktemp("example")
    site, logs, log = directory / "site", directory / "logs", directory / "access.log"
    site.mkdir()
    logs.mkdir()
    (site / "page").write_text("hello")
    environment = spark_environment()
    with web_server(site, log) as address:
        assert [ask(address, method, path) for method, path in ASKED] == ANSWERED
    log.rename(logs / "access-1.log")
    (logs / "combined.log").write_text(COMBINED)
    output = run_example(logs, cluster, directory, environment)
    topics = ("requests", "unparsed", "status-counts")
    return Run(
        log=(logs / "access-1.log").read_text().splitlines(),
        output=output,
        topics={topic: records(cluster, topic) for topic in topics},
    )


@contextmanager
def web_server(site: pathlib.Path, log: pathlib.Path) -> Iterator[str]:
    """Run ``python -m http.server``, which writes its log to *log*; yield its address."""
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"]
    with (
        open(log, "wb") as errors,
        subprocess.Popen(
            [*command, "--directory", str(site)], stdout=subprocess.PIPE, stderr=errors, text=True
        ) as server,
    ):
        try:
            assert server.stdout is not None
            address = re.search(r"http://([\d.:]+)/", server.stdout.readline())
            assert address is not None
            yield address[1]
        finally:
            server.terminate()


def ask(address: str, method: str, path: str) -> int:
    """Make a request, and return the status of the answer."""
    connection = http.client.HTTPConnection(address, timeout=SOON)
    connection.request(method, path)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def run_example(
    logs: pathlib.Path, cluster: KafkaCluster, directory: pathlib.Path, environment: dict[str, str]
) -> str:
    """Run the example on the files in *logs*, and return its output."""
    command = [sys.executable, str(EXAMPLE), str(logs), "--once"]
    output = directory / "output"
    with open(output, "wb") as file:
        ended = subprocess.run(
            [*command, "--bootstrap-servers", cluster.bootstrap_servers],
            cwd=directory,
            env={
                **os.environ,
                **environment,
                "SPARK_LOCAL_DIRS": str(directory / "local"),
                "PYSPARK_SUBMIT_ARGS": "--conf spark.ui.enabled=false pyspark-shell",
            },
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            timeout=SOON,
            check=False,
        )
    assert ended.returncode == 0, output.read_text()[-5000:]
    return output.read_text()


def value_of(record: Record) -> Any:
    return json.loads(record.value or b"")


def test_the_requests_of_a_web_server_come_to_kafka(run: Run) -> None:
    found = run.requests_in(b"access-1.log")
    assert [(value_of(each)["method"], value_of(each)["path"]) for each in found] == ASKED
    assert [value_of(each)["status"] for each in found] == ANSWERED
    assert {each.key for each in found} == {b"127.0.0.1"}
    moments = [re.search(r'\[(.*)\] "', line) for line in run.log]
    # It writes the local time, without a time zone.
    times = [time.strptime(moment[1], "%d/%b/%Y %H:%M:%S") for moment in moments if moment]
    assert [each.timestamp for each in found] == [int(time.mktime(t)) * 1000 for t in times]


def test_the_combined_format_is_understood(run: Run) -> None:
    first, second = run.requests_in(b"combined.log")
    assert (first.key, first.timestamp) == (b"192.0.2.7", 1715941815000)
    assert (second.key, second.timestamp) == (b"2001:db8::1", 1715949059000)
    fields = value_of(first)
    del fields["time"]  # the same as the timestamp, in the local time zone
    assert fields == {
        "method": "GET",
        "path": r"/q?x=\x22",
        "protocol": "HTTP/2.0",
        "status": 200,
        "size": 53,
        "referrer": "http://a/ b",
        "agent": "M (X)",
    }
    assert "referrer" not in value_of(second)


def test_lines_that_are_no_requests_have_a_topic_of_their_own(run: Run) -> None:
    explained = [line for line in run.log if "] code " in line]
    assert len(explained) == 2, "http.server explains each error in a line"
    found = [(each.value or b"").decode() for each in run.topics["unparsed"]]
    assert sorted(found) == sorted([*explained, COMBINED.splitlines()[-1]])


def test_requests_are_counted_by_status(run: Run) -> None:
    newest = {each.key: value_of(each) for each in run.topics["status-counts"]}
    found: Counter[int] = Counter()
    for count in newest.values():  # for each minute: the server may have worked in two
        found[count["status"]] += count["count"]
    assert found == {200: 3, 404: 1, 501: 1, 503: 1}


def test_it_says_what_it_has_written(run: Run) -> None:
    assert "stream requests batch 0: 9 rows" in run.output
    assert "status-counts, batch 0: " in run.output
