"""The command line, in this process or another one, and kafka-python's consumer to read back."""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from unittest import mock

from kafka import KafkaConsumer
from kafka.structs import TopicPartition

from pykaproducer import cli
from pykaproducer.cli import main
from pykaproducer.cli._completion import CommandSpec, command_of

#: Refuses connections.
NOWHERE = "127.0.0.1:9"
#: How long a command may take on a busy machine (seconds).
PATIENCE = 120


def command(*arguments: str) -> list[str]:
    """Return the command line with *arguments*."""
    return [sys.executable, "-m", "pykaproducer", *arguments]


def all_commands(*, without: object = None) -> Iterator[CommandSpec]:
    """Yield the program and each of its commands, *without* those of a module."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    for module in cli.COMMANDS:
        if module is not without:
            module.add_parser(commands)
    return command_of(parser).all()


def run(*arguments: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run the command to its end, in this process: most need less time than Python's start."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
        files[0].write(data)
        files[0].seek(0)
        for name, mode, file in zip(("stdin", "stdout", "stderr"), "rww", files, strict=True):
            stream = stack.enter_context(open(file.fileno(), mode, closefd=False))
            stack.enter_context(mock.patch.object(sys, name, stream))
        try:
            status = main(arguments)
        except SystemExit as end:
            status = int(end.code or 0)
        sys.stdout.flush()
        sys.stderr.flush()
        for file in files:
            file.seek(0)
        return subprocess.CompletedProcess(
            command(*arguments), status, files[1].read(), files[2].read()
        )


def status_of(arguments: list[str]) -> int | str | None:
    """Return the exit status, whether main() returns it or exits with it."""
    try:
        return main(arguments)
    except SystemExit as end:
        return end.code


def end_of(servers: str, topic: str, partition: int = 0) -> int:
    """Return the number of messages in a partition."""
    consumer = KafkaConsumer(bootstrap_servers=servers)
    try:
        place = TopicPartition(topic, partition)
        return int(consumer.end_offsets([place])[place])
    finally:
        consumer.close()
