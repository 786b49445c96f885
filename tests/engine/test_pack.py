"""Packing: rows that a stage cannot use are counted, each once, and a left-out row is none."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dovetail.base.columns import ORDER
from dovetail.engine import pack
from dovetail.engine.pack import Packer, pack_partition
from dovetail.physical.source import RowArrival, RowShape, SourceSpec

INT = pa.int64()
SCHEMA = pa.schema(
    {"_hash": INT, "_event_time": INT, "_deleted": pa.bool_(), "customer": INT, "id": INT}
)


@pytest.mark.parametrize("others", [False, True], ids=["alone", "beside unusable rows"])
def test_a_row_that_a_condition_leaves_out_needs_no_primary_key(others: bool) -> None:
    """A null in ``_deleted`` is a row that a condition leaves out, so its nulls are no mistake."""
    source = SourceSpec("orders", RowShape(SCHEMA, keys=1, primary=("id",)))
    rows = [(7, 1, None, 5, None)]
    rows += [(8, 2, False, 5, None), (9, 3, True, 5, None), (10, 4, False, 5, 6)] if others else []
    batch = pa.RecordBatch.from_pylist(
        [dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA
    )
    packed = pa.Table.from_batches(
        pack_partition([Packer(0, 0, source, [0])], [batch], partition=0)
    ).to_pylist()
    kept = [pa.ipc.open_stream(row["payload"]).read_all() for row in packed]
    hashes = [table.column("_hash").to_pylist() for table in kept]
    # Of the others, the one with values and a null is counted; the deleted one has no values.
    assert hashes == [[7, 9, 10] if others else [7]]
    example = '[[1, "customer=5 at 1970-01-01T00:00:00.000002Z"]]'
    assert [row["counted"] for row in packed] == ["[[0, null]]" if not others else example]


def test_a_row_has_one_number_for_all_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if one reader has fewer rows and narrower ones, so that it holds more of them."""
    monkeypatch.setattr(pack, "_FLUSH_BYTES", 1000)
    rows = 200
    wide = pa.schema([*SCHEMA, *(pa.field(f"v{n}", INT) for n in range(9))])
    columns = {name: [*range(rows)] for name in wide.names} | {"_deleted": [False] * rows}
    out = pa.array([None if n % 3 else True for n in range(rows)], pa.bool_())
    batch = pa.record_batch({**columns, "out": out}, pa.schema([*wide, ("out", pa.bool_())]))
    arrival = RowArrival(clocked=True, numbered=True)
    packings = [
        Packer(0, 0, SourceSpec("all", RowShape(wide, keys=1), arrival=arrival), [0],
               places=range(len(wide))),
        Packer(1, 0, SourceSpec("some", RowShape(SCHEMA, keys=1), arrival=arrival), [0],
               places=range(len(SCHEMA)), out=len(wide)),
    ]  # fmt: skip
    batches = [batch.slice(start, 10) for start in range(0, rows, 10)]
    found: dict[int, dict[int, tuple[int, int]]] = {0: {}, 1: {}}
    for packed in pa.Table.from_batches(pack_partition(packings, batches, partition=0)).to_pylist():
        table = pa.ipc.open_stream(packed["payload"]).read_all()
        for hash_, order in zip(
            *(table.column(n).to_pylist() for n in ("_hash", ORDER)), strict=True
        ):
            found[packed["reader"]][hash_] = (packed["number"], order)
    assert [*found[0]] == [*range(rows)]
    assert [*found[1]] == [n for n in range(rows) if n % 3]
    assert len({number for number, _ in found[0].values()}) > 5
    assert found[1].items() <= found[0].items()


def test_rows_without_a_place_are_passed_over() -> None:
    """Records that cannot be read have none, and may come alone."""
    names = {"_sequence": INT, "_log_partition": INT}
    schema = pa.schema([*SCHEMA, *names.items()])
    arrival = RowArrival(ordered_by="own logs", clocked=True, numbered=True)
    source = SourceSpec("records", RowShape(SCHEMA, keys=1), arrival=arrival)
    assert source.travel_schema == schema
    packer = Packer(0, 0, source, [0], places=range(len(schema)), out=len(schema))
    unread = dict.fromkeys(schema.names) | {"out": True}
    row = {**dict.fromkeys(SCHEMA.names, 1), "_deleted": False, "_sequence": 5, "_log_partition": 0}
    for rows, expected in ([unread], []), ([unread, row], [1]):
        batch = pa.RecordBatch.from_pylist(rows, schema=pa.schema([*schema, ("out", pa.bool_())]))
        (packed,) = pa.Table.from_batches(pack_partition([packer], [batch], 0)).to_pylist()
        payload = packed["payload"]
        found = (
            [] if payload is None else pa.ipc.open_stream(payload).read_all()["_hash"].to_pylist()
        )
        assert found == expected
