"""A Spark Connect server that all tests here share, and a process that is its client."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from connect_server import Client, Server


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
    if not client.server.has_jars:
        missing = pytest.fail if os.environ.get("CI") and shutil.which("mvn") else pytest.skip
        missing("Spark runs without Delta Lake and Kafka: tools/jars/fetch delta kafka")
    return client
