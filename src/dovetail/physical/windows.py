"""Windowed tables: the operators that compute and join them, all in one fragment.

A window is a part of a row's key, but rows are partitioned by the rest of the key. So all windows
of a key lie in one bucket, and every join of windowed tables runs there, as a join of tables:

| join | by |
|---|---|
| with the same window | the key of both sides |
| with a shifted window | a foreign key, which never leaves the bucket here |
| with a table without windows | a foreign key, which never leaves the bucket here |

Source: Kafka Streams join design, "Windowed Aggregate", "KStream-WTable", "KTable-WTable", "WTable-
KTable", "WTable-WTable".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import Column
from pyspark.sql.types import DataType, LongType, StructField, StructType, TimestampType

from dovetail.base.columns import (
    FOREIGN,
    SEQUENCE,
    WINDOW_END,
    WINDOW_START,
    aggregated_name,
    foreign_name,
    key_name,
    value_name,
)
from dovetail.errors import PlanError
from dovetail.laws.joins.table_join import TreeJoin, TreeLeaf, sides_preserved
from dovetail.physical import chains
from dovetail.physical.fragment import Emit, Feed, Fragment, Operator
from dovetail.physical.inputs import (
    Arrival,
    Input,
    carried_schema,
    closing_period,
    is_numbered,
    refuse_partly_ordered,
    source_spec,
    unique_names,
)
from dovetail.physical.source import RowArrival, RowMeaning, RowShape, SourceSpec
from dovetail.physical.specs import by_key as ops
from dovetail.physical.specs import groups
from dovetail.physical.specs.foreign_key import SubscribeLaw
from dovetail.physical.specs.law import Law
from dovetail.plan.fingerprint import fingerprint
from dovetail.plan.joins.window_join import WindowJoin
from dovetail.plan.nodes import Derived, Entry
from dovetail.plan.transforms.aggregation import Aggregation
from dovetail.plan.transforms.unwindow import Unwindowed
from dovetail.plan.types.windows import Windows

_IN_SEQUENCE = RowArrival(ordered_by="shared log")
"""The arrival of rows within the fragment: all are numbered in one sequence."""


@dataclass(frozen=True)
class WindowedFragment:
    """The fragment that computes or joins windowed tables, and its inputs."""

    inputs: tuple[Input, ...]
    """The inputs of the fragment."""
    fragment: Fragment
    leaves: tuple[Input, ...]
    """The inputs that name the output's columns: the sides of the last operator."""


# ``hours`` counts views by page and hour. ``hours.join(hours, shift="-1 hour")`` is one fragment
# with one input and four operators:
#
# | index  | law               | reads                                       | emits             |
# |--------|-------------------|---------------------------------------------|-------------------|
# | 0      | AggregationLaw    | the input                                   | windows           |
# | 1      | SubscribeLaw      | 0; foreign key: page and window less 1 hour | messages          |
# | 2      | ForeignKeyJoinLaw | 1; 0 as the right table                     | joined windows    |
# | 3      | InOrderLaw        | 2                                           | the same in order |
#
# A node is planned once, so both sides are operator 0. ``hours.to_stream(windows="on_close")`` has
# two operators: 0, which emits each window's last row of a batch, and ``FinalLaw``.
def plan_windowed_fragment(
    node: Unwindowed | WindowJoin,
    arrival: Arrival,
    *,
    buckets: int,
    emit: Emit,
    feeds: tuple[str, ...],
) -> WindowedFragment:
    """Plan the fragment of a node that reads windows: all operators below it that compute or join
    windows. Return it with its inputs, and with ``leaves``: for each group of value columns that
    the last operator emits, the input that names these columns.

    ``arrival``: the order of rows. ``buckets``: the count of buckets. ``emit``: the emission of the
    last operator. ``feeds``: the columns that tell a reader which record caused a change. A table
    with ``windows="on_close"`` emits closed windows only, each once, whatever ``emit`` says.

    Raises ``PlanError`` for ``emit="batch"`` on a stream, and for inputs of which only some share a
    log. It refuses ``select=`` with expressions in a windowed table that another join of windows
    reads, or whose windows are emitted once closed.
    """
    if emit == "batch" and node.stream:
        chains.refuse_batch(node)
    builder = _FragmentBuilder()
    computed = node.input.node if isinstance(node, Unwindowed) else node
    assert isinstance(computed, (Aggregation, WindowJoin))
    final = isinstance(node, Unwindowed) and node.final
    if computed.selects_expressions and final:
        raise PlanError(
            computed.name,
            "select= computes, which goes with windows='on_change' only",
            "Name columns only, and compute in to_stream()",
        )
    # A window's last row does not depend on where batches end. A fixed or sliding window takes
    # nothing more once it is closed, so its last row of the batch will do. A join goes on, and the
    # sessions of a key are emitted together, so these need each change.
    inner: Emit = emit
    if final:
        sessions = computed.windows is not None and computed.windows.kind == "session"
        alone = isinstance(computed, Aggregation) and not sessions
        inner = "batch" if alone else "change"
    rows = builder.plan_node(computed, inner)
    leaves = builder.naming_inputs(computed)
    if final:
        builder.add_final(computed, rows)
        builder.operators[:] = [_emit_time_changes(operator) for operator in builder.operators]
        leaves = (Input(Derived(computed), tuple(computed.key.names)),)
    inputs = builder.inputs_in_use()
    if not arrival.one_log:
        refuse_partly_ordered(node, inputs, aligned=False)
    visible = computed.selects_expressions or (
        isinstance(node, Unwindowed) and not all(isinstance(c, str) for c in node.columns)
    )
    builder.operators[-1] = replace(builder.operators[-1], visible=visible)
    numbered = is_numbered(inputs, arrival, feeds)
    clocks = {input_index for operator in builder.operators for input_index in operator.clocks}
    windows = computed.windows
    assert windows is not None or not final
    fragment = Fragment(
        topology=fingerprint(node),
        buckets=buckets,
        sources=tuple(
            source_spec(
                input_,
                name,
                arrival,
                numbered=numbered,
                stairs=input_index in clocks and (len(inputs) > 1 or (final and bool(feeds))),
                stair_period=closing_period(windows) if final and len(inputs) == 1 else None,
                alone=input_.source.stream
                and input_.used is None
                and computed.keeps_unmatched(input_.source),
            )
            for input_index, (input_, name) in enumerate(
                zip(inputs, unique_names(inputs), strict=True)
            )
        ),
        operators=tuple(builder.operators),
        feeds=feeds,
        holds_us=windows.size_us + windows.wait_us if final and windows is not None else 0,
        title=node.name,
        key_names=inputs[0].key,
    )
    return WindowedFragment(inputs, fragment, leaves)


def _emit_time_changes(operator: Operator) -> Operator:
    """Return a copy of the operator that also emits groups of which only the time has changed. An
    operator that does not aggregate is returned as it is.
    """
    if not isinstance(operator.law, groups.AggregationLaw):
        return operator
    return replace(operator, law=replace(operator.law, timed=True))


@dataclass(frozen=True)
class _PlannedRows:
    """The rows of an input or of an operator, while the fragment is planned."""

    number: int
    """The index of the fragment's input or of the operator, from 0."""
    operator: bool
    """True for an operator."""
    columns: Mapping[str, str]
    """The column in these rows behind each column of the node."""
    clocks: tuple[int, ...]
    """The indices of the inputs by whose stream time its windows close."""

    def feed(
        self,
        names: Sequence[str | tuple[str, int]],
        *,
        rehashed: bool = True,
        looks: Windows | None = None,
    ) -> Feed:
        """Return the feed (the route to an operator's source) of the node's columns ``names``, in
        this order. A pair (name, microseconds) adds these microseconds to a column of times, key or
        value. Raises ``KeyError`` for a column that a selection computes.

        ``rehashed``: True to compute ``_hash`` anew from the reader's own key. False keeps the
        rows' own, which must be the hash of the same key values; this is not checked. ``looks``:
        the windows that the last two key columns name, None for none.
        """
        pairs = ((name, 0) if isinstance(name, str) else name for name in names)
        columns = tuple((self.columns[name], by_us) for name, by_us in pairs)
        return Feed(self.number, self.operator, columns, rehashed, looks)

    def unchanged_feed(self) -> Feed:
        """Return the feed (the route to an operator's source) that passes the rows on with all
        their columns, unchanged.
        """
        return Feed(self.number, self.operator, None)


@dataclass
class _PlannedInput:
    """An input of a fragment while the fragment is planned."""

    source: Entry
    key: tuple[str, ...]
    """The columns by which the fragment finds its rows."""
    foreign: tuple[tuple[str | Column, DataType], ...]
    """The columns or expressions of a foreign key, with their types; empty without one."""
    used: dict[str, int] | None
    """The aggregated columns with their indices from 0; grows as operators read more. None for all
    columns.
    """


@dataclass
class _FragmentBuilder:
    """The operators and inputs of a fragment, while it is planned."""

    reads: list[_PlannedInput] = field(default_factory=list)
    """The inputs, in order of first use."""
    operators: list[Operator] = field(default_factory=list)
    """The operators, in the order in which they run."""
    _known: dict[int, _PlannedRows] = field(default_factory=dict)
    """The rows of each node that is planned already, by the node's ``id``."""

    def inputs_in_use(self) -> tuple[Input, ...]:
        """Return the inputs of the fragment, in order of first use. All operators must be planned.

        An input of aggregations has, beside its key, only the columns that they read, in order of
        first use (``Input.used``). The index of a column there gives its internal name
        (``aggregated_name``). Other inputs have all columns, and None there. A source that is read
        in both ways, or by several keys, gives several inputs.
        """
        return tuple(
            Input(r.source, r.key, r.foreign, None if r.used is None else tuple(r.used))
            for r in self.reads
        )

    def naming_inputs(self, node: Aggregation | WindowJoin) -> tuple[Input, ...]:
        """Return the inputs that name the output columns of a node's last operator, in the order of
        these columns. An aggregation has one, its own result. A join has its left and its right
        side. Only a join by key names the right key; by foreign key, that is one of the right
        values.
        """
        if isinstance(node, Aggregation):
            return (Input(Derived(node), tuple(node.key.names)),)
        left = Input(node.left, tuple(node.left.key.names))
        # By foreign key, the right row's own key is one of its values.
        by_key = node.meets_by_key
        return left, Input(node.right, tuple(node.right.key.names) if by_key else ())

    def plan_node(self, node: Aggregation | WindowJoin, emit: Emit) -> _PlannedRows:
        """Return the rows of ``node``. On first use, add its operators and inputs with the emission
        ``emit``; later calls ignore ``emit``. Raises ``PlanError`` if the selection of a node that
        it joins computes.
        """
        if id(node) not in self._known:
            if isinstance(node, Aggregation):
                rows = self._add_aggregation(node, emit)
            else:
                rows = self._add_join(node, emit)
            self._known[id(node)] = rows
        return self._known[id(node)]

    def add_final(self, node: Aggregation | WindowJoin, rows: _PlannedRows) -> None:
        """Add the operator that emits the last row of each of ``node``'s windows once the window is
        closed.

        ``rows``: those of ``node``, which the operator reads. ``node`` must have windows.
        """
        windows = node.windows
        assert windows is not None
        source = SourceSpec(
            node.name,
            RowShape(carried_schema(node.row), len(node.key), window=windows.kept_by),
            RowMeaning(retention_us=windows.size_us + windows.grace_us),
            _IN_SEQUENCE,
        )
        law = groups.FinalLaw(windows.wait_us, after=not windows.fixed)
        feed = rows.feed(node.row.names)
        columns_of = _output_columns(node.key.names, node.values.names)
        self._add_numbered_operator(law, (source,), (feed,), "change", rows.clocks, columns_of)

    def _input_rows(
        self,
        source: Entry,
        key: tuple[str, ...],
        foreign: tuple[tuple[str | Column, DataType], ...] = (),
        used: tuple[str, ...] | None = None,
    ) -> _PlannedRows:
        """Return the rows of the input ``source``, which is added on first use. All operators that
        read it by the same keys share one input. Those with ``used`` and those without do not share
        one.

        ``key``: the columns by which rows are found. ``foreign``: the columns or expressions of a
        foreign key, with their types. ``used``: the columns to read besides, which are added to
        those of the shared input; None for all.
        """
        alike = (source, key, foreign, used is None)
        read_keys = [(r.source, r.key, r.foreign, r.used is None) for r in self.reads]
        read_index = read_keys.index(alike) if alike in read_keys else len(read_keys)
        if read_index == len(read_keys):
            self.reads.append(_PlannedInput(source, key, foreign, None if used is None else {}))
        read = self.reads[read_index]
        columns = {name: name for name in key}
        if read.used is None:
            columns = {name: name for name in source.fields}
        else:
            for name in used or ():
                read.used.setdefault(name, len(read.used))
            used_as = {name: aggregated_name(n) for name, n in read.used.items()}
            columns = used_as | columns
        columns |= {foreign_name(n): foreign_name(n) for n in range(len(foreign))}
        return _PlannedRows(read_index, False, columns, (read_index,))

    def _add_numbered_operator(
        self,
        law: Law,
        sources: tuple[SourceSpec, ...],
        reads: tuple[Feed, ...],
        emit: Emit,
        clocks: tuple[int, ...],
        columns: Mapping[str, str],
    ) -> _PlannedRows:
        """Add an operator whose changes say by ``_sequence`` which record caused them, and return
        its rows.

        ``law``, ``sources``: the law of the operator and its inputs. ``reads``: the route of each
        source's rows. ``emit``: the emission of its changes. ``clocks``: the indices of the
        fragment's inputs by whose stream time the operator's windows close. ``columns``: the
        operator's output column behind each column of the node.
        """
        operator = Operator(law=law, sources=sources, emit=emit, feeds=(SEQUENCE,))
        return self._add_operator(operator, reads, clocks, columns)

    def _add_operator(
        self,
        operator: Operator,
        reads: tuple[Feed, ...],
        clocks: tuple[int, ...],
        columns: Mapping[str, str],
    ) -> _PlannedRows:
        """Add ``operator`` to the end of the fragment with these ``reads`` and ``clocks``, and
        return its rows.

        ``reads``: the route of each source's rows. ``clocks``: the indices of the fragment's inputs
        by whose stream time the operator's windows close. ``columns``: the operator's output column
        behind each column of the node.
        """
        self.operators.append(replace(operator, reads=reads, clocks=clocks))
        return _PlannedRows(len(self.operators) - 1, True, columns, clocks)

    def _add_aggregation(self, node: Aggregation, emit: Emit) -> _PlannedRows:
        """Add the operator of an aggregation, and its input if that is new, and return the
        operator's rows. ``emit``: the operator's emission.
        """
        used = node.used
        read = self._input_rows(node.input, node.by, used=used)
        input_fields = node.input.fields
        fields = [input_fields[name] for name in node.by]
        fields += [
            StructField(aggregated_name(n), input_fields[u].dataType) for n, u in enumerate(used)
        ]
        source = SourceSpec(
            node.input.name,
            RowShape(carried_schema(StructType(fields)), len(node.by)),
            RowMeaning(stream=True),
            _IN_SEQUENCE,
        )
        feed = read.feed([*node.by, *used], rehashed=False)
        columns = _output_columns(node.key.names, node.values.names)
        law = chains.aggregation_law(node)
        return self._add_numbered_operator(law, (source,), (feed,), emit, read.clocks, columns)

    def _add_join(self, node: WindowJoin, emit: Emit) -> _PlannedRows:
        """Add the operators of a join of windowed tables, by key, by foreign key or of a stream.
        Return the last one's rows.

        ``emit``: the emission of all of them; a stream that looks windows up emits each change.
        Raises ``PlanError`` if the selection of a joined node computes.
        """
        if not node.meets_by_key:
            return self._add_foreign_key_join(node, emit)
        if node.left.stream:
            return self._add_window_lookup(node, emit)
        return self._add_window_join(node, emit)

    def _side_rows(self, entry: Entry, emit: Emit) -> _PlannedRows:
        """Return the rows of ``entry``, one side of a join: those of an input, or of a windowed
        node that is planned on first use with the emission ``emit``. Raises ``PlanError`` if that
        node's selection computes.
        """
        if entry.windows is None:
            return self._input_rows(entry, tuple(entry.key.names))
        assert isinstance(entry, Derived)
        node = entry.node
        assert isinstance(node, (Aggregation, WindowJoin))
        rows = self.plan_node(node, emit)
        if node.selects_expressions:
            raise PlanError(
                node.name,
                "select= computes, and another join of windows reads the result",
                "Name columns only, and compute in the last select= or in to_stream()",
            )
        return rows

    def _add_window_join(self, node: WindowJoin, emit: Emit) -> _PlannedRows:
        """Add the operator that joins both sides by their whole key, the window included, and
        return the operator's rows. A table joined with itself is read once.

        ``emit``: the operator's emission. Raises ``PlanError`` if the selection of a joined node
        computes.
        """
        sides = [self._side_rows(entry, emit) for entry in (node.left, node.right)]
        entries = [node.left, node.right]
        if sides[0] == sides[1]:
            sides, entries = sides[:1], entries[:1]
        sources = tuple(_operator_source(entry, entry.row, len(entry.key)) for entry in entries)
        feeds = tuple(
            side.feed(entry.row.names) for side, entry in zip(sides, entries, strict=True)
        )
        law = ops.TableJoinLaw(TreeJoin(TreeLeaf(0), TreeLeaf(len(sides) - 1), node.how))
        return self._add_numbered_operator(
            law, sources, feeds, emit, _clock_inputs(sides), self._selected_columns(node)
        )

    def _add_foreign_key_join(self, node: WindowJoin, emit: Emit) -> _PlannedRows:
        """Add the three operators of a join by foreign key, and return the last one's rows.

        The foreign key is the left row's key with another window: shifted, or the one that
        ``window_of`` names. If the right side has no windows, it is the left key without its
        window. ``emit``: the emission of all three. Raises ``PlanError`` if the selection of a
        joined node computes.
        """
        windows = node.right.windows
        left_key, base = list(node.left.key), list(node.left.base_key.names)
        names: list[str | tuple[str, int]] = [*base]
        looks = None
        if windows is None or node.left.windows is not None:
            left = self._side_rows(node.left, emit)
            if windows is not None:
                names += [(WINDOW_START, node.shift_us), (WINDOW_END, node.shift_us)]
        else:
            left, column = self._left_rows_and_window(node)
            names += [column, (column, windows.size_us)]
            looks = windows
        right = self._side_rows(node.right, emit)
        foreign = [StructField(foreign_name(n), f.dataType) for n, f in enumerate(node.right.key)]
        values = [*node.left.values.fields]
        source = _operator_source(
            node.left,
            [*left_key, StructField(FOREIGN, LongType()), *foreign, *values],
            len(left_key),
            foreign=len(foreign),
        )
        feed = left.feed(
            [*(f.name for f in left_key), *names, *(f.name for f in values)], looks=looks
        )
        clocks = _clock_inputs(
            [side for side, w in ((left, node.left.windows), (right, windows)) if w]
        )
        subscribed = self._add_numbered_operator(
            SubscribeLaw(node.how), (source,), (feed,), emit, clocks, {}
        )
        answering = chains.foreign_key_operator(
            source,
            (),
            _operator_source(node.right, node.right.row, len(node.right.key)),
            node.how,
            emit=emit,
            visible=node.selects_expressions,
            feeds=(SEQUENCE,),
        )
        feeds = subscribed.unchanged_feed(), right.feed(node.right.row.names)
        answered = self._add_operator(answering, feeds, clocks, {})
        ordering = chains.in_order_operator(answering, node.name)
        return self._add_operator(
            ordering, (answered.unchanged_feed(),), clocks, self._selected_columns(node)
        )

    def _add_window_lookup(self, node: WindowJoin, emit: Emit) -> _PlannedRows:
        """Add the operator that joins a stream with the window that ``window_of`` names for each
        record, and return its rows.

        ``emit``: the emission of the windows; the operator itself emits each change. Raises
        ``PlanError`` if the selection of the node with the windows computes.
        """
        windows = node.right.windows
        assert windows is not None
        left, column = self._left_rows_and_window(node)
        right = self._side_rows(node.right, emit)
        left_key, values = list(node.left.key), list(node.left.values)
        asked = [StructField(name, TimestampType()) for name in (WINDOW_START, WINDOW_END)]
        source = _operator_source(
            node.left, [*left_key, *asked, *values], len(left_key) + len(asked)
        )
        meaning = replace(source.meaning, stream=True, null_keys=sides_preserved(node.how)[0])
        theirs = _operator_source(node.right, node.right.row, len(node.right.key))
        names: list[str | tuple[str, int]] = [f.name for f in left_key]
        names += [column, (column, windows.size_us)]
        feeds = (
            left.feed([*names, *(f.name for f in values)], looks=windows),
            right.feed(node.right.row.names),
        )
        law = ops.StreamTableJoinLaw(TreeJoin(TreeLeaf(0), TreeLeaf(1), node.how))
        return self._add_numbered_operator(
            law,
            (replace(source, meaning=meaning), theirs),
            feeds,
            "change",
            right.clocks,
            self._selected_columns(node),
        )

    def _left_rows_and_window(self, node: WindowJoin) -> tuple[_PlannedRows, str]:
        """Return the rows of the join's left side, which has no windows, and the name of a column
        among them. It has the start of the window in which each left row looks. The name is the
        user's column, or ``_f0`` for the result of an expression in ``window_of``.
        """
        looks = node.window_of
        assert looks is not None
        key = tuple(node.left.key.names)
        if isinstance(looks, str):
            return self._input_rows(node.left, key), looks
        return self._input_rows(node.left, key, ((looks, TimestampType()),)), foreign_name(0)

    def _selected_columns(self, node: WindowJoin) -> Mapping[str, str]:
        """Return the output column of the join's last operator behind each key column of the join,
        and behind each value column that its selection names. Columns that the selection computes
        are left out.
        """
        left, right = self.naming_inputs(node)
        columns_by_side = {
            side: {f.name: key_name(n) for n, f in enumerate(input_.key_fields)}
            | {f.name: value_name(leaf, n) for n, f in enumerate(input_.value_fields)}
            for leaf, (side, input_) in enumerate((("left", left), ("right", right)))
        }
        key_columns = {name: key_name(n) for n, name in enumerate(node.key.names)}
        return key_columns | {
            s.name: columns_by_side[s.ref[0]][s.ref[1]] for s in node.select if s.ref is not None
        }


def _operator_source(
    entry: Entry, columns: Iterable[StructField], keys: int, *, foreign: int = 0
) -> SourceSpec:
    """Return the layout of rows that an operator reads within the fragment, where all rows share
    one sequence.

    ``entry``: the node's input whose name, windows and history the rows have. ``columns``: the
    columns after ``ROW_COLUMNS``: ``keys`` key columns, the foreign key behind its hash, then
    values. ``foreign``: the count of foreign key columns without the hash; with 0 there is no hash
    either.
    """
    windows = entry.windows
    return SourceSpec(
        entry.name,
        RowShape(
            carried_schema(StructType(list(columns))),
            keys,
            foreign,
            window=WINDOW_START if windows is None else windows.kept_by,
        ),
        RowMeaning(
            versioned_us=entry.versioned_us,
            in_order=entry.in_order,
            retention_us=None if windows is None else windows.retention_us,
        ),
        _IN_SEQUENCE,
    )


def _clock_inputs(sides: Sequence[_PlannedRows]) -> tuple[int, ...]:
    """Return the indices of the fragment's inputs by whose stream time windows of any of ``sides``
    close, each once, ascending. No sides give none.
    """
    return tuple(sorted({clock for side in sides for clock in side.clocks}))


def _output_columns(key: Sequence[str], values: Sequence[str]) -> dict[str, str]:
    """Return the output column behind each column of a node with one leaf, by name: ``_k0``,
    ``_k1`` and so on for the key, ``_0_0`` and so on for the values. ``key``, ``values``: the names
    of the node's key and value columns, in order.
    """
    key_columns = {name: key_name(index) for index, name in enumerate(key)}
    return key_columns | {name: value_name(0, index) for index, name in enumerate(values)}
