"""The public calls that make topologies, with their options, and those that drawn cases use.

A call is ``Table.join``, an option of it ``Table.join(align=)``; where an option's values are named
in its signature, ``Table.join(how='left')``. Those are told from the public classes and functions
themselves, so a call that is added is here, too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from unittest import mock

from public_names import MODULES, exported

import dovetail as dt
from dovetail.base.validation import parameter_annotations

CLASSES = (
    dt.Table,
    dt.Stream,
    dt.WindowedTable,
    dt.typing.GroupedTable,
    dt.typing.GroupedStream,
    dt.typing.WindowedStream,
)

OWNERS = {
    **{class_.__name__: class_ for class_ in CLASSES},
    **{module.__name__.replace("dovetail", "dt", 1): module for module in MODULES},
}
"""The classes and modules by the part of a call's name before its last dot."""


def public() -> dict[str, Callable[..., Any]]:
    """All functions and methods by name."""
    functions = {
        f"dt.{name}": value
        for name, value in exported()
        if inspect.isfunction(value) and not name.startswith("testing.")
    }
    methods = {
        f"{class_.__name__}.{name}": member
        for class_ in CLASSES
        for name, member in inspect.getmembers(class_, callable)
        if not name.startswith("_")
    }
    return functions | methods


def known() -> set[str]:
    """All calls and options."""
    return {one for name, function in public().items() for one in _options(name, function)}


def _options(name: str, function: Callable[..., Any]) -> Iterator[str]:
    yield name
    kinds = _annotations(function)
    for parameter in _parameters(function):
        values = [*_literals(kinds.get(parameter.name))]
        others = [value for value in values if value != parameter.default]
        yield from (f"{name}({parameter.name}={value!r})" for value in others)
        optional = parameter.default is not parameter.empty
        if optional and not others:
            yield f"{name}({parameter.name}=)"


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name not in ("self", "cls")
    ]


def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    return parameter_annotations(inspect.unwrap(getattr(function, "__func__", function)))


def _literals(kind: Any) -> Iterator[Any]:
    if get_origin(kind) is Literal:
        yield from get_args(kind)
    elif get_origin(kind) is Annotated:
        yield from _literals(get_args(kind)[0])
    elif get_origin(kind) in (Union, UnionType):
        for part in get_args(kind):
            yield from _literals(part)


def given(name: str, function: Callable[..., Any], arguments: dict[str, Any]) -> Iterator[str]:
    """What a call with these arguments uses."""
    yield name
    for parameter in _parameters(function):
        value = arguments.get(parameter.name, parameter.default)
        optional = parameter.default is not parameter.empty
        if parameter.name in arguments and (not optional or value is not parameter.default):
            yield f"{name}({parameter.name}=)"
            if isinstance(value, str):
                yield f"{name}({parameter.name}={value!r})"


@contextmanager
def recorded() -> Iterator[set[str]]:
    """The calls and options that are used from outside of the package while this is open."""
    found: set[str] = set()
    with ExitStack() as stack:
        for name, function in public().items():
            first, _, last = name.rpartition(".")
            owner: Any = OWNERS[first]
            wrapper: Any = _recording(name, function, found)
            if inspect.ismethod(function):  # of the class
                wrapper = staticmethod(wrapper)
            stack.enter_context(mock.patch.object(owner, last, wrapper))
        yield found


def _recording(name: str, function: Callable[..., Any], found: set[str]) -> Callable[..., Any]:
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind_partial(*args, **kwargs).arguments
        found.update(given(name, function, bound))
        return function(*args, **kwargs)

    return call


_OUTSIDE = "needs a system outside of the process; tests of io, lookups and connect have it"
_RUNS = "runs a topology or looks at a run; fuzz.spark, seeded and upgraded draw how"
_SAYS = "makes no rows"

_LEFT_OUT = ("drop", "dead_letter")
_COMPUTES = ("select", "where", "with_columns")

UNDRAWN: dict[str, str] = {
    **dict.fromkeys(
        (
            *("Table.from_topic", "Stream.from_topic", "Table.from_delta", "dt.read_topic"),
            *("Table.from_iceberg", "Table.from_changes"),
            *(
                "dt.formats.avro",
                "dt.formats.debezium",
                "dt.formats.json",
                "dt.formats.protobuf",
                "dt.formats.registry",
            ),
            *("dt.formats.canal", "dt.formats.maxwell"),
            *("dt.lookups.iceberg", "dt.lookups.mongodb", "dt.lookups.redis"),
            *("dt.lookups.dbapi", "dt.lookups.postgres", "dt.lookups.delta_files"),
            "dt.to_iceberg",
            *("dt.to_delta", "dt.to_postgres", "dt.to_topic", "dt.to_parquet"),
        ),
        _OUTSIDE,
    ),
    **dict.fromkeys(
        (
            *("Table.changelog", "Stream.changelog", "Table.write_stream", "Stream.write_stream"),
            *(
                *("Table.dead_letters", "Stream.dead_letters", "dt.replay"),
                *("Table.with_replays", "Stream.with_replays"),
                "dt.run",
                "dt.checkpoints.upgrade",
                "dt.checkpoints.rewind",
            ),
            *(
                "dt.checkpoints.repartition",
                "dt.checkpoints.read_state",
                "dt.read_current",
                "dt.checkpoints.lookup_state",
                "dt.checkpoints.explain_row",
            ),
            *("dt.to_console", "dt.to_memory", "dt.to_foreach_batch"),
        ),
        _RUNS,
    ),
    **dict.fromkeys(
        (
            *("Table.explain", "Stream.explain", "WindowedTable.explain", "dt.explain"),
            *(
                f"{c}.{m}"
                for c in ("Table", "Stream", "WindowedTable")
                for m in ("show", "preview")
            ),
            *("dt.configure", "dt.doctor", "dt.checkpoints.settings", "dt.preview"),
            *(
                "dt.progress",
                "dt.serve",
                "dt.lineage",
                "dt.metrics.prometheus",
                "dt.metrics.recent",
            ),
            *("dt.metrics.record", "dt.metrics.recorded", "dt.metrics.opentelemetry"),
        ),
        _SAYS,
    ),
    **dict.fromkeys(
        (
            *(
                f"{c}.from_changelog(malformed={m!r})"
                for c in ("Table", "Stream")
                for m in _LEFT_OUT
            ),
            *(f"{c}.from_changelog(max_ahead=)" for c in ("Table", "Stream")),
        ),
        "is decided where a frame is read; tests/io has it",
    ),
    "Table.from_static(duplicates='last')": "is decided where a frame is read; test_static has it",
    "Table.retire": "is made of other calls, with expressions; tests/plan has it",
    "Table.from_records": "formats are read by tests/io, and by no law of a topology",
    "Stream.from_records": "formats are read by tests/io, and by no law of a topology",
    "Stream.from_changelog(versioned=)": "is for tables",
    "Stream.join(how='right')": "is refused",
    "WindowedTable.join(how='right')": "is refused",
    "Table.join(errors='dead_letter')": "is a view of the joined rows, as select= of views is",
    "Stream.join(errors='dead_letter')": "is a view of the joined rows, as select= of views is",
    "Stream.lookup(errors='dead_letter')": "is a view of the joined rows, as select= of views is",
    "dt.approx_count_distinct": "is an estimate, which tests/aggregates hold to its error",
    "dt.delta_join(strategy='none')": "is a join without lookups, which graphs draw",
    "Stream.join(load='first')": "is the way a query begins; tests/spark/migration has it",
    "dt.lookups.sqlite(where=)": "is drawn by tests/lookup_sources/test_delta_histories",
    "dt.lookups.sqlite(retries=)": "is for a store that fails",
    "dt.lookups.sqlite(timeout_s=)": "is for a store that fails",
    **dict.fromkeys(
        (
            *("Table.key_by", "Table.union", "Stream.key_by(errors='dead_letter')"),
            *(f"{c}.{m}(errors='dead_letter')" for c in ("Table", "Stream") for m in _COMPUTES),
            *(f"{c}.expect(on_fail='dead_letter')" for c in ("Table", "Stream")),
        ),
        "needs a session of Spark: fuzz --family computed",
    ),
    "dt.lookups.index(unique=)": "says what a store has, and is checked by tests/lookup_sources",
}
"""What no drawn case uses, and why not. A call stands for its options, too."""


def excused(call: str) -> bool:
    """Whether a call or an option is among ``UNDRAWN``."""
    return call in UNDRAWN or call.partition("(")[0] in UNDRAWN
