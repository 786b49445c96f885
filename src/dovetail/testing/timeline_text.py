"""A timeline as text: a line for each lane, a cell for each column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dovetail.testing.timeline_layout import Lane, Mark, TimelineColumn, TimelineLayout, WindowBar

TIME = "time"


def text_of(layout: TimelineLayout, width: int) -> str:
    """Return a timeline in lines of at most ``width`` characters. Only notes, and a column that is
    wider by itself, make longer lines. Without columns it has the notes alone.

    Columns that have no room come in a further block. A bar before a cell begins a micro-batch.
    """
    names = [
        layout.unit,
        TIME,
        *(lane.name for lane in layout.lanes),
        *(b.label for b in layout.bars),
    ]
    gutter = max(map(len, names))
    blocks = ["\n".join(layout.notes)] * bool(layout.notes)
    widths = [_width(layout, column) for column in range(len(layout.columns))]
    for block in _blocks(widths, width - gutter):
        cells = [
            (layout.unit, [_batch(layout.columns, n) for n in block]),
            (TIME, [layout.columns[n].label for n in block]),
        ]
        for lane in layout.lanes:
            cells += _lane_cells(lane, block)
        for bar in layout.bars:
            cells.append((bar.label, [_bar_cell(bar, n, widths[n]) for n in block]))
        blocks.append(
            "\n".join(_line(layout, name, gutter, row, block, widths) for name, row in cells)
        )
    return "\n\n".join(blocks)


def _width(layout: TimelineLayout, column: int) -> int:
    """Return the number of characters that column ``column`` of a timeline needs."""
    marks = [_mark(mark) for lane in layout.lanes for mark in lane.stacks.get(column, [])]
    return max(map(len, [_batch(layout.columns, column), layout.columns[column].label, *marks]))


def _blocks(widths: Sequence[int], room: int) -> Iterator[range]:
    """Yield ranges of columns that fit beside each other in ``room`` characters, in order. A range
    has at least one column. ``widths``: of each column.
    """
    first, used = 0, 0
    for column, width in enumerate(widths):
        used += width + len(" | ")
        if used > room and column > first:
            yield range(first, column)
            first, used = column, width + len(" | ")
    if first < len(widths):
        yield range(first, len(widths))


def _lane_cells(lane: Lane, block: range) -> list[tuple[str, list[str]]]:
    """Return (name, cells) for each line of a lane in the columns of ``block``. There is a line for
    each mark of the highest stack, and at least one. Only the first line has the name.
    """
    stacks = [lane.stacks.get(column, []) for column in block]
    height = max(1, *map(len, stacks))
    return [
        (
            lane.name if row == 0 else "",
            [_mark(stack[row]) if row < len(stack) else "" for stack in stacks],
        )
        for row in range(height)
    ]


def _line(
    layout: TimelineLayout,
    name: str,
    gutter: int,
    cells: Sequence[str],
    block: range,
    widths: Sequence[int],
) -> str:
    """Return a line: ``name`` in ``gutter`` characters, then ``cells`` in ``widths``, divided by a
    bar where a micro-batch begins. ``block``: the columns of the cells.
    """
    line = name.ljust(gutter)
    for column, cell in zip(block, cells, strict=True):
        begins = column == block[0] or _batch(layout.columns, column)
        line += f" {'|' if begins else ' '} {cell.ljust(widths[column])}"
    return line.rstrip()


def _batch(columns: Sequence[TimelineColumn], column: int) -> str:
    """Return the number of a micro-batch as text in its first column, an empty text in its
    others.
    """
    batch = columns[column].batch
    return "" if column and columns[column - 1].batch == batch else str(batch)


def _mark(mark: Mark) -> str:
    """Return a mark: ``+`` before a row, ``x`` before a key that is deleted."""
    return f"{'x' if mark.deleted else '+'} {mark.label}"


def _bar_cell(bar: WindowBar, column: int, width: int) -> str:
    """Return a window's part in a column: ``=`` until its end, ``-`` in its grace period. It is
    empty before its first record and once it is closed.
    """
    if not bar.first <= column < bar.closed:
        return ""
    return width * ("=" if column < bar.ended else "-")
