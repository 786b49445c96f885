"""Records in Protobuf, alone or in a schema registry's framing, as columns of Arrow.

Spark hands batches of records to a worker. There ``ptars`` turns a whole batch into columns, or
columns into records. A field is identified by its number, so a record of another version of the
message is read without its schema. Of a registry's framing only the message's place is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import BinaryType, DataType, StructType

from dovetail.base.columns import quoted
from dovetail.base.validation import Rule, Text, validated
from dovetail.errors import ConfigurationError, DataError, PlanError
from dovetail.io.formats.plain import FRAME_LENGTH, Decoding, Format, FormatContext
from dovetail.io.formats.registry import Registry
from dovetail.plan.types.arrow import spark_schema

_SUBSTRING_LENGTH_MAX: Final = (1 << 31) - 1
_NOT_DESCRIPTORS: Final = "is no set of files with descriptors"
_DESCRIPTORS_REMEDY: Final = "Give what protoc --include_imports --descriptor_set_out writes"
_PACKAGE_REMEDY: Final = (
    "Install it: pip install 'dovetail[protobuf]', on a cluster on the executors, too"
)

Message: TypeAlias = Annotated[
    Any,
    Rule(
        "a message's class, as protoc generates it, its descriptor, or its full name",
        lambda message: isinstance(message, str) or _descriptor_of(message) is not None,
    ),
]
Descriptors: TypeAlias = Annotated[
    str | PathLike[str] | bytes,
    Rule("the path or the bytes of what protoc --descriptor_set_out writes", bool),
]


@dataclass(frozen=True)
class ProtobufFormat(Format):
    """Protobuf messages of one type."""

    files: bytes
    """A serialized ``FileDescriptorSet`` with the message."""
    message: str
    """The message's full name."""
    framed: bool
    """True if messages follow a schema registry's framing."""
    registry: Registry | None
    """The registry to ask for the schema's id when a framing is written; None if only reading is
    needed.
    """
    subject: str | None
    """The registry's subject; None for ``<topic>-key`` and ``<topic>-value``."""

    def decoding(self, context: FormatContext) -> Decoding:
        """Return the steps that read the message's fields, in Python workers; no registry is asked.
        Only null bytes count as no value. With a framing, messages of other types are unreadable.
        Without one, empty bytes are a message in which no field is set. Raises
        ``ConfigurationError`` without the package ``ptars``.
        """
        fields = self._fields()
        decode = _arrow_udf(_decoder(self.files, self.message), fields)
        value = F.col(context.part)
        if self.framed:
            unframed = F.substring(value, FRAME_LENGTH + 1, _SUBSTRING_LENGTH_MAX)
            body = F.lit(None).cast("binary")
            for index_bytes in _message_indexes(_find_descriptor(self.files, self.message)):
                matches = F.startswith(unframed, F.lit(index_bytes))
                body = F.when(
                    matches, F.substring(unframed, len(index_bytes) + 1, _SUBSTRING_LENGTH_MAX)
                ).otherwise(body)
            value = F.when(F.startswith(value, F.lit(b"\0")), body)
        problem_text = f"not a message {self.message}"
        if self.framed:
            problem_text += ", in the framing of a schema registry"
        return Decoding(fields, decode(value), lambda parsed: parsed, lambda _: F.lit(problem_text))

    def encode(self, context: FormatContext, columns: StructType) -> Column:
        """Return a message of the columns, as bytes; a null is a field that is not set.

        With a framing, ask the registry for the subject's latest version, whose id goes before each
        message. Nothing is registered. The subject is the given one, else ``<topic>-<part>``.

        Raises ``PlanError`` for columns that do not fit the message, and for a framing without a
        registry. Raises ``ConfigurationError`` without ``ptars``, and if the registry does not know
        the subject or cannot be asked. The query fails for values that the message cannot have:
        unknown names of an enum, nulls in lists and maps, several fields of a ``oneof``.
        """
        message_fields = self._fields()
        for field in columns:
            if field.name not in message_fields.names:
                raise context.refuse(
                    f"has no field {field.name!r} in message {self.message}",
                    f"Select what it has: {', '.join(message_fields.names)}",
                )
            type_ = message_fields[field.name].dataType
            if type_.simpleString() != field.dataType.simpleString():
                raise context.refuse(
                    f"has column {field.name!r} of type {field.dataType.simpleString()}, which is "
                    f"{type_.simpleString()} in message {self.message}",
                    "Cast it",
                )
        encoder = _encoder(context.operator, self.files, self.message)
        encode = _arrow_udf(encoder, BinaryType())
        written = encode(F.struct(*(F.col(quoted(name)) for name in columns.names)))
        if not self.framed:
            return written
        if self.registry is None:
            raise context.refuse("is framed, and of no registry", "Give registry=")
        subject = self.subject or f"{context.topic}-{context.part}"
        schema_id = self.registry.versions(subject)[-1].id
        index_bytes = _message_indexes(_find_descriptor(self.files, self.message))[0]
        return F.concat(F.lit(bytes(1) + schema_id.to_bytes(4, "big") + index_bytes), written)

    def _fields(self) -> StructType:
        """Return the fields of the message as Spark's columns, in order. Raises
        ``ConfigurationError`` without the package ``ptars``.
        """
        return spark_schema(
            _spark_readable_schema(_message_converter(self.files, self.message).schema())
        )


@validated
def protobuf(
    message: Message,
    *,
    descriptors: Descriptors | None = None,
    framed: bool = False,
    registry: Registry | None = None,
    subject: Text | None = None,
) -> ProtobufFormat:
    """Describe messages of Protobuf, as the format of a key or value.

    A message's fields become columns. It needs the package ptars on the driver and the
    workers: ``pip install 'dovetail[protobuf]'``.

    Parameters
    ----------
    message : type, Descriptor or str
        The message's generated class or its descriptor. A text is its full name,
        ``"shop.Order"``, and needs ``descriptors``.
    descriptors : str, Path or bytes, optional
        The output of ``protoc --include_imports --descriptor_set_out``: its path or its
        bytes.
    framed : bool, default False
        True if messages follow a schema registry's framing. ``registry`` implies it.
    registry : Registry, optional
        The schema registry, made by ``dt.formats.registry``. Writing a framing needs it.
    subject : str, optional
        The registry's name for the versions of the schema, for writing with ``registry``.
        By default ``<topic>-key`` for a key, and ``<topic>-value`` for a value.

    Returns
    -------
    ProtobufFormat
        The format, for ``key=`` and ``value=``. The registry is not asked yet.

    Raises
    ------
    PlanError
        If the message is not in the descriptors, or the descriptors are missing, needless
        or cannot be read. A sink raises it for columns that do not fit the message, and for
        ``framed`` without a registry.
    ConfigurationError
        In a reader or a sink, if ptars is missing. In a sink also if the registry does not
        answer, or does not know the subject.

    See Also
    --------
    registry : Connect to a schema registry.
    avro : Records in Avro.
    Table.from_records : Read a table from a frame of records.

    Notes
    -----
    Fields that are not set have their defaults. Those declared ``optional``, and messages,
    are null. Enums are texts, ``uint64`` is ``decimal(20,0)``, and
    ``google.protobuf.Timestamp`` is a timestamp. A null is written as a field that is not
    set.

    A query fails at a value that would become another one: a text that is no name in its
    enum, a null in a list or map, or a second field of a ``oneof``.

    A field is identified by its number, so a message of another version is read as Protobuf
    reads it. A written framing names the latest version of the subject that is not deleted.

    Examples
    --------
    >>> import dovetail as dt
    >>> from pyspark.sql import functions as F
    >>> from google.protobuf.api_pb2 import Mixin  # name and root, both string
    >>> record = bytearray(Mixin(name="audit", root="v1").SerializeToString())
    >>> records = spark.createDataFrame([(record,)], "value binary")
    >>> mixins = dt.Table.from_records(
    ...     records,
    ...     key_columns="name",
    ...     value=dt.formats.protobuf(Mixin),
    ...     timestamp=F.timestamp_seconds(F.lit(1)),
    ...     name="mixins",
    ... )
    >>> mixins.schema.names
    ['name', 'root', '_change', '_timestamp', '_position']
    """
    if isinstance(message, str):
        if descriptors is None:
            raise PlanError(
                "protobuf",
                f"message={message!r} is a name, and descriptors= is not given",
                _DESCRIPTORS_REMEDY,
            )
        files, name = _descriptor_bytes(descriptors), message
    else:
        if descriptors is not None:
            raise PlanError(
                "protobuf", "descriptors= are given with a message that has its own", "Leave it out"
            )
        descriptor = _descriptor_of(message)
        assert descriptor is not None
        files, name = _file_set_of(descriptor.file), descriptor.full_name
    try:
        _find_descriptor(files, name)
    except DecodeError as error:
        raise PlanError(
            "protobuf", f"descriptors= {_NOT_DESCRIPTORS}", _DESCRIPTORS_REMEDY
        ) from error
    except (KeyError, TypeError, ValueError) as error:
        raise PlanError(
            "protobuf", f"message={name!r} is not in the descriptors: {error}", "Name one that is"
        ) from error
    return ProtobufFormat(files, name, framed or registry is not None, registry, subject)


def _descriptor_bytes(descriptors: Descriptors) -> bytes:
    """Return the bytes of ``descriptors``, or of the file whose path it is. Raises ``PlanError``
    for an unreadable file. The content is not checked.
    """
    if isinstance(descriptors, bytes):
        return descriptors
    try:
        return Path(descriptors).read_bytes()
    except OSError as error:
        raise PlanError(
            "protobuf", f"descriptors= cannot be read: {error}", _DESCRIPTORS_REMEDY
        ) from error


def _descriptor_of(message: Any) -> Descriptor | None:
    """Return the descriptor of a message's generated class, or ``message`` itself if it is one;
    None for other objects.
    """
    descriptor = (
        message if isinstance(message, Descriptor) else getattr(message, "DESCRIPTOR", None)
    )
    return descriptor if isinstance(descriptor, Descriptor) else None


def _file_set_of(file: FileDescriptor) -> bytes:
    """Return a ``.proto`` file and all its imports, direct and indirect, as a serialized
    ``FileDescriptorSet``: each once, after its own imports.
    """
    proto_by_name: dict[str, descriptor_pb2.FileDescriptorProto] = {}

    def add_file(file_descriptor: FileDescriptor) -> None:
        """Add ``file_descriptor`` to ``proto_by_name``, after its imports."""
        for inner in file_descriptor.dependencies:
            add_file(inner)
        proto = descriptor_pb2.FileDescriptorProto()
        file_descriptor.CopyToProto(proto)
        proto_by_name[file_descriptor.name] = proto

    add_file(file)
    listed = descriptor_pb2.FileDescriptorSet(file=proto_by_name.values())
    return bytes(listed.SerializeToString())


@cache
def _find_descriptor(files: bytes, message: str) -> Descriptor:
    """Return the descriptor of a message, the same object for the same arguments. ``files``: a
    serialized ``FileDescriptorSet``. ``message``: the full name.

    Raises ``KeyError`` or ``TypeError`` if the files do not have the message or an import,
    ``DecodeError`` if ``files`` is something else.
    """
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(files).file:
        pool.Add(file)
    return pool.FindMessageTypeByName(message)


@cache
def _message_converter(files: bytes, message: str) -> Any:
    """Return the converter of ``ptars`` for a message, the same for the same arguments. ``files``:
    a serialized ``FileDescriptorSet``. ``message``: the full name. Raises ``ConfigurationError``
    without the package ``ptars``.
    """
    try:
        from ptars import HandlerPool, PtarsConfig
    except ImportError as error:
        raise ConfigurationError(
            "protobuf", "the package ptars is missing", _PACKAGE_REMEDY
        ) from error
    descriptor = _find_descriptor(files, message)
    config = PtarsConfig(
        timestamp_tz="UTC",
        timestamp_unit="us",
        time_unit="us",
        duration_unit="us",
        enum_repr="string",
    )
    return HandlerPool([descriptor.file], config=config).get_for_message(descriptor)


def _arrow_udf(
    function: Callable[[pa.Array], pa.Array], type_: DataType
) -> Callable[[Column], Column]:
    """Return a function on Arrow arrays as a function on Spark's columns. ``type_``: the type of
    its result.
    """
    udf: Any = arrow_udf  # its overloads use constants private to Spark
    column_function: Callable[[Column], Column] = udf(function, returnType=type_)
    return column_function


def _decoder(files: bytes, message: str) -> Callable[[pa.Array], pa.Array]:
    """Return a function that decodes an array of messages, as bytes, to an array of structs of
    equal length. A null and a message that cannot be read become null. Spark calls the function in
    its workers.

    ``files``: a serialized ``FileDescriptorSet``. ``message``: the full name of the message.
    """

    def decode(values: pa.Array) -> pa.Array:
        """Return ``values``, messages as bytes, as an array of structs of equal length. A null and
        a message that cannot be read become null.
        """
        handler = _message_converter(files, message)
        return pa.concat_arrays(list(_decode_messages(handler, values.cast(pa.binary()))))

    return decode


def _decode_messages(handler: Any, values: pa.Array) -> Sequence[pa.Array]:
    """Return the messages ``values``, as bytes, in arrays of structs whose concatenation is in
    their order. A struct is null where the message is null or cannot be read, also for a time that
    is too large for microseconds. ``handler``: the converter of ``ptars`` for the message.

    A batch that fails is halved until the unreadable message is found.
    """
    try:
        batch = handler.array_to_record_batch(values)
    except ValueError:
        schema = _spark_readable_schema(handler.schema())
        if len(values) == 1:
            return [pa.nulls(1, pa.struct(list(schema)))]
        half = len(values) // 2
        return [
            *_decode_messages(handler, values[:half]),
            *_decode_messages(handler, values[half:]),
        ]
    table = pa.Table.from_batches([batch]).cast(_spark_readable_schema(batch.schema))
    columns = [column.combine_chunks() for column in table.columns]
    is_lost = values.is_null().to_numpy(zero_copy_only=False)
    for column in columns:
        is_lost = is_lost | _has_clamped_time(column)
    return [pa.StructArray.from_arrays(columns, fields=list(table.schema), mask=pa.array(is_lost))]


def _has_clamped_time(column: pa.Array) -> NDArray[np.bool_]:
    """Return a boolean for each value of the column: a timestamp or duration in it, at any depth,
    was too large for microseconds. ``ptars`` takes the largest or smallest of them instead.
    """
    type_, is_clamped = column.type, np.zeros(len(column), np.bool_)
    if pa.types.is_map(type_):
        entry = pa.struct([("key", type_.key_type), ("value", type_.item_type)])
        column = column.cast(pa.list_(entry))
    if pa.types.is_timestamp(type_) or pa.types.is_duration(type_):
        microseconds = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        ends = np.iinfo(np.int64)
        return np.isin(microseconds, [ends.max, ends.min])
    if pa.types.is_struct(type_):
        return reduce(np.logical_or, map(_has_clamped_time, column.flatten()), is_clamped)
    if type_.num_fields:
        clamped_items = _has_clamped_time(column.flatten())
        is_clamped[pc.list_parent_indices(column).to_numpy()[clamped_items]] = True
    return is_clamped


def _encoder(operator: str, files: bytes, message: str) -> Callable[[pa.Array], pa.Array]:
    """Return a function that encodes an array of structs to one of messages in bytes, of the same
    length. A null struct becomes an empty message. Spark calls it in its workers. It raises
    ``DataError`` for values that the message cannot have.

    ``operator``: the name of the call, for errors. ``files``: a serialized ``FileDescriptorSet``.
    ``message``: the full name of the message.
    """

    def encode(rows: pa.Array) -> pa.Array:
        """Return ``rows``, structs of fields of the message, as an array of messages in bytes, of
        equal length. A null becomes an empty message. Raises ``DataError`` for values that the
        message cannot have.
        """
        handler = _message_converter(files, message)
        _refuse_lost(operator, _find_descriptor(files, message), rows)
        batch = pa.RecordBatch.from_struct_array(rows)
        schema = handler.schema()
        fields = [
            pa.field(name, _nullable_type(schema.field(name).type)) for name in batch.schema.names
        ]
        return handler.record_batch_to_array(batch.cast(pa.schema(fields)))

    return encode


def _refuse_lost(operator: str, message: Descriptor, rows: pa.StructArray, path: str = "") -> None:
    """Raise ``DataError`` if a value would become another one in its message, at any depth.

    | value | in the message |
    |---|---|
    | a text that is no name of an enum's values | the enum's first value |
    | a null in a list or in a map | the default of its type |
    | two fields of one ``oneof`` | one of them |

    ``operator``: the name of the call, for errors. ``rows``: structs with fields of the message,
    perhaps not all. ``path``: the dotted path of the message with a dot behind it; empty for the
    record.
    """
    names = [field.name for field in rows.type]
    columns = dict(zip(names, rows.flatten(), strict=True))
    for name, column in columns.items():
        _refuse_lost_field(operator, message.fields_by_name[name], column, f"{path}{name}")
    for oneof in message.oneofs:
        among = [field.name for field in oneof.fields if field.name in columns]
        filled = sum(columns[name].is_valid().cast(pa.int8()).to_numpy() for name in among)
        if np.any(filled > 1):
            raise DataError(
                operator,
                f"a row has values in several of {', '.join(f'{path}{name}' for name in among)}, "
                f"of which a message has one (oneof {oneof.name})",
                "Set the others to null",
            )


def _refuse_lost_field(operator: str, field: FieldDescriptor, column: pa.Array, path: str) -> None:
    """Raise ``DataError`` if a value of one field cannot be written. It is a null in a list or map,
    or a text that is no name of its enum. Fields of messages within are checked, too.

    ``operator``: the name of the call. ``field``: the field's descriptor. ``column``: its values.
    ``path``: the field's dotted name, for errors.
    """
    is_map = pa.types.is_map(column.type)
    if is_map or pa.types.is_list(column.type):
        if is_map:
            # A cast, because items of a part of an array are those of the whole.
            type_ = column.type
            entry = pa.struct([("key", type_.key_type), ("value", type_.item_type)])
            column = column.cast(pa.list_(entry))
            field = field.message_type.fields_by_name["value"]
        column = column.flatten()
        if is_map:
            column = column.field("value")
        if column.null_count:
            raise DataError(
                operator,
                f"{path} of a row has a null within, and a message has a default in its place",
                "Leave it out by F.filter() or F.map_filter(), or put a value there",
            )
    if field.enum_type is not None:
        names = [value.name for value in field.enum_type.values]
        unknown = column.filter(pc.invert(pc.is_in(column, pa.array(names, column.type))))
        unknown = unknown.drop_null()
        if len(unknown):
            raise DataError(
                operator,
                f"{path} of a row is {unknown[0].as_py()!r}, which is no value of enum "
                f"{field.enum_type.full_name}",
                f"Write one of {', '.join(names)}, or a later version of the message",
            )
    elif pa.types.is_struct(column.type):
        _refuse_lost(operator, field.message_type, column, f"{path}.")


def _spark_readable_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema in types that Spark has, at any depth: unsigned integers become signed
    ones, or decimals for 64 bits, and everything is nullable.
    """
    return pa.schema([pa.field(f.name, _nullable_type(f.type, _signed_type)) for f in schema])


def _signed_type(type_: pa.DataType) -> pa.DataType:
    """Return a signed type that has all values of ``type_``: ``int64`` for ``uint32``,
    ``decimal(20,0)`` for ``uint64``. Other types stay.
    """
    if pa.types.is_uint64(type_):
        return pa.decimal128(20, 0)
    return pa.int64() if pa.types.is_uint32(type_) else type_


def _nullable_type(
    type_: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType] = lambda same: same
) -> pa.DataType:
    """Return ``type_`` with everything in it nullable. ``leaf``: a conversion of the plain types
    within; by default they stay.
    """
    if pa.types.is_list(type_):
        return pa.list_(_nullable_type(type_.value_type, leaf))
    if pa.types.is_map(type_):
        return pa.map_(_nullable_type(type_.key_type, leaf), _nullable_type(type_.item_type, leaf))
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(f.name, _nullable_type(f.type, leaf)) for f in type_])
    return leaf(type_)


def _message_indexes(descriptor: Descriptor) -> list[bytes]:
    """Return the one or two byte sequences by which a registry's framing may name the message of
    ``descriptor``, the usual one first.

    A sequence is a count and then indexes, as varints: of the outermost message in its file, and of
    each message in its outer one. For the first message of a file, one zero byte is usual instead.
    """
    path: list[int] = []
    current = descriptor
    while current is not None:
        outer = current.containing_type
        among = outer.nested_types if outer else list(current.file.message_types_by_name.values())
        path.insert(0, [other.full_name for other in among].index(current.full_name))
        current = outer
    named = b"".join(_varint(index) for index in (len(path), *path))
    return [b"\0", named] if path == [0] else [named]


def _varint(value: int) -> bytes:
    """Return ``value``, which is not negative, as a varint of the zigzag encoding, so of twice the
    value.
    """
    value <<= 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
