"""The page on kafka-python describes version 3, and is correct."""

from __future__ import annotations

import inspect
import pathlib
import re

import kafka
import pytest

from pykaproducer import KafkaProducer
from pykaproducer.config import SETTINGS
from tests._support.peers import needs_kafka_python_3

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "migration-kafka-python.rst").read_text()

SETTINGS_TABLE, METHODS_TABLE = (
    dict(re.findall(r"^   \* - ``(\w+)``\n     - (.*?)(?=\n   \*|\n\n|\Z)", part, re.M | re.S))
    for part in PAGE.split("Every setting\n")[1].split("Every method\n")
)
THEIRS = kafka.KafkaProducer.DEFAULT_CONFIG
OURS = {row.name: row for row in SETTINGS}


@needs_kafka_python_3
def test_every_setting_is_in_the_table() -> None:
    assert list(SETTINGS_TABLE) == list(THEIRS)


@pytest.mark.parametrize("name", SETTINGS_TABLE)
def test_a_row_says_what_becomes_of_the_setting(name: str) -> None:
    support, _, note = SETTINGS_TABLE[name].partition("\n     -")
    row = OURS[name]
    assert support == ("refused" if row.refused else "no effect" if row.no_effect else "honoured")
    assert note or support == "honoured"


@needs_kafka_python_3
@pytest.mark.parametrize("name", SETTINGS_TABLE)
def test_a_default_that_differs_is_named(name: str) -> None:
    if THEIRS[name] != OURS[name].default:
        assert f"default ``{OURS[name].default!r}``" in SETTINGS_TABLE[name]


def test_every_public_method_is_in_the_table() -> None:
    theirs = {
        name
        for name, _ in inspect.getmembers(kafka.KafkaProducer, callable)
        if not name.startswith("_")
    }
    assert set(METHODS_TABLE) == theirs
    assert all(callable(getattr(KafkaProducer, name)) for name in theirs)
