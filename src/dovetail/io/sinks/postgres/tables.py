"""A PostgreSQL table that a query writes, and the micro-batches that it has, in SQL.

``dovetail_queries``, in the table's schema, has a row for each table and query with the id of the
last micro-batch. It is written in the transaction of the micro-batch's rows.
"""
# ruff: noqa: S608 -- names are quoted, values are parameters

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from dovetail.base.columns import DELETED, ORDER, POSITION, double_quoted
from dovetail.errors import TargetError
from dovetail.io.sinks.postgres.columns import column_differences
from dovetail.io.sinks.postgres.transactions import Cursor
from dovetail.lookup_sources.postgres_types import COLUMNS_QUERY, StoreColumn

QUERIES_TABLE = "dovetail_queries"
TASK_COLUMN = ORDER
"""The column of a staging table with the task that copied a row. No column of a user has this
name."""
NULLS_NOT_DISTINCT_SINCE = 150_000
"""The first version of PostgreSQL, as its protocol numbers it, with unique keys in which nulls are
equal.
"""

_TABLE_NAME_QUERY = """
SELECT nspname::text, relname::text, relkind, relpersistence FROM pg_class c
JOIN pg_namespace n ON n.oid = relnamespace WHERE c.oid = to_regclass(%s)
"""
# Unique indexes that ON CONFLICT can use: no expressions or conditions, checked immediately.
_UNIQUE_INDEXES_QUERY = """
SELECT ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = indrelid
  AND attnum = ANY(indkey[0:indnkeyatts - 1])),
  COALESCE((to_jsonb(i) ->> 'indnullsnotdistinct')::boolean, false)
FROM pg_index i WHERE indrelid = %s::regclass AND indisunique AND indisvalid AND indimmediate
  AND indpred IS NULL AND indexprs IS NULL
"""
# Indexes that refuse a row immediately, with all columns that they read.
_REFUSING_INDEXES_QUERY = """
SELECT indexrelid::regclass::text, ARRAY(SELECT attname::text FROM pg_attribute
  WHERE attrelid = indrelid AND (attnum = ANY(indkey[0:indnkeyatts - 1]) OR EXISTS (
    SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = indexrelid
    AND d.refclassid = 'pg_class'::regclass AND d.refobjid = indrelid AND d.refobjsubid = attnum)))
FROM pg_index WHERE indrelid = %s::regclass AND (indisunique OR indisexclusion) AND indimmediate
"""
# Nullable columns in which a null conflicts with no index and no foreign key.
_NULLABLE_COLUMNS_QUERY = """
SELECT attname::text FROM pg_attribute WHERE attrelid = %s::regclass AND NOT attnotnull
AND NOT EXISTS (SELECT FROM pg_index i WHERE indrelid = attrelid AND attnum = ANY(indkey)
  AND (to_jsonb(i) ->> 'indnullsnotdistinct')::boolean)
AND NOT EXISTS (SELECT FROM pg_constraint WHERE contype = 'f' AND confrelid = attrelid
  AND attnum = ANY(confkey))
"""
# Foreign keys to this table that do more than refuse, with the columns that they refer to.
_ACTING_KEYS_QUERY = """
SELECT conname::text, conrelid::regclass::text, confdeltype <> 'a',
  ARRAY(SELECT attname::text FROM pg_attribute
    WHERE attrelid = confrelid AND attnum = ANY(confkey))
FROM pg_constraint WHERE contype = 'f' AND confrelid = %s::regclass
AND (confdeltype <> 'a' OR confupdtype <> 'a')
"""
_FOREIGN_KEY_QUERY = """
SELECT conname::text, conrelid::regclass::text, confrelid::regclass::text FROM pg_constraint
WHERE contype = 'f' AND (conrelid = %s::regclass AND confrelid = %s::regclass
  OR confrelid = %s::regclass AND conrelid = %s::regclass)
"""
_LOOSE_COLLATIONS_QUERY = """
SELECT attname::text FROM pg_attribute JOIN pg_collation c ON c.oid = attcollation
WHERE attrelid = %s::regclass AND NOT collisdeterministic
"""


@dataclass(frozen=True)
class TableShape:
    """The columns and the key that a query gives its table."""

    title: str
    """The sink's name in errors, without secrets."""
    types: Mapping[str, str]
    """The columns' types in PostgreSQL, by unquoted name, in order."""
    keys: Sequence[str]
    """The key columns; empty if the table is appended to."""
    nulls: bool
    """True if keys may have nulls in them."""


@dataclass(frozen=True)
class TargetTable:
    """A PostgreSQL table that exists and that a query writes, with its columns.

    Each ``cursor`` is one of psycopg, in a transaction. Errors of psycopg pass.
    """

    layout: TableShape
    """The columns and the key that the query gives the table."""
    schema: str
    """The name of the table's schema, unquoted."""
    name: str
    """The table's name without its schema, unquoted."""
    columns: Mapping[str, StoreColumn]
    """The columns as the database has them, by name, in the order of ``layout.types``."""

    @property
    def qualified_name(self) -> tuple[str, str]:
        """The names of the schema and of the table, unquoted. They identify the table within the
        database.
        """
        return self.schema, self.name

    @property
    def sql_name(self) -> str:
        """The table's name in SQL: schema and name, quoted."""
        return f"{double_quoted(self.schema)}.{double_quoted(self.name)}"

    def lock(self, cursor: Cursor, query: str) -> None:
        """Take a lock that other writers of this library respect, and hold it until the end of the
        transaction. Wait as long as another transaction holds it.

        For a table with a key, the lock keeps out all queries. For an appended table, it only keeps
        out another run of the query with the id ``query``.
        """
        lock_name = f"dovetail {self.sql_name}{'' if self.layout.keys else f' {query}'}"
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [lock_name])

    def last_batches(self, cursor: Cursor) -> dict[str, int]:
        """Return the id of the last micro-batch of each query that has written the table, by the
        query's id. The result is empty before the first one. It is read from ``dovetail_queries``,
        which must exist.
        """
        query = f"SELECT query_id, batch_id FROM {_queries_name(self.schema)} WHERE table_name = %s"
        return dict(cursor.execute(query, [self.name]).fetchall())

    def remove_other_queries(self, cursor: Cursor, query: str) -> None:
        """Delete this table's rows in ``dovetail_queries``, but not that of the query with the id
        ``query``. That query then owns the table alone.
        """
        others = (
            f"DELETE FROM {_queries_name(self.schema)} WHERE table_name = %s AND query_id <> %s"
        )
        cursor.execute(others, [self.name, query])

    def record_batch(self, cursor: Cursor, query: str, batch: int) -> None:
        """Write to ``dovetail_queries`` that the micro-batch with the id ``batch`` is the table's
        last one of the query with the id ``query``. A former id is overwritten.
        """
        cursor.execute(
            f"INSERT INTO {_queries_name(self.schema)} (table_name, query_id, batch_id) "
            "VALUES (%s, %s, %s) "
            "ON CONFLICT (table_name, query_id) DO UPDATE SET batch_id = excluded.batch_id",
            [self.name, query, batch],
        )

    def is_empty(self, cursor: Cursor) -> bool:
        """Return True if the table has no rows."""
        return not cursor.execute(f"SELECT 1 FROM {self.sql_name} LIMIT 1").fetchall()

    def staging_name(self, query: str) -> str:
        """Return the name, in SQL, of the unlogged staging table that the tasks of the query with
        the id ``query`` fill. It is ``dovetail_changes_<digest>`` in the table's schema, which is
        quoted.

        The digest, 16 hexadecimal digits, is that of the table's name and ``query``. So the name is
        short enough for PostgreSQL, is the same for the same table and query, and differs for
        others.
        """
        digest = blake2b(f"{self.name} {query}".encode(), digest_size=8).hexdigest()
        return f"{double_quoted(self.schema)}.dovetail_changes_{digest}"

    def create_staging(self, cursor: Cursor, staging: str) -> None:
        """Create the unlogged staging table named ``staging``, in SQL, without rows. Tasks fill it
        from connections of their own. Drop one that a former attempt has left.

        Its columns are those of the table, then the task's id and, with a key, ``_deleted`` and
        ``_position``.
        """
        self.drop_staging(cursor, staging)
        self._create_staging_table(cursor, f"UNLOGGED TABLE {staging}")

    def create_temporary_staging(self, cursor: Cursor, table_index: int) -> str:
        """Create a staging table without rows for this transaction alone, and return its name in
        SQL. ``table_index``: an index that no other staging table of the transaction has.

        The columns are those of the table, then the task's id and, with a key, ``_deleted`` and
        ``_position``.
        """
        self._create_staging_table(
            cursor, f"TEMPORARY TABLE dovetail_changes_{table_index} ON COMMIT DROP"
        )
        return f"pg_temp.dovetail_changes_{table_index}"

    def _create_staging_table(self, cursor: Cursor, table: str) -> None:
        """Create a staging table without rows. Its columns are those of the table, then ``_order``
        for the task's id (bigint) and, with a key, ``_deleted`` (boolean) and ``_position``
        (bigint). ``table``: the kind and the name of the staging table in SQL.
        """
        added_types = {TASK_COLUMN: "bigint"}
        if self.layout.keys:
            added_types |= {DELETED: "boolean", POSITION: "bigint"}
        added = ", ".join(f"NULL::{type_} AS {name}" for name, type_ in added_types.items())
        cursor.execute(
            f"CREATE {table} AS SELECT {_names_as_list(self.columns)}, {added} "
            f"FROM {self.sql_name} WITH NO DATA"
        )

    def drop_staging(self, cursor: Cursor, staging: str) -> None:
        """Drop the staging table named ``staging``, in SQL, if it exists."""
        cursor.execute(f"DROP TABLE IF EXISTS {staging}")

    def count_staged(self, cursor: Cursor, staging: str, tasks: Sequence[int]) -> int:
        """Return how many rows of the table ``staging``, a name in SQL, were copied by the tasks
        with the ids ``tasks``. It is 0 without tasks.
        """
        query = f"SELECT count(*) FROM {staging} WHERE {_tasks_condition(tasks)}"
        return int(cursor.execute(query).fetchone()[0])

    def unique_moves(self, cursor: Cursor) -> UniqueMoves | None:
        """Return the columns whose unique values may move from one row to another within a
        micro-batch: columns besides the key's of indexes that refuse a row at once. These are
        unique indexes and exclusion constraints that are not ``DEFERRABLE``. Return None if there
        are no such columns.

        Rows that lose such a value are best deleted and inserted; then ``nulled`` of the result is
        empty. A foreign key to the table rules this out by an action, such as ``CASCADE``, on a
        delete. So it does by one on an update, if it refers to one of these columns. Then
        ``nulled`` has those of the columns that may be null for a while. Raises ``TargetError`` if
        one of the indexes has no column that may.
        """
        refusing = [
            (index, {*columns} - {*self.layout.keys})
            for index, columns in cursor.execute(
                _REFUSING_INDEXES_QUERY, [self.sql_name]
            ).fetchall()
        ]
        refusing = [(index, columns) for index, columns in refusing if columns]
        if not refusing:
            return None
        moving = set().union(*(columns for _, columns in refusing))
        acting = [
            (name, table)
            for name, table, deletes, columns in cursor.execute(
                _ACTING_KEYS_QUERY, [self.sql_name]
            ).fetchall()
            if deletes or moving & {*columns}
        ]
        if not acting:
            return UniqueMoves(sorted(moving), nulled=())
        nullable = {
            name for (name,) in cursor.execute(_NULLABLE_COLUMNS_QUERY, [self.sql_name]).fetchall()
        }
        for index, columns in refusing:
            if not columns & nullable:
                name, table = acting[0]
                raise TargetError(
                    self.layout.title,
                    f"values of the unique index {index} move between rows in one micro-batch. The "
                    f"rows cannot be deleted and inserted, by foreign key {name} of {table}, and "
                    f"their values cannot be null meanwhile",
                    "Make the unique constraint DEFERRABLE, or its columns nullable, or the "
                    "foreign key ON DELETE NO ACTION ON UPDATE NO ACTION",
                )
        return UniqueMoves(sorted(moving), sorted(moving & nullable))

    def key_condition(self, nulls: Sequence[bool]) -> str:
        """Return the SQL condition that row ``t`` of the table has the key of row ``c`` of a
        staging table.

        ``nulls``: a flag per key column; True if the column must be null in both, False if it must
        be equal.
        """
        return " AND ".join(
            f"t.{key} IS NULL AND c.{key} IS NULL" if null else f"t.{key} = c.{key}"
            for key, null in zip(map(double_quoted, self.layout.keys), nulls, strict=True)
        )


@dataclass(frozen=True)
class UniqueMoves:
    """The way in which unique values move from row to row within a micro-batch."""

    columns: Sequence[str]
    """The columns of unique indexes besides the key's. Rows in which one of them changes are
    deleted and inserted, unless there are ``nulled`` columns.
    """
    nulled: Sequence[str]
    """The nullable columns that are set to null first, so that such rows can be updated instead.
    Empty if they are deleted and inserted.
    """

    @property
    def moves_condition(self) -> str:
        """The SQL condition that staged change ``c`` gives row ``t`` of the table another value in
        one of ``columns``. Values are compared as texts, for not every type has an equality. Two
        nulls are equal.
        """
        return " OR ".join(
            f"t.{column}::text IS DISTINCT FROM c.{column}::text"
            for column in map(double_quoted, self.columns)
        )


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
        target, columns = self.target, _names_as_list(self.target.columns)
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
            f"ON CONFLICT ({_names_as_list(keys)}) DO UPDATE SET {assigned}"
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
        return "" if self.tasks is None else f"WHERE {_tasks_condition(self.tasks)}"

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


def find_foreign_key(
    cursor: Cursor, table: TargetTable, other: TargetTable
) -> tuple[str, str, str] | None:
    """Return a foreign key between ``table`` and ``other``, in either direction: its name, the
    table that has it, and the table that it refers to, all as SQL. None if there is none. Of
    several, return any.
    """
    sql_names = [table.sql_name, other.sql_name, table.sql_name, other.sql_name]
    between: tuple[str, str, str] | None = cursor.execute(_FOREIGN_KEY_QUERY, sql_names).fetchone()
    return between


def copy_texts(cursor: Cursor, table: str, columns: Sequence[str], texts: Iterable[bytes]) -> None:
    """Append rows to a table by COPY, in the transaction of ``cursor``.

    ``table``: its name in SQL. ``columns``: the names of the columns, unquoted, in the order of the
    texts. ``texts``: the rows as CSV without a header, each text of whole rows; none append
    nothing. Errors of psycopg pass.
    """
    statement = f"COPY {table} ({_names_as_list(columns)}) FROM STDIN (FORMAT csv)"
    with cursor.copy(statement) as stream:
        for text in texts:
            stream.write(text)


def find_table(cursor: Cursor, layout: TableShape, table: str) -> TargetTable | None:
    """Return the table named ``table`` with its columns in the order of ``layout``, None if it is
    missing.

    ``table``: the name, unquoted, perhaps with a schema and a dot. ``layout``: the query's columns
    and key. Raises ``TargetError`` for a view, for an unlogged table, and for one whose columns,
    collations or unique indexes do not fit ``layout``.
    """
    sql_name = ".".join(map(double_quoted, table.split(".")))
    catalog_row = cursor.execute(_TABLE_NAME_QUERY, [sql_name]).fetchone()
    if catalog_row is None:
        return None
    schema, name, kind, persistence = catalog_row
    if kind not in ("r", "p"):
        raise TargetError(layout.title, "it is no table", "Name a table; a view may read it")
    if persistence == "u":
        raise TargetError(
            layout.title,
            "the table is unlogged, so it would lose its rows in a crash of the server",
            f"ALTER TABLE {table} SET LOGGED",
        )
    full = f"{double_quoted(schema)}.{double_quoted(name)}"
    columns = {
        row[0]: StoreColumn(*row) for row in cursor.execute(COLUMNS_QUERY, [full]).fetchall()
    }
    _refuse_columns(cursor, layout, full, columns)
    return TargetTable(layout, schema, name, {name: columns[name] for name in layout.types})


def create_table(cursor: Cursor, layout: TableShape, table: str) -> TargetTable:
    """Create the table named ``table`` with the query's columns and key, and return it. The key is
    the primary key or, if it may have nulls, ``UNIQUE NULLS NOT DISTINCT``. A layout without keys
    gives a table without a key.

    ``table``: the name, unquoted, perhaps with a schema and a dot. Raises ``TargetError`` for keys
    that may be null before PostgreSQL 15. Errors of psycopg pass, such as that of a missing schema.
    """
    columns = [f"{double_quoted(name)} {type_}" for name, type_ in layout.types.items()]
    if layout.keys and layout.nulls:
        if cursor.connection.info.server_version < NULLS_NOT_DISTINCT_SINCE:
            raise TargetError(
                layout.title,
                "keys may be null, and PostgreSQL has no such keys before version 15",
                "Put a value in their place before, for instance by F.coalesce",
            )
        columns.append(f"UNIQUE NULLS NOT DISTINCT ({_names_as_list(layout.keys)})")
    elif layout.keys:
        columns.append(f"PRIMARY KEY ({_names_as_list(layout.keys)})")
    sql_name = ".".join(map(double_quoted, table.split(".")))
    cursor.execute(f"CREATE TABLE {sql_name} ({', '.join(columns)})")
    target = find_table(cursor, layout, table)
    assert target is not None
    return target


def create_queries_table(cursor: Cursor, schema: str) -> None:
    """Create the table ``dovetail_queries`` in ``schema``, unquoted, if it is missing:
    ``table_name``, ``query_id`` and ``batch_id``, with the first two as its key. Other transactions
    that call this wait until this one ends.
    """
    cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended('dovetail_queries', 0))")
    sql_name = f"{double_quoted(schema)}.{QUERIES_TABLE}"
    if cursor.execute("SELECT to_regclass(%s)", [sql_name]).fetchone()[0] is None:
        cursor.execute(
            f"CREATE TABLE {sql_name} (table_name text, query_id text, batch_id bigint NOT NULL, "
            "PRIMARY KEY (table_name, query_id))"
        )


def _refuse_columns(
    cursor: Cursor, layout: TableShape, table: str, columns: Mapping[str, StoreColumn]
) -> None:
    """Raise ``TargetError`` if the columns of a table do not fit ``layout``. With a key, also if
    the collations of key columns are not deterministic, or no usable unique index has exactly the
    key's columns. A usable one is valid, checked at once, and without conditions and expressions.
    For keys that may be null it also takes nulls as equal.

    ``table``: the table's name in SQL. ``columns``: the columns that it has, by name.
    """
    problems = column_differences(columns, layout.types)
    if problems:
        raise TargetError(
            layout.title,
            "the table has other columns: " + ", ".join(problems),
            "ALTER the table, or choose another one",
        )
    if not layout.keys:
        return
    loose = {name for (name,) in cursor.execute(_LOOSE_COLLATIONS_QUERY, [table])} & {*layout.keys}
    if loose:
        raise TargetError(
            layout.title,
            f"by the collation of {', '.join(sorted(loose))} different keys are equal",
            'Give the columns one that is deterministic, such as "C"',
        )
    unique = cursor.execute(_UNIQUE_INDEXES_QUERY, [table]).fetchall()
    if not any({*key} == {*layout.keys} and nulls >= layout.nulls for key, nulls in unique):
        nulls = " NULLS NOT DISTINCT" if layout.nulls else ""
        raise TargetError(
            layout.title,
            f"the table is not unique by its key ({', '.join(layout.keys)})"
            + (", in which nulls are equal" if layout.nulls else ""),
            f"ALTER TABLE … ADD UNIQUE{nulls} ({_names_as_list(layout.keys)}), "
            "or choose another one",
        )


def _queries_name(schema: str) -> str:
    """Return the name of ``dovetail_queries`` of ``schema``, which is unquoted, in SQL for a
    statement with parameters: percent signs are doubled.
    """
    return double_quoted(schema).replace("%", "%%") + f".{QUERIES_TABLE}"


def _names_as_list(names: Iterable[str]) -> str:
    """Return column names as an SQL list: quoted, with commas between them; empty for none.
    ``names``: an iterable of unquoted names.
    """
    return ", ".join(map(double_quoted, names))


def _tasks_condition(tasks: Sequence[int]) -> str:
    """Return the SQL condition that a staged row is of one of the tasks with the ids ``tasks``;
    false for no tasks.
    """
    return f"{TASK_COLUMN} = ANY ('{{{','.join(map(str, tasks))}}}'::bigint[])"
