"""Arbitrary settings and properties files: errors are reported on one line, at once.

No exceptions other than the documented ones, no hang, no crash. ``PYKAPRODUCER_FUZZ=20000`` tries
that many inputs. (With ``-o faulthandler_timeout=0``, as each test takes longer.)
"""

from __future__ import annotations

import contextlib
import decimal
import fractions
import math
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykaproducer import ConfigurationError, KafkaProducer, Producer, UnsupportedFeatureError
from pykaproducer._config.librdkafka import LIBRDKAFKA
from pykaproducer._config.properties_file import read_properties
from pykaproducer.config import SETTINGS, Config, read_settings
from tests._support.fuzz import tries

many = tries(100, 0.25)

DOTTED = sorted({name for row in SETTINGS for name in row.dotted})
KNOWN = st.sampled_from(sorted({row.name for row in SETTINGS} | set(DOTTED)))
#: Settings that may hold a secret.
HIDDEN = {
    name
    for row in SETTINGS
    if row.secret or row.name == "bootstrap_servers"
    for name in (row.name, *row.dotted)
}
NAMES = (
    KNOWN
    | st.sampled_from(sorted(LIBRDKAFKA))
    | KNOWN.map(lambda name: f"kafka.{name}")
    | KNOWN.map(str.upper)
    | KNOWN.map(lambda name: name[:-1])
    | st.text(max_size=20)
)


class Hostile:
    """An object that has every attribute and method, none of which work."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def __call__(self, *arguments: object) -> object:
        return self

    def serialize(self, *arguments: object) -> object:
        return self


class Text(str):
    """A subclass of str."""


#: Typical values, and typical mistakes.
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -(10**400), 2**31, 2**63, -1, 0, 1])
    | st.floats()
    | st.decimals()
    | st.text(max_size=20)
    | st.text(max_size=20).map(Text)
    | st.binary(max_size=20)
    | st.binary(max_size=20).map(bytearray)
    | st.binary(max_size=20).map(memoryview)
    | st.sampled_from(
        [
            *("all", "none", "gzip", "lz4", "zstd", "true", "false"),
            *("5", "-1", "1e9", "nan", "inf"),
            *("PLAINTEXT", "SASL_SSL", "PLAIN", "localhost:9092", "[::1]:9092", "a:1,b:2", "::"),
            *("SASL_SSL://user:s3cret@host:1", "murmur2", "\ud800", "٣", "1_000", " 5 ", "\0"),
        ]
    )
    | st.sampled_from([Hostile(), Hostile, print, object(), math.nan, decimal.Decimal("sNaN"), 1j])
    | st.sampled_from([fractions.Fraction(5), np.float32(5), np.array([5]), np.eye(2)])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=2)
        | st.frozensets(st.integers(), max_size=2)
    ),
    max_leaves=4,
)


@contextlib.contextmanager
def refused_in_one_line(
    *allowed: type[BaseException], hide: str = "\n", names: str = ""
) -> Iterator[None]:
    """Check that only these are raised, with one line that has *names*, and not *hide*."""
    try:
        yield
    except allowed as error:
        text = str(error)
    else:
        return
    assert text
    assert "\n" not in text, text
    assert hide not in text, text
    assert re.search(names, text), text
    assert len(text) < 3000, text


WRONG_SETTINGS = (ConfigurationError, UnsupportedFeatureError)


@many
@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_any_settings(given_settings: dict[str, Any]) -> None:
    with refused_in_one_line(*WRONG_SETTINGS):
        assert "\n" not in repr(Config.from_kwargs(given_settings))


@many
@given(KNOWN, VALUES, st.sampled_from([Producer, KafkaProducer]))
def test_any_value_of_a_known_setting(name: str, value: object, kind: type[Producer]) -> None:
    with refused_in_one_line(*WRONG_SETTINGS, hide="s3cret" if name in HIDDEN else "\n"):
        kind(**{name: value}).close(timeout=0)


@many
@given(st.dictionaries(NAMES, st.text(max_size=20) | SCALARS.map(str), max_size=4))
def test_any_texts(texts: dict[str, str]) -> None:
    with refused_in_one_line(*WRONG_SETTINGS):
        Config.from_strings(texts)


# Properties files -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("properties") / "client.properties"


LINES = st.lists(
    st.builds(
        "{}{}{}".format,
        NAMES,
        st.sampled_from(["=", ":", " ", " = ", "", "\\"]),
        st.text(max_size=20) | SCALARS.map(str),
    ),
    max_size=5,
)


@many
@given(
    LINES.map(lambda lines: "\n".join(lines).encode("utf-8", "surrogatepass"))
    | st.binary(max_size=60)
    | st.text(" \t\f\r\n\\=:#!uabc0123").map(str.encode)
)
def test_any_properties_file(path: pathlib.Path, content: bytes) -> None:
    path.write_bytes(content)
    with refused_in_one_line(ConfigurationError, names=r"client\.properties, line \d+: "):
        found = read_properties(path)
        assert all(isinstance(text, str) for text in (*found, *found.values()))
    with refused_in_one_line(*WRONG_SETTINGS):
        Config.from_kwargs(read_settings(path))
