"""Kafka Connect's values as Spark's types: every encoding that Debezium has for dates, times,
timestamps, decimals and bytes.

A value comes as JSON has it (numbers and texts), or as Avro has it (numbers, texts and bytes). The
name of its schema says what a number or a text means, such as ``io.debezium.time.MicroTimestamp``.
A value without such a name means what its type says. All conversions are Spark expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from typing import ClassVar, Final, Literal, TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from dovetail.base.infinity import FIRST_DAY, FIRST_MICROSECOND, LAST_DAY, LAST_MICROSECOND
from dovetail.base.json_options import ALL_VALUES
from dovetail.plan.types.decimals import decimal_of, decimal_text_of

TIME, _DATA, CONNECT = "io.debezium.time.", "io.debezium.data.", "org.apache.kafka.connect.data."
"""The prefixes of the full names of schemas: Debezium's times, its other types, Kafka Connect's
types.
"""

Encoding: TypeAlias = Literal[
    "Time",
    "MicroTime",
    "NanoTime",
    "MicroDuration",
    "NanoDuration",
    "Timestamp",
    "MicroTimestamp",
    "NanoTimestamp",
    "Decimal",
    "VariableScaleDecimal",
    "string",
    "double",
]
"""The encoding of a column: the last part of its schema's name. ``"Decimal"`` stands for bytes;
``"string"`` and ``"double"`` for decimals in other forms."""

DECIMAL, _VARIABLE = f"{CONNECT}Decimal", f"{_DATA}VariableScaleDecimal"
_PER_MICROSECOND: Final = {
    f"{TIME}Timestamp": -1000,
    f"{CONNECT}Timestamp": -1000,
    f"{TIME}MicroTimestamp": 1,
    f"{TIME}NanoTimestamp": 1000,
    f"{TIME}Time": -1000,
    f"{CONNECT}Time": -1000,
    f"{TIME}MicroTime": 1,
    f"{TIME}NanoTime": 1000,
    f"{TIME}MicroDuration": 1,
    f"{TIME}NanoDuration": 1000,
}
"""By encoding: units per microsecond. A negative number means microseconds per unit."""
_TIMESTAMP_NAMES: Final = tuple(name for name in _PER_MICROSECOND if name.endswith("stamp"))
_TIME_NAMES: Final = tuple(name for name in _PER_MICROSECOND if name not in _TIMESTAMP_NAMES)
_FLOATS: Final = ("float", "double", "float32", "float64")
_PLAIN: Final = ("string", *_FLOATS, "int8", "int16", "int32", "int64")
"""The names of plain types in a record's schema whose decimals are numbers or digits, not bytes."""
_ZONED: Final = r"^[+-]?\d{4,}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d(:\d\d)?)$"
"""The patterns of ISO 8601 texts: a timestamp with a zone, a date, and a time in UTC."""
_ISO_DATE: Final = r"^([+-]?\d{4,}-\d\d-\d\d)(Z|[+-]\d\d:\d\d)?$"
_ISO_TIME: Final = r"^(\d\d:\d\d:\d\d(\.\d+)?)Z?$"
_INFINITY: Final = r"^(infinity$|\+(29424[67]|292278994)-|-5877611-06-21)"
_MINUS_INFINITY: Final = r"^(-infinity$|-(290308|292275055)-|\+292269055-|-5877611-06-22)"
"""Patterns of PostgreSQL's infinity as a text: its own words, and the dates that Debezium makes of
them."""
_BASE64, _BASE64_UNIT = r"^[A-Za-z0-9+/]*={0,2}$", 4
"""The characters of a base64 text, and that it has a multiple of so many."""
_NUMBER_MARK: Final = " "
"""The first character of a decimal's raw text where JSON has a number. Base64 does not have it, and
casts skip it."""
_FURTHER_DIGITS: Final = "…"
"""The end of a number whose other digits are not known. No cast takes it."""
_CODED_TYPES: Final = (
    BooleanType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    TimestampNTZType,
    TimestampType,
)
"""The types that are read from JSON as text. JSON has no such values, or has other ones that also
stand for them."""
_AMBIGUOUS_TYPES: Final = (DayTimeIntervalType, DecimalType, TimestampNTZType, TimestampType)
"""The types whose raw values mean nothing without an encoding."""

_Ranges: TypeAlias = tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]
_INFINITE_DAYS: Final[_Ranges] = (
    ((-2147472693, -2147472692), (-622191234, -622191234), ((1 << 31) - 1, (1 << 31) - 1)),
    ((-2147472691, -2147472691), (-625821272, -625821272), (-(1 << 31), -(1 << 31))),
)
"""The ranges of numbers (inclusive) by which Debezium encodes a date's ``infinity`` and
``-infinity``, in days. They are overflows of PostgreSQL's driver, or the largest and the smallest
number."""
_LONG_MAX: Final = (1 << 63) - 1
_DRIVER_INFINITY: Final = 9223372036800000000
"""The milliseconds of ``infinity`` in PostgreSQL's driver, times 1000. The driver's number may be
up to a minute larger."""
_INFINITE_STAMPS: Final[Mapping[int, _Ranges]] = {
    -1000: (
        ((_DRIVER_INFINITY // 1000, _LONG_MAX // 1000), (_DRIVER_INFINITY, _LONG_MAX)),
        ((-(_LONG_MAX // 1000), -_DRIVER_INFINITY // 1000), (-_LONG_MAX - 1, -_DRIVER_INFINITY)),
    ),
    1: (((_DRIVER_INFINITY, _LONG_MAX),), ((-_LONG_MAX - 1, -_DRIVER_INFINITY),)),
    1000: (((_LONG_MAX, _LONG_MAX),), ((-_LONG_MAX - 1, -_LONG_MAX - 1),)),
}
"""The ranges (inclusive) of a timestamp's ``infinity`` and ``-infinity``, by units per microsecond
as in ``_PER_MICROSECOND``."""

_SCALE: Final = StructType().add("scale", "string")
_ITEMS: Final = StructType().add("type", "string").add("name", "string").add("parameters", _SCALE)
FIELD_PARTS: Final = StructType([StructField("field", StringType()), *_ITEMS]).add("items", _ITEMS)
"""The parts of a field's description in Kafka Connect's JSON that are needed here."""

_DAYS_AND_YEARS: Final = (f"{TIME}Date", f"{CONNECT}Date", f"{TIME}Year")
"""The encodings besides times that are numbers."""
_ZONED_STAMPS: Final = (f"{TIME}ZonedTimestamp", f"{TIME}IsoTimestamp")
ENCODINGS: Final[Mapping[type[DataType], tuple[str, ...]]] = {
    **dict.fromkeys((ArrayType, MapType, StructType), ()),
    BooleanType: ("boolean", "int"),
    **dict.fromkeys((ByteType, ShortType), ("int", "long")),
    **dict.fromkeys((IntegerType, LongType), ("int", "long", *_PER_MICROSECOND, *_DAYS_AND_YEARS)),
    **dict.fromkeys((FloatType, DoubleType), ("float", "double")),
    BinaryType: ("bytes", f"{_DATA}Bits"),
    DateType: (f"{TIME}Date", f"{CONNECT}Date", f"{TIME}IsoDate"),
    DayTimeIntervalType: (*_TIME_NAMES, f"{TIME}ZonedTime", f"{TIME}IsoTime"),
    DecimalType: (DECIMAL, _VARIABLE, "string", "double", "float", "int", "long"),
    TimestampNTZType: (*_TIMESTAMP_NAMES, *_ZONED_STAMPS),
    TimestampType: (*_TIMESTAMP_NAMES, *_ZONED_STAMPS),
}
"""By type: the encodings that can become values of it. Arrays, maps and structs are only made of
their like, part by part. Types that are absent, such as texts, take any."""


@dataclass(frozen=True)
class ColumnEncoding:
    """The encoding of a column: known when the query is built, or read from each record."""

    name: Column
    """The name of the schema, or its type if it has no name; null where nothing is known."""
    scale: Column
    """The scale of decimals; null where unknown."""
    known: str | None = None
    """``name``, if it is known when the query is built; else None."""
    known_scale: int | None = None
    """``scale``, if it is known when the query is built; else None."""
    within: Mapping[str, ColumnEncoding] = field(default_factory=dict)
    """The encodings of a record's fields by name. An array's elements or a map's values have the
    name ``""``. Empty where nothing is known of them."""
    natural: DataType | None = None
    """The type of the raw value; None if unknown, as in JSON."""

    def is_of_type(self, type_: DataType) -> bool:
        """Return True if the raw value is known to be of the type ``type_`` already, at every
        depth. False if its type is not known: ``natural`` is None, as for JSON. Avro's schemas tell
        the type.
        """
        if self.natural is None or self.natural.simpleString() != type_.simpleString():
            return False
        return all(encoding.is_of_type(inner) for encoding, inner in self._parts_within(type_))

    def _parts_within(self, type_: DataType) -> Iterator[tuple[ColumnEncoding, DataType]]:
        """Yield (encoding, type) of the parts of a value of ``type_``: fields, elements or map
        values. Fields without a known encoding are left out. Nothing is yielded for a plain value,
        or if no encoding of parts is known.
        """
        if isinstance(type_, StructType):
            yield from ((self.within[f.name], f.dataType) for f in type_ if f.name in self.within)
        elif self.within and isinstance(type_, ArrayType):
            yield self.within[""], type_.elementType
        elif self.within and isinstance(type_, MapType):
            yield self.within[""], type_.valueType

    @staticmethod
    def from_declaration(encoding: Encoding | None) -> ColumnEncoding:
        """Return the encoding that a query's author names, such as ``"MicroTime"``. Its field
        ``name`` is a constant text column: the full name of the schema, with its prefix, or a plain
        name such as ``"string"`` unchanged. For None, the column is null. The scale is null, and
        all other fields are as by default: ``known`` is None.
        """
        if encoding is None:
            return ColumnEncoding(F.lit(None).cast("string"), F.lit(None).cast("int"))
        matches = (
            n for n in (DECIMAL, _VARIABLE, *_PER_MICROSECOND) if n.rpartition(".")[2] == encoding
        )
        return ColumnEncoding(F.lit(next(matches, encoding)), F.lit(None).cast("int"))

    @staticmethod
    def from_description(field: Column, type_: DataType) -> ColumnEncoding:
        """Return the encoding by a record's own schema. Its name and scale are columns, read from
        each record.

        ``field``: the description of the column, a struct of ``type``, ``name``,
        ``parameters.scale`` and ``items`` (``FIELD_PARTS``). If it is null, so is the name.
        ``type_``: the column's type; for an array, the encoding is that of its elements.
        """
        of = field["items"] if isinstance(type_, ArrayType) else field
        scale = of["parameters"]["scale"].try_cast("int")
        return ColumnEncoding(F.coalesce(of["name"], of["type"]), scale)


def raw_type(type_: DataType) -> DataType:
    """Return the type of JSON's raw value for a column of ``type_``, which ``RawValue.column`` has
    if ``coded`` is true. It is string for booleans, dates, timestamps, intervals and decimals. An
    array becomes an array of the raw type of its elements; maps, structs and other types stay as
    they are.
    """
    if isinstance(type_, ArrayType):
        return ArrayType(raw_type(type_.elementType))
    return StringType() if isinstance(type_, _CODED_TYPES) else type_


def is_ambiguous(type_: DataType) -> bool:
    """Return True if raw values of ``type_`` mean nothing without an encoding: timestamps,
    intervals, decimals, and arrays of these at any depth.
    """
    return isinstance(element_type(type_), _AMBIGUOUS_TYPES)


def unknown_encodings(fields: StructType, declared: Mapping[str, Encoding]) -> str:
    """Return a text why a key without its schema may not fit ``fields``, those of an event's key
    that mean nothing without an encoding. ``declared``: the encodings that are known, by name.
    """
    names = (f.name for f in fields if is_ambiguous(f.dataType) and f.name not in declared)
    return (
        f"without Kafka Connect's schema it does not say how {', '.join(names)} is encoded: name "
        "it in key_columns=, with an encoding in encodings= of the value. The encoding of a time "
        "may also be in key=dt.formats.json(..., encodings=...)"
    )


def element_type(type_: DataType) -> DataType:
    """Return the type of an array's innermost elements; ``type_`` itself if it is no array."""
    return element_type(type_.elementType) if isinstance(type_, ArrayType) else type_


def first_coded_type(type_: DataType) -> DataType | None:
    """Return the first type within a map or struct that JSON has no values of: a date, timestamp,
    interval or decimal, at any depth. None if there is none; ``type_`` itself, and the elements of
    an array outside of maps and structs, do not count. Booleans and bytes are passed over.
    """
    type_ = element_type(type_)
    if isinstance(type_, MapType):
        inner = [type_.keyType, type_.valueType]
    elif isinstance(type_, StructType):
        inner = [field.dataType for field in type_]
    else:
        return None
    for part in inner:
        leaf = element_type(part)
        if isinstance(leaf, _CODED_TYPES) and not isinstance(leaf, BooleanType):
            return leaf
        if (coded := first_coded_type(part)) is not None:
            return coded
    return None


@dataclass(frozen=True)
class RawValue:
    """A value as Kafka Connect encodes it, and its conversion to one of Spark's types."""

    column: Column
    """The raw value: as JSON has it in ``raw_type``, or as Avro's decoding gives it."""
    encoding: ColumnEncoding
    """The encoding of the raw value, with those of its parts."""
    coded: bool
    """True for JSON, in which the bytes of decimals are base64; False for Avro."""

    def as_type(self, type_: DataType) -> Column:
        """Return the value in ``type_``; null where the raw value is null or does not fit the type.
        A raw value that is known to have the type already stays as it is.

        Booleans, dates, timestamps, intervals, decimals and texts are decoded. Timestamps and
        intervals come as numbers in the unit of their encoding, or as texts in ISO 8601. Without a
        known encoding these numbers give null, and so do decimals of JSON. A value in another type
        stays as it was read from JSON, or is cast from Avro.

        In arrays, maps and structs whose parts have encodings, each part is converted alone, and
        only the part that does not fit is null. Fields of such a struct without a known encoding
        are null, too. Arrays of decoded types other than texts are always converted so.
        """
        if self.encoding.is_of_type(type_):
            return self.column
        nested = self._nested_value(type_)
        if nested is not None:
            return nested
        convert = self._converters.get(type(type_))
        if convert is not None:
            return convert(self, type_)
        return self.column if self.coded else self.column.try_cast(type_)

    def _nested_value(self, type_: DataType) -> Column | None:
        """Return the value in ``type_``, an array's, map's or struct's type, made part by part;
        null for a null value. Fields of a struct without a known encoding are null.

        Return None for a plain type, and if no part has an encoding. But an array of a type that
        JSON lacks, such as dates, is always converted: its elements then have the encoding of the
        whole.
        """
        within = self.encoding.within
        if isinstance(type_, ArrayType):
            inner = type_.elementType
            if within or isinstance(element_type(inner), _CODED_TYPES):
                return F.transform(self.column, lambda item: self._part("", item).as_type(inner))
        elif within and isinstance(type_, MapType):
            inner = type_.valueType
            return F.transform_values(
                self.column, lambda _, item: self._part("", item).as_type(inner)
            )
        elif isinstance(type_, StructType) and (
            within or isinstance(self.encoding.natural, StructType)
        ):
            fields = (
                self._part(f.name, self.column[f.name]).as_type(f.dataType)
                if f.name in within
                else F.lit(None).cast(f.dataType)
                for f in type_
            )
            named = (of.alias(name) for of, name in zip(fields, type_.names, strict=True))
            return F.when(self.column.isNotNull(), F.struct(*named))
        return None

    def is_lost(self, value: Column, type_: DataType) -> Column:
        """Return a boolean column, never null: a part of the raw value at any depth is not null,
        but its counterpart in ``value`` is. An array is lost only by its elements, and a map whose
        values have encodings only by these: ``as_type`` never makes such a whole one null.
        ``value``: the result of ``as_type(type_)``.
        """
        if self.encoding.is_of_type(type_):
            return F.lit(False)
        lost = self.column.isNotNull() & value.isNull()
        within = self.encoding.within
        if isinstance(type_, ArrayType):
            pairs = self._lost_elements(self.column, value, type_.elementType)
            return self.column.isNotNull() & F.exists(pairs, lambda item: item)
        if within and isinstance(type_, MapType):
            sides = (F.map_values(self.column), F.map_values(value))
            pairs = self._lost_elements(*sides, type_.valueType)
            return self.column.isNotNull() & F.exists(pairs, lambda item: item)
        if within and isinstance(type_, StructType):
            for f in type_:
                if f.name in within:
                    raw = self._part(f.name, self.column[f.name])
                    lost = lost | raw.is_lost(value[f.name], f.dataType)
        return F.coalesce(lost, F.lit(False))

    def _lost_elements(self, raw: Column, value: Column, type_: DataType) -> Column:
        """Return an array of booleans, true for each element that is lost (``is_lost``): it, or a
        part of it at any depth, is null in ``value`` but not in ``raw``. The array is null where
        ``raw`` or ``value`` is.

        ``raw``, ``value``: arrays of the raw elements and of their values, of equal length.
        ``type_``: the type of the elements.
        """
        return F.zip_with(raw, value, lambda a, b: self._part("", a).is_lost(b, type_))

    def _part(self, name: str, column: Column) -> RawValue:
        """Return the raw value of a part, in ``column``. ``name``: that of a record's field, or
        ``""`` for an element or a map's value. A part whose encoding is not known has that of the
        whole.
        """
        return replace(self, column=column, encoding=self.encoding.within.get(name, self.encoding))

    def _timestamp(self, type_: DataType) -> Column:
        """Return the raw value as a timestamp: a number in the unit of its encoding, or a text in
        ISO 8601 with a zone (``_point_in_time``). Anything else gives null. ``type_`` does not
        count.
        """
        return F.timestamp_micros(self._point_in_time())

    def _timestamp_ntz(self, type_: DataType) -> Column:
        """Return the raw value as a timestamp without a zone, ``type_``: its clock time in UTC. The
        raw value is a number in the unit of its encoding, or a text in ISO 8601 with a zone
        (``_point_in_time``). Anything else gives null.
        """
        epoch = F.lit("1970-01-01").cast(type_)
        return F.timestamp_add("MICROSECOND", self._point_in_time(), epoch)

    def _boolean(self, type_: DataType) -> Column:
        """Return a boolean, null for anything but true, false, 1 and 0. MySQL and MariaDB write 0
        and 1. ``type_`` is not used.
        """
        text = self.column.cast("string")
        return F.when(text.isin("true", "1"), F.lit(True)).when(
            text.isin("false", "0"), F.lit(False)
        )

    def _date(self, type_: DataType) -> Column:
        """Return a date from days since 1970 or from text in ISO 8601; null for anything else. Days
        may be an integer or its digits, and a zone of the text is ignored. The encoding's name is
        not used, so a count of milliseconds would be read as days. PostgreSQL's ``infinity``
        becomes the last day of ``base/infinity.py`` and ``-infinity`` the first. ``type_`` is not
        used.
        """
        raw_days = self.column.try_cast("int")
        days = F.coalesce(_infinity(raw_days, _INFINITE_DAYS, LAST_DAY, FIRST_DAY), raw_days)
        text = self._matched_group(_ISO_DATE).try_cast("date")
        ends = self._infinity_of_text(
            F.date_from_unix_date(F.lit(LAST_DAY)), F.date_from_unix_date(F.lit(FIRST_DAY))
        )
        return F.coalesce(F.date_from_unix_date(days), ends, text)

    def _interval(self, type_: DataType) -> Column:
        """Return the raw value, a time since midnight or a duration, as an interval of ``type_``.
        The raw value is a number in the unit of its encoding, of which digits finer than
        microseconds are cut off, towards the past. Or it is a text in UTC: two digits each as
        ``hh:mm:ss``, perhaps with a fraction and a ``Z``, without a sign. Anything else gives null.
        """
        micros, zero = self._micros(_TIME_NAMES).cast("decimal(19,0)"), F.lit(0)
        seconds = (micros * F.lit("0.000001").cast("decimal(6,6)")).try_cast("decimal(18,6)")
        text = self._matched_group(_ISO_TIME).try_cast("interval hour to second")
        return F.coalesce(F.make_dt_interval(zero, zero, zero, seconds), text).cast(type_)

    def _text(self, type_: DataType) -> Column:
        """Return the raw value as text, ``type_``. JSON's value stays as it is. Of Avro, a decimal
        in bytes becomes its digits (``decimal_text_of``), null if its schema has no scale. Avro's
        bytes that are no decimal are read as UTF-8, null if they are not that. Arrays, maps and
        records become their JSON, with base64 for bytes. Other values are cast.
        """
        natural = self.encoding.natural
        if isinstance(natural, (ArrayType, MapType, StructType)):
            return F.to_json(self.column, ALL_VALUES)
        if not isinstance(natural, BinaryType):
            return self.column if self.coded else self.column.try_cast(type_)
        if self.encoding.known != DECIMAL:
            text = self.column.cast(type_)
            return F.when(F.is_valid_utf8(text), text)
        scale = self.encoding.known_scale
        return F.lit(None).cast(type_) if scale is None else decimal_text_of(self.column, scale)

    def _decimal(self, type_: DataType) -> Column:
        """Return the raw value as a decimal of ``type_``, null if it does not fit. Digits beyond
        the type's scale are rounded. If the encoding has no scale, bytes have that of ``type_``.

        JSON has base64 of a decimal's bytes, an object with base64 and its own scale, or plain
        digits. In place of base64 it may have a number, as Kafka Connect's
        ``decimal.format=NUMERIC`` writes. Without an encoding JSON's value is null.
        """
        assert isinstance(type_, DecimalType)
        scale = F.coalesce(self.encoding.scale, F.lit(type_.scale))
        if not self.coded:
            if self.encoding.known == DECIMAL:
                return decimal_of(self.column, scale, type_)
            if self.encoding.known == _VARIABLE:
                return decimal_of(self.column["value"], self.column["scale"], type_)
            return self.column.try_cast(type_)
        own_scale = F.get_json_object(self.column, "$.scale").try_cast("int")
        unscaled = _decode_base64(F.get_json_object(self.column, "$.value"))
        is_number = (self.encoding.name == DECIMAL) & self.column.startswith(_NUMBER_MARK)
        return (
            F.when(
                self.encoding.name.isin(*_PLAIN) | is_number,
                F.ltrim(self.column).try_cast(type_),
            )
            .when(
                self.encoding.name == DECIMAL, decimal_of(_decode_base64(self.column), scale, type_)
            )
            .when(self.encoding.name == _VARIABLE, decimal_of(unscaled, own_scale, type_))
        )

    def _micros(self, names: tuple[str, ...]) -> Column:
        """Return the raw value in microseconds, a long, if its encoding is one of ``names``, else
        null. It is also null if the raw value is no number or too large. Finer digits are cut off,
        towards the past. ``names``: the full names of encodings, keys of ``_PER_MICROSECOND``.
        """
        raw_time = self.column.try_cast("long")
        micros = F.when(F.lit(False), raw_time)
        for units in (-1000, 1, 1000):
            of_unit = [name for name in names if _PER_MICROSECOND[name] == units]
            converted = F.try_multiply(raw_time, F.lit(-units)) if units < 0 else raw_time
            if units > 1:
                is_cut = (raw_time < 0) & (raw_time % units != 0)
                quotient = F.call_function("div", raw_time, F.lit(units))
                converted = quotient - F.when(is_cut, F.lit(1)).otherwise(F.lit(0))
            micros = micros.when(self.encoding.name.isin(of_unit), converted)
        return micros

    def _point_in_time(self) -> Column:
        """Return a point in time as a long: microseconds since 1970 in UTC.

        A number has the unit of its encoding, and digits finer than microseconds are cut off. A
        text is ISO 8601 with a zone, or the digits of such a number. PostgreSQL's infinities become
        the first and last microsecond of ``base/infinity.py``. Everything else is null.
        """
        text = self.column.cast("string")
        zoned = F.when(text.rlike(_ZONED), F.unix_micros(text.try_cast("timestamp")))
        raw_time, endless = self.column.try_cast("long"), F.lit(None).cast("long")
        for name in _TIMESTAMP_NAMES:
            units = _PER_MICROSECOND[name]
            infinity = _infinity(
                raw_time, _INFINITE_STAMPS[units], LAST_MICROSECOND, FIRST_MICROSECOND
            )
            endless = F.coalesce(F.when(self.encoding.name == name, infinity), endless)
        ends = self._infinity_of_text(F.lit(LAST_MICROSECOND), F.lit(FIRST_MICROSECOND))
        return F.coalesce(endless, self._micros(_TIMESTAMP_NAMES), ends, zoned)

    def _infinity_of_text(self, last: Column, first: Column) -> Column:
        """Return ``last`` where the raw text is PostgreSQL's infinity, ``first`` where it is
        -infinity; null for other texts.
        """
        text = self.column.cast("string")
        return F.when(text.rlike(_INFINITY), last).when(text.rlike(_MINUS_INFINITY), first)

    def _matched_group(self, pattern: str) -> Column:
        """Return the first group of ``pattern``, a regular expression, where it is found in the raw
        text, else null. It is found anywhere unless it has the anchors ``^`` and ``$``.
        """
        text = self.column.cast("string")
        return F.when(text.rlike(pattern), F.regexp_extract(text, pattern, 1))

    _converters: ClassVar[Mapping[type[DataType], Callable[[RawValue, DataType], Column]]] = {
        BooleanType: _boolean,
        DateType: _date,
        DayTimeIntervalType: _interval,
        DecimalType: _decimal,
        StringType: _text,
        TimestampNTZType: _timestamp_ntz,
        TimestampType: _timestamp,
    }
    """By type: the method that converts a raw value, for types that JSON has no values of."""


def _infinity(raw: Column, ranges: _Ranges, last: int, first: int) -> Column:
    """Return ``last`` where the number ``raw`` stands for infinity, ``first`` for minus infinity;
    null for other numbers. ``ranges``: the ranges of numbers that stand for infinity, then those
    for minus infinity; both ends are inclusive.
    """
    plus, minus = (reduce(or_, (raw.between(*ends) for ends in of_sign)) for of_sign in ranges)
    return F.when(plus, F.lit(last)).when(minus, F.lit(first))


def _decode_base64(text: Column) -> Column:
    """Return the bytes of a base64 text; null for other texts, and for one without the padding to a
    multiple of four characters. An empty text gives no bytes.
    """
    is_whole = text.rlike(_BASE64) & (F.length(text) % _BASE64_UNIT == 0)
    return F.when(is_whole, F.try_to_binary(text, F.lit("base64")))


def field_description(fields: Column, name: str) -> Column:
    """Return the first description of the field ``name``; null if absent, or if the array is null.
    ``fields``: an array of structs of ``FIELD_PARTS``, whose ``field`` is a field's name.
    """
    return F.try_element_at(
        F.filter(fields, lambda description: description["field"] == name), F.lit(1)
    )


def json_fields(columns: StructType) -> StructType:
    """Return the columns with the types in which ``from_json`` reads them: variants for decimals,
    also in arrays; strings for booleans, dates, timestamps and intervals. Others keep their types.
    ``raw_row`` takes a row of these types.
    """
    return StructType([StructField(f.name, _json_type(f.dataType)) for f in columns])


def exact_fields(columns: StructType) -> StructType:
    """Return the decimals among the columns, also arrays of decimals, with their own types. In
    these types ``from_json`` reads each digit of a number, but no base64. Without decimals the
    result is empty.
    """
    return StructType(_decimals(columns))


def is_rounded(read: Column, columns: StructType) -> Column:
    """Return a boolean column, never null: a number among the decimals of the row ``read`` was read
    as a double, which may have lost digits. Numbers with exponents, or with more than 38 digits,
    are read as doubles.

    ``columns``: the row's columns, among them a decimal. ``read``: the row in
    ``json_fields(columns)``, perhaps null.
    """
    decimals = F.struct(*(read[f.name].alias(f"_{n}") for n, f in enumerate(_decimals(columns))))
    types = F.schema_of_variant(F.to_variant_object(decimals))
    return F.coalesce(F.contains(types, F.lit("DOUBLE")), F.lit(False))


def raw_row(read: Column, columns: StructType, exact: Column) -> Column:
    """Return the row ``read``, which has the types of ``json_fields(columns)``, with its decimals
    as texts in place of variants; null for a null row. Without decimals this is the row itself.

    ``exact``: the same row read in ``exact_fields(columns)``; only decimals that were read as a
    double use it.
    """
    decimals = _decimals(columns)
    if not decimals:
        return read
    digits = {f.name: _raw_decimal(read[f.name], f.dataType, exact[f.name]) for f in decimals}
    values = (digits.get(f.name, read[f.name]).alias(f.name) for f in columns)
    return F.when(read.isNotNull(), F.struct(*values))


def _decimals(columns: StructType) -> list[StructField]:
    """Return the columns that are decimals, or arrays of decimals at any depth."""
    return [f for f in columns if isinstance(element_type(f.dataType), DecimalType)]


def _json_type(type_: DataType) -> DataType:
    """Return the type in which ``from_json`` reads a raw value of ``type_``. Decimals, also in
    arrays, are read as variants, for a text does not tell a number from base64. Booleans, dates,
    timestamps and intervals are read as strings, others in their type.
    """
    if isinstance(type_, ArrayType):
        return ArrayType(_json_type(type_.elementType))
    return VariantType() if isinstance(type_, DecimalType) else raw_type(type_)


def _raw_decimal(read: Column, type_: DataType, exact: Column) -> Column:
    """Return a decimal as text. ``read``: the decimal as a variant, or an array of such for an
    array type, which gives an array of texts. ``exact``: the same value in ``type_``.

    A JSON text or object keeps its text. Anything else is its JSON behind a blank, by which numbers
    are told from base64. A double takes its digits from ``exact``; if that is null, its text ends
    in ``…`` and casts to no number. JSON's null is null.
    """
    if isinstance(type_, ArrayType):
        inner = type_.elementType
        return F.transform(read, lambda item, index: _raw_decimal(item, inner, F.get(exact, index)))
    kind, text = F.schema_of_variant(read), F.to_json(read)
    digits = F.coalesce(exact.cast("string"), F.concat(text, F.lit(_FURTHER_DIGITS)))
    return (
        F.when(kind == "STRING", F.try_variant_get(read, "$", "string"))
        .when(kind.startswith("OBJECT"), text)
        .when(kind == "DOUBLE", F.concat(F.lit(_NUMBER_MARK), digits))
        .when(kind != "VOID", F.concat(F.lit(_NUMBER_MARK), text))
    )
