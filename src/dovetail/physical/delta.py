"""What a delta join does: how it looks each side up, and what reaches it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dovetail.columns import CLOCK
from dovetail.errors import PlanError
from dovetail.lookup.source import covering
from dovetail.physical import operators as ops
from dovetail.physical.source import SourceSpec
from dovetail.plan.looked_up import changes_of, has_fixed_key, lookup_of, needed_columns
from dovetail.plan.nodes import DeltaJoin


def settled(source: SourceSpec) -> SourceSpec:
    """A source whose changes have met by primary key: they have their clocks."""
    return replace(
        source,
        files=False,
        log_partition=False,
        sequence=source.ordered,
        carries=(CLOCK,),
        clocked=False,
        numbered=False,
    )


def eventual(node: DeltaJoin, sources: Sequence[SourceSpec]) -> ops.DeltaJoin:
    """What a delta join does, on these sources."""
    needed = needed_columns(node)
    sides = []
    for number, entry in enumerate((node.left, node.right)):
        source, on = sources[number], [pair[number] for pair in node.on]
        own = [name for name in entry.values.names if name in needed[number]]
        lookup = lookup_of(entry)
        if lookup is None:
            raise PlanError(node.name, f"{entry.name} has no look-up source", "Use with_lookup")
        index = covering(lookup, on)
        sides.append(
            ops.LookedUp(
                lookup=lookup,
                key=_places(source, entry.key.names),
                values=_places(source, own if number == 0 else [*entry.key.names, *own]),
                unique=node.form == "key" or (node.form == "left" and number == 1),
                one_row=index is not None and index.unique,
                deletes=changes_of(entry) == "all",
                cache=node.cache[number] if has_fixed_key(entry, on) else 0,
            )
        )
    return ops.DeltaJoin(
        name=node.label or f"{node.left.name}-{node.right.name}",
        how=node.how,
        form=node.form,
        right_key=node.has_right_key,
        moving=not has_fixed_key(node.left, [left for left, _ in node.on]),
        sides=(sides[0], sides[1]),
    )


def _places(source: SourceSpec, names: Sequence[str]) -> tuple[int, ...]:
    columns = [field.name for field in source.fields(source.user_columns)]
    return tuple(columns.index(name) for name in names)
