"""The docstring of each public name has numpy's sections, and they fit the signature."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Iterator
from typing import Any, is_typeddict

import griffe
import pytest
from public_names import exported

import dovetail as dt

SUMMARY_MAX = 100
"""The longest summary, in characters: it is one line in an index."""
SELF_EVIDENT = {"driver", "read", "settings"}
"""Calls that no argument can make fail: they need no section ``Raises``."""


def public() -> Iterator[tuple[str, Any]]:
    """Each public name with its object, and each public method and property of a class once."""
    for name, value in exported():
        if not (inspect.isclass(value) or inspect.isfunction(value)):
            continue
        yield name, value
        if inspect.isclass(value) and not issubclass(value, Exception | Warning):
            yield from members(name, value)


def members(owner: str, class_: type) -> Iterator[tuple[str, Any]]:
    for base in class_.__mro__:
        if not base.__module__.startswith("dovetail") or base.__name__.startswith("Hinted"):
            continue
        for name, value in vars(base).items():
            if name.startswith("_") or inspect.getattr_static(class_, name, None) is not value:
                continue
            value = getattr(value, "__func__", value)
            if inspect.isfunction(value) or isinstance(value, property):
                yield f"{owner}.{name}", value


NAMES: dict[int, tuple[str, Any]] = {}
for full, found in public():
    NAMES.setdefault(id(found), (full, found))
CALLS = [pytest.param(value, id=name) for name, value in NAMES.values()]


def sections(value: Any) -> dict[str, Any]:
    """The parts of a docstring by their titles, in order; the text before them is ``summary``."""
    parts: dict[str, Any] = {}
    for part in griffe.parse_numpy(griffe.Docstring(inspect.getdoc(value) or ""), warnings=False):
        kind = part.kind.value
        title = (part.title or kind).lower() if kind == "admonition" else kind
        parts["summary" if kind == "text" and not parts else title] = part.value
    return parts


def parameters(value: Any) -> list[str]:
    if isinstance(value, property):
        return []
    if is_typeddict(value):
        return [*value.__annotations__]
    names = [*inspect.signature(value).parameters.values()]
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [stars.get(p.kind, "") + p.name for p in names if p.name not in ("self", "cls")]


def known() -> set[str]:
    """The names that See Also may refer to: those of a module, and ``Class.member``."""
    names = {"SparkSession.builder"}
    for full, value in exported():
        name = full.rpartition(".")[2]
        names |= {full, name}
        if inspect.isclass(value):
            names |= {f"{name}.{member}" for member in dir(value)}
    return names


@pytest.mark.parametrize("value", CALLS)
def test_the_sections_fit_the_signature(value: Any) -> None:
    found = sections(value)
    summary = str(found.get("summary", "")).split("\n\n")[0]
    assert summary.endswith((".", ":")), "a summary is a sentence"
    assert "\n" not in summary, "a summary is one line"
    assert len(summary) <= SUMMARY_MAX
    if inspect.isclass(value) and issubclass(value, Exception | Warning):
        return
    names = parameters(value)
    made_by_calls = inspect.isclass(value) and "parameters" not in found
    if names and not made_by_calls:
        given = [name for one in found["parameters"] for name in str(one.name).split(", ")]
        assert given == names, "Parameters lists each one, in the order of the signature"
    if not inspect.isclass(value) and not isinstance(value, property):
        if inspect.signature(value).return_annotation not in ("None", None):
            assert "returns" in found
        if names and value.__name__ not in SELF_EVIDENT:
            assert "raises" in found
    assert "see also" in found


@pytest.mark.parametrize("call", [dt.run, dt.Table.write_stream, dt.Stream.write_stream])
def test_shared_options_are_arguments_of_each_call(call: Any) -> None:
    shared = [*dt.typing.QueryOptions.__annotations__]
    assert parameters(call)[-len(shared) :] == shared
    described = {str(one.name): one.description for one in sections(call)["parameters"]}
    where = {
        str(one.name): one.description for one in sections(dt.typing.QueryOptions)["parameters"]
    }
    assert {name: described[name] for name in shared} == where
    assert inspect.signature(call).parameters["emit"].default == "change"


def test_the_package_lists_its_public_names_alone() -> None:
    assert dir(dt) == sorted(dt.__all__)
    for module in (dt.windows, dt.formats, dt.lookups, dt.checkpoints, dt.typing):
        assert dir(module) == sorted(module.__all__)


@pytest.mark.parametrize("value", CALLS)
def test_there_is_an_example(value: Any) -> None:
    if inspect.isclass(value) and issubclass(value, Exception | Warning):
        return
    text = inspect.getdoc(value) or ""
    assert "Examples\n--------\n" in text
    assert doctest.DocTestParser().get_examples(text.partition("Examples\n--------\n")[2])


@pytest.mark.parametrize("value", CALLS)
def test_what_is_referred_to_exists(value: Any) -> None:
    for line in str(sections(value)["see also"].contents).splitlines():
        name, _, why = line.partition(" : ")
        assert name in known(), line
        assert why.endswith("."), line


@pytest.mark.parametrize("value", [v for v in CALLS if ".join" in str(v.id) or ".agg" in str(v.id)])
def test_notes_cite_the_source(value: Any) -> None:
    """A join and an aggregate say where their law is written."""
    notes = str(sections(value)["notes"].contents)
    assert any(source in notes for source in ("KIP-", "FLIP-", "Kafka Streams", "spec/"))
