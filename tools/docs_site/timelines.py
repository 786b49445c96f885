"""A hook of MkDocs: a fenced block ``timeline`` becomes a picture of rows of a truth table.

The first line of a block names a file, columns of it and rows; the other lines are the timeline in
text, for readers of the Markdown:

    spec/table_table/kip-77.txt inner left rows 3-7

``rows 3-end`` also takes the line ``===``. The build fails where the text is not the table's.
``python tools/docs_site/timelines.py`` writes it anew in all pages of ``docs/``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from posixpath import dirname, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from dovetail.testing.timeline_layout import Lane, Mark, TimelineColumn, TimelineLayout
from dovetail.testing.timeline_svg import svg_of
from dovetail.testing.timeline_text import text_of

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```timeline\n(.+)\n((?:.*\n)*?)```$", re.MULTILINE)
REFERENCE = re.compile(r"(spec/\S+\.txt)((?: \S+)+) rows (\d+)-(\d+|end)")
HEADER = re.compile(r"# (join|windows) (\S+) *= *(.+)")
RESULT = re.compile(r"(?P<withdrawn>-(?!\d+-))?(?P<key>(?:\S+ )*)(?P<values>\S+)@(?P<time>-?\d+)")
BORDER, END = "---", "==="
ENDS = {BORDER: "end of batch", END: "end of input"}
WIDTH = 100


@dataclass(frozen=True)
class Line:
    """A line of a truth table: a record, the end of a micro-batch or the end of the input."""

    first: str
    """The text before the first bar."""
    results: dict[str, list[str]]
    """What each column says, one text a result."""
    batch: int
    """The number of its micro-batch, from 1."""
    folder: str
    """The folder of its table, which names an operator."""

    @property
    def step(self) -> int | None:
        """The number of a record's row; None for a border and for the end."""
        return None if self.first in (BORDER, END) else int(self.first.split()[0])

    @property
    def source(self) -> str | None:
        """The name of a record's input; None for a border and for the end."""
        return None if self.step is None else self.first.split()[1]


@event_priority(-200)  # after llms.py, which keeps the text
def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put a picture in the place of each block."""

    def picture(block: re.Match[str]) -> str:
        try:
            layout = layout_of(block[1])
        except ValueError as error:
            raise PluginError(f"{page.file.src_uri}: {error}") from error
        if block[2].rstrip("\n") != text_of(layout, WIDTH):
            stale = f"the text below '{block[1]}' is not the table's"
            raise PluginError(
                f"{page.file.src_uri}: {stale}. Run python tools/docs_site/timelines.py"
            )
        path = f"assets/timelines/{re.sub(r'[^a-z0-9]+', '-', block[1])}.svg"
        if files.get_file_from_path(path) is None:
            files.append(File.generated(config, path, content=svg_of(layout)))
        link = relpath(path, dirname(page.file.src_uri) or ".")
        return f'<div class="timeline" markdown>\n\n![{layout.title}]({link})\n\n</div>'

    return BLOCK.sub(picture, markdown)


def layout_of(reference: str) -> TimelineLayout:
    """Return the timeline that the first line of a block names. Raise ValueError if none is."""
    if not (parts := REFERENCE.fullmatch(reference)):
        raise ValueError(f"'{reference}' is not 'spec/<file>.txt <columns> rows <first>-<last>'")
    path, columns, first, last = parts[1], parts[2].split(), int(parts[3]), parts[4]
    if not (ROOT / path).is_file():
        raise ValueError(f"there is no {path}")
    text = (ROOT / path).read_text("utf-8")
    headers = [line.groups() for line in map(HEADER.fullmatch, text.splitlines()) if line]
    definitions = {name: definition for kind, name, definition in headers if kind == "join"}
    if unknown := [column for column in columns if column not in definitions]:
        raise ValueError(f"{path} has no columns {', '.join(unknown)}")
    letters = re.findall(r"\b[A-Z]\b", " ".join(definitions[name] for name in columns))
    inputs = [*dict.fromkeys(letters)]
    lines = [line for line in _lines(text, path.split("/")[1]) if line.source in {None, *inputs}]
    shown = _rows(lines, columns, first, last)
    if not shown:
        raise ValueError(f"{path} has no rows {first}-{last}")
    notes = [f"{kind} {name} = {text}" for kind, name, text in headers if kind == "windows"]
    notes += [f"{name} = {definitions[name]}" for name in columns]
    by_batch = any(line.first == BORDER for line in shown)
    title = " ".join(_sentences(shown, columns, f"{path}, rows {first} to {last}"))
    return TimelineLayout(
        [*_columns(shown, by_batch)],
        [*_lanes(shown, inputs, columns)],
        [],
        notes,
        "batch" if by_batch else "row",
        title,
    )


def _lines(text: str, folder: str) -> Iterator[Line]:
    """Yield the lines of a table. One that begins with a bar belongs to the one before it."""
    joined = re.sub(r"\n(?:#.*\n|\s*\n)*[ \t]*\|", " |", text)
    batch = 1
    for line in joined.splitlines():
        if line.strip() and not line.startswith("#"):
            first, *cells = (part.strip() for part in line.split("|"))
            named = (cell.split(None, 1) for cell in cells)
            results = {name: [] if cell == "-" else cell.split(", ") for name, cell in named}
            yield Line(first, results, batch, folder)
            batch += first == BORDER


def _rows(lines: Sequence[Line], columns: Sequence[str], first: int, last: str) -> list[Line]:
    """Return the rows from first to last, with the borders of the columns among them."""
    steps = [line.step for line in lines]
    if first not in steps or (last != "end" and int(last) not in steps):
        return []
    end = len(lines) if last == "end" else steps.index(int(last)) + 1
    if end < len(lines) and lines[end].first == BORDER:
        end += 1
    chosen = lines[steps.index(first) : end]
    return [line for line in chosen if line.step is not None or line.results.keys() & {*columns}]


def _columns(lines: Sequence[Line], by_batch: bool) -> Iterator[TimelineColumn]:
    """Yield the column of each line. The end of the input belongs to the row before it."""
    step = 0
    for line in lines:
        step = line.step or step
        label = line.first.split()[3] if line.step is not None else ENDS[line.first]
        yield TimelineColumn(line.batch if by_batch else step, label)


def _lanes(lines: Sequence[Line], inputs: Sequence[str], columns: Sequence[str]) -> Iterator[Lane]:
    """Yield a lane for each input of the table and each column."""
    for name in inputs:
        stacks = {n: [_record(line, n)] for n, line in enumerate(lines) if line.source == name}
        yield Lane(name, False, stacks)
    for column in columns:
        results = ((n, line, line.results.get(column, [])) for n, line in enumerate(lines))
        yield Lane(
            column,
            True,
            {n: [_change(r, line, n) for r in texts] for n, line, texts in results if texts},
        )


def _record(line: Line, column: int) -> Mark:
    """Return the mark of a record."""
    _, name, key, time, value = line.first.split()
    return _mark(column, key, value, f"{name}: {key} {value} at {time}")


def _change(result: str, line: Line, column: int) -> Mark:
    """Return the mark of a result. One with a time other than its record's shows it."""
    parts = RESULT.fullmatch(result)
    if parts is None:
        raise ValueError(f"'{result}' is not a result")
    own_key, time = ("", "") if line.step is None else line.first.split()[2:4]
    if line.folder == "foreign_key" and line.source == "R":
        own_key = f"/{own_key}"  # the key of a right row alone
    key = _key(parts["key"].split(), own_key)
    mark = _mark(
        column,
        key,
        ", ".join(parts["values"].split("+")),
        result,
        withdrawn=bool(parts["withdrawn"]),
    )
    if parts["time"] == time:
        return mark
    return Mark(column, f"{mark.label} @{parts['time']}", mark.title, mark.deleted)


def _key(words: Sequence[str], own_key: str) -> str:
    """Return a result's key: its words, behind the record's key if they are a window alone."""
    if not words or (len(words) == 1 and re.fullmatch(r"-?\d+-\d+", words[0])):
        words = [own_key, *words]
    return " ".join(words).strip()


def _mark(column: int, key: str, value: str, title: str, *, withdrawn: bool = False) -> Mark:
    """Return a mark: of a tombstone the key alone."""
    label = key if value == "∅" else f"{key}: {value}"
    return Mark(column, label, title, withdrawn or value == "∅")


def _sentences(lines: Sequence[Line], columns: Sequence[str], place: str) -> Iterator[str]:
    """Yield the rows in words."""
    yield f"Timeline of {place}."
    for line in lines:
        if line.step is not None:
            _, name, key, time, value = line.first.split()
            subject = f"{name} {key}" + (" deleted" if value == "∅" else f" is {value}")
            head = f"{line.step}: {subject} at {time}"
        else:
            head = ENDS[line.first].capitalize()
        cells = [
            f"{column} {', '.join(line.results[column]) or 'nothing'}"
            for column in columns
            if column in line.results
        ]
        yield "; ".join([head, *cells]).replace("∅", "deleted") + "."


def written(markdown: str) -> str:
    """Return a page with the text of each block as its table has it."""
    return BLOCK.sub(
        lambda block: f"```timeline\n{block[1]}\n{text_of(layout_of(block[1]), WIDTH)}\n```",
        markdown,
    )


if __name__ == "__main__":
    for page_path in sorted((ROOT / "docs").rglob("*.md")):
        page_path.write_text(written(page_path.read_text("utf-8")), "utf-8")
