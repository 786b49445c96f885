"""Schema registries: the schemas of a subject, by their numbers.

``HttpRegistry`` speaks the API of Confluent's registry, which others (Apicurio, Karapace,
Redpanda) speak as well; ``FileRegistry`` reads a file of what that API answers to
``GET /schemas``. They are asked when a query is built, never by its workers.
"""

from __future__ import annotations

import base64
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import fspath
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from dovetail import arguments
from dovetail.arguments import Rule, Seconds, validated
from dovetail.errors import ConfigurationError

SchemaType: TypeAlias = Literal["AVRO", "PROTOBUF", "JSON"]

_MEDIA: Final = "application/vnd.schemaregistry.v1+json"
_ABSENT: Final = 404


@dataclass(frozen=True)
class Registered:
    """A version of a subject: its schema's number and text."""

    id: int
    version: int
    schema: str


class Registry(ABC):
    """Where schemas are registered: each has a number, and is a version of a subject."""

    @abstractmethod
    def versions(self, subject: str) -> Sequence[Registered]:
        """All versions of a subject, the oldest one first; ``ConfigurationError`` where there is no
        such subject or the registry cannot be asked.
        """

    @abstractmethod
    def id_of(self, subject: str, schema: str, type_: SchemaType) -> int:
        """The number of a schema of a subject, which is registered if it is not yet."""

    def refuse(self, problem: str, remedy: str) -> ConfigurationError:
        """What is raised where it does not answer as it should."""
        return ConfigurationError(f"registry {self}", problem, remedy)


@dataclass(frozen=True)
class FileRegistry(Registry):
    """The schemas of a file, a list of objects with ``subject``, ``version``, ``id`` and
    ``schema``.
    """

    path: str

    def __str__(self) -> str:
        return self.path

    @cached_property
    def _schemas(self) -> list[Mapping[str, Any]]:
        try:
            listed = json.loads(Path(self.path).read_text("utf-8"))
            return sorted(listed, key=lambda one: (one["subject"], one["version"]))
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise self.refuse(
                f"cannot be read: {type(error).__name__}: {error}",
                "Give what a registry answers to GET /schemas: a list of objects with subject, "
                "version, id and schema",
            ) from error

    def versions(self, subject: str) -> Sequence[Registered]:
        """Those of the file."""
        found = [one for one in self._schemas if one["subject"] == subject]
        if not found:
            raise self.refuse(f"has no subject {subject!r}", "Name another in subject=")
        return [Registered(one["id"], one["version"], one["schema"]) for one in found]

    def id_of(self, subject: str, schema: str, type_: SchemaType) -> int:
        """That of the file; nothing is registered."""
        for one in self.versions(subject):
            if _same(one.schema, schema):
                return one.id
        raise self.refuse(
            f"has no version of {subject!r} with the schema that is written",
            "Add it to the file, or write with the schema of a version: schema=",
        )


@dataclass(frozen=True)
class HttpRegistry(Registry):
    """A registry behind a URL."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = 30.0

    def __str__(self) -> str:
        return self.url

    def versions(self, subject: str) -> Sequence[Registered]:
        """Deleted ones, too: records may still be theirs."""
        path = f"/subjects/{quote(subject, safe='')}/versions"
        found = self._asked("GET", f"{path}?deleted=true")
        if found is None:
            raise self.refuse(f"has no subject {subject!r}", "Name another in subject=")
        answers = (self._asked("GET", f"{path}/{version}?deleted=true") for version in found)
        read = [one for one in answers if one is not None]
        for one in read:
            if one.get("references"):
                raise self.refuse(
                    f"has references to other schemas in version {one['version']} of {subject!r}",
                    "Give the whole schema in schema=, and its number in the registry's file",
                )
        return [Registered(one["id"], one["version"], one["schema"]) for one in read]

    def id_of(self, subject: str, schema: str, type_: SchemaType) -> int:
        """It is looked up first, so that a registry may be closed to new schemas."""
        path = f"/subjects/{quote(subject, safe='')}"
        body = {"schema": schema} | ({} if type_ == "AVRO" else {"schemaType": type_})
        found = self._asked("POST", path, body)
        if found is None:
            found = self._asked("POST", f"{path}/versions", body)
        if found is None:
            raise self.refuse(f"registers nothing for {subject!r}", "Is it open to new schemas?")
        return int(found["id"])

    def _asked(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """What it answers; None where it says that there is no such thing."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Accept": _MEDIA, **self.headers}
        if data is not None:
            headers["Content-Type"] = _MEDIA
        request = Request(self.url.rstrip("/") + path, data, headers, method=method)  # noqa: S310
        try:
            with urlopen(request, timeout=self.timeout_s) as answer:  # noqa: S310 -- http, by its rule
                return json.load(answer)
        except HTTPError as error:
            if error.code == _ABSENT:
                return None
            said = error.read().decode("utf-8", "replace")[:300]
            raise self.refuse(
                f"answers {error.code} to {method} {path}: {said}",
                "Mend what it names; 409 says that the schema is not compatible with the "
                "subject's others, 401 that auth= is missing or wrong",
            ) from error
        except (URLError, OSError, ValueError) as error:
            raise self.refuse(
                f"does not answer {method} {path}: {error}", "Check its address and that it runs"
            ) from error


Address: TypeAlias = Annotated[
    arguments.Path,
    Rule("the URL of a schema registry or the path of a file of schemas", lambda at: at != ""),
]
Auth: TypeAlias = Annotated[
    tuple[str, ...] | str,
    Rule(
        "(user, password) or a bearer token",
        lambda auth: isinstance(auth, str) or (isinstance(auth, tuple) and len(auth) == 2),
    ),
]


@validated
def registry(address: Address, *, auth: Auth | None = None, timeout: Seconds = 30.0) -> Registry:
    """A schema registry: one that speaks Confluent's API at a URL, or a file of its schemas, as
    ``GET /schemas`` answers them.

    ``auth``: user and password, or a bearer token; ``timeout``: how many seconds a request may
    take. It is asked when a query is built, for the versions of the subjects that it reads, and
    gives the number of a schema that is written, which it registers if it does not know it.
    """
    where = fspath(address)
    if not where.startswith(("http://", "https://")):
        return FileRegistry(where)
    headers = {}
    if isinstance(auth, tuple):
        coded = base64.b64encode(":".join(auth).encode()).decode()
        headers = {"Authorization": f"Basic {coded}"}
    elif auth is not None:
        headers = {"Authorization": f"Bearer {auth}"}
    return HttpRegistry(where, headers, timeout)


def _same(one: str, other: str) -> bool:
    """Whether two schemas are the same JSON."""
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return one == other
