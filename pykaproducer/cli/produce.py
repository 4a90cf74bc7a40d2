"""``pykaproducer produce -t TOPIC [FILE ...]``: send one message per line, byte for byte."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import errno
import os
import signal
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from pykaproducer.cli import _signals
from pykaproducer.cli._progress import Progress, progress
from pykaproducer.cli._rejects import RejectsFile
from pykaproducer.cli._sender import Envelope, Sender
from pykaproducer.cli._stats_socket import add_stats_socket, with_stats_socket
from pykaproducer.cli.common import (
    UserError,
    add_headers,
    add_servers,
    add_settings,
    by_partition,
    header_of,
    human_bytes,
    log_hidden,
    log_shown,
    notify,
    number_from,
    parser_like,
    separator_of,
    servers_text,
    settings_from,
)

_STDIN = "-"


_EXAMPLES = """\
examples:
  pykaproducer produce -t events access.log
                                        to localhost:9092
  pykaproducer produce -t events *.log \\
      --bootstrap-servers kafka-1:9092,kafka-2:9092
  zcat old.gz | pykaproducer produce -t events -X compression_type=lz4
  tail -f access.log | pykaproducer produce -t events
                                        each line as soon as it is written
  echo "user-17:logged in" | pykaproducer produce -t events --key-separator :
  printf 'trace:7\\tuser-17\\tNULL\\n' | pykaproducer produce -t events \\
      --headers-separator '\\t' --key-separator '\\t' --null NULL
                                        a tombstone with a key and a header
  find /etc -print0 | pykaproducer produce -t files --delimiter '\\0'
  pykaproducer produce -t documents --file-as-message *.json
  pykaproducer produce -t events --timestamp 2026-03-01T12:00Z march.log
  pykaproducer produce -t events --config client.properties \\
      -X sasl_plain_password@/run/secrets/kafka access.log
  pykaproducer produce -t events --header source=import --rejects lost data.csv
                                        append undelivered lines to the file
                                        lost, from which they can be sent again

A line is TIMESTAMP HEADERS KEY VALUE, of which only those parts exist whose
separators are given. A part whose separator is not in the line is missing.
Only the line terminator, one \\n, is removed: CRLF keeps its \\r, an empty line
is an empty message, and the bytes need not be UTF-8. The maximum message size
is max_request_size (1 MiB). Separators may contain \\0, \\n, \\r, \\t, \\xHH, and
\\\\ for a backslash.

exit status:
  0  every line was delivered
  1  some lines were not delivered; see the summary
  2  invalid command line; nothing was sent
  130  interrupted by Ctrl-C (pending lines get 5 s to be delivered)
"""


def add_parser(commands: Any) -> None:
    """Add ``produce`` and its options."""
    parser = commands.add_parser(
        "produce",
        help="send lines as messages",
        description="Send each line of the files, or of standard input, as one message.",
        epilog=_EXAMPLES,
        **parser_like,
    )
    parser.add_argument("-t", "--topic", required=True, help="destination topic")
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="input files; - or none means standard input"
    )
    add_servers(parser)
    _add_line_options(parser)
    parser.add_argument(
        "--partition", type=number_from(0), metavar="N", help="partition (default: by key)"
    )
    parser.add_argument(
        "--rejects",
        metavar="FILE",
        help="append lines that were not delivered to FILE; with --file-as-message, the names of "
        "such files",
    )
    add_stats_socket(parser)
    add_settings(parser)
    parser.set_defaults(run=run)


def _add_line_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the parts of a line."""
    lines = parser.add_mutually_exclusive_group()
    lines.add_argument(
        "--delimiter",
        default="\\n",
        metavar="TEXT",
        help="what ends a line, in place of a newline",
    )
    lines.add_argument(
        "--file-as-message", action="store_true", help="send each file as a single message"
    )
    parser.add_argument(
        "--key-separator",
        metavar="SEP",
        help="use the text before the first SEP of a line as the key; a line without SEP has no "
        "key",
    )
    parser.add_argument(
        "--headers-separator",
        metavar="SEP",
        help="use the text before the first SEP of a line, NAME:VALUE,NAME:VALUE, as headers",
    )
    parser.add_argument(
        "--timestamp-separator",
        metavar="SEP",
        help="use the number before the first SEP of a line, in milliseconds since the epoch, as "
        "the timestamp",
    )
    parser.add_argument(
        "--null",
        metavar="VALUE",
        help="send null for a value, key or header value equal to VALUE; a null value is a "
        "tombstone",
    )
    add_headers(parser)
    parser.add_argument(
        "--timestamp",
        metavar="TIME",
        type=_milliseconds,
        help="timestamp of each message without one, in ISO 8601 or in milliseconds since the "
        "epoch (default: the current time)",
    )


def run(options: argparse.Namespace) -> int:
    """Send every line and print the summary to standard error."""
    settings = with_stats_socket(options, settings_from(options))
    envelope = _envelope_of(options)
    inputs = [_Input(name) for name in options.files or [_STDIN]]
    rejects = None
    if options.rejects is not None:
        rejects = RejectsFile(options.rejects, envelope.delimiter or b"\n")
    try:
        if rejects is not None:
            _check_apart(inputs, rejects)
        return _produce(envelope, settings, inputs, rejects)
    finally:
        if rejects is not None:
            rejects.close()


def _milliseconds(text: str) -> int:
    """Parse a time (an argparse type). ISO 8601 without an offset is local time."""
    try:
        if text.isdecimal():
            return number_from(0, 2**62)(text)
        time_of_day = datetime.datetime.fromisoformat(text).astimezone()
        return number_from(0, 2**62)(str(round(time_of_day.timestamp() * 1000)))
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a time as 2026-03-01T12:00:00Z nor milliseconds since the epoch"
        ) from None


class _Input:
    """An input file, or standard input, that was readable when the command began."""

    def __init__(self, name: str) -> None:
        self.name = name
        try:
            self.stat = os.fstat(_stdin()) if name == _STDIN else os.stat(name)
            if stat.S_ISDIR(self.stat.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if name != _STDIN and not os.access(name, os.R_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise UserError(f"{name}: {error.strerror}") from None

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        """Open the input and yield its file descriptor."""
        if self.name == _STDIN:
            yield _stdin()
            return
        # Opening a named pipe waits for its writer, and no signal ends that. On Linux, select()
        # waits for a writer, too; elsewhere the pipe would seem to have ended.
        fd = os.open(self.name, os.O_RDONLY | (os.O_NONBLOCK if sys.platform == "linux" else 0))
        try:
            os.set_blocking(fd, True)
            yield fd
        finally:
            os.close(fd)

    @property
    def size(self) -> int | None:
        """Size in bytes, or None if it is not known in advance."""
        return self.stat.st_size if stat.S_ISREG(self.stat.st_mode) else None

    @property
    def is_terminal(self) -> bool:
        """Whether the input is a terminal."""
        return self.name == _STDIN and os.isatty(_stdin())


def _stdin() -> int:
    if sys.stdin is None:
        raise UserError("standard input is closed; name an input file")
    return sys.stdin.fileno()


def _envelope_of(options: argparse.Namespace) -> Envelope:
    def separator(name: str) -> bytes | None:
        text = getattr(options, f"{name}_separator")
        return None if text is None else separator_of(f"--{name}-separator", text)

    return Envelope(
        topic=options.topic,
        partition=options.partition,
        headers=tuple(header_of(text) for text in options.headers),
        timestamp_ms=options.timestamp,
        delimiter=b""
        if options.file_as_message
        else separator_of("--delimiter", options.delimiter),
        timestamp_separator=separator("timestamp"),
        headers_separator=separator("headers"),
        key_separator=separator("key"),
        null=None if options.null is None else os.fsencode(options.null),
    )


def _check_apart(inputs: Sequence[_Input], rejects: RejectsFile) -> None:
    for each in inputs:
        if rejects.is_same_file(each.stat):
            raise UserError(f"--rejects {rejects.name}: is also an input file; name another file")


def _produce(
    envelope: Envelope,
    settings: dict[str, Any],
    inputs: Sequence[_Input],
    rejects: RejectsFile | None,
) -> int:
    began = time.monotonic()
    with _signals.counted() as signals:
        sender = Sender(envelope, settings, signals, rejects)
        try:
            with log_shown():
                sender.check_topic()
                with _progress(envelope.topic, inputs) as shown:
                    problems = _send_all(inputs, sender, shown)
                    sender.settle(shown)
        finally:
            with log_hidden():  # the summary counts the messages that close() abandons
                sender.close()
    notify("\n".join([*_summary(sender, time.monotonic() - began), *_kept(sender, rejects)]))
    for problem in problems:
        notify(problem)
    if signals.number:
        notify(f"interrupted by {signal.Signals(signals.number).name}")
        return 128 + signals.number
    return 0 if sender.delivered == sender.lines and not problems else 1


def _send_all(inputs: Sequence[_Input], sender: Sender, shown: Progress) -> list[str]:
    """Send the lines of all inputs. Return an error message for each that could not be read."""
    problems = []
    for each in inputs:
        if sender.stopped:
            break
        if each.is_terminal:
            notify("each line that you type is sent as a message; press Ctrl-D to finish")
        begun = False
        try:
            with each.opened() as fd:
                begun = True
                sender.send_from(fd, each.name, shown, each.size)
        except OSError as error:
            text = sender.unread(each.name, error.strerror or str(error), begun=begun)
            problems.append(f"{each.name}: {text}")
    return problems


def _progress(topic: str, inputs: Sequence[_Input]) -> contextlib.AbstractContextManager[Progress]:
    if any(each.is_terminal for each in inputs):
        return contextlib.nullcontext(Progress())
    sizes = [each.size for each in inputs]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    return progress(f"to {topic}", total)


def _summary(sender: Sender, seconds: float) -> Iterator[str]:
    """Yield the lines of the summary."""
    config, delivered, unit = sender.producer.config, sender.delivered, sender.unit
    rate = delivered / seconds if seconds else 0.0
    yield (
        f"{delivered:,} of {sender.lines:,} {unit} delivered to {sender.topic} at "
        f"{servers_text(config.bootstrap_servers)}; {human_bytes(sender.size)} read, "
        f"{seconds:.2f} s, {rate:,.0f} {unit}/s"
    )
    if config.acks == 0 and delivered:
        yield "  acks=0: delivered means sent; brokers have confirmed nothing"
    if delivered:
        yield f"  {unit} by partition: {by_partition(sender.partitions)}"
    for text, count in sender.failures.by_kind():
        yield f"  {count:,} failed: {text}"
    if sender.failures.ambiguous:
        yield (
            f"  {sender.failures.ambiguous:,} of these may have been written; "
            f"sending them again may duplicate them"
        )
    if sender.unaccounted:
        yield f"  {sender.unaccounted:,} with unknown outcome"


def _kept(sender: Sender, rejects: RejectsFile | None) -> Iterator[str]:
    """Report where the lines that were not delivered are kept."""
    unit = sender.unit if sender.unit == "lines" else "names"
    if rejects is not None and rejects.error is not None:
        yield f"  not all of these {unit} are in {rejects.name}: {rejects.error.strerror}"
    elif rejects is not None and sender.failures.total:
        yield f"  these {unit} are in {rejects.name}"
    elif sender.failures.total:
        yield f"  these {unit} were not kept; use --rejects FILE to keep them"
