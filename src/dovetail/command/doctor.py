"""The command that checks a session or a checkpoint."""

from __future__ import annotations

from typing import Annotated

import typer

from dovetail.command.options import AsJson
from dovetail.command.output import print_json, print_table
from dovetail.command.sessions import refuse_other_folder, session
from dovetail.spark.checkpoint_doctor import checkpoint_report
from dovetail.spark.doctor import doctor as session_report


def doctor(
    checkpoint: Annotated[
        str | None, typer.Argument(help="A checkpoint to check; by default a session is.")
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Check a session as this machine makes it, or a checkpoint, and print the findings. With a
    problem in any of them the exit code is 1, else 0.

    A finding says what was checked, what is lacking, what that costs, and the remedy. If nothing is
    lacking, it says ok there, with --json null. --json prints a list of them.
    """
    if checkpoint is not None:
        refuse_other_folder("doctor", checkpoint)
        report = checkpoint_report(checkpoint)
    else:
        with session() as spark:
            report = session_report(spark)
    if as_json:
        print_json([vars(finding) for finding in report.findings])
    else:
        rows = [
            [f.what, "ok", "", ""] if f.lacks is None else [f.what, f.lacks, f.costs, f.remedy]
            for f in report.findings
        ]
        print_table(["what", "lacks", "costs", "remedy"], rows)
    raise typer.Exit(1 if report.missing else 0)
