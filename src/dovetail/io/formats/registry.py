"""Schema registries: the schemas of a subject, by their ids.

``HttpRegistry`` speaks the API of Confluent's registry, like Apicurio, Karapace and Redpanda.
``FileRegistry`` reads a file with the answer of that API to ``GET /schemas``. Registries are asked
when a query is built, never by its workers.
"""

from __future__ import annotations

import base64
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from http.client import HTTPException
from os import fspath
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

from dovetail.base import validation
from dovetail.base.validation import Rule, Seconds, validated
from dovetail.errors import ConfigurationError

SchemaType: TypeAlias = Literal["AVRO", "PROTOBUF", "JSON"]

_MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_NOT_FOUND: Final = 404


@dataclass(frozen=True)
class Registered:
    """A version of a subject in a registry."""

    id: int
    """The id of the schema, unique in the registry."""
    version: int
    """The version within the subject, from 1."""
    schema: str
    """The text of the schema; JSON unless it is Protobuf's."""


class Registry(ABC):
    """A store of schemas. A schema has an id, and is a version of a subject, the name under which
    versions of one schema are kept.
    """

    @abstractmethod
    def versions(self, subject: str) -> Sequence[Registered]:
        """Return the versions of a subject, at least one. The last is the one by which new records
        are written. Each schema id occurs once. The others are in ascending order, but deleted
        versions come first.

        Raises ``ConfigurationError`` for an unknown subject, or if the registry cannot be asked.
        """

    @abstractmethod
    def id_of(self, subject: str, schema: str, type_: SchemaType) -> int:
        """Return the id of a schema under a subject; register the schema if it is new there and the
        registry can. ``schema``: the text. ``type_``: its language.

        Raises ``ConfigurationError`` if the registry neither has nor registers the schema, or
        cannot be asked.
        """

    def refuse(self, problem: str, remedy: str) -> ConfigurationError:
        """Return, not raise, the ``ConfigurationError`` of this registry. ``problem``: the rest of
        a sentence that begins with the registry's address. ``remedy``: what the user can do.
        """
        return ConfigurationError(f"registry {self}", problem, remedy)


@dataclass(frozen=True)
class FileRegistry(Registry):
    """The schemas in a file: a JSON list of objects with ``subject``, ``version``, ``id`` and
    ``schema``. A schema is a text with its JSON, or the JSON itself.
    """

    path: str
    """The path of the file, which is read when the first subject is asked for."""

    def __str__(self) -> str:
        return self.path

    @cached_property
    def _subjects(self) -> Mapping[str, Sequence[Registered]]:
        """The versions of each subject in the file, by the subject's name, in ascending order; the
        file is read once. Of several versions with one schema id, only the last one is listed.
        Raises ``ConfigurationError`` if the file is unreadable, or if a version lacks ``subject``,
        ``version``, ``id`` or ``schema``.
        """
        subjects: dict[str, dict[int, Registered]] = {}
        try:
            listed = json.loads(Path(self.path).read_text("utf-8"))
            for version in sorted(listed, key=lambda version: version["version"]):
                schema = version["schema"]
                text = schema if isinstance(schema, str) else json.dumps(schema)
                registered = Registered(version["id"], version["version"], text)
                by_id = subjects.setdefault(version["subject"], {})
                by_id.pop(registered.id, None)
                by_id[registered.id] = registered
            return {subject: [*by_id.values()] for subject, by_id in subjects.items()}
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise self.refuse(
                f"cannot be read: {type(error).__name__}: {error}",
                "Give what a registry answers to GET /schemas: a list of objects with subject, "
                "version, id and schema",
            ) from error

    def versions(self, subject: str) -> Sequence[Registered]:
        """Return the versions of a subject in the file in ascending order, at least one. Of several
        versions with one schema id, only the last one is returned.

        Raises ``ConfigurationError`` for an unknown subject, and for an unreadable file.
        """
        if subject not in self._subjects:
            raise self.refuse(f"has no subject {subject!r}", "Name another in subject=")
        return self._subjects[subject]

    def id_of(self, subject: str, schema: str, type_: SchemaType) -> int:
        """Return the id that the file has for the schema of a subject; equal JSON is the same
        schema. Nothing is registered, and ``type_`` is not used. Raises ``ConfigurationError``
        for a schema or subject that the file lacks, and for an unreadable file.
        """
        for version in self.versions(subject):
            if _is_same_schema(version.schema, schema):
                return version.id
        raise self.refuse(
            f"has no version of {subject!r} with the schema that is written",
            "Add it to the file, or write with the schema of a version: schema=",
        )


@dataclass(frozen=True)
class HttpRegistry(Registry):
    """A registry behind a URL, with Confluent's API."""

    url: str
    """The address of the registry, with or without a slash at its end."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The headers of each request besides the media types; they may hold secrets."""
    timeout_s: float = 30.0
    """The limit of a request in seconds."""

    def __str__(self) -> str:
        return self.url

    def versions(self, subject: str) -> Sequence[Registered]:
        """Return the versions of a subject: the deleted ones, and then the others, each group in
        ascending order. Of several versions with one schema id, only the last one in this order is
        returned.

        Records may still be written by a deleted version, so it is read, too. If all versions are
        deleted, the last of them counts as the latest.

        Raises ``ConfigurationError`` for an unknown subject, for schemas with references, and if
        the registry does not answer or answers with an error.
        """
        path = f"/subjects/{quote(subject, safe='')}/versions"
        version_numbers = self._send_request("GET", f"{path}?deleted=true")
        if version_numbers is None:
            raise self.refuse(f"has no subject {subject!r}", "Name another in subject=")
        live = set(self._send_request("GET", path) or ())
        answers = (
            self._send_request("GET", f"{path}/{version_number}?deleted=true")
            for version_number in sorted(
                version_numbers, key=lambda number: (number in live, number)
            )
        )
        stored_versions = [version for version in answers if version is not None]
        for version in stored_versions:
            if version.get("references"):
                raise self.refuse(
                    f"has references to other schemas in version {version['version']} of "
                    f"{subject!r}",
                    "Give the whole schema in schema=, and its number in the registry's file",
                )
        last_by_id = {version["id"]: version["version"] for version in stored_versions}
        return [
            Registered(version["id"], version["version"], version["schema"])
            for version in stored_versions
            if last_by_id[version["id"]] == version["version"]
        ]

    def id_of(self, subject: str, schema: str, type_: SchemaType) -> int:
        """Return the id of ``schema`` under ``subject``. Look it up before registering it, so that
        a registry may be read-only. ``type_``: the language of the schema.

        Raises ``ConfigurationError`` if the registry neither knows nor registers the schema, and if
        it does not answer or answers with an error.
        """
        path = f"/subjects/{quote(subject, safe='')}"
        body = {"schema": schema} | ({} if type_ == "AVRO" else {"schemaType": type_})
        registered = self._send_request("POST", path, body)
        if registered is None:
            registered = self._send_request("POST", f"{path}/versions", body)
        if registered is None:
            raise self.refuse(f"registers nothing for {subject!r}", "Is it open to new schemas?")
        return int(registered["id"])

    def _send_request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a request and return the decoded JSON, or None on HTTP 404. ``method``: ``GET`` or
        ``POST``. ``path``: the rest of the URL, behind ``self.url``. ``body``: data to send as
        JSON, None for nothing.

        Raises ``ConfigurationError`` for other statuses of an error, and for an answer that is no
        JSON, no HTTP or not whole. So it does if there is no answer.
        """
        data = None if body is None else json.dumps(body).encode()
        headers = {"Accept": _MEDIA_TYPE, **self.headers}
        if data is not None:
            headers["Content-Type"] = _MEDIA_TYPE
        request = Request(self.url.rstrip("/") + path, data, headers, method=method)  # noqa: S310
        try:
            with urlopen(request, timeout=self.timeout_s) as answer:  # noqa: S310 -- http, by its rule
                return json.load(answer)
        except HTTPError as error:
            if error.code == _NOT_FOUND:
                return None
            detail = error.read().decode("utf-8", "replace")[:300]
            raise self.refuse(
                f"answers {error.code} to {method} {path}: {detail}",
                "Mend what it names; 409 says that the schema is not compatible with the "
                "subject's others, 401 that auth= is missing or wrong",
            ) from error
        except (URLError, OSError, ValueError, HTTPException) as error:
            raise self.refuse(
                f"does not answer {method} {path}: {error}", "Check its address and that it runs"
            ) from error


Address: TypeAlias = Annotated[
    validation.Path,
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
def registry(address: Address, *, auth: Auth | None = None, timeout_s: Seconds = 30.0) -> Registry:
    """Connect to a schema registry, at a URL or in a file.

    A schema registry keeps the versions of each subject's schema, and gives every schema an
    id. The formats ``avro`` and ``protobuf`` ask it.

    Parameters
    ----------
    address : str or Path
        The URL of a registry with Confluent's API, which begins with ``http://`` or
        ``https://``. Apicurio, Karapace and Redpanda have this API, too. Any other address
        is the path of a file with a registry's answer to ``GET /schemas``.
    auth : tuple of str or str, optional
        A user and a password, or a bearer token. By default the user and the password
        that the URL has before an ``@``. Ignored for a file.
    timeout_s : float, default 30.0
        The limit of a request, in seconds. Ignored for a file.

    Returns
    -------
    Registry
        The registry. It is not asked yet, and a file is not read yet.

    Raises
    ------
    PlanError
        If an argument is of another type, or the address is empty.
    ConfigurationError
        In a reader or a sink, if the registry does not answer, or does not know the
        subject.

    See Also
    --------
    avro : Records in Avro.
    protobuf : Messages of Protobuf.

    Notes
    -----
    The registry is asked while a query is built, never by its workers. It gives the
    versions of the subjects that are read. Deleted ones are among them, as records may be
    written by them, but none of them is the latest. It also gives the id of a
    schema that is written, and registers a schema that it does not know. A file registers
    nothing: a schema that it lacks is a ``ConfigurationError``. So is, at a URL, a version
    with references to other schemas. In a file a schema may stand as JSON in place of its text.

    Examples
    --------
    >>> import json, pathlib, tempfile
    >>> import dovetail as dt
    >>> folder = tempfile.TemporaryDirectory()
    >>> file = pathlib.Path(folder.name, "schemas.json")
    >>> version = {"subject": "orders-value", "version": 1, "id": 7, "schema": '"string"'}
    >>> _ = file.write_text(json.dumps([version]))
    >>> dt.formats.registry(file).versions("orders-value")
    [Registered(id=7, version=1, schema='"string"')]
    >>> dt.formats.registry("http://localhost:8081", auth=("user", "secret"))
    HttpRegistry(url='http://localhost:8081', timeout_s=30.0)
    """
    where = fspath(address)
    if not where.startswith(("http://", "https://")):
        return FileRegistry(where)
    parts = urlsplit(where)
    if parts.username is not None:
        where = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        auth = auth or (unquote(parts.username), unquote(parts.password or ""))
    headers = {}
    if isinstance(auth, tuple):
        coded = base64.b64encode(":".join(auth).encode()).decode()
        headers = {"Authorization": f"Basic {coded}"}
    elif auth is not None:
        headers = {"Authorization": f"Bearer {auth}"}
    return HttpRegistry(where, headers, timeout_s)


def _is_same_schema(schema: str, other: str) -> bool:
    """Return True if ``schema`` and ``other`` are equal as JSON, or equal texts if one of them is
    no JSON.
    """
    try:
        return bool(json.loads(schema) == json.loads(other))
    except ValueError:
        return schema == other
