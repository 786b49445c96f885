"""The labels of buckets: the numbers under which Spark shuffles them and stores their state."""

from __future__ import annotations

from functools import cache

from dovetail.arrays.hashing import spark_preimage


def bucket_labels(buckets: int) -> list[int]:
    """Return the labels of ``buckets`` buckets, in the order of their numbers. Under its label a
    bucket is shuffled, and its state is stored.

    A label is an int32, perhaps negative, whose hash as a Spark INT is the bucket's own number. So
    bucket b goes to partition ``b % partitions``, as evenly as can be for any number of partitions.
    A bucket's state is found again whatever number the session sets.
    """
    return [spark_preimage(bucket) for bucket in range(buckets)]


def bucket_number(label: int, buckets: int) -> int:
    """Return the number of the bucket with a label, from 0. ``buckets``: the number of all buckets.
    Raises ``KeyError`` for a number that is no label of one of them.
    """
    return _bucket_number_by_label(buckets)[label]


@cache
def _bucket_number_by_label(buckets: int) -> dict[int, int]:
    """Return the number of each bucket by its label, for ``buckets`` buckets. The mapping is
    computed once in a process.
    """
    return {label: bucket for bucket, label in enumerate(bucket_labels(buckets))}
