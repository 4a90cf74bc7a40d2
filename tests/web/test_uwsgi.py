"""uWSGI, which forks its workers without running Python's fork hooks."""

from __future__ import annotations

import pathlib
import sys
import types

import pytest

from pykaproducer import Producer, UnsupportedFeatureError
from pykaproducer.testing import KafkaCluster

from .helper import assert_once, environment, free_port, in_the_log, load, running, stop_after, tool

#: On SIGTERM the workers finish their requests, and then run their exit hooks.
GRACEFULLY = ["--hook-master-start", "unix_signal:15 gracefully_kill_them_all"]


@pytest.mark.full
@pytest.mark.parametrize(
    "options",
    [["--threads", "2"], ["--enable-threads", "--lazy-apps"]],
    ids=["forked", "lazy-apps"],
)
def test_what_it_accepts_is_in_the_log_once_also_when_it_is_stopped_under_load(
    cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path, options: list[str]
) -> None:
    """Also with a producer that was used before the fork, which no hook of Python notices."""
    cluster.create_topic(topic)
    forked = "--lazy-apps" not in options
    port = free_port()
    command = [tool("uwsgi"), "--http-socket", f"127.0.0.1:{port}", "--master", "--processes", "3"]
    command += [*GRACEFULLY, "--module", "application", "--listen", "100", *options]
    env = environment(
        cluster, tmp_path, TOPIC=topic, **({"USE_BEFORE_FORK": "1"} if forked else {})
    )
    with running(command, tmp_path, env, port) as server:
        # A uWSGI worker that is still loading its application ignores the request to stop.
        loads = 1 if forked else 3
        server.until(
            lambda: server.output.count("seconds on interpreter") == loads, "loaded applications"
        )
        answers = load(server, 10_000, each=stop_after(server, 600, different=2))
        assert server.wait() == 0, server.output
    assert 600 <= len(answers.accepted) < 10_000, server.output
    assert len(set(answers.accepted.values())) > 1  # workers
    assert_once(cluster, topic, list(answers.accepted))
    assert in_the_log(cluster, topic)["before the fork"] == forked
    assert "die-on-term" not in server.output


@pytest.mark.full
def test_a_way_of_ending_that_loses_messages_is_warned_of(
    cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    cluster.create_topic(topic)
    port = free_port()
    command = [tool("uwsgi"), "--http-socket", f"127.0.0.1:{port}", "--master", "--enable-threads"]
    command += ["--die-on-term", "--module", "application"]
    settings = environment(cluster, tmp_path, TOPIC=topic, LINGER_MS="0")
    with running(command, tmp_path, settings, port) as server:
        answers = load(server, 1)
        assert list(answers.accepted) == ["request-0"], server.output
        server.until(lambda: "hook-master-start = unix_signal:15" in server.output, "a warning")
        # What has been delivered by then is safe.
        server.until(lambda: "request-0" in in_the_log(cluster, topic), "the message in the log")
        server.terminate()
        assert server.wait() == 0
    assert_once(cluster, topic, ["request-0"])


def test_without_threads_it_is_refused_with_a_clear_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """As older releases are, unless threads are enabled."""
    uwsgi = types.ModuleType("uwsgi")
    uwsgi.has_threads = 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "uwsgi", uwsgi)
    producer = Producer(bootstrap_servers="nowhere:1")
    with pytest.raises(UnsupportedFeatureError, match="--enable-threads"):
        producer.send("topic", b"value")
    assert producer.accepted == 0
