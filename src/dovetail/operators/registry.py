"""The dispatch from a law to the module that runs its operator."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from dovetail import operators
from dovetail.operators.histories import in_order
from dovetail.operators.job import Done, Job


def operate(job: Job) -> Done:
    """Run a job's operator on the rows of one bucket."""
    law = job.operator.law
    if any(source.in_order for source in job.sources):
        job = in_order(job)
    done: Done = import_module(f"dovetail.operators.{law.room}").run(job, law)
    assert done.stores.keys() <= job.operator.stores.keys(), "a store that is not declared"
    return done


def import_all() -> None:
    """Import every operator now, while the time for it is free."""
    for module in pkgutil.iter_modules(operators.__path__):
        import_module(f"dovetail.operators.{module.name}")
