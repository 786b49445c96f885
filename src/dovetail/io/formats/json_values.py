"""Values of JSON as Spark's types, and the reasons why a value does not fit its type.

``from_json`` is lenient where JSON has no values of a type. It takes a number for seconds, a time
of day for a time of today, and ``"731"`` for a date. It takes 200 for a byte, ``"1,5"`` for
fifteen, and 1e400 for infinity. So times and bytes are read in a type that keeps the text
(``reading_type``), and are converted here. Decimals would lose digits as texts. So ``from_json``
reads decimals and floats, and those of ``is_suspect`` are checked again.

``from_json`` keeps the fields that fit where others do not. So a field is at fault if it is null
although the text has a value for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Final, Literal, TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from dovetail.errors import PlanError
from dovetail.plan.types.checks import types_within

JsonEncoding: TypeAlias = Literal[
    "iso", "epoch_seconds", "epoch_millis", "epoch_micros", "epoch_nanos", "epoch_days"
]
"""The encoding of a time: ISO 8601, or a number that counts from 1970-01-01 in UTC."""

_EXPONENTS: Final[Mapping[str, int]] = {
    "epoch_seconds": 6,
    "epoch_millis": 3,
    "epoch_micros": 0,
    "epoch_nanos": -3,
}
"""The power of ten that is the microseconds of one unit of a timestamp, by encoding."""
_DATE: Final = r"(?:\d{4}|[+-]\d{4,6})-\d\d-\d\d"
_MINUTE: Final = r"\d\d:\d\d"
_SECOND: Final = r":\d\d(?:\.\d+)?"
_ZONE: Final = r"(?:Z|[+-]\d\d(?::?\d\d)?)"
_MIDNIGHT: Final = r"(?:[T ]00:00(?::00(?:\.0+)?)?(?:Z|[+-]00(?::?00)?)?)?"
NUMBER: Final = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?$"
_INFINITIES: Final = ("Infinity", "-Infinity", "+INF", "INF", "-INF")
"""The texts that Spark's ``from_json`` reads as an infinite float, and that mean it."""
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The first and last microsecond, since 1970 in UTC, of the years 1 to 9999 (inclusive). A count
beyond them is in another unit.
"""
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""The first and last day, since 1970, of the same years (inclusive)."""

_SHOWN_CHARS_MAX: Final = 200
_CODED_TYPES: Final = (ByteType, DateType, TimestampNTZType, TimestampType)
"""The types that ``from_json`` reads too leniently, so that they are read as text or as short."""
_WITH_COMMA: Final = r'"[+\-.\deE]*,[+\-.\deE,]*"'
"""A pattern of texts in which a JSON string of a number has commas, which ``from_json`` skips."""


def reading_type(type_: DataType) -> DataType:
    """Return the type in which ``from_json`` reads a value that is then converted to ``type_``. At
    any depth, that is string for dates and timestamps, and short for ``tinyint``. All other types,
    also decimals, and the keys of maps stay as they are.
    """
    if isinstance(type_, ArrayType):
        return ArrayType(reading_type(type_.elementType))
    if isinstance(type_, MapType):
        return MapType(type_.keyType, reading_type(type_.valueType))
    if isinstance(type_, StructType):
        return StructType([StructField(f.name, reading_type(f.dataType)) for f in type_])
    if isinstance(type_, ByteType):
        return ShortType()
    return StringType() if isinstance(type_, _CODED_TYPES) else type_


def text_type(type_: DataType) -> DataType:
    """Return ``type_`` with string for each plain value, as ``from_json`` reads texts to show in
    messages. Structs, arrays and maps keep their structure, with string for map keys.
    """
    if isinstance(type_, ArrayType):
        return ArrayType(text_type(type_.elementType))
    if isinstance(type_, MapType):
        return MapType(StringType(), text_type(type_.valueType))
    if isinstance(type_, StructType):
        return StructType([StructField(f.name, text_type(f.dataType)) for f in type_])
    return StringType()


@dataclass(frozen=True)
class JsonValues:
    """The conversion of values from the types in which ``from_json`` reads them (``reading_type``)
    to their own types.
    """

    encodings: Mapping[str, JsonEncoding]
    """The encodings of dates and timestamps by the dotted path of their field; absent ones are
    ``"iso"``. Paths skip arrays and maps (``order.items.at``).
    """

    def convert(self, raw: Column, type_: DataType, path: str = "") -> Column:
        """Return the value in ``type_``; null where the raw value is null or does not fit. Of a
        struct, array or map, only the part that does not fit is null.

        ``raw``: the value as ``from_json`` reads it (``reading_type``): at any depth, dates and
        timestamps are texts, ``tinyint`` is short. ``path``: the dotted path of the value's field,
        by which encodings are found; empty for the whole object.
        """
        if not _contains(type_, *_CODED_TYPES):
            return raw
        if isinstance(type_, StructType):
            fields = (
                self.convert(raw[f.name], f.dataType, _nested_path(path, f.name)).alias(f.name)
                for f in type_
            )
            return F.when(raw.isNotNull(), F.struct(*fields))
        if isinstance(type_, ArrayType):
            inner = type_.elementType
            return F.transform(raw, lambda item: self.convert(item, inner, path))
        if isinstance(type_, MapType):
            of_values = type_.valueType
            return F.transform_values(raw, lambda _, item: self.convert(item, of_values, path))
        return self._typed_value(raw, type_, path)

    def is_lost(self, raw: Column, type_: DataType, path: str = "") -> Column:
        """Return a boolean column, never null: a raw value, or a part of it at any depth, does not
        fit ``type_``. Nulls fit. Only ``tinyint``, dates and timestamps are checked.

        ``raw``: the value as ``from_json`` reads it (``reading_type``): at any depth, dates and
        timestamps are texts, ``tinyint`` is short. ``path``: the dotted path of the value's field,
        by which encodings are found; empty for the whole object.
        """
        if not _contains(type_, *_CODED_TYPES):
            return F.lit(False)
        if isinstance(type_, StructType):
            lost = (
                self.is_lost(raw[f.name], f.dataType, _nested_path(path, f.name)) for f in type_
            )
            return reduce(Column.__or__, lost)
        if isinstance(type_, (ArrayType, MapType)):
            items, inner = raw, type_.elementType if isinstance(type_, ArrayType) else None
            if isinstance(type_, MapType):
                items, inner = F.map_values(raw), type_.valueType
            assert inner is not None
            of_items = inner
            some = F.exists(items, lambda item: self.is_lost(item, of_items, path))
            return F.coalesce(some, F.lit(False))
        return raw.isNotNull() & self._typed_value(raw, type_, path).isNull()

    def _typed_value(self, raw: Column, type_: DataType, path: str) -> Column:
        """Return a ``tinyint``, date or timestamp of ``type_`` from its raw value, a short or a
        text. It is null for null, and where the value does not fit.

        A text in ISO 8601 without a zone is in UTC. A timestamp may lack its seconds or its time of
        day. Of type ``timestamp_ntz`` it must not have a zone. A date may have a time of midnight
        in UTC. With another encoding than ``iso``, the text is a number (``_time_of_number``).

        ``path``: the dotted path of the field, by which its encoding is found. Without one it is
        ``iso``.
        """
        encoding = self.encodings.get(path, "iso")
        if isinstance(type_, ByteType):
            return raw.try_cast(type_)
        if encoding != "iso":
            return _time_of_number(raw, type_, encoding)
        if isinstance(type_, DateType):
            pattern = f"^({_DATE}){_MIDNIGHT}$"
            return F.when(raw.rlike(pattern), F.regexp_extract(raw, pattern, 1).try_cast(type_))
        zone = "" if isinstance(type_, TimestampNTZType) else _ZONE
        pattern = f"^({_DATE})(?:[T ]({_MINUTE})({_SECOND})?({zone})?)?$"
        hour, second, of_zone = (F.regexp_extract(raw, pattern, n) for n in (2, 3, 4))
        whole = F.concat(
            F.regexp_extract(raw, pattern, 1),
            F.lit("T"),
            F.when(hour == "", F.lit("00:00")).otherwise(hour),
            F.when(second == "", F.lit(":00")).otherwise(second),
            F.when(of_zone == "", F.lit("Z" if zone else "")).otherwise(of_zone),
        )
        usual = f"^{_DATE}[T ]{_MINUTE}{_SECOND}{zone}$"
        text = F.when(raw.rlike(usual), raw).when(raw.rlike(pattern), whole)
        return text.try_cast(type_)


def _time_of_number(raw: Column, type_: DataType, encoding: str) -> Column:
    """Return a date or timestamp of ``type_`` from ``raw``, a text with a number that counts from
    1970 in UTC. A date counts days, and ``encoding`` does not matter. A timestamp counts in the
    unit of ``encoding``, such as ``epoch_millis``. Digits finer than microseconds are cut off,
    towards the past. Of days and microseconds, 17 decimals count; further ones are rounded.

    It is null for null, for no number, for a date with a fraction, and for years outside 1 to 9999.
    """
    # The unit is put into the text's exponent, for Spark rounds the products of long decimals.
    parts = F.split(raw, "[eE]")
    exponent = F.coalesce(F.try_element_at(parts, F.lit(2)).try_cast("int"), F.lit(0))
    shifted = F.concat(parts[0], F.lit("E"), exponent + F.lit(_EXPONENTS.get(encoding, 0)))
    count = F.when(raw.rlike(NUMBER), shifted.try_cast("decimal(38,17)"))
    if isinstance(type_, DateType):
        days = F.when(count == F.floor(count), count).try_cast("long")
        return F.when(days.between(_FIRST_DAY, _LAST_DAY), F.date_from_unix_date(days.cast("int")))
    micros = F.floor(count).try_cast("long")
    micros = F.when(micros.between(_FIRST_US, _LAST_US), micros)
    if isinstance(type_, TimestampNTZType):
        return F.timestamp_add("MICROSECOND", micros, F.lit("1970-01-01").cast(type_))
    return F.timestamp_micros(micros)


def is_suspect(text: Column, converted: Column, type_: DataType) -> Column | None:
    """Return a boolean column: ``from_json`` may have misread a number, as infinite or as a decimal
    whose text had commas. It is null at most where ``text`` is null. Return None if ``type_`` has
    neither floats nor decimals.

    ``text``: the JSON object as it came. ``converted``: the object's value in ``type_``, a struct.
    """
    infinite = is_infinite(converted, type_)
    if not _contains(type_, DecimalType):
        return infinite
    has_commas = text.rlike(_WITH_COMMA)
    return has_commas if infinite is None else infinite | has_commas


def is_infinite(converted: Column, type_: DataType) -> Column | None:
    """Return a boolean column: a float in ``converted`` is infinite, at any depth, as a too large
    number becomes. It is null for null if ``type_`` is a float itself. It is never null for a
    struct, array or map, in which nulls count as finite. Return None if ``type_`` has no floats;
    map keys do not count.
    """
    if isinstance(type_, (FloatType, DoubleType)):
        return F.abs(converted) == F.lit(float("inf"))
    if isinstance(type_, StructType):
        some = [is_infinite(converted[f.name], f.dataType) for f in type_]
        conditions = [F.coalesce(item, F.lit(False)) for item in some if item is not None]
        return reduce(Column.__or__, conditions) if conditions else None
    if isinstance(type_, (ArrayType, MapType)):
        inner = type_.elementType if isinstance(type_, ArrayType) else type_.valueType
        if is_infinite(F.lit(None), inner) is None:
            return None
        items = converted if isinstance(type_, ArrayType) else F.map_values(converted)
        return F.coalesce(
            F.exists(items, _false_if_null(lambda item: is_infinite(item, inner))), F.lit(False)
        )
    return None


def misfit_problem(text: Column, converted: Column, type_: DataType, path: Column) -> Column:
    """Return a text why a value does not fit its type: ``column <path> is no <type>: <text>``
    (``misfit_text``). It names the first part at fault, in the order of the fields. It is null if
    all parts fit. A part is at fault if it has a text but no value, or an infinite or misread
    number.

    ``text``: the value with a string for each plain value within (``text_type``). ``converted``:
    the value in ``type_``. ``path``: the path of the value, with a dot in front of each name; empty
    for the whole object. In the message, ``[]`` follows for an element and ``[key]`` for a map's
    value.
    """
    if isinstance(type_, StructType):
        of_fields = (
            misfit_problem(
                text[f.name], converted[f.name], f.dataType, F.concat(path, F.lit(f".{f.name}"))
            )
            for f in type_
        )
        return F.coalesce(F.lit(None).cast("string"), *of_fields)
    if isinstance(type_, (ArrayType, MapType)):
        if isinstance(type_, ArrayType):
            inner = type_.elementType
            each = F.zip_with(
                text,
                converted,
                lambda a, b: misfit_problem(a, b, inner, F.concat(path, F.lit("[]"))),
            )
        else:
            of_values = type_.valueType
            each = F.transform(
                F.map_keys(text),
                lambda key: misfit_problem(
                    F.try_element_at(text, key),
                    F.try_element_at(converted, key),
                    of_values,
                    F.concat(path, F.lit("["), key, F.lit("]")),
                ),
            )
        # from_json makes a whole array null if one number in it does not fit.
        whole = F.when(
            text.isNotNull() & converted.isNull(), misfit_text(path, type_, F.to_json(text))
        )
        first = F.try_element_at(F.filter(each, Column.isNotNull), F.lit(1))
        return F.coalesce(whole, first)
    lost = converted.isNull()
    if isinstance(type_, (FloatType, DoubleType)):
        lost = lost | ((F.abs(converted) == F.lit(float("inf"))) & ~text.isin(*_INFINITIES))
        text = F.when(text.isin('"Infinity"', '"-Infinity"'), F.lit("too large")).otherwise(text)
    if isinstance(type_, DecimalType):
        lost = lost | F.contains(text, F.lit(","))
    return F.when(text.isNotNull() & lost, misfit_text(path, type_, text))


def misfit_text(path: Column, type_: DataType, text: Column) -> Column:
    """Return the message for a value that does not fit ``type_``; null where ``path`` or ``text``
    is. It reads ``column <path> is no <type>: <text>``. For dates and timestamps it mentions
    ``encodings=``.

    ``path``: the value's path, a dot in front is dropped. ``text``: the value, of which the first
    200 characters are shown.
    """
    remedy = ""
    if isinstance(type_, (DateType, TimestampNTZType, TimestampType)):
        remedy = ", which is not ISO 8601, nor of an encoding that encodings= names"
    return F.concat(
        F.lit("column "),
        F.ltrim(path, F.lit(".")),
        F.lit(f" is no {type_.simpleString()}: "),
        F.substring(text, 1, _SHOWN_CHARS_MAX),
        F.lit(remedy),
    )


def refuse_unfit_encodings(
    operator: str, encodings: Mapping[str, JsonEncoding], schema: StructType
) -> None:
    """Raise ``PlanError`` for an encoding of a path that is no date or timestamp of ``schema``.
    Also for one that does not suit the field's type: all take ``iso``, only dates take
    ``epoch_days``, only timestamps the others. ``encodings``: by the dotted path of the field,
    without arrays and maps. ``operator``: the name of the call in errors.
    """
    times = dict(_time_fields(schema))
    for path, encoding in encodings.items():
        if path not in times:
            raise PlanError(
                operator,
                f"encodings= names {path!r}, which is no date or timestamp of the schema",
                f"Those are {', '.join(times) or 'none'}",
            )
        of_date = isinstance(times[path], DateType)
        if encoding != "iso" and of_date != (encoding == "epoch_days"):
            fitting = "'epoch_days'" if of_date else ", ".join(map(repr, _EXPONENTS))
            raise PlanError(
                operator,
                f"encodings= names {encoding!r} for {path!r} of type {times[path].simpleString()}",
                f"Give 'iso', {fitting}",
            )


def _time_fields(type_: DataType, path: str = "") -> Iterator[tuple[str, DataType]]:
    """Yield (dotted path, type) of each date and timestamp in ``type_`` at any depth, in order;
    nothing if there are none. Elements and map values have the path of their column; map keys do
    not count. ``path``: the path of ``type_`` itself, empty for the whole object.
    """
    if isinstance(type_, StructType):
        for field in type_:
            yield from _time_fields(field.dataType, _nested_path(path, field.name))
    elif isinstance(type_, ArrayType):
        yield from _time_fields(type_.elementType, path)
    elif isinstance(type_, MapType):
        yield from _time_fields(type_.valueType, path)
    elif isinstance(type_, (DateType, TimestampNTZType, TimestampType)):
        yield path, type_


def _nested_path(path: str, name: str) -> str:
    """Return the dotted path of the field ``name`` of the struct at ``path``, which is empty for
    the whole object.
    """
    return f"{path}.{name}" if path else name


def _contains(type_: DataType, *kinds: type[DataType]) -> bool:
    """Return True if ``type_`` is, or contains at any depth, a type of ``kinds``."""
    return any(isinstance(part, kinds) for part in types_within(type_))


def _false_if_null(check: Callable[[Column], Column | None]) -> Callable[[Column], Column]:
    """Return ``check`` as a function whose result is never null: null becomes False. ``check`` must
    not return None for the items that it gets.
    """

    def checked(item: Column) -> Column:
        """Return ``check(item)`` with False in place of null."""
        holds = check(item)
        assert holds is not None
        return F.coalesce(holds, F.lit(False))

    return checked
