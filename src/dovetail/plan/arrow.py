"""Spark's types as Arrow's, and back."""

from __future__ import annotations

import inspect
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructField, StructType


def arrow_schema(schema: StructType) -> pa.Schema:
    """Spark's Arrow types for these columns, timestamps in UTC, nullable, without metadata."""
    plain = StructType([StructField(f.name, f.dataType, True) for f in schema])
    # Spark 4.2 asks for the time zone; 4.1 knows only UTC.
    options: dict[str, Any] = (
        {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    )
    return to_arrow_schema(plain, **options)


def spark_schema(schema: pa.Schema) -> StructType:
    """Spark's types for these columns; timestamps without a time zone are ``timestamp_ntz``."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)
