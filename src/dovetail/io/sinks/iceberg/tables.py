"""The table of an Iceberg sink: how it is made, its columns and its owner.

The property ``dovetail.query`` names the query that owns a table. A query takes a table with its
first micro-batch; before that it changes nothing but missing tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import StructType

from dovetail.errors import PlanError, TargetError, line_of
from dovetail.iceberg.catalogs import TableAddress
from dovetail.io.sinks.ownership import (
    Existing,
    TableRelation,
    must_be_empty,
    refuse_gone,
    refuse_rows,
    refuse_taken,
    relation_to_table,
)
from dovetail.io.sinks.target_columns import find_missing_columns
from dovetail.plan.types.arrow import arrow_schema, spark_schema

if TYPE_CHECKING:
    from pyiceberg.table import Table

FORMAT_VERSION = "2"
"""The version of the format of a table that is made."""
FORMAT_VERSION_MAX = 2
"""The last version of the format that pyiceberg writes. It reads later ones, too."""


@dataclass(frozen=True)
class IcebergTarget:
    """An Iceberg table that a query writes, and the treatment of one that is there."""

    title: str
    """The sink's call as written, for errors."""
    address: TableAddress
    """The name of the table, and its catalog."""
    schema: StructType
    """The columns that the query writes."""
    existing: Existing
    """The treatment of a table that is not this query's."""
    partition_fields: Sequence[tuple[str, str]]
    """The column and the transform of each partition field of a new table; empty for none."""
    evolve: bool
    """True to add columns that the table lacks."""

    def prepare(self, query: str | None, *, begun: bool, appends: bool) -> None:
        """Make the table if it is missing, else check that it fits. A table that is there is not
        changed.

        ``query``: the id of the checkpoint's query, None before its first start. ``begun``: True if
        a micro-batch of it is complete. ``appends``: True if rows are only added, which any table
        with these columns takes.

        Raises ``TargetError`` for a table that does not fit, or is gone although the query has
        begun. Raises ``ConfigurationError`` if the catalog or the table cannot be read. Raises
        ``PlanError`` for partitions that do not suit, and for a column of the table of a type that
        Spark lacks.
        """
        catalog = self.address.open_catalog(self.title)
        if catalog.table_exists(self.address.table):
            table = self.open()
            self.missing_columns(table)
            if not appends:
                self.relation(table, query, begun=begun)
        elif begun:
            refuse_gone(self.title)
        else:
            self.create()

    def open(self) -> Table:
        """Return the table as the catalog has it now. The table must exist. Raises
        ``ConfigurationError`` if it cannot be read.
        """
        return self.address.open(self.title)

    def create(self) -> None:
        """Make the table without rows, and its namespace if that is missing. Raises ``PlanError``
        for partition fields that do not suit their columns, and ``ConfigurationError`` if the
        catalog cannot be opened. Pyiceberg's errors pass, such as that of a table that exists.
        """
        catalog = self.address.open_catalog(self.title)
        if "." in self.address.table:
            catalog.create_namespace_if_not_exists(self.address.table.rpartition(".")[0])
        properties = {"format-version": FORMAT_VERSION}
        with catalog.create_table_transaction(
            self.address.table, arrow_schema(self.schema), properties=properties
        ) as transaction:
            if not self.partition_fields:
                return
            try:
                with transaction.update_spec() as spec:
                    for column, transform in self.partition_fields:
                        spec.add_field(column, transform)
            except ValueError as error:
                raise PlanError(
                    self.title,
                    f"partition_by= does not suit the columns: {line_of(error)}",
                    "Give columns, or transforms of them such as 'day(at)' or 'bucket(16, id)'",
                ) from error

    def relation(self, table: Table, query: str | None, *, begun: bool) -> TableRelation:
        """Return the relation of a query to ``table``. Nothing is changed.

        - ``"kept"``: the query owns the table.
        - ``"replaced"``: it does not, and replaces the rows, by ``existing="replace"``.
        - ``"adopted"``: it does not, and goes on with the table as it is. With ``existing="fail"``
          the table has no data files then.

        ``query``: the id of the checkpoint's query, None before its first start. ``begun``: True if
        a micro-batch of it is complete. Raises ``TargetError`` for data files in a table that the
        query does not own, with ``existing="fail"``, even if all their rows are deleted. Also if a
        query that has begun does not own the table, unless ``existing`` is ``"adopt"``.
        """
        from dovetail.iceberg.replacement import QUERY, all_files

        owner = table.properties.get(QUERY)
        relation = relation_to_table(
            self.title, self.existing, owner=owner, query=query, begun=begun
        )
        if must_be_empty(self.existing, relation):
            refuse_rows(self.title, is_empty=not all_files(table))
        return relation

    def refuse_taken(self, table: Table, query: str) -> None:
        """Raise ``TargetError`` if the query with the id ``query`` is not the owner of ``table``,
        because another one has taken it. ``table``: read just now.
        """
        from dovetail.iceberg.replacement import QUERY

        if table.properties.get(QUERY) != query:
            refuse_taken(self.title)

    def with_all_columns(self, table: Table) -> Table:
        """Return the table with all columns of the query. Columns that the table lacks are added in
        a commit without rows, if ``evolve``, an attribute of this object, is set. ``table``: read
        just now; it is returned itself if it lacks no column, else the table is opened anew.

        Raises ``TargetError`` if the columns differ in another way, or if pyiceberg cannot write
        the table. Raises ``PlanError`` for a column of the table of a type that Spark lacks.
        Pyiceberg's error passes if another writer is faster.
        """
        missing = self.missing_columns(table)
        if not missing.fields:
            return table
        with table.update_schema() as update:
            update.union_by_name(arrow_schema(missing))
        return self.open()

    def refuse_nulls(self, table: Table, rows: pa.Table) -> None:
        """Raise ``TargetError`` if ``rows`` have a null in a column that ``table`` requires. Fields
        within columns are not checked.
        """
        for field in table.schema().fields:
            if field.required and rows[field.name].null_count:
                raise TargetError(
                    self.title,
                    f"the table requires values in column {field.name!r}, and rows that come have "
                    "nulls there",
                    "Make the column optional in the table, or change the rows by with_columns() "
                    "or where(), and start the query again",
                )

    def refuse_unwritable(self, table: Table) -> None:
        """Raise ``TargetError`` for a table that pyiceberg cannot write. That is one of format
        version 3, or with a partition field, other than a dropped one, on a float. Pyiceberg writes
        rows with 0.0 and -0.0 twice there, and fails at NaN.
        """
        from pyiceberg.transforms import VoidTransform
        from pyiceberg.types import DoubleType, FloatType

        version = table.metadata.format_version
        if version > FORMAT_VERSION_MAX:
            raise TargetError(
                self.title,
                f"the table has Iceberg's format version {version}, and pyiceberg writes up to "
                f"{FORMAT_VERSION_MAX}",
                "Choose another table, of that version",
            )
        for field in table.spec().fields:
            if isinstance(field.transform, VoidTransform):
                continue
            column = table.schema().find_field(field.source_id)
            if isinstance(column.field_type, (FloatType, DoubleType)):
                raise TargetError(
                    self.title,
                    f"the table has partitions by {column.name!r} of type {column.field_type}, by "
                    "which pyiceberg does not part zeros of two signs and NaN",
                    "Remove the field from the table's partitions, or choose another table",
                )

    def missing_columns(self, table: Table) -> StructType:
        """Return the columns of the query that ``table`` lacks; none without ``evolve``, which is
        needed to add them. Raises ``TargetError`` if its columns differ in another way, or are
        missing without ``evolve``. Also for a table that pyiceberg cannot write
        (``refuse_unwritable``). Raises ``PlanError`` for a type in the table that Spark lacks.
        """
        self.refuse_unwritable(table)
        from dovetail.iceberg.columns import arrow_schema as columns_in_arrow

        present = spark_schema(columns_in_arrow(self.title, table.schema().fields))
        missing = find_missing_columns(
            self.title, present, self.schema, evolve=self.evolve, case_counts=True
        )
        return StructType(missing)
