"""Joins as a type checker sees them: calls that it takes, and calls that it refuses.

Nothing here runs. ``./dev lint`` checks it with mypy, which reports a comment
that is not needed.
"""

from __future__ import annotations

from pyspark.sql import functions as F

import dovetail as dt


def taken(table: dt.Table, stream: dt.Stream, windowed: dt.WindowedTable) -> None:
    table.join(table)
    table.join(table, on="id", how="outer", late="history", align="1 min", name="pairs")
    table.join(table, on={"id": "id"}, how="left", select=["left.x"], errors="dead_letter")
    table.join(table, on=F.lower("name"), how="right", select={"x": F.col("left.x")})
    table.join(table, on="city", how="right", delta_join=dt.delta_join(strategy="force"))
    table.join(table, late="history", delta_join=dt.delta_join(strategy="none"))
    table.join(windowed, window_of="at")
    table.join(windowed, how="left", window_of=F.date_trunc("hour", "at"), select=["n"])
    stream.join(table, on="id", how="left", grace="1 hour", align="1 min")
    stream.join(stream, how="outer", within=dt.within(after="1 min"), unmatched="eager")
    stream.join(windowed, on=["id"], window_of="at", errors="dead_letter", name="hours")
    windowed.join(windowed, how="outer", select=["left.n"])
    windowed.join(windowed, shift="-7 days")
    windowed.join(windowed, how="left", shift="-7 days", on={"a": "b"})
    windowed.join(table, how="left", select=["n"], name="pages")


def refused(table: dt.Table, stream: dt.Stream, windowed: dt.WindowedTable) -> None:
    table.join(stream)  # type: ignore[call-overload]
    table.join(table, how="right")  # type: ignore[call-overload]
    table.join(table, on="city", how="right", late="history")  # type: ignore[call-overload]
    table.join(table, on="city", how="right", align="1 min")  # type: ignore[call-overload]
    table.join(table, how="full")  # type: ignore[call-overload]
    table.join(table, window_of="at")  # type: ignore[call-overload]
    table.join(table, within=dt.within(after="1 min"))  # type: ignore[call-overload]
    table.join(table, grace="1 min")  # type: ignore[call-overload]
    table.join(windowed)  # type: ignore[call-overload]
    table.join(windowed, how="inner", window_of="at")  # type: ignore[call-overload]
    table.join(windowed, window_of="at", late="history")  # type: ignore[call-overload]
    table.join(windowed, window_of="at", align="1 min")  # type: ignore[call-overload]
    table.join(windowed, window_of="at", delta_join=dt.delta_join())  # type: ignore[call-overload]
    stream.join(table, how="outer")  # type: ignore[call-overload]
    stream.join(table, within=dt.within(after="1 min"))  # type: ignore[call-overload]
    stream.join(table, unmatched="eager")  # type: ignore[call-overload]
    stream.join(table, window_of="at")  # type: ignore[call-overload]
    stream.join(stream)  # type: ignore[call-overload]
    stream.join(stream, how="right", within=dt.within(after="0 s"))  # type: ignore[call-overload]
    stream.join(stream, within=dt.within(after="0 s"), grace="1 s")  # type: ignore[call-overload]
    stream.join(windowed)  # type: ignore[call-overload]
    stream.join(windowed, how="inner", window_of="at")  # type: ignore[call-overload]
    stream.join(windowed, window_of="at", grace="1 s")  # type: ignore[call-overload]
    stream.join(windowed, window_of="at", align="1 s")  # type: ignore[call-overload]
    windowed.join(windowed, how="right")  # type: ignore[call-overload]
    windowed.join(windowed, how="inner", shift="-7 days")  # type: ignore[call-overload]
    windowed.join(table, how="inner")  # type: ignore[call-overload]
    windowed.join(table, shift="-7 days")  # type: ignore[call-overload]
    windowed.join(stream)  # type: ignore[call-overload]
