"""``pykaproducer load --spark MASTER``: the load as tasks of a Spark application."""

from __future__ import annotations

import argparse
import time
from typing import Any

from pykaproducer._config.file_contents import with_contents
from pykaproducer._load.files import format_of
from pykaproducer._load.names import QUERIES, SourceError, is_pipe, is_uri
from pykaproducer._load.sources import LoadSource
from pykaproducer.cli._load_plan import (
    Outcome,
    files_of,
    load_progress,
    rejects_of,
    selection_of,
)
from pykaproducer.cli._readback import refuse_unreadable
from pykaproducer.cli.common import CommandError, UserError, settings_from
from pykaproducer.config import Config

#: The sink's options, and the command's.
_ONCE = {
    "transactionalIdPrefix": "--transactional-id-prefix",
    "stateTopic": "--state-topic",
    "writeId": "--write-id",
    "exactlyOnce": "--exactly-once",
}


def on_spark(options: argparse.Namespace) -> Outcome:
    """Load with a session on ``--spark``."""
    try:
        from pykaproducer.spark import load
    except ImportError as error:
        raise UserError(f"--spark: {error}") from None
    settings = settings_from(options)
    files = None if _is_sparks(options) else _files(options)
    reading: Any = _reading(load, options) if files is None else None
    try:
        session, ours = load.session_on(options.spark)
    except load.SparkError as error:
        raise UserError(f"--spark {options.spark}: {error}") from None
    try:
        try:
            source = load.query(session, reading) if files is None else load.files(session, files)
        except load.SparkError as error:
            raise UserError(str(error)) from None
        size = None if files is None else files.size
        return _load(load, source, size, options, settings)
    except load.SparkError as error:
        raise CommandError(str(error)) from None
    finally:
        if ours:
            session.stop()


def _is_sparks(options: argparse.Namespace) -> bool:
    """Return whether Spark reads the source: a table, a query, or URIs."""
    return options.format in QUERIES or any(map(is_uri, options.source))


def _files(options: argparse.Namespace) -> LoadSource:
    for name in options.source:  # before any is opened
        if is_pipe(name):
            raise UserError(f"{name}: a pipe can only be read without --spark")
    return files_of(options)


def _reading(load: Any, options: argparse.Namespace) -> Any:
    if not all(map(is_uri, options.source)) and options.format not in QUERIES:
        raise UserError("load: give either URIs that only Spark reads (s3a://, hdfs://), or files")
    given = {
        "--encoding": options.encoding != "utf-8",
        "--infer-types": options.infer_types,
        "--delimiter": options.delimiter is not None and _format(options) not in ("csv", None),
    }
    for name in filter(given.get, given):
        raise UserError(f"{name}: not for sources that Spark reads (URIs, tables, queries)")
    return load.Reading(
        tuple(options.source), options.format, options.delimiter, options.select is None
    )


def _format(options: argparse.Namespace) -> str | None:
    """Return the format, or None if the suffix does not tell it."""
    if options.format is not None:
        return str(options.format)
    try:
        return format_of(options.source[0])
    except SourceError:
        return None


def _load(
    load: Any,
    source: Any,
    size: int | None,
    options: argparse.Namespace,
    settings: dict[str, Any],
) -> Outcome:
    mapping = selection_of(options, source.schema)
    config = Config(**settings)
    if options.verify:
        refuse_unreadable(config)
    rejects = rejects_of(options)
    began = time.monotonic()
    job = load.Job(options.topic, mapping, rejects, options.verify)
    # The executors need not have the files that the settings name.
    shipped = with_contents(settings, config)
    try:
        with load_progress(options, size) as shown:
            summary = load.send(source, shipped, job, _once(options), shown.advance)
    except load.SinkError as error:
        raise UserError(_as_arguments(str(error))) from None
    except load.ExactlyOnceError as error:
        raise CommandError(str(error)) from None
    if rejects is not None:
        try:
            rejects.forget_others([*summary.files, *summary.broken_files])
        except OSError as error:
            text = f"--rejects {options.rejects}: files of repeated tasks could not be removed"
            summary.troubles.append(f"{text}: {error}")
    return Outcome(summary, config, time.monotonic() - began)


def _once(options: argparse.Namespace) -> dict[str, str] | None:
    """Return the sink's options for ``--exactly-once``, or None without it."""
    if not options.exactly_once:
        return None
    given = {
        "exactlyOnce": "true",
        "transactionalIdPrefix": options.transactional_id_prefix,
        "stateTopic": options.state_topic,
        "writeId": options.write_id,
    }
    return {name: text for name, text in given.items() if text is not None}


def _as_arguments(text: str) -> str:
    """Return an error of the sink with the command's names of its options."""
    for name, argument in _ONCE.items():
        text = text.replace(f"option {name}", argument).replace(name, argument)
    return text
