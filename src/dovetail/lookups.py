"""Stores in which streams and delta joins look up rows, for ``lookup`` and ``with_lookup``."""

from dovetail.lookup_sources.dbapi import dbapi
from dovetail.lookup_sources.delta_files import delta_files
from dovetail.lookup_sources.iceberg_tables import iceberg
from dovetail.lookup_sources.postgres import postgres
from dovetail.lookup_sources.schemaless.mongodb import mongodb
from dovetail.lookup_sources.schemaless.redis import redis
from dovetail.lookup_sources.source import Index, LookupSource, index
from dovetail.lookup_sources.sqlite import sqlite
from dovetail.plan.joins.lookup import cache

__all__ = [
    "Index",
    "LookupSource",
    "cache",
    "dbapi",
    "delta_files",
    "iceberg",
    "index",
    "mongodb",
    "postgres",
    "redis",
    "sqlite",
]


def __dir__() -> list[str]:
    return __all__
