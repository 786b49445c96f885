"""Aggregates by users' functions: the order of merges, what is asked of functions, and errors."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from bench.models.aggregates import Update, check, check_merged, cuts, run, scripts
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle

from dovetail.aggregates.aggregate import AggregateError, GroupUpdates, null_accumulators
from dovetail.aggregates.user_defined import Functions, State, UserDefined

TEXT, LONG = pa.string(), pa.int64()


def joined(a: pa.Array, b: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(a, b, "")


TEXTS = Functions(
    init=lambda n: {"text": pa.array([""] * n)},
    add=lambda state, value: {"text": joined(state["text"], pc.fill_null(value, "-"))},
    merge=lambda a, b: {"text": joined(a["text"], b["text"])},
    retract=None,
    finish=None,
    columns=(("text", TEXT),),
    returns=TEXT,
)
"""Not commutative: shows the order of rows and merges."""


def each(function: Callable[..., pa.Array], a: State, b: State) -> State:
    return {name: function(a[name], b[name]) for name in ("x", "y")}


WEIGHTED = Functions(
    init=lambda n: {"x": pa.array([0] * n), "y": pa.array([0] * n)},
    add=lambda state, x, y: each(pc.add, state, {"x": pc.multiply(pc.fill_null(x, 0), y), "y": y}),
    merge=lambda a, b: each(pc.add, a, b),
    retract=lambda a, b: each(pc.subtract, a, b),
    finish=lambda state: pc.add(pc.multiply(state["x"], 1000), state["y"]),
    columns=(("x", LONG), ("y", LONG)),
    returns=LONG,
)
"""Two columns in, two in the accumulator, and a result that is neither."""


class TextModel:
    def __init__(self) -> None:
        self.text = ""

    def update(self, retracted: bool, *values: Any) -> None:
        self.text += "".join("-" if value is None else value for value in values)

    def result(self) -> str:
        return self.text


class WeightedModel:
    def __init__(self) -> None:
        self.rows: Counter[tuple[int, int]] = Counter()

    def update(self, retracted: bool, *values: Any) -> None:
        x, y = values
        self.rows[x or 0, y] += -1 if retracted else 1

    def result(self) -> int:
        return sum(n * (1000 * x * y + y) for (x, y), n in self.rows.items())


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_rows_are_merged_in_their_order(data: st.DataObject) -> None:
    values = st.none() | st.sampled_from("abc")
    script = data.draw(scripts(values, retracts=False, size=24))
    right = data.draw(scripts(values, retracts=False, size=9))
    check(UserDefined(TEXTS), TextModel, script, [TEXT], data.draw(cuts(script)))
    check_merged(UserDefined(TEXTS), script, right, [TEXT])


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_rows_are_taken_out(data: st.DataObject) -> None:
    values = (st.none() | st.integers(0, 9), st.integers(1, 9))
    script = data.draw(scripts(*values, retracts=True, size=24))
    right = data.draw(scripts(*values, retracts=True, size=9))
    check(UserDefined(WEIGHTED), WeightedModel, script, [LONG, LONG], data.draw(cuts(script)))
    check_merged(UserDefined(WEIGHTED), script, right, [LONG, LONG])


def test_a_function_is_called_as_often_as_the_longest_group_has_bits() -> None:
    calls: Counter[str] = Counter()

    def counted(name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            calls[name] += 1
            assert not any(
                len(c) == 0 for s in arguments if isinstance(s, dict) for c in s.values()
            )
            return getattr(TEXTS, name)(*arguments)

        return call

    functions = replace(TEXTS, **{name: counted(name) for name in ("init", "add", "merge")})
    script = [Update(number % 2, False, ("a",)) for number in range(200)]
    emitted, _ = run(UserDefined(functions), script, [TEXT])
    assert emitted[-1] == "a" * 100
    assert calls["add"] == 2  # for running and for final
    assert calls["merge"] == 2 * 7


def test_it_travels_to_workers() -> None:
    def merge(a: State, b: State) -> State:
        return {"text": joined(a["text"], b["text"])}

    sent = cloudpickle.dumps(UserDefined(replace(TEXTS, merge=merge)))
    script = [Update(0, False, (value,)) for value in "abc"]
    assert run(pickle.loads(sent), script, [TEXT])[0] == ["a", "ab", "abc"]


def test_a_new_group_is_what_init_says() -> None:
    aggregate = UserDefined(TEXTS)
    state = null_accumulators(aggregate.state, 2)
    assert aggregate.results(state).to_pylist() == ["", ""]
    assert aggregate.results(aggregate.merged(state, state)).to_pylist() == ["", ""]
    nothing = GroupUpdates(np.zeros(0, np.int64), 2, np.zeros(0, np.bool_))
    assert len(aggregate.scan(nothing, state, [pa.nulls(0, TEXT)])) == 0


@pytest.mark.parametrize(
    ("name", "function", "message"),
    [
        (
            "init",
            lambda n: {"text": pa.array([""] * (n + 1))},
            r"init .* returned string\[\d\] for",
        ),
        ("init", lambda n: pa.array([""] * n), "init .* returned StringArray"),
        ("add", lambda state, value: {}, r"add .* returned \[\]"),
        ("add", lambda state, value: {"text": value, "b": value}, r"returned \['b', 'text'\]"),
        ("add", lambda state, value: {"text": pc.utf8_length(value)}, r"returned int32\[3\]"),
        ("merge", lambda a, b: {"text": a["text"].to_pylist()}, "merge .* returned list for"),
        ("finish", lambda state: state["text"].slice(1), r"finish .* string\[2\] for its result"),
        ("finish", lambda state: state, "finish .* returned dict for its result"),
    ],
)
def test_what_functions_must_return(name: str, function: Callable[..., Any], message: str) -> None:
    aggregate = UserDefined(replace(TEXTS, **{name: function}))
    script = [Update(0, False, (value,)) for value in "abc"]
    with pytest.raises(AggregateError, match=message) as raised:
        run(aggregate, script, [TEXT])
    assert "Return " in raised.value.remedy


def test_chunked_columns_are_taken() -> None:
    chunked = replace(
        TEXTS, merge=lambda a, b: {"text": pa.chunked_array([TEXTS.merge(a, b)["text"]])}
    )
    script = [Update(0, False, (value,)) for value in "abc"]
    assert run(UserDefined(chunked), script, [TEXT])[0] == ["a", "ab", "abc"]
