"""A case as plain data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

Json: TypeAlias = Any

CASES = Path(__file__).parent / "cases"


@dataclass(frozen=True)
class Case:
    """``family``: how the topology is described, and who judges it (``families``, ``graphs``).

    ``records``: in arrival order, each as (input, key, time, value, deleted). ``batches``: how many
    of them each micro-batch has. ``restarts``: before which micro-batches the run is cut and
    restored. ``partitions``: 0 where all inputs are read from one log, otherwise how many logs each
    input has (``runs.arrived``). ``hash``: by which hash keys are placed, ``limits``: the sizes
    that are forced, both as in ``runs.forced``.
    """

    family: str
    topology: Json
    records: list[Json]
    batches: list[int]
    restarts: list[int] = field(default_factory=list)
    emit: str = "change"
    buckets: int = 1
    partitions: int = 0
    hash: str = "own"
    limits: dict[str, int] = field(default_factory=dict)

    def cut(self, records: list[Any]) -> Iterator[list[Any]]:
        """The micro-batches of these records."""
        start = 0
        for length in self.batches:
            yield records[start : start + length]
            start += length

    def to_json(self) -> str:
        """The text that ``from_json`` reads, a node or a record a line."""
        parts = []
        for name, value in asdict(self).items():
            text = json.dumps(value, ensure_ascii=False)
            if name == "records" or (name == "topology" and self.family == "graph"):
                lines = ",\n  ".join(json.dumps(one, ensure_ascii=False) for one in value)
                text = f"[\n  {lines}\n ]"
            parts.append(f' "{name}": {text}')
        return "{\n" + ",\n".join(parts) + "\n}\n"

    @classmethod
    def from_json(cls, text: str) -> Case:
        """A case that was written."""
        return cls(**json.loads(text))
