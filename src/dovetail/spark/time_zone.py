"""The time zone in which a query's expressions are computed: the session's when it began."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dovetail.errors import CheckpointError
from dovetail.plan.fingerprint import sources_of
from dovetail.platform import jvm
from dovetail.platform.sessions import is_remote
from dovetail.spark.checkpoints.checkpoint import TIMEZONE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dovetail.spark.query.writer import StartRequest

SETTING = "spark.sql.session.timeZone"

_AWARE = "org.apache.spark.sql.catalyst.expressions.TimeZoneAwareExpression"


def time_zone_setting(session: SparkSession, zone: str) -> dict[str, str]:
    """Return the Spark setting of a query that does not run in the session's time zone; an empty
    mapping if ``zone`` is the session's.
    """
    return {} if session.conf.get(SETTING) == zone else {SETTING: zone}


def zone_of(run: StartRequest, bound: Mapping[str, Any] | None) -> str:
    """Return the time zone of a query: the one that its checkpoint began in. For a new checkpoint,
    or one that names none, it is the session's. ``run``: the query, with its session and plan
    nodes. ``bound``: the content of ``dovetail.json``, None for a new checkpoint.

    Raises ``CheckpointError`` if the session has another zone, and expressions in the frame of a
    source are not bound to the query's. These are the streaming frames that the user has given;
    frames of tables whose rows never change are not checked. On Spark Connect, which does not tell
    the zones, nothing is raised.
    """
    now = str(run.session.conf.get(SETTING))
    zone = now if bound is None else str(bound.get(TIMEZONE, now))
    if zone == now or is_remote(run.session):
        return zone  # Spark Connect resolves a frame only when its query starts
    for source in sources_of(run.nodes):
        for expression, expression_zone in (
            () if source.frame is None or source.static else _zoned_expressions(source.frame)
        ):
            if expression_zone != zone:
                raise CheckpointError(
                    source.title,
                    f"the checkpoint began in the time zone {zone}, and {expression} is computed "
                    f"in {expression_zone} now",
                    f"Set {SETTING} to {zone} before its frame is made, or start with a new "
                    "checkpoint",
                )
    return zone


def _zoned_expressions(frame: DataFrame) -> Iterator[tuple[str, str]]:
    """Yield the SQL text and the zone of each expression in a frame's plan that depends on a time
    zone; nothing if none does.
    """
    plan = jvm.analyzed_plan(frame)
    aware = plan.getClass().getClassLoader().loadClass(_AWARE)
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        waiting += jvm.items(node.children())
        yield from _zoned_children(jvm.items(node.expressions()), aware)


def _zoned_children(expressions: list[Any], aware: Any) -> Iterator[tuple[str, str]]:
    """Yield the SQL text and the zone of each of ``expressions`` and of their children that depends
    on a time zone; nothing if none does. Expressions whose options name a zone do not count.
    ``aware``: Spark's class of such expressions, an object of the JVM.
    """
    waiting = [*expressions]
    while waiting:
        expression = waiting.pop()
        waiting += jvm.items(expression.children())
        if aware.isInstance(expression) and expression.timeZoneId().isDefined():
            name = str(expression.getClass().getSimpleName())
            if name == "Cast" and not expression.needsTimeZone():
                continue
            if name.endswith(("ToStructs", "ToJson", "ToCsv", "ToXml")) and _has_zone_option(
                expression
            ):
                continue
            yield str(expression.sql()), str(expression.timeZoneId().get())


def _has_zone_option(expression: Any) -> bool:
    """Return True if ``expression``, one of the JVM that reads or writes text such as JSON, has an
    option with a time zone.
    """
    return any(expression.options().contains(name) for name in ("timeZone", "timezone"))
