"""A server that speaks MongoDB's protocol, in a Java process of the test process's own.

It is mongo-java-server and not MongoDB, which no package registry has.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyspark
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from small_session import CACHE

_JARS = CACHE / "jars" / "mongodb"
_SPARK_JARS = Path(pyspark.__file__).parent / "jars"


class Server:
    """A server whose documents are in memory."""

    def __init__(self, packages: Any) -> None:
        self._packages = packages
        self._server = self._new()
        self.uri: str = self._server.bindAndGetConnectionString()

    def _new(self) -> Any:
        backend = self._packages.backend.memory.MemoryBackend()
        backend.version(self._packages.ServerVersion.MONGO_5_0)
        return self._packages.MongoServer(backend)

    def restart(self) -> None:
        """Start another server at the same address, without data."""
        self.stop()
        self._server = self._new()
        host, _, port = self.uri.removeprefix("mongodb://").partition(":")
        self._server.bind(host, int(port))

    def stop(self) -> None:
        self._server.shutdownNow()


@pytest.fixture(scope="session")
def mongodb_server() -> Iterator[Server]:
    """A server of this process's own."""
    pytest.importorskip("pymongo", reason="pymongo is missing: pip install pymongo")
    jars = [*_JARS.glob("*.jar")]
    if not jars:
        missing = pytest.fail if os.environ.get("CI") and shutil.which("mvn") else pytest.skip
        missing("mongo-java-server is not there: tools/jars/fetch mongodb")
    (py4j,) = _SPARK_JARS.glob("py4j*.jar")
    port = launch_gateway(
        classpath=os.pathsep.join(map(str, jars)),
        jarpath=str(py4j),
        die_on_exit=True,
        javaopts=["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"],
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    server = Server(gateway.jvm.de.bwaldvogel.mongo)
    try:
        yield server
    finally:
        server.stop()
        gateway.shutdown()


@pytest.fixture
def mongodb_database(mongodb_server: Server) -> Iterator[Any]:
    """A new, empty database."""
    import pymongo
    from bson.binary import UuidRepresentation
    from bson.codec_options import CodecOptions

    options: Any = CodecOptions(uuid_representation=UuidRepresentation.STANDARD)
    with pymongo.MongoClient(mongodb_server.uri) as client:
        yield client.get_database(f"d{uuid4().hex}", codec_options=options)
