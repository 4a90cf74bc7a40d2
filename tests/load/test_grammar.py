"""The grammar of ``--select``: what it accepts, and the position of errors."""

from __future__ import annotations

import contextlib
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykaproducer._load.grammar import Avro, Column, Item, Json, Literal, SelectEntry
from pykaproducer._load.select import Selection, SelectionError

NAME = st.text(min_size=1, max_size=8) | st.sampled_from(
    ["as", "null", "json", "a", "x1", "`", "'"]
)
COLUMN = st.lists(NAME, min_size=1, max_size=3).map(lambda path: Column(tuple(path)))
NUMBER = st.integers(0, 2**31 - 1)
ITEM = (
    st.builds(Item, COLUMN, st.none() | NAME)
    | st.builds(Item, COLUMN, st.none(), st.just(True))
    | st.just(Item(Column(()), spread=True))
)
ITEMS = st.lists(ITEM, min_size=1, max_size=3).map(tuple)
LITERAL = st.builds(Literal, st.none() | st.integers() | st.text(max_size=8))
CONTENT = (
    COLUMN
    | LITERAL
    | st.builds(Json, ITEMS)
    | st.builds(Avro, ITEMS, st.text(max_size=8), st.none() | st.integers(0, 2**31 - 1))
)
NUMBERS = COLUMN | st.builds(Literal, st.none() | NUMBER)
TOPIC = COLUMN | st.builds(Literal, st.text(min_size=1, max_size=8))
HEADERS = st.lists(
    st.builds(SelectEntry, st.just("headers"), NAME, CONTENT), max_size=3
) | st.builds(SelectEntry, st.just("headers"), st.none(), COLUMN).map(lambda entry: [entry])


@st.composite
def selections(draw: st.DrawFn) -> Selection:
    found = [SelectEntry("value", None, draw(CONTENT)), *draw(HEADERS)]
    for field, kind in (
        ("key", CONTENT),
        ("timestamp", NUMBERS),
        ("partition", NUMBERS),
        ("topic", TOPIC),
    ):
        if draw(st.booleans()):
            found.append(SelectEntry(field, None, draw(kind)))
    return Selection(tuple(draw(st.permutations(found))))


@given(selections())
def test_any_selection_can_be_written_down_and_read_again(selection: Selection) -> None:
    assert Selection.parse(str(selection)) == selection


@given(st.text(alphabet=" valuekyjson=,.()*'`-1\n", max_size=20))
def test_any_text_is_a_selection_or_an_error_with_its_place(text: str) -> None:
    with contextlib.suppress(SelectionError):
        assert str(Selection.parse(text))
        return
    with pytest.raises(SelectionError) as caught:
        Selection.parse(text)
    assert caught.value.position is not None
    assert 0 <= caught.value.position <= len(text)


def test_blanks_and_lines_do_not_matter() -> None:
    spread = Selection.parse("\n key = user . id ,\n\tvalue=json( * , a.* , b as `c d` ) ")
    assert spread == Selection.parse("key=user.id,value=json(*,a.*,b as `c d`)")


@pytest.mark.parametrize(
    ("text", "position", "said"),
    [
        ("", 0, "expected a field"),
        ("key=a", 5, "no value given; add value=json(*)"),
        ("value", 5, "expected = after value; found the end"),
        ("value=", 6, "expected a column, 'text', an integer, null, json"),
        ("valeu=a", 0, "no field 'valeu'; fields are key, value"),
        ("value=a, value=b", 9, "value is given twice"),
        ("value=a, headers=h, headers.x=b", 20, "headers is given twice"),
        ("value=jsn(a)", 6, "no function jsn(); use json or avro"),
        ("value=json()", 11, "expected a column or *; found ')'"),
        ("value=json(a b)", 13, "expected a comma, 'as' and a name, or )"),
        ("value=avro(a)", 12, "expected a comma and the schema"),
        ("value=avro(a, 'x' b)", 18, "expected ) after the schema"),
        ("value=avro(a, 'x', b)", 19, "expected id=NUMBER after the schema"),
        ("value=avro(a, 'x', id 7)", 22, "expected = after id"),
        ("value=avro(a, 'x', id=-1)", 22, "an id is an integer from 0 to 2147483647"),
        ("value=avro(a, 'x', id='7')", 22, "an id is an integer from 0 to 2147483647"),
        ("value=avro(a, 'x', id=7, b)", 23, "expected )"),
        ("value=user-id", 10, "go in back quotes"),
        ("value=user-1", 10, "names with other characters go in back quotes"),
        ("value=5a", 6, "neither a number nor a name"),
        ("value='abc", 6, "the ' that opens here is never closed"),
        ("value=a b", 8, "expected a comma or the end"),
        ("value=a, partition=-1", 19, "partition requires a column or an integer, not -1"),
        ("value=a, partition=2147483648", 19, "partition requires"),
        ("value=a, timestamp='now'", 19, "an integer of milliseconds since 1970"),
        ("value=a, topic=''", 15, "topic requires a column or 'text'"),
        ("value=a, topic=null", 15, "topic requires a column or 'text'"),
        ("value=a, topic=json(a)", 15, "topic requires a column or a literal, not json()"),
        ("value=a, headers='x'", 17, "for a single one use headers.NAME="),
        ("value=a, headers.=b", 17, "expected the name of a header"),
    ],
)
def test_a_mistake_is_shown_where_it_is(text: str, position: int, said: str) -> None:
    with pytest.raises(SelectionError) as caught:
        Selection.parse(text)
    assert said in str(caught.value)
    assert caught.value.position == position
    line, caret = str(caught.value).splitlines()[-2:]
    assert line == "  " + text
    assert caret == "  " + " " * position + "^"
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.position) == (str(caught.value), position)


def test_of_many_lines_the_one_with_the_mistake_is_shown() -> None:
    with pytest.raises(SelectionError) as caught:
        Selection.parse("value=a,\n\tkey=!")
    assert str(caught.value).splitlines()[1:] == ["   key=!", "       ^"]
