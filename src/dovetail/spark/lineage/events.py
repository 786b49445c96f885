"""Events of OpenLineage, made of a query's datasets and its figures by the package's classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyspark
from pyspark.sql.types import StructType

from dovetail.spark.lineage.datasets import ColumnUse, InputDatasets, OutputDataset, QueryDatasets

if TYPE_CHECKING:
    from openlineage.client.event_v2 import InputDataset, RunEvent
    from openlineage.client.event_v2 import OutputDataset as OutputEvent
    from openlineage.client.facet_v2 import column_lineage_dataset

State: TypeAlias = Literal["START", "RUNNING", "COMPLETE", "FAIL"]
PRODUCER = "https://pypi.org/project/dovetail"
_INDIRECT = {"join": "JOIN", "filter": "FILTER", "group_by": "GROUP_BY"}
_DIRECT = {
    "identity": "IDENTITY",
    "transformation": "TRANSFORMATION",
    "aggregation": "AGGREGATION",
}


@dataclass(frozen=True)
class RunOfQuery:
    """One start of a query, as a run of a job."""

    run_id: str
    """A UUID."""
    job: str
    """The name of the job: of all starts of the query."""
    namespace: str
    """The namespace of the job."""
    datasets: QueryDatasets
    """The datasets that each event lists."""
    version: str
    """The version of this library."""

    def event(self, state: State, rows: Mapping[str, int], failure: str | None = None) -> RunEvent:
        """Return an event of OpenLineage of the present time, with all datasets of the query. It is
        not sent.

        ``state``: the state of the run. ``rows``: the counts of rows read since the last event, by
        input; an input may be absent. ``failure``: the message of the failure, None for none.
        """
        from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
        from openlineage.client.facet_v2 import (
            JobFacet,
            RunFacet,
            error_message_run,
            job_type_job,
            processing_engine_run,
        )

        engine = processing_engine_run.ProcessingEngineRunFacet(
            pyspark.__version__, "spark", self.version
        )
        run_facets: dict[str, RunFacet] = {"processing_engine": engine}
        if failure is not None:
            error = error_message_run.ErrorMessageRunFacet(failure, "PYTHON")
            run_facets["errorMessage"] = error
        kind = job_type_job.JobTypeJobFacet("STREAMING", "DOVETAIL", "QUERY")
        job_facets: dict[str, JobFacet] = {"jobType": kind}
        return RunEvent(
            eventTime=datetime.now(timezone.utc).isoformat(),
            producer=PRODUCER,
            eventType=RunState[state],
            run=Run(self.run_id, run_facets),
            job=Job(self.namespace, self.job, job_facets),
            inputs=[item for part in self.datasets.inputs for item in _input_datasets(part, rows)],
            outputs=[_output_dataset(output) for output in self.datasets.outputs],
        )


def _input_datasets(input_: InputDatasets, rows: Mapping[str, int]) -> Iterable[InputDataset]:
    """Yield OpenLineage's datasets of an input, with their columns. ``rows``: the counts of rows
    read, by input. They are those of all datasets of an input together, so only an input of one
    dataset has them. An input that is not in ``rows`` has none.
    """
    from openlineage.client.event_v2 import InputDataset
    from openlineage.client.facet_v2 import InputDatasetFacet, input_statistics_input_dataset

    for dataset in input_.datasets:
        facets: dict[str, InputDatasetFacet] = {}
        if len(input_.datasets) == 1 and input_.name in rows:
            count = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
                rows[input_.name]
            )
            facets["inputStatistics"] = count
        yield InputDataset(
            dataset.namespace,
            dataset.name,
            facets,
            facets={"schema": _schema_facet(input_.columns)},
        )


def _output_dataset(output: OutputDataset) -> OutputEvent:
    """Return OpenLineage's dataset of a sink, with its columns and their lineage. A column without
    origins has an empty list.
    """
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.facet_v2 import column_lineage_dataset

    fields = {
        name: column_lineage_dataset.Fields([_input_field(use, "DIRECT", _DIRECT) for use in uses])
        for name, uses in output.made_of.items()
    }
    decided = [_input_field(use, "INDIRECT", _INDIRECT) for use in output.decided_by]
    lineage = column_lineage_dataset.ColumnLineageDatasetFacet(fields, decided)
    facets = {"schema": _schema_facet(output.columns), "columnLineage": lineage}
    return OutputDataset(output.dataset.namespace, output.dataset.name, facets=facets)


def _input_field(
    use: ColumnUse, kind: str, subtypes: Mapping[str, str]
) -> column_lineage_dataset.InputField:
    """Return OpenLineage's entry for the column of an input, with its kind of use. ``kind``:
    ``DIRECT`` or ``INDIRECT``. ``subtypes``: OpenLineage's name of each use of that kind. Raises
    ``KeyError`` for a use of the other kind.
    """
    from openlineage.client.facet_v2 import column_lineage_dataset as lineage

    how = lineage.Transformation(kind, subtypes[use.use])
    return lineage.InputField(use.dataset.namespace, use.dataset.name, use.column, [how])


def _schema_facet(columns: StructType) -> Any:
    """Return OpenLineage's facet with the name and Spark's type of each column, in order."""
    from openlineage.client.facet_v2 import schema_dataset

    return schema_dataset.SchemaDatasetFacet(
        [
            schema_dataset.SchemaDatasetFacetFields(column.name, column.dataType.simpleString())
            for column in columns
        ]
    )
