"""Debezium's change events as the format of a value.

The topic's offset orders changes: Debezium writes all events of a key to one partition, in commit
order. A position in the database's log would not do. All rows of a snapshot share one position, and
a connector that restarts sends some events again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_
from typing import Annotated, Literal, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from dovetail.base.validation import Rule, validated
from dovetail.errors import PlanError
from dovetail.io.formats.avro import AvroFormat, decode_avro, explain_missing_functions
from dovetail.io.formats.connect import (
    FIELD_PARTS,
    ColumnEncoding,
    Encoding,
    RawValue,
    exact_fields,
    field_description,
    first_coded_type,
    is_ambiguous,
    is_rounded,
    json_fields,
    raw_row,
    unknown_encodings,
)
from dovetail.io.formats.connect_avro import Envelope, SchemaReader, refuse_absent_columns
from dovetail.io.formats.events import METADATA, ChangeEvents, WantedParts
from dovetail.io.formats.json_objects import JsonObject, is_json_null, lack_of_keys
from dovetail.io.formats.plain import (
    Decoding,
    Format,
    FormatContext,
    JsonFormat,
    Schema,
    Unsent,
    json_text,
    struct_of,
    with_framing_hint,
)
from dovetail.io.formats.transactions import (
    NO_TRANSACTION,
    TRANSACTION,
    TRANSACTION_REMEDY,
    TRANSACTION_TYPE,
    lacks_transaction,
)
from dovetail.io.formats.unsent_values import PLACEHOLDER, UNSENT, Placeholder
from dovetail.plan.types.checks import known_field

Metadata: TypeAlias = Annotated[
    Mapping[str, str],
    Rule(
        f"a mapping of columns to what of the envelope they are, of {', '.join(METADATA)}",
        lambda metadata: set(metadata.values()) <= METADATA.keys(),
    ),
]


def _is_placeholder(setting: str) -> bool:
    """Return True if ``setting`` is a legal placeholder, Debezium's text for a value that was not
    sent: it stands for at least one byte, and digits after ``hex:`` are hexadecimal.
    """
    try:
        return bool(Placeholder(setting).octets)
    except ValueError:
        return False


GivenPlaceholder: TypeAlias = Annotated[
    str,
    Rule("a text, or hex: and hexadecimal digits", _is_placeholder),
]
Encodings: TypeAlias = Mapping[str, Encoding]
Truncate: TypeAlias = Literal["fail", "ignore"]
Tombstones: TypeAlias = Literal["ignore", "delete"]


@dataclass(frozen=True)
class DebeziumFormat(Format):
    """An envelope of Debezium in a record's value, in JSON or in Avro.

    The fields are the arguments of ``debezium``. Without ``schema``, Avro has all its columns.
    """

    schema: StructType | None
    """The table's columns, as declared; None for all columns of the Avro schema to read by."""
    avro: AvroFormat | None
    """The Avro format of the events; None for JSON."""
    encodings: Encodings
    """The encodings of columns in JSON by column name, in Debezium's names. Empty for Avro."""
    metadata: Mapping[str, str]
    """The further columns: the path in the envelope, a key of ``METADATA``, by column name."""
    truncate: Truncate
    """The treatment of a TRUNCATE event: ``"fail"`` makes it unreadable, ``"ignore"`` leaves it
    out.
    """
    tombstones: Tombstones
    """The treatment of a record without a value: ``"ignore"`` leaves it out, ``"delete"`` deletes
    the row of its key.
    """
    placeholder: Placeholder
    """The placeholder of a large value that was not sent."""
    framed: bool = False
    """True if JSON follows the five bytes of a schema registry's framing, which are skipped."""
    unsent: Unsent = "fail"
    """The treatment of an event with a value that was not sent: ``"fail"`` makes it unreadable,
    with ``"keep"`` the row keeps its former value. With ``"keep_or_null"`` it does, too, and
    without a row the value is null.
    """
    transactions: bool = False
    """True if the rows of a key are counted within a transaction, in the column ``_transaction``.
    """

    @property
    def transacts(self) -> bool:
        """The setting ``transactions=``: True if the rows of a key are counted within a
        transaction.
        """
        return self.transactions

    @property
    def mixes_clocks(self) -> bool:
        """True if tombstones delete: they have the time of their record."""
        return self.tombstones == "delete"

    @property
    def grows(self) -> bool:
        """True if the columns are those of the latest Avro schema, because neither this format nor
        its Avro format declares them. A rebuilt query may then have more columns.
        """
        return self.schema is None and self.avro is not None and self.avro.grows

    def key_format(self, key: Format) -> Format:
        """Return the format by which the key of a record with such an event is read. Plain JSON
        with a schema, neither framed nor with encodings, becomes ``ConnectJson`` with the encodings
        of the event. Any other ``key`` is returned unchanged.
        """
        if (
            isinstance(key, JsonFormat)
            and key.schema is not None
            and not (key.framed or key.encodings)
        ):
            return ConnectJson(key.schema, self.encodings)
        return key

    def decoding(self, context: FormatContext) -> Decoding:
        """Return the steps that read the row after a change. Its columns are the table's, those of
        ``metadata``, with ``unsent="keep"`` the array of texts ``_unsent``, and with
        ``transactions`` the struct ``_transaction``. ``_unsent`` has the names of columns that were
        not sent. ``_transaction`` has ``op``, ``id`` (texts), ``total_order`` and ``place`` (long).

        A delete has nulls except for metadata, the transaction and the columns in ``key_columns=``.
        An unreadable event has no row, and a problem in words.

        Raises ``PlanError`` if the context's part is the key, for an unknown column in
        ``key_columns=``, and for ``key_columns=`` with ``tombstones="delete"``. Also for
        ``transactions=True`` if no Avro schema has a transaction, and for an Avro schema of no
        change event, or without a key column. With a registry, raises ``PlanError`` if no subject
        is known, and ``ConfigurationError`` if it lacks the subject or does not answer.
        """
        if context.part != "value":
            raise context.refuse(
                "is a change event, which only a value is", "Give the key's fields"
            )
        if context.keys and self.tombstones == "delete":
            raise PlanError(
                context.operator,
                "tombstones='delete' takes the record's key, which key_columns= leaves out",
                "Give the key's fields in key=",
            )
        writers = {} if self.avro is None else self.avro.writers(context)
        envelopes = [Envelope.from_schema(context, text) for text in writers.values()]
        if self.avro is not None and self.avro.schema is not None:
            envelopes.append(Envelope.from_schema(context, self.avro.schema))
        columns = envelopes[-1].types(context) if self.schema is None else self.schema
        added = [StructField(name, METADATA[path]) for name, path in self.metadata.items()]
        if self.keeps:
            added.append(StructField(UNSENT, ArrayType(StringType())))
        if self.transactions:
            added.append(StructField(TRANSACTION, TRANSACTION_TYPE))
            if envelopes and not any(e.has("transaction.id") for e in envelopes):
                raise context.refuse(
                    f"has an Avro schema with {NO_TRANSACTION}",
                    TRANSACTION_REMEDY[0].upper() + TRANSACTION_REMEDY[1:],
                )
        for name in context.keys:
            known_field(
                context.operator, "key_columns=", name, StructType([*columns.fields, *added])
            )
        keys = tuple(name for name in context.keys if name not in self.metadata)
        wanted = WantedParts(
            columns,
            keys,
            self.metadata,
            self.schema is not None,
            self.placeholder,
            self.keeps,
            self.transactions,
        )
        if self.avro is not None:
            refuse_absent_columns(context, envelopes, wanted)
            problem: Callable[[Column], Column] = self.avro.problem_function(context, list(writers))
        else:
            words = "not one JSON object with the fields of a change event"
            problem_text = with_framing_hint(F.col("value"), words, framed=self.framed)
            object_ = self._envelope_object(wanted)
            problem = lambda parsed: F.coalesce(object_.problem(parsed), problem_text)  # noqa: E731
        return ChangeEvents(
            fields=StructType([*columns.fields, *added]),
            parsed=F.col("value"),
            row=lambda parsed: parsed,
            problem=lambda _: problem(F.col("_parsed")),
            wanted=wanted,
            events=partial(self._read_avro_events, context, writers, envelopes[::-1], wanted)
            if self.avro is not None
            else partial(self._read_json_events, wanted),
            truncates=self.truncate == "fail",
            tombstones=self.tombstones == "delete",
            splits=context.splits,
        )

    def encode(self, context: FormatContext, columns: StructType) -> Column:
        """Raise ``PlanError``, because only Debezium writes its events. ``columns`` is not used."""
        raise context.refuse(
            "is dt.formats.debezium, which is only read", "Write JSON, Avro or Protobuf"
        )

    def _read_avro_events(
        self,
        context: FormatContext,
        writers: Mapping[int | None, str],
        envelopes: Sequence[Envelope],
        wanted: WantedParts,
        records: DataFrame,
    ) -> DataFrame:
        """Return the records with ``_event`` (``WantedParts.add_event``), each decoded by the Avro
        schema that wrote it. ``_event`` is null for records that cannot be decoded, also for those
        of an unknown schema. Other unreadable events, such as one with a value that does not fit
        its column, have the reason in ``_event.problem``, else null. Another new column ``_parsed``
        is a struct of ``number``, the id of that schema. Columns of the steps between stay, too.

        ``writers``: the schemas as JSON by id, at least one; by None without a registry.
        ``envelopes``: those that define the columns, the reader's first. ``wanted``: the parts of
        an event to read. Raises ``PlanError`` for a column that cannot be made of its encoding,
        ``ConfigurationError`` if the session lacks Avro functions.
        """
        assert self.avro is not None
        value, schema_id = self.avro.body_and_schema_id(context)
        frame = records.withColumn("_parsed", F.struct(schema_id.alias("number")))
        events = []
        for index, (writer_id, text) in enumerate(writers.items()):
            parsed, raw, event = (f"_{name}{index}" for name in ("parsed", "raw", "event"))
            reader = SchemaReader.for_writer(
                context, Envelope.from_schema(context, text), envelopes, wanted
            )
            decoded = decode_avro(value, text, reader.text)
            if writer_id is not None:
                decoded = F.when(F.col("_parsed.number") == writer_id, decoded)
            with explain_missing_functions(context):
                frame = frame.withColumn(parsed, decoded)
            frame = frame.withColumn(raw, reader.raw_parts(F.col(parsed), wanted))
            encodings = reader.encodings(wanted.columns)
            problem = reader.problem(F.col(parsed))
            frame = wanted.add_event(
                frame, F.col(raw), encodings, event, coded=False, problem=problem
            )
            events.append(event)
        return frame.withColumn("_event", F.coalesce(*events))

    def _envelope_schema(self, wanted: WantedParts) -> StructType:
        """Return the schema by which ``from_json`` reads the ``wanted`` parts of an envelope:
        ``after``, ``before`` (only with key columns), and those at the wanted paths, as nested
        structs. Values of rows have the types of ``json_fields``, not yet decoded.
        """
        envelope = StructType([StructField("after", json_fields(wanted.columns))])
        if wanted.keys:
            envelope.add("before", json_fields(wanted.before))
        nested: dict[str, StructType] = {}
        for path in wanted.paths:
            of, _, name = path.rpartition(".")
            nested.setdefault(of, StructType()).add(name, METADATA[path])
        for of, fields in nested.items():
            envelope = envelope.add(of, fields) if of else StructType([*envelope, *fields])
        return envelope

    def _envelope_object(self, wanted: WantedParts) -> JsonObject:
        """Return the JSON object in the column ``value``: the ``wanted`` parts of an envelope, and
        the same parts once more in ``payload``, of which a record fills one. Its ``schema`` is read
        only if an encoding is needed.
        """
        described = StructType().add("field", "string").add("fields", ArrayType(FIELD_PARTS))
        whole = _wrapped_fields(
            wanted.columns, self.encodings, self._envelope_schema(wanted), described
        )
        return JsonObject(json_text(F.col("value"), framed=self.framed), whole)

    def _read_json_events(self, wanted: WantedParts, records: DataFrame) -> DataFrame:
        """Return the records with ``_event``, the event of a JSON envelope's ``wanted`` parts
        (``WantedParts.add_event``). It is null where the value is no JSON object with these parts
        in their types. Other unreadable events, such as one without a key column, have the reason
        in ``_event.problem``, else null.

        Another new column, ``_absent``, is true where a record has no value: null, JSON's null, or
        a null payload. ``_event`` then has no meaning: it is null, or its ``op`` is. The columns
        ``_parsed``, ``_found``, ``_read``, ``_exact`` and ``_raw`` are of the steps between.

        ``records``: with a column ``value`` of bytes or text. If the format is ``framed``, the five
        bytes of a framing are skipped.
        """
        object_ = self._envelope_object(wanted)
        text, whole = object_.text, object_.schema
        frame = records.withColumn("_parsed", object_.parsed)
        frame = frame.withColumn("_found", object_.row(F.col("_parsed")))
        message = F.col("_found")
        suspect = message.isNull() | (message["op"].isNull() & message["payload"].isNull())
        is_absent = F.col("value").isNull() | F.when(suspect, is_json_null(text)).otherwise(
            F.lit(False)
        )
        frame = frame.withColumn("_absent", is_absent)
        frame = frame.withColumn("_read", _payload(F.col("_found"), self._envelope_schema(wanted)))
        frame = frame.withColumn("_exact", _exact_decimals(text, F.col("_read"), wanted.sides))
        frame = frame.withColumn("_raw", _with_raw_rows(F.col("_read"), F.col("_exact"), wanted))
        descriptions = _field_descriptions(F.col("_found"), whole)
        of_rows = (
            None if descriptions is None else field_description(descriptions, "after")["fields"]
        )
        encodings = _column_encodings(wanted.columns, self.encodings, of_rows)
        lacks = _lack_of_keys(text, F.col("_raw"), wanted.keys)
        if self.transactions:
            absent = F.when(F.col("_raw")["transaction"].isNull(), lacks_transaction(text))
            said = F.when(absent, F.lit(f"it has {NO_TRANSACTION}: {TRANSACTION_REMEDY}"))
            lacks = F.coalesce(said, lacks)
        return wanted.add_event(
            frame, F.col("_raw"), encodings, "_event", coded=True, problem=lacks
        )


@validated
def debezium(
    schema: Schema | None = None,
    *,
    avro: AvroFormat | None = None,
    encodings: Encodings | None = None,
    metadata: Metadata | None = None,
    truncate: Truncate = "fail",
    tombstones: Tombstones = "ignore",
    placeholder: GivenPlaceholder = PLACEHOLDER,
    framed: bool = False,
    unsent: Unsent = "fail",
    transactions: bool = False,
) -> DebeziumFormat:
    """Describe Debezium's change events, as the format of a value.

    Debezium reads the changes of a database. The row after a create, an update or the read
    of a snapshot replaces its key's row. A delete deletes it. Events are JSON, with or
    without their schemas, or Avro.

    Parameters
    ----------
    schema : str, StructType or mapping, optional
        The table's columns: a text as in SQL (``"id long, city string"``), or a mapping of
        names to Spark's types. Avro has by default all columns of its latest schema. JSON
        needs it.
    avro : AvroFormat, optional
        The Avro format of the events, as ``dt.formats.avro`` makes it. By default they are
        JSON.
    encodings : mapping of str to str, optional
        The encodings of columns in JSON, by Debezium's names: ``{"placed_at":
        "MicroTimestamp"}``. The columns must be in ``schema``. Records with their schema
        carry the encodings themselves, and so does Avro.
    metadata : mapping of str to str, optional
        Further columns from the event's envelope, by their names: ``{"lsn":
        "source.lsn"}``. *Metadata* below lists the paths.
    truncate : {"fail", "ignore"}, default "fail"
        The treatment of a TRUNCATE, which names no rows. ``"fail"`` makes it a record that
        cannot be read, and ``"ignore"`` leaves it out.
    tombstones : {"ignore", "delete"}, default "ignore"
        The treatment of a tombstone, the record without a value that follows a delete.
        ``"delete"`` deletes the row of the record's own key, so the reader needs the key's
        fields in ``key=``.
    placeholder : str, default "__debezium_unavailable_value"
        The text in place of a large value that was not sent. It is Debezium's setting
        ``unavailable.value.placeholder``, also with ``hex:`` in front.
    framed : bool, default False
        True if JSON follows the five bytes of a schema registry. They are skipped.
    unsent : {"fail", "keep", "keep_or_null"}, default "fail"
        The treatment of a record with a large value that was not sent. ``"fail"`` makes it
        a record that cannot be read. With ``"keep"`` the row keeps its former value; the
        query fails if the key has no row. With ``"keep_or_null"`` the value is then null,
        and counted in the metric ``<name>.unsent``.
    transactions : bool, default False
        True to count the rows of a key within a transaction. The connector then needs
        ``provide.transaction.metadata=true``. Streams and versioned tables refuse it.

    Returns
    -------
    DebeziumFormat
        The format, for ``value=`` of a reader. It cannot be written.

    Raises
    ------
    PlanError
        If neither ``schema`` nor ``avro`` is given, or ``encodings`` or ``framed`` comes
        with Avro. Also for types that cannot be read, unknown columns in ``encodings``, and
        other paths in ``metadata``.

    See Also
    --------
    Table.from_topic : Read a table from a Kafka topic.
    Table.from_records : Read a table from a frame of records.
    Table.retire : Let rows leave that a second snapshot lacks.
    maxwell : Maxwell's change events.
    canal : Canal's change events.

    Notes
    -----
    The reader's ``malformed=`` says what becomes of a record that cannot be read. A column
    takes the values that Debezium has for its type:

    - ``date``: Date, IsoDate, Kafka Connect's Date.
    - ``timestamp``, ``timestamp_ntz``: Timestamp, MicroTimestamp, NanoTimestamp,
      ZonedTimestamp, IsoTimestamp, Kafka Connect's Timestamp. They are in UTC.
    - ``interval day to second``, the time since midnight: Time, MicroTime, NanoTime,
      ZonedTime, IsoTime, Kafka Connect's Time. Also MicroDuration and NanoDuration.
    - ``decimal(p, s)``: Decimal, VariableScaleDecimal, texts, doubles.
    - ``binary``: bytes, Bits.
    - ``string``: texts, Enum, Uuid, Json, Xml, Interval.
    - ``long`` and ``string`` take numbers and texts as they are encoded.
    - Arrays of these.

    *Encodings.* Without a schema, a number in JSON may be any kind of time or timestamp, so
    ``encodings`` names the kind: Time, MicroTime, NanoTime, MicroDuration, NanoDuration,
    Timestamp, MicroTimestamp or NanoTimestamp. A decimal may be bytes (``"Decimal"``,
    ``"VariableScaleDecimal"``) or plain (``"string"``, ``"double"``).

    *Time and order.* The event time is ``source.ts_us``, else ``source.ts_ms``, else the
    envelope's ``ts_us`` or ``ts_ms``; 0 counts as missing. An event without any cannot be
    read, unless the reader's ``timestamp=`` gives a time. The topic's offsets order the
    changes. With ``key_columns=``, an update of the key deletes the former key's row, if
    the event has it. An event of another ``op`` than ``c``, ``u``, ``r``, ``d`` and ``t``
    cannot be read.

    *Metadata.* A column is null where its event lacks the field. The paths are, by type:

    - ``string``: ``op``, ``transaction.id``; of ``source``: ``version``, ``connector``,
      ``name``, ``snapshot``, ``db``, ``schema``, ``table``, ``sequence``, ``gtid``,
      ``file``.
    - ``long``: ``ts_ms``, ``ts_us``, ``transaction.total_order``,
      ``transaction.data_collection_order``; of ``source``: ``ts_ms``, ``ts_us``, ``txId``,
      ``lsn``, ``xmin``, ``server_id``, ``pos``, ``thread``.
    - ``int``: ``source.row``.

    *Tombstones.* ``tombstones="delete"`` is for topics that are compacted while no query
    reads them. The tombstone may then be all that is left of a delete. It has the time of
    its record, which is later than that of the change. So a versioned table refuses it,
    unless the reader's ``timestamp=`` gives the time.

    *Values that are not sent.* PostgreSQL leaves out a large value (TOAST) that an update
    does not change, unless the table has ``REPLICA IDENTITY FULL``. For ``unsent="keep"``
    the query stores the table's rows. It fails for such a record of a key without a row.
    A connector that starts again may send the last changes again, so also an update of a
    key that is deleted by now. ``unsent="keep_or_null"`` takes it, and the delete follows.

    *Keys that move.* A database may check a key as late as a statement or a transaction
    ends, as PostgreSQL does a ``DEFERRABLE`` one. ``UPDATE t SET id = id + 1`` may then
    send for key 2 the row that comes before the one that goes. With ``transactions=True``
    the row that has come stays: a delete takes the row that came first. The query stores a
    few numbers for each key that has a row. Events that a connector sends again are left
    out if their transaction is the key's last one (metric ``<name>.repeated``).

    *Nulls.* Kafka Connect's JSON converter writes the default of a column in place of a
    null. ``value.converter.replace.null.with.default=false`` in the connector prevents it.

    *Infinity.* PostgreSQL's ``infinity`` is read as 9999-12-30 23:59:59.999999 in UTC, and
    ``-infinity`` as 0001-01-03. ``to_postgres`` writes them back.

    Examples
    --------
    >>> import dovetail as dt
    >>> event = '{"op": "c", "ts_ms": 1, "after": {"id": 1, "price": "AfQ="}, "source": {"lsn": 7}}'
    >>> value = dt.formats.debezium(
    ...     "id long, price decimal(10,2)",
    ...     encodings={"price": "Decimal"},
    ...     metadata={"lsn": "source.lsn"},
    ... )
    >>> prices = dt.Table.from_records(
    ...     spark.createDataFrame([(event,)], "value string"),
    ...     key_columns="id",
    ...     value=value,
    ...     name="prices",
    ... )
    >>> prices.changelog().select("id", "price", "lsn").collect()
    [Row(id=1, price=Decimal('5.00'), lsn=7)]
    """
    encoding_by_column = dict(encodings or {})
    if schema is None and avro is None:
        raise PlanError("debezium", "neither schema= nor avro= is given", "Declare the columns")
    if avro is not None and encoding_by_column:
        raise PlanError("debezium", "encodings= is for JSON, Avro says them itself", "Leave it out")
    if avro is not None and framed:
        raise PlanError("debezium", "framed= is for JSON, Avro says it itself", "Leave it out")
    columns = None if schema is None else struct_of("debezium", schema)
    if columns is not None:
        for name in encoding_by_column:
            known_field("debezium", "encodings=", name, columns)
        if avro is None:
            refuse_nested_encodings(columns)
    return DebeziumFormat(
        columns,
        avro,
        encoding_by_column,
        dict(metadata or {}),
        truncate,
        tombstones,
        Placeholder(placeholder),
        framed,
        unsent,
        transactions,
    )


def refuse_nested_encodings(columns: StructType) -> None:
    """Raise ``PlanError`` if a column has a date, timestamp, interval or decimal within a map or a
    struct, where no encoding is known. Bytes and booleans are allowed there, and all types in plain
    columns and arrays.
    """
    for column in columns:
        inner = first_coded_type(column.dataType)
        if inner is not None:
            raise PlanError(
                "debezium",
                f"column {column.name!r} of type {column.dataType.simpleString()} has "
                f"{inner.simpleString()} within a map or a struct",
                "Declare that as it is encoded, long or string",
            )


@dataclass(frozen=True)
class ConnectJson(Format):
    """One JSON object as Kafka Connect writes it, with its schema or without."""

    schema: StructType
    """The object's fields."""
    encodings: Encodings
    """The encodings of columns by name; names that ``schema`` lacks do not count."""

    def decoding(self, context: FormatContext) -> Decoding:
        """Return the steps that read the object's fields, from the object itself or from its
        ``payload``. All are null if the ``payload`` is null. A JSON null is unreadable. So is an
        object that lacks a field, as where its name has another case, or has one that does not fit
        its type. Only null bytes count as no value.

        Raises ``PlanError`` for fields named ``schema`` or ``payload``, and for types that cannot
        be read (``refuse_nested_encodings``).
        """
        refuse_nested_encodings(self.schema)
        for name in ("schema", "payload"):
            if name in self.schema.names:
                raise context.refuse(
                    f"has a field {name!r}, as Kafka Connect's JSON with schemas has",
                    "Name the key among the value's columns, in key_columns=",
                )
        text = F.col(context.part).cast("string")
        payload_fields = json_fields(self.schema)
        whole = _wrapped_fields(self.schema, self.encodings, payload_fields, FIELD_PARTS)
        object_ = JsonObject(text, whole)
        payload_names = F.json_object_keys(F.get_json_object(text, "$.payload"))
        own_names = F.when(~is_json_null(text), F.json_object_keys(text))
        lack = lack_of_keys(
            "it", self.schema.names, F.coalesce(payload_names, own_names), argument="key="
        )

        def row(parsed: Column) -> Column:
            """Return the object as a struct of the fields, null if unreadable. ``parsed``: the
            object as it was read by ``from_json``.
            """
            return _compute_once(object_.row(parsed), row_of_message)

        def row_of_message(message: Column) -> Column:
            """Return the row of the object ``message``, which may have its fields in ``payload``;
            null if unreadable.
            """
            encodings = _column_encodings(
                self.schema, self.encodings, _field_descriptions(message, whole)
            )

            def row_of_payload(payload: Column) -> Column:
                """Return the row of the payload's raw fields; null if it is null or a field does
                not fit.
                """
                fits, columns = payload.isNotNull(), []
                for f in self.schema:
                    raw = RawValue(payload[f.name], encodings[f.name], True)
                    value = raw.as_type(f.dataType)
                    fits = fits & ~raw.is_lost(value, f.dataType)
                    columns.append(value.alias(f.name))
                nulls = (payload[name].isNull() for name in self.schema.names)
                unknown = reduce(or_, nulls, F.lit(False))
                whole = F.when(unknown, lack.isNull()).otherwise(F.lit(True))
                return F.when(fits & whole, F.struct(*columns))

            def row_of_read(read: Column) -> Column:
                """Return the row of the payload as ``from_json`` read it, with its decimals made
                exact.
                """
                exact = _exact_decimals(
                    text, F.struct(read.alias("key")), {"key": self.schema}, bare=True
                )
                return _compute_once(raw_row(read, self.schema, exact["key"]), row_of_payload)

            return _compute_once(_payload(message, payload_fields), row_of_read)

        problem_text = "not one JSON object whose fields fit the schema"
        unknown = f"{problem_text}; {unknown_encodings(self.schema, self.encodings)}"

        def problem(parsed: Column) -> Column:
            """Return a text why the object is unreadable. ``parsed``: as for ``row``."""
            message, said = object_.row(parsed), F.lit(problem_text)
            descriptions = _field_descriptions(message, whole)
            if descriptions is not None:
                bare = message.isNotNull() & descriptions.isNull()
                said = F.when(bare, unknown).otherwise(said)
            return F.coalesce(object_.problem(parsed), lack, said)

        return Decoding(self.schema, object_.parsed, row, problem)

    def encode(self, context: FormatContext, columns: StructType) -> Column:
        """Return the columns as one plain JSON object per row, as text, without a schema. Raises
        ``PlanError`` for maps whose keys have no text in JSON.
        """
        return JsonFormat(None).encode(context, columns)


def _compute_once(value: Column, function: Callable[[Column], Column]) -> Column:
    """Return ``function(value)`` as an expression that computes ``value`` once, however often the
    function uses its argument.
    """
    # Otherwise each step would repeat the steps before, and planning a key would take a minute.
    return F.transform(F.array(value), function)[0]


def _wrapped_fields(
    columns: StructType, encodings: Encodings, payload: StructType, described: StructType
) -> StructType:
    """Return the fields of a JSON object that is the payload itself, or has it in ``payload``: the
    fields of ``payload``, the field ``payload``, and perhaps ``schema``.

    The object's ``schema`` is read only if the type of a column needs an encoding that is not among
    ``encodings``. ``columns``: the columns to be made. ``payload``: the fields of the payload.
    ``described``: the type of the field descriptions in ``schema``.
    """
    whole = StructType([*payload.fields, StructField("payload", payload)])
    if any(is_ambiguous(f.dataType) and f.name not in encodings for f in columns):
        whole.add("schema", StructType().add("fields", ArrayType(described)))
    return whole


def _payload(message: Column, payload: StructType) -> Column:
    """Return the payload of the object ``message``, in the fields of ``_wrapped_fields``: its field
    ``payload``, or if that is null the object's own fields. It is null where the object is null.
    ``payload``: the fields of the payload.
    """
    bare_payload = F.struct(*(message[name].alias(name) for name in payload.names))
    return F.when(message.isNotNull(), F.coalesce(message["payload"], bare_payload))


def _exact_decimals(
    text: Column, read: Column, rows: Mapping[str, StructType], *, bare: bool = False
) -> Column:
    """Return the decimals of some rows with all their digits: a struct by row name, each row in the
    types of ``exact_fields``. It is null unless a decimal ``is_rounded``, so most texts are read
    only once; also if no row has decimals.

    ``text``: the JSON object. ``read``: a struct of the rows in ``json_fields``, perhaps null.
    ``rows``: the columns of each row by its name; rows without decimals are left out. A row is a
    field of the object, or of the object's ``payload``. ``bare``: True if the only row is the whole
    object or its whole ``payload``.
    """
    fields = {name: exact_fields(columns) for name, columns in rows.items()}
    fields = {name: decimals for name, decimals in fields.items() if decimals.fields}
    payload = StructType([StructField(name, decimals) for name, decimals in fields.items()])
    if not fields:
        return F.lit(None).cast(payload)
    rounded = reduce(or_, (is_rounded(read[name], rows[name]) for name in fields))
    whole = payload[0].dataType if bare else payload
    assert isinstance(whole, StructType)
    object_ = JsonObject(text, StructType([*whole, StructField("payload", whole)]))
    exact = _payload(object_.parsed["object"], whole)
    return F.when(rounded, F.struct(exact.alias(payload.names[0])) if bare else exact)


def _lack_of_keys(text: Column, envelope: Column, keys: Sequence[str]) -> Column:
    """Return a text why a JSON envelope's row does not have a key column, as where its name has
    another case. It is null where the row has all of them, be they null, and without ``keys``.

    ``text``: the JSON object, which may have the envelope in ``payload``. ``envelope``: its parts
    as they were read. Of a delete, the row before counts, else the row after.
    """
    problems = [F.lit(None).cast("string")]
    deletes = F.coalesce(envelope["op"] == "d", F.lit(False))
    for side, counts in (("after", ~deletes), ("before", deletes)) if keys else ():
        row = envelope[side]
        unknown = reduce(or_, (row[name].isNull() for name in keys))
        of_payload, bare = (F.get_json_object(text, f"$.{p}{side}") for p in ("payload.", ""))
        names = F.json_object_keys(F.coalesce(of_payload, bare))
        suspect = counts & row.isNotNull() & unknown
        problems.append(F.when(suspect, lack_of_keys(side, keys, names)))
    return F.coalesce(*problems)


def _with_raw_rows(envelope: Column, exact: Column, wanted: WantedParts) -> Column:
    """Return a JSON envelope with the decimals of its rows as texts in place of variants; null for
    a null envelope. ``envelope``: the ``wanted`` parts as they were read. ``exact``: the decimals
    of each row with all their digits, by the row's name; null if no digits were lost.
    """
    for side, columns in wanted.sides.items():
        envelope = envelope.withField(side, raw_row(envelope[side], columns, exact[side]))
    return envelope


def _field_descriptions(message: Column, whole: StructType) -> Column | None:
    """Return the array of field descriptions in an object's own ``schema``, null for an object
    without one. Return None if ``whole`` has no field ``schema``, so that it is not read.
    ``message``: the object. ``whole``: the fields in which it was read.
    """
    return message["schema"]["fields"] if "schema" in whole.names else None


def _column_encodings(
    columns: StructType, declared: Encodings, fields: Column | None
) -> dict[str, ColumnEncoding]:
    """Return the encoding of each of ``columns``, by name: the declared one, else the one in the
    record's own schema. That schema counts only for types whose raw values mean nothing without an
    encoding (``is_ambiguous``). An encoding's name is null if neither states it.

    ``declared``: by column name. ``fields``: the descriptions in the record's schema, null for a
    record without a schema; None if schemas are not read.
    """
    return {
        f.name: ColumnEncoding.from_declaration(declared.get(f.name))
        if fields is None or f.name in declared or not is_ambiguous(f.dataType)
        else ColumnEncoding.from_description(field_description(fields, f.name), f.dataType)
        for f in columns
    }
