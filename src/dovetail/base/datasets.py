"""Names of datasets outside of a query, by OpenLineage's convention."""

from __future__ import annotations

import re
from os.path import normpath
from pathlib import Path
from typing import NamedTuple

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(.*)", re.DOTALL)
"""A path with a scheme, as Hadoop reads it: scheme, host and path. The path may have any letter."""


class Dataset(NamedTuple):
    """A table, a topic or a folder."""

    namespace: str
    """The system that it is in, such as ``kafka://broker:9092``."""
    name: str
    """Its name within the system."""


def folder(path: str) -> Dataset:
    """Return the dataset of a folder, or of the table that lies there. ``path``: a path or a URI. A
    path without a scheme, or with ``file:``, has the namespace ``file``. A relative path starts at
    the working directory of this process.

    Any other URI has scheme and host as its namespace. Its name has no slashes at its ends; the
    root is ``/``.

    >>> folder("s3a://lake/orders/")
    Dataset(namespace='s3a://lake', name='orders')
    >>> folder("/data/orders")
    Dataset(namespace='file', name='/data/orders')
    """
    uri = _URI.fullmatch(path)
    scheme, host, name = ("file", None, path) if uri is None else uri.groups()
    if scheme.lower() == "file":
        return Dataset("file", str(Path(name).absolute()))
    return Dataset(f"{scheme.lower()}://{host or ''}", name.strip("/") or "/")


def normal_folder(path: str) -> Dataset:
    """Return the dataset of a folder, in whatever way it is written: without ``.`` and ``..``, and
    without slashes at its ends or next to each other. Links are not followed.

    >>> normal_folder("./lake/../lake/orders/") == normal_folder("lake//orders")
    True
    """
    namespace, name = folder(path)
    return Dataset(namespace, normpath(name))


def topic(servers: str, name: str) -> Dataset:
    """Return the dataset of the Kafka topic ``name``. ``servers``: addresses with commas between
    them, as Kafka's clients take them; the first one counts.

    >>> topic("a:9092,b:9092", "orders")
    Dataset(namespace='kafka://a:9092', name='orders')
    """
    return Dataset(f"kafka://{re.split(',', servers)[0].strip()}", name)
