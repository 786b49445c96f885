"""Apache Flink on the files of Nexmark: a process of Flink's own Python, which runs this file.

``flink.py JARS FOLDER``: reads lines of JSON from standard input, and answers each with one. A line
``{"sql": …, "rows": PATH}`` writes the rows at rest of a query to a Parquet file. ``{"sql": …}``
runs the query into nowhere. The answer has the seconds that it took.

The settings are those that Flink's guide names for throughput: RocksDB, mini-batches, two slots.
All windows close at the end of the input, for files come in any order.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from typing import Any

SETTINGS = {
    "parallelism.default": "2",
    "state.backend.type": "rocksdb",
    "table.exec.mini-batch.allow-latency": "2 s",
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.size": "50000",
    "table.local-time-zone": "UTC",
    "taskmanager.memory.process.size": "6g",
    "taskmanager.numberOfTaskSlots": "2",
}
TABLES = {
    "persons": "id BIGINT, name STRING, city STRING, state STRING, `time` TIMESTAMP(6)",
    "auctions": (
        "id BIGINT, item BIGINT, seller BIGINT, category BIGINT, opens TIMESTAMP(6), "
        "expires TIMESTAMP(6), `time` TIMESTAMP(6)"
    ),
    "bids": (
        "bid BIGINT, auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, "
        "`time` TIMESTAMP(6)"
    ),
    "side": "side BIGINT, `value` BIGINT",
}
_MOMENT = ", ts AS CAST(`time` AS TIMESTAMP(3)), WATERMARK FOR ts AS ts - INTERVAL '1' HOUR"


def environment(jars: str, folder: str) -> Any:
    """Return Flink's environment with the tables over the files in a folder."""
    from pyflink.table import EnvironmentSettings, TableEnvironment

    made = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    config = made.get_config()
    for name, value in SETTINGS.items():
        config.set(name, value)
    config.set("pipeline.jars", ";".join(f"file://{jar}" for jar in jars.split(":")))
    for name, columns in TABLES.items():
        columns += _MOMENT if "`time`" in columns else ""
        made.execute_sql(
            f"CREATE TABLE {name} ({columns}) WITH ('connector' = 'filesystem', "
            f"'path' = 'file://{folder}/{name}', 'format' = 'parquet', "
            "'parquet.utc-timezone' = 'true')"
        )
    return made


def write_rows(made: Any, sql: str, path: str) -> None:
    """Write the rows that the changes of a query's result leave."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    result, rows = made.execute_sql(sql), Counter[Any]()
    names = result.get_table_schema().get_field_names()
    with result.collect() as changes:
        for change in changes:
            sign = -1 if change.get_row_kind().name in ("DELETE", "UPDATE_BEFORE") else 1
            rows[tuple(change)] += sign
    listed = [row for row, count in rows.items() for _ in range(count)]
    columns = list(zip(*listed, strict=True)) or [()] * len(names)
    pq.write_table(pa.table(dict(zip(names, map(list, columns), strict=True))), path)


def run_nowhere(made: Any, sql: str) -> None:
    """Run a query to the end of its input, without keeping its result."""
    made.execute_sql("DROP TEMPORARY TABLE IF EXISTS nowhere")
    columns = ", ".join(_declared(made, sql))
    made.execute_sql(f"CREATE TEMPORARY TABLE nowhere ({columns}) WITH ('connector' = 'blackhole')")
    made.execute_sql(f"INSERT INTO nowhere {sql}").wait()


def _declared(made: Any, sql: str) -> list[str]:
    """Return the columns of a query's result as SQL declares them."""
    schema = made.sql_query(sql)._j_table.getResolvedSchema()  # noqa: SLF001 -- PyFlink has no types
    return [
        f"`{column.getName()}` {column.getDataType().getLogicalType().asSerializableString()}"
        for column in schema.getColumns()
    ]


def main() -> None:
    made = environment(*sys.argv[1:])
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        begun = time.perf_counter()
        if "rows" in asked:
            write_rows(made, asked["sql"], asked["rows"])
        else:
            run_nowhere(made, asked["sql"])
        print(json.dumps({"seconds": time.perf_counter() - begun}), flush=True)


if __name__ == "__main__":
    main()
