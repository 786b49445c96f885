"""What a worker does around its tasks."""

from __future__ import annotations

import os
import subprocess
import sys

FREEZES = """
import gc
from types import SimpleNamespace
import pyarrow as pa
from dovetail.spark import task
from dovetail.spark.frames import packing

class Same:
    source = SimpleNamespace(title="table t")
    def __call__(self, batches, partition):
        return batches

pack = packing(Same())
batches = [pa.record_batch({"n": [1, 2]})]
print(gc.get_freeze_count())
assert list(pack(iter(batches))) == batches
print(gc.get_freeze_count())
kept = [[] for _ in range(10_000)]
assert list(pack(iter(batches))) == batches
print(gc.get_freeze_count())
"""


def test_a_worker_freezes_what_it_has_imported_at_the_end_of_its_first_task() -> None:
    """What later tasks leave behind stays in the collector's sight."""
    done = subprocess.run(
        [sys.executable, "-c", FREEZES],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    before, after, later = map(int, done.stdout.split())
    assert before == 0
    assert after > 10_000
    assert later <= after
