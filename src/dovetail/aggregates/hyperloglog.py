"""approx_count_distinct: a HyperLogLog sketch of 512 registers, standard error 4.6 %.

Sources: Flajolet et al. 2007, "HyperLogLog". The estimate follows Ertl 2017, arXiv 1702.01284, "New
cardinality estimation algorithms for HyperLogLog sketches", section 3. It needs neither a table of
corrections nor a rule for small counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dovetail.aggregates.aggregate import Aggregate, Columns, GroupUpdates, Ints, not_null_mask
from dovetail.aggregates.running_aggregates import running_sum, segmented_scan
from dovetail.arrays.equality import canonical_key
from dovetail.arrays.grouping import stable_argsort, start_mask
from dovetail.arrays.hashing import stable_hash

_INDEX_BITS = 9
_REGISTERS = 1 << _INDEX_BITS
_RANK_BITS = 52
_RANK_MAX = _RANK_BITS + 1
_CHUNK_GROUPS = 1 << 13

_Registers = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class ApproxCountDistinct(Aggregate):
    """The approximate count of distinct values that are not null; never null. The error is within 5
    % in two of three cases. Rows cannot be retracted.

    A value's hash chooses a register, which keeps the largest *rank* seen. A rank is the count of
    leading zeros in another part of the hash, plus one. -0.0 and 0.0 are one value, and all NaNs
    are one, at any depth. The accumulator is the registers, a byte each.
    """

    retracts = False
    commutes = True

    @property
    def state(self) -> tuple[pa.DataType, ...]:
        """The type of the accumulator's only column: a binary of 512 registers, a byte each."""
        return (pa.binary(_REGISTERS),)

    @property
    def result(self) -> pa.DataType:
        """The type of the estimate: int64."""
        return pa.int64()

    def scan(self, updates: GroupUpdates, initial: Columns, values: Columns) -> pa.Array:
        """Return the estimate of the group's count of distinct values after each update: int64, one
        row per update.

        ``updates``: rows added to groups, none retracted, by group, then time. ``initial``: one
        column, the stored registers of each group, null for none. ``values``: one column, one row
        per update; nulls are not counted. An update changes at most one register. So the two sums
        behind the estimate are carried along in whole numbers, and no registers are copied.
        """
        update, register, rank = _registers_and_ranks(values[0])
        register_index = updates.group[update] * _REGISTERS + register
        order = stable_argsort(register_index)
        register_index = register_index[order]
        first = np.flatnonzero(start_mask(register_index))
        stored = _stored_registers_at(initial[0], register_index[first])
        after = rank[order]
        after[first] = np.maximum(after[first], stored)
        after = segmented_scan(np.maximum, first, after)
        before = np.append(0, after)[: len(after)]
        before[first] = stored
        weights = np.zeros(len(updates), dtype=np.int64)
        empty = np.zeros(len(updates), dtype=np.int64)
        weights[update[order]] = _WEIGHT[after] - _WEIGHT[before]
        empty[update[order]] = -((before == 0) & (after > 0)).astype(np.int64)
        weights_0, empty_0 = _weights_and_empty(initial[0])
        return _estimate_counts(
            running_sum(updates, weights, weights_0), running_sum(updates, empty, empty_0)
        )

    def after(self, updates: GroupUpdates, initial: Columns, values: Columns) -> list[pa.Array]:
        """Return one column, the registers of each group after its last update: a binary of 512
        bytes per group. A group without updates keeps its registers.

        ``updates``: rows added to groups, none retracted, by group, then time. ``initial``: one
        column, the stored registers of each group, null for zeros. ``values``: one column, one row
        per update; nulls are not counted.
        """
        registers = _copy_registers(initial[0])
        update, register, rank = _registers_and_ranks(values[0])
        register_index = updates.group[update] * _REGISTERS + register
        np.maximum.at(registers.reshape(-1), register_index, rank.astype(np.uint8))
        return [_registers_as_binary(registers)]

    def merged(self, left: Columns, right: Columns) -> list[pa.Array]:
        """Return one column of registers, row by row the larger of each register of ``left`` and of
        ``right``; null counts as zeros. Both are one column of as many rows.
        """
        return [
            _registers_as_binary(np.maximum(_copy_registers(left[0]), _copy_registers(right[0])))
        ]

    def results(self, state: Columns) -> pa.Array:
        """Return the estimate of each accumulator in the only column of ``state``: int64, 0 for
        null.
        """
        return _estimate_counts(*_weights_and_empty(state[0]))


def _registers_and_ranks(values: pa.Array) -> tuple[Ints, Ints, Ints]:
    """Return three arrays, int64[m] each, for the m values that are not null, in their order: the
    index of the value, its register (0 to 511) and its rank (1 to 53). Equal values have equal
    ones; at any depth all NaNs are equal, and so are 0.0 and -0.0.
    """
    update = np.flatnonzero(not_null_mask(values))
    values = canonical_key(values.take(pa.array(update)))
    hash_ = stable_hash([values]) if len(values) else np.zeros(0, dtype=np.int64)
    register = (hash_ >> (64 - _INDEX_BITS)) & (_REGISTERS - 1)
    low = (hash_ & ((1 << _RANK_BITS) - 1)).astype(np.float64)  # exact: 52 bits
    rank = _RANK_MAX - np.frexp(low)[1].astype(np.int64)
    return update, register, rank


def _copy_registers(stored: pa.Array) -> _Registers:
    """Return the registers of each group in the binary column ``stored`` as a new array, zeros for
    null: uint8[groups, 512].
    """
    registers = np.zeros((len(stored), _REGISTERS), dtype=np.uint8)
    present = not_null_mask(stored)
    registers[present] = _stored_bytes(stored)[present]
    return registers


def _stored_bytes(stored: pa.Array) -> _Registers:
    """Return the bytes of the binary column ``stored``, read-only and without a copy, arbitrary for
    null: uint8[groups, 512]. If all are null, return new zeros.
    """
    if stored.null_count == len(stored):
        return np.zeros((len(stored), _REGISTERS), dtype=np.uint8)
    stored_bytes = np.frombuffer(stored.buffers()[1], np.uint8)
    stored_bytes = stored_bytes[
        stored.offset * _REGISTERS : (stored.offset + len(stored)) * _REGISTERS
    ]
    return stored_bytes.reshape(-1, _REGISTERS)


def _stored_registers_at(stored: pa.Array, register_index: Ints) -> Ints:
    """Return m registers by their indices among those of all groups: int64[m], 0 for a group whose
    ``stored`` registers are null.

    ``register_index``: int64[m], the index of the group times 512, plus that of the register.
    """
    row, register = register_index // _REGISTERS, register_index % _REGISTERS
    return np.where(not_null_mask(stored)[row], _stored_bytes(stored)[row, register], 0).astype(
        np.int64
    )


def _registers_as_binary(registers: _Registers) -> pa.Array:
    """Return registers, uint8[groups, 512], as a binary column without nulls that shares their
    memory.
    """
    type_ = pa.binary(_REGISTERS)
    return pa.Array.from_buffers(type_, len(registers), [None, pa.py_buffer(registers)])


_WEIGHT = np.append(0, 1 << np.arange(_RANK_MAX - 1, -1, -1, dtype=np.int64))
"""2**-rank for each rank, times 2**53; 0 for the rank 0 of an empty register."""


def _weights_and_empty(stored: pa.Array) -> tuple[Ints, Ints]:
    """Return each group's sum of ``_WEIGHT`` (2**53 / 2**rank) over its registers that are not
    empty, and its count of empty registers: int64[groups] each. A null in the binary column
    ``stored`` gives 0 and 512.
    """
    weights = np.zeros(len(stored), dtype=np.int64)
    empty = np.full(len(stored), _REGISTERS)
    present_row = np.flatnonzero(not_null_mask(stored))
    registers = _stored_bytes(stored)
    for first in range(0, len(present_row), _CHUNK_GROUPS):
        chunk_row = present_row[first : first + _CHUNK_GROUPS]
        weights[chunk_row] = _WEIGHT[registers[chunk_row]].sum(axis=1)
        empty[chunk_row] = (registers[chunk_row] == 0).sum(axis=1)
    return weights, empty


def _sigma(x: float) -> float:
    """Return x + x**2 * 1 + x**4 * 2 + x**8 * 4 + …, by which empty registers count in the
    estimate. ``x``: the share of empty registers, from 0 to 1. The result is infinite for 1.
    """
    if x == 1.0:
        return math.inf
    total, factor, previous = x, 1.0, -1.0
    while total != previous:
        x *= x
        previous = total
        total += x * factor
        factor += factor
    return total


_OF_EMPTY = np.array([_REGISTERS * _sigma(n / _REGISTERS) for n in range(_REGISTERS + 1)])
_ALPHA = _REGISTERS**2 / (2 * math.log(2))


def _estimate_counts(weights: Ints, empty: Ints) -> pa.Array:
    """Return the estimated counts of n sketches, rounded to whole numbers, as an int64 array.
    ``weights``: int64[n], the sum of ``_WEIGHT`` over the registers. ``empty``: int64[n], the count
    of registers without a value; 512 estimates 0.

    Ranks beyond the largest are too rare to need a correction.
    """
    harmonic = weights / float(1 << _RANK_MAX) + _OF_EMPTY[empty]
    return pa.array(np.rint(_ALPHA / harmonic).astype(np.int64))
