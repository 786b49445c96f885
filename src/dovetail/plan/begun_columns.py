"""A topology as its checkpoint began, without the columns that its sources gained since.

The columns of records in a registry are those of the latest schema, so a later start of a program
may see more. A checkpoint keeps the columns that it began with. An unchanged program names no new
column. A new column therefore appears only where a join, a view or a result has all columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from dovetail.aggregates.collect import LastRow
from dovetail.base.columns import quoted
from dovetail.errors import PlanError
from dovetail.plan.fingerprint import described_sources, fingerprint, sources_of
from dovetail.plan.joins.delta_join import DeltaJoin
from dovetail.plan.joins.lookup import Lookup
from dovetail.plan.nodes import JoinNode, Node, Selected, Source
from dovetail.plan.select import SIDES, computed_field, joined_row_columns
from dovetail.plan.transforms.aggregation import AggregatedColumn, Aggregation
from dovetail.plan.transforms.fill import Filled
from dovetail.plan.transforms.unwindow import Unwindowed
from dovetail.plan.types.aggregate_types import arrow_type
from dovetail.plan.view_columns import Constant, FieldOf, column_of
from dovetail.plan.views import View, expression_row


def without_new_columns(
    nodes: Sequence[Node], topology: str, then: Mapping[str, Any]
) -> tuple[dict[Node, Node], list[str]]:
    """Return, by each of the results ``nodes``, the same result without the columns that its
    sources gained since a checkpoint began. Also return a list of these columns.

    A column is listed as ``source.column``, also if only its type has gained fields. ``topology``,
    ``then``: the checkpoint's topology, as ``fingerprint`` (a hash) and ``describe`` (JSON data)
    returned it. Only sources with the latest schema of a registry (``Source.grows``) lose columns,
    and only if the checkpoint has one source of that name. Each result maps to itself and the list
    is empty if no column is new, or if removing them does not yield the checkpoint's topology.
    Nodes are not changed in place.
    """
    same = {node: node for node in nodes}
    if fingerprint(*nodes) == topology:
        return same, []
    former = [described for described in described_sources(dict(then)) if "values" in described]
    narrowed, new = dict[Node, Node](), list[str]()
    for source in sources_of(nodes):
        kind = "stream" if source.stream else "table"
        matching = (
            [described for described in former if described.get(kind) == source.name]
            if source.grows
            else []
        )
        values = (
            _former_columns(source.values, matching[0]["values"]) if len(matching) == 1 else None
        )
        if values is not None and values != source.values:
            narrowed[source] = _narrow_source(source, values)
            new += [f"{source.name}.{name}" for name in _new_column_names(source.values, values)]
    if not narrowed:
        return same, []
    narrowing = _NodeNarrower(narrowed)
    try:
        rebuilt = {node: narrowing(node) for node in nodes}
        fits = _fingerprint_in_order(rebuilt.values()) == topology
    except (PlanError, AnalysisException):
        fits = False
    return (rebuilt, new) if fits else (same, [])


def _fingerprint_in_order(nodes: Iterable[Node]) -> str:
    """Return the fingerprint (a hash) of the topology with the results ``nodes``, sorted as a
    checkpoint sorts them: by the fingerprint of each alone.
    """
    return fingerprint(*sorted(nodes, key=fingerprint))


def _former_columns(now: StructType, then: Sequence[Sequence[str]]) -> StructType | None:
    """Return the columns ``now`` as they were: the former columns alone, in their former order,
    with their former types. Nullability is the present one.

    ``then``: for each former column its name and its type as text, such as ``bigint``. The result
    is None if a former column is gone, or if its type is not the former one with fields added. It
    is also None if Spark cannot read a former type that differs.
    """
    former_fields = []
    for name, text in then:
        if name not in now.names:
            return None
        data_type = now[name].dataType
        if data_type.simpleString() != text:
            try:
                was = DataType.fromDDL(text)
            except Exception:
                return None
            if not _is_extension_of(data_type, was):
                return None
            data_type = was
        former_fields.append(StructField(name, data_type, now[name].nullable))
    return StructType(former_fields)


def _is_extension_of(now: DataType, then: DataType) -> bool:
    """Return True if the type ``now`` is the type ``then``, perhaps with further fields in structs,
    at any depth. The order of fields and nullability do not count; keys of maps must have equal
    types.
    """
    if isinstance(now, StructType) and isinstance(then, StructType):
        return all(
            f.name in now.names and _is_extension_of(now[f.name].dataType, f.dataType) for f in then
        )
    if isinstance(now, ArrayType) and isinstance(then, ArrayType):
        return _is_extension_of(now.elementType, then.elementType)
    if isinstance(now, MapType) and isinstance(then, MapType):
        return now.keyType == then.keyType and _is_extension_of(now.valueType, then.valueType)
    return now.simpleString() == then.simpleString()


def _new_column_names(now: StructType, then: StructType) -> list[str]:
    """Return the names of columns of ``now`` that ``then`` does not have, or has with another
    type, in the order of ``now``.
    """
    return [f.name for f in now if f.name not in then.names or then[f.name].dataType != f.dataType]


def _narrow_source(source: Source, values: StructType) -> Source:
    """Return a source with only the value columns ``values``, those that it had when the checkpoint
    began, and with their types then.

    In its frames, values lose the fields that their former types lack; unused columns of the frames
    stay. A source without frames stays without.
    """

    def with_former_types(frame: DataFrame | None) -> DataFrame | None:
        """Return the frame with each value column of another former type narrowed to that type, in
        place and under its name. None stays None.
        """
        if frame is None:
            return None
        for field in values:
            data_type = source.values[field.name].dataType
            if data_type.simpleString() != field.dataType.simpleString():
                column = _narrow_value(F.col(quoted(field.name)), data_type, field.dataType)
                frame = frame.withColumn(field.name, column)
        return frame

    return replace(
        source,
        values=values,
        frame=with_former_types(source.frame),
        with_unread=with_former_types(source.with_unread),
    )


def _narrow_value(value: Column, now: DataType, then: DataType) -> Column:
    """Return an expression for ``value`` without the fields of structs that the type ``then``
    lacks, at any depth, in the order of ``then``. A null stays null. ``now``: the value's type,
    which must be ``then``, perhaps with further fields in structs.
    """
    if isinstance(now, StructType) and isinstance(then, StructType):
        parts = (_narrow_value(value[f.name], now[f.name].dataType, f.dataType) for f in then)
        named = (field.alias(name) for field, name in zip(parts, then.names, strict=True))
        return F.when(value.isNotNull(), F.struct(*named))
    if isinstance(now, ArrayType) and isinstance(then, ArrayType):
        inner = (now.elementType, then.elementType)
        return F.transform(value, lambda item: _narrow_value(item, *inner))
    if isinstance(now, MapType) and isinstance(then, MapType):
        of_values = (now.valueType, then.valueType)
        return F.transform_values(value, lambda _, item: _narrow_value(item, *of_values))
    return value


class _NodeNarrower:
    """Callback that rebuilds nodes over narrowed sources, those that have lost columns, each once.

    ``narrowed``: by each source that lost columns, the source without them. Calls raise
    ``PlanError`` if a node names a column that is gone.
    """

    def __init__(self, narrowed: Mapping[Node, Node]) -> None:
        self._rebuilt = {id(node): rebuilt for node, rebuilt in narrowed.items()}

    def __call__(self, node: Node) -> Node:
        """Return a node rebuilt over the narrowed sources, those without their new columns; the
        same object at each call. Return the node itself if none of its sources is narrowed. Raises
        ``PlanError`` if the node, or one below it, needs a column that is gone.
        """
        if id(node) not in self._rebuilt:
            self._rebuilt[id(node)] = self._narrow_node(node)
        return self._rebuilt[id(node)]

    def _narrow_node(self, node: Node) -> Node:
        """Return a copy of a node over its rebuilt inputs, without the columns that are gone; the
        node itself if its inputs are unchanged. Raises ``PlanError`` if it, or a node below, needs
        a column that is gone.
        """
        parts = {
            field.name: self._narrow_field(getattr(node, field.name)) for field in fields(node)
        }
        changed = {
            name: part
            for name, part in parts.items()
            if isinstance(part, (Node, tuple)) and part != getattr(node, name)
        }
        if not changed:
            return node
        over = replace(node, **changed)
        if isinstance(over, Lookup):
            return _narrow_lookup(over)
        if isinstance(over, (View, Unwindowed)):
            return _narrow_columns(node, over)
        if isinstance(over, JoinNode):
            return _narrow_join(node, over)
        if isinstance(over, Filled):
            return _narrow_nulls(node, over)
        if isinstance(over, Aggregation):
            over = _narrow_last_row(over)
            _refuse_changed_inputs(node, over)
        return over

    def _narrow_field(self, value: Any) -> Any:
        """Return the value of a field of a node's dataclass, with each node in it rebuilt over
        narrowed sources: the value itself, or the elements of a tuple. A value without nodes is
        returned as it is.
        """
        if isinstance(value, Node):
            return self(value)
        if isinstance(value, tuple) and any(isinstance(item, Node) for item in value):
            return tuple(self(item) for item in value)
        return value


def _narrow_nulls(before: Node, over: Filled) -> Filled:
    """Return a copy of ``over`` that ignores nulls of the remaining columns only, if it ignored
    those of all value columns. Otherwise ``over`` itself. ``over``: a node over an input without
    the columns that are new since the checkpoint began. ``before``: the same node over the input
    with them.
    """
    if over.unsent is not None or [*over.nulls] != before.inputs[0].values.names:
        return over
    return replace(over, nulls=tuple(over.node.values.names))


def _narrow_last_row(over: Aggregation) -> Aggregation:
    """Return a copy of ``over`` whose last rows of groups (``LastRow``, as of ``key_by``) have only
    columns of the input. If none is left, they have the group's first column. They have the input's
    types. An aggregation without one is returned unchanged. ``over``: over an input that already
    lacks the columns that are new since the checkpoint began.
    """
    row, columns = over.input.fields, list[AggregatedColumn]()
    for column in over.columns:
        narrowed = column
        if isinstance(column.kernel, LastRow):
            names = tuple(name for name in column.columns if name in row) or over.by[:1]
            data_type = StructType([StructField(n, row[n].dataType, True) for n in names])
            kernel = replace(column.kernel, values=arrow_type(data_type))
            narrowed = replace(column, columns=names, kernel=kernel, type=data_type)
        columns.append(narrowed)
    return replace(over, columns=tuple(columns))


def _refuse_changed_inputs(before: Node, over: Aggregation) -> None:
    """Raise ``PlanError`` for an aggregation that groups by or aggregates a column that is new
    since the checkpoint began, or that had another type then. Last rows of groups may have columns
    of changed types.

    ``before``: the aggregation over its input with new columns. ``over``: the same over the input
    without them.
    """
    whole = [c for c in over.columns if not isinstance(c.kernel, LastRow)]
    names = [*over.by, *(name for column in whole for name in column.columns)]
    was = before.inputs[0].fields
    _refuse_new_names(over, names)
    if any(over.input.fields[name].dataType != was[name].dataType for name in names):
        raise PlanError(over.name, "it aggregates what is new", "Go on in a new checkpoint")


def _refuse_new_names(node: Node, names: Sequence[str]) -> None:
    """Raise ``PlanError`` for the first of ``names`` that is no column of the first input of
    ``node``. That input has already lost its new columns, so the column is one of these: its source
    gained it since the checkpoint began.
    """
    row = node.inputs[0].row.names
    for name in names:
        if name not in row:
            raise PlanError(node.name, f"{name!r} is new", "Go on in a new checkpoint: initial=")


def _narrow_columns(before: Node, over: Any) -> Node:
    """Return a copy of ``over`` without the columns that are gone from its input. The others have
    the types that they have over this input. ``over`` is a view, or a windowed table that is read
    as a table or a stream.

    ``before``: the node over the input with all present columns. ``over``: the same, still with the
    columns of ``before``. Its input lacks the columns that its sources gained since the checkpoint
    began. Raises ``PlanError`` if a gone column was a key, renamed, chosen by name, or read by an
    expression.
    """
    source, was = over.inputs[0], before.inputs[0].row
    keys = len(over.key)
    chosen = isinstance(over, View) and over.chosen
    exploded = over.exploded if isinstance(over, View) else None
    key, values, exploded_index = list[Any](), list[Any](), None
    for column_index, (field, item) in enumerate(_with_struct_fields(over, source)):
        narrowed_field = field
        if isinstance(item, (Constant, FieldOf)):
            pass
        elif not isinstance(item, str):
            seen = expression_row(source) if isinstance(over, View) else source.row
            column = column_of(item).alias(field.name)
            computed = computed_field(over.name, "columns", seen, column, "")
            narrowed_field = StructField(field.name, computed.dataType, field.nullable)
        elif item not in source.row.names:
            if chosen or column_index < keys or field.name != item:
                _refuse_new_names(over, [item])
            continue
        elif column_index != exploded:
            narrowed_field = StructField(field.name, source.fields[item].dataType, field.nullable)
        elif source.fields[item].dataType != was[item].dataType:
            element = source.fields[item].dataType.elementType
            narrowed_field = StructField(field.name, element, field.nullable)
        if column_index == exploded:
            exploded_index = len(key) + len(values)
        (key if column_index < keys else values).append((narrowed_field, item))
    made_of = {
        "key": StructType([field for field, _ in key]),
        "values": StructType([field for field, _ in values]),
        "columns": tuple(item for _, item in (*key, *values)),
    }
    view: Node = replace(
        over, **made_of, **({} if exploded is None else {"exploded": exploded_index})
    )
    return view


def _with_struct_fields(over: Any, source: Node) -> Iterator[tuple[StructField, Any]]:
    """Yield each column of ``over`` with its origin, in order. A field of a struct has the type
    that it has in its input ``source``; one that the struct no longer has is left out.
    """
    for field, item in zip(over.row, over.columns, strict=True):
        if not isinstance(item, FieldOf):
            yield field, item
            continue
        struct = source.fields[item.struct].dataType
        assert isinstance(struct, StructType)
        if item.field in struct.names:
            yield StructField(field.name, struct[item.field].dataType, field.nullable), item


def _narrow_lookup(over: Lookup) -> Lookup:
    """Return a copy of a lookup without the value columns whose column of the stream is gone.

    ``over``: the lookup, still with all its present value columns. Its stream already lacks the
    columns that its sources gained since the checkpoint began. The key and the types of the
    stream's other columns become those of this stream. Columns of the store stay, and so do columns
    that have a side's whole row.
    """
    columns = [
        (StructField(field.name, _lookup_column_type(over, field, ref)), ref)
        for field, ref in zip(over.values, over.refs, strict=True)
        if ref[0] != SIDES[0] or ref[1] is None or ref[1] in over.node.row.names
    ]
    return replace(
        over,
        key=over.node.key,
        values=StructType([field for field, _ in columns]),
        refs=tuple(ref for _, ref in columns),
    )


def _lookup_column_type(over: Lookup, field: StructField, ref: tuple[str, str | None]) -> DataType:
    """Return the type that a value column of the lookup ``over`` has, by its stream. The stream
    already lacks the columns that are new since the checkpoint began. A column of the store keeps
    its type.

    ``field``: the value column with its present type. ``ref``: its origin, a pair of ``"left"``
    (the stream) or ``"right"`` (the store) and the column there; None for that side's whole row.
    """
    if ref[0] != SIDES[0]:
        return field.dataType
    return over.node.row if ref[1] is None else over.node.fields[ref[1]].dataType


def _narrow_join(before: Any, over: Any) -> Node:
    """Return a copy of the join ``over`` without the selected columns that are gone from its sides.
    The columns that stay keep their order, and have the types that they have over these sides.

    ``before``: the join over sides with all present columns. ``over``: the same, still with the
    selection of ``before``. Its sides lack the columns that their sources gained since the
    checkpoint began.

    Columns may only be gone if the join selects all value columns of both sides under their names,
    as it does without ``select=``. Raises ``PlanError`` otherwise, and for an expression of
    ``select=`` that reads a gone column. ``on=`` is not checked.
    """
    sides = dict(zip(SIDES, (over.left, over.right), strict=True))
    # A delta join has a join column with one name on both sides once, as the left one.
    same = {b for a, b in before.on if a == b} if isinstance(before, DeltaJoin) else set()
    every = [*before.left.values.names, *(n for n in before.right.values.names if n not in same)]
    whole = [selected.name for selected in before.select if selected.ref is not None] == every
    row, _ = joined_row_columns(over.left, over.right)
    select, values = list[Selected](), list[StructField]()
    for selected, field in zip(over.select, over.values, strict=True):
        if selected.column is not None:
            computed = computed_field(over.name, "select=", row, selected.column, "")
            values.append(StructField(field.name, computed.dataType, field.nullable))
        elif selected.ref[1] in sides[selected.ref[0]].row.names:
            data_type = sides[selected.ref[0]].fields[selected.ref[1]].dataType
            values.append(StructField(field.name, data_type, field.nullable))
        elif whole:
            continue
        else:
            raise PlanError(over.name, f"{selected.name!r} is new", "Go on in a new checkpoint")
        select.append(selected)
    joined: Node = replace(over, select=tuple(select), values=StructType(values))
    return joined
