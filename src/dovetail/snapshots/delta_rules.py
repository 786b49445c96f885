"""The law of a join over snapshots: how it changes when its inputs change. Frames in, frames out.

A *delta* is the difference of two snapshots of a node. It has the node's columns and ``_sign``: -1
for a row that is gone, +1 for a row that has come. An update is one of each. With Δ for deltas, the
join of A and B changes by

    Δ(A ⋈ B) = ΔA ⋈ B_new  ∪  A_old ⋈ ΔB

A side is *preserved* if its rows appear without a match, with nulls. Two more changes follow then.
A changed row of a preserved side without a match gives its row with nulls. If a row of a preserved
side gains its first match, its row with nulls goes; if it loses its last match, that row comes.

Each term is a function of the side that changes and the other side, which stands still. Sides are
indices: 0 the left, 1 the right.

A term may have rows that are in neither snapshot, such as an old row of A beside a new one of B.
Such rows occur once with +1 and once with -1. An *image* of a row is known by its key and its
*age*: ``o`` for the old snapshot only, ``n`` for the new one only, ``u`` for both. Signs are summed
by the ages of both sides. Cancelling rows are therefore found by keys, without comparing values,
and selections see only rows that exist.

An aggregate changes by the groups that have changed rows: their rows before the change give the
results that go, and those after it the results that come.

Source: FLIP-486, "What is Delta Join" and "Future Work" (strong consistency, cascading joins).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructType,
    VariantType,
)

from dovetail.base.columns import DELETED, foreign_name, key_name, quoted, value_name
from dovetail.plan.select import joined_row_columns
from dovetail.snapshots.plan import (
    AFTER,
    AGE,
    APART,
    BEFORE,
    COME,
    FAULTY,
    FRESH,
    GONE,
    IMAGE,
    LEFT_AGE,
    RIGHT_AGE,
    SIGN,
    TURNS,
    SnapshotAggregate,
    SnapshotJoin,
    plan_source,
)

OLD, NEW, UNCHANGED = "o", "n", "u"
AGES = (LEFT_AGE, RIGHT_AGE)
FEED_VERSION = "_commit_version"


def images_of_feed(feed: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return the row of each key before and after the changes of a change feed.

    ``feed``: the key, values, ``_sign`` (-1 a row that goes, +1 one that comes) and
    ``_commit_version``. ``key``: the names of the key columns; null keys equal each other. The
    result has a row per key in the feed, with these columns:

    - the key
    - ``_row_old`` and ``_row_new``: structs of the key and the values, null if there was or is no
      row
    - ``_row_apart``: true if both differ, or if Spark cannot tell (``_difference_condition``)
    - ``_row_fresh``: true if the first change brings a row, so the key must have had none before
    - ``_row_faulty``: true if the key had two rows at once

    The changes of a key, ordered by version with -1 before +1, must alternate. Otherwise two rows
    had one key.

        changes of a key (version: signs)    _row_old    _row_new    _row_ flags
        1: +1                                null        of v. 1     fresh, apart
        1: -1, +1    2: -1, +1               before 1    of v. 2     apart if they differ
        1: +1        2: -1                   null        null        fresh
        1: +1        2: +1                   null        of v. 2     fresh, apart, faulty
    """
    columns = [name for name in feed.columns if name not in (SIGN, FEED_VERSION)]
    row = F.struct(*(F.col(quoted(name)) for name in columns))
    added, removed = F.col(SIGN) > 0, F.col(SIGN) < 0
    order = F.struct(FEED_VERSION, SIGN)
    grouped = feed.groupBy(*(F.col(quoted(name)) for name in key)).agg(
        F.sort_array(F.collect_list(order)).alias(TURNS),
        F.min_by(F.when(removed, row), F.when(removed, F.col(FEED_VERSION))).alias(GONE),
        F.max_by(F.when(added, row), F.when(added, F.col(FEED_VERSION))).alias(COME),
    )
    signs = f"transform({TURNS}, t -> t.{SIGN})"
    length = f"size({TURNS}) - 1"
    alternate = F.expr(
        f"forall(zip_with(slice({signs}, 1, {length}), slice({signs}, 2, {length}), "
        "(a, b) -> a != b), apart -> apart)"
    )
    first, last = F.expr(f"{TURNS}[0].{SIGN}"), F.expr(f"element_at({TURNS}, -1).{SIGN}")
    ends = grouped.select(
        *(F.col(quoted(name)) for name in key),
        F.when(first < 0, F.col(GONE)).alias(BEFORE),
        F.when(last > 0, F.col(COME)).alias(AFTER),
        (first > 0).alias(FRESH),
        (~alternate).alias(FAULTY),
    )
    return ends.withColumn(APART, _difference_condition(ends))


def signed_rows(changed: DataFrame) -> DataFrame:
    """Return the rows that go and come, with ``_sign``: -1 for an old row, +1 for a new one, in
    undefined order.

    ``changed``: a result of ``images_of_feed``. A key whose row did not change (``_row_apart`` is
    false) gives no rows, one whose row is updated gives two. The columns are ``_sign`` and those of
    the source.
    """
    row = changed.schema[BEFORE].dataType
    assert isinstance(row, StructType)
    fields = [f.name for f in row]

    def signed_image(image: str, sign: int) -> Column:
        """Return a struct of ``_sign`` and the columns of the struct ``image``: ``_row_old`` or
        ``_row_new``.
        """
        return F.struct(
            F.lit(sign).alias(SIGN),
            *(F.col(f"{image}.{quoted(name)}").alias(name) for name in fields),
        )

    signed_images = F.filter(
        F.array(
            F.when(F.col(BEFORE).isNotNull(), signed_image(BEFORE, -1)),
            F.when(F.col(AFTER).isNotNull(), signed_image(AFTER, 1)),
        ),
        lambda image: image.isNotNull(),
    )
    return changed.where(APART).select(F.inline(signed_images))


def paired_images(delta: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return a row for each key whose row differs in a delta: the key, ``_row_old`` and
    ``_row_new``.

    ``delta``: rows that go (``_sign`` -1) and come (+1), at most one per key and sign. ``key``: the
    names of the key columns; null keys equal each other. ``_row_old`` and ``_row_new`` are structs
    of all columns but ``_sign``, null for no row. A key whose row is the same before and after is
    left out. It stays if a column is of a type that Spark cannot compare exactly (``_is_coarse``),
    other than float and double.
    """
    columns = [name for name in delta.columns if name != SIGN]
    row = F.struct(*(F.col(quoted(name)) for name in columns))
    grouped = delta.groupBy(*(F.col(quoted(name)).alias(name) for name in key)).agg(
        F.max_by(F.when(F.col(SIGN) < 0, row), -F.col(SIGN)).alias(BEFORE),
        F.max_by(F.when(F.col(SIGN) > 0, row), F.col(SIGN)).alias(AFTER),
    )
    return grouped.where(_difference_condition(grouped))


def changes_after(changes: DataFrame, key: Sequence[str], values: Sequence[str]) -> DataFrame:
    """Return the row of each changed key after the change: the key, the values and ``_deleted``.

    ``changes``: a result of ``paired_images``. ``key``, ``values``: the names of the columns. A key
    whose row goes has ``_deleted`` true and null values.
    """
    return changes.select(
        *map(quoted, key),
        *(F.col(f"{AFTER}.{quoted(name)}").alias(name) for name in values),
        F.col(AFTER).isNull().alias(DELETED),
    )


def keys_of(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return the distinct values of ``columns`` as columns ``_f0``, ``_f1`` …, in undefined order.
    Values with a null in any column are left out. Floats that Spark takes for equal are one value.
    """
    named = frame.select(
        *(F.col(quoted(name)).alias(foreign_name(i)) for i, name in enumerate(columns))
    )
    return named.where(all_of(F.col(name).isNotNull() for name in named.columns)).distinct()


def rows_at_keys(
    frame: DataFrame, columns: Sequence[str], keys: DataFrame, *, nulls: bool = False
) -> DataFrame:
    """Return the rows of ``frame`` whose ``columns`` equal one of the keys, with their columns
    unchanged, in undefined order. Without keys no row stays.

    ``keys``: columns ``_f0``, ``_f1`` …, one for each of ``columns`` in order. ``nulls``: True if a
    null equals a null; by default it equals nothing. Floats are equal as in Spark: NaN equals NaN,
    and -0.0 equals 0.0.
    """
    pairs = [(F.col(quoted(name)), F.col(foreign_name(i))) for i, name in enumerate(columns)]
    equal = [a.eqNullSafe(b) if nulls else a == b for a, b in pairs]
    return frame.join(keys, all_of(equal), "left_semi")


def former_rows(
    rows: DataFrame, delta: DataFrame, key: Sequence[str], gone: DataFrame
) -> DataFrame:
    """Return a node's rows before a change, from its rows after it. So no table is read at its old
    version.

    ``rows``: the rows after the change: all of them, or all that have certain values in some
    columns. ``delta``: the node's delta, with ``_sign``: -1 for a row that goes, +1 for one that
    comes. ``key``: the node's key columns; null keys equal each other. ``gone``: the rows of
    ``delta`` with ``_sign`` -1, restricted to the same values as ``rows``.

    The result has the columns of ``rows`` and ``_row_age``. All rows of ``gone`` come with ``o``.
    Of ``rows`` come those, with ``u``, whose key has no +1 in ``delta``. A row that only has these
    values since the change is thus left out.
    """
    come, same = _keys_that_come(delta, key)
    unchanged = rows.join(come, same, "left_anti").withColumn(AGE, F.lit(UNCHANGED))
    columns = [F.col(quoted(name)) for name in rows.columns]
    return unchanged.unionByName(gone.select(*columns, F.lit(OLD).alias(AGE)))


def rows_with_age(rows: DataFrame, delta: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return a node's rows after a change, with a last column ``_row_age``: ``n`` if the delta has
    the row's key with ``_sign`` +1, else ``u``. So an updated row is ``n``, too.

    ``rows``: rows after the change. ``delta``: the node's delta: its columns and ``_sign``. A key
    that has +1 twice repeats the row. ``key``: the node's key columns; null keys equal each other.
    """
    come, same = _keys_that_come(delta, key)
    return rows.join(come.withColumn(AGE, F.lit(NEW)), same, "left").select(
        *(F.col(quoted(name)) for name in rows.columns),
        F.coalesce(F.col(AGE), F.lit(UNCHANGED)).alias(AGE),
    )


def _keys_that_come(delta: DataFrame, key: Sequence[str]) -> tuple[DataFrame, Column]:
    """Return the keys of the delta's rows with ``_sign`` +1, as columns ``_f0``, ``_f1`` …,
    repeated if the delta repeats them. Also return the condition that a row of the node has such a
    key, where a null equals a null.
    """
    pairs = [(F.col(quoted(name)), foreign_name(i)) for i, name in enumerate(key)]
    keys = delta.where(F.col(SIGN) > 0).select(*(column.alias(name) for column, name in pairs))
    return keys, all_of(column.eqNullSafe(F.col(name)) for column, name in pairs)


def values_gained_or_lost(
    delta: DataFrame, columns: Sequence[str], now: DataFrame | None
) -> DataFrame:
    """Return the values of ``columns`` for which a node gains its first row or loses its last one.

    ``delta``: the node's rows that go (``_sign`` -1) and come (+1). ``columns``: the compared
    columns of the node. ``now``: the node's rows after the change, at least those with these
    values. ``now`` is None if a value has at most one row, since ``delta`` suffices then. Values
    with a null in any column are left out.

    The values are named ``_f0``, ``_f1`` …, in the order of ``columns``. ``_sign`` is -1 if the
    node gains its first row, +1 if it loses its last one: the sign of the other side's rows with
    nulls.
    """
    keys = [foreign_name(i) for i in range(len(columns))]

    def grouped_by_value(frame: DataFrame) -> GroupedData:
        """Return the rows of ``frame`` grouped by ``columns``, as ``_f0``, ``_f1`` …, without nulls
        in them. ``_sign`` is kept if it is there.
        """
        names = [F.col(quoted(name)).alias(keys[i]) for i, name in enumerate(columns)]
        key_rows = frame.select(*names, *([SIGN] if SIGN in frame.columns else []))
        return key_rows.where(all_of(F.col(name).isNotNull() for name in keys)).groupBy(*keys)

    if now is None:
        counts = grouped_by_value(delta).agg(
            F.max((F.col(SIGN) < 0).cast("int")).alias("had"),
            F.max((F.col(SIGN) > 0).cast("int")).alias("has"),
        )
    else:
        change = grouped_by_value(delta).agg(F.sum(SIGN).alias("change"))
        present = grouped_by_value(now).agg(F.count("*").alias("rows"))
        rows = F.coalesce(F.col("rows"), F.lit(0))
        counts = change.join(present, keys, "left").select(
            *keys,
            (rows - F.col("change") > 0).cast("int").alias("had"),
            (rows > 0).cast("int").alias("has"),
        )
    return counts.where("had != has").select(*keys, (F.col("had") - F.col("has")).alias(SIGN))


def term_of_side(
    node: SnapshotJoin, side: int, delta: DataFrame, others: DataFrame, moved: DataFrame | None
) -> DataFrame:
    """Return the joined rows that go and come by one side's changes while the other side stands
    still. Rows that are in neither version may be among them; ``net_delta`` cancels them.

    ``side``: the side that changes, 0 for the left, 1 for the right. ``delta``: its rows that go
    (``_sign`` -1) and come (+1). ``others``: the other side's rows, at least those that match. They
    have ``_row_age``: ``o`` in the old version alone, ``n`` in the new one alone, ``u`` in both.
    ``moved``: the result of ``values_gained_or_lost`` for ``side``. It is None if the join drops
    unmatched rows of the other side, or if no value moves.

    The columns are ``_0_<i>`` for left column ``i`` and ``_1_<i>`` for right column ``i``, from 0,
    ``_sign``, ``_left_age`` and ``_right_age``. Their order depends on ``side``, so results are
    united by name. A missing side has nulls, also for its age.
    The changing side's age is ``n`` if ``_sign`` is +1, else ``o``; the other side's age is its
    ``_row_age``. For each value in ``moved`` there is also each of ``others`` with that value,
    beside nulls, with the value's ``_sign``.
    """
    other = 1 - side
    age = F.when(F.col(SIGN) > 0, NEW).otherwise(OLD)
    changed = _numbered_rows(node, side, delta.withColumn(AGE, age))
    standing = _numbered_rows(node, other, others)
    kind = "left" if node.preserves(side) else "inner"
    result = changed.join(standing, _match_condition(node), kind)
    if moved is not None:
        keys = [F.col(foreign_name(i)) for i in range(len(node.on))]
        columns = [F.col(name) for name in _numbered_names(node, other, node.on_columns(other))]
        equal = [a == b for a, b in zip(columns, keys, strict=True)]
        alone = standing.join(moved, all_of(equal), "inner").drop(*keys)
        result = result.unionByName(alone, allowMissingColumns=True)
    return result


def net_delta(node: SnapshotJoin, terms: DataFrame) -> DataFrame:
    """Return the rows that a join loses and gains: the columns of the join, then ``_sign``. It is
    -1 for a row that goes, +1 for one that comes.

    ``terms``: the union of results of ``term_of_side``, one for each side that has changed. Rows
    with one key, one ``_left_age`` and one ``_right_age`` are the same row. Their signs are summed,
    one of them stays, and none if the sum is 0. So the old and the new row of an updated key both
    stay, -1 and +1, since their ages differ.
    """
    keys = _key_columns(node)
    image_columns = [F.col(name) for name in terms.columns if name not in (SIGN, *AGES)]
    summed = (
        terms.groupBy(*keys, *AGES)
        .agg(
            F.sum(SIGN).cast("int").alias(SIGN),
            F.first(F.struct(*image_columns)).alias(IMAGE),
        )
        .where(F.col(SIGN) != 0)
    )
    return projected_rows(node, summed.select(f"{IMAGE}.*", SIGN, *AGES), [F.col(SIGN)])


def joined_rows(node: SnapshotJoin, left: DataFrame, right: DataFrame, kind: str) -> DataFrame:
    """Return the join of ``left`` and ``right`` in the columns of ``node``: the key, then the
    values.

    ``left``, ``right``: rows of the two sides; columns that they lack are null. ``kind``: a value
    of Spark's ``how``, such as ``"left"``, which need not be the join's own kind.
    """
    numbered = [
        _numbered_rows(node, side, frame.withColumn(AGE, F.lit(UNCHANGED)))
        for side, frame in enumerate((left, right))
    ]
    return projected_rows(node, numbered[0].join(numbered[1], _match_condition(node), kind), [])


def aggregated_rows(node: SnapshotAggregate, rows: DataFrame) -> DataFrame:
    """Return a row for each group of ``rows``, the rows of the aggregate's input: the group columns
    and the aggregates. Rows with a null in a group column are left out.
    """
    by = [F.col(quoted(name)) for name in node.key.names]
    aggregates = zip(node.aggregates, node.values.names, strict=True)
    grouped = rows.where(all_of(column.isNotNull() for column in by)).groupBy(*by)
    return grouped.agg(*(column.alias(name) for column, name in aggregates))


def delta_of_aggregate(node: SnapshotAggregate, before: DataFrame, now: DataFrame) -> DataFrame:
    """Return the rows that an aggregate loses and gains: the group columns, the aggregates and
    ``_sign``. The row of a group before a change has -1, the row after it +1. A group whose row is
    the same before and after has both.

    ``before``, ``now``: all rows of the changed groups in the aggregate's input, before and after
    the change. A column ``_row_age`` in them is ignored.
    """
    sides = ((before, -1), (now, 1))
    return reduce(
        DataFrame.unionByName,
        (aggregated_rows(node, rows).withColumn(SIGN, F.lit(sign)) for rows, sign in sides),
    )


def projected_rows(node: SnapshotJoin, rows: DataFrame, also: list[Column]) -> DataFrame:
    """Return a join's key and value columns, in order, then the columns ``also``. A key column of
    both sides has the value of the left side, or of the right one where that is null. Selected
    expressions are computed on these rows.

    ``rows``: both sides' columns, ``_0_<i>`` for left column ``i`` and ``_1_<i>`` for right column
    ``i``, from 0 among all columns of the side. They also have ``_left_age`` and ``_right_age``,
    null for a missing side. ``also``: plain columns of ``rows`` under their own names. If an
    expression is selected, they are selected twice, so they must not be computed or renamed.
    """
    places = [
        dict(zip(side.columns, _numbered_names(node, side_index, side.columns), strict=True))
        for side_index, side in enumerate(node.sides)
    ]
    plain = {
        selected.name: F.col(places[selected.ref[0] == "right"][selected.ref[1]])
        for selected in node.select
        if selected.ref is not None
    }
    keys = _key_columns(node)
    computed = {
        selected.name: selected.column for selected in node.select if selected.column is not None
    }
    if not computed:
        return rows.select(*keys, *(plain[f.name].alias(f.name) for f in node.values), *also)
    names = {name: key_name(i) for i, name in enumerate([*node.key.names, *plain])}
    named_columns = [
        column.alias(names[c.name]) for c, column in zip(node.key_columns, keys, strict=True)
    ]
    named_columns += [column.alias(names[name]) for name, column in plain.items()]
    row, shortcuts = joined_row_columns(*(plan_source(side) for side in node.sides))
    whole = {}
    for side_index, (side, name) in enumerate(zip(node.sides, ("left", "right"), strict=True)):
        fields = [F.col(places[side_index][column]).alias(column) for column in side.columns]
        whole[name] = F.when(F.col(AGES[side_index]).isNotNull(), F.struct(*fields))
    for name in node.left.key.names:
        left = F.col(places[0][name])
        key_column = next((c for c in node.key_columns if c.name == name and c.right), None)
        twin = None if key_column is None else F.col(places[1][key_column.right or ""])
        whole[name] = left if twin is None else F.coalesce(left, twin)
    whole |= {name: F.col(places[s == "right"][c]) for name, (s, c) in shortcuts.items()}
    assert set(whole) == set(row.names)
    seen = rows.select(
        *named_columns, *also, *(column.alias(name) for name, column in whole.items())
    )
    values = [
        (F.col(names[f.name]) if f.name in plain else computed[f.name]).alias(f.name)
        for f in node.values
    ]
    return seen.select(*(F.col(names[name]).alias(name) for name in node.key.names), *values, *also)


def _numbered_rows(node: SnapshotJoin, side: int, frame: DataFrame) -> DataFrame:
    """Return a side's rows with column ``i`` of the side, from 0, named ``_<side>_<i>``, so that
    two sides share no name. ``side``: 0 for the left, 1 for the right.

    ``frame``: some of the side's columns, ``_row_age`` and perhaps ``_sign``. A column that
    ``frame`` lacks is null and stands after the others. ``_sign`` follows the columns if it is
    there, then the age as ``_left_age`` or ``_right_age``.
    """
    names = node.sides[side].columns
    places = _numbered_names(node, side, names)
    columns = [
        F.col(quoted(name)).alias(numbered_name)
        for name, numbered_name in zip(names, places, strict=True)
        if name in frame.columns
    ]
    types = {f.name: f.dataType for f in (*node.sides[side].key, *node.sides[side].values)}
    # A column that nothing uses is not read, and nulls take its place.
    unread = [
        F.lit(None).cast(types[name]).alias(numbered_name)
        for name, numbered_name in zip(names, places, strict=True)
        if name not in frame.columns
    ]
    signs = [F.col(SIGN)] if SIGN in frame.columns else []
    return frame.select(*columns, *unread, *signs, F.col(AGE).alias(AGES[side]))


def _numbered_names(node: SnapshotJoin, side: int, columns: Sequence[str]) -> list[str]:
    """Return the internal name of each of a side's ``columns``, in their order: ``_<side>_<i>``.
    There ``i`` is the index, from 0, among all columns of the side. ``side``: 0 for the left, 1 for
    the right. Raises ``KeyError`` for an unknown column.
    """
    index_by_name = {name: i for i, name in enumerate(node.sides[side].columns)}
    return [value_name(side, index_by_name[name]) for name in columns]


def _match_condition(node: SnapshotJoin) -> Column:
    """Return the condition that a left and a right row match: all compared columns are equal. A
    null equals nothing. Its columns are ``_0_<i>`` of the left side and ``_1_<i>`` of the right.
    """
    sides = [_numbered_names(node, side, node.on_columns(side)) for side in (0, 1)]
    return all_of(F.col(a) == F.col(b) for a, b in zip(*sides, strict=True))


def _key_columns(node: SnapshotJoin) -> list[Column]:
    """Return the join's key columns, in order and with their names, as expressions. They are over
    ``_0_<i>``, left column ``i``, and ``_1_<i>``, right column ``i``, from 0. A key column of both
    sides has the value of the left side, or of the right one where that is null.
    """
    columns = []
    for column in node.key_columns:
        side_columns = [
            F.col(_numbered_names(node, side, [name])[0])
            for side, name in enumerate((column.left, column.right))
            if name is not None
        ]
        columns.append(
            (F.coalesce(*side_columns) if len(side_columns) > 1 else side_columns[0]).alias(
                column.name
            )
        )
    return columns


def all_of(conditions: Iterable[Column]) -> Column:
    """Return the condition that all of the conditions hold. Raises ``TypeError`` without any
    condition.
    """
    return reduce(and_, conditions)


def _difference_condition(changed: DataFrame) -> Column:
    """Return the condition that ``_row_old`` and ``_row_new`` differ, which is never null.

    ``changed``: a frame with both structs of equal fields, each null for no row. Floats differ if
    their texts do, so -0.0 differs from 0.0. If a column that is no plain float has a coarse type
    (``_is_coarse``), the condition is always true.
    """
    row = changed.schema[BEFORE].dataType
    assert isinstance(row, StructType)
    apart = F.col(BEFORE).isNull() != F.col(AFTER).isNull()
    for field in row:
        before, after = (F.col(f"{image}.{quoted(field.name)}") for image in (BEFORE, AFTER))
        if isinstance(field.dataType, (FloatType, DoubleType)):
            before, after = before.cast("string"), after.cast("string")
        elif _is_coarse(field.dataType):
            return F.lit(True)
        apart = apart | ~before.eqNullSafe(after)
    return apart


def _is_coarse(type_: DataType) -> bool:
    """Return True if Spark's equality ignores differences of a type's values, or refuses the type.

    Such types are floats, maps, variants, strings with a collation, and types that contain one of
    them.
    """
    if isinstance(type_, StringType):
        return not type_.isUTF8BinaryCollation()
    if isinstance(type_, ArrayType):
        return _is_coarse(type_.elementType)
    if isinstance(type_, StructType):
        return any(_is_coarse(field.dataType) for field in type_)
    return isinstance(type_, (FloatType, DoubleType, MapType, VariantType))
