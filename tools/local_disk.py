"""Compiles the class of local files for the JVM: ``python tools/local_disk.py`` writes its jar.

The wheel has the jar, so users need no compiler. A test compiles the class again and compares.
"""

from __future__ import annotations

import io
import subprocess
import tempfile
import zipfile
from pathlib import Path

import pyspark

from dovetail.platform.local_disk import JAR

SOURCE = JAR.with_name("LocalDisk.java")
_EPOCH = (1980, 1, 1, 0, 0, 0)


def classes() -> dict[str, bytes]:
    """Return the compiled classes by their paths in a jar. It needs the ``javac`` of a JDK 17."""
    (hadoop,) = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api*.jar")
    with tempfile.TemporaryDirectory() as folder:
        command = ["javac", "--release", "17", "-g:none", "-d", folder, "-cp", str(hadoop)]
        subprocess.run([*command, str(SOURCE)], check=True)
        compiled = sorted(Path(folder).rglob("*.class"))
        return {str(path.relative_to(folder)): path.read_bytes() for path in compiled}


def compiler_version(javac: str) -> bytes:
    """Return what the compiler at the path ``javac`` says of its version, such as ``javac 17``."""
    return subprocess.run([javac, "-version"], check=True, capture_output=True).stdout


def jar(contents: dict[str, bytes]) -> bytes:
    """Return a jar of these classes as bytes, always the same for the same classes."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for name, content in contents.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content)
    return written.getvalue()


if __name__ == "__main__":
    JAR.write_bytes(jar(classes()))
