"""A limit for the memory of all processes of a session on one machine, as Spark's settings.

| part | of the limit |
|---|---|
| the JVM's heap | a half, or ``memory`` |
| files of state that workers keep mapped | half of the rest |
| the JVM beside its heap, RocksDB, and the workers' own memory | the rest, not bounded |
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from dovetail.errors import ConfigurationError
from dovetail.spark.task import MAPPED_BYTES_MAX

HEAP = "spark.driver.memory"
_LIMIT_MIN = 2 << 30


def memory_settings(
    options: Mapping[str, str], memory: str | None, limit: str | None
) -> dict[str, str]:
    """Return Spark's settings, by name, for the JVM's heap ``memory`` and the ``limit`` of all
    processes, both sizes such as ``6g``. Without ``limit``, only ``memory`` is set, unchecked.
    Without both, return an empty dict.

    ``options``: the builder's settings. They count only if there is a limit. A heap among them
    (``spark.driver.memory``) is then taken in place of ``memory``. The master is ``spark.master``,
    by default ``local``. Without a heap of either kind, the heap is half of the limit.

    Half of what the heap leaves is for files of state that workers keep mapped. It is set in equal
    parts for all cores, in bytes, as the variable ``DOVETAIL_MAPPED_BYTES_MAX`` of the workers'
    environment.

    Raises ``ConfigurationError`` for a limit with a master that is not local or has no cores, or a
    limit below ``2g``. Raises it, too, for a text that is no size, and for a heap that leaves less
    than a quarter of the limit. Just a quarter is allowed.
    """
    if limit is None:
        return {} if memory is None else {HEAP: memory}
    argument, memory = (HEAP, options[HEAP]) if HEAP in options else ("memory", memory)
    master = options.get("spark.master", "local")
    if not master.startswith("local"):
        raise ConfigurationError(
            "configure",
            f"memory_limit= is for one machine, and the master is {master}",
            "Set spark.executor.memory and spark.executor.memoryOverhead",
        )
    total = _size_bytes("memory_limit", limit)
    if total < _LIMIT_MIN:
        raise ConfigurationError(
            "configure",
            f"memory_limit={limit!r} is less than the processes need",
            "Give 2g or more",
        )
    heap = f"{(total // 2) >> 20}m" if memory is None else memory
    left = total - _size_bytes(argument, heap)
    if left < total // 4:
        raise ConfigurationError(
            "configure",
            f"{argument}={heap!r} leaves less than a quarter of memory_limit={limit!r}",
            f"Leave {argument} out, or raise the limit",
        )
    mapped = left // 2 // _core_count(master)
    return {HEAP: heap, f"spark.executorEnv.{MAPPED_BYTES_MAX}": str(mapped)}


def _size_bytes(name: str, text: str) -> int:
    """Return in bytes a size such as ``6g``, ``6gb`` or ``512m``: digits, then k, m, g or t in
    either case, for powers of 1024. Raises ``ConfigurationError`` for another text, also without a
    letter or with decimals. It names the argument ``name``.
    """
    size = re.fullmatch(r"(\d+)([kmgt])b?", text.strip().lower())
    if size is None:
        raise ConfigurationError(
            "configure", f"{name}={text!r} is no size", "Write it as 6g or 512m"
        )
    return int(size[1]) << 10 * (" kmgt".index(size[2]))


def _core_count(master: str) -> int:
    """Return the count of cores of a local master, such as 2 for ``local[2]`` and ``local[2,3]``,
    and 1 for ``local``. For ``local[*]``, and for ``local-cluster[...]``, it is that of the
    machine. Raises ``ConfigurationError`` for ``local[0]``, which Spark does not start.
    """
    number = re.match(r"local\[(\d+)", master)
    if number is None:
        return 1 if master == "local" else os.cpu_count() or 1
    if int(number[1]) == 0:
        raise ConfigurationError(
            "configure",
            f"the master {master} has no cores",
            "Give it one or more, as local[2], or all as local[*]",
        )
    return int(number[1])
