"""The scan of text against other parsers: the same values, or refused, with the place."""

from __future__ import annotations

import csv
import io
import json
import random
from decimal import Decimal
from typing import Any

import pytest

from pykaproducer._load import json_text
from pykaproducer._load._scan import CsvScan, JsonScan, ScanError

LINES = [
    b"{}",
    b' {"a" : [ ] } \t',
    b'{"a":[null,true,false,{"b":[[]]}]}',
    b'{"":0,"a":-0,"b":-0.0e-0,"c":1E+2,"d":123456789012345678901234567890.5e999}',
    b'{"a":"\\"\\\\\\/\\b\\f\\n\\r\\t\\u0000\\uD83D\\uDE00\\ud800\\udc00\\uffff"}',
    '{"é😀":"\x7f\x80߿ࠀ퟿￿𐀀\U0010ffff"}'.encode(),
    b'{"a":{"a":{"a":1}},"b":[{"a":1},{"a":2}]}',
    b'{"' + b"x" * 1000 + b'":"' + b"y" * 1001 + b'"}',
    b'{"a":' + b"[" * 199 + b"]" * 199 + b"}",
]

#: A line, the byte at which it is wrong, and why.
WRONG_LINES = [
    (b"null", 0, "not a JSON object"),
    (b' "{}"', 1, "not a JSON object"),
    (b"[{}]", 0, "not a JSON object"),
    (b"\xef\xbb\xbf{}", 0, "not a JSON object"),
    (b"\xff{}", 0, "not UTF-8"),
    (b"{}{}", 2, "more text"),
    (b"{},", 2, "more text"),
    (b"{", 1, "line ends"),
    (b'{"a', 3, "line ends"),
    (b'{"a"', 4, "line ends"),
    (b'{"a":', 5, "line ends"),
    (b'{"a":1', 6, "line ends"),
    (b'{"a":"x\\', 7, "escape"),
    (b"{a:1}", 1, "name of a member"),
    (b"{'a':1}", 1, "name of a member"),
    (b'{"a":1,}', 7, "name of a member"),
    (b"{,}", 1, "name of a member"),
    (b'{"a" 1}', 5, "colon"),
    (b'{"a":[1,]}', 8, "JSON value"),
    (b'{"a":[,1]}', 6, "JSON value"),
    (b'{"a":[1 2]}', 8, "comma"),
    (b'{"a":[1}', 7, "comma"),
    (b'{"a":{]}', 6, "name of a member"),
    (b'{"a":True}', 5, "JSON value"),
    (b'{"a":nul}', 5, "JSON value"),
    (b'{"a":truex}', 9, "comma"),
    (b'{"a":NaN}', 5, "JSON value"),
    (b'{"a":-}', 5, "JSON number"),
    (b'{"a":+1}', 5, "JSON value"),
    (b'{"a":01}', 5, "JSON number"),
    (b'{"a":-01}', 5, "JSON number"),
    (b'{"a":1.}', 5, "JSON number"),
    (b'{"a":.5}', 5, "JSON value"),
    (b'{"a":1e}', 5, "JSON number"),
    (b'{"a":0x1}', 6, "comma"),
    (b'{"a":"\t"}', 6, "control character"),
    (b'{"a":"long enough \x1f"}', 18, "control character"),
    (b'{"a":"\0"}', 6, "NUL"),
    (b'{"a":"\\x41"}', 6, "escape"),
    (b'{"a":"\\u12g4"}', 6, "escape"),
    (b'{"a":"\\ud83d"}', 6, "surrogate"),
    (b'{"a":"\\ud83d\\u0041"}', 6, "surrogate"),
    (b'{"a":"\\ude00"}', 6, "surrogate"),
    (b'{"a":"\x80"}', 6, "not UTF-8"),
    (b'{"a":"\xc0\xaf"}', 6, "not UTF-8"),
    (b'{"a":"\xe0\x80\x80"}', 6, "not UTF-8"),
    (b'{"a":"\xed\xa0\x80"}', 6, "not UTF-8"),
    (b'{"a":"\xf4\x90\x80\x80"}', 6, "not UTF-8"),
    (b'{"a":"12345678\xe2\x82"}', 14, "not UTF-8"),
    (b'{"a":1,"b":2,"a":3}', 13, "two members 'a'"),
    (b'{"a":{"b":1,"\\u0062":2}}', 12, "two members 'b'"),
    (b'{"a":' + b"[" * 200 + b"]" * 200 + b"}", 204, "200 deep"),
    (b'{"a":' + b"[" * 100_000, 204, "200 deep"),
]


def lines_of(text: bytes, suffix: bytes = b"") -> list[str]:
    rows, column = JsonScan().lines(text, 0, len(text), suffix)
    found: list[str] = json_text.large_string(rows, column).to_pylist()
    return found


def test_a_block_of_json_ends_with_a_line_feed() -> None:
    with pytest.raises(ValueError, match="line end"):
        lines_of(b"{}\r")


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_lines_of_json_stay_as_they_are(line: bytes) -> None:
    text = b'{"a":1}\n' + line + b"\r\n \n\r\n" + line + b"\n"
    assert lines_of(text) == ['{"a":1}', line.decode(), line.decode()]
    json.loads(line)
    appended = lines_of(line + b"\n", b'"day":"1"')
    assert json.loads(appended[0]) == {**json.loads(line), "day": "1"}


@pytest.mark.parametrize(("line", "byte", "reason"), WRONG_LINES, ids=range(len(WRONG_LINES)))
def test_what_is_not_a_line_of_json_is_refused(line: bytes, byte: int, reason: str) -> None:
    text = b'{"a":1}\n\n' + line + b"\n"
    for method in ("lines", "learn"):
        with pytest.raises(ScanError, match=reason) as caught:
            getattr(JsonScan(), method)(text, 0, len(text))
        assert (caught.value.line, caught.value.byte) == (2, byte)


def some_value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(8 if depth < 4 else 6)
    if kind < 2:
        return "".join(rng.choices('ab"\\/\n\tйé😀\u2028 0', k=rng.randrange(20)))
    if kind == 2:
        return rng.choice([None, True, False, 0, -1, 1.5, 1e300, 2**70])
    if kind == 3:
        return rng.randrange(-(10**18), 10**18)
    if kind < 6:
        return rng.random() * 10 ** rng.randrange(-20, 20)
    if kind == 6:
        return [some_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return some_object(rng, depth + 1)


def some_object(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    names = ["a", "b", "long name of a member", "é", 'q"uote', ""]
    return {name: some_value(rng, depth) for name in rng.sample(names, rng.randrange(6))}


def test_members_are_those_that_another_parser_finds() -> None:
    rng = random.Random(random.random())
    objects = [some_object(rng) for _ in range(2000)]
    text = b"".join(
        json.dumps(
            each,
            ensure_ascii=rng.random() < 0.5,
            separators=rng.choice([(",", ":"), (" , ", " : ")]),
        ).encode()
        + rng.choice([b"\n", b"\r\n", b"\n\n"])
        for each in objects
    )
    learnt = JsonScan()
    assert learnt.learn(text, 0, len(text)) == len(objects)
    names = list(dict.fromkeys(name for each in objects for name in each))
    assert list(learnt.tree()) == names
    scan, start, found = JsonScan(names, strict=True), 0, []
    while start < len(text):
        start, rows, columns = scan.columns(text, start, len(text), 300)
        cells = [json_text.of_text(json_text.large_string(rows, each)) for each in columns]
        found += zip(*(column.to_pylist() for column in cells), strict=True)
    assert found == [
        tuple(json.loads(json.dumps(each), parse_float=Decimal).get(name) for name in names)
        for each in objects
    ]


def test_a_changed_byte_is_refused_or_means_the_same_to_another_parser() -> None:
    rng = random.Random(random.random())
    for _ in range(3000):
        line = bytearray(json.dumps(some_object(rng), ensure_ascii=rng.random() < 0.5).encode())
        for _ in range(rng.randrange(1, 3)):
            line[rng.randrange(len(line))] = rng.choice(b'{}[]",:\\u0e.-ntf \x00\xc3\xa9')
        if not line.strip():
            continue
        try:
            (found,) = lines_of(bytes(line) + b"\n")
        except ScanError:
            with pytest.raises((ValueError, AssertionError)):
                assert_strict(bytes(line))
        else:
            assert found.encode() == line
            assert_strict(bytes(line))


def assert_strict(line: bytes) -> None:
    """Check a line with Python's parser, and for what it is lenient about."""

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(found)) == len(found)
        return dict(found)

    def fail(text: str) -> None:
        raise ValueError(text)

    value = json.loads(line.decode(), object_pairs_hook=pairs, parse_constant=fail)
    assert isinstance(value, dict)
    json.dumps(value, ensure_ascii=False).encode()  # no lone surrogates


def test_names_are_forgotten_when_they_are_too_many() -> None:
    """Ids that are names: no line is refused, and duplicates still are."""
    scan = JsonScan()
    text = "".join(f'{{"a":{{"k{n}":1,"k{n}x":{{}}}}}}\n' for n in range(100_000)).encode()
    assert scan.learn(text, 0, len(text)) == 100_000
    assert (scan.tree(), scan.nested) == ({"a": {}}, False)
    rows, _ = JsonScan().lines(text, 0, len(text))
    assert rows == 100_000
    many = ("{" + ",".join(f'"k{n}":{n}' for n in range(200_000)) + ',"k77":0}\n').encode()
    with pytest.raises(ScanError, match="two members 'k77'"):
        JsonScan().lines(many, 0, len(many))


@pytest.mark.parametrize(
    ("options", "line", "reason"),
    [
        ({"refused": ["value"]}, b'{"a":1,"value":2}', "has a member 'value'"),
        ({"required": "value"}, b'{"a":1}', "has no member 'value'"),
        ({"columns": ["a"], "strict": True}, b'{"a":1,"b":2}', "'b' was not there"),
    ],
)
def test_members_that_a_line_must_have_or_must_not(
    options: dict[str, Any], line: bytes, reason: str
) -> None:
    with pytest.raises(ScanError, match=reason):
        JsonScan(**options).lines(line + b"\n", 0, len(line) + 1)


# CSV


def table_of(text: str | bytes, delimiter: str = ",", step: int = 1000) -> list[list[str | None]]:
    data = text.encode() if isinstance(text, str) else text
    first = CsvScan(delimiter)
    assert first.columns(data, 0, len(data), 1, True)[1] == 1
    scan = CsvScan(delimiter, first.found, range(first.found))
    start, found = 0, []
    while start < len(data):
        start, rows, columns = scan.columns(data, start, len(data), step, True)
        cells = [json_text.large_string(rows, each).to_pylist() for each in columns]
        found += [list(row) for row in zip(*cells, strict=True)]
    return found


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("a,b,c\n1,2,3\n", [["a", "b", "c"], ["1", "2", "3"]]),
        ("a,b\r1,2\r", [["a", "b"], ["1", "2"]]),
        ('a,b\r\n1,"x\r\ny"\r\n', [["a", "b"], ["1", "x\r\ny"]]),
        (
            'first,address\nJohn,"120 any st., Anytown, WW"\n',
            [["first", "address"], ["John", "120 any st., Anytown, WW"]],
        ),
        ('a,b,c\n1,"",""\n2,,4\n', [["a", "b", "c"], ["1", "", ""], ["2", None, "4"]]),
        ('a,b\n1,"ha ""ha"" ha"\n3,4\n', [["a", "b"], ["1", 'ha "ha" ha'], ["3", "4"]]),
        (
            'k,v\n1,"{""type"": ""Point"", ""x"": [1, 2]}"\n',
            [["k", "v"], ["1", '{"type": "Point", "x": [1, 2]}']],
        ),
        ('a,b\n"""x""","\n\n"\n', [["a", "b"], ['"x"', "\n\n"]]),
        ('a\n\nx\n""\n', [["a"], [None], ["x"], [""]]),
        ('a,b\n5" pipe,it"s\n', [["a", "b"], ['5" pipe', 'it"s']]),
        ("a,b\n\x01 ,é ʤ😀 and more text\n", [["a", "b"], ["\x01 ", "é ʤ😀 and more text"]]),
    ],
)
def test_cells_of_csv(text: str, rows: list[list[str | None]]) -> None:
    assert table_of(text) == rows
    assert table_of(text.replace(",", "\t"), "\t") == [
        [cell and cell.replace(",", "\t") for cell in row] for row in rows
    ]


@pytest.mark.parametrize(
    ("text", "line", "byte", "reason"),
    [
        (b'a,b\n1,"x\ny,z\n', 1, 2, "never closed"),
        (b'a,b\n"1\n2","x"y\n', 2, 6, "after the closing"),
        (b"a,b\n1,2,3\n", 1, 4, "more cells"),
        (b'a,b\n"1\n2"\n', 1, 0, "number of cells is 1, but 2"),
        (b"a,b\n1,2\n\n3,4\n", 2, 0, "line is empty"),
        (b"a,b\r1,\0\r", 1, 2, "NUL"),
        (b'a,b\n1,"\0"\n', 1, 3, "NUL"),
        (b"a,b\n1,J\xf6rg\n", 1, 3, "not UTF-8"),
        (b'a,b\n1,"12345678\xff"\n', 1, 11, "not UTF-8"),
    ],
)
def test_what_is_wrong_in_csv(text: bytes, line: int, byte: int, reason: str) -> None:
    with pytest.raises(ScanError, match=reason) as caught:
        table_of(text)
    assert (caught.value.line, caught.value.byte) == (line, byte)


def test_tables_are_those_that_were_written() -> None:
    rng = random.Random(random.random())
    count = rng.randrange(2, 8)
    table = [[f"c{n}" for n in range(count)]]
    for _ in range(3000):
        table.append(
            ["".join(rng.choices('ab,"\r\n\tйé😀 ;', k=rng.randrange(12))) for _ in range(count)]
        )
    ways = [(end, csv.QUOTE_ALL) for end in ("\n", "\r\n", "\r")]
    for terminator, quoting in [*ways, ("\r\n", csv.QUOTE_MINIMAL)]:
        text = io.StringIO()
        csv.writer(text, lineterminator=terminator, quoting=quoting).writerows(table)
        found = table_of(text.getvalue(), step=rng.randrange(1, 500))
        assert [[cell or "" for cell in row] for row in found] == table
