"""Apache Flink: a process of Flink's own Python, which runs this file.

``server.py JARS``: reads lines of JSON from standard input, and answers each with one that has the
seconds it took.

| line | what it does |
|---|---|
| ``{"do": SQL}`` | executes a statement, such as one that declares a table |
| ``{"sql": SQL, "rows": PATH}`` | writes the rows at rest of a query to a Parquet file |
| ``{"sql": SQL}`` | runs a query into nowhere |

The settings are those that Flink's guide names for throughput: RocksDB, mini-batches, two slots.
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


def environment(jars: str) -> Any:
    """Return Flink's environment with these jars, parted by colons."""
    from pyflink.table import EnvironmentSettings, TableEnvironment

    made = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    config = made.get_config()
    for name, value in SETTINGS.items():
        config.set(name, value)
    config.set("pipeline.jars", ";".join(f"file://{jar}" for jar in jars.split(":")))
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
        if "do" in asked:
            made.execute_sql(asked["do"])
        elif "rows" in asked:
            write_rows(made, asked["sql"], asked["rows"])
        else:
            run_nowhere(made, asked["sql"])
        print(json.dumps({"seconds": time.perf_counter() - begun}), flush=True)


if __name__ == "__main__":
    main()
