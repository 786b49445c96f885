"""Columns that Delta does not store are refused with what to do, at any depth."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DayTimeIntervalType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

import dovetail as dt
from dovetail.errors import PlanError
from dovetail.io.sinks.delta.columns import refuse_repeated_hours, refuse_unstorable

NUMBER = LongType()


def struct(**fields: DataType) -> StructType:
    return StructType([StructField(name, type_) for name, type_ in fields.items()])


def refused(schema: StructType, *by: str, mapped: bool = False) -> str:
    with pytest.raises(dt.errors.PlanError) as error:
        refuse_unstorable("to_delta('t')", schema, by, mapped=mapped)
    return str(error.value)


@pytest.mark.parametrize("nest", [lambda inner: inner, ArrayType, lambda v: MapType(NUMBER, v)])
def test_names_at_each_depth(nest: type[ArrayType]) -> None:
    for name in ("Order ID", "a,b", "a;b", "{a}", "(a)", "a\nb", "a\tb", "a=b"):
        schema = struct(id=NUMBER, outer=nest(struct(**{name: NUMBER})))
        said = refused(schema)
        assert repr(f"outer.{name}") in said
        assert "rename()" in said
        assert "column mapping" in said
        refuse_unstorable("t", schema, (), mapped=True)
    refuse_unstorable("t", struct(**{"a.b": NUMBER, "`": NUMBER, "ü-ß": NUMBER}), (), mapped=False)


@pytest.mark.parametrize("type_", [DayTimeIntervalType(), NullType()])
def test_types_at_each_depth(type_: DataType) -> None:
    deep = MapType(NUMBER, ArrayType(struct(x=ArrayType(type_))))
    for path, outer in (("outer", type_), ("outer.x", struct(x=type_)), ("outer.x", deep)):
        said = refused(struct(id=NUMBER, outer=outer), mapped=True)
        assert repr(path) in said
        assert type_.simpleString() in said
        assert "cast" in said
    plain = struct(a=StringType(), b=TimestampNTZType(), c=VariantType(), d=MapType(NUMBER, NUMBER))
    refuse_unstorable("t", plain, ("a", "b"), mapped=False)


def test_names_that_differ_by_case_alone() -> None:
    assert "struct 'o'" in refused(struct(id=NUMBER, o=struct(a=NUMBER, A=NUMBER)), mapped=True)


def test_columns_to_partition_by() -> None:
    schema = struct(id=NUMBER, o=struct(a=NUMBER), raw=BinaryType())
    assert "unknown column 'no'" in refused(schema, "no")
    assert "'o', which is of type struct<a:bigint>" in refused(schema, "o")
    assert "'raw', which is of type binary" in refused(schema, "raw")
    assert "occurs twice" in refused(schema, "id", "id")
    assert "all columns" in refused(struct(id=NUMBER), "id")


def test_a_timestamp_partitions_only_where_clocks_are_not_set_back() -> None:
    """In Berlin 02:00 comes twice in a year, and Delta would read the first one for both."""
    schema = struct(id=NUMBER, At=TimestampType(), day=TimestampNTZType())
    for zone in ("UTC", "Etc/UTC", "Z", "GMT", "+02:00", "UTC+1", "Etc/GMT-3"):
        refuse_repeated_hours("t", zone, schema, ["at"])
    for zone in ("Europe/Berlin", "CET", "America/New_York"):
        refuse_repeated_hours("t", zone, schema, ["id", "day"])
        with pytest.raises(PlanError, match=f"t: .* by the timestamp 'At'.* in {zone}, the sess"):
            refuse_repeated_hours("t", zone, schema, ["at"])
