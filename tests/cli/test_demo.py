"""``demo``: its output, and that it detects a difference."""

from __future__ import annotations

import collections

import pytest

from pykaproducer import Producer
from pykaproducer.cli._display import STAGES, Board
from pykaproducer.cli.demo import _compare
from pykaproducer.testing import KafkaCluster

from .helper import run
from .terminal import on_a_terminal


@pytest.mark.kafka
def test_on_a_broker_of_its_own() -> None:
    done = run("demo", "--lines", "3000", "--partitions", "4")
    assert done.returncode == 0, done.stderr.decode()
    shown = done.stdout.decode("ascii")
    for stage, _ in STAGES:
        assert f"\n    {stage} " in shown
    counts = [line.split() for line in shown.splitlines() if "B  " in line and "#" in line]
    assert sum(int(count[1].replace(",", "")) for count in counts) == 3000
    assert "4 partitions" in shown
    assert "messages/s" in shown
    assert "SAME       all 3,000 messages, byte for byte, in order" in shown
    assert b"Traceback" not in done.stderr


def test_live_on_a_terminal(cluster: KafkaCluster) -> None:
    arguments = ("demo", "--lines", "1000", "--bootstrap-servers", cluster.bootstrap_servers)
    with on_a_terminal(*arguments, columns=100, lines=50) as terminal:
        assert terminal.end() == 0
        text = terminal.shown.decode()
    assert "\x1b[" in text
    assert "█" in text
    assert "SAME" in text


@pytest.mark.parametrize("changed", ["key", "value", "order", "missing"])
def test_a_difference_is_found(changed: str, cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic)
    messages = [(b"key", b"line %d" % number) for number in range(100)]
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for key, value in messages:
            producer.send(topic, value, key)
        producer.flush()
        rows = list(enumerate(messages))
        board = Board(collections.defaultdict(int), collections.defaultdict(int))
        assert _compare({0: rows}, producer, topic, board) is None
        assert board.read_back == {0: 100}
        if changed == "key":
            rows[50] = (50, (b"KEY", rows[50][1][1]))
        elif changed == "value":
            rows[50] = (50, (b"key", b""))
        elif changed == "order":
            rows[50], rows[51] = (50, rows[51][1]), (51, rows[50][1])
        else:
            rows.insert(50, (49, (b"key", b"one that never came")))
        board = Board(collections.defaultdict(int), collections.defaultdict(int))
        found = _compare({0: rows}, producer, topic, board)
    assert found is not None
