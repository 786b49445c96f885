"""What a worker does around its tasks."""

from __future__ import annotations

import os
import subprocess
import sys

from pyspark import cloudpickle
from pyspark.sql.streaming.stateful_processor_util import TransformWithStateInPandasUdfUtils

from dovetail.spark.execution.processor import BucketProcessor

FREEZES = """
import gc
import pyarrow as pa
from dovetail.spark.execution.frames import packing_function

pack = packing_function([], "table t", None)
batches = [pa.record_batch({"n": [1, 2]})]
print(gc.get_freeze_count())
list(pack(iter(batches)))
print(gc.get_freeze_count())
kept = [[] for _ in range(10_000)]
list(pack(iter(batches)))
print(gc.get_freeze_count())
"""


ASKED = """
import pickle, sys
from types import SimpleNamespace
from pyspark.sql.streaming.stateful_processor_util import TransformWithStateInPandasFuncMode

asked = SimpleNamespace(
    get_map_state=lambda name, *types: print(name), set_handle_state=lambda state: None
)
pickle.load(sys.stdin.buffer)(asked, TransformWithStateInPandasFuncMode.PRE_INIT, None, iter([]))
print([name for name in sys.modules if name.partition(".")[0] == "dovetail"])
"""


def test_a_process_that_is_asked_for_state_variables_imports_nothing_of_the_library() -> None:
    """Spark starts one for each stage of each start."""
    processor = BucketProcessor(None)  # type: ignore[arg-type]
    asked = TransformWithStateInPandasUdfUtils(processor, "none").transformWithStateUDF
    pickled = cloudpickle.dumps(asked)
    done = subprocess.run(
        [sys.executable, "-c", ASKED], input=pickled, capture_output=True, check=True
    )
    assert done.stdout.decode().split("\n") == ["blobs", "[]", ""]


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
