"""Kafka Connect's values as Spark's types: every encoding that Debezium has for dates, times,
timestamps, decimals and bytes.

A value comes as JSON has it, numbers and texts, or as Avro does, numbers, texts and bytes. What a
number or a text means is said by the name of its schema, as ``io.debezium.time.MicroTimestamp``;
one without a name is what its type is. All of it is Spark expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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
)

_TIME, _DATA, _CONNECT = "io.debezium.time.", "io.debezium.data.", "org.apache.kafka.connect.data."

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
"""How a column is encoded, by the last part of its schema's name: ``"Decimal"`` are bytes,
``"string"`` and ``"double"`` decimals that are none."""

_DECIMAL, _VARIABLE = f"{_CONNECT}Decimal", f"{_DATA}VariableScaleDecimal"
_PER_MICROSECOND: Final = {
    f"{_TIME}Timestamp": -1000,
    f"{_CONNECT}Timestamp": -1000,
    f"{_TIME}MicroTimestamp": 1,
    f"{_TIME}NanoTimestamp": 1000,
    f"{_TIME}Time": -1000,
    f"{_CONNECT}Time": -1000,
    f"{_TIME}MicroTime": 1,
    f"{_TIME}NanoTime": 1000,
    f"{_TIME}MicroDuration": 1,
    f"{_TIME}NanoDuration": 1000,
}
"""How many units a microsecond has; negative: how many microseconds a unit has."""
_STAMPS: Final = tuple(name for name in _PER_MICROSECOND if name.endswith("stamp"))
_TIMES: Final = tuple(name for name in _PER_MICROSECOND if name not in _STAMPS)
_PLAIN: Final = ("string", "double", "float32", "float64", "int8", "int16", "int32", "int64")
_ZONED: Final = r"^[+-]?\d{4,}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d(:\d\d)?)$"
_ISO_DATE: Final = r"^([+-]?\d{4,}-\d\d-\d\d)(Z|[+-]\d\d:\d\d)?$"
_ISO_TIME: Final = r"^(\d\d:\d\d:\d\d(\.\d+)?)Z?$"
_CODED: Final = (
    BinaryType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    TimestampNTZType,
    TimestampType,
)
"""The types of which JSON has no values of its own."""
_AMBIGUOUS: Final = (DayTimeIntervalType, DecimalType, TimestampNTZType, TimestampType)
"""The types whose values mean nothing without an encoding."""

_SCALE: Final = StructType().add("scale", "string")
_ITEMS: Final = StructType().add("type", "string").add("name", "string").add("parameters", _SCALE)
DESCRIBED: Final = StructType([StructField("field", StringType()), *_ITEMS]).add("items", _ITEMS)
"""What Kafka Connect's JSON says of a field, as far as it matters here."""


_ZONED_STAMPS: Final = (f"{_TIME}ZonedTimestamp", f"{_TIME}IsoTimestamp")
_TAKEN: Final[Mapping[type[DataType], tuple[str, ...]]] = {
    BooleanType: ("boolean",),
    ByteType: ("int", "long"),
    ShortType: ("int", "long"),
    IntegerType: ("int", "long", *_PER_MICROSECOND),
    LongType: ("int", "long", *_PER_MICROSECOND),
    FloatType: ("float", "double"),
    DoubleType: ("float", "double"),
    BinaryType: ("bytes", f"{_DATA}Bits"),
    DateType: (f"{_TIME}Date", f"{_CONNECT}Date", f"{_TIME}IsoDate"),
    DayTimeIntervalType: (*_TIMES, f"{_TIME}ZonedTime", f"{_TIME}IsoTime"),
    DecimalType: (_DECIMAL, _VARIABLE, "string", "double", "float", "int", "long"),
    TimestampNTZType: (*_STAMPS, *_ZONED_STAMPS),
    TimestampType: (*_STAMPS, *_ZONED_STAMPS),
}
"""The encodings of which values of a type are made; of texts, structs and maps any."""


def taken(type_: DataType, encoding: str) -> bool:
    """Whether values of a type are made of an encoding."""
    known = _TAKEN.get(type(element_of(type_)))
    return known is None or encoding in known


def default_type(encoding: str, precision: int, scale: int | None) -> DataType | None:
    """The type in which an encoding is read if none is declared; None for a plain one."""
    if encoding == _DECIMAL and scale is not None:
        return DecimalType(min(precision, 38), scale)
    if encoding == f"{_TIME}ZonedTimestamp":
        return TimestampType()
    for type_ in (DateType, DayTimeIntervalType, TimestampNTZType):
        if encoding in _TAKEN[type_]:
            return type_()
    return None


@dataclass(frozen=True)
class ColumnEncoding:
    """What is known of how a column is encoded: the name of its schema, or its type where that has
    none, null where nothing is known; and the scale of decimals. ``known``: the name where it is
    known when a query is built.
    """

    name: Column
    scale: Column
    known: str | None = None

    @staticmethod
    def declared(encoding: Encoding | None) -> ColumnEncoding:
        """By a query's author."""
        if encoding is None:
            return ColumnEncoding(F.lit(None).cast("string"), F.lit(None).cast("int"))
        known = (
            n for n in (_DECIMAL, _VARIABLE, *_PER_MICROSECOND) if n.rpartition(".")[2] == encoding
        )
        return ColumnEncoding(F.lit(next(known, encoding)), F.lit(None).cast("int"))

    @staticmethod
    def described(field: Column, type_: DataType) -> ColumnEncoding:
        """By a record's own schema: ``field`` is of ``DESCRIBED``, of the column or null."""
        of = field["items"] if isinstance(type_, ArrayType) else field
        scale = of["parameters"]["scale"].try_cast("int")
        return ColumnEncoding(F.coalesce(of["name"], of["type"]), scale)


def raw_type(type_: DataType) -> DataType:
    """The type in which JSON's value is read: text where an encoding says what it means."""
    if isinstance(type_, ArrayType):
        return ArrayType(raw_type(type_.elementType))
    return StringType() if isinstance(type_, _CODED) else type_


def ambiguous(type_: DataType) -> bool:
    """Whether values of the type mean nothing without an encoding."""
    return isinstance(element_of(type_), _AMBIGUOUS)


def element_of(type_: DataType) -> DataType:
    """The type itself, or that of an array's elements."""
    return element_of(type_.elementType) if isinstance(type_, ArrayType) else type_


def coded_within(type_: DataType) -> DataType | None:
    """A type within a map or a struct that has no values of its own in JSON: encodings are those of
    columns and of arrays' elements. Bytes are always base64.
    """
    type_ = element_of(type_)
    if isinstance(type_, MapType):
        inner = [type_.keyType, type_.valueType]
    elif isinstance(type_, StructType):
        inner = [field.dataType for field in type_]
    else:
        return None
    for one in inner:
        leaf = element_of(one)
        if isinstance(leaf, _CODED) and not isinstance(leaf, BinaryType):
            return leaf
        if (found := coded_within(one)) is not None:
            return found
    return None


@dataclass(frozen=True)
class Raw:
    """A value as it is encoded. ``coded``: its bytes are base64, as in JSON."""

    column: Column
    encoding: ColumnEncoding
    coded: bool

    def to(self, type_: DataType) -> Column:
        """The value in the type; null where the raw one is null or is none of it."""
        if isinstance(type_, ArrayType):
            inner = type_.elementType
            if not isinstance(element_of(inner), _CODED):
                return self.column
            return F.transform(self.column, lambda one: replace(self, column=one).to(inner))
        made = self._made.get(type(type_))
        if made is not None:
            return made(self, type_)
        return self.column if self.coded else self.column.try_cast(type_)

    def _timestamp(self, type_: DataType) -> Column:
        return F.timestamp_micros(self._stamp())

    def _timestamp_ntz(self, type_: DataType) -> Column:
        epoch = F.lit("1970-01-01").cast(type_)
        return F.timestamp_add("MICROSECOND", self._stamp(), epoch)

    def _date(self, type_: DataType) -> Column:
        days = F.date_from_unix_date(self.column.try_cast("int"))
        return F.coalesce(days, self._matched(_ISO_DATE).try_cast("date"))

    def _interval(self, type_: DataType) -> Column:
        micros, zero = self._micros(_TIMES).cast("decimal(19,0)"), F.lit(0)
        seconds = (micros * F.lit("0.000001").cast("decimal(6,6)")).try_cast("decimal(18,6)")
        text = self._matched(_ISO_TIME).try_cast("interval hour to second")
        return F.coalesce(F.make_dt_interval(zero, zero, zero, seconds), text).cast(type_)

    def _binary(self, type_: DataType) -> Column:
        return _from_base64(self.column) if self.coded else self.column

    def _decimal(self, type_: DataType) -> Column:
        assert isinstance(type_, DecimalType)
        scale = F.coalesce(self.encoding.scale, F.lit(type_.scale))
        if not self.coded:
            if self.encoding.known == _DECIMAL:
                return decimal_of(self.column, scale, type_)
            if self.encoding.known == _VARIABLE:
                return decimal_of(self.column["value"], self.column["scale"], type_)
            return self.column.try_cast(type_)
        own_scale = F.get_json_object(self.column, "$.scale").try_cast("int")
        own = _from_base64(F.get_json_object(self.column, "$.value"))
        return (
            F.when(
                self.encoding.name == _DECIMAL, decimal_of(_from_base64(self.column), scale, type_)
            )
            .when(self.encoding.name == _VARIABLE, decimal_of(own, own_scale, type_))
            .when(self.encoding.name.isin(*_PLAIN), self.column.try_cast(type_))
        )

    def _micros(self, names: tuple[str, ...]) -> Column:
        """A number in microseconds, by the encodings of these names; what is finer is cut off."""
        number = self.column.try_cast("long")
        micros = F.when(F.lit(False), number)
        for units in (-1000, 1, 1000):
            of_unit = [one for one in names if _PER_MICROSECOND[one] == units]
            made = F.try_multiply(number, F.lit(-units)) if units < 0 else number
            if units > 1:
                made = F.call_function("div", number - F.pmod(number, F.lit(units)), F.lit(units))
            micros = micros.when(self.encoding.name.isin(of_unit), made)
        return micros

    def _stamp(self) -> Column:
        """A point in time, in microseconds since 1970 in UTC; a text must name its zone."""
        text = self.column.cast("string")
        zoned = F.when(text.rlike(_ZONED), F.unix_micros(text.try_cast("timestamp")))
        return F.coalesce(self._micros(_STAMPS), zoned)

    def _matched(self, pattern: str) -> Column:
        """The first group of a pattern that a text fits."""
        text = self.column.cast("string")
        return F.when(text.rlike(pattern), F.regexp_extract(text, pattern, 1))

    _made: ClassVar[Mapping[type[DataType], Callable[[Raw, DataType], Column]]] = {
        BinaryType: _binary,
        DateType: _date,
        DayTimeIntervalType: _interval,
        DecimalType: _decimal,
        TimestampNTZType: _timestamp_ntz,
        TimestampType: _timestamp,
    }
    """What makes values of the types of which JSON has none."""


def lost(raw: Column, value: Column, type_: DataType) -> Column:
    """Whether a value could not be made of a raw one."""
    if isinstance(type_, ArrayType):
        inner = type_.elementType
        pairs = F.zip_with(raw, value, lambda a, b: lost(a, b, inner))
        return raw.isNotNull() & F.exists(pairs, lambda one: one)
    return raw.isNotNull() & value.isNull()


def _from_base64(text: Column) -> Column:
    return F.try_to_binary(text, F.lit("base64"))


def decimal_of(unscaled: Column, scale: Column, type_: DecimalType) -> Column:
    """The decimal whose unscaled value is an integer of bytes, big-endian in two's complement; null
    where it does not fit the type. Digits beyond the type's scale are rounded.
    """
    digits = F.hex(unscaled)
    negative = F.substring(digits, 1, 1) >= "8"
    flipped = F.translate(digits, "0123456789ABCDEF", "FEDCBA9876543210")
    digits = F.when(negative, flipped).otherwise(digits)
    digits = F.ltrim(digits, F.lit("0"))
    padded = F.lpad(digits, 32, "0")
    number = F.lit(0).cast("decimal(38,0)")
    for first in (1, 9, 17, 25):
        chunk = F.conv(F.substring(padded, first, 8), 16, 10).cast("decimal(10,0)")
        shifted = F.try_multiply(number, F.lit(1 << 32).cast("decimal(10,0)"))
        number = F.try_add(shifted, chunk).cast("decimal(38,0)")
    # As text: Spark's minus rounds a decimal to 34 digits.
    below = F.concat(F.lit("-"), F.try_add(number, F.lit(1)).cast("decimal(38,0)").cast("string"))
    text = F.when(negative, below).otherwise(number.cast("string"))
    text = F.concat(text, F.lit("E"), (-scale).cast("string"))
    fits = (F.length(unscaled) > 0) & (F.length(digits) <= 32)
    return F.when(fits, text.try_cast(type_))


def field_named(fields: Column, name: str) -> Column:
    """Of an array of descriptions, that of the field so called; null where there is none."""
    return F.try_element_at(F.filter(fields, lambda one: one["field"] == name), F.lit(1))


def raw_fields(columns: StructType) -> StructType:
    """Columns in the types in which JSON's values are read."""
    return StructType([StructField(f.name, raw_type(f.dataType)) for f in columns])
