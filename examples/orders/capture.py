"""Changes of the shop's tables as Debezium would send them.

Debezium is a Java service. So that the demo needs none, this module reads PostgreSQL's logical
replication itself (the plugin ``pgoutput``, which Debezium reads, too) and writes the same
envelopes.
As Debezium's they come at least once: the slot moves on when the topics have them.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from typing import Any

import psycopg
from pyspark.sql import SparkSession

from examples.orders.shop import TABLES

SLOT = "debezium"
_POSTGRES_EPOCH_US = 946_684_800_000_000
_BROKEN_EVERY = 151
_INTEGERS = (20, 21, 23)
_INSTANT = 1184
"""PostgreSQL's numbers of types."""
_OPERATIONS = {"I": "c", "U": "u", "D": "d"}

Record = tuple[str, str | None, str | None]
"""Topic, key and value."""


class Capture:
    """What was changed since the last time, sent to a topic for each table; in between records that
    nobody can read.
    """

    def __init__(self, spark: SparkSession, dsn: str, servers: str) -> None:
        self._spark, self._servers = spark, servers
        self._connection = psycopg.connect(dsn, autocommit=True)
        # In which values are written.
        self._connection.execute("SET TimeZone = 'UTC'; SET DateStyle = 'ISO'")
        self._connection.execute(
            "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT]
        )
        self._relations: dict[int, _Relation] = {}
        self.events = 0
        self.broken = 0

    def send(self) -> int:
        """Send what there is: how many events."""
        messages = self._connection.execute(
            "SELECT lsn - '0/0', lsn::text, data FROM pg_logical_slot_peek_binary_changes("
            "%s, NULL, 2000, 'proto_version', '1', 'publication_names', 'changes')",
            [SLOT],
        ).fetchall()
        if not messages:
            return 0
        before = self.events
        records = list(self._records([(int(lsn), data) for lsn, _, data in messages]))
        if records:
            frame = self._spark.createDataFrame(records, "topic string, key string, value string")
            # In one task, so in order.
            writer = frame.coalesce(1).write.format("kafka")
            writer.option("kafka.bootstrap.servers", self._servers).save()
        self._connection.execute(
            "SELECT pg_replication_slot_advance(%s, %s)", [SLOT, messages[-1][1]]
        )
        return self.events - before

    def close(self) -> None:
        """Give the slot back."""
        self._connection.execute("SELECT pg_drop_replication_slot(%s)", [SLOT])
        self._connection.close()

    def _records(self, messages: list[tuple[int, bytes]]) -> Iterator[Record]:
        commit_us = 0
        for lsn, data in messages:
            kind = chr(data[0])
            if kind == "B":
                commit_us = struct.unpack_from("!q", data, 9)[0] + _POSTGRES_EPOCH_US
            elif kind == "R":
                self._relations[struct.unpack_from("!I", data, 1)[0]] = _Relation(data)
            elif kind in _OPERATIONS:
                relation = self._relations[struct.unpack_from("!I", data, 1)[0]]
                yield from self._event(relation, kind, data, lsn, commit_us)

    def _event(
        self, relation: _Relation, kind: str, data: bytes, lsn: int, commit_us: int
    ) -> Iterator[Record]:
        rows = relation.rows(data)
        before, after = rows.get("K") or rows.get("O"), rows.get("N")
        key_name = TABLES[relation.table]
        key = json.dumps({key_name: (after or before or {})[key_name]})
        envelope = {
            "before": before,
            "after": after,
            "source": {
                "connector": "postgresql",
                "schema": "shop",
                "table": relation.table,
                "lsn": lsn,
                "ts_us": commit_us,
                "ts_ms": commit_us // 1000,
            },
            "op": _OPERATIONS[kind],
            "ts_ms": time.time_ns() // 1_000_000,
        }
        value = json.dumps(envelope, ensure_ascii=False)
        self.events += 1
        if self.events % _BROKEN_EVERY == 0:
            self.broken += 1
            yield relation.table, key, value[: len(value) // 2]
        yield relation.table, key, value
        if after is None:
            yield relation.table, key, None  # Debezium's tombstone, for compaction


class _Relation:
    """A table, as ``pgoutput`` tells of it before its first change."""

    def __init__(self, message: bytes) -> None:
        _, _, rest = message[5:].partition(b"\0")
        name, _, rest = rest.partition(b"\0")
        self.table = name.decode()
        self._columns: list[tuple[str, int]] = []
        at = 3  # after the replica identity and the number of columns
        for _ in range(struct.unpack_from("!H", rest, 1)[0]):
            end = rest.index(b"\0", at + 1)
            (type_,) = struct.unpack_from("!I", rest, end + 1)
            self._columns.append((rest[at + 1 : end].decode(), type_))
            at = end + 9

    def rows(self, message: bytes) -> dict[str, dict[str, Any]]:
        """The rows of a change, ``N`` the new one, ``K`` the key of the old one."""
        found, at = {}, 5
        while at < len(message):
            kind, (count,), at = chr(message[at]), struct.unpack_from("!H", message, at + 1), at + 3
            row: dict[str, Any] = {}
            for name, type_ in self._columns[:count]:
                state, at = chr(message[at]), at + 1
                row[name] = None
                if state == "t":
                    (length,) = struct.unpack_from("!I", message, at)
                    row[name] = _json(message[at + 4 : at + 4 + length].decode(), type_)
                    at += 4 + length
            found[kind] = row
        return found


def _json(text: str, type_: int) -> Any:
    """A value as Debezium writes it, decimals as texts (``decimal.handling.mode=string``)."""
    if type_ in _INTEGERS:
        return int(text)
    # Instants are ZonedTimestamps.
    return text.replace(" ", "T").removesuffix("+00") + "Z" if type_ == _INSTANT else text
