"""The options of sources and sinks, read from signatures and docstrings."""

from __future__ import annotations

import re

import griffe
from public_api import public_api

SOURCES = (
    *("Table.from_changelog", "Table.from_records", "Table.from_topic", "Table.from_delta"),
    *("Table.from_iceberg", "Table.from_changes"),
    *("Table.from_static", "Stream.from_changelog", "Stream.from_records", "Stream.from_topic"),
    *("SnapshotTable.from_delta", "SnapshotTable.from_iceberg", "read_current"),
)
SINKS = (
    *("to_parquet", "to_delta", "to_postgres", "to_topic", "to_foreach_batch", "to_memory"),
    "to_iceberg",
    *("to_console", "typing.QueryOptions"),
)
FIRST = re.compile(r"(.+?\.)(?=\s+[A-Z`]|\s*$)", re.DOTALL)


def options(name: str) -> list[tuple[str, str, str]]:
    """Return each option of a call with its default and the first sentence about it."""
    call = _call(name)
    defaults = {part.name: part.default for part in getattr(call, "parameters", ())}
    optional = "" if call.is_function else "optional"
    assert call.docstring
    return [
        (part.name, str(defaults.get(part.name) or optional), _first(part.description))
        for section in griffe.parse_numpy(call.docstring, warnings=False)
        if section.kind is griffe.DocstringSectionKind.parameters
        for part in section.value
    ]


def _call(name: str) -> griffe.Object:
    part: griffe.Object | griffe.Alias | None = public_api().get(name)
    if part is None:
        owner, _, member = name.partition(".")
        part = public_api()[owner].all_members[member]
    return part.final_target if isinstance(part, griffe.Alias) else part


def _first(text: str) -> str:
    sentence = FIRST.match(text)
    return " ".join(
        (sentence[1] if sentence else text).replace("``", "`").replace("|", "\\|").split()
    )


def as_markdown(title: str, opening: str, calls: tuple[str, ...]) -> str:
    """Return a page with a table of the options of each call."""
    parts = [f"# {title}", opening]
    for name in calls:
        table = [
            f"| `{option}` | {f'`{default}`' if default else 'required'} | {about} |"
            for option, default, about in options(name)
        ]
        parts += [f"## {name}", f"{_summary(name)} [`{name}` in full][dovetail.{name}]"]
        parts += ["\n".join(["| option | default | says |", "|---|---|---|", *table])]
    return "\n\n".join(parts) + "\n"


def _summary(name: str) -> str:
    docstring = _call(name).docstring
    first = docstring.value.partition("\n\n")[0] if docstring else ""
    return " ".join(first.replace("``", "`").split())
