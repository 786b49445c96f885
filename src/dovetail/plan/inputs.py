"""What a stage reads: its inputs, and the columns in which their rows travel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.types import BooleanType, DataType, LongType, StructField, StructType

from dovetail.columns import DELETED, EVENT_TIME, FOREIGN, HASH, foreign_name, gathered_name
from dovetail.errors import PlanError
from dovetail.plan.arrow import arrow_schema
from dovetail.plan.nodes import Entry, Node, Source, has_null_keys
from dovetail.plan.spec import SourceSpec


@dataclass(frozen=True, eq=False)
class Input:
    """A source, or another stage's result, as a stage reads it: by which of its columns rows are
    found; the others are their values, a key column that is not asked for among them.

    ``foreign``: where the rows are to become subscriptions, the columns or expressions that make
    the foreign key, each with its type; ``used``: where they are to be gathered, the columns that
    alone travel as values, under names of their own; ``only``: the value columns that are of use,
    None for all.
    """

    source: Entry
    key: tuple[str, ...]
    foreign: tuple[tuple[str | Column, DataType], ...] = ()
    used: tuple[str, ...] | None = None
    only: frozenset[str] | None = None

    @property
    def key_fields(self) -> list[StructField]:
        """The columns that make the stage's key."""
        columns = {f.name: f for f in (*self.source.key, *self.source.values)}
        return [columns[name] for name in self.key]

    @property
    def foreign_fields(self) -> list[StructField]:
        """The foreign key's hash and its columns, where there is one."""
        if not self.foreign:
            return []
        key = [
            StructField(foreign_name(number), type_)
            for number, (_, type_) in enumerate(self.foreign)
        ]
        return [StructField(FOREIGN, LongType()), *key]

    @property
    def value_fields(self) -> list[StructField]:
        """The columns that travel as values."""
        if self.used is not None:
            columns = {f.name: f for f in (*self.source.key, *self.source.values)}
            return [columns[name] for name in self.used]
        values = (f for f in self.source.values if self.only is None or f.name in self.only)
        return [f for f in (*self.source.key, *values) if f.name not in self.key]

    @property
    def gathered_fields(self) -> list[StructField]:
        """The columns that travel to be gathered, under their own names."""
        return [
            StructField(gathered_name(number), f.dataType)
            for number, f in enumerate(self.value_fields)
        ]


def source_spec(
    input_: Input, name: str, *, one_log: bool, alone: bool = False, keeps_time: bool = False
) -> SourceSpec:
    """``alone``: whether it is a stream whose records come out where nothing matches them."""
    source = input_.source
    own_log = isinstance(source, Source) and source.log_partition is not None and not one_log
    return SourceSpec(
        name=name,
        schema=wire_schema(input_),
        sequence=source.ordered or own_log or one_log,
        log_partition=own_log,
        stream=source.stream,
        null_keys=alone or has_null_keys(source),
        keeps_time=keeps_time,
        versioned_us=source.versioned_us,
    )


def refuse_partly_ordered(node: Node, inputs: Sequence[Input], *, aligned: bool) -> None:
    """A log that all inputs share must order the rows of all of them, and alone."""
    logs = [i.source.name for i in inputs if i.source.ordered]
    if logs and aligned:
        raise PlanError(
            node.name,
            f"align= orders rows by time, sequence= of {', '.join(logs)} by their place in a log",
            "Leave one of them out, or say with log_partition= that each input has its own log",
        )
    if logs and len(logs) < len(inputs):
        raise PlanError(
            node.name,
            f"sequence= without log_partition= orders the rows of all inputs, but only "
            f"{', '.join(logs)} has it",
            "Give every input its position in the shared log, or a log_partition= to those that "
            "have a log of their own",
        )


def unique_names(inputs: Sequence[Input]) -> list[str]:
    """The inputs' names; where several share one, the later ones are numbered."""
    names = [input_.source.name for input_ in inputs]
    seen = [names[:i].count(name) for i, name in enumerate(names)]
    return [f"{name}#{n + 1}" if n else name for name, n in zip(names, seen, strict=True)]


def wire_schema(input_: Input) -> pa.Schema:
    """The Arrow columns in which an input's rows travel, all nullable, in UTC."""
    values = input_.value_fields if input_.used is None else input_.gathered_fields
    return carried(StructType([*input_.key_fields, *input_.foreign_fields, *values]))


def carried(columns: StructType) -> pa.Schema:
    """These columns after those that every row has."""
    internal = [
        StructField(HASH, LongType()),
        StructField(EVENT_TIME, LongType()),
        StructField(DELETED, BooleanType()),
    ]
    return arrow_schema(StructType([*internal, *columns]))
