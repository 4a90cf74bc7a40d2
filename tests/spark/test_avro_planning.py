"""Values in Avro: what the driver checks and asks for when a write is planned. Without Spark."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import pathlib
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow
import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    YearMonthIntervalType,
)

from pykaproducer._load.messages import RecordValue
from pykaproducer.spark import schema_registry
from pykaproducer.spark.columns import columns_of
from pykaproducer.spark.options import SinkError, SinkOptions
from pykaproducer.spark.sink import StreamSink
from tests._support.schema_registry import Asked, RegistryServer, Reply
from tests._support.stores import trust_store

SECRET = "hunter2"
ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": ["null", "double"], "default": None},
    ],
}


def fields(**types: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


LONG, DOUBLE, TEXT = LongType(), DoubleType(), StringType()
ROWS = fields(value=fields(id=LONG, price=DOUBLE))
BASIC = {"kafka.bootstrap.servers": "localhost:9092", "topic": "orders", "valueFormat": "avro"}


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with RegistryServer().running() as running:
        yield running


def planned(
    options: dict[str, str], rows: StructType = ROWS, *, again: bool = False
) -> RecordValue:
    """Return how the tasks encode the values."""
    given = SinkOptions.of({**BASIC, **options})
    columns = columns_of(rows, given, again=again)
    received = pickle.loads(pickle.dumps(columns))
    assert received == columns
    # What only the driver needs is not sent.
    for secret in (SECRET, base64.b64encode(f"me:{SECRET}".encode()).decode(), "http"):
        assert secret not in repr(given)
        assert secret.encode() not in pickle.dumps((columns, given.for_tasks()))
    assert received.value is not None
    return received.value


def refusal(options: dict[str, str], rows: StructType = ROWS) -> str:
    with pytest.raises(SinkError) as caught:
        planned(options, rows)
    text = str(caught.value)
    assert "\n" not in text
    assert SECRET not in text
    return text


def given(**changes: Any) -> dict[str, str]:
    return {"valueSchema": json.dumps({**ORDER, **changes})}


# Options ------------------------------------------------------------------------------------------


def test_without_an_id_records_have_no_prefix() -> None:
    found = planned(given())
    assert (found.names, found.prefix) == (("id", "price"), b"")


def test_the_wire_format_begins_with_the_id() -> None:
    assert planned({**given(), "valueSchemaId": "258"}).prefix == b"\0\0\0\1\2"


def test_a_schema_in_a_file_is_read_by_the_driver(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(ORDER))
    found = planned({"valueSchema": str(path)})
    path.unlink()
    assert json.loads(found.schema.text) == ORDER


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"valueFormat": "json"}, "option valueFormat: 'json' was given; allowed: raw, avro"),
        ({"valueFormat": "raw", **given()}, "option valueSchema has an effect only with valueForm"),
        ({}, "option valueSchema is missing: valueFormat=avro needs the schema"),
        (
            {"valueSchema": "/nowhere.avsc"},
            "option valueSchema: /nowhere.avsc: the Avro schema",
        ),
        ({"valueSchema": "{"}, "option valueSchema: the Avro schema is invalid: JSONDecodeError"),
        ({"valueSchema": '{"type": "int"}'}, "option valueSchema: the Avro schema is not the sch"),
        ({**given(), "valueSchemaId": "-1"}, "option valueSchemaId: '-1' was given; allowed: an"),
        ({**given(), "valueSchemaId": "2147483648"}, "option valueSchemaId: '2147483648' was"),
        ({**given(), "valueSchemId": "1"}, "unknown; did you mean valueSchemaId?"),
        (
            {**given(), "schemaRegistrySubject": "s"},
            "option schemaRegistrySubject has an effect only with schema.registry.url",
        ),
        (
            {**given(), "basic.auth.user.info": f"me:{SECRET}"},
            "option basic.auth.user.info has an effect only with schema.registry.url",
        ),
    ],
)
def test_wrong_options(options: dict[str, str], said: str) -> None:
    assert said in refusal(options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"schema.registry.url": "registry:8081"}, "option schema.registry.url: it is not a URL"),
        (
            {"schema.registry.url": "http://r:x/"},
            "option schema.registry.url: it is not a URL",
        ),
        ({"schema.registry.url": f"http://me:{SECRET}@r"}, "set basic.auth.user.info to user:pass"),
        ({"basic.auth.user.info": SECRET}, "option basic.auth.user.info: a value that is not"),
        (
            {"basic.auth.user.info": f"me:{SECRET}", "bearer.auth.token": SECRET},
            "options basic.auth.user.info and bearer.auth.token are both given",
        ),
        ({"bearer.auth.token": f"a\n{SECRET}"}, "option bearer.auth.token: a value that is not"),
        ({"basic.auth.credentials.source": "URL"}, "'URL' was given; allowed: USER_INFO"),
        ({"autoRegisterSchemas": "yes"}, "option autoRegisterSchemas: 'yes' was given; allowed: t"),
        ({"autoRegisterSchemas": "true"}, "option autoRegisterSchemas requires valueSchema"),
        (
            {**given(), "valueSchemaId": "1"},
            "are all given; the registry knows the schema",
        ),
        (
            {
                "schema.registry.url": "https://127.0.0.1:1",
                "schema.registry.ssl.truststore.location": "/nowhere",
            },
            "schema.registry.ssl.truststore.location: '/nowhere' cannot be read: No such file",
        ),
    ],
)
def test_wrong_options_of_a_registry(options: dict[str, str], said: str) -> None:
    assert said in refusal({"schema.registry.url": "http://127.0.0.1:1", **options})


def test_a_subject_is_needed_where_rows_name_their_topics(registry: RegistryServer) -> None:
    options = {**BASIC, "schema.registry.url": registry.url}
    del options["topic"]
    with pytest.raises(SinkError, match="option schemaRegistrySubject is missing: rows name"):
        SinkOptions.of(options)
    registry.add("any", ORDER)
    options["schemaRegistrySubject"] = "any"
    rows = fields(topic=TEXT, value=ROWS["value"].dataType)
    assert columns_of(rows, SinkOptions.of(options)).names == ("topic", "value")


# Fields -------------------------------------------------------------------------------------------


def field_of(kind: Any) -> dict[str, str]:
    return given(fields=[{"name": "a", "type": kind}])


@pytest.mark.parametrize(
    ("options", "rows", "said"),
    [
        (
            given(),
            fields(value=TEXT),
            "column value is string; with valueFormat=avro it must",
        ),
        (
            given(),
            fields(value=ArrayType(IntegerType())),
            "column value is array<int>; with",
        ),
        (
            given(),
            fields(key=TEXT),
            "column value is missing (columns: key); use struct(*)",
        ),
        (given(), fields(id=LONG), "column id is not part of a message"),
        (
            given(),
            fields(value=fields(price=DOUBLE)),
            "column value: the schema requires id, which has no default; add it",
        ),
        (
            given(),
            fields(value=fields(id=LONG, cost=DOUBLE)),
            "column value: the schema has no field cost",
        ),
        (
            given(),
            fields(value=fields(id=TEXT)),
            "column value: id: the schema has long, the column is string",
        ),
        (
            given(),
            fields(value=fields(id=IntegerType(), price=TEXT)),
            "column value: price: the schema has double, the column is string",
        ),
        (
            field_of({"type": "array", "items": "int"}),
            fields(value=fields(a=ArrayType(TEXT))),
            "column value: a[]: the schema has int, the column is string",
        ),
        (
            field_of({"type": "record", "name": "B", "fields": [{"name": "b", "type": "int"}]}),
            fields(value=fields(a=fields(b=DateType()))),
            "column value: a.b: the schema has int, the column is date32[day]",
        ),
        (
            field_of({"type": "int", "logicalType": "date"}),
            fields(value=fields(a=TimestampType())),
            "column value: a: the schema has date, the column is timestamp[us, tz=UTC]",
        ),
        (
            field_of("string"),
            fields(value=fields(a=YearMonthIntervalType())),
            "column value: a is interval year to month, which cannot be passed to Python",
        ),
    ],
)
def test_a_field_that_does_not_fit_is_named(
    options: dict[str, str], rows: StructType, said: str
) -> None:
    assert said in refusal(options, rows)


def test_a_field_that_is_there_twice() -> None:
    rows = fields(value=StructType([StructField("id", LONG), StructField("id", TEXT)]))
    with pytest.raises(SinkError, match="column value: there are 2 fields named id"):
        columns_of(rows, SinkOptions.of({**BASIC, **given()}))


# The registry -------------------------------------------------------------------------------------


def test_the_latest_schema_of_the_topic_s_subject(registry: RegistryServer) -> None:
    registry.add("other", ORDER)
    older = {**ORDER, "fields": ORDER["fields"][:1]}
    registry.add("orders-value", older)
    registry.add("orders-value", {**ORDER, "doc": "newer"})
    found = planned({"schema.registry.url": f"{registry.url}/"})
    assert found.prefix == b"\0\0\0\0\3"
    assert json.loads(found.schema.text)["doc"] == "newer"
    assert [each[:3] for each in registry.asked] == [
        ("GET", "/subjects/orders-value/versions/latest", None)
    ]


def test_another_subject(registry: RegistryServer) -> None:
    registry.add("shop/Order of 2025", ORDER)
    planned({"schema.registry.url": registry.url, "schemaRegistrySubject": "shop/Order of 2025"})
    assert registry.asked[0].path == "/subjects/shop%2FOrder%20of%202025/versions/latest"


def test_the_schema_of_an_id(registry: RegistryServer) -> None:
    registry.add("other", {**ORDER, "doc": "older"})
    registry.add("other", ORDER)
    found = planned({"schema.registry.url": registry.url, "valueSchemaId": "1"})
    assert found.prefix == b"\0\0\0\0\1"
    assert json.loads(found.schema.text)["doc"] == "older"


def test_a_given_schema_is_looked_up_and_not_registered(registry: RegistryServer) -> None:
    options = {**given(), "schema.registry.url": registry.url}
    registry.add("orders-value", {**ORDER, "doc": "another"})
    text = refusal(options)
    assert text == (
        "option schema.registry.url: subject orders-value: HTTP 404 Not Found: Schema not found; "
        "is it registered there?"
    )
    assert registry.subjects == {"orders-value": [json.dumps({**ORDER, "doc": "another"})]}
    registry.add("orders-value", ORDER)
    assert planned(options).prefix == b"\0\0\0\0\2"


def test_a_given_schema_is_registered_if_asked_for(registry: RegistryServer) -> None:
    options = {"schema.registry.url": registry.url, "autoRegisterSchemas": "TRUE"}
    registry.add("other", "{}")
    for _ in range(2):
        assert planned({**given(), **options}).prefix == b"\0\0\0\0\2"
    assert registry.subjects["orders-value"] == [json.dumps(ORDER)]


@pytest.mark.parametrize(
    ("options", "header"),
    [
        (
            {"basic.auth.user.info": f"me:{SECRET}", "basic.auth.credentials.source": "USER_INFO"},
            f"Basic {base64.b64encode(f'me:{SECRET}'.encode()).decode()}",
        ),
        ({"bearer.auth.token": SECRET}, f"Bearer {SECRET}"),
    ],
)
def test_credentials(registry: RegistryServer, options: dict[str, str], header: str) -> None:
    registry.add("orders-value", ORDER)
    registry.authorization = header
    planned({"schema.registry.url": registry.url, **options})
    text = refusal({"schema.registry.url": registry.url})
    assert text.endswith(
        "HTTP 401 Unauthorized: Unauthorized; set basic.auth.user.info or bearer.auth.token"
    )


def test_the_registry_is_never_shown_nor_repeats_a_secret(registry: RegistryServer) -> None:
    pair = f"me:{SECRET}"
    coded = base64.b64encode(pair.encode()).decode()

    def repeat(asked: Asked) -> Reply:
        return Reply.of(403, message=f"no rights: {asked.authorization}\n{pair} {SECRET}")

    registry.answer = repeat
    text = refusal({"schema.registry.url": registry.url, "basic.auth.user.info": pair})
    assert coded not in text
    assert "HTTP 403 Forbidden: no rights: Basic <not shown> <not shown> <not shown>" in text


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply(200, b"<html>"), "the answer is not a JSON object; is the URL right?"),
        (Reply(200, b"[1]"), "the answer is not a JSON object; is the URL right?"),
        (Reply(200, b"{}"), "the answer has no schema with an id; is the URL right?"),
        (Reply.of(200, id="7", schema="{}"), "the answer has no schema with an id; is the URL"),
        (Reply.of(200, id=True, schema="{}"), "the answer has no schema with an id; is the URL"),
        (Reply.of(200, id=2**31, schema="{}"), "the answer has no schema with an id; is the URL"),
        (Reply.of(200, id=7, schema="{"), "option schema.registry.url: schema 7 is invalid: JSOND"),
        (Reply.of(200, id=7, schema='"int"'), "schema 7 is not the schema of a record"),
        (
            Reply.of(200, id=7, schema="{}", schemaType="PROTOBUF"),
            "the schema is PROTOBUF; it",
        ),
        (
            Reply.of(200, id=7, schema="{}", references=[{"name": "a"}]),
            "the schema refers to schemas of other subjects",
        ),
        (Reply(404, b"<html>no such page"), "HTTP 404 Not Found; is the URL right?"),
        (Reply(302, b"", {"Location": "/"}), "HTTP 302 Found; redirects are not followed"),
        (Reply(500, b"\xff"), "subject orders-value: HTTP 500 Internal Server Error"),
        (Reply(200, b"{}", {"Content-Length": "9"}), ": the answer is incomplete"),
    ],
)
def test_wrong_answers(registry: RegistryServer, reply: Reply, said: str) -> None:
    registry.answer = lambda _: reply
    assert said in refusal({"schema.registry.url": registry.url})


def test_a_missing_subject(registry: RegistryServer) -> None:
    assert refusal({"schema.registry.url": registry.url}) == (
        "option schema.registry.url: subject orders-value: HTTP 404 Not Found: Subject "
        "'orders-value' not found; is it registered there?"
    )


def test_what_is_not_a_registry() -> None:
    def greet() -> None:
        peer, _ = server.accept()
        with peer:
            peer.recv(1 << 16)
            peer.sendall(b"220 smtp.example.com ready\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=greet)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert f"{url}: the answer is not HTTP; is the URL right?" in refusal(
            {"schema.registry.url": url}
        )
        thread.join()


def test_a_registry_that_does_not_listen(refusing: str) -> None:
    text = refusal({"schema.registry.url": f"http://{refusing}"})
    assert f"subject orders-value: http://{refusing}: {refusing} cannot be reached: " in text


@contextlib.contextmanager
def silent(registry: RegistryServer) -> Iterator[None]:
    """Let the registry not answer within the block."""
    end = threading.Event()

    def wait(_: Asked) -> None:
        end.wait()

    registry.answer = wait
    try:
        yield
    finally:
        registry.answer = None
        end.set()


def test_a_registry_that_does_not_answer(
    registry: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_registry, "READ_TIMEOUT", 0.2)
    with silent(registry):
        text = refusal({"schema.registry.url": registry.url})
    assert text.endswith(f"{registry.url}: it did not answer within 0.2 s")


def test_the_next_registry_is_asked(registry: RegistryServer, refusing: str) -> None:
    registry.add("orders-value", ORDER)
    urls = f"http://{refusing}, {registry.url}"
    assert planned({"schema.registry.url": urls}).prefix == b"\0\0\0\0\1"


def test_the_certificate_of_a_registry(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("trustme")
    from pykaproducer.testing._certificates import CertificateAuthority

    authority, other = CertificateAuthority("an authority"), CertificateAuthority("another")
    issued = authority.issue("registry", ["127.0.0.1"])
    both = tmp_path / "both.pem"
    both.write_text(issued.key + issued.certificate)
    for name, each in (("ca.pem", authority), ("other.pem", other)):
        (tmp_path / name).write_text(each.certificate)
    store = trust_store(tmp_path / "ca.jks", [authority.certificate], "JKS", SECRET)
    with RegistryServer(str(both)).running() as registry:
        registry.add("orders-value", ORDER)
        options = {"schema.registry.url": registry.url}
        name = "schema.registry.ssl.truststore"
        planned({**options, f"{name}.location": str(tmp_path / "ca.pem")})
        planned({**options, f"{name}.location": str(store), f"{name}.password": SECRET})
        text = refusal({**options, f"{name}.location": str(tmp_path / "other.pem")})
        assert "its certificate is not accepted" in text
        assert f"(trusted authorities: {name}.location)" in text
        assert "its certificate is not accepted" in refusal(options)
        wrong = refusal({**options, f"{name}.location": str(store), f"{name}.password": "x" * 8})
        assert f"option schema.registry.url: {name}.password" in wrong


def test_confluents_deserializer_reads_the_records(registry: RegistryServer) -> None:
    pytest.importorskip("authlib")  # of the extra confluent-kafka[avro]
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    registry.add("other", {**ORDER, "doc": "unused"})
    options = {"schema.registry.url": registry.url, "autoRegisterSchemas": "true"}
    rows = [{"id": 1, "price": 0.5}, {"id": 2**40, "price": None}]
    kind = pyarrow.struct([("id", pyarrow.int64()), ("price", pyarrow.float64())])
    values, failures = planned({**given(), **options}).of(pyarrow.array(rows, kind))
    assert not failures
    decode = AvroDeserializer(SchemaRegistryClient({"url": registry.url}))
    context = SerializationContext("orders", MessageField.VALUE)
    assert [decode(each, context) for each in values.to_pylist()] == rows


# Streams ------------------------------------------------------------------------------------------


@pytest.fixture
def advance(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that advances the clock of the answers that are kept."""
    now = [1000.0]
    monkeypatch.setattr(schema_registry, "_known", {})
    monkeypatch.setattr(schema_registry, "monotonic", lambda: now[0])

    def advance(seconds: float) -> None:
        now[0] += seconds

    return advance


def test_a_stream_does_not_ask_for_each_micro_batch(
    registry: RegistryServer, advance: Callable[[float], None]
) -> None:
    options = {"schema.registry.url": registry.url}
    registry.add("orders-value", ORDER)
    assert planned(options, again=True).prefix == b"\0\0\0\0\1"
    registry.add("orders-value", {**ORDER, "doc": "newer"})
    assert planned(options, again=True).prefix == b"\0\0\0\0\1"
    assert len(registry.asked) == 1
    assert planned(options).prefix == b"\0\0\0\0\2"
    advance(schema_registry.KEPT)
    assert planned(options, again=True).prefix == b"\0\0\0\0\2"


def test_a_stream_goes_on_while_the_registry_is_away(
    registry: RegistryServer, advance: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "pykaproducer")
    options = {"schema.registry.url": registry.url, "bearer.auth.token": SECRET}
    registry.add("orders-value", ORDER)
    registry.authorization = f"Bearer {SECRET}"
    planned(options, again=True)
    advance(schema_registry.KEPT)
    registry.answer = lambda _: Reply(503, b"")
    for _ in range(2):
        assert planned(options, again=True).prefix == b"\0\0\0\0\1"
    (record,) = caplog.records
    assert record.getMessage() == (
        "schema id 1 is used again: subject orders-value: HTTP 503 Service Unavailable"
    )


def test_a_commit_does_not_need_the_registry() -> None:
    """It only gets the tasks' results."""
    options = {**BASIC, "schema.registry.url": "http://127.0.0.1:1"}
    StreamSink(options, ROWS, False, commits=True).commit([], 0)
    with pytest.raises(SinkError):
        StreamSink(options, ROWS, False)
