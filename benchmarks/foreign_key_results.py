"""The results that an inner join by foreign key owes, computed without it, and those that came.

Records are rows of numbers: ``seq``, their place in the order of arrival; ``side``; ``key``;
``foreign``, of a left record the right key that it names; ``number``, which tells a side's records
apart. Results are the key, the numbers of both records and ``seq``, of the record that causes each;
a tombstone has no numbers. No record deletes anything.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

_RESULT = ("key", "left", "right")


@dataclass(frozen=True)
class Difference:
    """Between the results that came and those owed: how many are owed and did not come, how many
    came and are not owed, and whether each key's came in their order.
    """

    owed: int
    dropped: int
    surplus: int
    in_order: bool


def owed(records: pl.DataFrame) -> pl.DataFrame:
    """All results of ``emission: change``, in order (spec/foreign_key)."""
    records = records.sort("seq")
    left = records.filter(pl.col("side") == "left").select("seq", "key", "foreign", "number")
    right = records.filter(pl.col("side") == "right").select(
        "seq", pl.col("key").alias("foreign"), pl.col("number").alias("right")
    )
    left = left.with_columns(
        end=pl.col("seq").shift(-1).over("key"), former=pl.col("foreign").shift(1).over("key")
    )
    # A left record meets the right row of its time, and without one ends what its key had.
    met = left.join_asof(right, on="seq", by="foreign", check_sortedness=False)
    moved = pl.col("former").is_not_null() & (pl.col("former") != pl.col("foreign"))
    own = met.filter(pl.col("right").is_not_null() | moved).select(
        *("seq", "key"),
        pl.when(pl.col("right").is_not_null()).then("number").alias("left"),
        "right",
    )
    # A right record meets the left rows that name it in its time.
    pairs = right.join(left.rename({"seq": "start", "number": "left"}), on="foreign")
    named = (pl.col("start") < pl.col("seq")) & (
        pl.col("end").is_null() | (pl.col("seq") < pl.col("end"))
    )
    fanned_out = pairs.filter(named).select("seq", "key", "left", "right")
    return pl.concat([own, fanned_out]).sort("seq")


def difference(came: pl.DataFrame, owed: pl.DataFrame) -> Difference:
    """Between results, each frame's of one key in order."""
    came, owed = came.select(_RESULT), owed.select(_RESULT)
    counts = pl.concat(
        [came.with_columns(surplus=pl.lit(1)), owed.with_columns(surplus=pl.lit(-1))]
    )
    surplus = counts.group_by(_RESULT).agg(pl.sum("surplus"))["surplus"]
    return Difference(
        owed=len(owed),
        dropped=-int(surplus.filter(surplus < 0).sum()),
        surplus=int(surplus.filter(surplus > 0).sum()),
        in_order=came.sort("key", maintain_order=True).equals(
            owed.sort("key", maintain_order=True)
        ),
    )
