"""A PostgreSQL table that a query writes, and the micro-batches that it has, in SQL.

``dovetail_queries``, in the table's schema, has a row for each table and query with the id of the
last micro-batch. It is written in the transaction of the micro-batch's rows.
"""
# ruff: noqa: S608 -- names are quoted, values are parameters

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

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
# Columns that PostgreSQL fills itself, so that it refuses each row with a value in them.
_GENERATED_QUERY = """
SELECT attname::text FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0
AND (attidentity = 'a' OR attgenerated <> '')
"""
# The files of a table and its partitions, which TRUNCATE and CREATE make anew, and the age of the
# youngest change of the table in the catalog, in transactions.
_STORAGE_QUERY = """
SELECT string_agg(pg_relation_filenode(c.oid)::text, ' ' ORDER BY c.oid), min(age(c.xmin))
FROM pg_class c WHERE c.oid = %(table)s::regclass
  OR c.oid IN (SELECT relid FROM pg_partition_tree(%(table)s::regclass))
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

    def storage_files(self, cursor: Cursor) -> str:
        """Return the numbers of the files with the rows of the table and of its partitions. They
        change by ``TRUNCATE``, where the table is dropped and created again, and where PostgreSQL
        rewrites it. The result is empty for a partitioned table without partitions.
        """
        files, _ = cursor.execute(_STORAGE_QUERY, {"table": self.sql_name}).fetchone()
        return files or ""

    def is_emptied_since(self, cursor: Cursor, query: str) -> bool:
        """Return True if the table has no rows, and was changed after the last micro-batch of the
        query with the id ``query``. The change is that the table or one of its partitions was
        created, truncated or altered. False if the query has not written the table.
        ``dovetail_queries`` must exist.
        """
        row = cursor.execute(
            f"SELECT age(xmin) FROM {_queries_name(self.schema)} "
            "WHERE table_name = %s AND query_id = %s",
            [self.name, query],
        ).fetchone()
        _, changed_age = cursor.execute(_STORAGE_QUERY, {"table": self.sql_name}).fetchone()
        return row is not None and changed_age < row[0] and self.is_empty(cursor)

    def lock_columns(self, cursor: Cursor) -> None:
        """Keep others from altering the table until the end of the transaction. Raises
        ``TargetError`` if columns have got types that cannot store each value of the query's.
        """
        cursor.execute(f"LOCK TABLE ONLY {self.sql_name} IN ROW EXCLUSIVE MODE")
        present = _columns_of(cursor, self.sql_name)
        wanted = {name: type_ for name, type_ in self.layout.types.items() if name in present}
        misfits = column_differences({name: present[name] for name in wanted}, wanted)
        if misfits:
            raise _other_columns_error(self.layout.title, misfits)

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
            f"CREATE {table} AS SELECT {names_as_list(self.columns)}, {added} "
            f"FROM {self.sql_name} WITH NO DATA"
        )

    def drop_staging(self, cursor: Cursor, staging: str) -> None:
        """Drop the staging table named ``staging``, in SQL, if it exists."""
        cursor.execute(f"DROP TABLE IF EXISTS {staging}")

    def count_staged(self, cursor: Cursor, staging: str, tasks: Sequence[int]) -> int:
        """Return how many rows of the table ``staging``, a name in SQL, were copied by the tasks
        with the ids ``tasks``. It is 0 without tasks.
        """
        query = f"SELECT count(*) FROM {staging} WHERE {tasks_condition(tasks)}"
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
    statement = f"COPY {table} ({names_as_list(columns)}) FROM STDIN (FORMAT csv)"
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
    columns = _columns_of(cursor, full)
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
        columns.append(f"UNIQUE NULLS NOT DISTINCT ({names_as_list(layout.keys)})")
    elif layout.keys:
        columns.append(f"PRIMARY KEY ({names_as_list(layout.keys)})")
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
    """Raise ``TargetError`` if the columns of a table do not fit ``layout``, or if PostgreSQL fills
    one of them itself. With a key, also if the collations of key columns are not deterministic, or
    no usable unique index has exactly the key's columns. A usable one is valid, checked at once,
    and without conditions and expressions. For keys that may be null it also takes nulls as equal.

    ``table``: the table's name in SQL. ``columns``: the columns that it has, by name.
    """
    problems = column_differences(columns, layout.types)
    if problems:
        raise _other_columns_error(layout.title, problems)
    generated = [name for (name,) in cursor.execute(_GENERATED_QUERY, [table]).fetchall()]
    if generated:
        raise TargetError(
            layout.title,
            f"PostgreSQL itself fills the column {', '.join(generated)}, and takes no values",
            f"ALTER TABLE … ALTER {double_quoted(generated[0])} SET GENERATED BY DEFAULT for an "
            "identity, DROP EXPRESSION for an expression",
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
            f"ALTER TABLE … ADD UNIQUE{nulls} ({names_as_list(layout.keys)}), "
            "or choose another one",
        )


def _columns_of(cursor: Cursor, table: str) -> dict[str, StoreColumn]:
    """Return the columns that a table has, by name. ``table``: its name in SQL."""
    return {row[0]: StoreColumn(*row) for row in cursor.execute(COLUMNS_QUERY, [table]).fetchall()}


def _other_columns_error(title: str, differences: Sequence[str]) -> TargetError:
    """Return, not raise, the error for a table whose columns do not fit. ``title``: the sink's
    name. ``differences``: those of ``column_differences``, at least one.
    """
    return TargetError(
        title,
        "the table has other columns: " + ", ".join(differences),
        "ALTER the table, or choose another one",
    )


def _queries_name(schema: str) -> str:
    """Return the name of ``dovetail_queries`` of ``schema``, which is unquoted, in SQL for a
    statement with parameters: percent signs are doubled.
    """
    return double_quoted(schema).replace("%", "%%") + f".{QUERIES_TABLE}"


def names_as_list(names: Iterable[str]) -> str:
    """Return column names as an SQL list: quoted, with commas between them; empty for none.
    ``names``: an iterable of unquoted names.
    """
    return ", ".join(map(double_quoted, names))


def tasks_condition(tasks: Sequence[int]) -> str:
    """Return the SQL condition that a staged row is of one of the tasks with the ids ``tasks``;
    false for no tasks.
    """
    return f"{TASK_COLUMN} = ANY ('{{{','.join(map(str, tasks))}}}'::bigint[])"
