"""The rows of a checkpoint's tables for the page, searched by key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from dovetail.base.columns import LETTER, OPERATOR, PROBLEM, TIMESTAMP
from dovetail.base.text_cells import cells_of
from dovetail.errors import ConfigurationError, DovetailError, line_of
from dovetail.plan.nodes import Node
from dovetail.spark.checkpoints.lookup_keys import key_of_column_texts, key_texts_error
from dovetail.spark.checkpoints.row_explanations import explain_stored_row
from dovetail.spark.checkpoints.state_lookup import Lookups, with_latest_state
from dovetail.spark.checkpoints.stores import CheckpointStores

_LETTERS_MAX = 20
"""The most dead letters that are shown."""
_ROWS_MAX = 200
"""The most rows of one key that are shown."""


@dataclass(frozen=True)
class StateSearch:
    """The search in the committed state of one checkpoint. A running query is not disturbed."""

    checkpoint: str
    """The checkpoint's folder."""
    session: SparkSession | None
    """The session that reads what is not on a local disk; None for the active one."""

    def tables(self) -> dict[str, Any]:
        """Return the tables that can be searched as JSON data: name, key columns and content of
        each. These are the stored tables with a key of their own; the list may be empty.

        Raises ``CheckpointError`` if the folder is no checkpoint, and ``ConfigurationError`` if
        Spark cannot read it.
        """
        stored = with_latest_state(
            "search", self.checkpoint, lambda _, stored: stored, self.session
        )
        with_key = (
            {"name": name, "key": [field.name for field in store.own_key], "holds": store.holds}
            for name, store in stored.tables.items()
            if store.own_key
        )
        return {"tables": list(with_key)}

    def rows(self, table: str, key: Sequence[str]) -> dict[str, Any]:
        """Return the rows of a key as JSON data: a header, at most ``_ROWS_MAX`` rows of cells as
        text, the number of all rows, and the last committed micro-batch. A key without a row has an
        empty list of rows.

        ``table``: a name that ``tables`` returns. ``key``: a text for each of the key's columns, in
        order. Raises ``PlanError`` for texts that are no key. Raises ``ConfigurationError`` for a
        table that is not stored or has no rows by key, and the errors of ``tables``.
        """

        def find_rows(lookups: Lookups, stored: CheckpointStores) -> tuple[pa.Table, int | None]:
            """Return the rows of the key, and the number of the last committed micro-batch, None
            for none.
            """
            asked = key_of_column_texts("search", stored.named(table).store, key)
            return lookups.rows(stored, table, [asked], None), stored.batch

        rows, batch = with_latest_state("search", self.checkpoint, find_rows, self.session)
        header, *cells = cells_of(rows.slice(0, _ROWS_MAX))
        return {"header": header, "rows": cells, "count": len(rows), "batch": batch}


@dataclass(frozen=True)
class RowReasons:
    """The reasons why rows of a query's results came out, from its committed state."""

    checkpoint: str
    """The checkpoint's folder."""
    session: SparkSession
    """The session that evaluates the topology's expressions."""
    results: Sequence[Node]
    """The nodes of the query's results."""

    def why(self, result: str, key: Sequence[str]) -> dict[str, Any]:
        """Return the explanation of a row as JSON data: the tree of the rows that make it.

        ``result``: the name of one of ``results``; of several, the first counts. ``key``: a text
        for each of its columns, in order. Raises ``ConfigurationError`` for an unknown result.
        Raises ``PlanError`` for texts of another number or another type than the key's columns.
        Further errors are those of ``explain_stored_row``.
        """
        nodes = [node for node in self.results if node.name == result]
        if not nodes:
            names = ", ".join(node.name for node in self.results)
            problem = f"the query has no result {result!r}"
            raise ConfigurationError("why", problem, f"It has {names}")
        columns = nodes[0].key.names
        if len(key) != len(columns):
            raise key_texts_error("why", columns, key)
        texts = dict(zip(columns, key, strict=True))
        reason = explain_stored_row(
            "why", self.session, self.checkpoint, nodes[:1], texts, None, as_text=True
        )
        return reason.to_dict()


def latest_letters(folder: str) -> dict[str, Any]:
    """Return at most ``_LETTERS_MAX`` dead letters in a local folder of Parquet files, as JSON
    data: a header and cells as text. Both are empty if there are none, or no such folder.

    ``folder``: its path, with or without ``file:``. Folders of micro-batches in it
    (``_batch=<number>``) are read from the last one on. Their letters are in the order of files
    and, in each file, the latest first.
    """
    directory = Path(folder.removeprefix("file:"))
    batches = [p for p in directory.glob("_batch=*") if p.name.rpartition("=")[2].isdigit()]
    batches.sort(key=lambda path: int(path.name.rpartition("=")[2]), reverse=True)
    parts, count = [], 0
    for batch in batches:
        for file in sorted(batch.glob("*.parquet")):
            # Without the folder's own column: a file is read by itself.
            rows = pq.ParquetFile(file).read().sort_by([(TIMESTAMP, "descending")])
            parts.append(rows.select([OPERATOR, PROBLEM, LETTER, TIMESTAMP]))
            count += len(rows)
        if count >= _LETTERS_MAX:
            break
    if not count:
        return {"header": [], "rows": []}
    latest = pa.concat_tables(parts).slice(0, _LETTERS_MAX)
    _, *times = cells_of(latest.select([TIMESTAMP]))
    texts = zip(
        *(latest.column(name).to_pylist() for name in (OPERATOR, PROBLEM, LETTER)), strict=True
    )
    cells = [[*time, *letter] for time, letter in zip(times, texts, strict=True)]
    return {"header": ["time", "operator", "problem", "row"], "rows": cells}


def error_in_words(error: Exception) -> str:
    """Return an error as one line for people who look at the page: problem and remedy of an error
    of this library, else the error's type and first line as ``line_of`` gives them.
    """
    if isinstance(error, DovetailError):
        return f"{error.problem}. {error.remedy}."
    return line_of(error)
