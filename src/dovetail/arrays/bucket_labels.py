"""The labels of buckets: the numbers under which Spark shuffles them and stores their state."""

from __future__ import annotations

from functools import cache

from dovetail.arrays.spark_hash import spark_preimage


def bucket_labels(buckets: int) -> list[int]:
    """Return the label of each bucket from 0 to ``buckets - 1``, in that order. Under its label a
    bucket is shuffled, and its state is stored.

    A label is an int32, perhaps negative, whose hash as a Spark INT is the bucket's own index. It
    does not depend on the count of buckets. So bucket b goes to partition ``b % partitions``, as
    evenly as can be for any count of partitions. A bucket's state is found again even after the
    session has changed that count.
    """
    return [spark_preimage(bucket) for bucket in range(buckets)]


def bucket_number(label: int, buckets: int) -> int:
    """Return the index, from 0, of the bucket with the label ``label``, the int32 under which Spark
    shuffles it and stores its state. ``buckets``: the count of all buckets. Raises ``KeyError`` for
    an int that is no label of a bucket below ``buckets``.
    """
    return _bucket_number_by_label(buckets)[label]


@cache
def _bucket_number_by_label(buckets: int) -> dict[int, int]:
    """Return the index of each of ``buckets`` buckets, from 0, by its label. The mapping is cached
    in the process, so it must not be changed.
    """
    return {label: bucket for bucket, label in enumerate(bucket_labels(buckets))}
