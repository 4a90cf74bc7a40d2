"""The options of values in Avro, checked when the write is planned.

========================= ==========================================================================
``valueFormat``           ``raw`` (default); or ``avro``: the column ``value`` is a struct
``valueSchema``           the Avro schema: JSON, or the name of a file, which the driver reads
``valueSchemaId``         the schema's id, for the wire format of schema registries
``schema.registry.url``   the driver asks this registry for the schema, or for the id of
                          ``valueSchema``
``schemaRegistrySubject`` the schema's name there; default: ``TOPIC-value``
``autoRegisterSchemas``   ``true``: register ``valueSchema``; default ``false``: it must be there
========================= ==========================================================================

The options of a registry are in :mod:`~pykaproducer.spark.schema_registry`. Those with dots are the
settings of other clients of registries, so that these can be used here unchanged; the others have
the style of Spark's. Tasks do not need any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pykaproducer._load.avro import AvroSchema, wire_prefix
from pykaproducer._load.encoders import EncodingError, MissingPackageError
from pykaproducer._load.grammar import MOST_SCHEMA_ID
from pykaproducer.spark import schema_registry
from pykaproducer.spark.schema_registry import RegistryError, SchemaRegistry

_URL = schema_registry.URL
#: The options that have an effect only with a registry.
_OF_REGISTRY = (
    *(schema_registry.SUBJECT, schema_registry.REGISTER),
    *(schema_registry.USER, schema_registry.TOKEN),
    *(schema_registry.STORE, schema_registry.PASSWORD),
    *schema_registry.SOURCES,
)
#: The options, in lower case, and their spelling for users.
SPELLED = {
    name.lower(): name
    for name in ("valueFormat", "valueSchema", "valueSchemaId", _URL, *_OF_REGISTRY)
}


@dataclass(frozen=True)
class AvroOptions:
    """How values are encoded in Avro."""

    #: JSON, or the name of a file.
    schema: str | None
    schema_id: int | None
    registry: SchemaRegistry | None = field(repr=False)

    @classmethod
    def of(cls, options: Mapping[str, str], topic: str | None) -> AvroOptions | None:
        """Parse *options*, whose names are in lower case. Return None without ``valueFormat=avro``.

        Raises:
            ValueError: one is missing or invalid.
        """
        given = {SPELLED[name]: text for name, text in options.items() if name in SPELLED}
        kind = given.pop("valueFormat", "raw")
        if kind.lower() not in ("raw", "avro"):
            raise ValueError(f"option valueFormat: {kind!r} was given; allowed: raw, avro")
        for name in given:
            if kind.lower() == "raw":
                raise ValueError(f"option {name} has an effect only with valueFormat=avro")
            if name in _OF_REGISTRY and _URL not in given:
                raise ValueError(f"option {name} has an effect only with {_URL}")
        if kind.lower() == "raw":
            return None
        schema, number = given.get("valueSchema"), _schema_id(given.get("valueSchemaId"))
        registry = SchemaRegistry.of(given, topic)
        if registry is None and schema is None:
            raise ValueError(
                f"option valueSchema is missing: valueFormat=avro needs the schema, as JSON or as "
                f"the name of a file, or {_URL}"
            )
        if registry is not None and schema is not None and number is not None:
            raise ValueError(
                f"options valueSchema, valueSchemaId and {_URL} are all given; the registry knows "
                f"the schema of an id, and the id of a schema: remove one of the three"
            )
        if registry is not None and registry.registers and schema is None:
            raise ValueError(f"option {schema_registry.REGISTER} requires valueSchema")
        return cls(schema, number, registry)

    def find(self, *, again: bool) -> tuple[AvroSchema, bytes]:
        """Return the schema, and what precedes each record. Reads the file, asks the registry.

        *again*: an earlier answer of the registry may be used.

        Raises:
            ValueError: there is no schema, or it is invalid.
        """
        number, schema, option = self.schema_id, None, "valueSchema"
        try:
            if self.schema is not None:
                schema = AvroSchema.load(self.schema)
            if self.registry is not None:
                option = _URL
                find = schema_registry.find_again if again else SchemaRegistry.find
                found = find(self.registry, None if schema is None else schema.text, number)
                number, schema = found.id, AvroSchema(found.text)
                schema.fields(f"schema {number}")
        except (EncodingError, RegistryError) as error:
            raise ValueError(f"option {option}: {error}") from None
        except MissingPackageError as error:
            raise ValueError(f"option valueFormat: {error}") from None
        assert schema is not None, "of() requires valueSchema or a registry"
        return schema, wire_prefix(number)


def _schema_id(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and int(text) <= MOST_SCHEMA_ID):
        raise ValueError(
            f"option valueSchemaId: {text!r} was given; allowed: an integer up to {MOST_SCHEMA_ID}"
        )
    return int(text)
