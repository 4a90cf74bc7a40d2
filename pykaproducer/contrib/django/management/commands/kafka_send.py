"""``manage.py kafka_send``: send messages from the command line, with the site's settings."""

from __future__ import annotations

import sys
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from pykaproducer.contrib._send_lines import SendError, lines, send_lines
from pykaproducer.contrib.django.producers import DEFAULT, get_producer


class Command(BaseCommand):
    """The command, which sends one message or each line of the standard input."""

    help = (
        "Send a message, or each line of the standard input, and wait until all are delivered. "
        'Examples: manage.py kafka_send events "hello" --key 7 --header trace=1;  '
        "manage.py kafka_send events - < lines.txt"
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the command's arguments."""
        parser.add_argument("topic", metavar="TOPIC")
        parser.add_argument(
            "value",
            metavar="VALUE",
            nargs="?",
            default="-",
            help="the message; without it, or with -, each line of the standard input is one",
        )
        parser.add_argument("--key", help="the key of every message")
        parser.add_argument(
            "--header",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="a header of every message; may be given several times",
        )
        parser.add_argument(
            "--producer", default=DEFAULT, metavar="ALIAS", help="which producer; %(default)s"
        )
        parser.add_argument(
            "--timeout",
            type=float,
            metavar="SECONDS",
            help="how long to wait for the delivery; the producer's delivery_timeout_ms",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the command; a failure raises CommandError, which means exit status 1."""
        value = options["value"]
        values = lines(sys.stdin.buffer) if value == "-" else iter([value.encode()])
        try:
            summary = send_lines(
                get_producer(options["producer"]),
                options["topic"],
                values,
                key=options["key"],
                headers=options["header"],
                timeout=options["timeout"],
            )
        except (ImproperlyConfigured, SendError) as error:
            raise CommandError(str(error)) from error
        if options["verbosity"]:
            self.stdout.write(summary)
