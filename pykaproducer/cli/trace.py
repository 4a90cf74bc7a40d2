"""``pykaproducer trace -t TOPIC``: trace single messages through the stages, with times."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pykaproducer.cli import _signals
from pykaproducer.cli._progress import has_rich
from pykaproducer.cli.common import (
    UserError,
    add_headers,
    add_servers,
    add_settings,
    header_of,
    human_bytes,
    log_shown,
    number_from,
    parser_like,
    settings_from,
)
from pykaproducer.delivery import Delivery
from pykaproducer.errors import BufferFullError, MessageTooLargeError
from pykaproducer.producer import Producer

#: Shorter timeouts than the defaults, because a user is waiting.
_SETTINGS = {"delivery_timeout_ms": 30_000, "max_block_ms": 10_000}
#: How long to wait for the callbacks (seconds).
_REPORTING = 10.0
_VALUE = "hello from pykaproducer trace"
#: Width of the timeline (characters).
_LINE = 24
#: Minimum terminal width for the timeline.
_ROOMY = 100

#: Events that occur only if there is a problem.
_TROUBLE = frozenset(
    ("waits for a leader", "waits in order", "lost", "throttled", "retry scheduled", "retried")
)
#: Those of them that have a duration.
_WAITS = frozenset(("throttled", "retry scheduled"))
#: Fields that locate a message.
_PLACES = ("partition", "broker", "level")

_EXAMPLES = """\
examples:
  pykaproducer trace -t events          show where the time of one message goes
  pykaproducer trace -t events --value a --value b
                                        the second finds connections open
  pykaproducer trace -t events --value a --value b --together
                                        send both at once: they share a batch
  pykaproducer trace -t events -X linger_ms=50 -X compression_type=lz4
  pykaproducer trace -t events --json | jq '.events[] | [.at_s, .event]'

The messages are real: consumers of the topic receive them.

exit status:
  0  every message was delivered
  1  some messages were not delivered
  2  invalid command line
"""


def add_parser(commands: Any) -> None:
    """Add ``trace`` and its options."""
    parser = commands.add_parser(
        "trace",
        help="send a message and trace it through the stages",
        description="Send one or more messages, and show what each stage did with them, and when.",
        epilog=_EXAMPLES,
        **parser_like,
    )
    parser.add_argument("-t", "--topic", required=True, help="destination topic")
    parser.add_argument(
        "--value", dest="values", metavar="V", action="append", help="value; may be repeated"
    )
    parser.add_argument("--key", metavar="K", help="key of all messages (default: none)")
    add_headers(parser)
    parser.add_argument(
        "--partition", type=number_from(0), metavar="N", help="partition (default: by key)"
    )
    parser.add_argument(
        "--together", action="store_true", help="send all at once instead of one after another"
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON per message")
    add_servers(parser)
    add_settings(parser)
    parser.set_defaults(run=run)


@dataclass
class TracedMessage:
    """A message that was sent, its outcome and its trace."""

    topic: str
    size: int
    delivery: Delivery | None = None
    error: BaseException | None = None
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        """Outcome as a phrase for the title."""
        if self.error is not None:
            return f"failed: {self.error}"
        assert self.delivery is not None
        offset = self.delivery.offset
        where = f"{self.topic}, partition {self.delivery.partition}"
        return f"delivered to {where}" + (
            f", offset {offset}" if offset is not None and offset >= 0 else ""
        )


def run(options: argparse.Namespace) -> int:
    """Send the messages, wait for their outcomes, and show the traces."""
    settings = {**_SETTINGS, **settings_from(options)}
    headers = [header_of(text) for text in options.headers] or None
    values = [os.fsencode(value) for value in options.values or [_VALUE]]
    key = None if options.key is None else os.fsencode(options.key)
    with _signals.raised(), log_shown():
        producer = Producer(**settings)
        try:
            more = (key, headers, options.partition)
            messages = traced(producer, options.topic, values, more, options.together)
        finally:
            producer.close(timeout=0)
    for number, message in enumerate(messages, 1):
        if options.json:
            print(json.dumps(_as_json(message)))
        else:
            show(message, f"message {number} of {len(messages)}: " if messages[1:] else "")
    return 0 if all(message.error is None for message in messages) else 1


def traced(
    producer: Producer,
    topic: str,
    values: Sequence[bytes],
    more: tuple[Any, ...],
    together: bool,
) -> list[TracedMessage]:
    """Send *values*, wait for their outcomes, and return their traces."""
    messages = []
    with producer.traced() as trace:
        for value in values:
            message = TracedMessage(topic, len(value))
            messages.append(message)
            try:
                message.delivery = producer.send(topic, value, *more, on_delivery=_nothing)
            except (BufferFullError, MessageTooLargeError) as error:
                message.error = error
            except ValueError as error:
                raise UserError(str(error)) from None
            if not together:
                _wait(message)
        for message in messages:
            _wait(message)
        producer.flush(_REPORTING)
    for message in messages:
        if message.delivery is not None:
            message.events = trace.events(message.delivery)
    return messages


def _nothing(error: BaseException | None, delivery: Delivery) -> None:
    """Do nothing: a callback whose only purpose is to appear in the trace."""


def _wait(message: TracedMessage) -> None:
    if message.delivery is not None:
        message.error = message.delivery.exception()


def _as_json(message: TracedMessage) -> dict[str, Any]:
    delivery, error = message.delivery, message.error
    return {
        "topic": message.topic,
        "partition": None if delivery is None else delivery.partition,
        "offset": None if delivery is None or error is not None else delivery.offset,
        "error": None if error is None else f"{type(error).__name__}: {error}",
        "events": message.events,
    }


# The picture --------------------------------------------------------------------------------------


def show(message: TracedMessage, before: str = "") -> None:
    """Print the trace of a message; *before* is the start of its title."""
    title = f"{before}{human_bytes(message.size)} {message.outcome}"
    if message.events:
        title += f", after {_duration(_settled(message.events))}"
    if has_rich() and sys.stdout is not None and sys.stdout.isatty():
        _show_rich(message, title)
        return
    print(title)
    for row in _rows(message.events):
        print(f"  {row.at:>10}  {row.since:>10}  {row.event:<20}{row.stage:<16}{row.text}".rstrip())


@dataclass
class _Row:
    """One event, formatted."""

    at: str
    since: str
    event: str
    stage: str
    text: str
    #: The interval since the previous event, as fractions of the total time.
    begin: float
    end: float


def _rows(events: Sequence[dict[str, Any]]) -> Iterator[_Row]:
    before, whole = 0.0, max((event["at_s"] for event in events), default=0.0) or 1.0
    known: dict[str, Any] = {"level": 0}
    for event in events:
        at = event["at_s"]
        # The location is shown when it becomes known or changes.
        news = {name: event[name] for name in _PLACES if event.get(name) is not None}
        news = {name: value for name, value in news.items() if known.get(name) != value}
        known |= news
        yield _Row(
            f"+{_duration(at)}",
            f"{_duration(at - before)}" if at > before else "",
            event["event"],
            event["stage"] or ("send()" if event["event"] == "accepted" else ""),
            ", ".join([*(f"{name} {value}" for name, value in news.items()), *_facts(event)]),
            before / whole,
            at / whole,
        )
        before = at


def _facts(event: dict[str, Any]) -> Iterator[str]:
    if event["rows"] > 1:
        others = event["rows"] - 1
        yield f"with {others:,} other{'s' if others > 1 else ''}"
    if event["event"] in ("sealed", "dispatched"):
        yield human_bytes(event["bytes"])
    if event["event"] in _WAITS and event.get("wait_s"):
        yield f"waits {_duration(event['wait_s'])}"
    if event["detail"]:
        # A response covers the whole batch; its detail belongs to the first row.
        first = "first " if event["event"] == "answered" and event["rows"] > 1 else ""
        yield f"{first}{event['detail']}"


def _settled(events: Sequence[dict[str, Any]]) -> float:
    """Return when the message reached its final outcome."""
    times = [event["at_s"] for event in events if event["event"] == "settled"]
    return float(times[-1] if times else events[-1]["at_s"])


def _show_rich(message: TracedMessage, title: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    good = message.error is None
    console.print(Text(title, "bold green" if good else "bold red"))
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("at", "since"):
        table.add_column(name, justify="right", no_wrap=True)
    drawn = console.width >= _ROOMY
    for name in ("event", "stage", "") if drawn else ("event", "stage"):
        table.add_column(name, no_wrap=True)
    table.add_column("", overflow="fold")
    for row in _rows(message.events):
        style = "yellow" if row.event in _TROUBLE else ""
        table.add_row(
            Text(row.at, "bold"),
            Text(row.since, "dim"),
            Text(row.event, style or "cyan"),
            Text(row.stage, "magenta"),
            *([_line(row, console.options.ascii_only)] if drawn else []),
            Text(row.text, style),
        )
    console.print(table)


def _line(row: _Row, ascii_only: bool) -> Any:
    """Draw the interval before this event as a section of the timeline."""
    from rich.text import Text

    first = min(_LINE - 1, int(row.begin * _LINE))
    last = min(_LINE - 1, max(first, round(row.end * _LINE) - 1))
    mark = "#" if ascii_only else "\u2501"
    blank = "." if ascii_only else "\u2500"
    return Text.assemble(
        (blank * first, "dim"),
        (mark * (last - first + 1), "green"),
        (blank * (_LINE - 1 - last), "dim"),
    )


def _duration(seconds: float) -> str:
    """Format a duration: 0.00004 -> '40 µs'."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} {_micro()}"
    if seconds < 1:
        return f"{seconds * 1e3:.2f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"
    return f"{seconds:.2f} s"


def _micro() -> str:
    """Return the micro sign if the output encoding has it, or "u"."""
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    return "µs" if "µ".encode(encoding, errors="ignore") else "us"
