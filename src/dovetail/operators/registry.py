"""Which code runs an operator: the module that its law names."""

from __future__ import annotations

from importlib import import_module

from dovetail.operators.job import Done, Job


def operate(job: Job) -> Done:
    """Run a job's operator on what one bucket has."""
    law = job.operator.law
    done: Done = import_module(f"dovetail.operators.{law.room}").run(job, law)
    assert done.stores.keys() <= job.operator.stores.keys(), "a store that is not declared"
    return done
