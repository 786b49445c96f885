"""The rows of a checkpoint's tables for the page, searched by key."""

from __future__ import annotations

import math
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
_WHOLE_MAX = 2**53
"""The largest number up to which a browser tells all whole numbers apart."""


@dataclass(frozen=True)
class StateSearch:
    """The search in the committed state of one checkpoint. A running query is not disturbed."""

    checkpoint: str
    """The checkpoint's folder."""
    session: SparkSession | None
    """The session that reads what is not on a local disk; None for the active one."""

    def tables(self) -> dict[str, Any]:
        """Return the tables that can be searched as JSON data: under ``tables`` a list with
        ``name``, ``key`` (names of its columns) and ``holds`` (its content in words) of each.

        These are the inputs and stores whose stored rows have key columns, after the last committed
        micro-batch. Stores without key columns are left out. The list may be empty. Raises
        ``CheckpointError`` if the folder is no checkpoint, and ``ConfigurationError`` if Spark
        cannot read it.
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
        """Return the stored rows of a key as JSON data: ``header``, ``rows``, ``count`` and
        ``batch``. A key without a row has an empty list of rows.

        ``header`` has the names of columns: ``time``, the event time, if rows have one, then those
        of key and values. ``rows`` has at most 200 lists of cells as text, in no particular order.
        A null is an empty text, and a cell of more than 100 characters is cut. ``count`` is that of
        all rows. ``batch`` is the id of the last committed micro-batch, None for none.

        ``table``: a name that ``tables`` returns. ``key``: a text for each of the key's columns, in
        order; none stands for null. Raises ``PlanError`` for texts that are no key. Raises
        ``ConfigurationError`` for a table that is not stored or has no rows by key, and if Spark
        cannot read the checkpoint. Raises ``CheckpointError`` if the folder is none.
        """

        def find_rows(lookups: Lookups, stored: CheckpointStores) -> tuple[pa.Table, int | None]:
            """Return the rows of the key in ``table``, and the id of the last committed
            micro-batch, None for none. ``lookups``: reads the rows of keys from the checkpoint.
            ``stored``: the checkpoint's stores at that micro-batch.
            """
            asked = key_of_column_texts("search", stored.store_of(table).store, key)
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
        """Return the explanation of a row as JSON data: the tree of the rows that make it, with
        values as text.

        Each row of the tree has ``name``, ``step`` (in words), ``key``, ``presence``, ``values``,
        ``time`` and ``reason``. It also has ``is_input``, ``inputs`` and ``cause``. ``presence`` is
        ``row``, ``none`` if the key has no row, or ``unknown`` if the state does not tell.
        ``inputs`` are the rows that make it, in the same form; ``cause`` is null.

        ``result``: the name of one of ``results``; of several with one name, the first counts.
        ``key``: a text for each of its key columns, in order; ``null`` is null. Raises
        ``ConfigurationError`` for an unknown result. Raises ``PlanError`` for more or fewer texts
        than key columns, and for texts of another type. Errors of ``explain_stored_row``, which
        reads the checkpoint, pass.
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
        shown: dict[str, Any] = exact_for_browsers(reason.to_dict())
        return shown


def exact_for_browsers(data: Any) -> Any:
    """Return JSON data, at any depth, with text in place of numbers that a browser does not have:
    whole numbers above 2**53 or below -2**53, NaN and infinities. Names stay as they are.
    """
    if isinstance(data, dict):
        return {name: exact_for_browsers(part) for name, part in data.items()}
    if isinstance(data, list):
        return [exact_for_browsers(part) for part in data]
    strange = isinstance(data, int) and abs(data) > _WHOLE_MAX
    strange = strange or (isinstance(data, float) and not math.isfinite(data))
    return str(data) if strange else data


def latest_letters(folder: str | None) -> dict[str, Any]:
    """Return at most 20 dead letters in a local folder of Parquet files, as JSON data: ``header``
    and ``rows``, each a list of cells. Both are empty if there are none, or no such folder.

    The header is time, operator, problem and row. ``folder``: its path, with or without ``file:``,
    or None for no folder. Folders of micro-batches in it (``_batch=<id>``) are read from the last
    one back, until there are enough. Letters of one are in the order of file names and, in each
    file, the latest first.
    """
    if folder is None:
        return {"header": [], "rows": []}
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
    """Return an error as a text for people who look at the page: problem and remedy, as two
    sentences, of an error of this library; else the error's class and the first line of its text.
    """
    if isinstance(error, DovetailError):
        return f"{error.problem}. {error.remedy}."
    return line_of(error)
