"""A jar with which Hadoop's local file system sets modes and reads links by calls. Without Hadoop's
native library it starts a process for each: some hundred in a few micro-batches.

The two classes that do so are Hadoop's own, but for the class whose commands they run.
"""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

SOURCE = Path(__file__).with_name("Shell.java")
FOLDER = "org/apache/hadoop/fs"
CALLERS = ("RawLocalFileSystem", "FileUtil")
OLD, NEW = b"org/apache/hadoop/util/Shell", f"{FOLDER}/Shell".encode()
TEXT, LONG, DOUBLE = 1, 5, 6
SIZES = {3: 4, 4: 4, LONG: 8, DOUBLE: 8, 7: 2, 8: 2, 15: 3, 16: 2, 19: 2, 20: 2} | dict.fromkeys(
    (9, 10, 11, 12, 17, 18), 4
)
"""Of a class file's constants, by their tags."""


def make(jar: Path, jars: Path) -> None:
    """Write the jar, of what is among Spark's jars."""
    (hadoop,) = jars.glob("hadoop-client-api-*.jar")
    with zipfile.ZipFile(hadoop) as given, zipfile.ZipFile(jar, "w") as made:
        for name in CALLERS:
            path = f"{FOLDER}/{name}.class"
            made.writestr(path, redirected(given.read(path)))
        made.writestr(f"{FOLDER}/Shell.class", compiled(jars))


def redirected(code: bytes) -> bytes:
    """A class whose references to the one class are to the other."""
    (count,) = struct.unpack_from(">H", code, 8)
    made, at, number, found = bytearray(code[:10]), 10, 1, 0
    while number < count:
        tag = code[at]
        size = 2 + struct.unpack_from(">H", code, at + 1)[0] if tag == TEXT else SIZES[tag]
        constant = code[at : at + 1 + size]
        if tag == TEXT and constant[3:] == OLD:
            constant = struct.pack(">BH", TEXT, len(NEW)) + NEW
            found += 1
        made += constant
        at += 1 + size
        number += 2 if tag in {LONG, DOUBLE} else 1
    assert found == 1, "Hadoop's class is another one than it was"
    return bytes(made + code[at:])


def compiled(jars: Path) -> bytes:
    """The class, by the compiler that Spark brings: there may be none of Java's own."""
    names = ("janino", "commons-compiler", "hadoop-client-api", "hadoop-client-runtime", "slf4j")
    path = ":".join(str(jar) for name in names for jar in jars.glob(f"{name}-*.jar"))
    (bridge,) = jars.glob("py4j-*.jar")
    port = launch_gateway(jarpath=str(bridge), classpath=path, die_on_exit=True)
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    try:
        compiler = gateway.jvm.org.codehaus.janino.SimpleCompiler()
        compiler.cook(SOURCE.read_text())
        (code,) = compiler.getBytecodes().values()
        return bytes(code)
    finally:
        gateway.shutdown()
