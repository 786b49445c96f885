"""An archive of the classes that Spark's JVM loads. The next JVM maps it instead of loading them.

A JVM without an archive writes one as it ends, beside the classes that Java itself has archived.
The file's name tells apart what an archive depends on: the Java and the Spark installation, and the
class path. Java checks it once more and loads classes as usual if the file does not fit. A JVM that
is killed while it writes leaves a file without a header, which is not used and is written again.

    first session     -XX:ArchiveClassesAtExit=FOLDER/classes-1f0c.jsa      writes as it ends
    later sessions    -XX:SharedArchiveFile=FOLDER/classes-1f0c.jsa         map it
"""

from __future__ import annotations

import os
import shutil
from hashlib import sha256
from pathlib import Path

import pyspark

HEADER_BYTES = 4
"""The count of bytes at the start of a file that are zero until it is complete."""
SILENT_LOG = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""Options that leave out lines about classes without a place in an archive."""


def java_options(folder: Path, class_path: str) -> str:
    """Return the JVM options, a text without a space at its ends, by which an archive of loaded
    classes in ``folder`` is used. Without a complete archive they let the JVM write one as it ends.
    The folder is made; an ``OSError`` passes if it cannot be.

    The archive is a file for Java's sharing of class data. Each installation of Java and Spark,
    with each class path, has one of its own. ``class_path``: the text in front of Spark's own class
    path, perhaps empty.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder.resolve() / f"classes-{_installation(class_path)}.jsa"
    option = "SharedArchiveFile" if is_complete(path) else "ArchiveClassesAtExit"
    return f'"-XX:{option}={path}" {SILENT_LOG}'


def is_complete(path: Path) -> bool:
    """Return True if an archive exists at ``path`` and was written to its end. Return False if it
    cannot be read.
    """
    try:
        with path.open("rb") as file:
            return any(file.read(HEADER_BYTES))
    except OSError:
        return False


def _installation(class_path: str) -> str:
    """Return a text of 16 hexadecimal digits that differs between installations of Java and Spark,
    and between class paths.
    """
    java = shutil.which("java", path=_java_path())
    home = Path(java).resolve().parents[1] if java else Path()
    release = home / "release"
    parts = [str(home), release.read_text() if release.is_file() else ""]
    parts += [pyspark.__version__, str(Path(pyspark.__file__).resolve()), class_path]
    return sha256("\n".join(parts).encode()).hexdigest()[:16]


def _java_path() -> str | None:
    """Return the search path by which Spark finds Java: the folder ``bin`` of ``JAVA_HOME``. None
    stands for the search path of the process.
    """
    home = os.environ.get("JAVA_HOME")
    return os.fspath(Path(home) / "bin") if home else None
