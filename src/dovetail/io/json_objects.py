"""A text that is one JSON object, read as a struct of a schema's fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from dovetail.io.json_values import (
    JsonEncoding,
    Values,
    misfit,
    raw_type,
    suspect,
    text_type,
    unfit,
)

_MALFORMED: Final = "_malformed"
_READ: Final = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _MALFORMED,
    "allowSingleQuotes": "false",
    "timeZone": "UTC",
}


@dataclass(frozen=True)
class JsonObject:
    """One JSON object in ``text``; ``encodings``: as in ``json_values.Values``."""

    text: Column
    schema: StructType
    encodings: Mapping[str, JsonEncoding] = field(default_factory=dict)

    @property
    def parsed(self) -> Column:
        """The first step, of which ``row`` makes the object and ``problem`` says why there is
        none.
        """
        return _from_json(self.text, raw_type(self.schema))

    def row(self, parsed: Column) -> Column:
        """The object as a struct; null where the text is none, or its fields do not fit.

        ``from_json`` ignores what follows an object. So JSON is read twice, as the value of a field
        and as the element of a list. What follows a value would have to go on with ``}`` or a
        field's name in the one, with ``]`` or a value in the other: no text does both, so nothing
        follows.
        """
        values = Values(self.encodings)
        raw = parsed["object"]
        made = values.of(raw, self.schema)
        fits = self._is_one & parsed[_MALFORMED].isNull() & ~values.lost(raw, self.schema)
        doubt = suspect(self.text, made, self.schema)
        if doubt is not None:
            sound = F.when(doubt, self.problem(parsed).isNull())
            fits = fits & F.coalesce(sound, F.lit(True))
        return F.when(fits, made)

    def problem(self, parsed: Column) -> Column:
        """Why a field does not fit its type; null where the text is not one JSON object."""
        made = Values(self.encodings).of(parsed["object"], self.schema)
        texts = StructType([StructField(f.name, StringType()) for f in self.schema])
        known = F.struct(
            _from_json(self.text, text_type(self.schema))["object"].alias("deep"),
            _from_json(self.text, texts).alias("flat"),
            made.alias("made"),
        )
        # As the item of a list it is computed once, however often it is asked.
        said = F.transform(F.array(known), self._problem)
        return F.when(self._is_one, F.try_element_at(said, F.lit(1)))

    def _problem(self, known: Column) -> Column:
        flat, made = known["flat"], known["made"]
        reasons = [misfit(known["deep"], made, self.schema, F.lit(""))]
        for f in self.schema:
            text = flat["object"][f.name]
            reason = unfit(F.lit(f.name), f.dataType, text)
            reasons.append(F.when(text.isNotNull() & made[f.name].isNull(), reason))
        for f in self.schema:
            # A text where an object or an array belongs, at some depth.
            if isinstance(f.dataType, (ArrayType, MapType, StructType)):
                alone = _from_json(self.text, raw_type(StructType([f])))
                reason = unfit(F.lit(f.name), f.dataType, flat["object"][f.name])
                reasons.append(F.when(alone[_MALFORMED].isNotNull(), reason))
        return F.when(flat[_MALFORMED].isNull(), F.coalesce(*reasons))

    @property
    def _is_one(self) -> Column:
        listed = F.json_array_length(F.concat(F.lit("["), self.text, F.lit("]")))
        return F.is_valid_utf8(self.text) & listed.isNotNull()


def json_absent(text: Column, *, wrapped: bool = True) -> Column:
    """Whether a text in JSON says that there is no value: ``null``, or what Kafka Connect writes of
    a null value beside its schema, an object whose ``payload`` is null.
    """
    absent = text.rlike(r"^\s*null\s*$")
    if wrapped:
        keys = F.json_object_keys(text)
        beside = F.array_except(keys, F.array(F.lit("schema"), F.lit("payload")))
        only = F.array_contains(keys, "payload") & (F.size(beside) == 0)
        absent = absent | (only & F.get_json_object(text, "$.payload").isNull())
    return F.coalesce(absent, F.lit(False))


def _from_json(text: Column, schema: DataType) -> Column:
    """What ``from_json`` makes of a text, as ``object``.

    By itself it would take a list for its first object. As a field of an object it does not.
    """
    fields = [StructField("object", schema), StructField(_MALFORMED, StringType())]
    return F.from_json(F.concat(F.lit('{"object":'), text, F.lit("}")), StructType(fields), _READ)
