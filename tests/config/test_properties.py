"""Properties files are read as in Java (``java.util.Properties``); errors name the line."""

from __future__ import annotations

import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykaproducer._config.properties_file import read_properties
from pykaproducer.errors import ConfigurationError


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("properties") / "client.properties"


def read(path: pathlib.Path, content: str | bytes) -> dict[str, str]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_properties(path)


# Examples from Java's own documentation of the format ---------------------------------------

CHEESES = {"fruits": "apple, banana, pear, cantaloupe, watermelon, kiwi, mango"}

DOCUMENTED = {
    "three ways": ("Truth = Beauty\n Truth:Beauty\nTruth                    :Beauty\n", "Beauty"),
    "continued": (
        "Truth  apple, banana, pear, \\\n      cantaloupe, watermelon, \\\n      kiwi, mango",
        CHEESES["fruits"],
    ),
    "a name alone": ("Truth", ""),
    "a name alone, continued": ("Truth\\\n", ""),
    "no comment in the middle": ("Truth a\\\n # b", "a# b"),
    "a comment is not continued": ("# c \\\nTruth=Beauty", "Beauty"),
    "blank lines": ("\n \t\f\n\r\r\nTruth=Beauty\n\n", "Beauty"),
    "indented comments": ("  # c\n\t! d\nTruth=Beauty", "Beauty"),
    "escaped separators": ("Tr\\\nuth\\\n=Be\\=a\\:u\\ ty", "Be=a:u ty"),
    "two separators": ("Truth==Beauty", "=Beauty"),
    "blank and separator": ("Truth \f\t= \f\tBeauty", "Beauty"),
    "blanks at the end stay": ("Truth=Beauty \t", "Beauty \t"),
    "a continued line ends with CR and LF": ("Truth=\\\r\nBeauty", "Beauty"),
    "CR CR are two ends": ("Truth=\\\r\rother=x", ""),
    "LF CR are two ends": ("Truth=\\\n\rother=x", ""),
    "even backslashes do not continue": ("Truth=a\\\\\nother=x", "a\\"),
    "odd backslashes do": ("Truth=a\\\\\\\nb", "a\\b"),
    "a continued line ends at a blank one": ("Truth=a\\\n  \nother=x", "a"),
    "letters": ("Truth=\\t\\n\\r\\f\\q\\\"\\'\\b", "\t\n\r\fq\"'b"),
    "\\u": ("Tr\\u0075th=\\u00fc\\uD83D\\uDE00", "ü😀"),
    "no octal": ("Truth=\\101", "101"),
    "a lone backslash": ("\\\n# c\nTruth=Beauty", "Beauty"),
}


@pytest.mark.parametrize(("content", "value"), DOCUMENTED.values(), ids=DOCUMENTED)
def test_as_documented(path: pathlib.Path, content: str, value: str) -> None:
    assert read(path, content)["Truth"] == value


def test_names_may_hold_anything_that_is_escaped(path: pathlib.Path) -> None:
    assert read(path, r"a\:b\=c\ d\\=e") == {"a:b=c d\\": "e"}


def test_every_end_of_line(path: pathlib.Path) -> None:
    assert read(path, b"a=1\rb=2\r\nc=3\nd=4\\\r\n   5") == {
        "a": "1",
        "b": "2",
        "c": "3",
        "d": "45",
    }


def test_a_client_properties_as_cloud_services_hand_it_out(path: pathlib.Path) -> None:
    content = """\
# Required connection configs for Kafka producer
bootstrap.servers=broker.example.org:9092
security.protocol=SASL_SSL
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
    username='me' password='not me';
"""
    assert read(path, content) == {
        "bootstrap.servers": "broker.example.org:9092",
        "security.protocol": "SASL_SSL",
        "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        "username='me' password='not me';",
    }


def test_the_same_value_twice_is_no_mistake(path: pathlib.Path) -> None:
    assert read(path, "acks=all\nlinger.ms=5\nacks: all\n") == {"acks": "all", "linger.ms": "5"}


def test_utf8_with_a_byte_order_mark(path: pathlib.Path) -> None:
    assert read(path, b"\xef\xbb\xbfclient.id=\xc3\xbc") == {"client.id": "ü"}


def test_comments_may_be_in_any_encoding(path: pathlib.Path) -> None:
    assert read(path, b"# gr\xfc\xdfe\nacks=all") == {"acks": "all"}


# Malformed files ----------------------------------------------------------------------------

WRONG = {
    "half an escape": (
        b"acks=all\nsasl.password=s3cret\\u00g1",
        "line 2: sasl.password: \\u must be followed",
    ),
    "an escape at the end": (
        b"\n\nsasl.password=s3cret\\u12",
        "line 3: sasl.password: \\u must be followed",
    ),
    "in a name": (b"ac\\uks=all", "line 1: \\u must be followed"),
    "no name": (b"acks=all\n\n  = s3cret", "line 3: there is no name"),
    "no name, a colon": (b": s3cret", "line 1: there is no name"),
    "twice": (b"acks=all\n# c\nacks = s3cret", "line 3: acks is already set in line 1"),
    "Latin-1": (b"acks=all\nclient.id=gr\xfc\xdfe s3cret", "line 2: it is not UTF-8"),
    "UTF-16": ("acks=all".encode("utf-16"), "line 1: it is not UTF-8"),
    "UTF-16 without a mark": ("acks=all".encode("utf-16-le"), "line 1: it contains a zero byte"),
    "half a pair": (b"client.id=s3cret\\ud83d", "line 1: client.id: a \\u escape is half"),
    "a continued line": (b"acks=all\na=1\\\n2\\\n\\u3", "line 2: a: \\u must be followed"),
}


@pytest.mark.parametrize(("content", "text"), WRONG.values(), ids=WRONG)
def test_errors_name_file_and_line_and_show_no_value(
    path: pathlib.Path, content: bytes, text: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(path, content)
    assert str(caught.value).startswith(f"{path}, {text}")
    assert "s3cret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nothing\.properties: the file cannot be read: "):
        read_properties(tmp_path / "nothing.properties")
    with pytest.raises(ConfigurationError, match="the file cannot be read: "):
        read_properties(tmp_path)
    with pytest.raises(ConfigurationError, match="the file cannot be read: "):
        read_properties("zero\0byte")


# Round trip through a writer that escapes as Java's store() -----------------------------------

TEXTS = st.text(st.characters(codec="utf-8"))
BLANKS = st.text(" \t\f", max_size=3)
ENDS = st.sampled_from(["\n", "\r", "\r\n"])


def escaped(text: str, *, name: bool) -> str:
    """Escape *text* as ``Properties.store()`` does."""
    written = []
    for place, letter in enumerate(text):
        if letter == " ":
            written.append("\\ " if name or place == 0 else " ")
        elif letter in "=:#!\\":
            written.append(f"\\{letter}")
        elif letter in "\t\n\r\f":
            written.append({"\t": r"\t", "\n": r"\n", "\r": r"\r", "\f": r"\f"}[letter])
        elif " " < letter < "\x7f":
            written.append(letter)
        else:
            units = letter.encode("utf-16-be")
            written += [f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2)]
    return "".join(written)


def ended(written: str, end: str) -> str:
    """Return *written* followed by *end*, a separate line ending.

    A CR and the LF after it are one line ending. So where a continued line ends with CR, LF does
    not end the empty line after it, and the line after that belongs to the value as well.
    """
    return written + ("\r" if written.endswith("\r") and end == "\n" else end)


@st.composite
def files(draw: st.DrawFn) -> tuple[dict[str, str], str]:
    """Draw the contents of a file, and one of the ways to write it."""
    pairs = draw(st.dictionaries(TEXTS.filter(bool), TEXTS))
    content = ""
    for name, value in pairs.items():
        if draw(st.booleans()):
            content += draw(BLANKS) + draw(st.sampled_from(["", "# a=b\\", "!c"]))
            content = ended(content, draw(ENDS))
        separator = draw(BLANKS) + draw(st.sampled_from("=:")) + draw(BLANKS)
        broken = f"\\{draw(ENDS)}{draw(BLANKS)}" if draw(st.booleans()) else ""
        content += draw(BLANKS) + escaped(name, name=True) + separator + broken
        content = ended(content + escaped(value, name=False), draw(ENDS))
    return pairs, content


@given(files())
def test_what_was_written_comes_back(
    path: pathlib.Path, written: tuple[dict[str, str], str]
) -> None:
    pairs, content = written
    assert read(path, content) == pairs
