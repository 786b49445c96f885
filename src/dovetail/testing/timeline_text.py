"""A timeline as text: a line for each lane, a cell for each column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dovetail.testing.timeline_layout import Lane, Mark, TimelineColumn, TimelineLayout, WindowBar

TIME = "time"


def text_of(layout: TimelineLayout, width: int) -> str:
    """Return a timeline in lines of at most ``width`` characters. Only notes, and a column that is
    wider by itself, make longer lines. Without columns the text has the notes alone.

    Columns that have no room come in a further block, below an empty line. A bar before a cell
    marks the first column of a micro-batch or of a block.
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
    for block in _split_blocks(widths, width - gutter):
        cells = [
            (layout.unit, [_batch_text(layout.columns, n) for n in block]),
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
    """Return the count of characters that the column with index ``column``, from 0, needs: those of
    its widest text.
    """
    marks = [_mark_text(mark) for lane in layout.lanes for mark in lane.stacks.get(column, [])]
    return max(
        map(len, [_batch_text(layout.columns, column), layout.columns[column].label, *marks])
    )


def _split_blocks(widths: Sequence[int], room: int) -> Iterator[range]:
    """Yield ranges of column indices that fit beside each other in ``room`` characters, in order. A
    range has at least one column, even if that is wider. ``widths``: the characters of each column,
    to which 3 are added for its bar. Without columns, yield nothing.
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
    """Return (name, cells) for each line of a lane (one input or result) in the columns of
    ``block``, a range of indices from 0. There is a line for each mark of the highest stack, and at
    least one. Only the first line has the lane's name, the others an empty text.
    """
    stacks = [lane.stacks.get(column, []) for column in block]
    height = max(1, *map(len, stacks))
    return [
        (
            lane.name if row == 0 else "",
            [_mark_text(stack[row]) if row < len(stack) else "" for stack in stacks],
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
    """Return a line without spaces at its end: ``name``, that of a lane, in ``gutter`` characters,
    then each cell in the width of its column. A bar comes before the first column of a micro-batch
    and of the block.

    ``block``: the indices of the columns, from 0. ``cells``: one text for each of them. ``widths``:
    the characters of all columns of the timeline.
    """
    line = name.ljust(gutter)
    for column, cell in zip(block, cells, strict=True):
        begins = column == block[0] or _batch_text(layout.columns, column)
        line += f" {'|' if begins else ' '} {cell.ljust(widths[column])}"
    return line.rstrip()


def _batch_text(columns: Sequence[TimelineColumn], column: int) -> str:
    """Return the index, from 1, of a column's micro-batch as text; an empty text unless the column
    with index ``column`` is the first of its micro-batch.
    """
    batch = columns[column].batch
    return "" if column and columns[column - 1].batch == batch else str(batch)


def _mark_text(mark: Mark) -> str:
    """Return a mark as text: ``+`` before the label of a row, ``x`` before that of a deleted
    key.
    """
    return f"{'x' if mark.deleted else '+'} {mark.label}"


def _bar_cell(bar: WindowBar, column: int, width: int) -> str:
    """Return a window's text in the column with index ``column``, from 0, in ``width`` characters:
    ``=`` until the window's end, ``-`` in its grace period. It is empty before its first record and
    once it is closed.
    """
    if not bar.first <= column < bar.closed:
        return ""
    return width * ("=" if column < bar.ended else "-")
