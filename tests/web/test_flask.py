"""``pykaproducer.contrib.flask`` in applications: factories, configuration, the command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pykaproducer import ConfigurationError, Producer
from pykaproducer.testing import KafkaCluster
from tests.cluster.readback import read_log

flask = pytest.importorskip("flask", reason="flask is not installed (extra test)")

from pykaproducer.contrib.flask import Kafka  # noqa: E402

#: Far more than any operation here takes (seconds).
SOON = 30


def application(**config: Any) -> Any:
    """Return an application with this configuration."""
    app = flask.Flask("shop")
    app.config.update(config)
    return app


def producer_of(app: Any) -> Producer:
    """Return the producer of an application."""
    found: Producer = app.extensions["pykaproducer"]
    return found


@pytest.fixture
def app(cluster: KafkaCluster, topic: str) -> Iterator[Any]:
    """Yield an application that sends the data posted to it."""
    cluster.create_topic(topic)
    kafka = Kafka()
    app = application(PYKAPRODUCER_BOOTSTRAP_SERVERS=cluster.bootstrap_servers)
    kafka.init_app(app)

    @app.post("/")
    def post() -> dict[str, int]:
        return {"offset": kafka.send(topic, flask.request.get_data()).result(SOON).offset}

    yield app
    producer_of(app).close(SOON)


def test_a_view_sends(cluster: KafkaCluster, topic: str, app: Any) -> None:
    client = app.test_client()
    assert [client.post("/", data=b"hello").json for _ in range(2)] == [
        {"offset": 0},
        {"offset": 1},
    ]
    assert read_log(cluster, topic).values == [b"hello", b"hello"]


def test_each_application_has_its_own_producer() -> None:
    kafka = Kafka(bootstrap_servers="kafka:1", linger_ms=7)
    first, second = application(PYKAPRODUCER_CLIENT_ID="a"), application(PYKAPRODUCER_LINGER_MS=9)
    for app in (first, second):
        kafka.init_app(app)
    with first.app_context():
        assert kafka.producer.config.client_id == "a"
        assert kafka.producer.config.linger_ms == 7
    with second.app_context():
        assert kafka.producer is producer_of(second)
        assert kafka.producer.config.linger_ms == 9
        assert kafka.producer.config.bootstrap_servers == (("kafka", 1),)


def test_settings_in_a_dict_and_one_by_one() -> None:
    app = application(PYKAPRODUCER={"linger.ms": "3"}, PYKAPRODUCER_ACKS="all", OTHER=1)
    config = Kafka(app, linger_ms=4).producer.config
    assert (config.linger_ms, config.acks) == (3, -1)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"PYKAPRODUCER_LINGER_MS": "x"}, "setting linger_ms: 'x' was given"),
        ({"PYKAPRODUCER_LINGERMS": 1}, "lingerms"),
        (
            {"PYKAPRODUCER": {"linger.ms": "3"}, "PYKAPRODUCER_LINGER_MS": 3},
            r"PYKAPRODUCER_LINGER_MS and PYKAPRODUCER\['linger.ms'\] are the same setting",
        ),
        ({"PYKAPRODUCER": "kafka:9092"}, "PYKAPRODUCER must be a dict"),
    ],
)
def test_a_wrong_configuration_is_told_when_the_application_is_made(
    config: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        Kafka(application(**config))


def test_an_application_is_given_one_producer() -> None:
    kafka, app = Kafka(), application()
    kafka.init_app(app)
    with pytest.raises(RuntimeError, match="'shop' already has a producer"):
        kafka.init_app(app)


def test_outside_of_an_application_it_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"app\.app_context\(\)"):
        Kafka().send("topic", b"value")
    with (
        application().app_context(),
        pytest.raises(RuntimeError, match=r"kafka\.init_app\(app\)"),
    ):
        Kafka().send("topic", b"value")


def test_the_command_sends(cluster: KafkaCluster, topic: str, app: Any) -> None:
    runner = app.test_cli_runner()
    told = runner.invoke(args=["kafka-send", topic, "hello", "--key", "k", "--header", "a=1"])
    assert (told.exit_code, told.output) == (0, f"1 message delivered to {topic}\n")
    told = runner.invoke(args=["kafka-send", topic], input="one\ntwo\n")
    assert (told.exit_code, told.output) == (0, f"2 messages delivered to {topic}\n")
    log = read_log(cluster, topic)
    assert log.values == [b"hello", b"one", b"two"]
    assert (log.records[0].key, log.records[0].headers) == (b"k", [("a", b"1")])
    told = runner.invoke(args=["kafka-send", "no topic", "x"])
    assert told.exit_code == 1
    assert told.output.startswith("Error: after 0 delivered messages: ")
