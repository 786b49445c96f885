"""A file system of the JVM for local disks, which starts no process for a file.

Hadoop's own starts a ``chmod`` for each file that it creates, and one more for its checksum. The
jar beside this module has a class that sets permissions by a system call. ``configure`` puts the
jar on the class path of a JVM that starts on this machine. A query uses the class if it is there
and tasks run in that JVM: executors of a cluster do not have it.
"""

from __future__ import annotations

from pathlib import Path

CLASS = "dovetail.LocalDisk"
"""The class. It extends ``HADOOP``, and does everything else as that does."""
HADOOP = "org.apache.hadoop.fs.LocalFileSystem"
"""Hadoop's own class for local disks."""
JAR = Path(__file__).parent / "java" / "local_disk.jar"
