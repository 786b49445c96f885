"""A PostgreSQL table that a query writes, and which micro-batches it has: the SQL of it.

``dovetail_queries``, in the table's schema, has a row for each table and query with the number of
the last micro-batch, written in the transaction of the micro-batch's rows.
"""
# ruff: noqa: S608 -- names are quoted, values are parameters

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from dovetail.columns import DELETED, ORDER, POSITION
from dovetail.errors import TargetError
from dovetail.io.postgres_columns import differences
from dovetail.lookup.postgres_types import COLUMNS, StoreColumn

QUERIES = "dovetail_queries"
TASK = ORDER
"""Which task has copied a row into a staging table, under a name that no column of a user's has."""
NULLS_NOT_DISTINCT_SINCE = 150_000

_PLACE = """
SELECT nspname::text, relname::text, relkind, relpersistence FROM pg_class c
JOIN pg_namespace n ON n.oid = relnamespace WHERE c.oid = to_regclass(%s)
"""
# Those by which ON CONFLICT goes: without expressions and conditions, checked at once.
_UNIQUE = """
SELECT ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = indrelid
  AND attnum = ANY(indkey[0:indnkeyatts - 1])),
  COALESCE((to_jsonb(i) ->> 'indnullsnotdistinct')::boolean, false)
FROM pg_index i WHERE indrelid = %s::regclass AND indisunique AND indisvalid AND indimmediate
  AND indpred IS NULL AND indexprs IS NULL
"""
_LOOSELY_EQUAL = """
SELECT attname::text FROM pg_attribute JOIN pg_collation c ON c.oid = attcollation
WHERE attrelid = %s::regclass AND NOT collisdeterministic
"""


@dataclass(frozen=True)
class Layout:
    """What a query writes: columns with their types in PostgreSQL; ``keys``, empty for what is
    appended; ``nulls``: keys may have nulls in them.
    """

    title: str
    types: Mapping[str, str]
    keys: Sequence[str]
    nulls: bool


@dataclass(frozen=True)
class Target:
    """A table, and its columns."""

    layout: Layout
    schema: str
    name: str
    columns: Mapping[str, StoreColumn]

    @property
    def called(self) -> str:
        """The table in SQL."""
        return f"{quoted(self.schema)}.{quoted(self.name)}"

    def lock(self, cursor: Any, query: str) -> None:
        """Until the end of the transaction no other that writes the same is at work: of a table any
        query's, of what is appended this query's.
        """
        own = f"dovetail {self.called}{'' if self.layout.keys else f' {query}'}"
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [own])

    def batches(self, cursor: Any) -> dict[str, int]:
        """The last micro-batch of each query that writes the table."""
        asked = f"SELECT query_id, batch_id FROM {_queries(self.schema)} WHERE table_name = %s"
        return dict(cursor.execute(asked, [self.name]).fetchall())

    def take(self, cursor: Any, query: str) -> None:
        """From now on the table is this query's."""
        others = f"DELETE FROM {_queries(self.schema)} WHERE table_name = %s AND query_id <> %s"
        cursor.execute(others, [self.name, query])

    def record(self, cursor: Any, query: str, batch: int) -> None:
        """The table has this micro-batch."""
        cursor.execute(
            f"INSERT INTO {_queries(self.schema)} (table_name, query_id, batch_id) "
            "VALUES (%s, %s, %s) "
            "ON CONFLICT (table_name, query_id) DO UPDATE SET batch_id = excluded.batch_id",
            [self.name, query, batch],
        )

    def is_empty(self, cursor: Any) -> bool:
        """Whether the table has no rows."""
        return not cursor.execute(f"SELECT 1 FROM {self.called} LIMIT 1").fetchall()

    def clear(self, cursor: Any) -> None:
        """Delete all rows: unlike those of a TRUNCATE they stay for who reads meanwhile."""
        cursor.execute(f"DELETE FROM {self.called}")

    def staging(self, query: str) -> str:
        """A table that several tasks fill, in SQL."""
        own = blake2b(f"{self.name} {query}".encode(), digest_size=8).hexdigest()
        return f"{quoted(self.schema)}.dovetail_changes_{own}"

    def stage(self, cursor: Any, staging: str) -> None:
        """Make the table that several tasks fill, in place of one of an attempt before."""
        self.drop(cursor, staging)
        self._stage(cursor, f"UNLOGGED TABLE {staging}")

    def stage_here(self, cursor: Any) -> str:
        """A table of the transaction's own, in SQL."""
        self._stage(cursor, "TEMPORARY TABLE dovetail_changes ON COMMIT DROP")
        return "pg_temp.dovetail_changes"

    def _stage(self, cursor: Any, table: str) -> None:
        own = {TASK: "bigint"}
        if self.layout.keys:
            own |= {DELETED: "boolean", POSITION: "bigint"}
        added = ", ".join(f"NULL::{type_} AS {name}" for name, type_ in own.items())
        cursor.execute(
            f"CREATE {table} AS SELECT {_listed(self.columns)}, {added} "
            f"FROM {self.called} WITH NO DATA"
        )

    def drop(self, cursor: Any, staging: str) -> None:
        """Drop a table that tasks have filled."""
        cursor.execute(f"DROP TABLE IF EXISTS {staging}")

    def count(self, cursor: Any, staging: str, tasks: Sequence[int]) -> int:
        """How many rows of these tasks there are."""
        asked = f"SELECT count(*) FROM {staging} WHERE {_of(tasks)}"
        return int(cursor.execute(asked).fetchone()[0])

    def append(self, cursor: Any, staging: str, tasks: Sequence[int]) -> None:
        """Append the rows of these tasks."""
        columns = _listed(self.columns)
        cursor.execute(
            f"INSERT INTO {self.called} ({columns}) SELECT {columns} FROM {staging} "
            f"WHERE {_of(tasks)}"
        )

    def merge(self, cursor: Any, staging: str, tasks: Sequence[int] | None) -> None:
        """Bring the table to the state after the changes that are staged, by the last one of each
        key; ``tasks``: after those of these alone.
        """
        where = "" if tasks is None else f"WHERE {_of(tasks)}"
        if tasks is not None:
            cursor.execute(f"ANALYZE {staging}")
        texts = {name for name, c in self.columns.items() if c.type in ("text", "varchar")}
        # In the order of the bytes, which is faster than a language's.
        order = ", ".join(
            quoted(key) + (' COLLATE "C"' if key in texts else "") for key in self.layout.keys
        )
        last = (
            f"(SELECT DISTINCT ON ({order}) * FROM {staging} {where} "
            f"ORDER BY {order}, {POSITION} DESC) AS c"
        )
        for nulls in self._deleted(cursor, staging):
            cursor.execute(
                f"DELETE FROM {self.called} AS t USING {last} "
                f"WHERE c.{DELETED} AND {self._same(nulls)}"
            )
        columns = _listed(self.columns)
        values = [quoted(name) for name in self.columns if name not in self.layout.keys]
        assigned = ", ".join(f"{value} = excluded.{value}" for value in values)
        cursor.execute(
            f"INSERT INTO {self.called} ({columns}) SELECT {columns} FROM {last} "
            f"WHERE NOT c.{DELETED} "
            f"ON CONFLICT ({_listed(self.layout.keys)}) DO UPDATE SET {assigned}"
        )

    def _deleted(self, cursor: Any, staging: str) -> list[tuple[bool, ...]]:
        """In which columns the keys that are deleted have nulls. An index finds a null, and what
        equals a value, but not what is the one or the other.
        """
        null = ", ".join(f"{quoted(key)} IS NULL" for key in self.layout.keys)
        return list(
            cursor.execute(f"SELECT DISTINCT {null} FROM {staging} WHERE {DELETED}").fetchall()
        )

    def _same(self, nulls: Sequence[bool]) -> str:
        """That a row has the key of a change."""
        return " AND ".join(
            f"t.{key} IS NULL AND c.{key} IS NULL" if null else f"t.{key} = c.{key}"
            for key, null in zip(map(quoted, self.layout.keys), nulls, strict=True)
        )


def copy(cursor: Any, place: str, columns: Sequence[str], texts: Iterable[bytes]) -> None:
    """Append rows of these columns to a table."""
    statement = f"COPY {place} ({_listed(columns)}) FROM STDIN (FORMAT csv)"
    with cursor.copy(statement) as stream:
        for text in texts:
            stream.write(text)


def found(cursor: Any, layout: Layout, table: str) -> Target | None:
    """The table, if it is there. Raises ``TargetError`` where it does not fit the query."""
    called = ".".join(map(quoted, table.split(".")))
    place = cursor.execute(_PLACE, [called]).fetchone()
    if place is None:
        return None
    schema, name, kind, persistence = place
    if kind not in ("r", "p"):
        raise TargetError(layout.title, "it is no table", "Name a table; a view may read it")
    if persistence == "u":
        raise TargetError(
            layout.title,
            "the table is unlogged, so it would lose its rows in a crash of the server",
            f"ALTER TABLE {table} SET LOGGED",
        )
    full = f"{quoted(schema)}.{quoted(name)}"
    columns = {row[0]: StoreColumn(*row) for row in cursor.execute(COLUMNS, [full]).fetchall()}
    _refuse_columns(cursor, layout, full, columns)
    return Target(layout, schema, name, {name: columns[name] for name in layout.types})


def made(cursor: Any, layout: Layout, table: str) -> Target:
    """The table, made with the query's key."""
    columns = [f"{quoted(name)} {type_}" for name, type_ in layout.types.items()]
    if layout.keys and layout.nulls:
        if cursor.connection.info.server_version < NULLS_NOT_DISTINCT_SINCE:
            raise TargetError(
                layout.title,
                "keys may be null, and PostgreSQL has no such keys before version 15",
                "Put a value in their place before, for instance by F.coalesce",
            )
        columns.append(f"UNIQUE NULLS NOT DISTINCT ({_listed(layout.keys)})")
    elif layout.keys:
        columns.append(f"PRIMARY KEY ({_listed(layout.keys)})")
    called = ".".join(map(quoted, table.split(".")))
    cursor.execute(f"CREATE TABLE {called} ({', '.join(columns)})")
    target = found(cursor, layout, table)
    assert target is not None
    return target


def make_queries(cursor: Any, schema: str) -> None:
    """Make ``dovetail_queries``, if it is not there."""
    cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended('dovetail_queries', 0))")
    called = f"{quoted(schema)}.{QUERIES}"
    if cursor.execute("SELECT to_regclass(%s)", [called]).fetchone()[0] is None:
        cursor.execute(
            f"CREATE TABLE {called} (table_name text, query_id text, batch_id bigint NOT NULL, "
            "PRIMARY KEY (table_name, query_id))"
        )


def quoted(name: str) -> str:
    """A name in SQL."""
    return '"' + name.replace('"', '""') + '"'


def _refuse_columns(
    cursor: Any, layout: Layout, called: str, columns: Mapping[str, StoreColumn]
) -> None:
    problems = differences(columns, layout.types)
    if problems:
        raise TargetError(
            layout.title,
            "the table has other columns: " + ", ".join(problems),
            "ALTER the table, or choose another one",
        )
    if not layout.keys:
        return
    loose = {name for (name,) in cursor.execute(_LOOSELY_EQUAL, [called])} & {*layout.keys}
    if loose:
        raise TargetError(
            layout.title,
            f"by the collation of {', '.join(sorted(loose))} different keys are equal",
            'Give the columns one that is deterministic, such as "C"',
        )
    unique = cursor.execute(_UNIQUE, [called]).fetchall()
    if not any({*key} == {*layout.keys} and nulls >= layout.nulls for key, nulls in unique):
        nulls = " NULLS NOT DISTINCT" if layout.nulls else ""
        raise TargetError(
            layout.title,
            f"the table is not unique by its key ({', '.join(layout.keys)})"
            + (", in which nulls are equal" if layout.nulls else ""),
            f"ALTER TABLE … ADD UNIQUE{nulls} ({_listed(layout.keys)}), or choose another one",
        )


def _queries(schema: str) -> str:
    """``dovetail_queries`` in a statement with parameters."""
    return quoted(schema).replace("%", "%%") + f".{QUERIES}"


def _listed(names: Any) -> str:
    return ", ".join(map(quoted, names))


def _of(tasks: Sequence[int]) -> str:
    return f"{TASK} = ANY ('{{{','.join(map(str, tasks))}}}'::bigint[])"
