"""Lookups in MongoDB: the fields of a collection's documents are the columns."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal, DecimalException
from typing import Any

import numpy as np
import pyarrow as pa

from dovetail.arrays.timeline import Ints, Mask
from dovetail.base.error_text import first_line
from dovetail.base.packages import import_package
from dovetail.base.validation import ColumnNames, Natural, Seconds, Text, validated
from dovetail.errors import DataError, PlanError
from dovetail.lookup_sources.conversion import (
    changed_store_error,
    convert_parts,
    is_text,
    rows_as_table,
)
from dovetail.lookup_sources.keys import (
    find_calendar_keys,
    find_rows_of_own_query,
    index_distinct_keys,
    positions_among,
    refuse_types,
)
from dovetail.lookup_sources.retry import call_with_retries
from dovetail.lookup_sources.source import DeclaredSource, Found, Indexes, Where, declared_fields

_KEYS_MAX = 10_000
_PAIRS_MAX = 1_000
"""The number of keys in a query at most: of one column, and of several."""
_BYTES_MAX = 4 << 20
"""The size of the keys in a query at most. MongoDB takes queries of 16 MiB."""
_DECIMAL_DIGITS = 34
"""The number of digits that MongoDB's decimals have."""
_OBJECT_ID = re.compile("[0-9a-f]{24}")
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, kw_only=True)
class MongodbLookup(DeclaredSource):
    """A MongoDB collection as a lookup source."""

    uri: str = field(repr=False)
    """The connection string. It may have a password, so ``repr`` omits it."""
    collection: str
    """The names of the database and the collection, with a dot between them."""

    @property
    def title(self) -> str:
        """The word ``mongodb`` and the collection, such as ``mongodb shop.orders``, for errors and
        ``explain``. It has no secrets.
        """
        return f"mongodb {self.collection}"

    def open(self, schema: pa.Schema) -> MongodbReader:
        """Return a reader whose rows have the columns of ``schema``. The reader connects at its
        first lookup. Raises ``ConfigurationError`` without pymongo, and ``PlanError`` for a column
        with a dot or a leading ``$``, which names no field.
        """
        return MongodbReader(self, schema)


class MongodbReader:
    """A reader with one client, made at the first lookup and again after a failed query."""

    def __init__(self, source: MongodbLookup, schema: pa.Schema) -> None:
        """Import pymongo, without connecting. Raises ``ConfigurationError`` if it is not installed,
        and ``PlanError`` for a column that names no field.
        """
        _refuse_fields(source.title, schema.names)
        self._source = source
        self._schema = schema
        self._pymongo = _import_pymongo(source.title)
        self._client: Any = None

    def rows(self, by: Sequence[str], keys: pa.Table) -> Found:
        """Return all rows whose columns ``by`` equal one of ``keys``, in any order. Also return the
        position of each row's key in ``keys``. A key that MongoDB cannot store exactly is unfit and
        not asked for.

        ``keys``: one column for each of ``by``, distinct, without nulls, perhaps none. The schema
        must have the columns ``by`` and the primary key. The documents found are compared with the
        keys again, since a collection may have a collation of its own. A field that a document
        lacks is null.

        Raises ``ConfigurationError`` if no attempt succeeds, also if two documents have one primary
        key. Raises ``DataError`` for keys or values of unsuitable types, a null in the primary key,
        and missing rights. Also for a collection that is missing when the reader connects.
        """
        source = self._source
        kinds = (pa.types.is_integer, is_text, pa.types.is_boolean, pa.types.is_decimal)
        refuse_types(
            source.title,
            by,
            keys,
            (*kinds, pa.types.is_binary, pa.types.is_date32, pa.types.is_timestamp),
            "Join by whole numbers, decimals, texts, bytes, booleans, dates or timestamps",
        )
        fit = np.logical_and.reduce(
            [_find_storable_keys(column.combine_chunks()) for column in keys.columns]
        )
        asked = keys.filter(pa.array(fit))
        table, key = call_with_retries(source, lambda: self._look_up_once(by, asked))
        return Found(table, np.flatnonzero(fit)[key], ~fit)

    def close(self) -> None:
        """Close the client's connections, if there are any. A later lookup connects again."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _look_up_once(self, by: Sequence[str], keys: pa.Table) -> tuple[pa.Table, Ints]:
        """Look up ``keys`` by the fields ``by`` once, connecting if need be. Return the documents
        as rows of the schema, and the position of each one's key in ``keys``: int64[rows].
        Documents that only a collation takes for equal are left out.

        ``keys``: one column for each of ``by``, only keys that MongoDB can store. Raises
        ``OSError`` if another attempt may help, also for two documents with one primary key. Raises
        ``DataError`` for other errors. An error of pymongo closes the client, and is not in the
        chain of the error raised, since it may show the connection string.
        """
        import bson.errors

        source, pymongo = self._source, self._pymongo
        step = _keys_per_query(by, keys)
        try:
            with pymongo.timeout(source.timeout_s):
                answers = [*self._find_documents(by, keys, step)]
        except (pymongo.errors.PyMongoError, bson.errors.BSONError) as error:
            self.close()
            raise self._error_to_raise(error) from None
        rows = [_row_of_document(document, self._schema) for found in answers for document in found]
        table = rows_as_table(source.title, rows, self._schema, source.key)
        key = positions_among(keys, table.select(list(by)))
        asked = find_rows_of_own_query(key, step, [len(found) for found in answers])
        table, key = table.filter(pa.array(asked)), key[asked]
        if index_distinct_keys([table.select(list(source.key))])[1] < table.num_rows:
            raise OSError("two documents have one key, or one changed while they were read")
        return table, key

    def _error_to_raise(self, error: Exception) -> Exception:
        """Return the error to raise for ``error``, one of pymongo's: ``OSError`` if another attempt
        may help (a lost connection, a time-out), else ``DataError``.
        """
        passing = isinstance(error, self._pymongo.errors.ConnectionFailure)
        if passing or getattr(error, "timeout", False):
            return OSError(first_line(error))
        return DataError(
            self._source.title,
            f"its documents cannot be read: {first_line(error)}",
            "See that the lookup's user can read the collection, and that its values are valid",
        )

    def _find_documents(
        self, by: Sequence[str], keys: pa.Table, step: int
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield, query by query, the documents that have one of ``step`` of the keys in the fields
        ``by`` and pass the source's filters. The last query may have fewer keys. Documents are
        dicts with the schema's fields; one that a document lacks is missing.

        Without keys no query is sent, but the collection must exist when the reader connects.
        Raises ``DataError`` for a missing collection; errors of pymongo pass.
        """
        collection = self._open_collection()
        projection = {"_id": 0} | dict.fromkeys(self._schema.names, 1)
        for start in range(0, keys.num_rows, step):
            conditions = [_key_condition(by, keys.slice(start, step)), *self._filter_conditions()]
            yield list(collection.find({"$and": conditions}, projection))

    def _open_collection(self) -> Any:
        """Return pymongo's collection, whose documents are read by ``_codec_options``. Make the
        client if there is none. Raises ``DataError`` if the collection is missing then; later it is
        not checked. Errors of pymongo pass.
        """
        database, _, name = self._source.collection.partition(".")
        if self._client is None:
            wait_ms = max(1, int(self._source.timeout_s * 1000))
            self._client = self._pymongo.MongoClient(
                self._source.uri, serverSelectionTimeoutMS=wait_ms, connectTimeoutMS=wait_ms
            )
            there = self._client[database].list_collection_names(filter={"name": name})
            if name not in there:
                self.close()  # so that the next lookup checks it again
                raise changed_store_error(self._source.title, f"there is no collection {name!r}")
        return self._client[database].get_collection(name, codec_options=_codec_options())

    def _filter_conditions(self) -> Iterator[dict[str, Any]]:
        """Yield a condition of MongoDB for each of the source's filters: its field has one of the
        constants. For the constant None the field may also be missing. An array does not count as
        one of its elements.
        """
        for name, constants in self._source.filters:
            # An array would meet a constant that is one of its elements.
            yield {name: {"$in": list(constants), "$not": {"$type": "array"}}}


def _keys_per_query(by: Sequence[str], keys: pa.Table) -> int:
    """Return how many of ``keys`` one query asks for: at most 10,000 of one column or 1,000 of
    several, of about 4 MiB in all, and at least one. ``by``: the fields that they are of.
    """
    by_size: int = keys.num_rows * _BYTES_MAX // max(1, keys.nbytes)
    return max(1, min(_KEYS_MAX if len(by) == 1 else _PAIRS_MAX, by_size))


def _row_of_document(document: dict[str, Any], schema: pa.Schema) -> tuple[Any, ...]:
    """Return the values of a document in the order of the schema, None for a field that it lacks.

    A moment at midnight UTC becomes a date where the schema has a date, also within structs and
    lists. Other values stay as pymongo gives them.
    """
    return tuple(
        convert_parts(document.get(name), type_, _date_of_midnight)
        for name, type_ in zip(schema.names, schema.types, strict=True)
    )


def _date_of_midnight(value: Any, type_: pa.DataType) -> Any:
    """Return the date of a moment at midnight UTC if ``type_`` is a date, as MongoDB stores no
    dates. All else stays as it is.
    """
    is_day = pa.types.is_date(type_) and isinstance(value, datetime) and value.time() == time.min
    return value.date() if is_day else value


def _key_condition(by: Sequence[str], keys: pa.Table) -> dict[str, Any]:
    """Return MongoDB's condition that a document has one of the keys in the fields ``by``, in a
    form that uses indexes. For one field it is ``{field: {"$in": values}}``. Else it is ``{"$or":
    [...]}`` with ``{field: {"$in": values}, ...}`` for each key.

    The values are those that a document may have for a key's value (``_stored_values``). A text of
    an object id or a UUID also stands for that id. A date stands for its midnight. An array with
    such a value meets the condition, too.

    ``keys``: one column for each of ``by``, without nulls, and at least one row. MongoDB must be
    able to store each key exactly.
    """
    columns = [[_stored_values(value) for value in column.to_pylist()] for column in keys.columns]
    if len(columns) == 1:
        return {by[0]: {"$in": [value for values in columns[0] for value in values]}}
    return {
        "$or": [
            {name: {"$in": values} for name, values in zip(by, row, strict=True)}
            for row in zip(*columns, strict=True)
        ]
    }


def _stored_values(value: Any) -> list[Any]:
    """Return the one or two values that a document may have for a key's value, as pymongo writes
    them.

    A text of 24 hexadecimal digits in lower case also stands for that object id. The text of a
    UUID, with hyphens and in lower case, also stands for the UUID. A date becomes its midnight.
    ``value``: one that MongoDB can store exactly; a decimal of more than 34 digits raises Python's
    ``DecimalException``.
    """
    import bson

    if isinstance(value, str) and _OBJECT_ID.fullmatch(value):
        return [value, bson.ObjectId(value)]
    if isinstance(value, str) and _UUID.fullmatch(value):
        return [value, bson.Binary.from_uuid(uuid.UUID(value))]
    if isinstance(value, Decimal):
        return [bson.Decimal128(value)]
    if isinstance(value, date) and not isinstance(value, datetime):
        return [datetime(value.year, value.month, value.day)]  # noqa: DTZ001 -- UTC by itself
    return [value]


def _find_storable_keys(keys: pa.Array) -> Mask:
    """Return a mask of the n ``keys`` that MongoDB can store exactly: bool[n]. ``keys``: one column
    without nulls.

    Not stored are dates and timestamps outside of the years 1 to 9999, timestamps finer than a
    millisecond, and decimals that would be rounded. Keys of other types all fit.
    """
    if pa.types.is_timestamp(keys.type):
        moments_us = keys.cast(pa.int64()).to_numpy()
        return find_calendar_keys(keys) & (moments_us % 1000 == 0)  # type: ignore[no-any-return]
    if pa.types.is_date(keys.type):
        return find_calendar_keys(keys)
    if pa.types.is_decimal(keys.type) and keys.type.precision > _DECIMAL_DIGITS:
        return np.array([_is_decimal128(key) for key in keys.to_pylist()], np.bool_)
    return np.ones(len(keys), np.bool_)


def _is_decimal128(key: Decimal) -> bool:
    """Return True if MongoDB's decimals, of 34 digits, can have ``key`` without rounding."""
    import bson

    try:
        bson.Decimal128(key)
    except DecimalException:
        return False
    return True


def _codec_options() -> Any:
    """Return pymongo's options by which documents are read: moments in UTC, object ids as texts,
    UUIDs as texts with hyphens in lower case, decimals as Python's.
    """
    import bson
    from bson.codec_options import CodecOptions, TypeDecoder, TypeRegistry

    def decoder(type_: type, read: Any) -> Any:
        """Return a decoder for pymongo that replaces each value of the BSON type ``type_`` by the
        result of ``read`` for it.
        """
        members = {"bson_type": type_, "transform_bson": lambda _, value: read(value)}
        return type("Decoder", (TypeDecoder,), members)()

    read = {bson.ObjectId: str, uuid.UUID: str, bson.Decimal128: bson.Decimal128.to_decimal}
    return CodecOptions(
        tz_aware=True,
        uuid_representation=bson.binary.UuidRepresentation.STANDARD,
        type_registry=TypeRegistry([decoder(type_, function) for type_, function in read.items()]),
    )


def _refuse_fields(title: str, names: Iterable[str]) -> None:
    """Raise ``PlanError`` for the first of the column ``names`` with a dot or a leading ``$``: a
    path or an operator in MongoDB's queries. ``title``: the source in errors.
    """
    for name in names:
        if "." in name or name.startswith("$"):
            raise PlanError(
                title,
                f"column {name!r} is no field of a document",
                "Name fields at the top of the documents, without dots; a view may lift others",
            )


def _import_pymongo(title: str) -> Any:
    """Return the module ``pymongo``, with ``pymongo.errors`` imported. Raises
    ``ConfigurationError`` if it is not installed. ``title``: the source in errors.
    """
    return import_package(title, "mongodb", "pymongo", "pymongo.errors")


@validated
def mongodb(
    uri: Text,
    collection: Text,
    *,
    key: ColumnNames,
    indexes: Indexes = (),
    where: Where | None = None,
    timeout_s: Seconds = 10.0,
    retries: Natural = 5,
) -> MongodbLookup:
    """Declare a MongoDB collection or view in which delta joins and ``lookup`` find rows.

    A document is a row, and its fields are the columns. It needs the package pymongo on the
    driver and the workers: ``pip install 'dovetail[mongodb]'``.

    Parameters
    ----------
    uri : str
        A connection string, ``"mongodb://…"`` or ``"mongodb+srv://…"``. No error and no plan
        shows it.
    collection : str
        The names of the database and the collection: ``"shop.orders"``.
    key : str or list of str
        The fields of its primary key, which are never null: ``"_id"``.
    indexes : list of Index, default ()
        The other fields by which it finds rows, such as ``[dt.lookups.index("customer")]``.
    where : mapping, optional
        Fields with their constants: a text, a number, a boolean, None for null, or a list
        of these. A document belongs to the table if each of these fields has one of its
        constants. By default all documents do.
    timeout_s : float, default 10.0
        The limit in seconds for each attempt of a lookup, connecting included.
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
        If ``uri`` is no connection string, ``collection`` lacks the database, or ``key``
        names no field. Also if a list in ``where`` is empty, or a field has a dot or begins
        with ``$``.
    ConfigurationError
        If pymongo is missing. A query fails with it if the server does not answer after all
        attempts, or if two documents have one key.
    DataError
        In a query, for a value that does not fit the declared type, a null in the key, or a
        missing collection.

    See Also
    --------
    index : Declare an index.
    Stream.lookup : Join each record with the rows of a source.
    redis : The same for hashes or JSON values in Redis.
    postgres : The same for a PostgreSQL table.

    Notes
    -----
    A field that a document lacks is null. Object ids and UUIDs are texts of hexadecimal
    digits in lower case, UUIDs with hyphens. Dates are moments at midnight, UTC. Whole
    numbers must be stored as such: a double is refused, even if it has no fraction.

    Rows are looked up by whole numbers, decimals, texts, bytes, booleans, dates and
    timestamps. Texts match to the letter, even if the collection's collation ignores case.
    Source: FLIP-486, "Public Interfaces".

    Examples
    --------
    >>> import dovetail as dt
    >>> by_customer = dt.lookups.index("customer")
    >>> uri = "mongodb://app:secret@db/"
    >>> orders = dt.lookups.mongodb(uri, "shop.orders", key="_id", indexes=[by_customer])
    >>> orders.title, orders.key
    ('mongodb shop.orders', ('_id',))
    """
    title = f"mongodb {collection}"
    _import_pymongo(title)
    if not uri.startswith(("mongodb://", "mongodb+srv://")):
        raise PlanError(title, "uri= is no connection string", "Begin it with mongodb://")
    if not all(collection.partition(".")):
        raise PlanError(title, "collection= names no database", "Name it first: 'shop.orders'")
    options = declared_fields(
        title, key=key, indexes=indexes, where=where, timeout_s=timeout_s, retries=retries
    )
    source = MongodbLookup(uri=uri, collection=collection, **options)
    indexed = (name for index in source.indexes for name in index.columns)
    _refuse_fields(title, (*source.key, *indexed, *(name for name, _ in source.filters)))
    return source
