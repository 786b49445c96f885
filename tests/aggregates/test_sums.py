"""count, sum and mean against plain Python: whole numbers, fractions, and ``math.fsum``."""

from __future__ import annotations

import collections
import math
import pickle
import struct
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from bench.models.aggregates import (
    Update,
    bits,
    by_group,
    check,
    check_merged,
    columns,
    cuts,
    final,
    run,
    same,
    scripts,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dovetail.aggregates import exact_floats
from dovetail.aggregates.aggregate import (
    Aggregate,
    AggregateOverflowError,
    GroupUpdates,
    null_accumulators,
)
from dovetail.aggregates.exact_floats import load_stored_sums, sums_at_the_end, to_quotients
from dovetail.aggregates.exact_sums import limbs_of, normalize, quotients
from dovetail.aggregates.running_aggregates import any_so_far, running_sum, segmented_scan
from dovetail.aggregates.sums import Count, ExactMean, ExactSum, FloatMean, FloatSum

LONG, DOUBLE = pa.int64(), pa.float64()
LOWEST, HIGHEST = -(2**63), 2**63 - 1
DOUBLES = st.none() | st.floats() | st.sampled_from([0.0, -0.0, 0.1, 1e16, -1e16, 1e308, -1e308])
DECIMALS = [(5, 2), (18, 0), (18, 18), (19, 3), (28, 28), (34, 10), (38, 0), (38, 20), (38, 38)]
INTEGERS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}


def integers(width: int) -> st.SearchStrategy[int | None]:
    """Integers of so many bits, often the last ones that fit it or half of it."""
    lowest, highest = -(2 ** (width - 1)), 2 ** (width - 1) - 1
    half = 2 ** (width // 2)
    edges = st.sampled_from([highest, lowest, half, -half - 1, -1])
    return st.none() | st.integers(-3, 3) | st.integers(lowest, highest) | edges


def scaled(unscaled: int, scale: int) -> Decimal:
    digits = tuple(int(digit) for digit in str(abs(unscaled)))
    return Decimal((int(unscaled < 0), digits, -scale))


def unscaled(value: Decimal | int) -> int:
    if isinstance(value, int):
        return value
    sign, digits, _ = value.as_tuple()
    return (-1 if sign else 1) * int("".join(map(str, digits)))


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal | None]:
    top = 10**precision - 1
    numbers = st.integers(-9, 9) | st.integers(-top, top) | st.sampled_from([top, -top])
    return st.none() | numbers.map(lambda number: scaled(number, scale))


def half_up(number: int, divisor: int) -> int:
    """number / divisor rounded half away from zero."""
    quotient, remainder = divmod(abs(number), divisor)
    quotient += 2 * remainder >= divisor
    return quotient if number >= 0 else -quotient


class CountModel:
    def __init__(self) -> None:
        self.count = 0

    def update(self, retracted: bool, *values: Any) -> None:
        self.count += 0 if None in values else -1 if retracted else 1

    def result(self) -> int:
        return self.count


class ExactModel:
    """The values that a group has, as whole numbers; ``read`` makes the result of them."""

    def __init__(self, read: Callable[[list[int]], Any]) -> None:
        self.read = read
        self.values: list[int] = []

    def update(self, retracted: bool, *values: Any) -> None:
        for value in values:
            if value is not None:
                (self.values.remove if retracted else self.values.append)(unscaled(value))

    def result(self) -> Any:
        return self.read(self.values) if self.values else None


def nearest(number: Fraction) -> float:
    """The double nearest to a fraction, infinite beyond the largest."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


class FloatModel:
    """The definition: the exact sum of the rows that are there, or its quotient, rounded once."""

    def __init__(self, *, mean: bool) -> None:
        self.mean = mean
        self.values: list[float] = []

    def update(self, retracted: bool, *values: Any) -> None:
        for value in values:
            if value is None:
                continue
            if retracted:
                at = [bits(other) for other in self.values].index(bits(value))
                del self.values[at]
            else:
                self.values.append(value)

    def result(self) -> float | None:
        if not self.values:
            return None
        strange = [value for value in self.values if not np.isfinite(value)]
        if strange:
            return sum(strange)
        exact = sum(map(Fraction, self.values), Fraction(0))
        return nearest(exact / len(self.values) if self.mean else exact)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_count(data: st.DataObject) -> None:
    script = data.draw(scripts(integers(64), retracts=True))
    cut = data.draw(cuts(script))
    check(Count(), CountModel, script, [LONG], cut)
    rows = [Update(update.group, update.retracted, ()) for update in script]
    check(Count(), CountModel, rows, [], cut)
    check_merged(Count(), script[: len(script) // 2], script[len(script) // 2 :], [LONG])


def exact_cases() -> list[tuple[Aggregate, pa.DataType, Callable[[list[int]], Any]]]:
    """Kernel, column and what is read from its values: the sum or mean, None if it does not fit."""
    cases: list[tuple[Aggregate, pa.DataType, Callable[[list[int]], Any]]] = []
    for type_ in INTEGERS:
        cases.append((ExactSum(type_), type_, long_sum))
        cases.append((ExactMean(type_), type_, long_mean))
    for precision, scale in DECIMALS:
        type_ = pa.decimal128(precision, scale)
        cases.append((ExactSum(type_), type_, decimal_sum(precision, scale)))
        cases.append((ExactMean(type_), type_, decimal_mean(precision, scale)))
    return cases


class TooLargeError(Exception):
    """A result that does not fit."""


def fitting(number: int, precision: int, scale: int) -> Decimal:
    if abs(number) >= 10**precision:
        raise TooLargeError
    return scaled(number, scale)


def long_sum(values: list[int]) -> int:
    if not LOWEST <= sum(values) <= HIGHEST:
        raise TooLargeError
    return sum(values)


def long_mean(values: list[int]) -> float:
    """The nearest double: Python rounds a quotient of whole numbers once."""
    return sum(values) / len(values)


def decimal_sum(precision: int, scale: int) -> Callable[[list[int]], Decimal]:
    return lambda values: fitting(sum(values), min(38, precision + 10), scale)


def decimal_mean(precision: int, scale: int) -> Callable[[list[int]], Decimal]:
    finer = min(38, scale + 4)
    return lambda values: fitting(
        half_up(sum(values) * 10 ** (finer - scale), len(values)), min(38, precision + 4), finer
    )


def _named(of: Any) -> str:
    """A case's name, the same in every process: functions print where they lie in memory."""
    return of.__qualname__.partition(".")[0] if callable(of) else str(of)


@pytest.mark.parametrize(("aggregate", "type_", "read"), exact_cases(), ids=_named)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_exact(
    data: st.DataObject, aggregate: Aggregate, type_: pa.DataType, read: Callable[[list[int]], Any]
) -> None:
    """Sums and means are exact; where one does not fit, the update raises, and the end of a batch
    only if it is the last.
    """
    if pa.types.is_decimal(type_):
        values = decimals(type_.precision, type_.scale)
    else:
        values = integers(INTEGERS[type_])
    script = data.draw(scripts(values, retracts=True))
    groups: dict[int, ExactModel] = {}
    fits, last_fits = True, {}
    for update in script:
        group = groups.setdefault(update.group, ExactModel(read))
        group.update(update.retracted, *update.values)
        try:
            group.result()
            last_fits[update.group] = True
        except TooLargeError:
            fits, last_fits[update.group] = False, False
    if fits:
        check(aggregate, lambda: ExactModel(read), script, [type_], data.draw(cuts(script)))
        half = len(script) // 2
        check_merged(aggregate, script[:half], script[half:], [type_])
        return
    updates, order = by_group(script)
    ordered = [column.take(pa.array(order)) for column in columns(script, [type_])]
    initial = null_accumulators(aggregate.state, updates.groups)
    with pytest.raises(AggregateOverflowError, match="does not fit its type"):
        aggregate.scan(updates, initial, ordered)
    state = aggregate.fold(updates, initial, ordered)
    if all(last_fits.values()):
        expected = [groups[g].result() if g in groups else None for g in range(updates.groups)]
        assert bits(aggregate.results(state).to_pylist()) == bits(expected)
    else:
        with pytest.raises(AggregateOverflowError, match="decimal"):
            aggregate.results(state)


@pytest.mark.parametrize("type_", [LONG, pa.decimal128(38, 0)])
def test_a_sum_that_fits_to_the_last_digit(type_: pa.DataType) -> None:
    """And one more does not."""
    top = HIGHEST if type_ == LONG else 10**38 - 1
    for sign in (1, -1):
        number = top if sign > 0 or type_ != LONG else LOWEST + 1
        script = [Update(0, False, (value,)) for value in (sign * abs(number), sign, -sign)]
        plain = [script[0], script[2]]
        emitted, _ = run(ExactSum(type_), plain, [type_])
        assert emitted == [sign * abs(number), sign * (abs(number) - 1)]
        if type_ == LONG and sign < 0:
            script.insert(1, script[1])  # there is one long more below zero
        with pytest.raises(AggregateOverflowError) as raised:
            run(ExactSum(type_), script, [type_])
        copied = pickle.loads(pickle.dumps(raised.value))
        assert isinstance(copied, AggregateOverflowError)
        assert str(copied) == str(raised.value)
        assert "a sum does not fit its type" in copied.problem
        assert "Cast the column" in copied.remedy


@pytest.mark.parametrize("aggregate", [FloatSum(), FloatMean()], ids=str)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_floats(data: st.DataObject, aggregate: Aggregate) -> None:
    """Bit for bit, however many sums are worked on at a time."""
    script = data.draw(scripts(DOUBLES, retracts=True))
    block = data.draw(st.sampled_from([1, 3, 2**15]))
    mean = isinstance(aggregate, FloatMean)
    with mock.patch.object(exact_floats, "_BLOCK", block):
        check(aggregate, lambda: FloatModel(mean=mean), script, [DOUBLE], data.draw(cuts(script)))


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_floats_are_summed_as_doubles(data: st.DataObject) -> None:
    script = data.draw(scripts(st.none() | st.floats(width=32), retracts=True))
    cut = data.draw(cuts(script))
    check(FloatSum(), lambda: FloatModel(mean=False), script, [pa.float32()], cut)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_merged_floats(data: st.DataObject) -> None:
    for aggregate in (FloatSum(), FloatMean()):
        left, right = (data.draw(scripts(DOUBLES, retracts=True, size=9)) for _ in range(2))
        with mock.patch.object(exact_floats, "_BLOCK", 2):
            check_merged(aggregate, left, right, [DOUBLE])


def test_every_running_sum_is_what_fsum_gives() -> None:
    """Of long groups and short ones, of all sizes of doubles, through rows that come and go."""
    random = np.random.default_rng(5)
    group = np.sort(random.choice([0, 1, 2, 3], 3000, p=[0.8, 0.1, 0.09, 0.01]))
    exponent = np.array([1, 9, 300, 2])[group]
    value = random.normal(size=len(group)) * 10.0 ** random.integers(-exponent, exponent + 1)
    there: dict[int, list[float]] = {number: [] for number in range(4)}
    retracted, expected = np.zeros(len(group), np.bool_), []
    for row, number in enumerate(group.tolist()):
        rows = there[number]
        if rows and random.random() < 0.45:
            retracted[row] = True
            value[row] = rows.pop(int(random.integers(len(rows))))
        else:
            rows.append(float(value[row]))
        expected.append(math.fsum(rows) if rows else None)
    updates = GroupUpdates(group, 4, retracted)
    initial = null_accumulators(FloatSum().state, 4)
    for block in (7, 1000, 2**15):
        with mock.patch.object(exact_floats, "_BLOCK", block):
            emitted = FloatSum().scan(updates, initial, [pa.array(value)])
            assert bits(emitted.to_pylist()) == bits(expected)


@pytest.mark.parametrize(
    ("come", "go"),
    [
        ([1e17, 1.0], [1e17]),
        ([1e308, 1e308], [1e308]),
        ([2.0**-1074, 1e308, 0.1], [0.1, 1e308]),
        ([math.inf, 0.1, math.nan, -math.inf], [math.nan, -math.inf, math.inf]),
        ([0.1, 0.2] * 60, [0.1, 0.2] * 59),
        ([-0.0, -0.0], [-0.0]),
    ],
    ids=lambda values: str(values[:4]),
)
def test_what_has_left_leaves_nothing_behind(come: list[float], go: list[float]) -> None:
    """The faults of adding up in doubles, each in one batch and in as many as there are rows."""
    stays = collections.Counter(map(bits, come)) - collections.Counter(map(bits, go))
    left = math.fsum(struct.unpack("<d", value)[0] for value in stays.elements())
    script = [Update(0, False, (value,)) for value in come]
    script += [Update(0, True, (value,)) for value in go]
    for cut in ([], [*range(len(script))]):
        emitted, state = run(FloatSum(), script, [DOUBLE], cut)
        assert bits(emitted[-1]) == bits(left)
        fresh = final(FloatSum(), [Update(0, False, (left,))], [DOUBLE])
        if len(come) - len(go) == 1:
            assert same([column.slice(0, 1) for column in state], [c.slice(0, 1) for c in fresh])


def test_a_mean_of_what_is_too_large_to_be_summed() -> None:
    emitted, _ = run(FloatMean(), [Update(0, False, (1.5e308,))] * 3, [DOUBLE])
    assert emitted == [1.5e308] * 3


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(allow_nan=False, allow_infinity=False)
            | st.sampled_from([5e-324, 2.0**-1022]),
            st.integers(1, 9) | st.integers(1, 2**47) | st.sampled_from([2**32 - 1, 2**32, 2**47]),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_quotients_of_floats(cases: list[tuple[float, int]]) -> None:
    """The doubles nearest to them, subnormal ones included."""
    values = [value for value, _ in cases]
    stored = sums_at_the_end(
        GroupUpdates(np.arange(len(values)), len(values), np.zeros(len(values), np.bool_)),
        null_accumulators(exact_floats.STORED, len(values)),
        np.array(values),
    )
    divisors = np.array([divisor for _, divisor in cases], dtype=np.int64)
    (sums,) = load_stored_sums(stored)
    found = to_quotients(sums, divisors).tolist()
    expected = [float(Fraction(value) / divisor) for value, divisor in cases]
    assert bits(found) == bits(expected)


def test_a_stored_float_sum_is_short() -> None:
    """Four words of 32 bits at most for amounts of money, however many there were."""
    amounts = np.round(np.random.default_rng(2).lognormal(3, 2, 20_000), 2)
    updates = GroupUpdates(np.zeros(len(amounts), np.int64), 1, np.zeros(len(amounts), np.bool_))
    state = FloatSum().fold(updates, null_accumulators(FloatSum().state, 1), [pa.array(amounts)])
    assert len(state[2][0]) <= 4
    assert FloatSum().results(state).to_pylist() == [math.fsum(amounts)]


def test_scans() -> None:
    """Longer than what advances together, of all lengths around it, against a loop."""
    lengths = np.array([1, 2, 63, 64, 65, 66, 1, 500, 3])
    start = np.cumsum(lengths) - lengths
    values = np.random.default_rng(1).integers(-999, 999, lengths.sum())
    parts = [np.minimum.accumulate(part) for part in np.split(values, start[1:])]
    assert segmented_scan(np.minimum, start, values).tolist() == np.concatenate(parts).tolist()


@pytest.mark.parametrize("aggregate", [Count(), ExactSum(LONG), ExactMean(LONG), FloatSum()])
def test_no_groups_and_no_updates(aggregate: Aggregate) -> None:
    values = [pa.array([], aggregate.result)]
    for groups in (0, 3):
        updates = GroupUpdates(np.zeros(0, np.int64), groups, np.zeros(0, np.bool_))
        initial = null_accumulators(aggregate.state, groups)
        assert len(aggregate.scan(updates, initial, values)) == 0
        assert [len(column) for column in aggregate.fold(updates, initial, values)] == [
            groups
        ] * len(aggregate.state)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(-(10**38), 10**38) | st.integers(-99, 99),
            st.integers(1, 9) | st.integers(1, 2**47) | st.sampled_from([2**32 - 1, 2**32, 2**47]),
        ),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 4),
)
def test_quotients(cases: list[tuple[int, int]], places: int) -> None:
    """By divisors of up to 47 bits, that of a group of 140 trillion rows."""
    dividends = pa.array([scaled(number % 10**38, 0) for number, _ in cases], pa.decimal128(38, 0))
    signs = np.array([-1 if number < 0 else 1 for number, _ in cases])
    limbs = normalize([signs * limb for limb in limbs_of(dividends)])
    divisors = np.array([divisor for _, divisor in cases], dtype=np.int64)
    found = quotients(limbs, 10**places, divisors)
    values = [
        sum(int(limb[row]) << (32 * place) for place, limb in enumerate(found))
        for row in range(len(cases))
    ]
    assert values == [
        half_up(int(sign) * (number % 10**38) * 10**places, divisor)
        for sign, (number, divisor) in zip(signs, cases, strict=True)
    ]


@settings(max_examples=100, deadline=None)
@given(scripts(st.integers(LOWEST, HIGHEST), retracts=False), st.integers(LOWEST, HIGHEST))
def test_running_sums_wrap_only_where_they_must(script: list[Update], initial: int) -> None:
    updates, order = by_group(script)
    values = np.array([script[row].values[0] for row in order], dtype=np.int64)
    sums = dict.fromkeys(range(updates.groups), initial)
    expected = []
    for group, value in zip(updates.group.tolist(), values.tolist(), strict=True):
        sums[group] += value
        expected.append((sums[group] + 2**63) % 2**64 - 2**63)
    start = np.full(updates.groups, initial, dtype=np.int64)
    assert running_sum(updates, values, start).tolist() == expected
    flags = values % 3 == 0
    seen = [
        bool(flags[updates.bounds[group] : update + 1].any())
        for update, group in enumerate(updates.group)
    ]
    assert any_so_far(updates, flags, np.zeros(updates.groups, np.bool_)).tolist() == seen


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(LOWEST, HIGHEST), min_size=1, max_size=30))
@example([5, 2**53 + 1, 1])
@example([2**53] * 3)
@example([LOWEST, LOWEST, -1])
def test_a_mean_of_longs_is_the_double_nearest_to_the_true_one(values: list[int]) -> None:
    """Spark adds doubles up, each addition rounding."""
    emitted, _ = run(ExactMean(LONG), [Update(0, False, (value,)) for value in values], [LONG])
    assert emitted[-1] == float(Fraction(sum(values), len(values)))
