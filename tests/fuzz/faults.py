"""A check of the check: faults put into the code one by one, each of which the fuzz must find.

A fault is a piece of a module's text and what stands in its place. It is put in where the module is
imported, in a process of its own; files stay as they are.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

SOURCE = Path(__file__).parents[2] / "src" / "dovetail"
SECONDS_MAX = 60


class Fault(NamedTuple):
    """``old`` occurs once in ``module``."""

    name: str
    module: str
    old: str
    new: str
    family: str | None = None
    """The only family of cases that is drawn; None for all. Few cases of all can show some faults,
    those that need two times to be equal for instance.
    """


FAULTS = [
    Fault(
        "versions: what begins at a time does not hold at it",
        "laws.versioning",
        "versions.start[group + 1], time_us, right=True)",
        "versions.start[group + 1], time_us, right=False)",
        "matrix",
    ),
    Fault(
        "versions: an older one than the latest is emitted",
        "laws.versioning",
        "return counted & not_older &",
        "return counted &",
    ),
    Fault(
        "history: the retention's end is outside",
        "laws.versioning",
        "timeline.event_time_us >= horizon_us",
        "timeline.event_time_us > horizon_us",
    ),
    Fault(
        "history: of two stored versions of one time the older written",
        "state.history",
        "times[row] >= found_time[query]",
        "times[row] > found_time[query]",
    ),
    Fault(
        "table: a merge keeps the older row",
        "state.table_state",
        "np.lexsort((-age, hash_))",
        "np.lexsort((age, hash_))",
    ),
    Fault(
        "table: a merge forgets a tombstone that hides a row below",
        "state.table_state",
        "oldest = self.runs.runs[0].tier == merge.tier",
        "oldest = True",
    ),
    Fault(
        "table: a lookup takes equal hashes for equal keys",
        "state.table_state",
        "same = rows_equal(stored_keys, [key.take(pa.array(query)) for key in keys])",
        "same = np.ones(len(query), np.bool_)",
    ),
    Fault(
        "table: a lookup takes the oldest run's row",
        "state.table_state",
        "for run in reversed(self.runs.runs):\n            for segment in run.segments:\n"
        "                first, last",
        "for run in self.runs.runs:\n            for segment in run.segments:\n"
        "                first, last",
    ),
    Fault(
        "table: a scan emits rows that newer ones replace",
        "state.table_state",
        "if len(tables) > 1:",
        "if len(tables) > 10**9:",
    ),
    Fault(
        "runs: a merged run is newer than those beside it",
        "state.runs",
        "runs=(*older, *result, *newer)",
        "runs=(*older, *newer, *result)",
    ),
    Fault(
        "runs: a merge's slice loses its first row",
        "state.merge_extent",
        ".slice(start - first, stop - start)",
        ".slice(start - first + 1, stop - start - 1)",
    ),
    Fault(
        "runs: stored values are gathered in the order of segments",
        "state.run_state",
        "gathered_row[np.concatenate(order)] = np.arange(len(which))",
        "gathered_row[:] = np.arange(len(which))",
    ),
    Fault(
        "batch: equal hashes are taken for equal keys",
        "arrays.grouping",
        "if not np.all(same_key | new[1:]):",
        "if len(rows) > 10**9:",
    ),
    Fault(
        "equality: a null equals anything",
        "arrays.equality",
        "return equal | both_null",
        "return equal | _null_mask(left)",
    ),
    Fault(
        "expire: a row is gone at its end",
        "laws.expire",
        "due_us = time_us + after_us + 1",
        "due_us = time_us + after_us",
    ),
    Fault(
        "expire: a late row leaves the one before it",
        "laws.expire",
        "(stands & ~expires)[:-1] & ~stands[1:]",
        "(stands & ~expires)[:-1] & ~stands[1:] & ~late[1:]",
    ),
    Fault(
        "expire: nothing hides a younger row from before",
        "operators.expire",
        "until_us = np.maximum(self.stored_due_us, np.where(there, due_us, NO_TIME))",
        "until_us = np.where(there, due_us, NO_TIME)",
    ),
    Fault(
        "expire: a key that has waited is looked after no more",
        "operators.expire",
        "is_queued = stood & ~self.waited &",
        "is_queued = stood &",
    ),
    Fault(
        "tables: outer does not keep the right side",
        "laws.joins.table_join",
        'return how in ("left", "outer"), how in ("right", "outer")',
        'return how in ("left", "outer"), how in ("right",)',
    ),
    Fault(
        "tables: a result's time is the left row's",
        "laws.joins.table_join",
        "np.maximum(left.event_time_us, right.event_time_us)",
        "left.event_time_us",
    ),
    Fault(
        "tables: a tombstone where there was no row",
        "laws.joins.table_join",
        "(keeps[from_right] & (changed.present | old))",
        "keeps[from_right]",
    ),
    Fault(
        "tables: joined with itself, a row that goes leaves the result",
        "laws.joins.table_join",
        "before={**now, source: before_refs[events]}",
        "before=now",
    ),
    Fault(
        "order: the common log's is forgotten",
        "arrays.timeline",
        "keys = [_concatenate(rows.sequence for rows in sources)]",
        "keys = [-_concatenate(rows.sequence for rows in sources)]",
    ),
    Fault(
        "order: of two logs the one that is ahead goes first",
        "arrays.timeline",
        "            _concatenate(rows.clock_us for rows in sources),",
        "            -_concatenate(rows.clock_us for rows in sources),",
    ),
    Fault(
        "time: a record's own does not count",
        "laws.arrival",
        'upto = np.searchsorted(self.position, position, side="right")',
        'upto = np.searchsorted(self.position, position, side="left")',
    ),
    Fault(
        "windows: one takes records at its end and grace",
        "laws.windows.fixed",
        "return end_us > clock_us - grace_us",
        "return end_us >= clock_us - grace_us",
    ),
    Fault(
        "windows: a hopping record misses its first window",
        "laws.windows.fixed",
        "first = (event_time_us - size_us) // advance_us + 1",
        "first = (event_time_us - size_us) // advance_us + 2",
    ),
    Fault(
        "sliding windows: the end is outside",
        "laws.windows.sliding",
        "return low, bisect(self.time_us, low, end, start_us + size_us, right=True)",
        "return low, bisect(self.time_us, low, end, start_us + size_us, right=False)",
    ),
    Fault(
        "sessions: records a gap apart are two",
        "laws.windows.sessions",
        "near_left = (left >= 0) & (time_us[record_index] - time_us[left] <= gap_us)",
        "near_left = (left >= 0) & (time_us[record_index] - time_us[left] < gap_us)",
    ),
    Fault(
        "sessions: of those that merge the last one's rows are lost",
        "aggregates.running_aggregates",
        "return replace_rows(alone, many, kernel.merged(left, right))",
        "return replace_rows(alone, many, left)",
        "windows",
    ),
    Fault(
        "groups: what leaves and enters one group is emitted twice",
        "laws.retract",
        "leaves & enters & same)",
        "leaves & enters & ~same)",
    ),
    Fault(
        "groups: what leaves counts as what comes",
        "operators.groups.accumulators",
        "np.where(events.deleted & law.retracts, -1, 1)",
        "np.where(events.deleted & law.retracts, 1, 1)",
    ),
    Fault(
        "groups: a window's key has an end that is too late",
        "operators.groups.aggregate",
        "(start, start + windows.size_us),",
        "(start, start + windows.size_us + 1),",
    ),
    Fault(
        "groups: the net of a batch leaves out rows that go",
        "operators.groups.accumulators",
        "differs = present | was_present",
        "differs = present.copy()",
    ),
    Fault(
        "aggregates: a list gives up the wrong value",
        "aggregates.collect",
        "return added[index], taken",
        "return added[np.maximum(index - 1, 0)], taken",
    ),
    Fault(
        "aggregates: of a long list's end too little is read",
        "aggregates.list_parts",
        "between < wanted[self.group]",
        "between < wanted[self.group] - 1",
    ),
    Fault(
        "aggregates: what follows a row that leaves the first ones is out of reach",
        "aggregates.top_values",
        "total[np.searchsorted(group, group)] < self.n",
        "total[np.searchsorted(group, group)] < self.n - 1",
    ),
    Fault(
        "aggregates: a distinct value that goes still counts",
        "aggregates.distinct",
        "change[value_spans.first[in_batch & value_spans.went]] = -1",
        "change[value_spans.first[in_batch & value_spans.went]] = 0",
        "graph",
    ),
    Fault(
        "aggregates: a value that begins a part goes to the one before",
        "aggregates.list_parts",
        "self.start[group + 1], value, right=True)",
        "self.start[group + 1], value, right=False)",
        "graph",
    ),
    Fault(
        "aggregates: a part that loses a value is taken for unchanged",
        "operators.groups.long_lists",
        "(now == read.layout.size) & (same == now)",
        "same == now",
    ),
    Fault(
        "foreign keys: the former key does not hear that a row has left",
        "laws.joins.foreign_key_join",
        "ends=named & ~stays",
        "ends=named & ~names",
    ),
    Fault(
        "foreign keys: a right row answers one that has just left",
        "laws.joins.foreign_key_join",
        "last = np.where(following < 0, end[group + 1], following)",
        "last = np.where(following < 0, end[group + 1], end[group + 1])",
    ),
    Fault(
        "foreign keys: of one key's subscriptions only the first place is looked at",
        "arrays.hashing",
        "return major_hash & ~_LOW, major_hash | _LOW",
        "return major_hash & ~_LOW, major_hash & ~_LOW",
    ),
    Fault(
        "foreign keys: what several buckets say of a row is not put in order",
        "operators.joins.foreign_key_order",
        'np.argsort(moved.column(EPOCH).to_numpy(), kind="stable")',
        'np.argsort(-moved.column(EPOCH).to_numpy(), kind="stable")',
    ),
    Fault(
        "streams: grace does not keep windows open",
        "laws.joins.stream_join",
        "return self._reach_bounds(side)[1] + self.grace_us",
        "return self._reach_bounds(side)[1]",
    ),
    Fault(
        "streams: a pair comes once for each side",
        "laws.joins.stream_join",
        "return pairs.select(self.other.arrival[other_index] < self.own.arrival[row])",
        "return pairs",
    ),
    Fault(
        "duplicates: one as far away as it may be comes out too late",
        "operators.deduplicate",
        "(time_us < job.clock_at_events(0, events) - law.within_us)",
        "(time_us <= job.clock_at_events(0, events) - law.within_us)",
        "views",
    ),
    Fault(
        "duplicates: one as far from the one before as it may be repeats nothing",
        "laws.deduplicate",
        "is_near[candidate] = to_us[low[candidate]] <= time_us[candidate] + within_us",
        "is_near[candidate] = to_us[low[candidate]] < time_us[candidate] + within_us",
        "views",
    ),
    Fault(
        "changes: the row before is said to be the one after",
        "operators.to_changes",
        "np.where(is_new, emissions.kind_after[change], emissions.kind_before[change])",
        "np.where(is_new, emissions.kind_before[change], emissions.kind_after[change])",
    ),
    Fault(
        "changes: a row that goes is said to be replaced",
        "laws.to_changes",
        "np.where(new, BEFORE, DELETE)",
        "np.where(old, BEFORE, DELETE)",
    ),
    Fault(
        "changes: the new row comes before the old one",
        "operators.row_changes",
        "2 * place + is_new",
        "2 * place - is_new",
    ),
    Fault(
        "unions: rows of the second input are those of the first",
        "operators.union",
        "row = first[events.source[event]] + events.row[event]",
        "row = events.row[event] % len(events.row)",
    ),
    Fault(
        "lookups: what meets nothing comes out",
        "laws.joins.lookup",
        '(size == 0) & (how == "left")',
        "size == 0",
    ),
    Fault(
        "lookups: answers go to the records that have a value",
        "operators.joins.lookup",
        "live_row[record[part]]",
        "record[part]",
    ),
    Fault(
        "delta joins: rows of the cache come to other keys",
        "operators.joins.lookup_cache",
        "entries.sum() + fresh.entry",
        "fresh.entry",
        "delta",
    ),
    Fault(
        "delta joins: a row that was replaced stays",
        "operators.joins.delta_join",
        "last[primary_rank[: len(fresh.table)]] = ABSENT",
        "last[primary_rank[:0]] = ABSENT",
    ),
    Fault(
        "delta joins: a row that loses its match does not appear alone",
        "laws.joins.delta_join",
        "preserved_side.alive & empty & (preserved_side.fresh | touched)",
        "preserved_side.alive & empty & preserved_side.fresh",
    ),
    Fault(
        "windows: one that closes at the end of a micro-batch waits on",
        "operators.groups.closed_windows",
        "(due <= final_us)",
        "(due < final_us)",
        "windows",
    ),
    Fault(
        "windows: joined ones close by the faster input",
        "engine.operator_chain",
        "np.minimum.reduce([clocks[n] for n in operator.clocks])",
        "np.maximum.reduce([clocks[n] for n in operator.clocks])",
        "windows",
    ),
    Fault(
        "foreign keys: a right row stays alone",
        "operators.joins.foreign_key_join",
        "present = (after[event] == 0) & (right[event] != ABSENT)",
        "present = right[event] != ABSENT",
    ),
    Fault(
        "foreign keys: rows are spread over one bucket more than have the right row",
        "engine.batches.spread",
        "share = np.mod(own_hash, source.shape.spread)",
        "share = np.mod(own_hash, source.shape.spread + 1)",
        "foreign",
    ),
    Fault(
        "foreign keys: a row that stays refers once more",
        "operators.joins.subscribe",
        "np.where(begun & sent.fresh[change], FRESH, 0)",
        "np.where(begun, FRESH, 0)",
    ),
    Fault(
        "stars: a foreign key that stays is asked again, and one that moves is not",
        "operators.stars.subscribe",
        "changes.rows_in_order(sent.ends, sent.fresh)",
        "changes.rows_in_order(sent.ends, sent.begins & ~sent.fresh)",
    ),
    Fault(
        "stars: a dimension's change does not count as its own",
        "operators.stars.dimensions",
        "2 * (dimension + 1) + by_change.astype(np.int64)",
        "2 * (dimension + 1) + 0 * by_change.astype(np.int64)",
    ),
    Fault(
        "stars: the row of a dimension is taken from before the moment",
        "operators.stars.join",
        "            after[moments.last],",
        "            before[moments.last],",
    ),
    Fault(
        "stars: a left row without a foreign key is named",
        "laws.joins.star",
        "old & (reference.was_named | keeps), new & (reference.is_named | keeps)",
        "old & (reference.was_named | keeps), new",
    ),
    Fault(
        "foreign keys: a row that leaves refers on",
        "operators.joins.subscriptions",
        "np.where(events.deleted[message], -1, (instruction & FRESH) != 0)",
        "np.where(events.deleted[message], 0, (instruction & FRESH) != 0)",
    ),
    Fault(
        "histories: of a key's stored versions one is read",
        "operators.joins.history_join",
        "start_mask(query[::-1], time[::-1])[::-1]",
        "start_mask(query[::-1])[::-1]",
        "matrix",
    ),
    Fault(
        "histories: where a row no longer joins, nothing is said",
        "laws.joins.history_join",
        "present | was | lasts",
        "present | lasts",
        "matrix",
    ),
    Fault(
        "time: that of a micro-batch's records is forgotten",
        "operators.job",
        "return np.maximum(clock_us, self.initial_us[source])",
        "return np.minimum(clock_us, self.initial_us[source])",
    ),
    Fault(
        "tables: of a micro-batch the last key's row is not stored",
        "operators.tables",
        "stored_event = last_of_source(events, source)",
        "stored_event = last_of_source(events, source)[:-1]",
    ),
    Fault(
        "tables: the net of a batch has rows that stay as they were",
        "operators.joins.table_join",
        "return changes.select(~equal)",
        "return changes",
        "matrix",
    ),
    Fault(
        "tables: a row that goes comes out with nulls",
        "operators.emission",
        "deleted=~changes.present",
        "deleted=np.zeros_like(changes.present)",
    ),
    Fault(
        "lookups in tables: of two versions of one time the older",
        "operators.joins.stream_table_join",
        "(fresh_time >= located.event_time_us)",
        "(fresh_time > located.event_time_us)",
    ),
    Fault(
        "streams: the right side never comes out alone",
        "operators.joins.stream_join",
        "np.flatnonzero(this_side.unmatched_records))",
        "np.flatnonzero(this_side.unmatched_records & (this_side.side == 0)))",
    ),
    Fault(
        "streams: what is joined at once comes out alone, too",
        "operators.joins.stream_join_side",
        "this_side.unpaired[pairs.row] = False",
        "this_side.unpaired[pairs.row[:0]] = False",
    ),
    Fault(
        "sessions: one that grows leaves the row before",
        "operators.groups.session_windows",
        "session_forest.end_us[was] != session_forest.end_us[parent]",
        "session_forest.end_us[was] < session_forest.start_us[was]",
    ),
    Fault(
        "sliding windows: records of earlier micro-batches are in none",
        "operators.groups.sliding",
        "low - size_us - 1, high + size_us + 1)",
        "low, high)",
    ),
    Fault(
        "groups: a row that stays in its group gives two results",
        "operators.groups.retract",
        "np.where(group_moves.silent[change] & ~enters, SILENT, 0)",
        "np.where(group_moves.silent[change] & enters, SILENT, 0)",
    ),
    Fault(
        "align: rows that waited come out with others' times",
        "engine.alignment",
        "pa.concat_tables([waited, incoming.rows.filter(pa.array(passing))])",
        "pa.concat_tables([incoming.rows.filter(pa.array(passing)), waited])",
    ),
    Fault(
        "align: rows that waited come after those that come",
        "engine.alignment",
        "    clock_us = np.append(waited.column(DUE).to_numpy(), due_us[passing])\n"
        "    waited = waited.drop_columns(DUE)\n"
        "    rows = pa.concat_tables([waited, incoming.rows.filter(pa.array(passing))])",
        "    clock_us = np.append(due_us[passing], waited.column(DUE).to_numpy())\n"
        "    waited = waited.drop_columns(DUE)\n"
        "    rows = pa.concat_tables([incoming.rows.filter(pa.array(passing)), waited])",
    ),
    Fault(
        "align: rows that wait are in no order",
        "engine.alignment",
        'ahead = ahead[np.argsort(due_us[ahead], kind="stable")]',
        'ahead = ahead[np.argsort(-due_us[ahead], kind="stable")]',
    ),
    Fault(
        "align: a side that has been silent for long enough is waited for",
        "engine.alignment",
        "now_us - last >= span_us",
        "now_us - last > span_us",
    ),
    Fault(
        "explode: the first element that comes is said to go",
        "operators.explode",
        "is_new = row >= half",
        "is_new = row > half",
    ),
    Fault(
        "explode: an element that stays goes before it comes",
        "laws.explode",
        "np.isin(element_id, element_id[elements.is_new])",
        "np.isin(element_id, element_id[:0])",
    ),
    Fault(
        "fill: what was left out is left out",
        "laws.fill",
        "versions_around(events, 0, stored, ~unsent)",
        "versions_around(events, 0, stored)",
    ),
    Fault(
        "fill: what was left out is null",
        "operators.fill",
        "unsent[row[named]] = True",
        "unsent[row[named]] = False",
    ),
    Fault(
        "fill: a null is a value of its own",
        "operators.fill",
        "if values[column_index].null_count",
        "if not values[column_index].null_count",
    ),
    Fault(
        "transact: the row that came first stays",
        "laws.transact",
        "(steps.kind == GOES) & (before > 1)",
        "(steps.kind == GOES) & (before > 9)",
    ),
    Fault(
        "transact: events that have got another number repeat",
        "laws.transact",
        "repeated = same & (steps.order <= tally.order) & (steps.place <= tally.place)",
        "repeated = same & (steps.order <= tally.order)",
    ),
    Fault(
        "transact: the rows of a key are forgotten with the micro-batch",
        "operators.transact",
        '"rows": pa.array(tally.rows)',
        '"rows": pa.array(np.minimum(tally.rows, 1))',
    ),
    Fault(
        "idle: time stands at the end of the silence",
        "engine.idle",
        "quiet_us >= span_us",
        "quiet_us > span_us",
    ),
    Fault(
        "idle: time goes on from what was last",
        "engine.idle",
        "read_us += now_us - since_us[input_index]",
        "read_us += now_us - since_us[0]",
    ),
    Fault(
        "order: a clock is the time of the last record",
        "engine.arrival",
        "clock_us = stream_us = running_clock(log, _times_that_count(arrival, rows, counted))",
        "clock_us = stream_us = _times_that_count(arrival, rows, counted)",
    ),
    Fault(
        "order: a clock is what it was before the record",
        "engine.batches.pieces",
        "stairs.time_at(rows.column(SEQUENCE).to_numpy(), inclusive=True)",
        "stairs.time_at(rows.column(SEQUENCE).to_numpy(), inclusive=False)",
    ),
    Fault(
        "stages: of several inputs the first is read",
        "engine.flow",
        "for earlier in step.before]",
        "for earlier in step.before[:1]]",
    ),
    Fault(
        "stages: rows that wait are forgotten",
        "engine.fragment",
        "stores = {**manifest.stores, **waiting_stores}",
        "stores = {**manifest.stores}",
    ),
    Fault(
        "views: an unknown condition is met",
        "engine.view_rows",
        "pc.invert(gone)).fill_null(False)",
        "pc.invert(gone)).fill_null(True)",
    ),
    Fault(
        "batch: records with a null in their key are taken",
        "engine.pack",
        "required = [] if self.source.meaning.null_keys else self._key_names",
        "required: list[str] = []",
    ),
    Fault(
        "slices: time is at its end from the first on",
        "engine.batches.slices",
        "reached_us.append(min(highest_us, final_us))",
        "reached_us.append(final_us)",
    ),
    Fault(
        "slices: more rows are read than there are in one",
        "engine.batches.row_store",
        "whole = len(row) == len(table)",
        "whole = len(row) <= len(table)",
    ),
    Fault(
        "blobs: what is stored again stays as it was",
        "state.blobs",
        "self.blobs[name] = blob",
        "self.blobs.setdefault(name, blob)",
    ),
    Fault(
        "segments: parts of a table lose their last row",
        "state.ipc",
        "parts_of(table.slice(start, length), size_bytes, rows)",
        "parts_of(table.slice(start, max(length - 1, 1)), size_bytes, rows)",
    ),
    Fault(
        "segments: one ends where it begins",
        "state.segment",
        "last=ordering[-1].as_py()",
        "last=ordering[0].as_py()",
    ),
    Fault(
        "manifest: stream time is forgotten",
        "state.manifest",
        'stream_time_us=tuple(body["stream_time_us"])',
        'stream_time_us=(None,) * len(body["stream_time_us"])',
    ),
    Fault(
        "queue: what is due at a time is not yet taken then",
        "state.queue",
        '(self._taken_us, upto_us), side="right")',
        '(self._taken_us, upto_us), side="left")',
    ),
    Fault(
        "names: a union takes columns by their places",
        "plan.transforms.union",
        "part = node if same else",
        "part = node if node else",
    ),
    Fault(
        "counts: a loss is not counted",
        "operators.counts",
        "self.number[metric] += count",
        "self.number[metric] += 0",
    ),
    Fault(
        "counts: what repeats is not counted",
        "operators.deduplicate",
        '"repeated": asked[~comes_out]',
        '"repeated": asked[:0]',
    ),
    Fault(
        "clocks: a row that a condition leaves out moves time",
        "engine.pack",
        "counted = ~left_out if counted is None else counted & ~left_out",
        "pass",
    ),
    Fault(
        "clocks: a row that a condition leaves out waits for its own time",
        "engine.alignment",
        "due_us = np.minimum(due_us, high_us)",
        "due_us = due_us",
    ),
    Fault(
        "late rows: what keeps no rows of a versioned table passes them on",
        "plan.joins.join_call",
        "isinstance(side, Entry) and side.versioned_us is not None",
        "isinstance(side, Entry) and side.versioned_us is NotImplemented",
    ),
    Fault(
        "commits: a row goes at its own time, which is before the one that it ends",
        "operators.histories",
        "running_max(events.event_time_us, events.start, events.group, stored_us)",
        "events.event_time_us",
    ),
    Fault(
        "commits: a row that is written as it was has changed",
        "laws.net_changes",
        "stays[is_[rows_equal(then, now)]] = False",
        "stays[is_[rows_equal(then, now)]] = True",
    ),
    Fault(
        "commits: the row before goes, whatever comes",
        "laws.net_changes",
        "stays[at[goes & (coming[group] > 0)]] = False",
        "stays[at[goes & (coming[group] > 9)]] = False",
    ),
    Fault(
        "local: what passes a stage goes into it",
        "engine.local",
        "for p in parcel_list if p.reader == step.number]",
        "for p in parcel_list if p.reader <= step.number]",
    ),
    Fault(
        "local_buckets: a bucket gets the rows of another",
        "engine.local_buckets",
        "for target, piece in pieces if target == bucket]",
        "for target, piece in pieces if target >= bucket]",
    ),
    Fault(
        "expectations: null meets one",
        "engine.view_rows",
        "rows.column(view.expected).fill_null(False)",
        "rows.column(view.expected).fill_null(True)",
        "views",
    ),
]

FAULTLESS = {
    "operators.registry": "finds the operator of a law",
    "engine.bucket_report": "counts rows for metrics",
    "engine.batches.pack_time": "tells how long packing takes",
    "engine.batches.parts": "cuts large packed rows on their way between Spark's tasks",
    "engine.error_context": "says of an error where it lies",
    "engine.store_contents": "reads a checkpoint for those who look into it",
    "engine.logs": "keeps rows of several partitions in one order, and cases in process have one",
    "laws.logs": "keeps rows of several partitions in one order, and cases in process have one",
    "engine.batches.spool": "keeps a micro-batch of a Spark task on disk",
    "state.local_files": "keeps copies that no query needs",
}
"""Modules without a fault, and what they do in place of making rows."""


def check(seed: int, only: str | None = None) -> int:
    """Put in fault after fault; say which are found, after how many seconds of the processor's
    time; and that nothing is found without a fault. 1 where it is otherwise.
    """
    chosen = [fault for fault in FAULTS if only is None or only in fault.name]
    sound, line = _run(seed, None)
    print(f"{line}  without a fault", flush=True)
    missed = int(not sound)
    for fault in chosen:
        holds, line = _run(seed, fault)
        missed += holds
        print(f"{line}  {'MISSED' if holds else 'found'}  {fault.name}", flush=True)
    print(f"fuzz: seed {seed}: {len(chosen)} faults, {missed} missed")
    return int(missed > 0)


def _run(seed: int, fault: Fault | None) -> tuple[bool, str]:
    """Run for a minute; return True if all cases hold, and the last line of the run."""
    command = [sys.executable, "-m", "fuzz", "--fault", "" if fault is None else fault.name]
    command += ["--seed", str(seed), "--minutes", str(SECONDS_MAX / 60), "--largest", "60"]
    command += ["--in-process", "--no-shrink", "--failures", "1"]
    if fault is not None and fault.family is not None:
        command += ["--family", fault.family]
    done = subprocess.run(command, capture_output=True, text=True)  # noqa: PLW1510
    last = done.stdout.strip().rpartition("\n")[2]
    assert last.startswith("fuzz: seed"), done.stderr
    return done.returncode == 0, last.partition(": ")[2].partition(": ")[2]


def put_in(name: str) -> None:
    """Let the module be imported with the fault in it."""
    (fault,) = (fault for fault in FAULTS if fault.name == name)
    assert f"dovetail.{fault.module}" not in sys.modules
    sys.meta_path.insert(0, _Finder(fault))


def mutated(fault: Fault) -> str:
    """The module's text with the fault in it."""
    text = (SOURCE / (fault.module.replace(".", "/") + ".py")).read_text()
    assert text.count(fault.old) == 1, f"{fault.name}: {text.count(fault.old)} such places"
    return text.replace(fault.old, fault.new)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, fault: Fault) -> None:
        self.fault = fault

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of the module with the fault."""
        if fullname != f"dovetail.{self.fault.module}":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _Loader(fullname, spec.origin, self.fault)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, fault: Fault) -> None:
        super().__init__(name, path)
        self.fault = fault

    def get_code(self, fullname: str) -> CodeType:
        """The code, never from a cache."""
        return self.source_to_code(mutated(self.fault).encode(), self.path)
