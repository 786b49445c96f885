"""A Spark Connect server that all tests here share, and a process that is its client."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from connect_server import MERGING, Client, Server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("server"))
    yield made
    made.kill()


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[Client]:
    made = Client(server)
    yield made
    made.close()


@pytest.fixture
def delta_client(client: Client) -> Client:
    """The client, whose server must have been started with Delta Lake."""
    _need("Delta Lake and Kafka", "delta kafka", there=client.server.has_jars)
    return client


@pytest.fixture
def merging_client(client: Client) -> Client:
    """The client, whose server must have a catalog with tables that Spark itself can merge into."""
    _need("tables to merge into", MERGING, there=client.server.merges)
    return client


def _need(what: str, jars: str, *, there: bool) -> None:
    if not there:
        missing = pytest.fail if os.environ.get("CI") and shutil.which("mvn") else pytest.skip
        missing(f"Spark runs without {what}: tools/jars/fetch {jars}")
