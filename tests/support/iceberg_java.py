"""Iceberg's own library in Java, in a process of its own: tables as Spark and Flink write them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest
from py4j.java_gateway import (
    CallbackServerParameters,
    GatewayParameters,
    JavaGateway,
    launch_gateway,
)
from small_session import CACHE

JARS = CACHE / "jars" / "iceberg"
SPARK_JARS = Path(pyspark.__file__).parent / "jars"


class _Nothing:
    """A function that knows no former deletes."""

    def apply(self, _: str) -> None:
        return None

    class Java:
        implements = ("java.util.function.Function",)


@contextmanager
def java() -> Iterator[Any]:
    """The packages of Java with Iceberg's own, which ``tools/jars/fetch iceberg`` fetches."""
    jars = [*JARS.glob("*.jar")]
    if not jars:
        missing = pytest.fail if os.environ.get("CI") and shutil.which("mvn") else pytest.skip
        missing("Iceberg's library in Java is not there: tools/jars/fetch iceberg")
    (py4j,) = SPARK_JARS.glob("py4j*.jar")
    port = launch_gateway(
        classpath=os.pathsep.join(map(str, [*jars, *SPARK_JARS.glob("*.jar")])),
        jarpath=str(py4j),
        die_on_exit=True,
        javaopts=["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"],
    )
    gateway = JavaGateway(
        gateway_parameters=GatewayParameters(port=port, auto_convert=True),
        callback_server_parameters=CallbackServerParameters(port=0),
    )
    server = gateway.java_gateway_server
    callback = gateway.get_callback_server().get_listening_port()
    server.resetCallbackClient(server.getCallbackClient().getAddress(), callback)
    try:
        yield gateway
    finally:
        gateway.shutdown()


class JavaTable:
    """A table ``shop.t`` with the columns id, part and v."""

    def __init__(self, gateway: Any, folder: Path, version: int, *, partitioned: bool) -> None:
        self.gateway, self.partitioned, self.version = gateway, partitioned, version
        self.iceberg = iceberg = gateway.jvm.org.apache.iceberg
        types, field = iceberg.types.Types, iceberg.types.Types.NestedField
        integer = types.IntegerType.get()
        self.schema = iceberg.Schema(
            [
                field.required(1, "id", integer),
                field.optional(2, "part", types.StringType.get()),
                field.optional(3, "v", integer),
            ]
        )
        self.id = self.schema.select(["id"])
        spec = iceberg.PartitionSpec.unpartitioned()
        if partitioned:
            spec = iceberg.PartitionSpec.builderFor(self.schema).identity("part").build()
        configuration = gateway.jvm.org.apache.hadoop.conf.Configuration()
        catalog = iceberg.hadoop.HadoopCatalog(configuration, f"file://{folder}")
        name = iceberg.catalog.TableIdentifier.parse("shop.t")
        settings = {"format-version": str(version)}
        self.table = catalog.createTable(name, self.schema, spec, settings)

        formats, factory = iceberg.FileFormat, iceberg.io.OutputFileFactory
        self.parquet = factory.builderFor(self.table, 1, 1).format(formats.PARQUET).build()
        self.puffin = factory.builderFor(self.table, 1, 2).format(formats.PUFFIN).build()
        ids = gateway.new_array(gateway.jvm.int, 1)
        ids[0] = 1
        self.writers = (
            getattr(iceberg.data, "GenericFileWriterFactory$Builder")(self.table)
            .dataSchema(self.schema)
            .dataFileFormat(formats.PARQUET)
            .deleteFileFormat(formats.PARQUET)
            .equalityFieldIds(ids)
            .equalityDeleteRowSchema(self.id)
            .build()
        )

    def record(self, i: int, part: str | None = None, v: int | None = None) -> Any:
        made = self.iceberg.data.GenericRecord.create(self.id if part is None else self.schema)
        made.setField("id", i)
        if part is not None:
            made.setField("part", part)
            made.setField("v", v)
        return made

    def partition(self, part: str) -> Any:
        if not self.partitioned:
            return None
        key = self.iceberg.PartitionKey(self.table.spec(), self.schema)
        key.partition(self.record(0, part, 0))
        return key

    def place(self, part: str) -> tuple[Any, Any, Any]:
        """A new file, with its spec and its partition."""
        spec, key = self.table.spec(), self.partition(part)
        made = self.parquet.newOutputFile(spec, key) if key else self.parquet.newOutputFile()
        return made, spec, key

    def data(self, part: str, rows: Sequence[tuple[int, int]]) -> Any:
        writer = self.writers.newDataWriter(*self.place(part))
        for i, v in rows:
            writer.write(self.record(i, part, v))
        writer.close()
        return writer.toDataFile()

    def equality_deletes(self, part: str, ids: Sequence[int]) -> Any:
        writer = self.writers.newEqualityDeleteWriter(*self.place(part))
        for i in ids:
            writer.write(self.record(i))
        writer.close()
        return writer.toDeleteFile()

    def positions(self, part: str, path: str, rows: Sequence[int]) -> list[Any]:
        """Position deletes, or a deletion vector, which format version 3 demands."""
        if self.version >= 3:
            writer = self.iceberg.deletes.BaseDVFileWriter(self.puffin, _Nothing())
            for row in rows:
                writer.delete(path, row, self.table.spec(), self.partition(part))
            writer.close()
            return list(writer.result().deleteFiles())
        writer = self.writers.newPositionDeleteWriter(*self.place(part))
        for row in rows:
            writer.write(self.iceberg.deletes.PositionDelete.create().set(path, row))
        writer.close()
        return [writer.toDeleteFile()]

    def set(self, *files: Any) -> Any:
        return self.gateway.jvm.java.util.HashSet(list(files))

    @property
    def location(self) -> str:
        """The path of the present metadata."""
        self.table.refresh()
        found: str = self.table.operations().current().metadataFileLocation()
        return found
