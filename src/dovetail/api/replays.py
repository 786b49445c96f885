"""Mended dead letters, sent again to the source of a query."""

from __future__ import annotations

from pyspark.sql import DataFrame

from dovetail.api.topology import ATopology
from dovetail.base.validation import validated
from dovetail.errors import PlanError
from dovetail.io.sources.replays import Replayed, send_letters


@validated
def replay(mended: DataFrame, *, into: ATopology) -> Replayed:
    """Send mended dead letters to the source that left them out, each once and in order.

    A running query reads them in its next micro-batch. Otherwise its next start reads them.

    Parameters
    ----------
    mended : DataFrame
        Rows of ``dt.dead_letters``, with the columns of the source's rows added. Of their
        own columns, ``_operator``, ``row`` and ``_timestamp`` are needed. These, and
        ``_problem`` and ``_position`` if they are there, must be unchanged, because they
        say which dead letter a row is. Rows in which all of them are equal are one dead
        letter. So give the same of these columns in each call: without ``_position``, say,
        a row is another dead letter and sent again. Dead letters may be left out.
    into : Table or Stream
        A topology with one source that is read ``with_replays``, or that source.

    Returns
    -------
    Replayed
        ``sent``: the number of dead letters that were sent. ``skipped``: the number of
        those that had been sent before or are here twice, which are not sent again.

    Raises
    ------
    PlanError
        If ``into`` has no source with a folder of replays, or several. Also if ``mended``
        lacks a column, has one of another type, or is a streaming frame. Also if the source
        has a column that dead letters have, too, such as ``row``.
    DataError
        If a row has no event time.
    ConfigurationError
        On Spark Connect.

    See Also
    --------
    Table.with_replays : Read mended dead letters from a folder.
    dead_letters : The dead letters of a query, as one of its results.

    Notes
    -----
    The columns to add are those of the frame that ``from_changelog`` reads. Of records
    (``from_records``, ``from_topic``) they are the columns of the row. Its event time is
    that of the dead letter, ``_timestamp``. A column ``_deleted`` that is true sends a
    delete.

    Rows are sent in the order of the micro-batches that left them out, which ``_position``
    says. Within a micro-batch, and without that column, they are in the order of their
    times. They pass through the driver.

    One call writes one file, which appears whole. Of calls that run at the same time, each
    sends what the others have not sent.

    Examples
    --------
    >>> import tempfile
    >>> import dovetail as dt
    >>> from pyspark.sql import functions as F
    >>> folder = tempfile.TemporaryDirectory()
    >>> rows = spark.createDataFrame([(1, "40"), (2, "many")], "id long, amount string")
    >>> rows = rows.selectExpr("id", "amount", "timestamp_micros(1) AS at")
    >>> def numbers():
    ...     orders = dt.Table.from_changelog(rows, key="id", timestamp="at", name="orders")
    ...     orders = orders.with_replays(f"{folder.name}/mended")
    ...     return orders.select(amount=F.col("amount").cast("long"), errors="dead_letter")
    >>> row = F.from_json("row", "id long")
    >>> mended = numbers().dead_letters().select(
    ...     "*", row["id"].alias("id"), F.lit("7").alias("amount"), F.col("_timestamp").alias("at")
    ... )
    >>> dt.replay(mended, into=numbers())
    Replayed(sent=1, skipped=0)
    >>> dt.replay(mended, into=numbers())
    Replayed(sent=0, skipped=1)
    >>> sorted(tuple(row) for row in numbers().changelog().select("id", "amount").collect())
    [(1, 40), (2, 7)]
    """
    sources = [source for source in into.plan.origins if source.replays is not None]
    if len(sources) != 1:
        raise PlanError(
            "replay",
            f"{into.plan.name} has {len(sources)} sources that read replays",
            "Read one source with_replays(folder), and give into= that source",
        )
    return send_letters("replay", mended, sources[0])
