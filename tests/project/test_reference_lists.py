"""The lists of the reference: errors, counters, options and commands, as the source has them."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from pathlib import Path

import pytest

import dovetail as dt
from dovetail.cli import COMMANDS

ROOT = Path(__file__).parents[2]
pytest.importorskip("griffe")
sys.path.append(str(ROOT / "tools" / "docs_site"))

import command_line  # noqa: E402
import counters  # noqa: E402
import error_texts  # noqa: E402
import options  # noqa: E402


def text(source: str, **names: str) -> str:
    known = {name: ast.parse(value, mode="eval").body for name, value in names.items()}
    return error_texts.text_of(ast.parse(source, mode="eval").body, known)


@pytest.mark.parametrize(
    ("source", "names", "expected"),
    [
        ("'a row'", {}, "a row"),
        ("f'column {name!r} twice'", {}, "column … twice"),
        ("f'{one} {two} left'", {}, "… left"),
        ("'a ' + REMEDY", {"REMEDY": "'new one'"}, "a new one"),
        ("REMEDY", {"REMEDY": "REMEDY"}, "…"),
        ("REMEDY", {}, "…"),
        ("'Cast it' if numeric else 'Drop it'", {}, "Cast it"),
        ("remedies[0]", {}, "…"),
    ],
)
def test_values_become_gaps(source: str, names: dict[str, str], expected: str) -> None:
    assert text(source, **names) == expected


def test_an_error_that_is_raised_is_listed() -> None:
    with pytest.raises(dt.errors.PlanError) as raised:
        dt.windows.hopping("1 hour", advance="2 hours")
    fitting = [
        message
        for message in error_texts.messages()
        if message.kind == "PlanError"
        and re.fullmatch(_pattern(message.problem), raised.value.problem)
        and re.fullmatch(_pattern(message.remedy), raised.value.remedy)
    ]
    assert fitting


def _pattern(with_gaps: str) -> str:
    return ".*".join(map(re.escape, with_gaps.split("…")))


def test_each_class_has_errors_and_some_have_causes() -> None:
    listed = error_texts.messages()
    assert {message.kind for message in listed} == set(error_texts.CLASSES)
    explained = [message for message in listed if error_texts.reason(message)]
    assert "a join of two streams needs a window" in {message.problem for message in explained}
    page = error_texts.as_markdown()
    assert all(f"## {kind}\n" in page for kind in error_texts.CLASSES)


def test_each_counter_is_described() -> None:
    assert counters.rows().keys() == set(counters.kinds())
    assert "](../" in counters.as_markdown()


@pytest.mark.parametrize("name", [*options.SOURCES, *options.SINKS])
def test_each_option_of_a_call_is_listed(name: str) -> None:
    call: object = dt
    for part in name.split("."):
        call = getattr(call, part)
    listed = options.options(name)
    if inspect.isclass(call):
        assert [option for option, _, _ in listed] == [*call.__annotations__]
        return
    parameters = inspect.signature(call).parameters.values()  # type: ignore[arg-type]
    assert [option for option, _, _ in listed] == [parameter.name for parameter in parameters]
    required = {p.name for p in parameters if p.default is inspect.Parameter.empty}
    assert {option for option, default, _ in listed if not default} == required


def test_each_command_is_listed_with_its_parameters() -> None:
    page = command_line.as_markdown()
    sections = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    assert sections.keys() == COMMANDS.keys()
    for name in COMMANDS:
        for parameter in command_line.command_of(name).params:
            assert parameter.name.upper() in sections[name] or parameter.opts[0] in sections[name]
