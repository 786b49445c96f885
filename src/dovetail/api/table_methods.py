"""Methods that make a table of a table: another key, other rows, rows that stay or go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.api.table_sources import TableSources
from dovetail.base.validation import ColumnName, Text, validated
from dovetail.lookup.source import LookupSource
from dovetail.plan.joins.delta_options import with_lookup
from dovetail.plan.joins.join_call import materialized
from dovetail.plan.nodes import ChangeKinds
from dovetail.plan.transforms.expire import expired
from dovetail.plan.transforms.explode import exploded
from dovetail.plan.transforms.fill import Missing, filled
from dovetail.plan.transforms.rekey import Duplicates, rekeyed
from dovetail.plan.transforms.retire import retired
from dovetail.plan.types.spans import Span
from dovetail.plan.views import Errors, Item

if TYPE_CHECKING:
    from typing_extensions import Self


class TableRows(TableSources):
    """The methods that change a table's rows, each with a table as result."""

    @validated
    def rekey(
        self,
        *columns: ColumnName,
        duplicates: Duplicates = "error",
        errors: Errors = "fail",
        **named: Item,
    ) -> Self:
        """Return the rows under another key: columns, and Spark expressions under names of their
        own.

        The former key's columns are values. A row with a null in the key is left out.

        ``duplicates``: the effect of several rows with one key. ``"error"`` fails the query.
        ``"last"`` has the row that came last, and when it leaves, the one before it. ``errors``: as
        in ``where``.
        """
        return type(self)(rekeyed(self.plan, columns, named, duplicates, errors))

    @validated
    def explode(self, column: ColumnName, *, position: Text | None = None) -> Self:
        """Return a row for each element of an array, as long as the table's row has it.

        The row ``items=["a", "b"]`` is two. As it becomes ``["b", "c"]``, the row of ``a`` leaves
        and one of ``c`` comes. A row whose array is null or empty has none.

        Parameters
        ----------
        column
            The array, a value column. Its elements take its place.
        position
            By default a row's key is the table's key and the element. So an element that an array
            has twice is one row, and a null is none; the observed metrics ``<name>.repeated`` and
            ``<name>.null_element`` count them. With a name for ``position``, the key is the table's
            key and the element's position, an int from 0. The element is a value. Then an
            array's elements are rows as they are, and an element that moves is another row.

        Raises
        ------
        PlanError
            If the column is no array or, without ``position``, its elements cannot be a key.

        Notes
        -----
        Each change of the table's row comes as a change of each of its elements' rows, under its
        time. The table's last rows are kept. The result has no history.
        Source: Spark, ``explode`` and ``posexplode``; spec/view/rows.
        """
        return type(self)(exploded(self.plan, column, position))

    @validated
    def keep_former(self, unsent: ColumnName, *, missing: Missing = "fail") -> Self:
        """Return the rows with the former values of the columns that a record does not bring.

        They are the values of the key's row before. So ``note="long", city="Rome"``, then
        ``city="Oslo", unsent=["note"]``, is ``note="long", city="Oslo"``.

        Parameters
        ----------
        unsent
            The column with the names of the value columns that a record leaves out, an array of
            texts. It is no column of the result. Null and names of no value column say nothing.
            missing The effect of a value that was not sent where the key has no row: ``"fail"``
            stops the query with the key and the column; ``"null"`` has null, counted by the
            observed metric ``<name>.unsent``.

        Raises
        ------
        PlanError
            If the column is no array of texts, or the table is versioned.

        Notes
        -----
        Records count in the order in which they arrive. After a delete there is no row before. The
        table's last rows are kept.
        Source: spec/view/former.
        """
        return type(self)(filled(self.plan, unsent, missing))

    def materialize(self) -> Self:
        """Keep this table's rows in a stage of their own; the result emits real changes only.

        It emits no row that is as it was, and no tombstone where there was no row. It has no
        history.

        Raises ``PlanError`` for a join of histories (``late="history"``).
        """
        return type(self)(materialized(self.plan))

    @validated
    def expire(self, *, after: Span) -> Self:
        """Delete a row once stream time is more than ``after`` past its timestamp.

        A tombstone deletes the row, here and in all that is made of it. A change of a row gives it
        a new life. A change that comes later than that is counted (``<name>.late``). The result has
        no history. Source: spec/view/expire.
        """
        return type(self)(expired(self.plan, after))

    @validated
    def retire(self, *, snapshot: ColumnName, at: ColumnName) -> Self:
        """Return the table's rows without those that its feed's latest whole snapshot does not
        have.

        A feed that has lost its place reads all rows again. Rows that were deleted in between are
        not among them. They leave when the snapshot's last row has come, under its timestamp.

        ``snapshot``: the column that marks a snapshot's rows, as Debezium's ``source.snapshot``
        does: the first is ``"first"`` or ``"first_in_data_collection"``, the last ``"last"`` or
        ``"last_in_data_collection"``. A last row without a first one is a snapshot of one row.

        ``at``: the column with the time at which the feed read a row or a change. It is a whole
        number that never falls along the log, as Debezium's ``ts_ms``. A row leaves if its own is
        smaller than that of the first row.

        Raises ``PlanError`` for unknown columns and types that cannot serve.
        """
        return type(self)(retired(self.plan, snapshot, at))

    @validated
    def with_lookup(self, source: LookupSource, *, changes: ChangeKinds | None = None) -> Self:
        """Add a store of the same rows to this table, in which delta joins look them up.

        ``source``: ``dt.postgres(...)``, ``dt.sqlite(...)`` or ``dt.delta_files(...)``, with this
        table's key and columns of the same names and types. Law: at any time it has at least the
        changes that the changelog has brought. So write it first, or read the changelog from its
        own log. Where its ``where=`` names constants, the changelog is restricted to them, too.

        ``changes``: the changes that may come: ``"insert"`` (a key's row comes once and stays),
        ``"upsert"`` (or is replaced), ``"all"`` (or deleted). By default ``"all"`` where
        ``deleted=`` is given, else ``"upsert"``. A tombstone against it fails the batch.

        Raises ``PlanError`` where keys or columns do not fit, and on the result of a join.
        Source: FLIP-486 "Limitations".
        """
        return type(self)(with_lookup(self.plan, source, changes))
