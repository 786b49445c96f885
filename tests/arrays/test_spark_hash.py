"""Spark's hash of keys, beside xxHash's own library. ``test_state_reader`` has Spark beside it."""

from __future__ import annotations

import random
from datetime import time
from decimal import Decimal, localcontext

import pyarrow as pa
import pytest
import xxhash

from dovetail.arrays.spark_hash import spark_hash


def signed(hash_: int) -> int:
    return hash_ - (hash_ >> 63 << 64)


@pytest.mark.parametrize("sliced", [False, True])
def test_bytes_of_each_length_are_hashed_as_xxhash_does(sliced: bool) -> None:
    choose = random.Random(3)
    values = [choose.randbytes(length) for length in range(100) for _ in range(3)]
    choose.shuffle(values)
    values[5] = None  # type: ignore[call-overload]
    keys = pa.array(values, pa.binary())
    if sliced:
        values, keys = values[7:], keys.slice(7)
    expected = [42 if v is None else signed(xxhash.xxh64_intdigest(v, 42)) for v in values]
    assert spark_hash([keys]).tolist() == expected
    second = pa.array(["x"] * len(values))
    seeds = [42 if v is None else xxhash.xxh64_intdigest(v, 42) for v in values]
    expected = [signed(xxhash.xxh64_intdigest(b"x", seed)) for seed in seeds]
    assert spark_hash([keys, second]).tolist() == expected


def test_a_large_decimal_is_hashed_by_the_fewest_bytes_that_hold_it() -> None:
    choose = random.Random(4)
    edges = [sign * (2**bits + more) for bits in range(120) for sign in (1, -1) for more in (-1, 0)]
    numbers = [0, *edges, *(choose.randrange(-(10**36), 10**36) for _ in range(50))]
    with localcontext() as context:
        context.prec = 40
        keys = pa.array([Decimal(n).scaleb(-2) for n in numbers], pa.decimal128(38, 2))

    def java_bytes(number: int) -> bytes:
        bits = (number if number >= 0 else -number - 1).bit_length()
        return number.to_bytes(bits // 8 + 1, "big", signed=True)

    expected = [signed(xxhash.xxh64_intdigest(java_bytes(n), 42)) for n in numbers]
    assert spark_hash([keys]).tolist() == expected


def test_nested_values_are_hashed_part_by_part() -> None:
    rows = [{"a": 1, "b": ["x", None, "yz"]}, None, {"a": None, "b": []}, {"a": 2, "b": None}]
    keys = pa.array(rows, pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))]))
    a, b0, b2 = ([1, None, None, 2], ["x"] + [None] * 3, ["yz"] + [None] * 3)
    flat = [pa.array(a, pa.int32()), pa.array(b0), pa.array(b2)]
    assert spark_hash([keys]).tolist() == spark_hash(flat).tolist()
    assert spark_hash([keys.slice(0, 0)]).tolist() == []


def test_a_map_has_no_hash() -> None:
    type_ = pa.map_(pa.string(), pa.int64())
    assert spark_hash([pa.nulls(2, type_)]).tolist() == [42, 42]
    with pytest.raises(ValueError, match="no hash of maps"):
        spark_hash([pa.array([[("a", 1)]], type_)])


def test_a_time_of_day_is_hashed_as_nanoseconds() -> None:
    # Spark keeps it as a long of nanoseconds, and hashes that.
    keys = pa.array([time(1, 2, 3, 4), None, time(0)], pa.time64("ns"))
    nanoseconds = pa.array([3_723_000_004_000, None, 0])
    assert spark_hash([keys]).tolist() == spark_hash([nanoseconds]).tolist()
    within, plain = (pa.StructArray.from_arrays([k], names=["t"]) for k in (keys, nanoseconds))
    assert spark_hash([within]).tolist() == spark_hash([plain]).tolist()
