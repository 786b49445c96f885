"""Two hashes in one number."""

from __future__ import annotations

import random
from itertools import product

import numpy as np

from dovetail.arrays.hashing import combine_hashes, combined_hash_range, lower_hash_bits


def test_a_combined_key_is_half_of_both() -> None:
    random_ = random.Random(1)
    ends = [-(2**63), 2**63 - 1, -1, 0, 1, 2**32 - 1, 2**32, -(2**32)]
    drawn = [random_.randrange(-(2**63), 2**63) for _ in range(20)]
    pairs = list(product(ends + drawn, repeat=2))
    hash_, place = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    keys = combine_hashes(hash_, place)
    low, high = combined_hash_range(hash_)
    assert keys.tolist() == [(h >> 32 << 32) + p % 2**32 for h, p in pairs]
    assert low.tolist() == [h >> 32 << 32 for h, _ in pairs]
    assert high.tolist() == [(h >> 32 << 32) + 2**32 - 1 for h, _ in pairs]
    assert (
        lower_hash_bits(keys).tolist()
        == lower_hash_bits(place).tolist()
        == [p % 2**32 for _, p in pairs]
    )
