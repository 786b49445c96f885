"""Reads a text that is one JSON object as a struct of a schema's fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from dovetail.io.formats.json_values import (
    JsonEncoding,
    JsonValues,
    is_suspect,
    misfit_problem,
    misfit_text,
    reading_type,
    text_type,
)
from dovetail.plan.types.checks import types_within

_MALFORMED: Final = "_malformed"
_READ_OPTIONS: Final = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _MALFORMED,
    "allowSingleQuotes": "false",
    "timeZone": "UTC",
}


@dataclass(frozen=True)
class JsonObject:
    """A text that is to be one JSON object, and the way to read it by a schema."""

    text: Column
    """The text; it may have bytes that are no UTF-8. A null is no object."""
    schema: StructType
    """The fields that are read. Others are ignored."""
    encodings: Mapping[str, JsonEncoding] = field(default_factory=dict)
    """The encodings of dates and timestamps by the dotted path of their field, as in
    ``JsonValues``.
    """

    @property
    def parsed(self) -> Column:
        """The text as ``from_json`` reads it, the argument of ``row`` and ``problem``: a struct of
        ``object`` and ``_malformed``. ``object`` has the fields of ``schema``, with dates and
        timestamps as texts and ``tinyint`` as short. ``_malformed`` is a text where the object does
        not fit, else null. Both are null for a null text and for JSON's ``null``.
        """
        return _from_json(self.text, reading_type(self.schema))

    def row(self, parsed: Column) -> Column:
        """Return the object as a struct of ``schema``. It is null where the text is null or not
        exactly one JSON object in UTF-8. It is also null where a field does not fit its type.
        ``parsed``: the column of ``JsonObject.parsed``.
        """
        values = JsonValues(self.encodings)
        raw = parsed["object"]
        converted = values.convert(raw, self.schema)
        fits = self._is_one_value & parsed[_MALFORMED].isNull() & ~values.is_lost(raw, self.schema)
        doubt = is_suspect(self.text, converted, self.schema)
        if doubt is not None:
            sound = F.when(doubt, self.problem(parsed).isNull())
            fits = fits & F.coalesce(sound, F.lit(True))
        return F.when(fits, converted)

    def problem(self, parsed: Column) -> Column:
        """Return a text why a field does not fit its type: ``column <path> is no <type>: <text>``.
        It is null where all fit, and where the text is not one JSON object. A field that is null or
        missing fits. ``parsed``: the column of ``JsonObject.parsed``.

        Of several reasons, those of fields with a cut-off binary value come first. Then come those
        of plain values at any depth, then those of whole fields, each in the order of the schema.
        """
        converted = JsonValues(self.encodings).convert(parsed["object"], self.schema)
        texts = StructType([StructField(f.name, StringType()) for f in self.schema])
        readings = F.struct(
            _from_json(self.text, text_type(self.schema))["object"].alias("deep"),
            _from_json(self.text, texts).alias("flat"),
            converted.alias("made"),
        )
        # Within a transform of a list it is computed once, however often it is used.
        problems = F.transform(F.array(readings), self._first_problem)
        return F.when(self._is_one_value, F.try_element_at(problems, F.lit(1)))

    def _first_problem(self, readings: Column) -> Column:
        """Return the first reason why a field does not fit: ``column <path> is no <type>: <text>``,
        with the first 200 characters of the field's text. It is null if all fit, or if the text is
        no object. A field that is null or missing fits; fields that are not in the schema are
        ignored.

        Fields with a cut-off binary value, which makes the whole object null, come first. Then come
        plain values at any depth, then whole fields, each in the order of the schema.

        ``readings``: a struct of three readings of the object. ``deep`` has texts for plain values
        at any depth, ``flat`` the text of each field, and ``made`` the values in their types.
        """
        flat, converted = readings["flat"], readings["made"]
        reasons = list[Column]()
        for f in self.schema:
            # Base64 that is cut off makes the whole object null.
            if any(isinstance(part, BinaryType) for part in types_within(f.dataType)):
                reason = misfit_text(F.lit(f.name), f.dataType, flat["object"][f.name])
                is_cut = converted.isNull() & self._misfit_of_field(f).isNotNull()
                reasons.append(F.when(is_cut, reason))
        reasons.append(misfit_problem(readings["deep"], converted, self.schema, F.lit("")))
        for f in self.schema:
            text = flat["object"][f.name]
            reason = misfit_text(F.lit(f.name), f.dataType, text)
            reasons.append(F.when(text.isNotNull() & converted[f.name].isNull(), reason))
        for f in self.schema:
            # Find a text in place of an object or an array, at any depth.
            if isinstance(f.dataType, (ArrayType, MapType, StructType)):
                reason = misfit_text(F.lit(f.name), f.dataType, flat["object"][f.name])
                reasons.append(F.when(self._misfit_of_field(f).isNotNull(), reason))
        return F.when(flat[_MALFORMED].isNull(), F.coalesce(*reasons))

    def _misfit_of_field(self, field: StructField) -> Column:
        """Return a text, not null, where the object read for ``field`` alone does not fit the
        field's type; null where it fits.
        """
        return _from_json(self.text, reading_type(StructType([field])))[_MALFORMED]

    @property
    def _is_one_value(self) -> Column:
        """True where the text is UTF-8 and a list of JSON values without its brackets. So nothing
        follows an object but a comma and further values, which ``from_json`` refuses itself. An
        empty or blank text gives True, a null text False.
        """
        # ``from_json`` ignores text behind an object, so the text is also read as a list's element.
        # Behind a value, a field needs ``}`` or a name, a list ``]`` or a value: no text has both.
        listed = F.json_array_length(F.concat(F.lit("["), self.text, F.lit("]")))
        return F.is_valid_utf8(self.text) & listed.isNotNull()


def is_json_null(text: Column, *, wrapped: bool = True) -> Column:
    """Return a boolean column, never null: a JSON text says that there is no value. The text is
    ``null``, perhaps in white space; a null column is false.

    With ``wrapped`` it may also be Kafka Connect's object with a null ``payload`` and no other
    field but perhaps ``schema``.
    """
    absent = text.rlike(r"^\s*null\s*$")
    if wrapped:
        keys = F.json_object_keys(text)
        beside = F.array_except(keys, F.array(F.lit("schema"), F.lit("payload")))
        only = F.array_contains(keys, "payload") & (F.size(beside) == 0)
        absent = absent | (only & F.get_json_object(text, "$.payload").isNull())
    return F.coalesce(absent, F.lit(False))


def is_json_wrapped(text: Column) -> Column:
    """Return a boolean column, never null: a JSON text is an object that has both ``schema`` and
    ``payload`` and no other field, and ``payload`` is not null. Kafka Connect writes a value so
    with its schema. It is false for a null text.
    """
    keys = F.array_sort(F.json_object_keys(text))
    both = keys == F.array(F.lit("payload"), F.lit("schema"))
    return F.coalesce(both & F.get_json_object(text, "$.payload").isNotNull(), F.lit(False))


def lack_of_keys(
    part: str, keys: Sequence[str], names: Column, *, argument: str = "key_columns="
) -> Column:
    """Return a text why an object lacks a field that is a key column, as where its name has another
    case. It is null where the object has all of ``keys``, and where ``names`` is null.

    ``part``: the object in words. ``names``: an array of the names of its fields. ``argument``: the
    reader's argument that names ``keys``.
    """
    lacking = F.array_except(F.array(*map(F.lit, keys)), names)
    said = F.concat(
        F.lit(f"{part} has no column "),
        F.array_join(lacking, ", "),
        F.lit(f", which {argument} names: it has "),
        F.array_join(names, ", "),
    )
    return F.when(F.size(lacking) > 0, said)


def _from_json(text: Column, schema: DataType) -> Column:
    """Return a struct of ``object``, the value of a JSON text in ``schema``, and ``_malformed``.
    ``_malformed`` is null where the value fits the schema, else the text within ``{"object":…}``. A
    null text gives a null struct, so both fields are null.
    """
    # ``from_json`` would read a list of objects as its first one. As the value of a field, a list
    # does not fit: ``[{"a": 1}]`` becomes ``{"object": [{"a": 1}]}``.
    fields = [StructField("object", schema), StructField(_MALFORMED, StringType())]
    return F.from_json(
        F.concat(F.lit('{"object":'), text, F.lit("}")), StructType(fields), _READ_OPTIONS
    )
