"""Larger topologies with joins by foreign key, each beside the same joins by definition: loops over
the rows that its tables hold. Their inputs, and random records of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

Row: TypeAlias = "dict[str, Any]"
Rows: TypeAlias = "dict[tuple[Any, ...], Row]"
"""A table by its key's columns; a column that is null is not in its row."""

Tables: TypeAlias = "Mapping[str, Any]"
"""By name: tables to join or, for the static join, their rows."""


class Case(NamedTuple):
    """A topology over tables, and its join of the rows that they hold."""

    topology: Callable[[Tables], Any]
    static: Callable[[Tables], Rows]


class Input(NamedTuple):
    """A table's or a stream's columns, key first, each with its type and the values drawn."""

    columns: dict[str, tuple[pa.DataType, list[Any]]]

    @property
    def key(self) -> str:
        return next(iter(self.columns))

    @property
    def schema(self) -> dict[str, pa.DataType]:
        return {name: type_ for name, (type_, _) in self.columns.items()}


class Record(NamedTuple):
    """One upsert or tombstone of an input."""

    table: str
    row: Row
    time: int
    deleted: bool


TAILS, MAKERS, CODES = ["p1", "p2", "p3", "", None], ["m1", "m2", "m3", None], ["a1", "a2", None]
NUMBER, TEXT = pa.int64(), pa.string()
INPUTS = {
    "flights": Input({"id": (NUMBER, [*range(8)]), "plane": (TEXT, TAILS),
                      "origin": (TEXT, CODES)}),
    "delays": Input({"flight": (NUMBER, [*range(8)]), "minutes": (NUMBER, [1, 2, 3, None])}),
    "planes": Input({"tail": (TEXT, TAILS), "maker": (TEXT, MAKERS), "seats": (NUMBER, [1, 2])}),
    "makers": Input({"name": (TEXT, MAKERS), "country": (TEXT, ["US", "FR"])}),
    "airports": Input({"code": (TEXT, CODES), "city": (TEXT, ["X", "Y", None])}),
    "staff": Input({"nr": (NUMBER, [*range(6)]), "boss": (NUMBER, [*range(6), None]),
                    "pay": (NUMBER, [1, 2, 3])}),
    "accounts": Input({"account": (NUMBER, [*range(5)]), "bank": (TEXT, ["b", "c", None])}),
    "banks": Input({"bank": (TEXT, ["b", "c"]), "city": (TEXT, ["X", "Y"])}),
    "transfers": Input({"transfer": (NUMBER, [*range(20)]), "amount": (NUMBER, [*range(1, 99)]),
                        "sender": (NUMBER, [*range(6)]), "receiver": (NUMBER, [*range(6)])}),
    "clicks": Input({"flight": (NUMBER, [*range(8)]), "click": (NUMBER, [*range(1000)])}),
    "bookings": Input({"flight": (NUMBER, [*range(8)]), "tail": (TEXT, TAILS)}),
}  # fmt: skip
STREAMS = {"clicks", "bookings"}


def drawn(random_: random.Random, tables: list[str]) -> Record:
    """A record of one of these inputs."""
    table = random_.choice(tables)
    row = {name: random_.choice(values) for name, (_, values) in INPUTS[table].columns.items()}
    deleted = table not in STREAMS and random_.random() < 0.25
    return Record(table, row, random_.randint(0, 50), deleted)


def keep(tables: dict[str, Rows], record: Record) -> None:
    """Enter a record into its table; one without key is dropped."""
    values = dict(record.row)
    key = values.pop(INPUTS[record.table].key)
    if key is not None:
        put(tables[record.table], (key,), None if record.deleted else values)


def put(rows: Rows, key: tuple[Any, ...], row: Mapping[str, Any] | None) -> None:
    """The newest row of a key; None deletes it."""
    rows.pop(key, None)
    if row is not None:
        rows[key] = {column: value for column, value in row.items() if value is not None}


# The joins of tables as they are.


def named(left: Rows, on: str, right: Rows, how: str, width: int = 1) -> Rows:
    """By foreign key; a right row that no left row names has the left key's columns null, of which
    there are ``width``.
    """
    alone = how in ("right", "outer")
    found = {}
    for key, row in left.items():
        match = right.get((row.get(on),))
        if match is not None or how in ("left", "outer"):
            found[key + (None,) * alone] = row | (match or {})
    names = {row.get(on) for row in left.values()}
    for key, row in right.items():
        if alone and key[0] not in names:
            found[(None,) * width + key] = row
    return found


def beside(left: Rows, right: Rows, how: str) -> Rows:
    """By key."""
    keys = {
        "inner": left.keys() & right.keys(),
        "left": left.keys(),
        "outer": left.keys() | right.keys(),
    }[how]
    return {key: left.get(key, {}) | right.get(key, {}) for key in keys}


def selected(rows: Rows, *columns: str, **names: str) -> Rows:
    """Some columns, some of them under new names."""
    names |= {column: column for column in columns}
    return {key: {names[c]: v for c, v in row.items() if c in names} for key, row in rows.items()}


# The topologies.


def chain(first: Any, second: Any) -> Case:
    """A join by foreign key of a join by foreign key: the flights' planes, the planes' makers."""

    def topology(t: Tables) -> Any:
        planes = t["flights"].join(t["planes"], on="plane", how=first)
        return planes.join(t["makers"], on="maker", how=second)

    def static(t: Tables) -> Rows:
        planes = named(t["flights"], "plane", t["planes"], first)
        width = 2 if first in ("right", "outer") else 1
        return named(planes, "maker", t["makers"], second, width)

    return Case(topology, static)


def nested(first: Any, second: Any) -> Case:
    """The planes' makers first, then the flights' planes."""

    def topology(t: Tables) -> Any:
        planes = t["planes"].join(t["makers"], on="maker", how=first)
        return t["flights"].join(planes, on="plane", how=second)

    def static(t: Tables) -> Rows:
        planes = named(t["planes"], "maker", t["makers"], first)
        return named(t["flights"], "plane", planes, second)

    return Case(topology, static)


def diamond(sides: Any, how: Any) -> Case:
    """Two joins by foreign key of one table, joined again by its key."""

    def topology(t: Tables) -> Any:
        planes = t["flights"].join(t["planes"], on="plane", how=sides)
        cities = t["flights"].join(t["airports"], on="origin", how=sides, select=["city"])
        keys = dict(zip(planes.plan.key.names, cities.plan.key.names, strict=True))
        return planes.join(cities, on=keys, how=how)

    def static(t: Tables) -> Rows:
        planes = named(t["flights"], "plane", t["planes"], sides)
        cities = selected(named(t["flights"], "origin", t["airports"], sides), "city")
        return beside(planes, cities, how)

    return Case(topology, static)


def of_a_join_by_key() -> Case:
    """A join by foreign key of a join by key."""

    def topology(t: Tables) -> Any:
        delays = t["flights"].join(t["delays"], on={"id": "flight"}, how="outer")
        return delays.join(t["planes"], on="plane", how="outer")

    def static(t: Tables) -> Rows:
        return named(beside(t["flights"], t["delays"], "outer"), "plane", t["planes"], "outer")

    return Case(topology, static)


def in_joins_by_key() -> Case:
    """A join by foreign key as the left side of a join by key, which is the right side of one."""

    def topology(t: Tables) -> Any:
        planes = t["flights"].join(t["planes"], on="plane")
        again = planes.join(t["flights"], how="left", select=["seats", "right.origin"])
        return t["delays"].join(again, on="flight", how="outer")

    def static(t: Tables) -> Rows:
        planes = selected(named(t["flights"], "plane", t["planes"], "inner"), "seats")
        again = beside(planes, selected(t["flights"], "origin"), "left")
        return beside(t["delays"], again, "outer")

    return Case(topology, static)


def with_itself() -> Case:
    """Everyone's boss, and the boss's boss."""
    kept = {"boss": "left.boss", "pay": "left.pay"}
    once = {"of_boss": "right.pay", "above": "right.boss"}
    twice = {"of_boss": "left.of_boss", "above": "left.above", "of_above": "right.pay"}

    def topology(t: Tables) -> Any:
        bosses = t["staff"].join(t["staff"], on="boss", how="left", select=kept | once)
        return bosses.join(t["staff"], on="above", how="left", select=kept | twice)

    def static(t: Tables) -> Rows:
        bosses = selected(t["staff"], pay="of_boss", boss="above")
        bosses = named(t["staff"], "boss", bosses, "left")
        return named(bosses, "above", selected(t["staff"], pay="of_above"), "left")

    return Case(topology, static)


CASES = {
    "chain-inner": chain("inner", "inner"),
    "chain-left": chain("left", "left"),
    "chain-outer": chain("outer", "outer"),
    "chain-right-left": chain("right", "left"),
    "nested-left": nested("left", "inner"),
    "nested-outer": nested("inner", "outer"),
    "diamond-inner": diamond("inner", "outer"),
    "diamond-left": diamond("left", "inner"),
    "of-a-join-by-key": of_a_join_by_key(),
    "in-joins-by-key": in_joins_by_key(),
    "with-itself": with_itself(),
}


# The bank.


def bank(*, cities: bool) -> Case:
    """Each transfer with what it takes from its sender and what it brings to its receiver, each on
    a way of its own: by the account and, with ``cities``, by the account's bank.
    """

    def holders(t: Tables) -> Any:
        if not cities:
            return t["accounts"]
        return t["accounts"].join(t["banks"], on="bank", how="left", select=["city"])

    def side(t: Tables, account: str, amount: str) -> Any:
        held = "city" if cities else "bank"
        selection = {account: f"left.{account}", amount: "left.amount", f"at_{amount}": held}
        return t["transfers"].join(holders(t), on=account, how="left", select=selection)

    def static_side(t: Tables, account: str, amount: str) -> Rows:
        held = "city" if cities else "bank"
        accounts = named(t["accounts"], "bank", t["banks"], "left") if cities else t["accounts"]
        found = named(t["transfers"], account, selected(accounts, held), "left")
        return selected(found, account, amount=amount, **{held: f"at_{amount}"})

    return Case(
        lambda t: side(t, "sender", "debit").join(side(t, "receiver", "credit"), how="outer"),
        lambda t: beside(
            static_side(t, "sender", "debit"), static_side(t, "receiver", "credit"), "outer"
        ),
    )


def total(rows: Rows) -> int:
    """Of all accounts, what they have received and not given away."""
    return sum(row.get("credit", 0) - row.get("debit", 0) for row in rows.values())
