"""The owner of a target table: a query, by Spark's id of it, which is stored in its checkpoint."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from pyspark.sql import SparkSession

from dovetail.errors import PlanError, TargetError
from dovetail.platform.files import files_of

Existing: TypeAlias = Literal["fail", "replace", "adopt"]
"""The treatment of a table with rows that is not the query's: raise an error, replace them, or go
on with them.
"""
TableRelation: TypeAlias = Literal["kept", "replaced", "adopted"]
"""The relation of a query to its table: it owns the table, replaces its rows, or goes on with them.
"""
_PARTITIONS = "spark.sql.shuffle.partitions"
"""Spark's setting for the count of partitions of the state, which each planned micro-batch has."""


@dataclass
class Owner:
    """The query that a sink writes for, known by its checkpoint."""

    checkpoint: str
    """The folder of the checkpoint, which is read at the first question alone."""
    _id: str | None = field(default=None, init=False)

    def query_id(self, session: SparkSession) -> str:
        """Return the id of the query that writes, which the checkpoint names. It is read once. The
        query must have begun: a checkpoint without an id asserts.
        """
        if self._id is None:
            self._id, _ = query_of_checkpoint(session, self.checkpoint)
        assert self._id is not None, self.checkpoint
        return self._id

    def batch_before(self, session: SparkSession, batch_id: int) -> int:
        """Return the id of the last micro-batch before ``batch_id`` that was written to sinks; -1
        for none. A repartition of the state takes an id, too, and writes nothing.
        """
        before = batch_id - 1
        while before > 0 and self._repartitions(session, before):
            before -= 1
        return before

    def _repartitions(self, session: SparkSession, batch_id: int) -> bool:
        """Return True if micro-batch ``batch_id``, which is not the first one, is a repartition of
        the state: its plan has another count of partitions than the one before. False if the
        checkpoint lacks one of the two plans.
        """
        files, counts = files_of(session), []
        for planned in (batch_id - 1, batch_id):
            text = files.text(f"{self.checkpoint}/offsets/{planned}")
            if text is None:
                return False
            counts.append(json.loads(text.splitlines()[1])["conf"].get(_PARTITIONS))
        return bool(counts[0] != counts[1])


def query_of_checkpoint(session: SparkSession, checkpoint: str) -> tuple[str | None, bool]:
    """Return two facts on the query of a checkpoint: its id, None in a new one; and True if a
    micro-batch of the query is complete, else False. A missing folder counts as a new checkpoint.
    """
    files = files_of(session)
    metadata = files.text(f"{checkpoint}/metadata")
    if metadata is None:
        return None, False
    return json.loads(metadata)["id"], files.has_files(f"{checkpoint}/commits")


def relation_to_table(
    title: str, existing: Existing, *, owner: str | None, query: str | None, begun: bool
) -> TableRelation:
    """Return the relation of a query to a table that exists.

    - ``"kept"``: the query owns the table.
    - ``"replaced"``: it does not, and its rows are to replace the table's (``existing="replace"``).
    - ``"adopted"``: it does not, and goes on with the rows that are there. This also stands for
      ``existing="fail"``, with which the caller must refuse a table with rows.

    ``title``: the sink's name in errors. ``owner``: the id of the query that owns the table, None
    for none. ``query``: the query's id, None before its first start, so that no table is
    ``"kept"``. ``begun``: True if a micro-batch of it is complete. Raises ``TargetError`` if a
    query that has begun does not own the table, unless ``existing`` is ``"adopt"``.
    """
    if query is not None and owner == query:
        return "kept"
    if begun and existing != "adopt":
        raise TargetError(
            title,
            "it is not the table that this checkpoint has kept, or another query has taken it",
            "Start with a new checkpoint, or go on with the rows that are there by "
            "existing='adopt'",
        )
    return "replaced" if existing == "replace" else "adopted"


def refuse_gone(title: str) -> None:
    """Raise ``TargetError``: the table that this query's checkpoint has written is missing.
    ``title``: the sink's name in errors.
    """
    raise TargetError(
        title,
        "the table that this checkpoint has kept is gone",
        "Bring it back, or start with a new checkpoint",
    )


def must_be_empty(existing: Existing, relation: TableRelation) -> bool:
    """Return True if a table must have no rows when a query begins: ``relation`` is ``"adopted"``,
    so the query does not own the table, and ``existing`` is ``"fail"``.
    """
    return relation == "adopted" and existing == "fail"


def refuse_rows(title: str, *, is_empty: bool) -> None:
    """Raise ``TargetError`` unless ``is_empty``: a table that a query begins to write has rows.
    ``title``: the sink's name in errors.
    """
    if not is_empty:
        raise TargetError(
            title,
            "the table has rows that this query has not written",
            "Choose another one, let them be replaced by existing='replace', or keep those "
            "whose keys do not come by existing='adopt'",
        )


def refuse_taken(title: str) -> None:
    """Raise ``TargetError``: another query has become the table's owner since this one began.
    ``title``: the sink's name in errors.
    """
    raise TargetError(
        title,
        "another query has taken the table over",
        "Let one query at a time keep it, each with a table of its own",
    )


def refuse_existing(title: str, existing: Existing) -> None:
    """Raise ``PlanError`` if ``existing=`` is given for a sink that appends, so is not ``"fail"``.
    ``title``: the sink's name in errors.
    """
    if existing != "fail":
        raise PlanError(
            title,
            "existing= is for tables; records and histories are appended to what is there",
            "Leave it out",
        )
