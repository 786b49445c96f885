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


FAULTS = [
    Fault(
        "versions: what begins at a time does not hold at it",
        "laws.versioning",
        "versions.start[group + 1], time_us, right=True)",
        "versions.start[group + 1], time_us, right=False)",
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
        "timeline.event_time_us >= clock_us - retention_us",
        "timeline.event_time_us > clock_us - retention_us",
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
        "table: a look-up takes equal hashes for equal keys",
        "state.table_state",
        "same = rows_equal(stored_keys, [key.take(pa.array(query)) for key in keys])",
        "same = np.ones(len(query), np.bool_)",
    ),
    Fault(
        "table: a look-up takes the oldest run's row",
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
        "state.reading",
        ".slice(start - first, stop - start)",
        ".slice(start - first + 1, stop - start - 1)",
    ),
    Fault(
        "runs: stored values are gathered in the order of segments",
        "state.run_state",
        "place[np.concatenate(order)] = np.arange(len(which))",
        "place[:] = np.arange(len(which))",
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
        "return equal | _null(left)",
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
        "known = stood & ~self.waited &",
        "known = stood &",
    ),
    Fault(
        "tables: outer does not keep the right side",
        "laws.table_join",
        'return how in ("left", "outer"), how in ("right", "outer")',
        'return how in ("left", "outer"), how in ("right",)',
    ),
    Fault(
        "tables: a result's time is the left row's",
        "laws.table_join",
        "np.maximum(left.event_time_us, right.event_time_us)",
        "left.event_time_us",
    ),
    Fault(
        "tables: a tombstone where there was no row",
        "laws.table_join",
        "(keeps[from_right] & (own.present | old))",
        "keeps[from_right]",
    ),
    Fault(
        "tables: joined with itself, a row that goes leaves the result",
        "laws.table_join",
        "before={**now, source: before_refs[events]}",
        "before=now",
    ),
    Fault(
        "order: the common log's is forgotten",
        "arrays.timeline",
        "keys = [_all(rows.sequence for rows in sources)]",
        "keys = [-_all(rows.sequence for rows in sources)]",
    ),
    Fault(
        "order: of two logs the one that is ahead goes first",
        "arrays.timeline",
        "keys = [_all(rows.order for rows in sources), _all(rows.clock_us for rows in sources)]",
        "keys = [_all(rows.order for rows in sources), -_all(rows.clock_us for rows in sources)]",
    ),
    Fault(
        "time: a record's own does not count",
        "laws.arrival",
        'upto = np.searchsorted(self.position, position, side="right")',
        'upto = np.searchsorted(self.position, position, side="left")',
    ),
    Fault(
        "windows: one takes records at its end and grace",
        "laws.windows",
        "return end_us > clock_us - grace_us",
        "return end_us >= clock_us - grace_us",
    ),
    Fault(
        "windows: a hopping record misses its first window",
        "laws.windows",
        "first = (event_time_us - size_us) // advance_us + 1",
        "first = (event_time_us - size_us) // advance_us + 2",
    ),
    Fault(
        "sliding windows: the end is outside",
        "laws.sliding",
        "return low, bisect(self.time_us, low, end, start_us + size_us, right=True)",
        "return low, bisect(self.time_us, low, end, start_us + size_us, right=False)",
    ),
    Fault(
        "sessions: records a gap apart are two",
        "laws.sessions",
        "near_left = (left >= 0) & (time_us[own] - time_us[left] <= gap_us)",
        "near_left = (left >= 0) & (time_us[own] - time_us[left] < gap_us)",
    ),
    Fault(
        "sessions: of those that merge the last one's rows are lost",
        "aggregates.scans",
        "return replaced(alone, many, kernel.merged(left, right))",
        "return replaced(alone, many, left)",
    ),
    Fault(
        "groups: what leaves and enters one group is emitted twice",
        "laws.retract",
        "leaves & enters & same)",
        "leaves & enters & ~same)",
    ),
    Fault(
        "groups: what leaves counts as what comes",
        "operators.aggregate",
        "np.where(events.deleted & law.retracts, -1, 1)",
        "np.where(events.deleted & law.retracts, 1, 1)",
    ),
    Fault(
        "groups: the net of a batch leaves out rows that go",
        "operators.aggregate",
        "differs = present | known",
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
        "aggregates.parts",
        "between < wanted[self.group]",
        "between < wanted[self.group] - 1",
    ),
    Fault(
        "aggregates: what follows a row that leaves the first ones is out of reach",
        "aggregates.top",
        "total[np.searchsorted(group, group)] < self.n",
        "total[np.searchsorted(group, group)] < self.n - 1",
    ),
    Fault(
        "aggregates: a distinct value that goes still counts",
        "aggregates.distinct",
        "change[found.first[own & found.went]] = -1",
        "change[found.first[own & found.went]] = 0",
    ),
    Fault(
        "aggregates: a value that begins a part goes to the one before",
        "aggregates.parts",
        "self.start[group + 1], value, right=True)",
        "self.start[group + 1], value, right=False)",
    ),
    Fault(
        "aggregates: a part that loses a value is taken for unchanged",
        "operators.parts",
        "(now == read.layout.size) & (same == now)",
        "same == now",
    ),
    Fault(
        "foreign keys: the former key does not hear that a row has left",
        "laws.foreign_key_join",
        "ends=named & ~stays",
        "ends=named & ~names",
    ),
    Fault(
        "foreign keys: a right row answers one that has just left",
        "laws.foreign_key_join",
        "last = np.where(following < 0, end[group + 1], following)",
        "last = np.where(following < 0, end[group + 1], end[group + 1])",
    ),
    Fault(
        "foreign keys: of one key's subscriptions only the first place is looked at",
        "laws.foreign_key_join",
        "return hash_ & ~_LOW, hash_ | _LOW",
        "return hash_ & ~_LOW, hash_ & ~_LOW",
    ),
    Fault(
        "foreign keys: what several buckets say of a row is not put in order",
        "operators.in_order",
        'np.argsort(moved.column(EPOCH).to_numpy(), kind="stable")',
        'np.argsort(-moved.column(EPOCH).to_numpy(), kind="stable")',
    ),
    Fault(
        "streams: grace does not keep windows open",
        "laws.stream_join",
        "return self._reach(side)[1] + self.grace_us",
        "return self._reach(side)[1]",
    ),
    Fault(
        "streams: a pair comes once for each side",
        "laws.stream_join",
        "return pairs.where(self.other.arrival[found] < self.own.arrival[row])",
        "return pairs",
    ),
]


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
    """Whether all cases of a minute hold, and what the run says at its end."""
    command = [sys.executable, "-m", "fuzz", "--fault", "" if fault is None else fault.name]
    command += ["--seed", str(seed), "--minutes", str(SECONDS_MAX / 60), "--largest", "60"]
    command += ["--in-process", "--no-shrink", "--failures", "1"]
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
