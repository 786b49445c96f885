"""The Spark session that all tests share, what keeps its memory small, and a Kafka broker."""

from __future__ import annotations

import gc
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import small_session
from built_site import site  # noqa: F401 -- a fixture
from chromium import browser, chromium  # noqa: F401 -- fixtures
from golden_checkpoints import golden  # noqa: F401 -- a fixture
from kafka_broker import BROKER, free_port
from mariadb_server import mariadb, mariadb_socket  # noqa: F401 -- fixtures
from mongodb_server import mongodb_database, mongodb_server  # noqa: F401 -- fixtures
from postgres_server import database, pooled, postgres_server  # noqa: F401 -- fixtures
from pyspark.sql import SparkSession
from redis_server import redis_client, redis_socket  # noqa: F401 -- fixtures
from shops import shop  # noqa: F401 -- a fixture

from dovetail.spark.query import writer

MAVEN_MISSING = 3
collect_ignore_glob = ["*/conftest.py"]
"""They have no doctests, and two of them given by their folders would be one module twice."""
FOLDERS_OF_ONE_BUCKET = {
    *("api", "command", "connect", "io", "lookup_sources", "page", "project", "provenance"),
}
"""In several buckets each stage with state costs what a whole query in one bucket does."""
_DUE_S = pytest.StashKey[float]()
"""When cycles are to be looked for again."""


def pytest_collection() -> None:
    """Nearly all that collecting makes stays, so the garbage collector would look in vain: it takes
    half of the time.
    """
    gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that need a JVM come first: the short tests at the end leave no process idle."""
    first = {item.path for item in items if _starts(item)}
    items.sort(key=lambda item: item.path not in first)


def _starts(item: pytest.Item) -> bool:
    """Whether it needs a session, or its module starts processes."""
    fixtures = getattr(item, "fixturenames", ())
    names = vars(getattr(item, "module", None) or object)
    starting = {"drivers", "reported", "small_session", "subprocess"}
    return not ({"spark", "server"}.isdisjoint(fixtures) and starting.isdisjoint(names))


def pytest_collection_finish() -> None:
    """What collecting made stays as long as the process: the garbage collector passes it over. It
    has little garbage, and to look for that takes two seconds.
    """
    gc.freeze()
    gc.enable()


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Cycles in Python keep alive the plans in Java that they refer to, for Java knows of no need
    until it runs out of memory. To look for them takes a tenth of a second, so they wait a while.
    """
    due_s = item.config.stash.get(_DUE_S, 0.0)
    if "spark" in getattr(item, "fixturenames", ()) and time.monotonic() > due_s:
        gc.collect()
        item.config.stash[_DUE_S] = time.monotonic() + 6


@pytest.fixture(scope="module", autouse=True)
def _buckets(request: pytest.FixtureRequest) -> Iterator[None]:
    """One bucket by default, which is the fastest, where no test is about buckets."""
    folder = request.path.relative_to(Path(__file__).parent).parts[0]
    with pytest.MonkeyPatch.context() as patch:
        if folder in FOLDERS_OF_ONE_BUCKET:
            patch.setattr(writer, "BUCKETS_DEFAULT", 1)
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for the process, with the jars that ``tools/jars/fetch`` has fetched."""
    session = small_session.session()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def kafka_servers() -> Iterator[str]:
    """The address of a broker of this process's own, gone with its data when the tests end."""
    short_lived = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}
    environment = os.environ | short_lived | {"DOVETAIL_KAFKA_PORT": str(free_port())}
    started = subprocess.run(
        [BROKER, "start"], env=environment, capture_output=True, text=True, check=False
    )
    if started.returncode == MAVEN_MISSING:
        pytest.skip(started.stderr.strip())
    if started.returncode != 0:
        pytest.fail(started.stderr)
    yield started.stdout.split()[0]
    subprocess.run([BROKER, "wipe"], env=environment, check=True)
