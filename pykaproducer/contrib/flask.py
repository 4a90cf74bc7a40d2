"""Flask: an extension that makes a producer from an application's configuration.

::

    kafka = Kafka()                     # app.config: PYKAPRODUCER_BOOTSTRAP_SERVERS = "host:9092"

    def create_app():
        app = Flask(__name__)
        kafka.init_app(app)
        return app

    kafka.send("clicks", b"...")        # in a view

Each application has a producer of its own. It may be made before the server forks its workers;
what it has accepted is delivered at exit. ``flask kafka-send TOPIC VALUE`` sends from the
command line.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import click
from flask import Flask, current_app
from flask.cli import with_appcontext

from pykaproducer.config import own_name
from pykaproducer.contrib._send_lines import SendError, lines, send_lines
from pykaproducer.delivery import Delivery
from pykaproducer.errors import ConfigurationError
from pykaproducer.producer import Producer

__all__ = ["Kafka"]

#: The key with a dict of settings, and the beginning of the keys with one setting each.
KEY = "PYKAPRODUCER"

#: Where an application keeps its producer.
_EXTENSION = "pykaproducer"


class Kafka:
    """The extension: ``Kafka(app)``, or ``Kafka()`` and later :meth:`init_app`, for any number of
    applications.

    The settings are those of ``Producer``: in ``app.config["PYKAPRODUCER"]``, a dict, or one by
    one in keys like ``PYKAPRODUCER_BOOTSTRAP_SERVERS``; what is given here in *settings* holds
    where an application says nothing else.
    """

    def __init__(self, app: Flask | None = None, **settings: Any) -> None:
        self._defaults = settings
        self._app = app
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Give *app* its producer, which has no thread yet and no connection.

        Raises:
            ConfigurationError, UnsupportedFeatureError: the application's configuration is wrong.
            RuntimeError: it has one already.
        """
        if _EXTENSION in app.extensions:
            raise RuntimeError(
                f"the application {app.name!r} has a producer already: call init_app() once"
            )
        own = _settings(app.config)
        given = {own_name(name) for name in own}
        defaults = {
            name: value for name, value in self._defaults.items() if own_name(name) not in given
        }
        app.extensions[_EXTENSION] = Producer(**{**defaults, **own})
        app.cli.add_command(_kafka_send)

    @property
    def producer(self) -> Producer:
        """The current application's producer.

        Outside of an application context: that of the application given to the constructor.
        """
        app = current_app or self._app
        if app is None:
            raise RuntimeError(
                "no application is being served here, so none of them can be meant: use "
                "kafka.send() in a view or in `with app.app_context():`, or Kafka(app)"
            )
        try:
            producer: Producer = app.extensions[_EXTENSION]
        except KeyError:
            raise RuntimeError(
                f"the application {app.name!r} has no producer: call kafka.init_app(app)"
            ) from None
        return producer

    def send(self, *args: Any, **more: Any) -> Delivery:
        """``Producer.send`` of the current application's producer."""
        return self.producer.send(*args, **more)


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The producer's settings in an application's configuration, by their own names."""
    given = config.get(KEY) or {}
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"{KEY} must be a dict of the producer's settings, not {type(given).__name__}"
        )
    found = dict(given)
    given_as = {own_name(name): f"{KEY}[{name!r}]" for name in found}
    for key, value in config.items():
        name = key.removeprefix(f"{KEY}_").lower()
        if not key.startswith(f"{KEY}_"):
            continue
        if own_name(name) in given_as and own_name(name) is not None:
            raise ConfigurationError(
                f"{key} and {given_as[own_name(name)]} are the same setting: give it once"
            )
        found[name] = value
    return found


@click.command("kafka-send")
@with_appcontext
@click.argument("topic")
@click.argument("value", default="-")
@click.option("--key", help="The key of every message.")
@click.option("--header", multiple=True, metavar="NAME=VALUE", help="A header of every message.")
@click.option("--timeout", type=float, metavar="SECONDS", help="How long to wait for delivery.")
def _kafka_send(
    topic: str, value: str, key: str | None, header: tuple[str, ...], timeout: float | None
) -> None:
    """Send VALUE, or with - each line of the standard input, and wait for the delivery."""
    values = lines(sys.stdin.buffer) if value == "-" else iter([value.encode()])
    producer: Producer = current_app.extensions[_EXTENSION]
    try:
        told = send_lines(producer, topic, values, key=key, headers=header, timeout=timeout)
    except SendError as error:
        raise click.ClickException(str(error)) from error
    click.echo(told)
