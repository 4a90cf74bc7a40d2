"""``pykaproducer load --spark MASTER``: the load as tasks of a Spark application."""

from __future__ import annotations

import argparse
import time
from typing import Any

from pykaproducer.cli._load_plan import Outcome, refuse_unverifiable, rejects_of, selection_of
from pykaproducer.cli.common import CommandError, UserError, settings_from
from pykaproducer.config import Config


def on_spark(options: argparse.Namespace) -> Outcome:
    """Load with a session on ``--spark``."""
    try:
        from pykaproducer.spark import load
    except ImportError as error:
        raise UserError(f"--spark: {error}") from None
    settings = settings_from(options)
    try:
        session, ours = load.session_on(options.spark)
    except load.SparkError as error:
        raise CommandError(f"--spark {options.spark}: {error}") from None
    try:
        return _load(load, session, options, settings)
    except load.SparkError as error:
        raise CommandError(str(error)) from None
    finally:
        if ours:
            session.stop()


def _load(
    load: Any, session: Any, options: argparse.Namespace, settings: dict[str, Any]
) -> Outcome:
    reading = load.Reading(
        tuple(options.source), options.format, options.delimiter, options.infer_types
    )
    df = load.read(session, reading)
    mapping = selection_of(options, load.arrow_schema(df))
    config = Config(**settings)
    if options.verify:
        refuse_unverifiable(config)
    rejects = rejects_of(options)
    began = time.monotonic()
    summary = load.send(df, settings, load.Job(options.topic, mapping, rejects, options.verify))
    if rejects is not None:
        rejects.forget_others(summary.files)
    return Outcome(summary, config, time.monotonic() - began)
