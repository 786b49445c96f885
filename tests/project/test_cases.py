"""``./dev cases``: lines in, lines out, in one order, errors included."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bench.parameters import slow_after

TOOL = Path(__file__).parents[2] / "tools" / "cases.py"


def event(side: str, key: str | None, value: str | None, ts: int) -> dict[str, Any]:
    return {"side": side, "key": key, "value": value, "ts": ts}


def change(value: str | None, ts: int, key: str = "k") -> dict[str, Any]:
    return {"key": key, "value": value, "ts": ts}


EVENTS = [
    event("L", None, "A", 1),
    event("L", "k", "A", 2),
    event("R", "k", "", 1),
    event("L", "k", None, 3),
    event("L", "k", None, 3),
]
BY_FOREIGN_KEY = [
    event("L", None, "x|A", 1),
    event("L", "k", "x|A", 5),
    event("R", "x", "a", 6),
    event("L", "k", "|B", 4),
    event("L", "j", "x|y|C", 7),
]
CASES: list[dict[str, Any]] = [
    {"id": "i", "op": "table_table_inner", "events": EVENTS},
    {"id": "x", "op": "no_such_op", "events": []},
    {"id": "l", "op": "table_table_left", "materialized": True, "events": EVENTS},
    {"id": "v", "op": "table_table_left", "before_ms": 5, "events": EVENTS},
    {"id": "o", "op": "table_table_outer", "events": EVENTS},
    {"id": "e", "op": "table_table_outer", "events": []},
    {"id": "fi", "op": "fk_inner", "events": BY_FOREIGN_KEY},
    {"id": "fl", "op": "fk_left", "events": BY_FOREIGN_KEY},
    {"id": "fv", "op": "fk_left", "left_versioned_ms": 9, "events": BY_FOREIGN_KEY},
    {"id": "fo", "op": "fk_outer", "events": BY_FOREIGN_KEY},
]
BY_WINDOW = [
    event("L", None, "A", 1),
    event("L", "k", "AB", 1),
    event("R", "k", None, 4),
    event("L", "j", "A", 11),
    event("R", "k", "A", 3),
]
CASES += [
    {"id": "wt", "op": "windowed_agg_count_tumbling", "size_ms": 4, "events": BY_WINDOW},
    {
        "id": "wh",
        "op": "windowed_agg_count_hopping",
        "size_ms": 4,
        "advance_ms": 2,
        "grace_ms": 6,
        "events": BY_WINDOW,
    },
    {
        "id": "wf",
        "op": "windowed_agg_count_tumbling",
        "size_ms": 4,
        "grace_ms": 2,
        "emit": "on_window_close",
        "events": BY_WINDOW,
    },
    {"id": "wx", "op": "windowed_agg_count_session", "size_ms": 4, "events": []},
]
DROPPED = [1, 0, 0, 0, 0]
LATE = {"wt": 1, "wh": 1, "wf": 1}
ANSWERS: list[dict[str, Any]] = [
    {"id": "i", "out": [[], [], [change("A+", 2)], [change(None, 3)], [change(None, 3)]]},
    {"id": "x", "error": "unknown op no_such_op"},
    {
        "id": "l",
        "out": [
            [],
            [change("A+null", 2)],
            [change("A+", 2)],
            [change(None, 3)],
            [change(None, 3)],
        ],
    },
    {"id": "v", "error": "unknown options before_ms"},
    {
        "id": "o",
        "out": [
            [],
            [change("A+null", 2)],
            [change("A+", 2)],
            [change("null+", 3)],
            [change("null+", 3)],
        ],
    },
    {"id": "e", "out": []},
    {
        "id": "fi",
        "out": [[], [], [change("x|A+a", 6)], [change(None, 6)], [change("x|y|C+a", 7, "j")]],
    },
    {
        "id": "fl",
        "out": [
            [],
            [change("x|A+null", 5)],
            [change("x|A+a", 6)],
            [change("|B+null", 4)],
            [change("x|y|C+a", 7, "j")],
        ],
    },
    {
        "id": "fv",
        "out": [
            [],
            [change("x|A+null", 5)],
            [change("x|A+a", 6)],
            [],
            [change("x|y|C+a", 7, "j")],
        ],
    },
    {"id": "fo", "error": "unknown op fk_outer"},
    {
        "id": "wt",
        "out": [
            [],
            [change("1", 1, "k@0")],
            [change("1", 4, "k@4")],
            [change("1", 11, "j@8")],
            [],
        ],
    },
    {
        "id": "wh",
        "out": [
            [],
            [change("1", 1, "k@0")],
            [change("1", 4, "k@2"), change("1", 4, "k@4")],
            [change("1", 11, "j@8"), change("1", 11, "j@10")],
            [change("2", 4, "k@2")],
        ],
    },
    {
        "id": "wf",
        "out": [[], [], [], [change("1", 1, "k@0"), change("1", 4, "k@4")], []],
    },
    {"id": "wx", "error": "unknown op windowed_agg_count_session"},
]


def dropped(answer: dict[str, Any]) -> list[int]:
    """The event without a key and, of windows, the last one for those that are closed."""
    found = DROPPED[: len(answer["out"])]
    return [*found[:-1], LATE[answer["id"]]] if answer["id"] in LATE else found


@pytest.mark.parametrize(
    "options",
    slow_after(
        2,
        [
            "--runner kernel --split 1 --restart",
            "--runner driver --restart --split 3",
            "--runner kernel",
            "--runner driver --split 2",
        ],
    ),
)
def test_cases(options: str) -> None:
    asked = "\n".join(json.dumps(case) for case in CASES)
    command = [sys.executable, str(TOOL), *options.split(), "--dropped"]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=True)
    expected = [
        answer | ({"dropped": dropped(answer)} if "out" in answer else {}) for answer in ANSWERS
    ]
    assert [json.loads(line) for line in done.stdout.splitlines()] == expected
