"""Views: nodes that filter rows of a table or a stream, compute columns or change the key."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from dovetail.base.columns import TIMESTAMP, quoted
from dovetail.base.validation import Rule
from dovetail.errors import PlanError
from dovetail.plan.joins.join_call import refuse_corrected, side_as_changes, side_as_input
from dovetail.plan.nodes import Derived, Describe, Entry, JoinNode, Node, Selected, Source
from dovetail.plan.select import SIDES, computed_field, joined_row_columns, session_for
from dovetail.plan.types.checks import known_field, refuse_duplicates, refuse_key_type, refuse_names
from dovetail.plan.types.expressions import refuse_random
from dovetail.plan.view_columns import ColumnItem, Constant, FieldOf, item_as_text

Item: TypeAlias = Annotated[str | Column, Rule("the name of a column or a Spark expression")]
Condition: TypeAlias = Annotated[
    str | Column, Rule("a condition, as a Spark expression or in SQL", lambda c: c is not None)
]

Errors: TypeAlias = Literal["fail", "dead_letter"]
"""Treatment of a row on which an expression fails. ``"fail"`` stops the query. ``"dead_letter"``
leaves the row out, counts it in the metric ``<name>.failed``, and makes it a dead letter.
"""


@dataclass(frozen=True, eq=False, kw_only=True)
class View(Entry):
    """The rows of ``node``, each mapped by itself, without state.

    A table's row that does not meet the condition becomes a tombstone, which deletes the key's row.
    The view does not know whether the key had a row before, so it emits spurious tombstones: those
    of keys without a row. So does a view that leaves out failing rows of another stage: the
    deletions of these rows still come.
    """

    node: Entry
    key: StructType
    """The key columns."""
    values: StructType
    """The value columns."""
    columns: tuple[ColumnItem, ...]
    """The origin of each key column and then of each value column."""
    stream: bool = False
    """True for a stream, False for a table."""
    condition: str | Column | None = None
    """A column or an expression that is true for the rows of the view. None for all rows."""
    exploded: int | None = None
    """The position in ``columns`` of an array to explode: each element makes a row. None for no
    array.
    """
    letters: str | None = None
    """The operator's name in dead letters, if failing rows are left out. None if they fail the
    query.
    """
    chosen: bool = False
    """True if the values were named one by one by the user."""

    asks: ClassVar[bool] = False
    """True if the view queries a store whenever a stage reads it."""

    @property
    def checks(self) -> bool:
        """True if the view needs each change, not just a key's last one in a micro-batch, because
        it counts single rows. This view does if it makes dead letters of rows on which an
        expression fails. An expectation (``expect``), which is a kind of view, always does.
        """
        return self.letters is not None

    @property
    def drops(self) -> bool:
        """True if the view may leave out rows as if they had never arrived: here those that become
        dead letters. An expectation that only warns counts rows (``checks``) and leaves none out. A
        row that does not meet ``condition`` is no such row: in a table it deletes its key's row.
        """
        return self.letters is not None

    @property
    def row_by_row(self) -> bool:
        """True if the view makes at most one row of each row, by expressions alone. False if it
        explodes an array or queries a store.
        """
        return self.exploded is None and not self.asks

    @property
    def name(self) -> str:
        """The name of the viewed node."""
        return self.node.name

    @property
    def summary(self) -> str:
        """The line of text that describes the view in ``explain``: its operation, and a note if
        failing rows are left out.
        """
        return self._operation + ("" if self.letters is None else ", dead letters where it fails")

    @property
    def _operation(self) -> str:
        """The view's operation in words, for ``explain``, such as ``where amount > 0``. Of several
        operations it names the first: a condition, an exploded array, a change between stream and
        table, another key, else the selection of columns.
        """
        if self.condition is not None:
            return f"where {item_as_text(self.condition)}"
        if self.exploded is not None:
            return f"explode {self.columns[self.exploded]}"
        if self.stream != self.node.stream:
            return f"as a {'stream' if self.stream else 'table'}"
        keys = [item_as_text(column) for column in self.columns[: len(self.key)]]
        if keys != self.node.key.names:
            return f"key by {', '.join(keys)}"
        computed = any(not isinstance(column, str) for column in self.columns)
        return f"select{', computed' if computed else ''}"

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The viewed node, as the only element."""
        return (self.node,)

    def keeps_of_tombstone(self, item: ColumnItem) -> bool:
        """Return True if a value that comes from ``item`` stays as it is in a row without a value.
        So does a column by name of a stream that another stage makes, such as the bounds of a
        session that is withdrawn. Other values are null there.

        Sources may have values in such rows. A table's row that a condition leaves out has some.
        """
        return self.stream and isinstance(item, str) and not isinstance(self.base, Source)

    @property
    def base(self) -> Source | Derived:
        """The source, or the result of another stage, below this view and all others."""
        return self.node.base

    @property
    def ordered(self) -> bool:
        """True if each row of the viewed node has a position in one log that all inputs of the
        topology share.
        """
        return self.node.ordered

    @property
    def null_keys(self) -> bool:
        """True if a row's key may contain nulls because one of the viewed node may. A stream read
        as a table has no null keys. Nulls that the view's own expressions make in a key do not
        count: the stage that reads the view drops such rows, or matches them with nothing.
        """
        return self.node.null_keys and (self.stream or not self.node.stream)

    @property
    def versioned_us(self) -> int | None:
        """The length of the table's history in microseconds; None for a stream and without a
        history.
        """
        return None if self.stream else self.node.versioned_us

    @property
    def in_order(self) -> bool:
        """True for a table that has a history and whose changes of a key take effect in the order
        in which they arrive.
        """
        return not self.stream and self.node.in_order

    @property
    def emits_spurious_tombstones(self) -> bool:
        """True for a table that may emit tombstones of keys that had no row: one with a condition,
        one that leaves out rows of another stage, or a view of such a table.
        """
        leaves_out = self.condition is not None or (self.drops and isinstance(self.base, Derived))
        return not self.stream and (leaves_out or self.node.emits_spurious_tombstones)

    @property
    def computed(self) -> bool:
        """True if the condition or a column is a Spark expression. Names, constants and fields of
        structs need no Spark.
        """
        return any(isinstance(item, Column) for item in (self.condition, *self.columns))

    def state_properties(
        self, describe: Describe, *, whole: bool, needed: Collection[str] | None = None
    ) -> Mapping[str, Any]:
        """Return the view's part of a topology's fingerprint (a hash) as JSON data, with five
        names: ``view`` (the viewed node), ``stream``, ``where``, ``columns`` and ``exploded``.

        ``columns`` has a pair [name, text of the origin] for each column, key first. ``where`` is
        the condition's text. ``exploded`` is the index of the exploded array in ``View.columns``,
        from 0 with key columns counted, even if ``columns`` here has fewer. Both are None without
        one.

        ``describe``: describes the node and makes texts of expressions. ``needed``: the names of
        the value columns that are read, None for all; unknown names are ignored. Unread columns are
        left out, and so are the node's columns that only they use. A view that makes dead letters
        (``View.letters``) has all, since each may fail. ``whole`` changes nothing.
        """
        row = expression_row(self.node)
        where = None if self.condition is None else describe.text(self, self.condition, row)
        columns = [
            ([field.name, _item_text(describe, self, item)], item)
            for field, item in zip(self.row, self.columns, strict=True)
        ]
        if needed is not None and self.letters is None:
            needed_names = {*self.key.names, *needed}
            needed_names |= set() if self.exploded is None else {self.row.names[self.exploded]}
            columns = [(column, item) for column, item in columns if column[0] in needed_names]
        items = [(text, item) for (_, text), item in columns]
        items += [] if where is None or self.condition is None else [(where, self.condition)]
        read = {item for _, item in items if isinstance(item, str)}
        texts = [text for text, item in items if not isinstance(item, str)]
        read |= {name for text in texts for name in columns_read_by(text, self.node)}
        return {
            "view": describe(self.node, whole=True, needed=read),
            "stream": self.stream,
            "where": where,
            "columns": [column for column, _ in columns],
            "exploded": self.exploded,
        }


def _item_text(describe: Describe, view: View, item: ColumnItem) -> str:
    """Return the text of one column of ``view``, for a topology's hash. ``item``: the origin of the
    column, a name, an expression, a constant or a field of a struct. ``describe``: makes the text
    of names and expressions over a row of the viewed node.
    """
    if isinstance(item, Constant):
        return f"text {item.value}"
    if isinstance(item, FieldOf):
        return f"{quoted(item.struct)}.{quoted(item.field)}"
    return describe.text(view, item, expression_row(view.node))


def where(node: Node, condition: str | Column, errors: Errors = "fail") -> View:
    """Return the rows of ``node`` that meet a condition as a view. A table's other rows are
    deleted, a stream's other records left out. Null does not meet a condition.

    ``condition``: the name of a boolean column, an expression, or SQL. ``errors``: ``"fail"`` stops
    the query at a row on which an expression fails. ``"dead_letter"`` leaves the row out as if it
    had never come, so a table's former row stays. It becomes a dead letter.

    Raises ``PlanError`` if the condition is random, not boolean or not resolved, or needs a Spark
    session and there is none. So it does for a join of histories (``late="history"``), and for a
    stream that withdraws records (``unmatched="retract"``).
    """
    name = f"where of {node.name}"
    source = view_input(name, node)
    column = condition_over(name, source, condition)
    return _with_dead_letters(name, _unchanged_view(source, condition=column), errors)


def condition_over(name: str, source: Entry, condition: str | Column) -> str | Column:
    """Return ``condition`` unchanged if it is the name of a column of ``source``, else the
    condition as an expression. A text that is no column's name, case included, is SQL.

    ``name``: the operator in errors. An expression may read the key, the values and
    ``_timestamp``. Raises ``PlanError`` if the condition is random, not boolean, or not resolved by
    Spark. An expression without a Spark session raises it, too.
    """
    column = condition
    if isinstance(condition, str) and condition in source.row.names:
        data_type = source.fields[condition].dataType
    else:
        session_for(name, "condition=")
        column = F.expr(condition) if isinstance(condition, str) else condition
        field = _expression_field(name, "condition=", source, column)
        refuse_random(name, "condition=", field)
        data_type = field.dataType
    if not isinstance(data_type, BooleanType):
        raise PlanError(
            name,
            f"condition= is of type {data_type.simpleString()}, not boolean",
            "Compare the column with something, as in F.col('amount') > 0",
        )
    return column


def select_columns(
    node: Node,
    columns: Sequence[str | Column],
    named: Mapping[str, str | Column],
    errors: Errors = "fail",
) -> View:
    """Return a view of ``node`` with the key and the given value columns, ``columns`` first.

    ``columns``: names or expressions over the row of ``node``. ``named``: by each new name, a
    column's name or an expression. A key column selected under its own name is not repeated, and
    under another name it is a value as well. ``errors``: ``"fail"`` stops the query at a row on
    which an expression fails. ``"dead_letter"`` leaves the row out as if it had never come, so a
    table's former row stays. Without any column the view has the key alone.

    Raises ``PlanError`` for unknown, reserved and repeated names, for an expression that Spark does
    not resolve, and for one without a Spark session. So it does for a join of histories
    (``late="history"``), and for a stream that withdraws records (``unmatched="retract"``).
    """
    name = f"select of {node.name}"
    source = view_input(name, node)
    values = [_new_column(name, "one of columns", source, None, item) for item in columns]
    values += [_new_column(name, f"{new}=", source, new, item) for new, item in named.items()]
    non_key = [(field, item) for field, item in values if not _is_key_column(source, field, item)]
    view = replace(_build_view(name, source, _key_items(source), non_key), chosen=True)
    return _with_dead_letters(name, view, errors)


def with_columns(
    node: Node,
    named: Mapping[str, str | Column],
    errors: Errors = "fail",
    *,
    call: str = "with_columns",
) -> View:
    """Return a view of all columns of ``node``, with those in ``named`` added at the end or
    replaced where they are.

    ``named``: by the new column's name, a column's name or an expression over the row of ``node``,
    as it was before. ``errors``: ``"fail"`` stops the query at a row on which an expression fails.
    ``"dead_letter"`` leaves the row out as if it had never come, so a table's former row stays.
    ``call``: the user's call, for errors.

    Raises ``PlanError`` if a key column would be replaced, for unknown and reserved names, and for
    an expression that does not resolve. So it does for a name that differs from another column's
    only in case. Also for an expression without a Spark session, a join of histories
    (``late="history"``), and a stream that withdraws records (``unmatched="retract"``).
    """
    name = f"{call} of {node.name}"
    source = view_input(name, node)
    for new in named:
        if new in source.key.names:
            remedy = "Give it another name, or another key with key_by()"
            raise PlanError(name, f"{new}= would replace a key column", remedy)
    columns: dict[str, tuple[StructField, str | Column]] = {
        f.name: (f, f.name) for f in source.values
    }
    columns |= {new: _new_column(name, f"{new}=", source, new, item) for new, item in named.items()}
    return _with_dead_letters(
        name, _build_view(name, source, _key_items(source), [*columns.values()]), errors
    )


def drop_columns(node: Node, names: Sequence[str]) -> View:
    """Return a view of all columns of ``node`` but ``names``, in their order. No names give all
    columns; a name may come twice.

    Raises ``PlanError`` for key columns and unknown names. So it does for a join of histories
    (``late="history"``), and for a stream that withdraws records (``unmatched="retract"``).
    """
    name = f"drop of {node.name}"
    source = view_input(name, node)
    for column in names:
        if column in source.key.names:
            problem = f"one of columns is {column!r}, a key column"
            raise PlanError(name, problem, "Keep it: rows are known by their key")
        known_field(name, "one of columns", column, source.values)
    remaining = [(field, field.name) for field in source.values if field.name not in names]
    return _build_view(name, source, _key_items(source), remaining)


def rename_columns(node: Node, names: Mapping[str, str]) -> View:
    """Return a view of all columns of ``node``, key columns included, in their order, with new
    names. ``names``: the new names by the old ones. Columns that are not in it keep their names,
    and two may swap theirs.

    Raises ``PlanError`` for an unknown old name, and for new names that are empty, reserved or
    repeated. So it does for a join of histories (``late="history"``), and for a stream that
    withdraws records (``unmatched="retract"``).
    """
    name = f"rename of {node.name}"
    source = view_input(name, node)
    for column in names:
        known_field(name, "names=", column, source.row)
    columns = [
        (_rename_field(field, names.get(field.name, field.name)), field.name)
        for field in source.row
    ]
    keys = len(source.key)
    return _build_view(name, source, columns[:keys], columns[keys:])


def rows_under_key(
    node: Node,
    columns: Sequence[str],
    named: Mapping[str, str | Column],
    errors: Errors = "fail",
) -> View:
    """Return a view of the rows of ``node`` under another key. Columns of the former key that the
    new key does not use become values, before the other values.

    Each row is mapped by itself, which suits a stream. In a table, a row whose new key changes is
    not deleted under its earlier one, and two rows may have the same new key. A row with a null in
    the new key is in the view; the stage that reads the view drops it, or matches it with nothing.

    ``columns``: existing columns of the new key. ``named``: further key columns behind these, each
    with a column's name or an expression. A column that the key takes by name, even renamed, is no
    value; another column's name cannot be that of a key column. ``errors``: ``"fail"`` stops the
    query at a row on which an expression fails, ``"dead_letter"`` leaves the row out as if it had
    never come.

    Raises ``PlanError`` if no column is named, or one twice, and for unknown or reserved names. So
    it does for key columns that are random, not resolved, or of an unsuitable type such as a map.
    It refuses an expression without a Spark session, a join of histories (``late="history"``), and
    a stream that withdraws records (``unmatched="retract"``).
    """
    name = f"key_by of {node.name}"
    source = view_input(name, node)
    key_items = {**{column: column for column in columns}, **named}
    if not key_items or len(key_items) < len(columns) + len(named):
        raise PlanError(name, "key_by() names no column or one twice", "Name each once")
    key = [
        _new_column(name, f"{new}=" if new in named else "one of columns", source, new, item)
        for new, item in key_items.items()
    ]
    used = [item for _, item in key if isinstance(item, str)]
    values = [(field, field.name) for field in source.row if field.name not in used]
    return _with_dead_letters(name, _build_view(name, source, key, values), errors)


def changes_as_stream(node: Node) -> View:
    """Return the changes of the table ``node`` as a stream with the same columns: each change is a
    record, and a deletion is a record without a value. Left out are late changes of a versioned
    table, and tombstones that views have added for keys without a row. Raises ``PlanError`` for a
    join of histories (``late="history"``), which emits corrections of past rows.
    """
    name = f"to_stream of {node.name}"
    refuse_corrected(name, node)
    return _unchanged_view(side_as_changes(name, node), stream=True)


def last_records_as_table(node: Node) -> View:
    """Return the last record of each key of the stream ``node`` as a table: the last in the
    stream's own order, not by event time. A last record without a value deletes the key's row.
    Records with a null in the key are in no table; the stage that reads it drops and counts them.
    Raises ``PlanError`` for a stream that withdraws records (``unmatched="retract"``).
    """
    return _unchanged_view(view_input(f"to_table of {node.name}", node), stream=False)


def explode_records(node: Node, column: str) -> View:
    """Return a view of the stream ``node`` with a record for each element of the array ``column``,
    in the array's order. The element takes the array's place, under the array's name; it may be
    null. A record without a value, or whose array is null or empty, gives none.

    Raises ``PlanError`` if the column is unknown, a key, or no array, and for a stream that
    withdraws records (``unmatched="retract"``).
    """
    name = f"explode of {node.name}"
    source = view_input(name, node)
    array_field = known_field(name, "column=", column, source.values)
    if not isinstance(array_field.dataType, ArrayType):
        raise PlanError(
            name,
            f"column {column!r} is of type {array_field.dataType.simpleString()}, not an array",
            "Make it one with with_columns(), for instance by F.split or F.map_entries",
        )
    fields = [
        StructField(f.name, array_field.dataType.elementType, True) if f.name == column else f
        for f in source.values
    ]
    values = [(field, field.name) for field in fields]
    column_index = len(source.key) + source.values.names.index(column)
    return _build_view(name, source, _key_items(source), values, exploded=column_index)


_FieldItems: TypeAlias = Sequence[tuple[StructField, ColumnItem]]
"""Columns of a view, each with what it is made of."""


def view_input(name: str, node: Node) -> Entry:
    """Return a node as the input of a view: a source, a stage's result or a view as it is, another
    node as the result of its stage (``Derived``).

    ``name``: the view in errors. Raises ``PlanError`` for a join of histories (``late="history"``),
    which emits corrections of past rows. So it does for a stream that withdraws records it has
    emitted (a join with ``unmatched="retract"``).
    """
    refuse_corrected(name, node)
    return side_as_input(name, node)


def join_with_dead_letters(join: JoinNode, errors: Errors) -> Node:
    """Return the join, with failing rows left out if ``errors`` is ``"dead_letter"``: a view that
    computes the selection of ``join`` from a copy of the join that returns its whole joined row.

    With ``"fail"``, or if it selects by names only, which cannot fail, the join is returned
    unchanged. Else ``PlanError`` is raised for a join of histories (``late="history"``), and for a
    join that withdraws records (``unmatched="retract"``).
    """
    if errors == "fail" or all(item.column is None for item in join.select):
        return join
    row, plain = joined_row_columns(join.left, join.right)
    sides = [Selected(side, None, F.col(side)) for side in SIDES]
    whole = replace(
        join,
        select=(*sides, *(Selected(name, ref) for name, ref in plain.items())),
        values=StructType(row.fields[len(join.left.key) :]),
    )
    view = joined_row_view(join.name, view_input(join.name, whole), plain, join.select, join.values)
    return replace(view, letters=join.name)


def joined_row_view(
    name: str,
    joined: Entry,
    plain: Mapping[str, tuple[str, str]],
    select: Sequence[Selected],
    values: StructType,
) -> View:
    """Return the view that computes the selection ``select`` from a joined row, under the key of
    the join.

    ``name``: the join in errors. ``joined``: the node with the joined rows: a key, the structs
    ``left`` and ``right``, and plain columns. ``plain``: by each plain column's name, its side,
    ``"left"`` or ``"right"``, and its column there. ``values``: the fields of ``select``, in the
    same order. Raises ``PlanError`` if they have reserved or repeated names, or a key column's.
    """
    names = {ref: column for column, ref in plain.items()}
    items = [names.get(item.ref or ("", "")) or _item_of_selected(item) for item in select]
    return _build_view(name, joined, _key_items(joined), [*zip(values, items, strict=True)])


def _item_of_selected(selected: Selected) -> Column:
    """Return a value column of a join as an expression over the joined row: the user's expression,
    or a field of the struct ``left`` or ``right``. The field is null if the side has no row.
    """
    if selected.column is not None:
        return selected.column
    assert selected.ref is not None
    side, name = selected.ref
    return F.col(side).getField(name)


def with_name_in_key(node: Node, column: str) -> View:
    """Return a view of the table ``node`` with the table's name, as text, in a new last key column
    ``column``. Values stay as they are. Raises ``PlanError`` if ``column`` is empty, reserved or
    the name of a column, and for a join of histories (``late="history"``).
    """
    name = f"union of {node.name}"
    source = view_input(name, node)
    label = (StructField(column, StringType(), True), Constant(node.name))
    values = [(field, field.name) for field in source.values]
    return _build_view(name, source, [*_key_items(source), label], values)


def struct_fields(name: str, node: Node, struct: str, fields: Sequence[str]) -> View:
    """Return a view of the key of ``node`` and, as values, fields of its value column ``struct``,
    which must be a struct. They are null where it is. The other values are left out.

    ``name``: the operator in errors. ``fields``: the names of the fields, in order, perhaps none.
    Raises ``PlanError`` if a field has a reserved name or that of a key column. Also for a join of
    histories (``late="history"``), and for a stream that withdraws records
    (``unmatched="retract"``). An unknown ``struct`` or field raises ``KeyError``.
    """
    source = view_input(name, node)
    row = source.values[struct].dataType
    assert isinstance(row, StructType)
    values = [(row[field], FieldOf(struct, field)) for field in fields]
    return _build_view(name, source, _key_items(source), values)


def columns_read_by(text: str, node: Node) -> set[str]:
    """Return the names of the key and value columns of ``node`` that occur as words in ``text``,
    the text of an expression, ignoring case. They are all columns that the expression reads, and
    perhaps others.
    """
    return {name for name in node.row.names if is_named_in(name, text)}


def is_named_in(name: str, text: str) -> bool:
    """Return True if the column's ``name`` occurs in the expression ``text`` as a whole word, not
    within a longer one. Case is ignored.
    """
    shown = re.escape(name.replace("`", "``"))
    return re.search(rf"(?<!\w){shown}(?!\w)", text, re.IGNORECASE) is not None


def _unchanged_view(
    source: Entry, *, stream: bool | None = None, condition: str | Column | None = None
) -> View:
    """Return a view of ``source`` with all columns unchanged. ``stream``: True for a stream, False
    for a table, None for whichever ``source`` is. ``condition``: a column's name or an expression,
    true for the rows to keep; None to keep all. Nothing is checked.
    """
    return View(
        node=source,
        key=source.key,
        values=source.values,
        columns=tuple(source.row.names),
        stream=source.stream if stream is None else stream,
        condition=condition,
    )


def _build_view(
    name: str, source: Entry, key: _FieldItems, values: _FieldItems, *, exploded: int | None = None
) -> View:
    """Return a view of ``source`` with the columns ``key`` and ``values``, each a pair of the
    view's field and its origin: a name, an expression, a constant or a field of a struct.

    ``name``: the view in errors. ``exploded``: the index, from 0 with key columns counted, of the
    column whose array gives one row per element; None for none. Raises ``PlanError`` for empty,
    reserved or repeated names, and for key columns that are random or of an unsuitable type.
    """
    names = [field.name for field, _ in (*key, *values)]
    refuse_names(name, names, "Give it another name")
    refuse_duplicates(name, names, "Give each of the columns its own name")
    for field, _ in key:
        refuse_key_type(name, field)
        refuse_random(name, f"key column {field.name!r}", field)
    return View(
        node=source,
        key=StructType([field for field, _ in key]),
        values=StructType([field for field, _ in values]),
        columns=tuple(item for _, item in (*key, *values)),
        stream=source.stream,
        exploded=exploded,
    )


def _with_dead_letters(name: str, view: View, errors: Errors) -> View:
    """Return a copy of ``view`` that leaves out failing rows as dead letters, if ``errors`` is
    ``"dead_letter"`` and the view has expressions. Otherwise return ``view`` unchanged. ``name``:
    the operator in dead letters.
    """
    lenient = errors == "dead_letter" and view.computed
    return replace(view, letters=name) if lenient else view


def _key_items(source: Entry) -> list[tuple[StructField, ColumnItem]]:
    """Return, for each key column of an input in order, its field and its name. The name is the
    origin of the same column in a view.
    """
    return [(field, field.name) for field in source.key]


def _is_key_column(source: Entry, field: StructField, item: str | Column) -> bool:
    """Return True if ``item``, the origin of a view's column, names a key column of ``source``
    that ``field``, the view's, does not rename. Such a column is in the view's key anyway.
    """
    return isinstance(item, str) and item in source.key.names and item == field.name


def _new_column(
    name: str, argument: str, source: Entry, new: str | None, item: str | Column
) -> tuple[StructField, str | Column]:
    """Return the field and the origin of one column of a view.

    ``name``, ``argument``: the view and the argument in errors. ``item``: the origin, a column of
    ``source`` by name or an expression; it is returned unchanged. ``new``: the column's new name;
    None for that of ``item``. The field is nullable. Raises ``PlanError`` for an unknown name, for
    an expression that Spark does not resolve, and for one without a Spark session.
    """
    if isinstance(item, str):
        field = known_field(name, argument, item, source.row)
        return _rename_field(field, new or item), item
    return _expression_field(name, argument, source, item if new is None else item.alias(new)), item


def _rename_field(field: StructField, name: str) -> StructField:
    """Return a nullable field with the type and metadata of ``field`` and the name ``name``."""
    return StructField(name, field.dataType, True, field.metadata)


def _expression_field(name: str, argument: str, source: Entry, column: Column) -> StructField:
    """Return the name and type of the expression ``column`` over the rows of ``source``, as Spark
    resolves it. The field is nullable, and its metadata marks a random expression. Raises
    ``PlanError`` if Spark cannot, and without a Spark session. ``name``, ``argument``: the view and
    the argument in errors.
    """
    row = expression_row(source)
    return computed_field(name, argument, row, column, f"Known are {', '.join(row.names)}")


def split_result_views(node: Node) -> tuple[Node, tuple[View, ...]]:
    """Return the node that the last stage of ``node`` computes, and the views of the stage's
    result, innermost first. These views need no state and apply to what the stage emits. For a
    stage's result (``Derived``) that is its node, with no views.

    The pair is ``(node, ())`` if ``node`` is no view and no stage's result. It is so, too, for a
    view that needs a stage of its own:

    - a view of a source;
    - a table's view that may emit tombstones of keys without a row, such as a condition;
    - a view that counts single rows (``View.checks``), asks a store, or reads a stream as a table.

    One such view among the views of ``node`` is enough.
    """
    if not isinstance(node, Entry) or isinstance(node.base, Source):
        return node, ()
    views = views_of(node)
    asks = any(view.asks for view in views)
    # A stage turns a stream's records into a table's rows, and drops null keys.
    as_table = any(view.node.stream and not view.stream for view in views)
    if node.emits_spurious_tombstones or sees_each_change(node) or asks or as_table:
        return node, ()
    return node.base.node, views


def views_of(node: Node) -> tuple[View, ...]:
    """Return the views that a node consists of, down to the source or stage's result below them,
    from the innermost to the node itself. Empty for a node that is no view.
    """
    return (*views_of(node.node), node) if isinstance(node, View) else ()


def sees_each_change(node: Node) -> bool:
    """Return True if the node is a view that counts single rows (``View.checks``). Return it, too,
    if a view below it does, down to the source or stage's result. False for a node that is no view.
    """
    return any(view.checks for view in views_of(node))


def views_to_base(entry: Entry) -> tuple[Entry, ...]:
    """Return all views that an input consists of, from the outermost, ``entry`` itself, and last
    the source or the stage's result below them. Without views it is that alone.
    """
    return (*reversed(views_of(entry)), entry.base)


def expression_row(node: Node) -> StructType:
    """Return the schema of the row that expressions see: the key columns of ``node``, its value
    columns, and ``_timestamp``, the event time.
    """
    return StructType([*node.row.fields, StructField(TIMESTAMP, TimestampType())])
