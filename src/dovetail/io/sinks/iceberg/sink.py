"""The sink of an Iceberg table: ``to_iceberg``, and what a query does with it before it starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from dovetail.base.columns import TIMESTAMP
from dovetail.base.validation import ColumnNames, Text, validated
from dovetail.errors import PlanError
from dovetail.iceberg.catalogs import GivenCatalog, TableAddress
from dovetail.io.sinks.delta import versions
from dovetail.io.sinks.iceberg.batch import IcebergAppender, IcebergMerger
from dovetail.io.sinks.iceberg.columns import partition_fields, refuse_nested_keys, stored_schema
from dovetail.io.sinks.iceberg.tables import IcebergTarget
from dovetail.io.sinks.ownership import Existing, Owner, query_of_checkpoint, refuse_existing
from dovetail.io.sinks.spark_sinks import WriteBatch
from dovetail.plan.nodes import Node, changelog_schema
from dovetail.platform.sessions import batch_writer

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter


@dataclass(frozen=True)
class IcebergSink:
    """An Iceberg table, with the arguments of ``to_iceberg`` as fields.

    It merges each micro-batch's last change per key, or with ``history`` the versions that the
    changes make. It appends the changelogs of streams and histories.
    """

    address: TableAddress = field(repr=False)
    """The name of the table, and its catalog."""
    existing: Existing = "fail"
    """The treatment of a table with rows that is not this query's."""
    partition_by: tuple[str, ...] = ()
    """The partition fields of a new table, as ``to_iceberg`` takes them; empty for none."""
    evolve: bool = False
    """True to add columns of the query that the table lacks."""
    history: bool = False
    """True to keep all versions of the rows."""

    @property
    def title(self) -> str:
        """The call as written, without the catalog: ``to_iceberg('sales.orders')``."""
        return f"to_iceberg({self.address.table!r})"

    def writer(self, changes: DataFrame, node: Node, checkpoint: str) -> DataStreamWriter:
        """Return Spark's writer of the query's ``changes`` into the table, configured but not
        started. Create the table if it is missing, or check that it fits. ``node``: the result that
        changes. ``checkpoint``: the query's folder.

        Raises ``TargetError`` if the table has other columns or other rows than this query's, or is
        gone. Raises ``PlanError`` for columns, keys, partitions and arguments that do not suit.
        Raises ``ConfigurationError`` without pyiceberg, or if the catalog or the table cannot be
        read.
        """
        target = self._prepare_writer(changes.sparkSession, changes.schema, node, checkpoint)
        return batch_writer(changes, target.write)

    def batches(self, session: SparkSession, node: Node, checkpoint: str) -> WriteBatch:
        """Return a function that merges or appends a micro-batch's changes, given the changes and
        the micro-batch's id. Create the table if it is missing, or check that it fits. ``node``:
        the result that changes. ``checkpoint``: the query's folder.

        Raises ``TargetError`` if the table has other columns or other rows than this query's, or is
        gone. Raises ``PlanError`` for columns, keys, partitions and arguments that do not suit.
        Raises ``ConfigurationError`` without pyiceberg, or if the catalog or the table cannot be
        read.
        """
        return self._prepare_writer(session, changelog_schema(node), node, checkpoint).write

    def _prepare_writer(
        self, session: SparkSession, changes: StructType, node: Node, checkpoint: str
    ) -> IcebergMerger | IcebergAppender:
        """Return the writer of the changelog of ``node``, its table created or checked. It appends
        the changelog of a stream, and that of a join with ``late="history"``, else it merges.
        ``changes``: the columns of the changelog. ``checkpoint``: the query's folder.

        Raises ``TargetError`` if the table has other columns or other rows than this query's, or is
        gone. Raises ``PlanError`` for columns, keys, partitions and arguments that do not suit.
        Raises ``ConfigurationError`` without pyiceberg, or if the catalog or the table cannot be
        read.
        """
        schema = stored_schema(self.title, self._table_schema(changes, node))
        parts = partition_fields(self.title, schema, self.partition_by)
        target = IcebergTarget(
            self.title, self.address, schema, self.existing, parts, evolve=self.evolve
        )
        query, begun = query_of_checkpoint(session, checkpoint)
        target.prepare(query, begun=begun, appends=not node.current)
        owner = Owner(checkpoint)
        if node.current:
            return IcebergMerger(target, owner, node.key.names, self.history)
        return IcebergAppender(target, owner)

    def _table_schema(self, changes: StructType, node: Node) -> StructType:
        """Return the columns of the target table. For a table of current rows, they are key, values
        and ``_timestamp``, or with ``history`` key, values, ``_valid_from``, ``_valid_to`` and
        ``_current``. For a stream, and for a join with ``late="history"``, whose late changes emit
        corrections, they are all of ``changes``.

        ``changes``: the columns of the changelog of ``node``, the query's result. Raises
        ``PlanError`` for arguments and names that do not suit.
        """
        if not node.current:
            refuse_existing(self.title, self.existing)
            if self.history:
                raise PlanError(
                    self.title,
                    "history=True is for tables; records and histories are appended, which keeps "
                    "all",
                    "Leave it out, or read the stream as a table by to_table()",
                )
            return changes
        refuse_nested_keys(self.title, changes, node.key.names)
        columns = [*node.key.names, *node.values.names]
        if not self.history:
            return StructType([changes[name] for name in (*columns, TIMESTAMP)])
        versions.refuse_names(self.title, columns)
        return StructType([*(changes[name] for name in columns), *versions.VERSION_FIELDS])


@validated
def to_iceberg(
    table: Text,
    *,
    catalog: GivenCatalog = "default",
    existing: Existing = "fail",
    partition_by: ColumnNames | None = None,
    evolve: bool = False,
    history: bool = False,
) -> IcebergSink:
    """Write an Iceberg table that equals the query's table after each micro-batch.

    The table has the key, the values and ``_timestamp``, the event time of the row's last
    change. The package pyiceberg writes it, so Spark needs no jar: ``pip install
    'dovetail[iceberg]'``, on the driver.

    Parameters
    ----------
    table : str
        The name of the table with its namespace, such as ``"sales.orders"``.
    catalog : str or mapping of str to str, default "default"
        The catalog: its name in pyiceberg's configuration, or its properties. The property
        ``name`` is the catalog's own name, by default ``default``.
    existing : {"fail", "replace", "adopt"}, default "fail"
        The treatment of a table with rows that is not this checkpoint's. ``"fail"``
        raises ``TargetError`` before the query starts. ``"replace"`` puts the first
        micro-batch in place of the rows, in one commit. ``"adopt"`` merges into the table.
        Rows whose keys do not come stay.
    partition_by : str or list of str, optional
        The partition fields of a new table: columns, or transforms of them such as
        ``"day(at)"``, ``"bucket(16, id)"`` and ``"truncate(4, name)"``, but
        no floats. By default it has no partitions.
    evolve : bool, default False
        True to add columns of the query that the table lacks, null in its present rows.
        Other differences are refused all the same.
    history : bool, default False
        True to keep all versions of the rows, as a slowly changing dimension of type 2.

    Returns
    -------
    Sink
        The sink, for ``write_stream`` and ``dt.run``.

    Raises
    ------
    PlanError
        At the start of a query, for types that Iceberg does not store, and for nested keys.
        Also for partition fields that do not suit the columns.
    TargetError
        At the start of a query, if the table has other columns than the query, or rows that
        ``existing`` refuses. In a query, if another writer conflicts twice with a commit,
        another query has taken the table, or the checkpoint is an older copy.
    ConfigurationError
        At the start of a query, if pyiceberg is not installed, or if the catalog or the
        table cannot be read.

    See Also
    --------
    Table.from_iceberg : Read an Iceberg table and its changes as a table.
    to_delta : Keep a Delta table equal to a query's table.
    Table.write_stream : Start a query that keeps a sink up to date.

    Notes
    -----
    *Commits.* Each micro-batch is one snapshot, whose summary has the query and the
    micro-batch's number (``dovetail.query``, ``dovetail.batch``). A micro-batch that is
    repeated after a failure is skipped, so nothing is lost or doubled. A commit that
    conflicts with another writer's is made once more from the new state.

    *Files.* Data files with rows of the changed keys are written anew, together with the
    new rows (copy on write). All other files stay. The driver does so, so a micro-batch and
    the files that it changes must fit in its memory. Expiry of snapshots, compaction and
    removal of orphan files are left to your tools.

    *Ownership.* The table is created on first use, with format version 2. It belongs to the
    query's checkpoint: the property ``dovetail.query`` names the query.

    *Versions.* With ``history``, each version has ``_valid_from``, ``_valid_to`` (event
    times) and ``_current`` in place of ``_timestamp``, by the rules of ``to_delta``.

    *Streams.* A stream's records, and the points of a history (``late="history"``), are
    appended with all columns of the changelog, exactly once. The start of a
    query refuses ``history`` and another ``existing`` than ``"fail"`` for them.

    Examples
    --------
    >>> import dovetail as dt
    >>> catalog = {"type": "rest", "uri": "https://catalog:8181", "token": "s3cret"}
    >>> sink = dt.to_iceberg("sales.orders", catalog=catalog, partition_by="bucket(16, id)")
    >>> sink.title, sink.partition_by
    ("to_iceberg('sales.orders')", ('bucket(16, id)',))
    """
    parts = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by or ())
    return IcebergSink(
        TableAddress.of(table, catalog), existing, parts, evolve=evolve, history=history
    )
