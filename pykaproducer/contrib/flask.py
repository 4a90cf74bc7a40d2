"""Flask: an extension that makes a producer from an application's configuration.

::

    kafka = Kafka()                     # app.config: PYKAPRODUCER_BOOTSTRAP_SERVERS = "host:9092"

    def create_app():
        app = Flask(__name__)
        kafka.init_app(app)
        return app

    kafka.send("clicks", b"...")        # in a view

Each application has its own producer. It may be created before the server forks its workers, and
accepted messages are delivered at exit. ``flask kafka-send TOPIC VALUE`` sends from the command
line.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from pykaproducer.config import canonical_name
from pykaproducer.contrib._send_lines import SendError, lines, send_lines
from pykaproducer.delivery import Delivery
from pykaproducer.errors import ConfigurationError
from pykaproducer.producer import Producer

try:
    import click
    from flask import Flask, current_app
    from flask.cli import with_appcontext
except ImportError as error:
    raise ImportError(
        "pykaproducer.contrib.flask needs Flask: pip install 'pykaproducer[flask]'"
    ) from error

__all__ = ["Kafka"]

#: The key with a dict of settings, and the prefix of the keys with one setting each.
KEY = "PYKAPRODUCER"

#: The key of an application's producer in its extensions.
_EXTENSION = "pykaproducer"


class Kafka:
    """The extension, for any number of applications: ``Kafka(app)``, or :meth:`init_app` later.

    The settings are those of ``Producer``: a dict in ``app.config["PYKAPRODUCER"]``, or one per key
    like ``PYKAPRODUCER_BOOTSTRAP_SERVERS``. *settings* given here are defaults for applications
    that do not set them.
    """

    def __init__(self, app: Flask | None = None, **settings: Any) -> None:
        self._defaults = settings
        self._app = app
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Create the producer of *app*, without any thread or connection yet.

        Raises:
            ConfigurationError, UnsupportedFeatureError: the application's configuration is wrong.
            RuntimeError: the application already has a producer.
        """
        if _EXTENSION in app.extensions:
            raise RuntimeError(
                f"the application {app.name!r} already has a producer: call init_app() once"
            )
        own = _settings(app.config)
        given = {canonical_name(name) for name in own}
        defaults = {
            name: value
            for name, value in self._defaults.items()
            if canonical_name(name) not in given
        }
        app.extensions[_EXTENSION] = Producer(**{**defaults, **own})
        app.cli.add_command(_kafka_send)

    @property
    def producer(self) -> Producer:
        """The current application's producer.

        Outside of an application context, that of the application passed to the constructor.
        """
        app = current_app or self._app
        if app is None:
            raise RuntimeError(
                "there is no current application: use kafka.send() in a view or in "
                "`with app.app_context():`, or create Kafka(app)"
            )
        try:
            producer: Producer = app.extensions[_EXTENSION]
        except KeyError:
            raise RuntimeError(
                f"the application {app.name!r} has no producer: call kafka.init_app(app)"
            ) from None
        return producer

    def send(self, *args: Any, **more: Any) -> Delivery:
        """Call ``Producer.send`` of the current application's producer."""
        return self.producer.send(*args, **more)


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the producer's settings in an application's configuration."""
    given = config.get(KEY) or {}
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"{KEY} must be a dict of the producer's settings, not {type(given).__name__}"
        )
    found = dict(given)
    given_as = {canonical_name(name): f"{KEY}[{name!r}]" for name in found}
    for key, value in config.items():
        name = key.removeprefix(f"{KEY}_").lower()
        if not key.startswith(f"{KEY}_"):
            continue
        if canonical_name(name) in given_as and canonical_name(name) is not None:
            raise ConfigurationError(
                f"{key} and {given_as[canonical_name(name)]} are the same setting: remove one"
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
        summary = send_lines(producer, topic, values, key=key, headers=header, timeout=timeout)
    except SendError as error:
        raise click.ClickException(str(error)) from error
    click.echo(summary)
