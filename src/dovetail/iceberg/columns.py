"""The columns of Iceberg tables: their types in Arrow, and their identity, which is a number.

A column keeps its number when it is renamed, and no other column ever gets it. So files are read by
numbers, not by the names in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from dovetail.errors import ConfigurationError, DataError, PlanError

_PLAIN: dict[type[IcebergType], pa.DataType] = {
    BinaryType: pa.binary(),
    BooleanType: pa.bool_(),
    DateType: pa.date32(),
    DoubleType: pa.float64(),
    FixedType: pa.binary(),
    FloatType: pa.float32(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    StringType: pa.string(),
    TimestampType: pa.timestamp("us"),
    TimestamptzType: pa.timestamp("us", "UTC"),
}


def arrow_schema(operator: str, fields: Iterable[NestedField]) -> pa.Schema:
    """Return the Arrow columns of an Iceberg table's ``fields``, in order, by name, all nullable.
    ``operator``: the subject of errors. Raises ``PlanError`` for a type that Spark does not have,
    or not in the same precision, such as UUIDs, times of day and nanoseconds.
    """
    return pa.schema(
        [pa.field(f.name, _arrow_type(operator, f.name, f.field_type)) for f in fields]
    )


def _arrow_type(operator: str, path: str, type_: IcebergType) -> pa.DataType:
    """Return the Arrow type of an Iceberg type, at any depth. ``operator``: the subject of errors.
    ``path``: the dotted name of the column or field, for errors. Raises ``PlanError`` for a type
    that ``_PLAIN`` lacks, such as a UUID.
    """
    if isinstance(type_, StructType):
        fields = [
            (f.name, _arrow_type(operator, f"{path}.{f.name}", f.field_type)) for f in type_.fields
        ]
        return pa.struct(fields)
    if isinstance(type_, ListType):
        return pa.list_(_arrow_type(operator, f"{path}.element", type_.element_type))
    if isinstance(type_, MapType):
        key = _arrow_type(operator, f"{path}.key", type_.key_type)
        return pa.map_(key, _arrow_type(operator, f"{path}.value", type_.value_type))
    if isinstance(type_, DecimalType):
        return pa.decimal128(type_.precision, type_.scale)
    if type(type_) not in _PLAIN:
        raise PlanError(
            operator,
            f"column {path!r} is of type {type_}, which is not read",
            "Name the other columns in columns=",
        )
    return _PLAIN[type(type_)]


def readable_names(schema: Schema) -> list[str]:
    """Return the names of the top-level columns of ``schema`` that have a type of Spark at every
    depth, in order; perhaps none.
    """

    def is_readable(field: NestedField) -> bool:
        """Return True if ``arrow_schema`` accepts the column ``field``."""
        try:
            arrow_schema("", [field])
        except PlanError:
            return False
        return True

    return [field.name for field in schema.fields if is_readable(field)]


def projected(schema: Schema, names: Sequence[str] | None) -> Schema:
    """Return a schema of the top-level columns of ``schema`` with these ``names``, or all for None,
    in the order of ``schema``. Unknown names are left out. Each column may be null, because older
    files may lack it. Field ids stay.
    """
    fields = [field for field in schema.fields if names is None or field.name in names]
    return Schema(*(field.model_copy(update={"required": False}) for field in fields))


def columns_of(metadata: TableMetadata, ids: Iterable[int]) -> Schema:
    """Return a schema of the columns with these field ids, in the order of ``ids``. Each has the
    type that the last schema with it has, even if the table has dropped it since.

    Each is named ``_`` and its id, and may be null. Raises ``DataError`` for an id that no schema
    has at its top level, such as that of a field of a struct.
    """
    field_by_id = {field.field_id: field for schema in metadata.schemas for field in schema.fields}
    fields = []
    for id_ in ids:
        if id_ not in field_by_id:
            raise DataError(
                "from_iceberg",
                f"rows are deleted by the values of a field within a struct, number {id_}",
                "Rewrite the table's files, which applies such deletes",
            )
        fields.append(field_by_id[id_].model_copy(update={"name": f"_{id_}", "required": False}))
    return Schema(*fields)


def refuse_other_types(operator: str, wanted: Schema, present: Schema) -> None:
    """Raise ``ConfigurationError`` if a column has another type than when the query was built.
    Columns are compared by their field ids. A wider type is another one, too, and so is a struct
    with a field added, removed or renamed.

    ``operator``: the subject of the error. ``wanted``: the columns as the query was built.
    ``present``: those of the table now. A column that the table has dropped is no problem: it is
    null in files without it.
    """
    types = {field.field_id: field.field_type for field in present.fields}
    for field in wanted.fields:
        now = types.get(field.field_id, field.field_type)
        if now != field.field_type:
            raise ConfigurationError(
                operator,
                f"column {field.name!r} was {field.field_type} when the query was built and is "
                f"now {now}",
                "Start the query again, which reads the new type",
            )
