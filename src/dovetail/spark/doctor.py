"""A check of a session: the settings it lacks, their cost, and the remedy, as a table."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import SparkSession

from dovetail.base.text_cells import html_table
from dovetail.base.validation import validated
from dovetail.platform import delta_tables, local_disk
from dovetail.platform.sessions import has_source, started_with
from dovetail.spark import class_path, workers
from dovetail.spark import session as good
from dovetail.spark.query.writer import leaks_sockets

CONFIGURE = "build the session with dt.configure(builder)"


@dataclass(frozen=True)
class Finding:
    """One thing that a session should have."""

    what: str
    """Its name."""
    lacks: str | None
    """The problem; None if there is none."""
    costs: str = ""
    """The consequence of the problem."""
    remedy: str = ""
    """The way to solve the problem."""


@dataclass(frozen=True, repr=False)
class Report:
    """The result of ``doctor``. It prints as a table, and notebooks show it as a table.

    ``findings`` has everything that was checked, and ``missing`` what the session lacks.
    """

    findings: tuple[Finding, ...]

    @property
    def missing(self) -> tuple[Finding, ...]:
        """The findings that name a problem, in order; empty if all is well."""
        return tuple(finding for finding in self.findings if finding.lacks is not None)

    def _repr_html_(self) -> str:
        rows = (
            (f.what, "ok", "", "") if f.lacks is None else (f.what, f.lacks, f.costs, f.remedy)
            for f in self.findings
        )
        return html_table(("what", "lacks", "costs", "remedy"), rows)

    def __repr__(self) -> str:
        width = max(len(item.what) for item in self.findings)
        lines = []
        for finding in self.findings:
            lines.append(
                f"{finding.what:<{width}}  {'ok' if finding.lacks is None else finding.lacks}"
            )
            if finding.lacks is not None:
                lines.append(f"{'':<{width}}  costs: {finding.costs}; remedy: {finding.remedy}")
        return "\n".join(lines)


@validated
def doctor(spark: SparkSession) -> Report:
    """Check a session for what queries need to run, and to run as fast as they are measured.

    The call runs jobs of one row, to check the Python of the workers.

    Parameters
    ----------
    spark : SparkSession
        The session, also one of Spark Connect.

    Returns
    -------
    Report
        The findings. ``print`` shows them as a table with problems, costs and remedies.
        ``missing`` has the findings with a problem.

    Raises
    ------
    PlanError
        If ``spark`` is not a ``SparkSession``.

    See Also
    --------
    configure : Build a session with what is checked.

    Examples
    --------
    >>> import dovetail as dt
    >>> report = dt.doctor(spark)
    >>> [finding.what for finding in report.findings][:5]
    ['Spark', "workers' Python", 'Kafka', 'Delta Lake', 'Unix sockets']
    >>> "workers' Python" in [finding.what for finding in report.missing]
    False
    """
    return Report(tuple(_findings(spark)))


def _findings(spark: SparkSession) -> Iterator[Finding]:
    """Yield a finding for each point that is checked in a session, with or without a problem. Run
    jobs of one row, which ask the workers.

    The points are Spark's version, the workers' Python, Kafka, Delta Lake and Unix sockets. On
    Linux, huge pages follow. With a local master, warm workers, the local disk and the class path
    follow. The time zone comes last.
    """
    leaks = f"Spark {spark.version}" if leaks_sockets(spark) else None
    leak = "a socket for each task with state is never closed"
    yield Finding("Spark", leaks, leak, "run it on Spark 4.2.1 or later")
    lacking = workers.workers_lack(spark)
    yield Finding("workers' Python", lacking, "no query runs", workers.INSTALL)
    no_kafka = None if has_source(spark, "kafka") else "no connector"
    remedy = "build the session with dt.configure(builder, kafka=True)"
    yield Finding("Kafka", no_kafka, "topics are neither read nor written", remedy)
    has_extension = delta_tables.EXTENSION in str(spark.conf.get("spark.sql.extensions", ""))
    delta = has_source(spark, "delta")
    no_delta = (
        None if has_extension and delta else "no jar" if not delta else "its settings are missing"
    )
    remedy = "build the session with dt.configure(builder, delta=True)"
    yield Finding("Delta Lake", no_delta, "Delta tables are neither read nor written", remedy)
    sockets = None if started_with(spark, good.SOCKETS) == "true" else "off"
    yield Finding("Unix sockets", sockets, "a sixth more system time", CONFIGURE)
    if sys.platform == "linux":
        options = started_with(spark, good.JAVA_OPTIONS).split()
        off = [] if good.HUGE_PAGES in options else ["the JVM"]
        off += [] if lacking is not None or _has_huge_pages(spark) else ["workers"]
        without = f"off for {' and '.join(off)}" if off else None
        yield Finding("huge pages", without, "8 % of a join's throughput", CONFIGURE)
    if started_with(spark, "spark.master").startswith("local"):
        daemon = started_with(spark, "spark.python.daemon.module")
        cold = None if daemon == good.DAEMON else "started without imports"
        yield Finding("warm workers", cold, "most of a second at each worker's start", CONFIGURE)
        there = local_disk.JAR.name in started_with(spark, good.CLASS_PATH)
        slow = None if there or os.name != "posix" else "two processes for each"
        yield Finding("local disk", slow, "a tenth of a small micro-batch", CONFIGURE)
        sought = class_path.SEARCHED_FIRST[0] in started_with(spark, good.CLASS_PATH)
        late = None if sought or os.name != "posix" else "jars in no good order"
        yield Finding("class path", late, "a seventh of the first micro-batch", CONFIGURE)
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    local = None if zone in {"UTC", "Etc/UTC"} else zone
    yield Finding("time zone", local, "times are read and shown in that zone", CONFIGURE)


def _has_huge_pages(spark: SparkSession) -> bool:
    """Return True if the environment of a worker has the settings for huge pages. A job of one row
    asks a worker, so workers must start.
    """
    wanted = good.MEMORY

    def has_settings() -> str:
        """Return ``True`` or ``False`` as text: the environment here has all settings for huge
        pages.
        """
        return str(all(os.environ.get(name) == value for name, value in wanted.items()))

    return workers.answer_of_worker(spark, has_settings) == str(True)
