"""The choice between a delta join and the stateful join of two tables.

A *delta join* looks rows up in stores and keeps no state. Its limitations (FLIP-486) are checked
against the plan one by one. An error therefore names all that are broken, and ``explain`` says how
each is met. A join whose results are keyed by one table's key needs fewer of them.
docs/joins/delta_join.md explains why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Annotated, Literal, TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F

from dovetail.base.columns import UNREAD, quoted
from dovetail.base.validation import Natural, Rule, validated, validated_fields
from dovetail.errors import PlanError
from dovetail.laws.joins.delta_join import Form
from dovetail.laws.joins.table_join import How, sides_preserved
from dovetail.lookup_sources.source import LookupSource, index_for
from dovetail.plan.joins.delta_join import DeltaJoin, changes_of, has_fixed_key, lookup_of
from dovetail.plan.joins.foreign_key_join import ForeignKeyJoin, foreign_key_join
from dovetail.plan.joins.join_call import TWICE_REMEDY, JoinCall
from dovetail.plan.joins.join_keys import pairs_of
from dovetail.plan.joins.table_join import TableJoin, table_join
from dovetail.plan.nodes import ChangeKinds, Derived, Entry, Late, Node, Source
from dovetail.plan.types.analysis import steps_of
from dovetail.plan.types.checks import Verdict, known_field, refuse_duplicates, refuse_given

Strategy: TypeAlias = Literal["auto", "force", "none"]
"""``"auto"``: a delta join if no limitation is broken, else the stateful join. ``"force"``: a delta
join, or an error that names the broken limitations. ``"none"``: the stateful join.
"""
NamedPairs: TypeAlias = tuple[tuple[str, str], ...]
"""The join key: a left and a right column for each part."""

_ROW_KEEPING_STEPS = {
    "Project",
    "SubqueryAlias",
    "View",
    "EventTimeWatermark",
    "CollectMetrics",
    "Repartition",
    "RepartitionByExpression",
    "UnresolvedHint",
    "ResolvedHint",
}
"""The steps of a Spark plan that keep all rows, each by itself."""
_RELATIONS = (
    "StreamingRelation",
    "StreamingRelationV2",
    "StreamingExecutionRelation",
    "Relation",
    "LogicalRelation",
    "LogicalRDD",
    "LocalRelation",
    "RelationV2",
    "Range",
)
"""The first words of the steps that read data."""


@validated_fields
@dataclass(frozen=True)
class DeltaJoinOptions:
    """Options of a join of tables by lookups.

    ``delta_join`` makes it, and users do not construct it.

    See Also
    --------
    delta_join : Choose between lookups and state.
    Table.join : Join two tables.

    Examples
    --------
    >>> import dovetail as dt
    >>> dt.delta_join(strategy="force", right_cache=0)
    DeltaJoinOptions(strategy='force', left_cache=100000, right_cache=0)
    """

    strategy: Strategy = "auto"
    left_cache: Natural = 100_000
    """The most looked-up left rows that a task keeps."""
    right_cache: Natural = 100_000
    """The most looked-up right rows that a task keeps."""


ADeltaJoin: TypeAlias = Annotated[
    DeltaJoinOptions, Rule('options such as dt.delta_join(strategy="force")')
]


@validated
def delta_join(
    *, strategy: Strategy = "auto", left_cache: Natural = 100_000, right_cache: Natural = 100_000
) -> DeltaJoinOptions:
    """Return options that choose between a delta join and a join of tables in state.

    A *delta join* keeps no state. It joins each change of one table with the rows that the
    store of the other table has at that time. ``Table.with_lookup`` gives a table its
    store, the *lookup source*.

    Parameters
    ----------
    strategy : {"auto", "force", "none"}, default "auto"
        The choice between a delta join and a join that keeps both tables in state:

        - ``"auto"`` joins tables with lookup sources by a delta join if none of its
          limitations is broken. It joins all other tables in state.
        - ``"force"`` makes a delta join, or raises an error that names every broken
          limitation.
        - ``"none"`` joins in state.
    left_cache : int, default 100_000
        The number of looked-up rows of the left table that a task keeps, the last used
        ones. A join key without rows counts as one row. 0 keeps none.
    right_cache : int, default 100_000
        The same for the right table.

    Returns
    -------
    DeltaJoinOptions
        An argument of ``Table.join``.

    Raises
    ------
    PlanError
        If ``strategy`` is another one, or if a number of rows is negative or above
        2147483647. ``Table.join`` raises it for a broken limitation with ``"force"``. With
        ``"auto"`` it does so if ``on`` does not pair the whole right key.

    See Also
    --------
    Table.join : Join two tables.
    Table.with_lookup : Give a table its lookup source.
    Table.explain : Show the choice and its reasons.

    Notes
    -----
    - The result of a delta join is *eventual*: once the input rests, it is the join of both
      tables. Until then, it may be ahead of the changelogs.
    - A key has at most one change in a micro-batch.
    - An unchanged row may come again. So may a tombstone (a delete) of a key that had no
      row.
    - No looked-up row is kept of a side whose rows may change their join key. A kept row is
      replaced or dropped when its table's changelog brings a change of it, and has no other
      limit of age.

    Source: FLIP-486; docs/joins/delta_join.md lists the limitations.

    Examples
    --------
    >>> import pyarrow as pa
    >>> import dovetail as dt
    >>> from dovetail import testing
    >>> orders = testing.table("orders", key="id", schema={"id": pa.int64(), "city": pa.string()})
    >>> schema = {"city": pa.string(), "land": pa.string()}
    >>> cities = testing.table("cities", key="city", schema=schema)
    >>> try:
    ...     orders.join(cities, on="city", delta_join=dt.delta_join(strategy="force"))
    ... except dt.errors.PlanError as error:
    ...     print(error.problem.partition(";")[0])
    4 limitations are broken: (1) no index finds rows of orders by city

    With lookup sources, ``explain`` shows the delta join:

    >>> by_city = [dt.lookups.index("city")]
    >>> source = dt.lookups.sqlite("shop.db", "orders", key="id", indexes=by_city)
    >>> orders = orders.with_lookup(source)
    >>> cities = cities.with_lookup(dt.lookups.sqlite("shop.db", "cities", key="city"))
    >>> dt.explain(orders.join(cities, on="city"))  # doctest: +ELLIPSIS
    Topology
    inner join by lookups on city  (key id; city, land)
    ...
    Delta join: chosen for inner join of orders and cities
    ...
    """
    return DeltaJoinOptions(strategy, left_cache, right_cache)


def with_lookup(table: Node, lookup: LookupSource, changes: ChangeKinds | None) -> Source:
    """Return a copy of the table with ``lookup``, a store of the same rows. The store's filters
    then restrict the table's frame. ``changes``: the changes that the table may have, None if not
    declared. The store is not asked. A second call replaces the store and ``changes``, but the
    frame keeps the first store's filters.

    Raises ``PlanError`` for a node that is no source, such as a join or a view. So it does if the
    store's key has other columns (their order does not count), and for indexes and filters by
    unknown columns. Filters are refused for a table without a frame. By columns outside the key
    they are refused unless ``changes`` is ``"insert"``.
    """
    if not isinstance(table, Source):
        raise PlanError(
            table.name,
            "a lookup source is given to the result of a join",
            "Give one to each table that is joined",
        )
    title = table.title
    if set(lookup.key) != set(table.key.names):
        raise PlanError(
            title,
            f"its key is {', '.join(table.key.names)}, that of {lookup.title} "
            f"{', '.join(lookup.key)}",
            "Give both the same key",
        )
    for what, columns in (
        *((index.summary, index.columns) for index in lookup.indexes),
        *((f"where= of {lookup.title}", (column,)) for column, _ in lookup.filters),
    ):
        for column in columns:
            known_field(title, what, column, table.row)
    filtered = [column for column, _ in lookup.filters]
    if not set(filtered) <= set(table.key.names) and changes != "insert":
        raise PlanError(
            title,
            f"where= of {lookup.title} has {', '.join(filtered)}, of which a change could take a "
            "row out of the table unseen",
            "Restrict columns of the key, or say changes='insert' of rows that never change",
        )
    if lookup.filters:
        table = _filtered_table(table, lookup)
    return replace(table, lookup=lookup, changes=changes)


def _filtered_table(table: Source, lookup: LookupSource) -> Source:
    """Return the table with its rows restricted to those that meet every filter of ``lookup``: the
    column equals one of the filter's constants, where null equals null.

    Records that cannot be read stay in ``with_unread``. Raises ``PlanError`` for a table without a
    frame.
    """
    if table.frame is None:
        raise PlanError(
            table.name,
            "its lookup source has where=, which also filters the frame of a table, and a table of "
            "dt.testing has none",
            "Leave where= out in a test",
        )
    frame, with_unread = table.frame, table.with_unread
    for column, constants in lookup.filters:
        parts = [F.col(quoted(column)).eqNullSafe(F.lit(value)) for value in constants]
        condition = reduce(Column.__or__, parts)
        frame = frame.where(condition)
        if with_unread is not None:
            with_unread = with_unread.where(F.col(UNREAD).isNotNull() | condition)
    return replace(table, frame=frame, with_unread=with_unread)


def join_tables(
    call: JoinCall, late: Late, options: DeltaJoinOptions
) -> TableJoin | ForeignKeyJoin | DeltaJoin:
    """Join the two tables of ``call`` by lookups or in state, by key or by foreign key.

    ``options`` decides between lookups and state; ``"auto"`` tries lookups if a side has a store.
    In state, the join is by key if ``on=`` names the left key in its order, else by foreign key.
    ``late`` and ``call.align`` are for a join by key in state, ``call.spread`` for one by foreign
    key. Given for lookups, they count as a broken limitation; for the other join in state they
    raise ``PlanError``.

    If lookups are tried and a limitation is broken, the join is in state. With ``"force"``, or if
    ``on=`` does not pair the whole right key, ``PlanError`` is raised instead. Also for columns
    that are unknown, repeated or of different types, and for an unknown kind of join. It refuses a
    side that is a join of histories (``late="history"``). The result's ``verdicts`` are those of
    the limitations tried; empty if none were.
    """
    name, left, right = call.name, call.left, call.right
    sides = _side_as_input(left), _side_as_input(right)
    tried = options.strategy == "force" or (
        options.strategy == "auto" and any(lookup_of(side) is not None for side in sides)
    )
    pairs = pairs_of(name, left, right, call.on, whole=not tried)
    verdicts: tuple[Verdict, ...] = ()
    if tried:
        named = tuple((a, b) for a, b in pairs if isinstance(a, str))
        verdicts = tuple(_options_verdict(late, call))
        if len(named) < len(pairs):
            verdicts += (_EXPRESSION_VERDICT,)
        else:
            verdicts += tuple(limitations(*sides, named, call.how))
        broken = any(verdict.broken for verdict in verdicts)
        if not broken:
            return replace(_delta_join(call, *sides, named, options), verdicts=verdicts)
        if options.strategy == "force" or sorted(b for _, b in pairs) != sorted(right.key.names):
            _refuse_broken(name, verdicts)
    columns = tuple(a for a, _ in pairs)
    stateful: TableJoin | ForeignKeyJoin
    if all(isinstance(a, str) for a in columns) and [*columns] == left.key.names:
        remedy = "Leave it out: each left row has a key of its own, which no other row makes hot"
        refuse_given(name, "is for joins by foreign key", remedy, spread=call.spread)
        stateful = table_join(call, late)
    else:
        unfit = {"late": None if late == "ignore" else late, "align": call.align}
        refuse_given(name, "is for joins by key", "Leave it or on= out", **unfit)
        stateful = foreign_key_join(call, columns)
    return replace(stateful, verdicts=verdicts)


def _delta_join(
    call: JoinCall, left: Entry, right: Entry, on: NamedPairs, options: DeltaJoinOptions
) -> DeltaJoin:
    """Return the delta join of two tables that meet all limitations. ``call``: the user's
    arguments, of which ``left``, ``right`` and ``on`` are not read. ``left``, ``right``: the sides
    as inputs of the join's stage. ``on``: the pairs of equal columns, left and right. ``options``:
    for the sizes of caches.

    Without a selection, a column of ``on`` with one name on both sides is selected once. Raises
    ``PlanError`` for column names that occur twice, and for columns that cannot be selected.
    """
    form = key_form(left, right, on)
    same = {b for a, b in on if a == b}
    if call.select is None and same & set(right.values.names):
        # A join column with one name on both sides is the left one, as in a join of frames.
        values = [f"left.{n}" for n in left.values.names]
        values += [f"right.{n}" for n in right.values.names if n not in same]
        call = replace(call, select=values)
    cache = (options.left_cache, options.right_cache)
    chosen = call.join_fields(left, right, one_key=form == "key")
    node = DeltaJoin(left=left, right=right, on=on, form=form, cache=cache, **chosen)
    refuse_duplicates(call.name, node.row.names, TWICE_REMEDY)
    return node


def key_form(left: Node, right: Node, pairs: NamedPairs) -> Form:
    """Return the form of a delta join's result key, by ``pairs``, the equal columns: a left and a
    right one each.

    ``"key"``: ``pairs`` are both keys, each in its order. ``"left"``: the result has the left key,
    as ``pairs`` have all columns of the right key and no other right ones. ``"pair"``: the result
    has both keys, in all other cases.
    """
    columns = [{pair[side_index] for pair in pairs} for side_index in (0, 1)]
    if columns[1] != set(right.key.names):
        return "pair"
    in_order = [pair[0] for pair in pairs] == left.key.names
    return "key" if in_order and [pair[1] for pair in pairs] == right.key.names else "left"


def limitations(left: Entry, right: Entry, pairs: NamedPairs, how: How) -> Iterator[Verdict]:
    """Yield the verdict on each limitation of delta joins, in the order of FLIP-486, the left side
    before the right: eleven in all. A verdict has the limitation's name (``limit``). Its ``broken``
    is the problem, with advice in ``remedy``, or None; ``how`` then says how the join meets the
    limitation.

    ``left``, ``right``: the sides as inputs of the join's stage. ``pairs``: the equal columns, a
    left and a right one each. ``how``: the kind of join, such as ``"left"``. Nothing is raised for
    a broken limitation.
    """
    form = key_form(left, right, pairs)
    sides = ((left, [a for a, _ in pairs]), (right, [b for _, b in pairs]))
    yield Verdict("eventual consistency", None, how="with_lookup and the strategy accept it")
    for side, columns in sides:
        yield _index_verdict(side, columns)
    for side, _ in sides:
        yield _source_verdict(side)
    for side, _ in sides:
        yield _steps_verdict(side)
    for side_index, (side, columns) in enumerate(sides):
        yield _updates_verdict(side, columns, form, how, side_index)
    yield Verdict("no update-before rows", None, how="a changelog has upserts and tombstones only")
    yield _deletes_verdict(left, right, form)


def _index_verdict(side: Entry, columns: Sequence[str]) -> Verdict:
    """Return the verdict on a limitation of delta joins: a side's store must find rows by
    ``columns``, the side's part of the join key. It is broken without a store, and if no index of
    the store, its primary key included, has all its columns among ``columns``.
    """
    limit, shown = f"index of {side.name}", ", ".join(columns)
    source = lookup_of(side)
    if source is None:
        return Verdict(limit, f"no index finds rows of {side.name} by {shown}", "Declare one")
    index = index_for(source, columns)
    if index is None:
        names = ", ".join(repr(column) for column in columns)
        return Verdict(
            limit,
            f"no index of {source.title} is in the join key {shown}",
            f"Create one there and declare it with indexes=[dt.lookups.index({names})]",
        )
    return Verdict(limit, None, how=index.summary)


def _source_verdict(side: Entry) -> Verdict:
    """Return the verdict on a limitation of delta joins: a side must have a lookup source. It is
    broken if the side has none. A table needs one of its own. A delta join's result needs one on
    both sides and no expressions in ``select=``.
    """
    limit = f"lookup source of {side.name}"
    source = lookup_of(side)
    if source is None:
        joined = isinstance(side, Derived) and isinstance(side.node, DeltaJoin)
        return Verdict(
            limit,
            f"{side.name} is computed by expressions in select=, which cannot be looked up"
            if joined
            else f"{side.name} has no lookup source",
            "Select columns by name, and compute after the last join"
            if joined
            else "Give each table its own by with_lookup(dt.lookups.postgres(...)), and join by "
            "delta joins only",
        )
    return Verdict(limit, None, how=source.title)


def _steps_verdict(side: Entry) -> Verdict:
    """Return the verdict on a limitation of delta joins: the steps between a side's changelog and
    the join, which a lookup skips, must keep all rows.

    It is broken for a versioned table, for a view, and for the result of any stage but a delta
    join's. Broken also for a source whose frame has a step that may drop or combine rows, such as a
    join. Filters may be by columns that the store filters by, too. A static frame is not checked.
    """
    limit = f"only stateless steps before {side.name}"
    if side.versioned_us is not None:
        return Verdict(limit, f"{side.name} is versioned", "Read it without versioned=")
    if isinstance(side, Derived):
        if isinstance(side.node, DeltaJoin):
            return Verdict(limit, None, how="a delta join keeps no state")
        return Verdict(limit, f"{side.name} keeps state", "Join tables with lookup sources only")
    if not isinstance(side, Source):
        return Verdict(
            limit,
            f"of {side.name} rows are chosen or computed, which a lookup does not go through",
            "Give the table its lookup source with where= there, and select after the join",
        )
    # ``spark.migration.initial_rows`` refuses lookups of a static table.
    step = None if side.frame is None or side.static else _offending_step(side)
    if step is not None:
        return Verdict(
            limit,
            f"{side.name} is read through a step ({step}) that a lookup does not go through",
            "Let from_changelog read the source itself; rows are restricted by where= of the "
            "lookup source",
        )
    return Verdict(limit, None, how="its rows are those of the source")


def _offending_step(source: Source) -> str | None:
    """Return the first step of a source's frame that may drop, add or combine rows, or None: a
    filter with its columns in words, or Spark's name of the step. The source must have a frame.

    Projections are allowed, even if they compute columns. So are filters by columns that are all
    among those of the lookup source's own filters, or have names that begin with ``_``. A filter by
    no column is not allowed.
    """
    allowed = {name for name, _ in source.lookup.filters} if source.lookup is not None else set()
    assert source.frame is not None
    for name, columns in steps_of(source.frame):
        if name == "Filter":
            # dovetail's own filters, by columns that begin with _, drop records that are no rows.
            if not columns:
                return "filter without columns"
            if not all(column.startswith("_") or column in allowed for column in columns):
                return f"filter on {', '.join(columns)}"
        elif name not in _ROW_KEEPING_STEPS and not name.startswith(_RELATIONS):
            return name
    return None


def _updates_verdict(
    side: Entry, columns: Sequence[str], form: Form, how: How, side_index: int
) -> Verdict:
    """Return the verdict on a limitation of delta joins: updates of a side, whose join key is
    ``columns``. It is broken if a row's former join key is needed and not known.

    That key is not needed if rows never change, or if the join key is part of the side's key. It is
    not needed either for the left side if the result has the left key, unless ``how`` lets right
    rows appear alone. ``form``: the form of the result's key, ``"left"`` for the left one.
    ``side_index``: 0 for the left side, 1 for the right.
    """
    limit = f"updates of {side.name}"
    if changes_of(side) == "insert":
        return Verdict(limit, None, how="it has none (changes='insert')")
    if has_fixed_key(side, columns):
        return Verdict(limit, None, how="the join key is part of its key")
    if form == "left" and side_index == 0 and not sides_preserved(how)[1]:
        return Verdict(limit, None, how="not needed: the result has its key and replaces its rows")
    alone = " to keep right rows alone" if form == "left" else ""
    return Verdict(
        limit,
        f"rows of {side.name} change and the join key {', '.join(columns)} is not part of its key"
        f"{alone}, so a row's former join key is not known",
        "Make it part of the key, or say changes='insert' of rows that never change",
    )


def _deletes_verdict(left: Entry, right: Entry, form: Form) -> Verdict:
    """Return the verdict on a limitation of delta joins, deletions. It is broken if both sides may
    delete rows, by ``changes_of``, and the result has both keys. ``form``: the form of the result's
    key, ``"pair"`` for both keys.
    """
    limit = "deletes"
    deleting = [side.name for side in (left, right) if changes_of(side) == "all"]
    if not deleting:
        return Verdict(limit, None, how="neither table has any")
    if form != "pair":
        return Verdict(limit, None, how="not limited: the result has one table's key")
    if len(deleting) > 1:
        return Verdict(
            limit,
            f"both {left.name} and {right.name} delete rows; of a pair whose rows are both gone "
            "neither lookup finds the other",
            "Say changes='upsert' of the one that does not delete",
        )
    return Verdict(limit, None, how=f"only {deleting[0]} has them, by key")


_EXPRESSION_VERDICT = Verdict(
    "join key", "on= has an expression, which no index finds", "Name columns in on="
)


def _options_verdict(late: Late, call: JoinCall) -> Iterator[Verdict]:
    """Yield one broken verdict if ``late=`` is not ``"ignore"``, or if ``call`` has ``align=`` or
    ``spread=``, because all of these need state; else nothing.
    """
    arguments = [
        *(["late="] if late != "ignore" else []),
        *(["align="] if call.align is not None else []),
        *(["spread="] if call.spread is not None else []),
    ]
    if arguments:
        yield Verdict("options", f"{' and '.join(arguments)} keeps rows in state", "Leave it out")


def _refuse_broken(name: str, verdicts: Sequence[Verdict]) -> None:
    """Raise one ``PlanError`` with all broken ones among ``verdicts`` and their remedies. Raise
    nothing if none is broken. ``name``: the join in the error.
    """
    broken = [verdict for verdict in verdicts if verdict.broken]
    if not broken:
        return
    problems = "; ".join(f"({n}) {v.broken}" for n, v in enumerate(broken, start=1))
    remedies = dict.fromkeys(v.remedy for v in broken)
    count = "a limitation is" if len(broken) == 1 else f"{len(broken)} limitations are"
    raise PlanError(name, f"{count} broken: {problems}", "; ".join(remedies))


def _side_as_input(side: Node) -> Entry:
    """Return a side as an input of the join's stage: a source, a stage's result or a view as it is,
    another node as the result of its stage. Unlike ``join_call.side_as_input``, nothing is refused.
    """
    return side if isinstance(side, Entry) else Derived(side)
