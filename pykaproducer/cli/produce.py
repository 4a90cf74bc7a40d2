"""``pykaproducer produce -t TOPIC [FILE ...]``: one message a line, byte for byte.

The line's terminator, one ``\\n``, is taken off and nothing else: a line that ends in CRLF keeps
its ``\\r``, an empty line is an empty message, a last line without terminator is a message.
"""

from __future__ import annotations

import argparse
import collections
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, BinaryIO

from pykaproducer.cli.common import (
    DEFAULT_SERVERS,
    Progress,
    UserError,
    add_settings,
    human_bytes,
    progress,
    settings_of,
)
from pykaproducer.delivery import Delivery
from pykaproducer.errors import BufferFullError, FlushTimeoutError, MessageTooLargeError, Status
from pykaproducer.producer import Producer

#: Input is read in pieces of this size (bytes).
_PIECE = 1 << 20


def add_parser(commands: Any) -> None:
    """``produce`` and its options."""
    parser = commands.add_parser(
        "produce",
        help="send lines as messages",
        description="Sends each line of the files, or of standard input, as one message. Exit "
        "status 0: every line was delivered; 1: some were not; 2: a mistake in the command.",
    )
    parser.add_argument("-t", "--topic", required=True, help="where to send them")
    parser.add_argument("files", nargs="*", metavar="FILE", help="default: standard input")
    parser.add_argument(
        "--bootstrap-servers", metavar="HOST:PORT,...", help=f"default: {DEFAULT_SERVERS}"
    )
    parser.add_argument(
        "--key-separator",
        metavar="SEP",
        help="what stands before the first SEP of a line is the message's key; a line without it "
        "has no key",
    )
    parser.add_argument(
        "--header",
        dest="headers",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a header for every message; may be repeated",
    )
    parser.add_argument("--partition", type=int, metavar="N", help="default: by the key")
    parser.add_argument(
        "--rejects",
        metavar="FILE",
        help="write the lines that were not delivered to FILE, so that nothing is lost",
    )
    add_settings(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Send every line; the summary goes to standard error."""
    settings = settings_of(options.settings, options.bootstrap_servers)
    sources = list(_open_all(options.files))
    rejects = _open_rejects(options.rejects)
    sender = _Sender(options, settings, rejects)
    began = time.monotonic()
    interrupted = False
    try:
        with progress(f"to {options.topic}", _size_of(sources)) as shown:
            for source in sources:
                sender.send_lines(source, shown)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        sender.finish(interrupted)
        if rejects is not None:
            rejects.close()
    sender.summarize(time.monotonic() - began)
    if interrupted:
        return 130
    return 0 if sender.delivered == sender.lines else 1


class _Sender:
    """Sends lines and counts what becomes of them."""

    def __init__(
        self, options: argparse.Namespace, settings: dict[str, Any], rejects: BinaryIO | None
    ) -> None:
        self.topic: str = options.topic
        self.lines = self.delivered = self.size = 0
        self.failures: collections.Counter[str] = collections.Counter()
        self.doubtful = 0
        self.partitions: collections.Counter[int | None] = collections.Counter()
        self._rejects = rejects
        self._separator = (options.key_separator or "").encode()
        if options.key_separator == "":
            raise UserError("--key-separator: it must not be empty")
        self._more: dict[str, Any] = {"on_delivery": self._report}
        if options.headers:
            self._more["headers"] = [_header(text) for text in options.headers]
        if options.partition is not None:
            self._more["partition"] = options.partition
        self._producer = Producer(**settings)

    def send_lines(self, source: BinaryIO, shown: Progress) -> None:
        """Send every line of *source*."""
        separator, send = self._separator, self._send
        for lines, size in _lines(source):
            for line in lines:
                if separator:
                    key, found, value = line.partition(separator)
                    send(value if found else line, key if found else None)
                else:
                    send(line, None)
            shown.advance(size)

    def _send(self, value: bytes, key: bytes | None) -> None:
        self.lines += 1
        self.size += len(value)
        while True:
            try:
                self._producer.send(self.topic, value, key, **self._more)
            except BufferFullError:
                # The cluster takes nothing for a while. What is buffered has a deadline: there
                # will be room, by delivery or by failure.
                continue
            except MessageTooLargeError as error:
                self._reject(key, value, error)
            except (TypeError, ValueError) as error:
                raise UserError(str(error)) from None
            return

    def _report(self, error: BaseException | None, delivery: Delivery) -> None:
        if error is None:
            self.delivered += 1
            self.partitions[delivery.partition] += 1
            return
        if getattr(error, "status", None) is Status.POSSIBLY_PERSISTED:
            self.doubtful += 1
        self._reject(delivery.key, delivery.value or b"", error)

    def _reject(self, key: bytes | None, value: bytes, error: BaseException) -> None:
        self.failures[str(error)] += 1
        if self._rejects is not None:
            if key is not None:
                self._rejects.write(key + self._separator)
            self._rejects.write(value + b"\n")

    def finish(self, interrupted: bool) -> None:
        """Wait for the outcome of what was read (a few seconds only after Ctrl-C), and close."""
        try:
            self._producer.flush(5.0 if interrupted else None)
        except FlushTimeoutError:
            pass  # close() fails what is left, and its lines go to the rejects
        self._producer.close(timeout=0 if interrupted else None)

    def summarize(self, seconds: float) -> None:
        """What a person wants to know, on standard error."""
        rate = self.delivered / seconds if seconds > 0 else 0.0
        out = [
            f"{self.delivered:,} of {self.lines:,} lines delivered to {self.topic}, "
            f"{human_bytes(self.size)} in {seconds:.2f} s ({rate:,.0f}/s)"
        ]
        if self.partitions:
            counts = sorted(self.partitions.items(), key=lambda item: (item[0] is None, item[0]))
            out.append("by partition: " + ", ".join(f"{p}: {n:,}" for p, n in counts[:32]))
        out.extend(f"{count:,} failed: {text}" for text, count in self.failures.most_common(5))
        if self.doubtful:
            out.append(f"{self.doubtful:,} of these may be in the log all the same")
        print("\n".join(out), file=sys.stderr)


def _lines(source: BinaryIO) -> Iterator[tuple[list[bytes], int]]:
    """Lines without their terminator, by the piece, with the bytes read for them."""
    rest = [b""]
    while piece := source.read(_PIECE):
        head, newline, tail = piece.rpartition(b"\n")
        if not newline:
            rest.append(piece)  # a line longer than a piece: joined once, at its end
            continue
        rest.append(head)
        yield b"".join(rest).split(b"\n"), len(piece)
        rest = [tail]
    last = b"".join(rest)
    if last:
        yield [last], len(last)


def _open_all(names: list[str]) -> Iterator[BinaryIO]:
    for name in names or ["-"]:
        try:
            yield sys.stdin.buffer if name == "-" else open(name, "rb")  # noqa: SIM115
        except OSError as error:
            raise UserError(f"{name}: {error.strerror}") from None


def _open_rejects(name: str | None) -> BinaryIO | None:
    if name is None:
        return None
    try:
        return open(name, "wb")
    except OSError as error:
        raise UserError(f"--rejects {name}: {error.strerror}") from None


def _size_of(sources: list[BinaryIO]) -> int | None:
    sizes = [os.fstat(source.fileno()).st_size for source in sources]
    return sum(sizes) if all(sizes) else None


def _header(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"--header {text}: write it as name=value")
    return name, value.encode()
