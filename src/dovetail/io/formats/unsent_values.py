"""Values that a database has not sent: Debezium's placeholders for large values that an update has
not changed.

| column | its placeholder |
|---|---|
| text, JSON | the text |
| bytes | the text's bytes; as text in base64 or hexadecimal digits |
| hstore | a map of the text to itself, or that as JSON |
| array of texts, of JSON, of bytes | one element, as above |
| array of uuids | one uuid, made of the text by its MD5 |
| array of numbers, times, decimals | an element for each of the text's bytes, which is its number |
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Final
from uuid import UUID

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    NumericType,
    StringType,
    StructType,
)

UNSENT: Final = "_unsent"
"""The column with the names of a row's columns that were not sent."""
PLACEHOLDER: Final = "__debezium_unavailable_value"
"""Debezium's default for its setting ``unavailable.value.placeholder``."""
_HEX_PREFIX: Final = "hex:"
"""The prefix of a setting that gives bytes in hexadecimal digits."""


@dataclass(frozen=True)
class Placeholder:
    """The placeholder that Debezium writes for a value that it did not send."""

    given: str = PLACEHOLDER
    """Debezium's setting: a text, or ``hex:`` and hexadecimal digits. It must not stand for no
    bytes.
    """

    @property
    def octets(self) -> bytes:
        """The placeholder's bytes: those after ``hex:``, else the text in UTF-8. Raises
        ``ValueError`` if the setting has wrong hexadecimal digits.
        """
        if self.given.startswith(_HEX_PREFIX):
            return bytes.fromhex(self.given.removeprefix(_HEX_PREFIX))
        return self.given.encode()

    @property
    def _texts(self) -> list[str]:
        """The distinct forms of the placeholder in a text column, at least one. They are the plain
        text, base64 (standard, URL-safe), hexadecimal digits (lower, upper case), the JSON of an
        hstore, and the UUID of its MD5. Raises ``ValueError`` if the setting has wrong hexadecimal
        digits.
        """
        octets = self.octets
        text = octets.decode("utf-8", "replace")
        digest = hashlib.md5(octets, usedforsecurity=False).digest()
        coded = [base64.b64encode(octets), base64.urlsafe_b64encode(octets)]
        texts = [text, *(encoded.decode() for encoded in coded), octets.hex(), octets.hex().upper()]
        return [*dict.fromkeys(texts), _as_hstore(text), str(UUID(bytes=digest, version=3))]

    def is_unsent(self, value: Column, type_: DataType) -> Column | None:
        """Return a boolean column: ``value`` is the placeholder, or has it in a part at any depth,
        so was not sent. It is null for a null text or null bytes, else never null. Return None if
        ``type_`` cannot have a placeholder.

        ``value``: the value as it is encoded, of the type ``type_``. Raises ``ValueError`` if the
        placeholder's setting has wrong hexadecimal digits.
        """
        if isinstance(type_, StringType):
            return value.isin(self._texts)
        if isinstance(type_, BinaryType):
            return value == F.lit(self.octets)
        if isinstance(type_, ArrayType):
            inner = type_.elementType
            unsent = self._has_element(value, inner)
            numbers = self._is_list_of_bytes(value, inner)
            return unsent if numbers is None else numbers if unsent is None else unsent | numbers
        unsent_parts: list[Column | None] = []
        if isinstance(type_, MapType):
            keys, values = F.map_keys(value), F.map_values(value)
            unsent_parts = [
                self._has_element(keys, type_.keyType),
                self._has_element(values, type_.valueType),
            ]
        elif isinstance(type_, StructType):
            unsent_parts = [self.is_unsent(value[f.name], f.dataType) for f in type_]
        conditions = [
            F.coalesce(unsent, F.lit(False)) for unsent in unsent_parts if unsent is not None
        ]
        return reduce(or_, conditions) if conditions else None

    def _has_element(self, array: Column, type_: DataType) -> Column | None:
        """Return a boolean column, never null: an element of ``array`` was not sent. It is false
        for a null array. Return None if elements of the type ``type_`` cannot have a placeholder.
        """
        if self.is_unsent(F.lit(None).cast(type_), type_) is None:
            return None

        def is_element_unsent(element: Column) -> Column:
            """Return a boolean column, never null: ``element`` was not sent. It is false for a null
            element.
            """
            is_unsent = self.is_unsent(element, type_)
            assert is_unsent is not None
            return F.coalesce(is_unsent, F.lit(False))

        return F.coalesce(F.exists(array, is_element_unsent), F.lit(False))

    def _is_list_of_bytes(self, array: Column, type_: DataType) -> Column | None:
        """Return a boolean column, never null: the elements of ``array`` are the placeholder's
        bytes, one byte each, as numbers, in base64, or as decimals with a scale of their own. It is
        false for a null array. Return None if elements of the type ``type_`` cannot be such.
        """
        octets = self.octets
        same = []
        if isinstance(type_, (NumericType, StringType)):
            numbers = F.array(*(F.lit(float(item)) for item in octets))
            same = [F.transform(array, lambda item: item.try_cast("double")) == numbers]
        if isinstance(type_, StringType):
            coded = F.array(*(F.lit(base64.b64encode(bytes([item])).decode()) for item in octets))
            same += [array == coded, F.transform(array, _unscaled_bytes) == coded]
        elif isinstance(type_, BinaryType):
            same = [array == F.array(*(F.lit(bytes([item])) for item in octets))]
        elif isinstance(type_, StructType) and {"scale", "value"} <= {*type_.names}:
            values = F.transform(array, lambda item: item["value"])
            return self._is_list_of_bytes(values, type_["value"].dataType)
        if not same:
            return None
        return F.coalesce(F.when(F.size(array) == len(octets), reduce(or_, same)), F.lit(False))


def _as_hstore(text: str) -> str:
    """Return the JSON of PostgreSQL's type hstore, a map, in which ``text`` is the only key and its
    value.
    """
    return json.dumps({text: text}, separators=(",", ":"), ensure_ascii=False)


def _unscaled_bytes(text: Column) -> Column:
    """Return the field ``value`` of the JSON object ``text``: the unscaled bytes, in base64, of a
    decimal with its own scale. It is null for other texts.
    """
    return F.get_json_object(text, "$.value")
