"""Changes of several PostgreSQL tables in one transaction: what a micro-batch leaves satisfies
unique indexes and foreign keys, whatever the states in between would have been.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from bench.parameters import slow_after
from postgres_server import everything

from dovetail.errors import TargetError
from dovetail.io.sinks.postgres.columns import csv_of
from dovetail.io.sinks.postgres.sink import PostgresSink
from dovetail.io.sinks.postgres.staged_changes import StagedChanges, apply_changes
from dovetail.io.sinks.postgres.tables import TableShape, copy_texts, find_table
from dovetail.io.sinks.postgres.transactions import ServerConnection

psycopg = pytest.importorskip("psycopg")

Rows = Mapping[int, tuple[Any, ...] | None]
"""The values of keys; None for a delete."""

TYPES = {
    "parents": {"id": "bigint", "u": "text", "w": "bigint", "boss": "bigint"},
    "children": {"id": "bigint", "parent": "bigint", "v": "text"},
}
REFERENCES = ("", "ON DELETE CASCADE", "ON DELETE RESTRICT", "ON DELETE SET NULL", "DEFERRABLE")
UNIQUE = (
    "CREATE UNIQUE INDEX own ON parents (u)",
    "CREATE UNIQUE INDEX own ON parents (lower(u)) WHERE w > 0",
    "CREATE UNIQUE INDEX own ON parents (w, u)",
    "ALTER TABLE parents ADD EXCLUDE (u WITH =)",
)


def change(dsn: str, *tables: tuple[str, Rows]) -> None:
    """Apply changes of tables, each under its name, as a micro-batch."""
    with ServerConnection("to_postgres", dsn, 10.0).transaction() as cursor:
        changes = []
        for number, (name, rows) in enumerate(tables):
            target = find_table(cursor, TableShape(name, TYPES[name], ["id"], False), name)
            assert target is not None
            staging = target.create_temporary_staging(cursor, number)
            copy_texts(cursor, staging, [*TYPES[name], "_deleted", "_position"], [_csv(name, rows)])
            changes.append(StagedChanges(target, staging, None, clears=False))
        apply_changes(cursor, changes)


def _csv(name: str, rows: Rows) -> bytes:
    width = len(TYPES[name]) - 1
    records = [
        (key, *(values or (None,) * width), values is None, place)
        for place, (key, values) in enumerate(rows.items())
    ]
    types = [pa.string() if t == "text" else pa.int64() for t in TYPES[name].values()]
    columns = zip(*records, strict=True)
    arrays = [
        pa.array(column, type_)
        for column, type_ in zip(columns, [*types, pa.bool_(), pa.int64()], strict=True)
    ]
    return csv_of(pa.table(arrays, [*map(str, range(len(arrays)))]))


def contents(dsn: str, name: str) -> Rows:
    with psycopg.connect(dsn) as connection:
        return {key: tuple(values) for key, *values in connection.execute(f"SELECT * FROM {name}")}


def sql(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def difference(before: Rows, after: Rows, shuffled: random.Random) -> Rows:
    """What leads from the rows of one state to those of another, in any order."""
    keys = sorted(key for key in {*before, *after} if before.get(key) != after.get(key))
    shuffled.shuffle(keys)
    return {key: after.get(key) for key in keys}


def states(chance: random.Random) -> Iterator[tuple[Rows, Rows]]:
    """Random states of the two tables; each one satisfies all constraints."""
    while True:
        parents = chance.sample(range(6), chance.randint(1, 6))
        names = chance.sample("abcdef", len(parents))
        bosses = [chance.choice([None, *parents]) for _ in parents]
        yield (
            {
                key: (name, chance.randint(0, 2), boss)
                for key, name, boss in zip(parents, names, bosses, strict=True)
            },
            {
                key: (chance.choice(parents), chance.choice("xyz"))
                for key in chance.sample(range(6), chance.randint(0, 6))
            },
        )


@pytest.mark.parametrize(("unique", "reference"), slow_after(5, product(UNIQUE, REFERENCES)))
def test_tables_become_what_a_micro_batch_leaves(
    database: str, unique: str, reference: str
) -> None:
    chance = random.Random(f"{reference} {unique}")
    sql(
        database,
        "CREATE TABLE parents (id bigint PRIMARY KEY, u text, w bigint, "
        f"boss bigint REFERENCES parents {reference})",
        "CREATE TABLE children (id bigint PRIMARY KEY, "
        f"parent bigint REFERENCES parents {reference}, v text)",
        unique,
    )
    parents: Rows = {}
    children: Rows = {}
    for _, (its, theirs) in zip(range(12), states(chance), strict=False):
        tables = [
            ("parents", difference(parents, its, chance)),
            ("children", difference(children, theirs, chance)),
        ]
        chance.shuffle(tables)
        change(database, *(table for table in tables if table[1]))
        parents, children = its, theirs
        assert contents(database, "parents") == parents
        assert contents(database, "children") == children


def test_tables_may_refer_to_each_other(database: str) -> None:
    sql(
        database,
        "CREATE TABLE parents (id bigint PRIMARY KEY, u text, w bigint, boss bigint)",
        "CREATE TABLE children (id bigint PRIMARY KEY, parent bigint REFERENCES parents, v text)",
        "ALTER TABLE parents ADD FOREIGN KEY (boss) REFERENCES children",
    )
    change(database, ("parents", {1: ("a", 0, 10)}), ("children", {10: (1, "x")}))
    change(
        database,
        ("children", {10: None, 11: (2, "y")}),
        ("parents", {1: None, 2: ("a", 0, 11)}),
    )
    assert contents(database, "parents") == {2: ("a", 0, 11)}
    assert contents(database, "children") == {11: (2, "y")}


def test_rows_that_only_change_are_updated_where_a_delete_would_act(database: str) -> None:
    """Others refer to them, and are not a part of the micro-batch."""
    sql(
        database,
        "CREATE TABLE parents (id bigint PRIMARY KEY, u text UNIQUE, w bigint, boss bigint)",
        "CREATE TABLE others (parent bigint REFERENCES parents ON DELETE CASCADE)",
    )
    change(database, ("parents", {1: ("a", 0, None), 2: ("b", 0, None)}))
    sql(database, "INSERT INTO others VALUES (1), (2)")
    change(database, ("parents", {1: ("b", 0, None), 2: ("a", 0, None)}))
    assert contents(database, "parents") == {1: ("b", 0, None), 2: ("a", 0, None)}
    assert contents(database, "others") == {1: (), 2: ()}


def test_values_that_cannot_move_are_refused_with_both_constraints(database: str) -> None:
    sql(
        database,
        "CREATE TABLE parents (id bigint PRIMARY KEY, u text NOT NULL CONSTRAINT own UNIQUE, "
        "w bigint, boss bigint)",
        "CREATE TABLE others (parent bigint CONSTRAINT kin REFERENCES parents ON DELETE CASCADE)",
    )
    swap = ("parents", {1: ("b", 0, None), 2: ("a", 0, None)})
    change(database, ("parents", {1: ("a", 0, None), 2: ("b", 0, None)}))
    with pytest.raises(TargetError) as refused:
        change(database, swap)
    for part in ("parents", "unique index own", "foreign key kin of others", "DEFERRABLE"):
        assert part in everything(refused.value)
    sql(
        database,
        "ALTER TABLE parents DROP CONSTRAINT own",
        "ALTER TABLE parents ADD CONSTRAINT own UNIQUE (u) DEFERRABLE",
    )
    change(database, swap)
    assert contents(database, "parents") == dict([swap])["parents"]


@pytest.mark.parametrize(
    ("tables", "parts"),
    [
        ([("parents", {1: ("a", 0, None), 2: ("a", 0, None)})], ["own", "Key (u)=(a)"]),
        ([("children", {1: (7, "x")})], ["children_parent_fkey", "(parent)=(7)", "dt.run"]),
    ],
)
def test_what_no_order_satisfies_is_named(
    database: str, tables: Sequence[tuple[str, Rows]], parts: Sequence[str]
) -> None:
    sql(
        database,
        "CREATE TABLE parents (id bigint PRIMARY KEY, u text CONSTRAINT own UNIQUE, w bigint, "
        "boss bigint)",
        "CREATE TABLE children (id bigint PRIMARY KEY, parent bigint REFERENCES parents, v text)",
    )
    with pytest.raises(TargetError) as refused:
        change(database, *tables)
    for part in parts:
        assert part in everything(refused.value)
    assert contents(database, "parents") == {}


def test_a_table_that_was_appended_to_and_is_gone_is_not_made_anew(database: str) -> None:
    sink = PostgresSink(database, "log")
    layout = TableShape(sink.title, {"v": "bigint"}, [], False)
    target = sink._prepare_target(layout, None, begun=False)
    with sink.sink_settings.server.transaction() as cursor:
        target.record_batch(cursor, "q", 3)
    sink._prepare_target(layout, "q", begun=True)
    sql(database, "DROP TABLE log")
    for _ in range(2):
        with pytest.raises(TargetError, match="the table that this checkpoint has kept is gone"):
            sink._prepare_target(layout, "q", begun=True)
    sink._prepare_target(layout, "another", begun=True)
