"""Lookups in Redis: a row is a hash or a JSON text under a key that names it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from string import Formatter
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.arrays.timeline import Mask
from dovetail.base.error_text import first_line
from dovetail.base.packages import import_package
from dovetail.base.validation import Natural, Seconds, Text, validated
from dovetail.errors import DataError, PlanError
from dovetail.laws.joins.delta_join import NO_GROUP
from dovetail.lookup_sources.conversion import is_text, rows_as_table, texts_as_table
from dovetail.lookup_sources.keys import positions_among, refuse_types
from dovetail.lookup_sources.retry import call_with_retries
from dovetail.lookup_sources.source import DeclaredSource, Found, declared_fields

Form: TypeAlias = Literal["hash", "json"]
"""The form of a row: a hash with a field for each column, or a JSON object as a text."""


@dataclass(frozen=True, kw_only=True)
class RedisLookup(DeclaredSource):
    """The rows of one table in Redis as a lookup source."""

    url: str = field(repr=False)
    """The server's URL. It may have a password, so ``repr`` omits it."""
    pattern: str
    """The key of a row, with the columns of its primary key in braces."""
    form: Form = "hash"
    """The form of a row."""

    @property
    def title(self) -> str:
        """The word ``redis`` and the pattern of keys, such as ``redis order:{id}``, for errors and
        ``explain``. It has none of the connection's secrets.
        """
        return f"redis {self.pattern}"

    def open(self, schema: pa.Schema) -> RedisReader:
        """Return a reader whose rows have the columns of ``schema``. The reader connects at its
        first lookup. Raises ``ConfigurationError`` without the package redis.
        """
        return RedisReader(self, schema)


class RedisReader:
    """A reader with one client, made at the first lookup and again after a failed one."""

    def __init__(self, source: RedisLookup, schema: pa.Schema) -> None:
        self._source = source
        self._schema = schema
        self._values = pa.schema([column for column in schema if column.name not in source.key])
        """The columns that are read: those of the primary key are known from the keys."""
        self._redis = _import_redis(source.title)
        self._client: Any = None

    def rows(self, by: Sequence[str], keys: pa.Table) -> Found:
        """Return the rows whose columns ``by`` equal one of ``keys``, in any order, all read in one
        transaction. Keys in Redis are made of whole primary keys, so ``by`` must name all columns
        of the primary key. Rows that differ in other columns of ``by`` are left out.

        Also return the position of each row's key among ``keys``, and a mask of the unfit keys. A
        key is unfit if another one could have the same name in Redis. ``keys``: one column for each
        of ``by``, distinct, without nulls; without keys only the connection is checked. The schema
        must have all of ``by``.

        Raises ``ConfigurationError`` if no attempt succeeds. Raises ``DataError`` for a primary key
        that is no whole number or text, for values that do not fit, and for rows of another form.
        """
        source = self._source
        keys = keys.rename_columns(list(by))
        primary = keys.select(list(source.key)).group_by(list(source.key)).aggregate([])
        primary = primary.select(list(source.key))
        refuse_types(
            source.title,
            source.key,
            primary,
            (pa.types.is_integer, is_text),
            "Join by whole numbers or texts",
        )
        primary = primary.filter(pa.array(_find_unshared_keys(source, primary)))
        names = _redis_keys(source.pattern, primary)
        replies = call_with_retries(source, lambda: self._look_up_once(names))
        is_there = pa.array([reply is not None for reply in replies], pa.bool_())
        values = self._replies_as_table([reply for reply in replies if reply is not None])
        stored = primary.filter(is_there)
        columns = {name: stored[name] for name in source.key}
        columns |= dict(zip(values.schema.names, values.columns, strict=True))
        rows = pa.table([columns[column.name] for column in self._schema], schema=self._schema)
        key = positions_among(keys, rows.select(list(by)))
        has_key = key != NO_GROUP
        fit = _find_unshared_keys(source, keys)
        return Found(rows.filter(pa.array(has_key)), key[has_key], ~fit)

    def close(self) -> None:
        """Close the client's connection, if there is one. A later lookup connects again."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _look_up_once(self, names: Sequence[bytes]) -> list[Any]:
        """Return the reply for each of Redis' keys ``names``, in order: a list of a hash's values,
        the bytes of a JSON text, or None if the key is not there. Make a client if there is none.

        The values of a hash, as bytes, are those of the schema's columns outside the primary key,
        in the schema's order; None for a missing field. A hash without any of them is there, too.
        Without names only the connection is checked, and the list is empty.

        Raises ``OSError`` if another attempt may help (a lost connection, a time-out), else
        ``DataError``. An error closes the client, and is not in the chain of the error raised,
        since it may show the URL.
        """
        errors = self._redis.exceptions
        try:
            if self._client is None:
                self._client = self._new_client()
            return self._fetch_replies(names)
        except errors.RedisError as error:
            self.close()
            if isinstance(error, (errors.ConnectionError, errors.TimeoutError)):
                raise OSError(first_line(error)) from None
            raise DataError(
                self._source.title,
                f"its rows cannot be read: {first_line(error)}",
                f"See that they have the form {self._source.form!r} and can be read by its user",
            ) from None

    def _new_client(self) -> Any:
        """Return a new client for the source's URL, whose replies are bytes. The client connects at
        its first command, waits for ``timeout_s`` at most, and does not retry by itself.
        """
        wait_s = self._source.timeout_s
        client = self._redis.Redis.from_url(
            self._source.url,
            socket_timeout=wait_s,
            socket_connect_timeout=wait_s,
            retry=self._redis.retry.Retry(self._redis.backoff.NoBackoff(), 0),
        )
        client.connection_pool.connection_kwargs["decode_responses"] = False
        return client

    def _fetch_replies(self, names: Sequence[bytes]) -> list[Any]:
        """Return the reply for each of Redis' keys ``names``, in order: a list of values for a
        hash, bytes for a JSON text, None for a missing key.

        The values of a hash, as bytes, are those of the schema's columns outside the primary key,
        in the schema's order; None for a missing field. A hash without any of them is there, too.
        All keys are read in one transaction. Without names only check the connection, and return an
        empty list. The client must be there; its errors pass.
        """
        if not names:
            self._client.ping()
            return []
        # A transaction sees one moment.
        pipeline = self._client.pipeline(transaction=True)
        fields = self._values.names
        for name in names:
            if self._source.form == "json":
                # Unlike MGET, GET fails for a key of another type.
                pipeline.get(name)
                continue
            # A hash that has none of the fields still is a row.
            pipeline.exists(name)
            if fields:
                pipeline.hmget(name, fields)
        replies = pipeline.execute()
        if self._source.form == "json":
            return list(replies)
        if not fields:
            return [[] if there else None for there in replies]
        return [
            values if there else None
            for there, values in zip(replies[::2], replies[1::2], strict=True)
        ]

    def _replies_as_table(self, replies: Sequence[Any]) -> pa.Table:
        """Return the replies, none of them None, as rows in their order, with the schema's columns
        outside the primary key. ``replies``: a list of bytes for each hash, or the bytes of each
        JSON text. A missing field is null. Raises ``DataError`` for values that do not fit, and for
        bytes that are no JSON object.
        """
        title, schema = self._source.title, self._values
        if self._source.form == "hash":
            return texts_as_table(title, list(zip(*replies, strict=True)), schema)
        has_decimal = any(pa.types.is_decimal(type_) for type_ in schema.types)
        decoder = json.JSONDecoder(parse_float=Decimal if has_decimal else _float_or_decimal)
        rows = [
            tuple(map(_json_object(title, decoder, text).get, schema.names)) for text in replies
        ]
        return rows_as_table(title, rows, schema, (), typeless=True)


def _float_or_decimal(text: str) -> float | Decimal:
    """Return a JSON number with a fraction or an exponent as a float; as a decimal if it is too
    large for one. Python would take it for infinity.
    """
    number = float(text)
    return Decimal(text) if math.isinf(number) else number


def _json_object(title: str, decoder: json.JSONDecoder, text: bytes) -> dict[str, Any]:
    """Return the JSON object in ``text``, UTF-8, as ``decoder`` reads it. Raises ``DataError`` for
    other JSON values and for bytes that are no JSON. ``title``: the source in errors.
    """
    try:
        value = decoder.decode(text.decode())
    except ValueError as error:
        raise DataError(title, f"a value is no JSON text: {error}", "Store JSON objects") from error
    if not isinstance(value, dict):
        raise DataError(title, f"a value is no JSON object: {value!r}", "Store JSON objects")
    return value


def _redis_keys(pattern: str, primary: pa.Table) -> list[bytes]:
    """Return the key in Redis of each row of ``primary``, in order, made by the pattern and encoded
    in UTF-8. ``pattern``: a text with columns in braces, such as ``orders:{id}``; ``{{`` and ``}}``
    are literal braces. ``primary``: the columns of the primary keys by their names, without nulls.
    """
    parts: list[Any] = []
    for literal, name, *_ in Formatter().parse(pattern):
        parts.append(pa.scalar(literal))
        if name is not None:
            parts.append(primary[name].cast(pa.string()))
    names = pc.binary_join_element_wise(*parts, "")
    return [name.encode() for name in names.to_pylist()]


def _find_unshared_keys(source: RedisLookup, keys: pa.Table) -> Mask:
    """Return a mask of the n rows of ``keys`` whose key in Redis no other primary key can have:
    bool[n].

    A text followed by another column must not contain the first character of the text between
    them. With the pattern ``{a}:{b}`` both ``("x:y", "z")`` and ``("x", "y:z")`` would be
    ``x:y:z``. ``keys``: without nulls, with all columns of the pattern by name; others do not
    count.
    """
    fit = np.ones(keys.num_rows, np.bool_)
    for name, separator in _separators(source.pattern):
        if is_text(keys.schema.field(name).type):
            fit &= ~pc.match_substring(keys[name], separator[0]).to_numpy()
    return fit


def _separators(pattern: str) -> list[tuple[str, str]]:
    """Return a pair for each column of a pattern but the last, in order: its name, and the text
    between it and the next column. The text may be empty unless ``_columns_of_pattern`` has checked
    the pattern. Empty for a pattern with one column.
    """
    parts = [part for part in Formatter().parse(pattern) if part[1] is not None]
    return [(str(part[1]), after[0]) for part, after in pairwise(parts)]


def _columns_of_pattern(title: str, pattern: str) -> list[str]:
    """Return the columns that a pattern names in braces, in order. ``title``: the source in errors.

    Raises ``PlanError`` if the pattern cannot be read, names no column or one twice, or has formats
    in braces. Raises it, too, if no text stands between two columns, or one that begins with a
    letter, a digit, ``+``, ``-`` or a dot.
    """
    try:
        parts = list(Formatter().parse(pattern))
    except ValueError as error:
        raise PlanError(
            title, f"the pattern cannot be read: {error}", "Write it as 'orders:{id}'"
        ) from None
    named = [part for part in parts if part[1] is not None]
    names = [str(part[1]) for part in named]
    plain = all(
        name and not part[2] and not part[3] for name, part in zip(names, named, strict=True)
    )
    if not names or not plain or len({*names}) < len(names):
        raise PlanError(
            title,
            "the pattern does not name columns, each once",
            "Write the columns of the primary key in braces: 'orders:{id}'",
        )
    for name, separator in _separators(pattern):
        if not separator or separator[0].isalnum() or separator[0] in "+-.":
            raise PlanError(
                title,
                f"the end of column {name!r} cannot be told in a key of this pattern",
                "Part the columns by a sign: '{a}:{b}'",
            )
    return names


def _import_redis(title: str) -> Any:
    """Return the module ``redis``, with ``redis.backoff``, ``redis.exceptions`` and ``redis.retry``
    imported. Raises ``ConfigurationError`` if it is not installed. ``title``: the source in errors.
    """
    return import_package(
        title, "redis", "redis", "redis.backoff", "redis.exceptions", "redis.retry"
    )


@validated
def redis(
    url: Text,
    pattern: Text,
    *,
    form: Form = "hash",
    timeout_s: Seconds = 10.0,
    retries: Natural = 5,
) -> RedisLookup:
    """Declare a table in Redis or Valkey in which delta joins and ``lookup`` find rows.

    Each row lies under a key of its own, which names its primary key. It needs the package
    redis on the driver and the workers: ``pip install 'dovetail[redis]'``.

    Parameters
    ----------
    url : str
        The server's URL, ``"redis://…"``, ``"rediss://…"`` or ``"unix://…"``. No error and no
        plan shows it.
    pattern : str
        The key of a row, with the columns of the table's primary key in braces:
        ``"orders:{id}"``. They are whole numbers or texts. Double braces that belong to the
        key itself: ``"{{shop}}:{id}"``.
    form : {"hash", "json"}, default "hash"
        The form of a row: a hash with a field for each other column, or a plain string with
        the text of a JSON object. The type of the module RedisJSON is not read.
    timeout_s : float, default 10.0
        The limit in seconds for connecting and for each reply.
    retries : int, default 5
        The number of further attempts after a failure. The wait before the first one is 0.1
        s. Waits double, up to 5 s.

    Returns
    -------
    LookupSource
        The source, for ``Table.with_lookup`` and ``Stream.lookup``. Nothing connects yet.

    Raises
    ------
    PlanError
        If ``url`` is no URL of Redis, ``pattern`` names no column, or nothing parts two
        columns in it.
    ConfigurationError
        If the package redis is missing. A query fails with it if the server does not answer
        after all attempts.
    DataError
        In a query, for a value that does not fit the declared type, or a key of another
        form.

    See Also
    --------
    Stream.lookup : Join each record with the rows of a source.
    Table.with_lookup : Declare that a source holds the table's rows.
    mongodb : The same for a MongoDB collection.
    postgres : The same for a PostgreSQL table.

    Notes
    -----
    Rows are found by the primary key alone. A column that a row lacks is null, and a hash
    without any of the columns is a row, too. The values of a hash are texts and read by
    rule: a timestamp with a zone is ``2024-05-01T10:00:00Z``, a date ``2024-05-01``, a
    boolean ``true`` or ``false``.

    A lookup is one transaction, which sees one moment. Source: FLIP-486, "Public Interfaces".

    Examples
    --------
    >>> import dovetail as dt
    >>> rates = dt.lookups.redis("redis://:secret@cache/0", "rates:{currency}:{day}")
    >>> rates.title, rates.key
    ('redis rates:{currency}:{day}', ('currency', 'day'))
    """
    title = f"redis {pattern}"
    client = _import_redis(title)
    columns = _columns_of_pattern(title, pattern)
    try:
        client.connection.parse_url(url)
    except ValueError:
        problem = "url= is no URL of Redis"
        raise PlanError(title, problem, "Begin it with redis://, rediss:// or unix://") from None
    options = declared_fields(
        title, key=columns, indexes=(), where=None, timeout_s=timeout_s, retries=retries
    )
    return RedisLookup(url=url, pattern=pattern, form=form, **options)
