"""A micro-batch's changes of PostgreSQL tables in staging tables, and the SQL that applies them."""
# ruff: noqa: S608 -- names are quoted, values are parameters

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.base.columns import DELETED, POSITION, double_quoted
from dovetail.io.sinks.postgres.tables import (
    TargetTable,
    UniqueMoves,
    names_as_list,
    tasks_condition,
)
from dovetail.io.sinks.postgres.transactions import Cursor


@dataclass(frozen=True)
class StagedChanges:
    """A micro-batch's changes of a table, in a staging table of the database."""

    target: TargetTable
    """The table that the changes belong to."""
    staging: str
    """The name of the staging table in SQL."""
    tasks: Sequence[int] | None
    """The ids of the tasks whose rows count; None if all rows count."""
    clears: bool
    """True if the table's former rows are deleted first, all of them."""

    def with_parts(self, cursor: Cursor, table_index: int, moves: UniqueMoves | None) -> list[str]:
        """Return SQL statements, each as ``name AS (statement)`` for one WITH, that bring the table
        to the state after the last change of each key. Rows leave before any come, because the
        insert reads the results of the deletes. If ``clears``, all former rows leave. A table
        without a key gets all staged rows appended; ``clears`` does not count then.

        ``cursor``: reads the patterns of nulls in staged keys. The caller must hold the lock of the
        table (``TargetTable.lock``). ``table_index``: the table's index among those of the WITH,
        for unique names. ``moves``: the unique values that move between rows, None for none. Their
        columns in ``nulled`` must be null already (``null_moving_values``).
        """
        target, columns = self.target, names_as_list(self.target.columns)
        into = f"INSERT INTO {target.sql_name} ({columns}) SELECT {columns} FROM"
        if not target.layout.keys:
            return [f"came_{table_index} AS ({into} {self.staging} {self._where_clause})"]
        gone = [
            f"gone_{table_index}_{delete_index} AS "
            f"(DELETE FROM {target.sql_name} AS t {which} RETURNING 1)"
            for delete_index, which in enumerate(self._deletions(cursor, moves))
        ]
        keys = target.layout.keys
        values = [double_quoted(name) for name in target.columns if name not in keys]
        assigned = ", ".join(f"{value} = excluded.{value}" for value in values)
        # Reading the results of the deletes makes PostgreSQL delete first.
        first = "".join(
            f" AND (SELECT count(*) FROM gone_{table_index}_{delete_index}) >= 0"
            for delete_index in range(len(gone))
        )
        upsert = (
            f"{into} {self._last_changes} WHERE NOT c.{DELETED}{first} "
            f"ON CONFLICT ({names_as_list(keys)}) DO UPDATE SET {assigned}"
        )
        return [*gone, f"came_{table_index} AS ({upsert})"]

    def _deletions(self, cursor: Cursor, moves: UniqueMoves | None) -> list[str]:
        """Return the rest of each DELETE, behind the table's name: one for each pattern of nulls in
        the staged keys of which rows may leave. The list is empty if there are none. If ``clears``,
        it is one empty text, for all rows.

        ``moves``: the unique values that move between rows, None for none. Rows that lose such a
        value are deleted, too, unless it is set to null.
        """
        if self.clears:
            # Not a TRUNCATE, so that concurrent readers still see the rows.
            return [""]
        leaving, keys = f"c.{DELETED}", f"WHERE {DELETED}"
        if moves is not None and not moves.nulled:
            leaving, keys = f"(c.{DELETED} OR {moves.moves_condition})", ""
        return [
            f"USING {self._last_changes} WHERE {leaving} AND {self.target.key_condition(nulls)}"
            for nulls in self._null_patterns(cursor, keys)
        ]

    def null_moving_values(self, cursor: Cursor, moves: UniqueMoves) -> None:
        """Set the columns ``moves.nulled`` to null in rows of the table that are about to get
        another unique value. Rows that are about to be deleted keep theirs. The table must have a
        key, and ``moves.nulled`` a column.
        """
        assigned = ", ".join(f"{column} = NULL" for column in map(double_quoted, moves.nulled))
        for nulls in self._null_patterns(cursor, ""):
            cursor.execute(
                f"UPDATE {self.target.sql_name} AS t SET {assigned} FROM {self._last_changes} "
                f"WHERE NOT c.{DELETED} AND ({moves.moves_condition}) "
                f"AND {self.target.key_condition(nulls)}"
            )

    @property
    def _where_clause(self) -> str:
        """The SQL WHERE clause for the rows of ``tasks``, an attribute of this object. It is empty
        if ``tasks`` is None, so that all rows of the staging table count.
        """
        return "" if self.tasks is None else f"WHERE {tasks_condition(self.tasks)}"

    @property
    def _last_changes(self) -> str:
        """The last change of each key by ``_position``, as an SQL subquery named ``c`` with the
        columns of the staging table. Only rows of the tasks that count are read. A null key equals
        a null.
        """
        columns = self.target.columns
        texts = {name for name, c in columns.items() if c.type in ("text", "varchar")}
        # Bytewise order, which is faster than a language's.
        order = ", ".join(
            double_quoted(key) + (' COLLATE "C"' if key in texts else "")
            for key in self.target.layout.keys
        )
        return (
            f"(SELECT DISTINCT ON ({order}) * FROM {self.staging} {self._where_clause} "
            f"ORDER BY {order}, {POSITION} DESC) AS c"
        )

    def _null_patterns(self, cursor: Cursor, where: str) -> list[tuple[bool, ...]]:
        """Return the distinct patterns of nulls in the keys of the staging table: per pattern a
        flag for each key column, True for null. They have no order. The list is empty if there are
        no rows.

        ``where``: an SQL WHERE clause for the rows of the staging table, empty for all of them.
        Rows of all tasks are read, not of ``tasks`` alone.
        """
        null = ", ".join(f"{double_quoted(key)} IS NULL" for key in self.target.layout.keys)
        return list(
            cursor.execute(f"SELECT DISTINCT {null} FROM {self.staging} {where}").fetchall()
        )


def apply_changes(cursor: Cursor, changes: Sequence[StagedChanges]) -> None:
    """Bring tables to the state after the staged changes, by one statement that checks foreign keys
    at its end. So tables may refer to each other and to themselves in any way. Without changes do
    nothing.

    Unique indexes are checked row by row. If one refuses a row, the statement is repeated in a form
    in which values leave their rows before they come to others. Staging tables that tasks have
    filled are analyzed before.

    ``cursor``: in a transaction, which stays open. Raises ``TargetError`` if such values cannot
    move; errors of psycopg pass.
    """
    for staged in changes:
        if staged.tasks is not None:
            cursor.execute(f"ANALYZE {staged.staging}")
    _apply_in_savepoint(cursor, changes, {})


def _apply_in_savepoint(
    cursor: Cursor, changes: Sequence[StagedChanges], moves: Mapping[int, UniqueMoves]
) -> None:
    """Apply the changes in a savepoint. After a unique violation, find the values that move between
    rows of the refusing table, and try again with those moved first.

    ``moves``: the moves to make, by the index of the table in ``changes``. Raises psycopg's
    violation if there are no further moves to make, ``TargetError`` if unique values cannot move.
    """
    import psycopg

    try:
        with cursor.connection.transaction():
            _apply_statement(cursor, changes, moves)
    except (psycopg.errors.UniqueViolation, psycopg.errors.ExclusionViolation) as error:
        needed_moves = _moves_of_refused(cursor, changes, error.diag)
        if needed_moves.keys() <= moves.keys():
            raise
        _apply_in_savepoint(cursor, changes, {**moves, **needed_moves})


def _apply_statement(
    cursor: Cursor, changes: Sequence[StagedChanges], moves: Mapping[int, UniqueMoves]
) -> None:
    """Apply the staged changes of all tables by one statement. Before it, set moving values to null
    where ``moves`` says so. Without changes do nothing. Errors of psycopg pass.

    ``moves``: the unique values that move between rows, by the table's index in ``changes``; other
    tables move none.
    """
    parts: list[str] = []
    for table_index, staged in enumerate(changes):
        table_moves = moves.get(table_index)
        if table_moves is not None and table_moves.nulled:
            staged.null_moving_values(cursor, table_moves)
        parts += staged.with_parts(cursor, table_index, table_moves)
    if parts:
        cursor.execute(f"WITH {', '.join(parts)} SELECT 1")


def _moves_of_refused(
    cursor: Cursor, changes: Sequence[StagedChanges], refused: Any
) -> dict[int, UniqueMoves]:
    """Return the unique values that can move in the table that refused a row, by its index in
    ``changes``. The result is empty if that table has no such values, or no key.

    ``refused``: psycopg's diagnosis of the error (``error.diag``). If the refusing table is none of
    ``changes``, as a partition, all tables with a key are examined. Raises ``TargetError`` if
    values cannot move: foreign keys forbid deletes, and an index has no nullable column.
    """
    refusing_table = (refused.schema_name, refused.table_name)
    refusing_indices = [
        table_index
        for table_index, staged in enumerate(changes)
        if staged.target.qualified_name == refusing_table
    ]
    moves_by_table = {
        table_index: changes[table_index].target.unique_moves(cursor)
        for table_index in refusing_indices or range(len(changes))
        if changes[table_index].target.layout.keys
    }
    return {
        table_index: table_moves
        for table_index, table_moves in moves_by_table.items()
        if table_moves is not None
    }
