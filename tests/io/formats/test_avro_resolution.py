"""Random pairs of compatible schemas, judged by fastavro: what the Avro and Debezium formats
read of a record that was written with an older one.
"""

from __future__ import annotations

import io
import json
import os
import random
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import SparkSession
from test_avro import avro_spark, encoded, records, rows

import dovetail as dt

__all__ = ["avro_spark"]

PAIRS = int(os.environ.get("DOVETAIL_CASES", "100")) // 50
SEED = int(os.environ.get("DOVETAIL_SEED", "7"))
PROMOTED = {
    "int": ("int", "long", "double"), "long": ("long", "double"), "float": ("float", "double"),
    "double": ("double",), "string": ("string", "bytes"), "bytes": ("bytes",),
    "boolean": ("boolean",),
}  # fmt: skip


class Pairs:
    """Pairs of a writer's and a reader's schema of a value, with a value and a default."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.named = 0

    def primitive(self) -> tuple[str, Any]:
        value = self.rng.randrange(100)
        values = {
            "int": value, "long": value << 40, "float": value / 4, "double": value / 8,
            "string": str(value), "bytes": bytes([value]), "boolean": value % 2 == 0,
        }  # fmt: skip
        kind = self.rng.choice(list(values))
        return kind, values[kind]

    def pair(self, depth: int) -> tuple[Any, Any, Any]:
        """A type as it was, as it is, and a value of it."""
        kind = self.rng.choice(["plain", "record", "array", "map", "enum"] if depth else ["plain"])
        if kind == "record":
            was, is_, value = self.record(depth)
        elif kind == "enum":
            self.named += 1
            was = {"type": "enum", "name": f"E{self.named}", "symbols": ["A", "B"]}
            is_, value = {**was, "symbols": ["B", "C", "A"]}, "B"
        elif kind in ("array", "map"):
            inner_was, inner_is, one = self.pair(depth - 1)
            name = "items" if kind == "array" else "values"
            was, is_ = ({"type": kind, name: of} for of in (inner_was, inner_is))
            value = [one, one] if kind == "array" else {"k": one}
        else:
            was, value = self.primitive()
            is_ = self.rng.choice(PROMOTED[was])
        if self.rng.random() < 0.4:
            was, is_ = self.nullable(was), self.nullable(is_)
            value = self.rng.choice([value, None])
        elif self.rng.random() < 0.2:
            is_ = self.nullable(is_)
        return was, is_, value

    def nullable(self, type_: Any) -> Any:
        return ["null", type_] if self.rng.random() < 0.7 else [type_, "null"]

    def record(self, depth: int) -> tuple[Any, Any, dict[str, Any]]:
        """A record with fields in another order, some gone, some new, one renamed."""
        self.named += 1
        name = f"R{self.named}"
        was, is_, value = [], [], {}
        for number in range(self.rng.randrange(1, 5)):
            own_was, own_is, one = self.pair(depth - 1)
            field = f"f{number}"
            was.append({"name": field, "type": own_was})
            value[field] = one
            if self.rng.random() < 0.2:
                is_.append({"name": f"new_{field}", "aliases": [field], "type": own_is})
            elif number == 0 or self.rng.random() < 0.8:
                is_.append({"name": field, "type": own_is})
        if self.rng.random() < 0.6:
            is_.append({"name": "more", "type": ["null", "string"], "default": None})
        if self.rng.random() < 0.6:
            is_.append({"name": "level", "type": ["int", "null"], "default": 3})
        if self.rng.random() < 0.4:
            point = {"type": "record", "name": f"P{name}", "fields": [
                {"name": "x", "type": "long"}, {"name": "y", "type": "string", "default": "u"},
            ]}  # fmt: skip
            is_.append({"name": "at", "type": point, "default": {"x": 1, "y": "v"}})
        self.rng.shuffle(was)
        self.rng.shuffle(is_)
        made = {"type": "record", "name": name, "fields": was}
        return made, {**made, "fields": is_}, value


def change(row: Any) -> dict[str, Any]:
    """The schema of an envelope of rows."""
    source = {"type": "record", "name": "Source", "fields": [{"name": "ts_ms", "type": "long"}]}
    return {"type": "record", "name": "Envelope", "namespace": "s.t", "fields": [
        {"name": "before", "type": ["null", row], "default": None},
        {"name": "after", "type": ["null", row["name"]], "default": None},
        {"name": "source", "type": source},
        {"name": "op", "type": "string"},
    ]}  # fmt: skip


def judged(value: bytes, was: Any, is_: Any) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(value), was, is_)


def flattened(value: Any) -> Any:
    """Maps as Arrow has them, with a single key."""
    if isinstance(value, dict):
        return {name: flattened(one) for name, one in value.items()}
    if isinstance(value, list) and value and all(isinstance(one, tuple) for one in value):
        return {name: flattened(one) for name, one in value}
    return [flattened(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("number", range(PAIRS))
def test_a_record_is_read_as_avro_resolves_it(
    avro_spark: SparkSession, tmp_path: Path, number: int
) -> None:
    was, is_, value = Pairs(SEED + number).record(3)
    for one in (was, is_):
        one["fields"].insert(0, {"name": "id", "type": "long"})
    value["id"] = 1
    expected = judged(encoded(was, value), was, is_)
    read = {}
    for of_changes in (False, True):
        schemas = [change(one) if of_changes else one for one in (was, is_)]
        sent = value
        if of_changes:
            sent = {"before": None, "after": value, "source": {"ts_ms": 1}, "op": "c"}
        path = tmp_path / f"{of_changes}.json"
        path.write_text(json.dumps([
            {"subject": "s", "version": n, "id": n, "schema": json.dumps(schema)}
            for n, schema in enumerate(schemas, 1)
        ]))  # fmt: skip
        frame = records(avro_spark, [encoded(schemas[0], sent, 1)])
        avro = dt.formats.avro(dt.formats.registry(path), subject="s")
        table = dt.Table.from_records(
            frame,
            key_columns="id",
            value=dt.formats.debezium(avro=avro) if of_changes else avro,
            name="t",
        )
        (read[of_changes],) = rows(table)
    assert flattened(read[False]) == expected, (was, is_)
    assert flattened(read[True]) == expected, (was, is_)
