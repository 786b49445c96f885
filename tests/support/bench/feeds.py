"""Rows on their way to the driver of the tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias

from dovetail import testing

Feed: TypeAlias = "tuple[str, Mapping[str, Any], Any, bool]"
"""The name of an input, a row, its time, and whether it is a tombstone."""


def pipe_all(driver: testing.Driver, inputs: Mapping[str, Any], feeds: Iterable[Feed]) -> None:
    """Feed rows in their order. Those of one input in a row come in one call."""
    for (name, deleted), run in groupby(feeds, itemgetter(0, 3)):
        _, rows, times, _ = zip(*run, strict=True)
        driver.pipe(inputs[name], list(rows), timestamp=list(times), deleted=deleted)
