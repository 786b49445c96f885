"""Formats of records, for ``from_topic``, ``from_records`` and ``to_topic``."""

from dovetail.io.formats.avro import avro
from dovetail.io.formats.debezium import debezium
from dovetail.io.formats.dialects import canal, maxwell
from dovetail.io.formats.plain import json
from dovetail.io.formats.protobuf import protobuf
from dovetail.io.formats.registry import registry

__all__ = ["avro", "canal", "debezium", "json", "maxwell", "protobuf", "registry"]


def __dir__() -> list[str]:
    return __all__
